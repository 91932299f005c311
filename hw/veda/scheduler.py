"""What VEDA's core does when in a token's step (VEDA, section V)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.veda.row_map import RowMap, RowMapParameters
from hw.veda.voting_engine import VotingEngineParameters


@dataclasses.dataclass(frozen=True)
class SchedulerParameters(Parameters):
    """
    kv_heads
        Most heads with keys and values of their own.
    depth
        Of the reader; see :class:`SequentialReaderParameters`.
    capacity, heads, position_bits, count_bits
        Of the voting engine; see :class:`VotingEngineParameters`. The capacity is a power of two.
    """

    kv_heads: int = 3
    depth: int = 16
    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16

    def __post_init__(self):
        _ = self.voting, self.map, self.reader  # check their own
        require(1 <= self.kv_heads <= self.heads, "kv_heads must be 1 to heads", self.kv_heads)

    @classmethod
    def presets(cls) -> dict[str, "SchedulerParameters"]:
        return {
            "small": cls(2, 8, 32, 4, 8, 4),
            "default": cls(),
            "paper": cls(32, 64, 4096, 32),
        }

    @property
    def voting(self) -> VotingEngineParameters:
        return VotingEngineParameters(
            self.capacity, self.heads, self.position_bits, self.count_bits
        )

    @property
    def head_bits(self) -> int:
        """Of a kv head's number."""
        return max(1, (self.kv_heads - 1).bit_length())

    @property
    def map(self) -> RowMapParameters:
        return RowMapParameters(
            self.capacity, self.head_bits + 1, (2 * self.depth - 1).bit_length()
        )

    @property
    def address_width(self) -> int:
        """Bits of a row's address."""
        return self.map.slot_bits + self.map.region_bits

    @property
    def reader(self) -> SequentialReaderParameters:
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=self.capacity
        )

    def address(self, kv_head, value, row):
        """That of a row of K, or if `value` of V."""
        return (kv_head * 2 + value) * self.capacity + row

    @property
    def job_layout(self) -> data.StructLayout:
        """A step: as for the voting engine, and how many query heads, ``group``, share a kv head.

        0 heads or a group of 0 count as 1.
        """
        fields = {name: field.shape for name, field in self.voting.job_layout}
        return data.StructLayout(fields | {"group": range(self.heads + 1)})

    @property
    def report_layout(self) -> data.StructLayout:
        """As of the voting engine, and ``error`` for a job that was refused.

        That is then the job's only beat: ``last``, with the ``length`` as it was, the rest 0.
        """
        fields = {name: field.shape for name, field in self.voting.report_layout}
        return data.StructLayout(fields | {"error": 1})

    @property
    def request_layout(self) -> data.StructLayout:
        """Of a row to ``write`` or to read."""
        return data.StructLayout(
            {"tag": range(self.depth), "address": self.address_width, "write": 1}
        )


class Scheduler(Component):
    """The order of a step: store the new rows, read all rows for each head, let a row leave.

    ::

        job ─→ place for the token ─→ writes: K, V of each kv head ─→ reads: for each head K, V ─┐
         ↑                                                                                        │
         └──────────── rows change places, as the votes say ←── report ←── all heads are done ←──┘

    A step begins with its `job`, which goes on to the voting engine, and ends with the last report
    of which row leaves; the next one is taken then. Requests for rows name slots of the cache; see
    :class:`hw.veda.row_map.RowMap` for the rows they get. A row's address is made of kv head, K or
    V, and row, from the top.

    Latency: 3 cycles from a job to the first write, one write a cycle; then the first command. What
    the reader asks for goes out a cycle later.

    Handshake: `job` and `votes` pass at the same time, a ``report`` as the engine gives it when the
    map is free, and `asked` as :class:`RowMap` passes look-ups; a report must not come before the
    last of these has gone out.

    Errors: a job of more heads than `heads`, or than kv_heads times its group, is refused. It is
    accepted and answered in the next cycle by a report with ``error``, and does nothing else: it
    does not reach the voting engine, makes no request, and its ``restart`` has no effect.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
        Steps.
    votes : :py:`Out(stream.Signature(parameters.voting.job_layout))`
        To the voting engine.
    decided : :py:`In(stream.Signature(parameters.voting.report_layout))`
        From the voting engine.
    report : :py:`Out(stream.Signature(parameters.report_layout))`
        The same, for the user, and jobs refused.
    command : :py:`Out(stream.Signature(parameters.reader.command_layout))`
        Runs of slots to read, K and V in turn.
    asked : :py:`In(stream.Signature(parameters.reader.request_layout))`
        What the reader asks for.
    request : :py:`Out(stream.Signature(parameters.request_layout))`
        Rows to write and to read.
    heads : :py:`Out(range(parameters.heads + 1))`
        Heads of this step.
    """

    def __init__(self, parameters: SchedulerParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "job": In(stream.Signature(p.job_layout)),
                "votes": Out(stream.Signature(p.voting.job_layout)),
                "decided": In(stream.Signature(p.voting.report_layout)),
                "report": Out(stream.Signature(p.report_layout)),
                "command": Out(stream.Signature(p.reader.command_layout)),
                "asked": In(stream.Signature(p.reader.request_layout)),
                "request": Out(stream.Signature(p.request_layout)),
                "heads": Out(range(p.heads + 1)),
            }
        )

    @property
    def parameters(self) -> SchedulerParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        job, votes, decided, report = self.job, self.votes, self.decided, self.report
        m.submodules.map = rows = RowMap(p.map)

        group = Signal(range(p.heads + 1), reset_less=True)
        length = Signal(range(p.capacity + 1))  # live slots
        done = Signal(range(p.heads + 1), reset_less=True)  # heads, of the writes or the reads
        shared = Signal(range(p.heads + 1), reset_less=True)  # heads done of this kv head
        kv_head = Signal(p.head_bits, reset_less=True)
        value = Signal(reset_less=True)  # V's turn
        after = Signal(range(2 * p.heads + 1))
        final = Signal()
        storing = Signal()
        stored = Signal()
        region = Signal(p.map.region_bits)
        swap = Signal()
        m.d.comb += [
            after.eq(done + Mux(storing, group, 1)),
            final.eq(after >= self.heads),
            region.eq(Cat(value, kv_head)),
            stored.eq(rows.i.valid & rows.i.ready),
            votes.payload.eq(Cat(job.payload[name] for name, _ in p.voting.job_layout)),
            rows.change.payload.swap.eq(swap),
            rows.change.payload.slot.eq(Mux(swap, decided.payload.slot, length)),
            rows.change.payload.last.eq(decided.payload.length),
            self.command.payload.words.eq(length),
            self.command.payload.address.eq(region << p.map.slot_bits),
        ]
        for name, _ in p.voting.report_layout:
            m.d.comb += report.payload[name].eq(decided.payload[name])
        self._look_up(m, rows, storing, region, length)

        # The rows of more kv heads would lie beyond the cache.
        one_each = Signal.like(group)
        refused = Signal()
        m.d.comb += [
            one_each.eq(Mux(job.payload.group.any(), job.payload.group, 1)),
            refused.eq((job.payload.heads > p.heads) | (job.payload.heads > one_each * p.kv_heads)),
        ]

        with m.FSM(name="phase"):
            with m.State("IDLE"):
                m.d.comb += [votes.valid.eq(job.valid & ~refused), job.ready.eq(votes.ready)]
                with m.If(job.valid & job.ready):
                    with m.If(refused):
                        m.next = "REFUSED"
                    with m.Else():
                        m.d.sync += [self.heads.eq(job.payload.heads), group.eq(one_each)]
                        with m.If(job.payload.restart):
                            m.d.sync += length.eq(0)
                        m.next = "JOIN"
            with m.State("REFUSED"):
                m.d.comb += [
                    report.valid.eq(1),
                    report.payload.eq(0),
                    report.payload.error.eq(1),
                    report.payload.length.eq(length),
                    report.payload.last.eq(1),
                ]
                with m.If(report.ready):
                    m.next = "IDLE"
            with m.State("JOIN"):
                m.d.comb += rows.change.valid.eq(1)
                m.d.sync += [done.eq(0), shared.eq(0), kv_head.eq(0), value.eq(0)]
                with m.If(rows.change.ready):
                    m.d.sync += length.eq(length + 1)
                    m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += storing.eq(1)
                with m.If(stored):
                    m.d.sync += value.eq(~value)
                    with m.If(value):
                        m.d.sync += [done.eq(after), kv_head.eq(kv_head + 1)]
                        with m.If(final):
                            m.d.sync += [done.eq(0), kv_head.eq(0)]
                            m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.command.valid.eq(1)
                with m.If(self.command.ready):
                    m.d.sync += value.eq(~value)
                    with m.If(value):
                        m.d.sync += [done.eq(after), shared.eq(shared + 1)]
                        with m.If(shared + 1 == group):
                            m.d.sync += [shared.eq(0), kv_head.eq(kv_head + 1)]
                        with m.If(final):
                            m.next = "REPORT"
            with m.State("REPORT"):
                free = ~decided.payload.evict | rows.change.ready
                passes = Signal()
                m.d.comb += [
                    report.valid.eq(decided.valid & free),
                    decided.ready.eq(report.ready & free),
                    passes.eq(decided.valid & decided.ready),
                    swap.eq(1),
                    rows.change.valid.eq(passes & decided.payload.evict),
                ]
                with m.If(passes):
                    m.d.sync += length.eq(decided.payload.length)
                    with m.If(decided.payload.last):
                        m.next = "IDLE"
        return m

    def _look_up(self, m: Module, rows: RowMap, storing, region, length) -> None:
        """Slots of the new token and those that the reader asks for become rows."""
        p = self._parameters
        asked, request, bits = self.asked, self.request, p.map.slot_bits
        address = asked.payload.address
        m.d.comb += [
            rows.i.valid.eq(storing | asked.valid),
            asked.ready.eq(~storing & rows.i.ready),
            rows.i.payload.tag.eq(Cat(asked.payload.tag, storing)),
            rows.i.payload.slot.eq(Mux(storing, length - 1, address[:bits])),
            rows.i.payload.region.eq(Mux(storing, region, address[bits:])),
            request.valid.eq(rows.o.valid),
            rows.o.ready.eq(request.ready),
            request.payload.tag.eq(rows.o.payload.tag[:-1]),
            request.payload.write.eq(rows.o.payload.tag[-1]),
            request.payload.address.eq(Cat(rows.o.payload.slot, rows.o.payload.region)),
        ]
