"""A buffer in memory as a stream."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned

from hw.bus.axi import AXI4, word_at
from hw.bus.bursts import BEAT_BITS, Bursts, EngineParameters
from hw.bus.channels import buffered, incremental
from hw.component import Component
from hw.ports import Port, Ports, stream_out, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters


class ReadEngine(Component[EngineParameters]):
    """Reads beats one behind the other from `base` on, and outputs them.

    A beat takes :func:`hw.bus.device_map.bytes_in_memory` bytes, lowest bit first; `base` is a
    multiple of them. All bursts have one ID. A burst is requested once the engine has room for its
    data, so r is always ready and never holds up another master.

    Latency: 3 cycles and the bus's own from `start` to the first beat, more for beats wider than
    the bus. Throughput: a transfer in each cycle as long as `burst` times `outstanding` exceeds the
    bus's latency and 4 cycles.

    With `stop` no burst is requested, and what arrives is dropped, until `idle`.

    Errors: SLVERR and DECERR raise `error` for one cycle; the data is output as it is.

    Handshake: `o` is held until accepted, unless `stop` is high; ar is a register. Overflow: none.
    """

    def ports(self) -> Ports:
        p = self.parameters
        bus = AXI4(p.sizes).members
        return {
            "start": wire_in(1, "Begin, while `idle`, with `base` and `beats`."),
            "base": wire_in(p.bus_address, "Address of the first beat."),
            "beats": wire_in(BEAT_BITS, "Number of beats; 0: none."),
            "stop": wire_in(1, "End early."),
            "idle": wire_out(1, "All beats have been output and nothing is under way."),
            "moved": wire_out(BEAT_BITS, "Number of beats output since `start`."),
            "error": wire_out(1, "The bus has answered with an error."),
            "error_decode": wire_out(1, "With `error`: DECERR, not SLVERR."),
            "error_address": wire_out(p.bus_address, "With `error`: address of the transfer."),
            "o": stream_out(unsigned(p.width), "The beats."),
            "ar": Port(bus["ar"], "To the memory."),
            "r": Port(bus["r"], "From the memory."),
        }

    def elaborate(self, platform):
        m = Module()
        p, r = self.parameters, self.r
        m.submodules.bursts = bursts = Bursts(p)
        m.submodules.queue = queue = Queue(QueueParameters(depth=p.depth), shape=unsigned(p.data))
        command = buffered(m, "ar", self.ar)
        room = Signal(range(p.depth + 1), init=p.depth)  # transfers neither stored nor under way
        pop = Signal()
        m.d.comb += [
            bursts.start.eq(self.start),
            bursts.base.eq(self.base),
            bursts.beats.eq(self.beats),
            bursts.cancel.eq(self.stop),
            # A burst that has all its room.
            command.valid.eq((bursts.length != 0) & (room >= bursts.length) & ~self.stop),
            command.payload.addr.eq(bursts.address),
            *incremental(command.payload, bursts.length, p.sizes.size),
            bursts.take.eq(command.valid & command.ready),
            queue.i.valid.eq(r.valid),
            queue.i.payload.eq(r.payload.data),
            r.ready.eq(1),
            pop.eq(queue.o.valid & queue.o.ready),
        ]
        m.d.sync += room.eq(room + pop - Mux(bursts.take, bursts.length, 0))
        self._output(m, queue)
        left = self.left
        m.d.comb += self.idle.eq((bursts.length == 0) & (room == p.depth) & (left == 0))
        self._report(m)
        return m

    def _output(self, m: Module, queue: Queue) -> None:
        """Beats out of the stored transfers: parts of one, or several."""
        p, o = self.parameters, self.o
        self.left = left = Signal(BEAT_BITS)
        final = Signal()  # the beat that the transfer at the queue's head completes is its last
        word = queue.o.payload
        if p.lanes > 1:
            lane = Signal(range(p.lanes))
            m.d.comb += [
                final.eq((lane == p.lanes - 1) | (left == 1)),
                o.payload.eq(word_at(word, lane, p.part)),
                o.valid.eq(queue.o.valid & (left != 0) & ~self.stop),
                queue.o.ready.eq((o.ready & final & (left != 0)) | self.stop),
            ]
            with m.If(o.valid & o.ready):
                m.d.sync += lane.eq(lane + 1)
            with m.If(self.start):
                m.d.sync += lane.eq(self.base[p.low : p.sizes.size])
        else:
            part = Signal(range(p.transfers))
            before = Signal(p.data * (p.transfers - 1))  # the beat's transfers so far
            m.d.comb += [
                final.eq(part == p.transfers - 1),
                o.payload.eq(Cat(before, word)),
                o.valid.eq(queue.o.valid & final & (left != 0) & ~self.stop),
                queue.o.ready.eq(o.ready | ~final | self.stop),
            ]
            with m.If(queue.o.valid & queue.o.ready):
                m.d.sync += [
                    part.eq(Mux(final, 0, part + 1)),
                    before.eq(Cat(before, word)[p.data :]),
                ]
            with m.If(self.start):
                m.d.sync += part.eq(0)
        with m.If(self.start):
            m.d.sync += [left.eq(self.beats), self.moved.eq(0)]
        with m.Elif(self.stop):
            m.d.sync += left.eq(0)
        with m.Elif(o.valid & o.ready):
            m.d.sync += [left.eq(left - 1), self.moved.eq(self.moved + 1)]

    def _report(self, m: Module) -> None:
        """Addresses of the transfers as they arrive, in order, and errors."""
        size = self.parameters.sizes.size
        arriving = Signal(len(self.base) - size)
        resp = Value.cast(self.r.payload.resp)
        with m.If(self.start):
            m.d.sync += arriving.eq(self.base[size:])
        with m.Elif(self.r.valid):
            m.d.sync += arriving.eq(arriving + 1)
        m.d.sync += self.error.eq(self.r.valid & resp[1])
        with m.If(self.r.valid):
            m.d.sync += [self.error_decode.eq(resp[0]), self.error_address[size:].eq(arriving)]
