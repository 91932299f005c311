"""Testbench of the mean of rows: rows and sums in, sums and means out. A transaction is a row."""

import numpy as np

from golden.arith.formats import from_bits, to_bits
from golden.trace import Trace
from golden.tsuru.value_mean import add_row, mean_of
from hw.tsuru.value_mean import ValueMeanParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.strategies import every_magnitude, picks, powers_of_two, select
from sim.testbenches.tsuru.operands import random_row, trace_rows


class ValueMeanTestbench:
    def default_vectors(self, parameters: ValueMeanParameters) -> int:
        return 100 if parameters.d <= 16 else 24

    def stimulus(
        self, parameters: ValueMeanParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        if trace is None:
            return stimulus_of(p, *random_sums(p, vectors, np.random.default_rng(seed)), [])
        x, notes = trace_rows(trace, p.d, vectors)
        number = np.arange(len(x)) % p.capacity + 1
        before = np.zeros(x.shape, np.float32)
        for row in range(1, len(x)):
            before[row] = add_row(x[row - 1], before[row - 1], number[row - 1])
        return stimulus_of(p, x, before, number, [*notes, "Each joins the sum of those before."])


testbench = ValueMeanTestbench()


def random_sums(
    p: ValueMeanParameters, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows; sums near theirs, of any bits, or with means at ties of FP16; numbers of any size."""
    x = np.array([random_row(p.d, rng) for _ in range(count)])
    number = np.minimum(1 + every_magnitude(rng, p.capacity.bit_length(), count), p.capacity)
    size = np.where(np.isfinite(x), np.abs(x), 1).astype(np.float64)
    near = rng.standard_normal(x.shape) * size * 30
    bits = rng.integers(0, 1 << 32, x.shape)
    # Only about ties do the last bits of a product in FP32 matter.
    ties = (rng.integers(1024, 2048, x.shape) + 0.5) * powers_of_two(rng, -24, 6, x.shape)
    units = 1 + rng.integers(-3, 4, x.shape) * 2.0**-23
    kind = picks(rng, (count, 1), {"near": 3, "any": 2, "ties": 3})
    before = select(
        kind,
        {
            "near": near.astype(np.float32),
            "any": from_bits(bits, np.float32),
            "ties": (ties * units * number[:, None]).astype(np.float32),
        },
    )
    x = np.where(kind == "ties", np.float16(0), x)
    return x, before.astype(np.float32), number


def stimulus_of(
    p: ValueMeanParameters,
    x: np.ndarray,
    before: np.ndarray,
    number: np.ndarray,
    notes: list[str],
) -> Stimulus:
    """Rows x float16[row, d], sums float32[row, d], numbers int[row]."""
    total = add_row(x, before, number)
    mean = mean_of(total, number)
    fields = {"x": to_bits(x), "sum": to_bits(before), "number": number}
    return Stimulus(
        inputs={"i": payload.pack(p.input_layout, fields)},
        outputs={
            "o": payload.pack(p.output_layout, {"mean": to_bits(mean), "sum": to_bits(total)})
        },
        transaction_of={"o": np.arange(len(x))},
        transactions=len(x),
        cycles=p.cycles(len(x)),
        notes=notes,
    )
