"""What both arrays of UniCAIM have in common: parameters, ports and the order of events."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require

QUERY, WRITE, CLEAR = range(3)
"""What a beat on the bit lines is."""


def lines_layout(rows: int) -> data.StructLayout:
    """One step of a race.

    ``high`` the sense lines that are high, 0 for unused rows; ``last`` the race ends with this
    step; ``stoppable`` it also ends if k lines or fewer are high.
    """
    return data.StructLayout({"high": rows, "last": 1, "stoppable": 1})


@dataclasses.dataclass(frozen=True)
class ArrayParameters(Parameters):
    """
    rows
        Keys, 2 or more.
    d
        Cells of a row, 2 or more.
    key_bits
        Of a cell, 1 to 8: levels -2^(key_bits - 1) to 2^(key_bits - 1).
    query_bits
        Most planes of a query, 1 to 8.
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
    def presets(cls) -> dict[str, "ArrayParameters"]:
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
        """Cycles from a query's last plane to the first step of its race."""
        return 1

    @property
    def input_layout(self) -> data.StructLayout:
        """A beat on the bit lines.

        ``op`` QUERY, WRITE or CLEAR; ``row`` to write; ``last`` on a query's last plane;
        ``levels`` the row's key levels, or the plane's digits +1, 0, -1.
        """
        levels = data.ArrayLayout(signed(self.key_bits + 1), self.d)
        return data.StructLayout({"op": 2, "row": range(self.rows), "last": 1, "levels": levels})

    @property
    def drive_layout(self) -> data.ArrayLayout:
        """Digits as the rows take them; a ``negative`` one is ``on`` too."""
        return data.ArrayLayout(data.StructLayout({"on": 1, "negative": 1}), self.d)

    @property
    def values_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.score, self.rows)


class Array(Component):
    """Base of the arrays: bit lines in, scores and races out. See :class:`DigitalArray`."""

    def __init__(self, parameters: ArrayParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "more": In(stream.Signature(1)),
                "lines": Out(stream.Signature(lines_layout(parameters.rows))),
                "values": Out(stream.Signature(parameters.values_layout)),
            }
        )

    @property
    def parameters(self) -> ArrayParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        i, lines = self.i.payload, self.lines.payload

        used = Signal(p.rows)
        within = Signal()  # a query whose last plane is to come
        racing = Signal()
        asked = Signal()  # the step has been seen, its answer is to come
        offering = Signal()
        taken, asking, answered, over = (
            Signal(name=name) for name in ("taken", "asking", "answered", "over")
        )
        m.d.comb += [
            self.i.ready.eq(~racing & ~offering),
            taken.eq(self.i.valid & self.i.ready),
            self.values.valid.eq(offering),
            self.lines.valid.eq(racing & ~asked),
            asking.eq(asked | (self.lines.valid & self.lines.ready)),
            self.more.ready.eq(asking),
            answered.eq(asking & self.more.valid),
            over.eq(answered & (lines.last | (lines.stoppable & ~self.more.payload))),
        ]
        m.d.sync += asked.eq(asking & ~answered)
        with m.If(self.values.ready):
            m.d.sync += offering.eq(0)
        with m.If(over):
            m.d.sync += racing.eq(0)

        plane = Signal()
        begin = Signal()
        write = Signal()
        m.d.comb += [
            plane.eq(taken & (i.op == QUERY)),
            begin.eq(plane & i.last),
            write.eq(taken & (i.op == WRITE)),
        ]
        with m.If(plane):
            m.d.sync += within.eq(~i.last)
        with m.If(begin):
            m.d.sync += [racing.eq(1), offering.eq(1)]
        with m.If(write):
            m.d.sync += used.eq(used | (1 << i.row))
        with m.If(taken & i.op[1]):
            m.d.sync += used.eq(0)

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
                row.first.eq(~within),
                self.values.payload[number].eq(Mux(used[number], row.score, 0)),
            ]
        self._race(m, [row.score for row in rows], used, begin, answered)
        return m

    def _rows(self, m: Module, drive) -> list:
        """The rows, each with ports levels, write, drive, plane, first and score."""
        raise NotImplementedError

    def _race(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        """The payload of `lines`: the first step from the cycle after `begin`, then the next from
        the cycle after each one is `answered`."""
        raise NotImplementedError


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
