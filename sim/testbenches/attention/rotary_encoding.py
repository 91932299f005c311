"""Testbench of the rotary encoding: heads of pairs at positions. A transaction is a head."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from golden.arith.formats import to_bits
from golden.attention.rotary_encoding import TURN, rotary_encoding, turns_of
from golden.trace import Trace
from hw.attention.rotary_encoding import RotaryEncodingParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.arith.operands import random_floats
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import pick, sometimes

BASES = (1e4, 1e5, 1e6)
"""Of frequencies, as models have them."""

NAMES = ("turns", "command", "i", "o")
"""The block's streams."""


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A head's position and its pairs, ``float16[pairs]`` each."""

    position: int
    a: np.ndarray
    b: np.ndarray


class RotaryEncodingTestbench:
    def default_vectors(self, parameters: RotaryEncodingParameters) -> int:
        return 400

    def stimulus(
        self, parameters: RotaryEncodingParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p, rng = parameters, np.random.default_rng(seed)
        base = float(rng.choice(BASES))
        turns = turns_of(base ** (-np.arange(p.pairs) / p.pairs))
        if trace is not None:
            heads, notes = real_heads(p, trace, vectors)
        else:
            heads, notes = random_heads(p, vectors, rng), []
            if sometimes(rng, 0.5):
                turns = rng.integers(0, 1 << TURN, p.pairs)
        return stimulus_of(p, turns, heads, rng, notes)


testbench = RotaryEncodingTestbench()


def real_heads(
    p: RotaryEncodingParameters, trace: Trace, vectors: int
) -> tuple[list[Head], list[str]]:
    """Heads cut from a trace's vectors, at every position in turn; halves and neighbours."""
    named, rows, notes = vectors_by_name(trace), [], []
    for name, array in named.items():
        half, remarks = to_fp16(name, array)
        size = 2 * p.pairs
        rows += list(np.resize(half, (max(1, half.size // size), size)))
        notes += remarks
    heads = []
    for number in range(vectors):
        row = rows[number % len(rows)]
        a, b = (row[::2], row[1::2]) if number % 2 else (row[: p.pairs], row[p.pairs :])
        heads.append(Head(number * 37 % p.positions, a, b))
    notes.append(
        f"Heads are cut from {', '.join(named)}, repeated where there is not enough; pairs are a "
        "head's halves or neighbours in turn."
    )
    return heads, notes


def random_heads(p: RotaryEncodingParameters, vectors: int, rng: np.random.Generator) -> list[Head]:
    """Heads of one pair and more at any position, plain, of any bits, or of one kind of number."""
    heads = []
    for _ in range(vectors):
        length = int(rng.integers(1, p.pairs + 1))
        position = int(rng.integers(p.positions))
        place = pick(rng, {"any": 3, "first": 1, "last": 1})
        position = {"any": position, "first": 0, "last": p.positions - 1}[place]
        if pick(rng, {"plain": 1, "bits": 1}) == "plain":
            a, b = rng.standard_normal((2, length)).astype(np.float16)
        else:
            a = random_floats("fp16", length, [], rng)
            b = random_floats("fp16", length, [a], rng)
        heads.append(Head(position, a, b))
    return heads


def stimulus_of(
    p: RotaryEncodingParameters,
    turns: np.ndarray | None,
    heads: Sequence[Head],
    rng: np.random.Generator,
    notes: list[str],
    names: Sequence[str] = NAMES,
    model: np.ndarray | None = None,
) -> Stimulus:
    """The stimulus of a table of turns and of heads; lanes without a pair have random bits.

    turns
        ``int[pairs]``, loaded first; None: the turns of `model` have been loaded before.
    names
        The streams, in the order of :data:`NAMES`.
    """
    rows, command, pairs, results = names
    table = turns if turns is not None else model
    assert table is not None
    beats = [-(-len(head.a) // p.lanes) for head in heads]
    given: list[dict[str, np.ndarray]] = []
    expected: list[dict[str, np.ndarray]] = []
    for head, count in zip(heads, beats, strict=True):
        length = len(head.a)
        turned = rotary_encoding(head.a, head.b, np.array(head.position), table[:length])
        fill = count * p.lanes - length
        kept = np.arange(count * p.lanes).reshape(count, -1) < length
        flags = {"keep": kept @ (1 << np.arange(p.lanes)), "last": np.arange(count) == count - 1}
        noise = rng.integers(0, 1 << 16, (2, fill))
        for beat, elements, rest in (
            (given, (head.a, head.b), noise),
            (expected, turned, np.zeros((2, fill), np.int64)),
        ):
            filled = [
                np.append(to_bits(x), bits).reshape(-1, p.lanes)
                for x, bits in zip(elements, rest, strict=True)
            ]
            beat.append(dict(zip("ab", filled, strict=True)) | flags)
    positions = np.array([head.position for head in heads])
    inputs = {
        command: payload.pack(p.command_layout, {"position": positions}),
        pairs: payload.pack(p.pairs_layout, _join(given)),
    }
    if turns is not None:
        inputs[rows] = table_beats(p, turns)
    return Stimulus(
        inputs=inputs,
        outputs={results: payload.pack(p.pairs_layout, _join(expected))},
        transaction_of={results: np.repeat(np.arange(len(heads)), beats)},
        transactions=len(heads),
        cycles=p.cycles([len(head.a) for head in heads]) - (turns is None) * p.rows,
        notes=notes,
    )


def stimulus_of_table(
    p: RotaryEncodingParameters, turns: np.ndarray, names: Sequence[str] = NAMES
) -> Stimulus:
    """The stimulus of a table of turns alone, while no head is in the unit."""
    return Stimulus({names[0]: table_beats(p, turns)}, {}, {}, 0, p.rows, [])


def table_beats(p: RotaryEncodingParameters, turns: np.ndarray) -> np.ndarray:
    """Packed rows of the table of turns, of all pairs."""
    rows = np.append(turns, np.zeros(p.pairs - len(turns), np.int64)).reshape(p.rows, p.lanes)
    fields = {"turn": rows & ((1 << TURN) - 1), "last": np.arange(p.rows) == p.rows - 1}
    return payload.pack(p.turns_layout, fields)


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
