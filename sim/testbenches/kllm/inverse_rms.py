"""Testbench of the inverse RMS: sums of a vector's squares in, its factor out."""

import functools

import numpy as np

from golden.algorithms.kllm.quantize import dynamic_outliers, inlier_scale, outlier_count
from golden.arith.float_multiply_add import float_multiply_add
from golden.arith.formats import to_bits
from golden.kllm.inverse_rms import inverse_rms, mean_square
from golden.trace import Trace
from hw.kllm.inverse_rms import InverseRmsParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import random_floats
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

EPS = 1e-5
SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0], np.float16)


class InverseRmsTestbench:
    def default_vectors(self, parameters: InverseRmsParameters) -> int:
        return 1000

    def stimulus(
        self, parameters: InverseRmsParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        if trace is not None:
            sums, notes = real_sums(trace, vectors)
        else:
            sums, notes = random_sums(vectors, np.random.default_rng(seed)), []
        return build(parameters, sums, notes)


testbench = InverseRmsTestbench()


def real_sums(trace: Trace, vectors: int):
    """Operands of a trace's vectors, whose squares are summed in float64, and notes."""
    notes, pieces = [], []
    arrays = vectors_by_name(trace)
    for name, array in arrays.items():
        half, remarks = to_fp16(name, array)
        notes += remarks
        half = np.where(np.isfinite(half), half, np.float16(0))[: -(-vectors // len(arrays))]
        outlier = dynamic_outliers(half, outlier_count(half.shape[1]))
        scale = inlier_scale(half, outlier)
        square = half.astype(np.float64) ** 2
        pieces.append(
            {
                "s": np.where(outlier, 0, square).sum(axis=1) / scale.astype(np.float64) ** 2,
                "o": np.where(outlier, square, 0).sum(axis=1),
                "s_a": scale,
                "inverse_k": np.full(len(half), 1 / half.shape[1]),
            }
        )
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    at = np.arange(vectors) % len(joined["s"])
    sums = {
        name: value[at].astype(np.float16 if name == "s_a" else np.float32)
        for name, value in joined.items()
    }
    sums["eps"] = np.full(vectors, EPS, np.float32)
    rows = f"the first rows of {', '.join(arrays)}, repeated where there are too few"
    notes.append(f"Vectors are {rows}, with eps = {EPS:g}.")
    return sums, notes


def random_sums(vectors: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Sums of any size and in any proportion, a quarter with corner cases and any bits.

    Others have a mean square next to where r changes, or sums far from each other or alike.
    """

    def size(low: int, high: int) -> np.ndarray:
        return rng.uniform(1, 2, vectors) * 2.0 ** rng.integers(low, high, vectors)

    plain = {
        "s": size(-8, 14),
        "o": size(-20, 28),
        "s_a": size(-24, 15),
        "inverse_k": size(-12, 0),
        "eps": size(-30, 8),
    }
    for name in ("s", "o", "eps"):
        plain[name] = np.where(sometimes(rng, 0.3, vectors), 0, plain[name])
    # A mean square of any size, for the whole table and every exponent.
    alone = sometimes(rng, 0.4, vectors)
    for name in ("s", "o"):
        plain[name] = np.where(alone, 0, plain[name])
    plain["eps"] = np.where(alone, size(-40, 60), plain["eps"])
    for share, drawn in ((0.4, close_sums(vectors, rng)), (0.4, unequal_sums(vectors, rng))):
        taken = sometimes(rng, share, vectors)
        plain = {name: np.where(taken, drawn[name], value) for name, value in plain.items()}
    sums = {}
    for name, value in plain.items():
        kind = "fp16" if name == "s_a" else "fp32"
        odd = random_floats(kind, vectors, [], rng)
        odd = np.where(sometimes(rng, 0.2, vectors), rng.choice(SPECIAL, vectors), odd)
        sums[name] = np.where(sometimes(rng, 0.05, vectors), odd, value).astype(odd.dtype)
    return sums


@functools.cache
def changes() -> np.ndarray:
    """``float64``: the least mean square, from 1 to 4, for each value of r."""
    zeros = np.zeros(2 << 12, np.float32)
    every = (1 + np.arange(1 << 12) / 4096) * np.array([[1.0], [2.0]])
    every = every.ravel().astype(np.float32)
    r, *_ = inverse_rms(zeros, zeros, zeros.astype(np.float16), zeros, every)
    return every[1:][r[1:] != r[:-1]].astype(np.float64)


def close_sums(vectors: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Sums whose mean square is within rounding of the least one of some r."""
    goal = rng.choice(changes(), vectors) * 4.0 ** rng.integers(-4, 5, vectors)
    s_a = (rng.uniform(-2, 2, vectors) * 2.0 ** rng.integers(-3, 3, vectors)).astype(np.float16)
    dense = rng.uniform(1, 2, vectors) * 2.0 ** rng.integers(-12, 12, vectors)
    s = (goal * dense).astype(np.float32)
    # Either O or eps supplies the difference, of either sign.
    by_o = sometimes(rng, 0.5, vectors)
    exact = s_a.astype(np.float64) ** 2 * s
    power = 2.0 ** -rng.integers(0, 8, vectors)
    o = np.where(by_o, goal / power - exact, rng.uniform(-1, 1, vectors) * goal).astype(np.float32)
    inverse_k = np.where(by_o, power, rng.uniform(0.001, 1, vectors)).astype(np.float32)
    total = float_multiply_add((s_a.astype(np.float32)) ** 2, s, o)
    eps = np.where(by_o, 0, goal - total.astype(np.float64) * inverse_k).astype(np.float32)
    return {"s": s, "o": o, "s_a": s_a, "inverse_k": inverse_k, "eps": eps}


def unequal_sums(vectors: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Sums in which O or eps is far from the other addend, or nearly cancels it.

    Most numbers have few bits, so that steps are exact, ties or next to ties.
    """

    def bit(low: int, high: int) -> np.ndarray:
        return 2.0 ** -rng.integers(low, high, vectors)

    def significand() -> np.ndarray:
        few = 1 + sum(rng.integers(0, 2, vectors) * bit(1, 24) for _ in range(2))
        return np.where(sometimes(rng, 0.75, vectors), few, rng.uniform(1, 2, vectors))

    def addend(value: np.ndarray) -> np.ndarray:
        """Almost minus `value`, or minus its low-order bits, or any number."""
        sign = rng.choice([-1, 0, 1], vectors)
        _, exponent = np.frexp(value)
        place = 2.0**exponent * bit(8, 44)
        lower = np.fmod(value, place) * (1 + sign * bit(16, 24))
        almost = value * (1 + sign * significand() * bit(1, 30))
        other = value * sign * significand() * 2.0 ** rng.integers(-60, 30, vectors)
        return rng.choice([-1, 1, -1, -1], vectors) * np.choose(
            rng.integers(0, 3, vectors), [almost, lower, other]
        )

    s_a = (significand() * 2.0 ** rng.integers(-12, 12, vectors)).astype(np.float16)
    s = (significand() * 2.0 ** rng.integers(-8, 8, vectors)).astype(np.float32)
    low = rng.choice([-8, -8, -110], vectors)
    inverse_k = (significand() * 2.0 ** rng.integers(low, low + 16)).astype(np.float32)
    o = addend(s_a.astype(np.float64) ** 2 * s).astype(np.float32)
    o = np.where(sometimes(rng, 0.3, vectors), np.float32(0), o)
    total = float_multiply_add((s_a.astype(np.float32)) ** 2, s, o).astype(np.float64)
    eps = addend(total * inverse_k).astype(np.float32)
    eps = np.where(sometimes(rng, 0.3, vectors), np.float32(0), eps)
    # A subnormal number is flushed to zero, also next to a tie.
    tiny = rng.integers(1, 1 << 23, (2, vectors)).astype(np.uint32).view(np.float32)
    rare = sometimes(rng, 0.1, (2, vectors))
    o, eps = np.where(rare, tiny, [o, eps])
    return {"s": s, "o": o, "s_a": s_a, "inverse_k": inverse_k, "eps": eps}


def build(
    parameters: InverseRmsParameters, sums: dict[str, np.ndarray], notes: list[str]
) -> Stimulus:
    """The stimulus of these operands."""
    vectors = len(sums["s"])
    r, invalid, saturated = inverse_rms(**sums)
    results = {
        "r": to_bits(r),
        "invalid": invalid,
        "saturated": saturated,
        "mean_square": to_bits(mean_square(**sums)),
    }
    operands = {name: to_bits(value) for name, value in sums.items()}
    return Stimulus(
        inputs={"i": payload.pack(parameters.input_layout, operands)},
        outputs={"o": payload.pack(parameters.output_layout, results)},
        transaction_of={"o": np.arange(vectors)},
        transactions=vectors,
        cycles=parameters.cycles(vectors),
        notes=notes,
    )
