"""Which words of memory the lanes need of a batch, and in which order."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import FLAG, address, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.memory_port import MemoryPort
from hw.tsuru.row_format import RowFormat
from hw.tsuru.row_search import MOST_SINKS


@dataclasses.dataclass(frozen=True)
class RowSupplyParameters(Parameters):
    """
    d
        Elements of a row: a power of two from 8 to 256.
    capacity
        Rows of a kv head: a power of two from 16 to 4096.
    head_bits
        Width of a kv head's index.
    parallel
        Scores of the rest: query heads of a batch, at most d.
    sinks
        Rows at the start that are exact, 0 to 2.
    kept
        Rows whose V waits on the chip while K is read, 2 to `capacity`. V of further rows is read
        once more.
    depth
        Words requested and not yet used: a power of two, at least 4.
    key_fraction, value_fraction
        As of :class:`hw.tsuru.row_format.RowFormat`.
    """

    d: int = 64
    capacity: int = 1024
    head_bits: int = 2
    parallel: int = 3
    sinks: int = 1
    kept: int = 128
    depth: int = 16
    key_fraction: int = 4
    value_fraction: int = 4

    def __post_init__(self):
        power = 8 <= self.d <= 256 and not self.d & self.d - 1
        require(power, "d must be a power of two from 8 to 256", self.d)
        power = 16 <= self.capacity <= 4096 and not self.capacity & self.capacity - 1
        require(power, "capacity must be a power of two from 16 to 4096", self.capacity)
        require(self.head_bits >= 1, "head_bits must be at least 1", self.head_bits)
        rule = f"parallel must be between 1 and {self.d} (d)"
        require(1 <= self.parallel <= self.d, rule, self.parallel)
        rule = f"sinks must be between 0 and {MOST_SINKS}"
        require(0 <= self.sinks <= MOST_SINKS, rule, self.sinks)
        rule = f"kept must be between 2 and {self.capacity} (capacity)"
        require(2 <= self.kept <= self.capacity, rule, self.kept)
        power = self.depth >= 4 and not self.depth & self.depth - 1
        require(power, "depth must be a power of two from 4", self.depth)
        _ = self.format

    @classmethod
    def presets(cls) -> dict[str, "RowSupplyParameters"]:
        return {
            "small": cls(d=8, capacity=32, head_bits=1, parallel=2, kept=4, depth=8),
            "default": cls(),
            "wide": cls(d=128, capacity=4096, head_bits=3, parallel=4, kept=512, depth=64),
        }

    @cached_property
    def format(self) -> RowFormat:
        return RowFormat(self.d, self.key_fraction, self.value_fraction)

    @property
    def row_bits(self) -> int:
        return (self.capacity - 1).bit_length()

    @property
    def sinks_address(self) -> int:
        """Of V of the first sink, in a kv head's first half."""
        return self.capacity // 2

    @property
    def mean_address(self) -> int:
        """Where the mean of V is."""
        return self.capacity // 2 + self.capacity // 4

    @cached_property
    def memory(self) -> MemoryPort:
        """The memory, of which only words are read: | kv head | row | of a row, sinks' K among
        them, is in a kv head's second half."""
        row = data.ArrayLayout(FP16, self.d)
        return MemoryPort(index(range(self.depth)), self.row_bits + 1 + self.head_bits, row)

    @cached_property
    def batch_layout(self) -> data.StructLayout:
        """``sinks`` that a `kv_head` has, and whether it has ``more`` rows."""
        sinks = count(range(self.sinks + 1))
        return data.StructLayout({"kv_head": index(self.head_bits), "sinks": sinks, "more": FLAG})

    @cached_property
    def chosen_layout(self) -> data.StructLayout:
        """The number of a ``row``, and whether it is the batch's ``last``."""
        return data.StructLayout({"row": index(self.row_bits), "last": FLAG})

    @cached_property
    def rest_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16, self.parallel)

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """``data`` of a row, ``last`` of a batch's K or V; the ``rest`` has scores as elements."""
        row = data.ArrayLayout(FP16, self.d)
        return data.StructLayout({"data": row, "last": FLAG, "rest": FLAG})


class RowRequests(Component[RowSupplyParameters]):
    """Addresses of a batch's words: K of sinks, chosen rows; V of sinks, V not kept, the mean.

    Rows beyond the first `kept` are listed, and requested once more for their V.

    Throughput: an address a cycle, but for a cycle before each batch, one after its last row, and
    one before rows are requested again.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "batch": stream_in(p.batch_layout, "Batches."),
            "i": stream_in(p.chosen_layout, "Chosen rows of a batch, without sinks."),
            "issue": stream_out(
                {"address": address(p.memory.address_width), "last": FLAG},
                "What to read; `last` of K and of V.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, batch, issue = self.parameters, self.batch, self.issue
        of_batch = Signal(p.batch_layout, reset_less=True)
        chosen = Signal(range(p.capacity + 1), reset_less=True)  # rows so far
        beyond = Signal(range(p.capacity + 1), reset_less=True)  # of them, whose V is not kept
        sink = Signal(range(max(2, p.sinks)))  # that is requested
        place = Signal(p.row_bits)
        half = Signal()
        last_sink = Signal()
        kv_head, sinks = of_batch.kv_head, of_batch.sinks
        m.d.comb += [
            issue.payload.address.eq(Cat(place, half, kv_head)),
            last_sink.eq(sink + 1 == sinks),
        ]
        next_sink = sink.eq(Mux(last_sink, 0, sink + 1))
        with m.FSM(name="request"):
            with m.State("IDLE"):
                m.d.comb += batch.ready.eq(1)
                m.d.sync += [of_batch.eq(batch.payload), chosen.eq(0), beyond.eq(0)]
                with m.If(batch.valid):
                    m.next = "ROWS"
                    with m.If(batch.payload.sinks.any()):
                        m.next = "SINK_K"
            with m.State("SINK_K"):
                m.d.comb += [issue.valid.eq(1), half.eq(1), place.eq(sink)]
                m.d.comb += issue.payload.last.eq(last_sink & ~of_batch.more)
                with m.If(issue.ready):
                    m.d.sync += next_sink
                    with m.If(last_sink):
                        m.next = "SINK_V"
                        with m.If(of_batch.more):
                            m.next = "ROWS"
            self._rows(m, place, half, chosen, beyond, sinks)
            with m.State("SINK_V"):
                m.d.comb += [issue.valid.eq(1), place.eq(p.sinks_address + sink)]
                with m.If(issue.ready):
                    m.d.sync += next_sink
                    with m.If(last_sink):
                        _values(m, beyond)
            with m.State("MEAN"):
                m.d.comb += [issue.valid.eq(1), place.eq(p.mean_address)]
                m.d.comb += issue.payload.last.eq(1)
                with m.If(issue.ready):
                    m.next = "IDLE"
        return m

    def _rows(self, m: Module, place, half, chosen, beyond, sinks) -> None:
        """States of chosen rows, and of those whose V is read once more."""
        p, i, issue = self.parameters, self.i, self.issue
        m.submodules.list = numbers = memory.Memory(
            shape=unsigned(p.row_bits), depth=p.capacity, init=[]
        )
        write, read = numbers.write_port(), numbers.read_port()
        listed = Signal(range(p.capacity + 1), reset_less=True)  # the next to read of the list
        there = Signal()  # one has been read
        passed = issue.valid & issue.ready
        m.d.comb += [
            write.addr.eq(beyond),
            write.data.eq(i.payload.row),
            read.addr.eq(listed),
        ]
        with m.State("ROWS"):
            m.d.comb += [
                issue.valid.eq(i.valid),
                i.ready.eq(issue.ready),
                half.eq(1),
                place.eq(i.payload.row),
                issue.payload.last.eq(i.payload.last),
                write.en.eq(passed & (chosen >= p.kept)),
            ]
            with m.If(passed):
                m.d.sync += [chosen.eq(chosen + 1), beyond.eq(beyond + write.en)]
                with m.If(i.payload.last):
                    m.next = "LISTED"
        with m.State("LISTED"):  # `beyond` counts the last row too
            m.d.sync += listed.eq(0)
            _values(m, beyond)
            with m.If(sinks.any()):
                m.next = "SINK_V"
        with m.State("AGAIN"):
            m.d.comb += [
                issue.valid.eq(there),
                half.eq(1),
                place.eq(read.data),
                read.en.eq((listed != beyond) & (~there | issue.ready)),
            ]
            with m.If(read.en):
                m.d.sync += [listed.eq(listed + 1), there.eq(1)]
            with m.Elif(issue.ready):
                m.d.sync += there.eq(0)
                with m.If(there):
                    m.next = "MEAN"


def _values(m: Module, beyond) -> None:
    """The state after the sinks' V: V of rows that is not kept, or the mean."""
    m.next = "MEAN"
    with m.If(beyond.any()):
        m.next = "AGAIN"
