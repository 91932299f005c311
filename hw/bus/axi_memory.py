"""A memory port as an AXI4 master: rows to read and write become bursts."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import Out

from hw.bus.axi import AXI4, word_at
from hw.bus.axi_memory_parameters import AxiMemoryParameters
from hw.bus.channels import buffered, incremental
from hw.component import Component
from hw.layout import FLAG, address, index
from hw.ports import Port, Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters


class State:
    """Registers and wires that several parts of :class:`AxiMemory` have in common.

    accept
        A request is offered and may be accepted.
    busy, pending
        Bit for each slot: it has a read; the read's data is not complete.
    rows
        Number of each slot's row.
    slot
        The next read's.
    reads, writes
        A read, a write is accepted.
    writing, written
        For each stored write: it has no response; number of its row.
    newest, addressed, sent, oldest
        Stored writes by their place: the next one to store, to give its address, to send, to have
        its response; with a wrap bit.
    last, done
        A row's last transfer arrives; the row's slot.
    """

    def __init__(self, p: AxiMemoryParameters):
        slots, entries = range(p.outstanding), range(p.writes)
        self.accept = Signal()
        self.busy = Signal(p.outstanding)
        self.pending = Signal(p.outstanding)
        self.rows = Array(Signal(p.address, name=f"row_{n}") for n in slots)
        self.slot = Signal(slots)
        self.reads = Signal()
        self.writes = Signal()
        self.read_ready = Signal()
        self.write_ready = Signal()
        self.writing = Signal(p.writes)
        self.written = Array(Signal(p.address, name=f"written_{n}") for n in entries)
        wrapping = range(2 * p.writes)
        self.newest = Signal(wrapping)
        self.addressed = Signal(wrapping)
        self.sent = Signal(wrapping)
        self.oldest = Signal(wrapping)
        self.last = Signal()
        self.done = Signal(slots)


class AxiMemory(Component[AxiMemoryParameters]):
    """Reads and writes of rows as bursts of an AXI4 master.

    Row r is the `row_bytes` bytes at ``base + r * row_bytes``, lowest bit first. With `base` a
    multiple of `row_bytes`, a power of two, no row crosses 4 KiB. A row wider than the bus is one
    INCR burst of `transfers`; a narrower one is a part of one transfer, written by its strobes.

    ::

        request ─┬─ read ──→ slot of the row ─→ skid ─→ ar
                 └─ write ─→ row store ─→ skids ──────→ aw, w        b ─→ next oldest write
        response ←─ row store ←─ slot = ID ←─────────────────────────── r

    Each read has a slot, whose number is its ID; responses of different IDs come in any order and
    their transfers may interleave. With `in_order` there is one ID, and slots are used in turn.
    A slot is free again when its response has been accepted, so r and b are always ready.

    Order: a read waits while a write to its row has no response on b; a write waits while a read of
    its row is under way. Writes have one ID, so they are done in order.

    Errors: SLVERR and DECERR raise `error` for one cycle; the row still comes back.

    Latency: a row comes back 2 + `transfers` cycles after its address's latency on the bus.
    Throughput: ``min(1 / transfers, outstanding / (bus latency + transfers + 2))`` rows per cycle.

    Handshake: everything to the bus is a register, and so is its valid; ``request.ready`` depends
    on the request offered, not on the bus. Overflow: none.

    Examples
    --------
    Sixteen reads under way keep a bus of 64 bits busy with rows of 64 bytes at 100 cycles.

    >>> from hw.bus.axi_memory import AxiMemory, AxiMemoryParameters
    >>> parameters = AxiMemoryParameters(row=512, data=64, outstanding=16)
    >>> parameters.transfers, parameters.rate(bus_latency=100)
    (8, 0.125)
    """

    summary = "Rows of a memory port as bursts of an AXI4 master"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        request = {"tag": index(p.tag), "address": address(p.address), "write": FLAG}
        return {
            "request": stream_in(request | {"data": unsigned(p.row)}, "Rows to read or write."),
            "base": wire_in(p.bus_address, "Address of row 0, constant while `idle` is low."),
            "stop": wire_in(1, "Accept no request, and drop responses, until `idle`."),
            "response": stream_out({"tag": index(p.tag), "data": unsigned(p.row)}, "Rows read."),
            "idle": wire_out(1, "No read and no write is under way."),
            "error": wire_out(1, "The bus has answered with an error."),
            "error_write": wire_out(1, "With `error`: it was a write."),
            "error_decode": wire_out(1, "With `error`: DECERR, not SLVERR."),
            "error_address": wire_out(p.bus_address, "With `error`: address of the row."),
            "bus": Port(Out(AXI4(p.sizes)), "To the memory."),
        }

    def elaborate(self, platform):
        m = Module()
        s = State(self.parameters)
        request = self.request
        m.d.comb += s.accept.eq(request.valid & ~self.stop)
        self._read(m, s)
        self._collect(m, s)
        self._respond(m, s)
        self._write(m, s)
        self._write_bus(m, s)
        # The head of the requests is one of both, and waits for its own path.
        m.d.comb += request.ready.eq(
            ~self.stop & Mux(request.payload.write, s.write_ready, s.read_ready)
        )
        m.d.comb += self.idle.eq(~(s.busy.any() | s.writing.any()))
        return m

    def _bytes_at(self, row: Value) -> Value:
        """Address of a row on the bus."""
        return (self.base + (row << (self.parameters.row_bytes - 1).bit_length()))[
            : self.parameters.bus_address
        ]

    def _lane(self, where: Value) -> Value:
        """Which of the rows in a word of the bus is at an address; no bits if it holds one."""
        low = (self.parameters.row_bytes - 1).bit_length()
        return where[low : max(low, self.parameters.sizes.size)]

    def _command(self, m: Module, name: str, channel: Any, row: Value, identity: Any) -> Any:
        """The input of a skid buffer before `channel`, with the burst of a row."""
        p = self.parameters
        command = buffered(m, name, channel)
        where = Signal(p.bus_address, name=f"{name}_where")
        low = p.sizes.size
        m.d.comb += [
            where.eq(self._bytes_at(row)),
            command.payload.id.eq(identity),
            command.payload.addr[low:].eq(where[low:]),
            *incremental(command.payload, p.transfers, low),
        ]
        return command

    def _read(self, m: Module, s: State) -> None:
        """A free slot for the read at the head of the requests, and its address to the bus."""
        p, request = self.parameters, self.request
        if p.in_order:
            # Slots in turn: the oldest read's is the next one to be free.
            with m.If(s.reads):
                m.d.sync += s.slot.eq(s.slot + 1)
        else:
            for n in reversed(range(p.outstanding)):
                with m.If(~s.busy[n]):
                    m.d.comb += s.slot.eq(n)
        taken = Signal()
        m.d.comb += taken.eq(word_at(s.busy, s.slot, 1))
        row = request.payload.address
        behind_write = Cat(
            waits & (written == row) for waits, written in zip(s.writing, s.written, strict=True)
        ).any()
        identity = 0 if p.in_order else s.slot
        command = self._command(m, "ar", self.bus.ar, row, identity)
        free = Signal(name="read_free")
        m.d.comb += [
            free.eq(~taken & ~behind_write),
            command.valid.eq(s.accept & ~request.payload.write & free),
            s.read_ready.eq(free & command.ready),
            s.reads.eq(command.valid & command.ready),
        ]
        with m.If(s.reads):
            m.d.sync += [
                s.busy.bit_select(s.slot, 1).eq(1),
                s.pending.bit_select(s.slot, 1).eq(1),
                s.rows[s.slot].eq(row),
            ]

    def _collect(self, m: Module, s: State) -> None:
        """Transfers of the rows under way into their slots."""
        p, r = self.parameters, self.bus.r
        m.submodules.row_store = store = memory.Memory(
            shape=data.ArrayLayout(p.word, p.transfers), depth=p.outstanding, init=[]
        )
        write = store.write_port(granularity=1)
        slot = Signal(range(p.outstanding), name="arriving")
        counts = Array(Signal(range(p.transfers), name=f"count_{n}") for n in range(p.outstanding))
        part = Signal(range(p.transfers), name="part")
        m.d.comb += [
            r.ready.eq(1),
            part.eq(counts[slot]),
            s.last.eq(r.valid & (part == p.transfers - 1)),
            s.done.eq(slot),
            write.addr.eq(slot),
            write.en.eq(r.valid << part),
        ]
        if p.in_order:
            with m.If(s.last):
                m.d.sync += slot.eq(slot + 1)
        else:
            m.d.comb += slot.eq(r.payload.id)
        with m.If(r.valid):
            m.d.sync += counts[slot].eq(Mux(s.last, 0, part + 1))
        with m.If(s.last):
            m.d.sync += s.pending.bit_select(slot, 1).eq(0)
        word = r.payload.data
        if p.lanes > 1:
            word = word_at(word, self._lane(self._bytes_at(s.rows[slot])), p.word)
        m.d.comb += [write.data[n].eq(word) for n in range(p.transfers)]
        self._report(m, s, slot)

    def _report(self, m: Module, s: State, slot: Value) -> None:
        """Errors of both kinds of response; a read's goes before a write's."""
        r, b = self.bus.r, self.bus.b
        failed = [
            (channel.valid & Value.cast(channel.payload.resp)[1], channel) for channel in (b, r)
        ]
        m.d.sync += self.error.eq(0)
        for wrong, channel in failed:
            row = s.rows[slot] if channel is r else s.written[s.oldest[:-1]]
            with m.If(wrong):
                m.d.sync += [
                    self.error.eq(1),
                    self.error_write.eq(channel is b),
                    self.error_decode.eq(Value.cast(channel.payload.resp)[0]),
                    self.error_address.eq(self._bytes_at(row)),
                ]

    def _respond(self, m: Module, s: State) -> None:
        """Complete rows in the order of their completion."""
        p, response = self.parameters, self.response
        slots = QueueParameters(width=len(s.slot), depth=p.outstanding)
        m.submodules.complete = complete = Queue(slots)
        m.submodules.tags = tags = memory.Memory(shape=p.tag, depth=p.outstanding, init=[])
        tag, found = tags.write_port(), tags.read_port(domain="comb")
        row = m.submodules.row_store.read_port(domain="comb")
        slot = complete.o.payload
        m.d.comb += [
            tag.en.eq(s.reads),
            tag.addr.eq(s.slot),
            tag.data.eq(self.request.payload.tag),
            complete.i.valid.eq(s.last),
            complete.i.payload.eq(s.done),
            found.addr.eq(slot),
            row.addr.eq(slot),
            response.valid.eq(complete.o.valid & ~self.stop),
            response.payload.tag.eq(found.data),
            response.payload.data.eq(Value.cast(row.data)[: p.row]),
            complete.o.ready.eq(response.ready | self.stop),
        ]
        with m.If(complete.o.valid & complete.o.ready):
            m.d.sync += s.busy.bit_select(slot, 1).eq(0)

    def _write(self, m: Module, s: State) -> None:
        """The write at the head of the requests into the store of rows to write."""
        p, request = self.parameters, self.request
        row = request.payload.address
        behind_read = Cat(
            waits & (number == row) for waits, number in zip(s.pending, s.rows, strict=True)
        ).any()
        m.d.comb += [
            s.write_ready.eq(~word_at(s.writing, s.newest[:-1], 1) & ~behind_read),
            s.writes.eq(s.accept & request.payload.write & s.write_ready),
        ]
        m.submodules.write_store = store = memory.Memory(shape=p.row, depth=p.writes, init=[])
        write = store.write_port()
        m.d.comb += [
            write.en.eq(s.writes),
            write.addr.eq(s.newest[:-1]),
            write.data.eq(request.payload.data),
        ]
        with m.If(s.writes):
            m.d.sync += [
                s.newest.eq(s.newest + 1),
                s.written[s.newest[:-1]].eq(row),
                s.writing.bit_select(s.newest[:-1], 1).eq(1),
            ]

    def _write_bus(self, m: Module, s: State) -> None:
        """Addresses, then data of the stored rows to the bus, and the responses."""
        p, bus = self.parameters, self.bus
        command = self._command(m, "aw", bus.aw, s.written[s.addressed[:-1]], 0)
        m.d.comb += command.valid.eq(s.addressed != s.newest)
        with m.If(command.valid & command.ready):
            m.d.sync += s.addressed.eq(s.addressed + 1)
        # A row's data goes behind its address, so that an arbiter knows whose data it is.
        word = buffered(m, "w", bus.w)
        stored = m.submodules.write_store.read_port(domain="comb")
        row = Signal(8 * p.row_bytes)
        where = Signal(p.bus_address)
        part = Signal(range(p.transfers), name="transfer")
        strobes = (1 << p.word // 8) - 1
        lane = self._lane(where)
        m.d.comb += [
            stored.addr.eq(s.sent[:-1]),
            row.eq(stored.data),
            where.eq(self._bytes_at(s.written[s.sent[:-1]])),
            word.valid.eq(s.sent != s.addressed),
            word.payload.data.eq(word_at(row, part, p.word).replicate(p.lanes)),
            word.payload.strb.eq(strobes << lane * (p.word // 8)),
            word.payload.last.eq(part == p.transfers - 1),
            bus.b.ready.eq(1),
        ]
        with m.If(word.valid & word.ready):
            m.d.sync += part.eq(Mux(word.payload.last, 0, part + 1))
            with m.If(word.payload.last):
                m.d.sync += s.sent.eq(s.sent + 1)
        with m.If(bus.b.valid):
            m.d.sync += [s.oldest.eq(s.oldest + 1), s.writing.bit_select(s.oldest[:-1], 1).eq(0)]
