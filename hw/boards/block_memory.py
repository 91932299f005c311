"""A memory on the board behind a block's stream of requests and its stream of responses."""

import abc
import dataclasses
from typing import Any

from amaranth.hdl import Cat, Const, Module, Shape, Signal, Value, unsigned
from amaranth.lib import memory

from hw.boards.cable_row import CABLE_PORTS, CableRow
from hw.component import Component
from hw.layout import fields
from hw.ports import Ports, stream_in, stream_out, wire_out
from hw.stream.memory_port import MemoryPort
from hw.stream.queue import Queue, QueueParameters

WAITING = 4
"""Responses that may wait for the block, those being read included."""


@dataclasses.dataclass(frozen=True)
class BoardMemory:
    """Rows on the board, and the two streams that reach them.

    request, response
        Names of the block's streams. Fields: ``address`` and, if there are, ``tag``, ``write`` and
        ``data`` of a request, ``tag`` and ``data`` of a response; one without fields is all
        address or data.
    request_bits, response_bits
        Field name to (offset, width) in the payloads.
    request_width, response_width
        Bits of the payloads.
    rows
        Rows from address 0 on.
    """

    request: str
    response: str
    request_bits: dict[str, tuple[int, int]]
    response_bits: dict[str, tuple[int, int]]
    request_width: int
    response_width: int
    rows: int

    @property
    def row_bits(self) -> int:
        return self.response_bits["data"][1]

    @property
    def address_bits(self) -> int:
        return self.request_bits["address"][1]

    @property
    def port(self) -> MemoryPort:
        """Of what holds the rows; its tag is the block's, and above it whether the cable asks."""
        tag = self.request_bits.get("tag", (0, 0))[1]
        return MemoryPort(tag + 1, max(1, (self.rows - 1).bit_length()), self.row_bits)


def part_of(shape, name: str, whole: str) -> tuple[int, int] | None:
    """Offset and width of a payload's field; of all of one without fields, if `name` is `whole`."""
    leaves = list(fields(shape, each=True))
    parts = [f for f in leaves if f.name == name or f.name.startswith((f"{name}.", f"{name}["))]
    if not parts:
        named = any(
            f.name.split(".")[0].split("[")[0] in ("address", "tag", "data") for f in leaves
        )
        return (0, Shape.cast(shape).width) if name == whole and not named else None
    start = min(f.offset for f in parts)
    return start, max(f.offset + f.width for f in parts) - start


def memory_of(request: str, response: str, shapes: dict, rows: int) -> BoardMemory:
    """The memory between two streams; `shapes` has the payloads, by name."""

    def parts(shape, names: tuple[str, ...], whole: str) -> dict[str, tuple[int, int]]:
        found = ((name, part_of(shape, name, whole)) for name in names)
        return {name: part for name, part in found if part is not None}

    asks, answers = shapes[request], shapes[response]
    return BoardMemory(
        request,
        response,
        parts(asks, ("address", "tag", "write", "data"), "address"),
        parts(answers, ("tag", "data"), "data"),
        Shape.cast(asks).width,
        Shape.cast(answers).width,
        rows,
    )


def rows_ports(port: MemoryPort) -> Ports:
    """Ports of what holds the rows of a :class:`ServedMemory`."""
    return {
        "request": stream_in(port.request_layout, "A write is done when it is accepted."),
        "answered": wire_out(1, "A row was read, in the order of requests; it is to be taken."),
        "answer": wire_out(port.response_layout, "Tag and row, with `answered`."),
    }


class ServedMemory(Component[None]):
    """A block's memory on the board, which the cable reaches too.

    Answers in the order of requests. Handshake: ``request.ready`` and ``response.valid`` depend on
    registers, and on the ready of what holds the rows. A request beyond the last row sets `fault`;
    it reads or writes nothing useful. The cable's side is a :class:`CableRow`, and comes first,
    because a byte takes it many cycles anyway.

    A subclass says what holds the rows.

    Parameters
    ----------
    description : :class:`BoardMemory`
    """

    def __init__(self, description: BoardMemory):
        self._description = description
        super().__init__()

    def ports(self) -> Ports:
        return {
            **CABLE_PORTS,
            **{
                "reads": wire_out(32, "Number of reads since `clear`, modulo 2^32."),
                "writes": wire_out(32, "Number of writes since `clear`, modulo 2^32."),
                "fault": wire_out(1),
            },
            "request": stream_in(unsigned(self._description.request_width)),
            "response": stream_out(unsigned(self._description.response_width)),
        }

    @abc.abstractmethod
    def store(self, m: Module) -> Any:
        """What holds the rows, a component with :func:`rows_ports`, added to `m`."""

    def elaborate(self, platform):
        m = Module()
        d = self._description
        rows = self.store(m)
        m.submodules.cable = cable = CableRow(d.row_bits)
        for name in ("start", "loads", "row", "push", "repeat", "pop", "given"):
            m.d.comb += getattr(cable, name).eq(getattr(self, name))
        asked = rows.request
        by_cable = rows.answer.tag[-1]
        m.d.comb += [
            self.data.eq(cable.data),
            self.present.eq(cable.present),
            cable.taken.eq(cable.asks & asked.ready),
            cable.fetched.eq(rows.answered & by_cable),
            cable.found.eq(rows.answer.data),
        ]
        free = Signal()
        reads = Signal()
        self._ask(m, asked, cable, free, reads)
        self._answer(m, rows, free, reads)
        return m

    def _ask(self, m: Module, asked, cable: CableRow, free: Signal, reads: Signal) -> None:
        """Requests of the cable, or else of the block."""
        d = self._description
        request = self.request.payload
        tag, address, write, row = (
            self._field(request, name) for name in ("tag", "address", "write", "data")
        )
        beyond = address >= d.rows if d.rows < 1 << d.address_bits else Const(0, 1)
        fire = Signal()
        m.d.comb += [
            self.request.ready.eq(free & asked.ready & ~cable.asks & ~self.clear),
            fire.eq(self.request.valid & self.request.ready),
            reads.eq(fire & ~write),
            asked.payload.tag.eq(Cat(tag[: len(asked.payload.tag) - 1], cable.asks)),
        ]
        with m.If(cable.asks):
            m.d.comb += [
                asked.valid.eq(1),
                asked.payload.address.eq(cable.number),
                asked.payload.write.eq(cable.stores),
                asked.payload.data.eq(cable.stored),
            ]
        with m.Else():
            m.d.comb += [
                asked.valid.eq(self.request.valid & free & ~self.clear & ~(write & beyond)),
                asked.payload.address.eq(address),
                asked.payload.write.eq(write),
                asked.payload.data.eq(row),
            ]
        m.d.sync += [
            self.reads.eq(self.reads + reads),
            self.writes.eq(self.writes + (fire & write)),
        ]
        with m.If(fire & beyond):
            m.d.sync += self.fault.eq(1)
        with m.If(self.clear):
            m.d.sync += [self.reads.eq(0), self.writes.eq(0), self.fault.eq(0)]

    def _answer(self, m: Module, rows, free: Signal, reads: Signal) -> None:
        """Responses in a queue with room for all; those to requests before `clear` are dropped."""
        d = self._description
        m.submodules.queue = queue = Queue(QueueParameters(d.response_width, WAITING))
        # Requests without a response yet: as many as the queue holds, so a response always has
        # room.
        outstanding = Signal(range(WAITING + 1))
        departs = Signal()
        dropped = Signal()
        response = Signal(d.response_width)
        for name, (offset, width) in d.response_bits.items():
            m.d.comb += response[offset : offset + width].eq(rows.answer[name])
        stale = Signal(range(WAITING + 1))
        m.d.comb += [
            free.eq(outstanding != WAITING),
            queue.i.valid.eq(rows.answered & ~rows.answer.tag[-1]),
            queue.i.payload.eq(response),
            self.response.valid.eq(queue.o.valid & ~dropped),
            self.response.payload.eq(queue.o.payload),
            queue.o.ready.eq(self.response.ready | dropped),
            departs.eq(queue.o.valid & queue.o.ready),
            dropped.eq(stale != 0),
        ]
        m.d.sync += outstanding.eq(outstanding + reads - departs)
        # Responses come in order, so the first ones to leave after `clear` are the old ones.
        with m.If(departs & (stale != 0)):
            m.d.sync += stale.eq(stale - 1)
        # A response that leaves in the cycle of `clear` is already counted off.
        with m.If(self.clear):
            m.d.sync += stale.eq(outstanding - departs)

    def _field(self, payload: Value, name: str) -> Value:
        """A field of the request; zero if it has none."""
        offset, width = self._description.request_bits.get(name, (0, 0))
        return payload[offset : offset + width] if width else Const(0, 1)


class BlockRows(Component[None]):
    """Rows in block memory, read in the cycle after the request.

    A row that is read in the cycle after its write is the new one.

    Parameters
    ----------
    port : :class:`MemoryPort`
    rows : int
    """

    def __init__(self, port: MemoryPort, rows: int):
        self._port, self._rows = port, rows
        super().__init__()

    def ports(self) -> Ports:
        return rows_ports(self._port)

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self._port.row).width
        m.submodules.rows = rows = memory.Memory(shape=width, depth=self._rows, init=[])
        write, read = rows.write_port(), rows.read_port()
        request = self.request.payload
        m.d.comb += [
            self.request.ready.eq(1),
            read.addr.eq(request.address),
            write.addr.eq(request.address),
            write.data.eq(request.data),
            write.en.eq(self.request.valid & request.write),
            self.answer.data.eq(read.data),
        ]
        m.d.sync += [
            self.answered.eq(self.request.valid & ~request.write),
            self.answer.tag.eq(request.tag),
        ]
        return m


class BlockMemory(ServedMemory):
    """Rows in block memory: 2 cycles from a request to its response, a request a cycle."""

    def store(self, m: Module) -> BlockRows:
        m.submodules.rows = rows = BlockRows(self._description.port, self._description.rows)
        return rows
