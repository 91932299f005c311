"""Testbench of the element-wise operations of two vectors. A transaction is a vector."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from golden.arith.formats import to_bits
from golden.attention.vector_unit import vector_unit
from golden.trace import Trace
from hw.attention.vector_unit import VectorUnitParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.attention.pair_function import OPERATIONS, drawn_pairs
from sim.testbenches.operands import to_fp16, vectors_by_name

LONGEST = 12
"""Beats of most drawn vectors."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """A vector's command and operands, ``float16[elements]`` each, of one element or more."""

    op: int
    a: np.ndarray
    b: np.ndarray


class VectorUnitTestbench:
    def default_vectors(self, parameters: VectorUnitParameters) -> int:
        return 20

    def stimulus(
        self, parameters: VectorUnitParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is not None:
            pairs, notes = real_pairs(parameters, trace, vectors)
        else:
            pairs, notes = random_pairs(parameters, vectors, rng), []
        return stimulus_of(parameters, pairs, rng, notes)


testbench = VectorUnitTestbench()


def real_pairs(
    p: VectorUnitParameters, trace: Trace, vectors: int
) -> tuple[list[Pairs], list[str]]:
    """Vectors of a trace, each with the one after it in its array; operations take turns."""
    arrays, notes, most = [], [], 2 * LONGEST * p.lanes
    named = vectors_by_name(trace)
    for name, array in named.items():
        half, remarks = to_fp16(name, array)
        arrays.append(half[:, :most])
        notes += remarks
    pairs = []
    for number in range(vectors):
        array = arrays[number // OPERATIONS % len(arrays)]
        at = number // (OPERATIONS * len(arrays))
        a, b = array[at % len(array)], array[(at + 1) % len(array)]
        pairs.append(Pairs(number % OPERATIONS, a, b))
    notes.append(
        f"Vectors are of {', '.join(named)}, cut to {most} elements, each with the one after it, "
        "repeated where there are not enough; the operations take turns."
    )
    return pairs, notes


def random_pairs(p: VectorUnitParameters, vectors: int, rng: np.random.Generator) -> list[Pairs]:
    """Vectors of any length, of one element on; one in ten is long.

    All elements have the operation of the vector's first, whatever they were drawn for.
    """
    pairs = []
    for number in range(vectors):
        beats = LONGEST * 10 if number % 10 == 0 else LONGEST
        length = int(rng.integers(1, beats * p.lanes + 1))
        a, b, op = drawn_pairs(length, rng)
        pairs.append(Pairs(int(op[0]), a, b))
    return pairs


def stimulus_of(
    p: VectorUnitParameters,
    pairs: Sequence[Pairs],
    rng: np.random.Generator,
    notes: list[str],
    names: Sequence[str] = ("command", "i", "o"),
) -> Stimulus:
    """The stimulus of vectors, one after another; lanes without an element have random bits.

    names
        Streams of the commands, the operands and the results.
    """
    command, operands, results = names
    beats = [-(-len(pair.a) // p.lanes) for pair in pairs]
    given, expected = [], []
    for pair, count in zip(pairs, beats, strict=True):
        y, invalid = vector_unit(pair.a, pair.b, pair.op)
        fill = count * p.lanes - len(y)
        keep = _mask(p, np.ones(len(y), bool), fill)
        flags = {"keep": keep, "last": np.arange(count) == count - 1}
        noise = rng.integers(0, 1 << 16, (2, fill))
        elements = [
            np.append(to_bits(x), bits).reshape(-1, p.lanes)
            for x, bits in zip((pair.a, pair.b), noise, strict=True)
        ]
        given.append(dict(zip("ab", elements, strict=True)) | flags)
        bits = np.append(to_bits(y), np.zeros(fill, np.int64)).reshape(-1, p.lanes)
        expected.append({"y": bits, "invalid": _mask(p, invalid, fill)} | flags)
    return Stimulus(
        inputs={
            command: payload.pack(p.command_layout, {"op": np.array([pair.op for pair in pairs])}),
            operands: payload.pack(p.input_layout, _join(given)),
        },
        outputs={results: payload.pack(p.output_layout, _join(expected))},
        transaction_of={results: np.repeat(np.arange(len(pairs)), beats)},
        transactions=len(pairs),
        cycles=p.cycles([len(pair.a) for pair in pairs]),
        notes=notes,
    )


def _mask(p: VectorUnitParameters, flags: np.ndarray, fill: int) -> np.ndarray:
    """A bit for each lane of each beat, 0 in the last `fill` lanes."""
    lanes = np.append(flags, np.zeros(fill, bool)).reshape(-1, p.lanes)
    return (lanes.astype(np.uint64) << np.arange(p.lanes, dtype=np.uint64)).sum(axis=1)


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
