"""What both arrays of UniCAIM share: parameters, ports and the handshake of a top-k search."""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from amaranth.hdl import Array, Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, enum

from hw.component import Component
from hw.layout import FLAG, index, integer, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


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
        Rows, one for each key, 2 to 65536.
    d
        Cells of a row, 2 to 65536.
    key_bits
        Bits of a cell, 1 to 8, for the levels -2^(key_bits - 1) to 2^(key_bits - 1).
    query_bits
        Bit planes of a query at most, 1 to 8.
    contexts
        Sets of rows, 1 to 256, of which a beat or a search uses one.
    """

    rows: int = 64
    d: int = 64
    key_bits: int = 3
    query_bits: int = 1
    contexts: int = 1

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        require(self.d >= 2, "d must be at least 2", self.d)
        for name in ("rows", "d"):
            value = getattr(self, name)
            require(value <= 1 << 16, f"{name} must be at most 65536", value)
        for name in ("key_bits", "query_bits"):
            value = getattr(self, name)
            require(1 <= value <= 8, f"{name} must be between 1 and 8", value)
        contexts = self.contexts
        require(1 <= contexts <= 256, "contexts must be between 1 and 256", contexts)

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
    def steps(self) -> int:
        """Steps of a search, bit by bit: one for each bit of a score, 11 for the paper's scores."""
        return self.score.width

    @property
    def write_cycles(self) -> int:
        """Cycles of a row to write."""
        return 1

    @property
    def latency(self) -> int:
        """Cycles from a query's last plane to the first step of its search."""
        return 1

    def cycles(self, beats: int, steps: int) -> int:
        """Cycles from the first beat to the last step, without stalls.

        beats
            On the bit lines, a row to write counting `write_cycles`.
        steps
            Number of steps of all searches together.
        """
        return beats + steps

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """A beat on the bit lines.

        ``op``: see :class:`ArrayOp`. ``context``, if there are several: the set of rows. ``row``:
        the row to write. ``last``: on a query's last plane. ``levels``: the row's key levels, or
        the plane's digits +1, 0, -1.
        """
        levels = data.ArrayLayout(integer(signed(self.key_bits + 1)), self.d)
        context = {"context": index(range(self.contexts))} if self.contexts > 1 else {}
        row = {"row": index(range(self.rows))}
        return data.StructLayout({"op": ArrayOp, **context, **row, "last": FLAG, "levels": levels})

    @functools.cached_property
    def drive_layout(self) -> data.ArrayLayout:
        """Digits as the rows take them; a ``negative`` one is ``on`` too."""
        return data.ArrayLayout(data.StructLayout({"on": FLAG, "negative": FLAG}), self.d)

    @functools.cached_property
    def values_layout(self) -> data.ArrayLayout:
        """Scores of all rows."""
        return data.ArrayLayout(integer(self.score), self.rows)


class BitLines(NamedTuple):
    """What the rows see of a beat.

    beat
        A beat of the layout ``parameters.input_layout``.
    drive
        Its digits.
    context
        The rows that it is for.
    write, plane
        It is accepted, and a row to write, or a plane of a query.
    first
        It is a query's first plane.
    complete
        And its last one.
    """

    beat: Any
    drive: Any
    context: Signal
    write: Signal
    plane: Value
    first: Value
    complete: Value


class UnicaimArray(Component[Any]):
    """Base of the arrays: bit lines in, scores and steps of a search out. See
    :class:`hw.unicaim.digital_array.DigitalArray`.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Beats on the bit lines."),
            "too_many": stream_in(1, "For each step, whether more than k lines were high."),
            "lines": stream_out(
                lines_layout(p.rows), "Lines that are high in each step of a search."
            ),
            "values": stream_out(p.values_layout, "Scores of all rows."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        i, lines = self.i.payload, self.lines.payload

        fire = Signal()  # a beat on the bit lines
        scoring = Signal()  # the last plane has been taken, scores are still to come
        begin = Signal()  # scores are complete in the next cycle
        searching = Signal()
        shown = Signal()  # the step has been taken, its answer is still to come
        values_valid = Signal()
        waiting, answered, over = (Signal(name=name) for name in ("waiting", "answered", "over"))
        # A search: show a step, wait for its answer, then show the next one or stop. The answer
        # may arrive in the same cycle in which the step is taken.
        m.d.comb += [
            # No row is written and no query is applied while a search or its scores are under way:
            # both read the registers that the next beat would change.
            self.i.ready.eq(~scoring & ~searching & ~values_valid),
            fire.eq(self.i.valid & self.i.ready),
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
        # The search and the output of values begin together and end independently of each other;
        # the array waits for both.
        with m.If(begin):
            m.d.sync += [searching.eq(1), values_valid.eq(1)]

        # The context of the beat, else the context of the beat before.
        context = Signal(range(max(2, p.contexts)))
        if p.contexts > 1:
            last_context = Signal.like(context, reset_less=True)
            m.d.comb += context.eq(Mux(fire, i.context, last_context))
            m.d.sync += last_context.eq(context)

        # The bit lines: write a row, clear all rows of a context, or apply one plane of a query.
        plane, write, clear, mid_query = (
            Signal(name=name) for name in ("plane", "write", "clear", "mid_query")
        )
        m.d.comb += [
            plane.eq(fire & (i.op == ArrayOp.QUERY)),
            write.eq(fire & (i.op == ArrayOp.WRITE)),
            clear.eq(fire & i.op[1]),
        ]
        with m.If(plane):
            m.d.sync += mid_query.eq(~i.last)
        # Rows that hold a key.
        used = Array(Signal(p.rows, name=f"used_{number}") for number in range(p.contexts))
        for number, rows in enumerate(used):
            with m.If(context == number):
                with m.If(write):
                    m.d.sync += rows.eq(rows | (1 << i.row))
                with m.If(clear):
                    m.d.sync += rows.eq(0)
        in_use = Signal(p.rows)
        m.d.comb += in_use.eq(used[context])

        # A digit +1, 0 or -1 in two's complement: its lowest bit says "not 0", its highest "< 0".
        drive = Signal(p.drive_layout)
        m.d.comb += [
            Value.cast(digit).eq(Cat(level[0], level[-1]))
            for digit, level in zip(drive, map(Value.cast, i.levels), strict=True)
        ]
        bus = BitLines(i, drive, context, write, plane, ~mid_query, plane & i.last)
        scores = self._scores(m, bus, scoring, begin)
        for number, score in enumerate(scores):
            value = Mux(in_use[number], score, 0)
            m.d.comb += self.values.payload[number].eq(value)
        self._search(m, scores, in_use, begin, answered)
        return m

    @abc.abstractmethod
    def _scores(self, m: Module, bus: BitLines, scoring: Signal, begin: Signal) -> list:
        """The rows' scores, from registers; drives `begin`, and `scoring` before it if need be."""

    @abc.abstractmethod
    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        """Drive the payload of `lines`: the first step from the cycle after `begin`, the next one
        from the cycle after each step is `answered`."""


def parallel_scores(m: Module, rows: list, bus: BitLines, begin: Signal) -> list:
    """Scores of rows that each have separate cells, with the ports of :func:`row_signature`."""
    for number, row in enumerate(rows):
        m.submodules[f"row_{number}"] = row
        m.d.comb += [
            row.levels.eq(bus.beat.levels),
            row.context.eq(bus.context),
            row.write.eq(bus.write & (bus.beat.row == number)),
            row.drive.eq(bus.drive),
            row.plane.eq(bus.plane),
            row.first.eq(bus.first),
        ]
    m.d.comb += begin.eq(bus.complete)
    return [row.score for row in rows]


def stored_keys(m: Module, row, contexts: int) -> Value:
    """The keys of a row's current context, as bits."""
    stored = []
    for number in range(contexts):
        keys = Signal(len(Value.cast(row.levels)), name=f"keys_{number}", reset_less=True)
        with m.If(row.write & (row.context == number)):
            m.d.sync += keys.eq(Value.cast(row.levels))
        stored.append(keys)
    return Array(stored)[row.context] if contexts > 1 else stored[0]


def row_ports(parameters: ArrayParameters) -> Ports:
    """Ports that every row has."""
    return {
        "context": wire_in(range(max(2, parameters.contexts)), "The set of rows."),
        "levels": wire_in(parameters.input_layout["levels"].shape, "Key levels to store."),
        "write": wire_in(1, "Store `levels`."),
        "drive": wire_in(parameters.drive_layout, "Digits of a plane."),
        "plane": wire_in(1, "Add their products with the keys to twice the score, or to 0."),
        "first": wire_in(1, "To 0: the first plane of a query."),
        "score": wire_out(parameters.score, "Score, from a register."),
    }
