"""Contexts' state between the memory and the places that the core works in (VEDA, section V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Cat, Module, Mux, Shape, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy
from hw.stream.memory_port import MemoryPort
from hw.veda.context_memory import context_index
from hw.veda.core_work import MovedWork
from hw.veda.place_memory import access_layout


@dataclasses.dataclass(frozen=True)
class StateMoverParameters(Parameters):
    """
    contexts
        Number of contexts, whose state is in the memory.
    places
        Number of contexts whose state is in the core, from 2.
    capacity, count_bits, position_bits
        See :class:`hw.veda.scheduler.SchedulerParameters`.
    row_bits
        Bits of a row of the memory.
    first_row
        Address of the first row of context 0's state.
    """

    contexts: int
    places: int
    capacity: int
    count_bits: int
    position_bits: int
    row_bits: int
    first_row: int

    def __post_init__(self):
        widest = max(Shape.cast(part).width for part in (self.slot_layout, self.head_layout))
        rule = f"resident must be 0 where a row has fewer than {widest} bits"
        require(self.row_bits >= widest, rule, self.places)

    @property
    def slot_bits(self) -> int:
        return (self.capacity - 1).bit_length()

    @cached_property
    def slot_layout(self) -> data.StructLayout:
        """State of a slot: its ``row``, the ``count`` of votes, the token's ``position``."""
        return data.StructLayout(
            {"row": self.slot_bits, "count": self.count_bits, "position": self.position_bits}
        )

    @cached_property
    def head_layout(self) -> data.StructLayout:
        """State of a sequence: ``length``, slots ``used``, and the next ``token``."""
        slots = range(self.capacity + 1)
        return data.StructLayout({"length": slots, "used": slots, "token": self.position_bits})

    @property
    def slots_per_row(self) -> int:
        return self.row_bits // self.slot_layout.size

    @property
    def rows(self) -> int:
        """Rows of a context's state: the sequence's, then as many as hold all slots."""
        return 1 + -(-self.capacity // self.slots_per_row)

    def moved_rows(self, used: int) -> int:
        """Rows written or read for a context with that number of slots ``used``."""
        return 1 + -(-used // self.slots_per_row)

    def rows_of(self, work: MovedWork) -> int:
        """Rows written and read."""
        both = work.stored, work.fetched
        return sum(self.moved_rows(used) for used in both if used is not None)

    def cycles(self, work: MovedWork, latency: int) -> int:
        """Cycles from a command offered, or its place free, to the command by place."""
        store = 0 if work.stored is None else self.store_cycles(work.stored)
        return 4 + store + self.fetch_cycles(work.fetched, latency)

    def store_cycles(self, used: int) -> int:
        """Cycles of a write-back, if no request waits."""
        return 1 + self.moved_rows(used) + (self.moved_rows(used) - 1) * (self.slots_per_row + 1)

    def fetch_cycles(self, used: int | None, latency: int) -> int:
        """Cycles of a fetch, if no request waits; `used` is None for a context without state."""
        if used is None:
            return 0
        rows = self.moved_rows(used)
        return rows * (1 + latency) + (rows - 1) * self.slots_per_row


class StateMover(Component[StateMoverParameters]):
    """Commands by place: a context's state is fetched before its job, and written back before
    another context takes its place.

    ::

        command ─→ place of its context? ─→ o ┄ scheduler
                     │ no
                     └→ wait ─→ store ─→ fetch ─→ the place has the context ─→ o
                                  └→ memory ─┘

        row 0      length, slots used, next token
        row 1 …    as many slots as fit: row, votes, position of each slot used, else 0

    Lengths, used slots and tokens of all places are in registers, slots in a memory for each place.
    A step first needs its place's length, when its command is accepted, and slots from the next
    cycle on; so a command waits here until all is fetched, while steps of other places go on. The
    place is one that no step has, in turn, and not the one of the command before, whose step runs
    beside. Its state is written first. A slot a cycle is packed or unpacked, one row is requested
    at a time, and its request goes before the core's others; a context without state in the
    memory, since a reset or ever, begins with none, and the memory is not read.

    Errors: a command for a context that does not exist is offered with `refuse`.

    Handshake: a command passes in the cycle in which it is offered, if its context has a place.
    `o` does not depend on its ready. ``response.ready`` is high.

    Parameters
    ----------
    parameters : :class:`StateMoverParameters`
    command, step : StructLayout
        Payload of a command, and of the same by place: ``context`` is a place.
    port : :class:`MemoryPort`
    tag : int
        Tag of the mover's requests.
    """

    def __init__(self, parameters: StateMoverParameters, command, step, port: MemoryPort, tag: int):
        self._command, self._step = command, step
        self._port, self._tag = port, tag
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        state = {
            name: field.shape for part in (p.slot_layout, p.head_layout) for name, field in part
        }
        names = data.ArrayLayout(context_index(p.contexts), p.places)
        return {
            "command": stream_in(self._command, "Commands by context."),
            "o": stream_out(self._step, "The same by place."),
            "refuse": wire_out(1, "The command's context does not exist."),
            "settled": wire_out(1, "The command's context has a place, or does not exist."),
            "held": wire_in(p.places, "Places that must not be moved."),
            "access": wire_out(access_layout(p.places, p.capacity), "To a place's state."),
            "given": wire_out(data.StructLayout(state), "State for the place."),
            "kept": wire_in(data.StructLayout(state), "State of the place."),
            "contexts": wire_out(names, "The context of each place."),
            "request": stream_out(self._port.request_layout, "Rows to write and to read."),
            "response": stream_in(self._port.row, "Rows read."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        access = self.access
        offered = self.command.payload.context
        holds = Signal(p.places)  # places that hold a context
        stored = Signal(p.contexts)  # contexts with state in the memory
        latest = Signal(range(p.places))  # place of the command before
        turn = Signal(range(p.places))  # place to move next
        place = Signal(range(p.places), reset_less=True)
        context = Signal(context_index(p.contexts), reset_less=True)  # to be fetched
        beyond = Signal()
        found = Signal(p.places)
        number = Signal(range(p.places))
        # A context is in one place at most, so the last that matches is the only one.
        for n in range(p.places):
            m.d.comb += found[n].eq(holds[n] & (self.contexts[n] == offered))
            with m.If(found[n]):
                m.d.comb += number.eq(n)
        m.d.comb += [
            beyond.eq(offered >= p.contexts),
            self.refuse.eq(beyond),
            *copy(self.o.payload, self.command.payload),
            self.o.payload.context.eq(number),
            access.place.eq(place),
        ]
        # A place's next in turn, and the first of two that is not the latest.
        after = Signal(range(p.places))
        m.d.comb += after.eq(Mux(turn == p.places - 1, 0, turn + 1))
        with m.FSM(name="phase"):
            with m.State("PASS"):
                m.d.comb += [
                    self.settled.eq(found.any() | beyond),
                    self.o.valid.eq(self.command.valid & self.settled),
                    self.command.ready.eq(self.o.ready & self.settled),
                ]
                with m.If(self.o.valid & self.o.ready & ~beyond):
                    m.d.sync += latest.eq(number)
                # The command's place is chosen before its state is known to be free to leave.
                with m.If(self.command.valid & ~self.settled):
                    m.d.sync += context.eq(offered)
                    m.d.sync += place.eq(Mux(turn == latest, after, turn))
                    m.next = "WAIT"
            with m.State("WAIT"):
                # The step that the place had has read, counted and swapped all that it will.
                with m.If(~(self.held >> place)[0]):
                    m.d.sync += turn.eq(Mux(place == p.places - 1, 0, place + 1))
                    m.next = "FIND"
                    with m.If((holds >> place)[0]):
                        m.next = "HEAD"
            self._move(m, place, context, stored)
            # Only now may the command pass: its step reads the length in the cycle of acceptance.
            with m.State("HOLD"):
                m.d.sync += holds.bit_select(place, 1).eq(1)
                for n in range(p.places):
                    with m.If(place == n):
                        m.d.sync += self.contexts[n].eq(context)
                m.next = "PASS"
        return m

    def _move(self, m: Module, place, context, stored) -> None:
        """Write the place's state to the memory, then fetch the context's."""
        p, access, request = self.parameters, self.access, self.request
        width, lanes = p.slot_layout.size, p.slots_per_row
        row = Signal(p.row_bits, reset_less=True)
        address = Signal(self._port.address_width, reset_less=True)
        slot = Signal(range(p.capacity + lanes + 1))
        lane = Signal(range(lanes + 1))
        used = Signal(range(p.capacity + 1), reset_less=True)
        head = Signal(p.head_layout)
        part = Signal(p.slot_layout)
        old = Signal.like(context)
        m.d.comb += [
            old.eq(Array(self.contexts[n] for n in range(p.places))[place]),
            access.slot.eq(slot),
            request.payload.address.eq(address),
            request.payload.tag.eq(self._tag),
            Value.cast(request.payload.data).eq(row),
            self.response.ready.eq(1),
        ]
        shifted = Cat(row[width : width * lanes], part)
        # The sequence's row goes first, so that a fetch knows how many rows follow.
        with m.State("HEAD"):
            m.d.comb += copy(head, self.kept)
            m.d.sync += [
                row.eq(head),
                used.eq(head.used),
                address.eq(p.first_row + old * p.rows),
                stored.bit_select(old, 1).eq(1),
                slot.eq(0),
            ]
            m.next = "PUT"
        with m.State("PUT"):
            m.d.comb += [request.valid.eq(1), request.payload.write.eq(1)]
            with m.If(request.ready):
                m.d.sync += [address.eq(address + 1), lane.eq(0)]
                m.next = "PACK"
                # A full last row ends here, too: no row of slots is written without one in use.
                with m.If(slot >= used):
                    m.next = "FIND"
        with m.State("PACK"):
            # A slot that was read arrives in the next cycle; slots that are not live have no votes
            # and those not used no row, so that the memory's words are the state's alone.
            m.d.comb += access.read.eq(1)
            before = slot - 1
            with m.If(before < used):
                m.d.comb += part.row.eq(self.kept.row)
            with m.If(before < self.kept.length):
                m.d.comb += [
                    part.count.eq(self.kept.count),
                    part.position.eq(self.kept.position),
                ]
            m.d.sync += lane.eq(lane + 1)
            # The first cycle only reads: its slot is shifted in by the next.
            with m.If(lane != 0):
                m.d.sync += row.eq(shifted)
            with m.If(lane == lanes):
                m.next = "PUT"
            with m.Else():
                m.d.sync += slot.eq(slot + 1)
        self._fetch(m, context, stored, (row, address, slot, lane, used), head, part)

    def _fetch(self, m: Module, context, stored, registers, head, part) -> None:
        """The states after a write-back: the context's rows, and slots out of them.

        registers
            A row, its address, the next slot and its place in the row, slots used.
        """
        p, access, request = self.parameters, self.access, self.request
        width, lanes = p.slot_layout.size, p.slots_per_row
        row, address, slot, lane, used = registers
        heading = Signal()  # the row is the first
        with m.State("FIND"):
            m.d.sync += [
                address.eq(p.first_row + context * p.rows),
                heading.eq(1),
                slot.eq(0),
            ]
            m.next = "ASK"
            # A row that was never written may hold anything, an older sequence's state included.
            with m.If(~(stored >> context)[0]):
                m.d.comb += access.load.eq(1)  # an empty sequence
                m.next = "HOLD"
        # One row at a time: a response needs no place to wait in while a row is unpacked.
        with m.State("ASK"):
            m.d.comb += request.valid.eq(1)
            with m.If(request.ready):
                m.next = "GET"
        with m.State("GET"):
            m.d.comb += Value.cast(head).eq(Value.cast(self.response.payload)[: head.shape().size])
            m.d.comb += copy(self.given, head)
            with m.If(self.response.valid):
                m.d.sync += [
                    row.eq(self.response.payload),
                    address.eq(address + 1),
                    lane.eq(1),
                    heading.eq(0),
                ]
                m.next = "UNPACK"
                with m.If(heading):
                    m.d.comb += access.load.eq(1)
                    m.d.sync += used.eq(head.used)
                    m.next = "ASK"
                    with m.If(head.used == 0):
                        m.next = "HOLD"
        with m.State("UNPACK"):
            m.d.comb += [
                Value.cast(part).eq(row[:width]),
                *copy(self.given, part),
                access.write.eq(slot < used),
            ]
            m.d.sync += [row.eq(row[width:]), slot.eq(slot + 1), lane.eq(lane + 1)]
            with m.If(lane == lanes):
                m.next = "ASK"
                # The lanes after the last slot in use are passed through, but not written.
                with m.If(slot + 1 >= used):
                    m.next = "HOLD"
