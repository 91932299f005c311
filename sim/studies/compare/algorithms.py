"""An algorithm without a core here: its reads through the memory, in no time for computing.

Of SpAtten a layer has the average share of tokens, as the cascade over the layers before is not
known from one layer: half of them the newest, as its policy keeps them, the others spread evenly.
What is read of them follows from the layer's queries and keys, by the policy.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.algorithms.baselines.spatten import SpAttenAttention
from sim.core.dram.requests import Requests, measure
from sim.core.dram.timing import DramTiming, DramUse
from sim.studies.compare.data import LayerData, Shape

BITS, FIRST_BITS, VALUE_BITS = 12, 8, 8
"""Bits of SpAtten's keys, those that are read first, and bits of its values."""
RECENT = 0.5
"""Share of its tokens that are kept for being the newest."""
FIRST, REST, VALUES = range(3)
"""Regions of a kv head in the memory: first bits of keys, their other bits, values."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some rows of a region, in the order in which they are read or written.

    start, row_bytes
        Byte address of the region's row 0, and bytes of a row.
    """

    start: int
    row_bytes: int
    rows: np.ndarray
    write: bool = False

    @property
    def bytes(self) -> int:
        return self.row_bytes * len(self.rows)

    def requests(self, line: int) -> Requests:
        """The lines that it touches, each once for neighbouring rows."""
        begin = self.start + self.rows * self.row_bytes
        first, last = begin // line, (begin + self.row_bytes - 1) // line
        touched = [n for a, b in zip(first, last, strict=True) for n in range(a, b + 1)]
        return [(self.write, line * number) for number in dict.fromkeys(touched)]


@dataclasses.dataclass(frozen=True)
class Moves:
    """What a step moves: `pieces` in order, bytes by kind, and the settings in words."""

    pieces: Sequence[Piece]
    bytes: dict[str, int]
    knob: str

    def through(self, timing: DramTiming) -> DramUse:
        """The pieces, requested as fast as the memory accepts them."""
        line = timing.standard.line
        return measure(timing, [of for piece in self.pieces for of in piece.requests(line)])


def tokens_kept(n: int, count: int) -> np.ndarray:
    """Tokens that a layer keeps: RECENT of them the newest, the others spread evenly before."""
    newest = max(1, int(RECENT * count))
    before = np.linspace(0, n - newest - 1, count - newest).round().astype(int)
    return np.concatenate([before, np.arange(n - newest, n)])


def spatten(shape: Shape, data: LayerData, knobs: dict[str, Any]) -> Moves:
    """The last token's step.

    knobs
        ``keep``, the share of tokens that a layer keeps on average, and ``values``, the share of
        the kept tokens whose values a head reads.
    """
    keep, values = knobs["keep"], knobs["values"]
    tokens = tokens_kept(shape.n, max(2, int(keep * shape.n)))
    widths = [-(-shape.d * of // 8) for of in (FIRST_BITS, BITS - FIRST_BITS, VALUE_BITS)]
    policy = SpAttenAttention(
        keep=1,
        values=values,
        bits=BITS,
        first_bits=FIRST_BITS,
        value_bits=VALUE_BITS,
        prompt=len(tokens) - 1,
        scale=data.scale,
    )
    policy.sequence(*(x[:, tokens] for x in (data.q, data.k, data.v)))
    pieces, moved = [], dict.fromkeys(("k_read", "v_read", "k_written", "v_written"), 0)

    def add(kind: str, head: int, region: int, rows: np.ndarray, write: bool = False) -> None:
        start = shape.n * (head * sum(widths) + sum(widths[:region]))
        piece = Piece(start, widths[region], rows, write)
        pieces.append(piece)
        moved[kind] += piece.bytes

    for head in range(shape.kv_heads):
        whole, read = policy.whole[head, :, -1], policy.read[head, :, -1]  # of the last query
        add("k_read", head, FIRST, tokens)
        if whole.any():
            add("k_read", head, REST, tokens)
        add("v_read", head, VALUES, tokens[read.any(axis=0)])
    for head in range(shape.kv_heads):
        for region, kind in ((FIRST, "k"), (REST, "k"), (VALUES, "v")):
            add(f"{kind}_written", head, region, tokens[-1:], write=True)
    share = "" if values == 1 else f", {values:.0%} of their values"
    return Moves(pieces, moved, f"{keep:.0%} of the tokens{share}")
