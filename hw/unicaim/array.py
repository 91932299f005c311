"""What both arrays of UniCAIM share: parameters, ports and the handshake of a top-k search."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.layout import FLAG, index, integer, mask
from hw.parameters import Parameters, require


class ArrayOp(enum.IntEnum, shape=2):
    """What a beat on the bit lines is."""

    QUERY = 0
    WRITE = 1
    CLEAR = 2


def lines_layout(rows: int) -> data.StructLayout:
    """One step of a search.

    ``high``: the sense lines that are high, 0 for unused rows. ``last``: the search ends with this
    step. ``stoppable``: it also ends if k lines or fewer are high.
    """
    return data.StructLayout({"high": mask(rows), "last": FLAG, "stoppable": FLAG})


@dataclasses.dataclass(frozen=True)
class ArrayParameters(Parameters):
    """
    rows
        Rows, one for each key, 2 or more.
    d
        Cells of a row, 2 or more.
    key_bits
        Bits of a cell, 1 to 8, for the levels -2^(key_bits - 1) to 2^(key_bits - 1).
    query_bits
        Bit planes of a query at most, 1 to 8.
    """

    rows: int = 64
    d: int = 64
    key_bits: int = 3
    query_bits: int = 1

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        require(self.d >= 2, "d must be at least 2", self.d)
        for name in ("key_bits", "query_bits"):
            value = getattr(self, name)
            require(1 <= value <= 8, f"{name} must be between 1 and 8", value)

    @classmethod
    def presets(cls) -> Mapping[str, Self]:
        return {
            "small": cls(rows=8, d=4, query_bits=2),
            "default": cls(),
            "paper": cls(rows=576, d=128),
        }

    @property
    def score_limit(self) -> int:
        """The largest magnitude of a score: 512 for the paper's array."""
        return self.d * (1 << self.key_bits - 1) * ((1 << self.query_bits) - 1)

    @property
    def score(self) -> Shape:
        return signed(self.score_limit.bit_length() + 1)

    @property
    def latency(self) -> int:
        """Cycles from a query's last plane to the first step of its search."""
        return 1

    def cycles(self, beats: int, steps: int) -> int:
        """Cycles from the first beat to the last step, without stalls.

        beats
            On the bit lines.
        steps
            Of all searches together.
        """
        return beats + steps

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """A beat on the bit lines.

        ``op``: see :class:`ArrayOp`. ``row``: the row to write. ``last``: on a query's last plane.
        ``levels``: the row's key levels, or the plane's digits +1, 0, -1.
        """
        levels = data.ArrayLayout(integer(signed(self.key_bits + 1)), self.d)
        return data.StructLayout(
            {"op": ArrayOp, "row": index(range(self.rows)), "last": FLAG, "levels": levels}
        )

    @functools.cached_property
    def drive_layout(self) -> data.ArrayLayout:
        """Digits as the rows take them; a ``negative`` one is ``on`` too."""
        return data.ArrayLayout(data.StructLayout({"on": FLAG, "negative": FLAG}), self.d)

    @functools.cached_property
    def values_layout(self) -> data.ArrayLayout:
        """Scores of all rows."""
        return data.ArrayLayout(integer(self.score), self.rows)


class Array(Component, abc.ABC):
    """Base of the arrays: bit lines in, scores and steps of a search out. See
    :class:`hw.unicaim.digital_array.DigitalArray`.
    """

    def __init__(self, parameters: ArrayParameters):
        self._parameters: Any = parameters  # of the array's own class
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "too_many": In(stream.Signature(1)),
                "lines": Out(stream.Signature(lines_layout(parameters.rows))),
                "values": Out(stream.Signature(parameters.values_layout)),
            }
        )

    @property
    def parameters(self) -> Any:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        i, lines = self.i.payload, self.lines.payload

        used = Signal(p.rows)  # rows that hold a key
        mid_query = Signal()  # more planes of this query follow
        searching = Signal()
        shown = Signal()  # the step has been taken, its answer is still to come
        values_valid = Signal()
        taken, waiting, answered, over = (
            Signal(name=name) for name in ("taken", "waiting", "answered", "over")
        )
        # A search: show a step, wait for its answer, then show the next one or stop. The answer
        # may arrive in the same cycle in which the step is taken.
        m.d.comb += [
            self.i.ready.eq(~searching & ~values_valid),
            taken.eq(self.i.valid & self.i.ready),
            self.values.valid.eq(values_valid),
            self.lines.valid.eq(searching & ~shown),
            waiting.eq(shown | (self.lines.valid & self.lines.ready)),
            self.too_many.ready.eq(waiting),
            answered.eq(waiting & self.too_many.valid),
            over.eq(answered & (lines.last | (lines.stoppable & ~self.too_many.payload))),
        ]
        m.d.sync += shown.eq(waiting & ~answered)
        with m.If(self.values.ready):
            m.d.sync += values_valid.eq(0)
        with m.If(over):
            m.d.sync += searching.eq(0)

        # The bit lines: write a row, clear all rows, or apply one plane of a query.
        plane = Signal()
        begin = Signal()  # the last plane: scores are complete in the next cycle
        write = Signal()
        m.d.comb += [
            plane.eq(taken & (i.op == ArrayOp.QUERY)),
            begin.eq(plane & i.last),
            write.eq(taken & (i.op == ArrayOp.WRITE)),
        ]
        with m.If(plane):
            m.d.sync += mid_query.eq(~i.last)
        with m.If(begin):
            m.d.sync += [searching.eq(1), values_valid.eq(1)]
        with m.If(write):
            m.d.sync += used.eq(used | (1 << i.row))
        with m.If(taken & i.op[1]):  # CLEAR
            m.d.sync += used.eq(0)

        # A digit +1, 0 or -1 in two's complement: its lowest bit says "not 0", its highest "< 0".
        drive = Signal(p.drive_layout)
        m.d.comb += [
            Value.cast(digit).eq(Cat(level[0], level[-1]))
            for digit, level in zip(drive, map(Value.cast, i.levels), strict=True)
        ]
        rows = self._rows(m, drive)
        for number, row in enumerate(rows):
            m.submodules[f"row_{number}"] = row
            m.d.comb += [
                row.levels.eq(i.levels),
                row.write.eq(write & (i.row == number)),
                row.drive.eq(drive),
                row.plane.eq(plane),
                row.first.eq(~mid_query),
                self.values.payload[number].eq(Mux(used[number], row.score, 0)),
            ]
        self._search(m, [row.score for row in rows], used, begin, answered)
        return m

    @abc.abstractmethod
    def _rows(self, m: Module, drive) -> list:
        """The rows, each with the ports of :func:`row_signature`."""

    @abc.abstractmethod
    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        """Drive the payload of `lines`: the first step from the cycle after `begin`, the next one
        from the cycle after each step is `answered`."""


def row_signature(parameters: ArrayParameters) -> dict:
    """Ports that every row has."""
    return {
        "levels": In(parameters.input_layout["levels"].shape),
        "write": In(1),
        "drive": In(parameters.drive_layout),
        "plane": In(1),
        "first": In(1),
        "score": Out(parameters.score),
    }
