"""The scheduler with contexts' state in the memory (VEDA, section V)."""

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, wiring

from hw.component import Component
from hw.layout import address
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy
from hw.stream.memory_port import MemoryPort
from hw.veda.context_memory import by_context
from hw.veda.place_memory import access_layout
from hw.veda.scheduler import Scheduler, SchedulerParameters, scheduler_ports
from hw.veda.state_mover import StateMover, StateMoverParameters


class PlacedScheduler(Component[StateMoverParameters]):
    """A :class:`Scheduler` that works in places, each of a context whose state is moved there.

    ::

        command ─→ StateMover ─→ Scheduler ─→ request, report: by context again
                       ↕ access, given, kept ┄ Scheduler, voting engine
                   memory

    It has the scheduler's streams; commands, reports and addresses name contexts. The voting
    engine, whose commands and reports name places, has the other part of the state.

    Parameters
    ----------
    parameters : :class:`StateMoverParameters`
    schedule : :class:`SchedulerParameters`
        With as many contexts as there are places.
    memory : :class:`MemoryPort`
    """

    def __init__(
        self, parameters: StateMoverParameters, schedule: SchedulerParameters, memory: MemoryPort
    ):
        self._schedule, self._memory = schedule, memory
        super().__init__(parameters)

    def ports(self) -> Ports:
        p, schedule = self.parameters, self._schedule
        inner = scheduler_ports(schedule)
        ports = {name: port for name, port in inner.items() if name != "held"}
        fields = {name: field.shape for name, field in schedule.request_layout}
        width = (p.contexts - 1).bit_length() + schedule.region_bits
        request = data.StructLayout(fields | {"address": address(width)})
        votes = schedule.voting.state_layout
        return ports | {
            "command": stream_in(by_context(schedule.command_layout, p.contexts), "Steps."),
            "report": stream_out(by_context(schedule.report_layout, p.contexts), "Reports."),
            "request": stream_out(request, "Rows to write and to read."),
            "access": wire_out(
                access_layout(p.places, p.capacity), "To the voting engine's state."
            ),
            "given": wire_out(votes, "State for it."),
            "kept": wire_in(votes, "Its state."),
            "state_request": stream_out(self._memory.request_layout, "Rows of state."),
            "state_response": stream_in(self._memory.row, "Rows of state read."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scheduler = schedule = Scheduler(self._schedule)
        m.submodules.mover = mover = StateMover(
            p,
            self.command.payload.shape(),
            self._schedule.command_layout,
            self._memory,
            self._schedule.depth,  # the first that the reader does not use
        )
        wiring.connect(m, wiring.flipped(self.command), mover.command)
        wiring.connect(m, mover.o, schedule.command)
        wiring.connect(m, mover.request, wiring.flipped(self.state_request))
        wiring.connect(m, wiring.flipped(self.state_response), mover.response)
        # These name places on both sides: the voting engine and the reader work in places.
        for name in ("vote_command", "run", "use"):
            wiring.connect(m, getattr(schedule, name), wiring.flipped(getattr(self, name)))
        for name in ("vote_report", "lookup"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(schedule, name))
        m.d.comb += [
            schedule.refuse.eq(self.refuse | mover.refuse),
            self.refused.eq(schedule.refused),
            self.reading.eq(schedule.reading),
            mover.held.eq(schedule.held),
            schedule.access.eq(mover.access),
            self.access.eq(mover.access),
            *copy(schedule.given, mover.given),
            *copy(self.given, mover.given),
            *copy(mover.kept, schedule.kept),
            *copy(mover.kept, self.kept),
            *self._rename(m, schedule, mover),
        ]
        if self._schedule.block > 1:
            # A block's length is its place's, when that has the context.
            m.d.comb += self.settled.eq(schedule.settled & mover.settled)
        return m

    def _rename(self, m: Module, schedule: Scheduler, mover: StateMover) -> list:
        """Requests and reports by context. A place keeps its context while it has a step."""
        offered, report, request = self.command, self.report, self.request
        names = Array(mover.contexts[n] for n in range(self.parameters.places))
        beyond = Signal()  # the command that is refused is of no context
        name = Signal.like(offered.payload.context, reset_less=True)
        # The name is kept, as a context that does not exist has no place to be found by.
        with m.If(mover.o.valid & mover.o.ready):
            m.d.sync += [beyond.eq(mover.refuse), name.eq(offered.payload.context)]
        m.d.comb += [
            report.valid.eq(schedule.report.valid),
            schedule.report.ready.eq(report.ready),
            *copy(report.payload, schedule.report.payload),
            report.payload.context.eq(names[schedule.report.payload.context]),
        ]
        with m.If(schedule.report.payload.error & beyond):
            m.d.comb += [report.payload.context.eq(name), report.payload.length.eq(0)]
        # Rows of K and V are where their context has them, wherever its state is.
        bits = self._schedule.region_bits
        found = schedule.request.payload.address
        return [
            request.valid.eq(schedule.request.valid),
            schedule.request.ready.eq(request.ready),
            *copy(request.payload, schedule.request.payload),
            request.payload.address.eq(Cat(found[:bits], names[found[bits:]])),
        ]
