"""What UniCAIM's converter of rows is made for, and what it takes."""

import dataclasses
import functools
import random

from amaranth.lib import data, enum

from hw.arith.float_format import FP16
from hw.layout import index
from hw.parameters import Parameters, require
from hw.unicaim.array import ArrayParameters

ALIGNED = 16
"""Bits of an element in units of its divisor's last bit, with its sign."""


class RowKind(enum.IntEnum, shape=2):
    """What a row is."""

    MEAN = 0
    KEY = 1
    QUERY = 2
    CLEAR = 3


@dataclasses.dataclass(frozen=True)
class LevelConverterParameters(Parameters):
    """
    rows, d, key_bits, query_bits, contexts
        Sizes of the array that takes the levels, see :class:`hw.unicaim.array.ArrayParameters`.
    rotate
        Rows are rotated first; then d must be a power of two.
    seed
        Seed of the rotation's signs.
    """

    rows: int = 64
    d: int = 64
    key_bits: int = 3
    query_bits: int = 1
    contexts: int = 1
    rotate: bool = True
    seed: int = 1

    def __post_init__(self):
        d = self.array.d
        require(not self.rotate or d & (d - 1) == 0, "d must be a power of two to rotate", d)

    @classmethod
    def presets(cls) -> dict[str, "LevelConverterParameters"]:
        return {
            "small": cls(rows=8, d=4, query_bits=2, contexts=2),
            "default": cls(),
            "paper": cls(rows=576, d=128),
            "plain": cls(rows=8, d=6, query_bits=2, rotate=False),
        }

    @functools.cached_property
    def array(self) -> ArrayParameters:
        return ArrayParameters(self.rows, self.d, self.key_bits, self.query_bits, self.contexts)

    @property
    def ranks(self) -> int:
        """Ranks of the transform."""
        return self.array.d.bit_length() - 1 if self.rotate else 0

    @property
    def sum_bits(self) -> int:
        """Width of an element of a rotated row."""
        return ALIGNED + self.ranks

    @property
    def latency(self) -> int:
        """Cycles from a query to its first plane."""
        return self.ranks + 3

    def row_cycles(self, kind: RowKind) -> int:
        """Cycles from a row to the next, without stalls."""
        bits = {RowKind.MEAN: 0, RowKind.QUERY: self.array.query_bits}
        return self.ranks + 2 + bits.get(kind, self.array.key_bits)

    def cycles(self, kinds: list[RowKind]) -> int:
        """Cycles from the first row offered to the last beat taken, without stalls."""
        return sum(map(self.row_cycles, kinds)) + 1

    @functools.cached_property
    def signs(self) -> int:
        """A mask of the elements that the rotation negates."""
        return random.Random(self.seed).getrandbits(self.array.d) if self.rotate else 0

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """A row.

        ``kind``: see :class:`RowKind`. ``context``, if there are several: whose mean, or which rows
        of the array. ``row``: the row to write a key to. ``divisor`` (FP16, positive and normal):
        of a query, or of all keys to come, sent with their mean. ``x``: d elements, FP16.
        """
        p = self.array
        context = {"context": index(range(p.contexts))} if p.contexts > 1 else {}
        fields = {"row": index(range(p.rows)), "divisor": FP16, "x": data.ArrayLayout(FP16, p.d)}
        return data.StructLayout({"kind": RowKind, **context, **fields})
