"""Which row of an array a new token is written to (UniCAIM, sections III-A2 and III-B4)."""

import dataclasses
import functools

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, enum

from hw.component import Component
from hw.layout import FLAG, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


class RowOp(enum.IntEnum, shape=1):
    """What a beat requests."""

    TAKE = 0
    CLEAR = 1


@dataclasses.dataclass(frozen=True)
class RowManagerParameters(Parameters):
    """
    rows
        Number of rows of the array, 2 or more.
    contexts
        Sets of rows, 1 to 256.
    """

    rows: int = 64
    contexts: int = 1

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        contexts = self.contexts
        require(1 <= contexts <= 256, "contexts must be between 1 and 256", contexts)

    @classmethod
    def presets(cls) -> dict[str, "RowManagerParameters"]:
        return {"small": cls(4, 2), "default": cls(), "paper": cls(576)}

    @property
    def latency(self) -> int:
        return 1

    def cycles(self, beats: int, consecutive: int = 0) -> int:
        """Cycles from the first beat offered to the last row taken, without stalls.

        beats
            The last one is a TAKE.
        consecutive
            Beats that consume a row to evict directly after another one of the same context.
        """
        return beats + consecutive + 1

    @property
    def context(self) -> dict:
        """The field of a context, if there are several."""
        return {"context": index(range(self.contexts))} if self.contexts > 1 else {}

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """``op``: see :class:`RowOp`. ``context``, if there are several: the set of rows."""
        return data.StructLayout({"op": RowOp, **self.context})

    @functools.cached_property
    def evict_layout(self) -> data.StructLayout:
        """The ``row`` of a ``context`` to evict next."""
        return data.StructLayout({**self.context, "row": index(range(self.rows))})

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """``row``: the row to write. ``evicts``: it was in use. ``full``: all rows are in use now,
        and the context's next beat waits for a row to evict."""
        return data.StructLayout({"row": index(range(self.rows)), "evicts": FLAG, "full": FLAG})


class RowManager(Component[RowManagerParameters]):
    """The row for a new token: the lowest free one, or else the one that is to be evicted.

    Rows are used from 0 upwards and given back only all at once (CLEAR), because a new token
    overwrites the evicted one in place; so the free rows are those from the number of rows in use
    on. When all are in use, the context's next beat waits for a row in `evict` and consumes it: a
    TAKE issues it, a CLEAR drops it. So each output with ``full`` calls for one row in `evict`,
    and what is issued does not depend on when that arrives.

    Latency: 1 cycle. Throughput: a beat a cycle, but one that consumes a row in two cycles if the
    beat before it did so in the same context. Outputs depend on registers only, but `i.ready` on
    `i` too, and on `o.ready`, and `evict.ready` on the context in `evict`.

    Examples
    --------
    >>> from hw.unicaim.row_manager import RowManagerParameters
    >>> parameters = RowManagerParameters(rows=576)
    >>> parameters.cycles(beats=576), parameters.cycles(beats=578, consecutive=1)
    (577, 580)
    """

    summary = "Row for a new token: a free one, or one to evict"
    source = "UniCAIM, sections III-A2 and III-B4"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(
                p.input_layout, "TAKE: a row for a new token; CLEAR: all rows are free again."
            ),
            "evict": stream_in(
                p.evict_layout,
                "A row is kept until a beat consumes it; not ready while one of its context is "
                "kept.",
            ),
            "o": stream_out(p.output_layout, "For each TAKE."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o, evict = self.parameters, self.i.payload, self.o.payload, self.evict
        used = Array(Signal(range(p.rows + 1), name=f"used_{n}") for n in range(p.contexts))
        row = Array(
            Signal(range(p.rows), name=f"row_{n}", reset_less=True) for n in range(p.contexts)
        )
        # Rows are never freed one by one: they fill up in order once, then each new token takes an
        # evicted one's place. So a counter says which rows are free.
        known = Signal(p.contexts)  # a row to evict is kept

        at = i.context if p.contexts > 1 else 0
        evict_at = evict.payload.context if p.contexts > 1 else 0
        count = Signal(range(p.rows + 1))
        full = Signal()
        possible = Signal()
        accept = Signal()
        take = Signal()
        accepted, found = (Signal(p.contexts, name=name) for name in ("accepted", "found"))
        m.d.comb += [
            count.eq(used[at]),
            full.eq(count == p.rows),
            # With all rows in use a row can only be named once the accumulation has found the one
            # to evict.
            possible.eq(~full | (known >> at)[0]),
            self.i.ready.eq(possible & ((i.op == RowOp.CLEAR) | ~self.o.valid | self.o.ready)),
            accept.eq(self.i.valid & self.i.ready),
            take.eq(accept & (i.op == RowOp.TAKE)),
            # One bit for each context, for the registers of each.
            accepted.eq(accept << at),
            evict.ready.eq(~(known >> evict_at)[0]),
            found.eq((evict.valid & evict.ready) << evict_at),
        ]
        # A row found is used by one TAKE, or forgotten with a CLEAR.
        m.d.sync += known.eq((known & ~(accepted & full.replicate(p.contexts))) | found)
        for number in range(p.contexts):
            with m.If(accepted[number]):
                with m.If(i.op == RowOp.CLEAR):
                    m.d.sync += used[number].eq(0)
                # Rows are given in order as long as there are free ones.
                with m.Elif(~full):
                    m.d.sync += used[number].eq(count + 1)
            with m.If(found[number]):
                m.d.sync += row[number].eq(evict.payload.row)
        # The answer is a register, so `o` does not depend on `i` in the same cycle.
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(take)
        with m.If(take):
            m.d.sync += [
                o.row.eq(Mux(full, row[at], count)),
                o.evicts.eq(full),
                o.full.eq(count >= p.rows - 1),
            ]
        return m
