"""A memory on the board behind a block's stream of requests and its stream of responses."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import memory

from hw.boards.stream_ports import bytes_of
from hw.component import Component
from hw.layout import fields
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
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


class BlockMemory(Component[None]):
    """Rows in block memory.

    Answers in the order of requests, 2 cycles after each. Throughput: a request a cycle, while
    responses leave and the cable does not read. A row that is read in the cycle after its write is
    the new one. Handshake: ``request.ready`` and ``response.valid`` depend on registers and on
    `start` only. A request beyond the last row sets `fault`; it reads or writes nothing useful.

    The cable's side has a row as bytes: after `start`, `push` stores rows from `row` on, one after
    each last byte, and `repeat` stores the last one once more; or `pop` takes them, while `present`
    is high.

    Parameters
    ----------
    description : :class:`BoardMemory`
    """

    def __init__(self, description: BoardMemory):
        self._description = description
        super().__init__()

    def ports(self) -> Ports:
        return {
            **{
                "clear": wire_in(1, "Forget requests, not rows."),
                "start": wire_in(1, "Begin at `row`, to push if `loads`, else to pop."),
                "loads": wire_in(1, "Direction of the rows after `start`: to the memory."),
                "row": wire_in(32),
            },
            **{"push": wire_in(1), "repeat": wire_in(1), "pop": wire_in(1), "given": wire_in(8)},
            **{"data": wire_out(8), "present": wire_out(1)},
            **{
                "reads": wire_out(32, "Number of reads since `clear`, modulo 2^32."),
                "writes": wire_out(32, "Number of writes since `clear`, modulo 2^32."),
                "fault": wire_out(1),
            },
            "request": stream_in(unsigned(self._description.request_width)),
            "response": stream_out(unsigned(self._description.response_width)),
        }

    def elaborate(self, platform):
        m = Module()
        d = self._description
        size = bytes_of(d.row_bits)
        m.submodules.rows = rows = memory.Memory(shape=unsigned(d.row_bits), depth=d.rows, init=[])
        write, read = rows.write_port(), rows.read_port()
        # The cable's row.
        bits = Signal(8 * size)
        counted = Signal(range(size + 1))
        row = Signal(range(d.rows + 1))
        fetching = Signal(2)  # addressed; read
        stores = Signal()
        m.d.comb += [self.data.eq(bits[:8]), self.present.eq((counted != 0) & ~fetching.any())]
        # A transfer begins at a row: to load it, bytes are collected; to dump it, it is read.
        with m.If(self.start):
            m.d.sync += [row.eq(self.row), counted.eq(0), fetching.eq(~self.loads)]
        # Bytes arrive lowest first; the last one of a row stores it.
        with m.Elif(self.push):
            m.d.sync += [bits.eq(Cat(bits, self.given)[8:]), counted.eq(counted + 1)]
            with m.If(counted == size - 1):
                m.d.comb += stores.eq(1)
                m.d.sync += [counted.eq(0), row.eq(row + 1)]
        # The row in `bits` is stored once more, in the next row.
        with m.Elif(self.repeat):
            m.d.comb += stores.eq(1)
            m.d.sync += row.eq(row + 1)
        # Bytes leave lowest first; with a row's last one the next row is read.
        with m.Elif(self.pop):
            m.d.sync += [bits.eq(bits >> 8), counted.eq(counted - 1)]
            with m.If(counted == 1):
                m.d.sync += [row.eq(row + 1), fetching.eq(1)]
        # The read port answers in the cycle after the address.
        with m.Elif(fetching.any()):
            m.d.sync += fetching.eq(fetching << 1)
            with m.If(fetching[1]):
                m.d.sync += [bits.eq(read.data), counted.eq(size)]
        stored = Mux(self.repeat, bits, Cat(bits, self.given)[8:])
        self._serve(m, write, read, row, fetching[0], stores, stored)
        return m

    def _serve(self, m: Module, write, read, row, fetches, stores, stored) -> None:
        """Answer requests in cycles in which the cable does not use the rows."""
        d = self._description
        queue = Queue(QueueParameters(d.response_width, WAITING))
        m.submodules.queue = queue
        # Requests without a response yet: as many as the queue holds, so a response always has
        # room.
        outstanding = Signal(range(WAITING + 1))
        fire = Signal()
        reads = Signal()
        dropped = Signal()
        address = self._field(self.request.payload, d.request_bits, "address")
        writes = self._field(self.request.payload, d.request_bits, "write")
        beyond = address >= d.rows if d.rows < 1 << d.address_bits else Const(0, 1)
        m.d.comb += [
            # The cable has priority at both ports, because a byte takes it many cycles anyway.
            self.request.ready.eq((outstanding != WAITING) & ~fetches & ~stores & ~self.clear),
            fire.eq(self.request.valid & self.request.ready),
            reads.eq(fire & ~writes),
            read.addr.eq(Mux(fetches, row, address)),
            write.addr.eq(Mux(stores, row, address)),
            write.data.eq(
                Mux(stores, stored, self._field(self.request.payload, d.request_bits, "data"))
            ),
            write.en.eq(stores | (fire & writes & ~beyond)),
        ]
        tag = Signal.like(self._field(self.request.payload, d.request_bits, "tag"), name="tag")
        # The row is at the read port in the cycle after its request, with the tag from a register.
        arrived = Signal()
        m.d.sync += [arrived.eq(reads & ~self.clear), tag.eq(self._tag)]
        departs = Signal()
        response = Signal(d.response_width)
        places = {"tag": tag, "data": read.data}
        for name, (offset, width) in d.response_bits.items():
            m.d.comb += response[offset : offset + width].eq(places[name])
        m.d.comb += [
            queue.i.valid.eq(arrived),
            queue.i.payload.eq(response),
            self.response.valid.eq(queue.o.valid & ~dropped),
            self.response.payload.eq(queue.o.payload),
            queue.o.ready.eq(self.response.ready | dropped),
            departs.eq(queue.o.valid & queue.o.ready),
        ]
        # After `clear`, what was on its way is dropped.
        stale = Signal(range(WAITING + 1))
        m.d.comb += dropped.eq(stale != 0)
        m.d.sync += [
            outstanding.eq(outstanding + reads - departs),
            self.reads.eq(self.reads + reads),
            self.writes.eq(self.writes + (fire & writes)),
        ]
        # Responses come in order, so the first ones to leave after `clear` are the old ones.
        with m.If(departs & (stale != 0)):
            m.d.sync += stale.eq(stale - 1)
        with m.If(fire & beyond):
            m.d.sync += self.fault.eq(1)
        # A response that leaves in the cycle of `clear` is already counted off.
        with m.If(self.clear):
            m.d.sync += [
                stale.eq(outstanding - departs),
                self.reads.eq(0),
                self.writes.eq(0),
                self.fault.eq(0),
            ]

    @property
    def _tag(self) -> Value:
        return self._field(self.request.payload, self._description.request_bits, "tag")

    @staticmethod
    def _field(payload: Value, bits: dict[str, tuple[int, int]], name: str) -> Value:
        offset, width = bits.get(name, (0, 0))
        return payload[offset : offset + width] if width else Const(0, 1)
