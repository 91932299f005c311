"""A stream into a buffer in memory."""

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import data

from hw.bus.axi import AXI4, word_at
from hw.bus.bursts import BEAT_BITS, Bursts, EngineParameters
from hw.bus.channels import buffered, incremental
from hw.component import Component
from hw.ports import Port, Ports, stream_in, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters


class WriteEngine(Component[EngineParameters]):
    """Writes the next `beats` beats one behind the other from `base` on.

    A beat takes :func:`hw.bus.device_map.bytes_in_memory` bytes, lowest bit first, with zeros above
    the beat's bits; `base` is a multiple of them. Bytes outside of the buffer are not written. All
    bursts have one ID. A burst's address is sent once the engine has all its data, so a stream that
    is late never holds up the bus.

    Latency: 4 cycles from the last beat of a burst to its data on the bus. Throughput: a transfer
    in each cycle, as long as `burst` times `outstanding` exceeds the bus's latency and 4 cycles.

    With `stop` the bursts whose address was sent are completed, all else is dropped, until `idle`.

    Errors: SLVERR and DECERR raise `error` for one cycle.

    Handshake: `i` is ready only for the beats of a run, beats behind them wait for the next run;
    with `discard` it accepts and drops every beat. aw and w are registers. Overflow: none.
    """

    def ports(self) -> Ports:
        p = self.parameters
        bus = AXI4(p.sizes).members
        return {
            "start": wire_in(1, "Begin, while `idle`, with `base` and `beats`."),
            "base": wire_in(p.bus_address, "Address of the first beat."),
            "beats": wire_in(BEAT_BITS, "Number of beats; 0: none."),
            "discard": wire_in(1, "Accept and drop beats that do not belong to a run."),
            "stop": wire_in(1, "End early."),
            "idle": wire_out(1, "All beats are in memory and nothing is under way."),
            "moved": wire_out(BEAT_BITS, "Number of beats accepted since `start`."),
            "error": wire_out(1, "The bus has answered with an error."),
            "error_decode": wire_out(1, "With `error`: DECERR, not SLVERR."),
            "error_address": wire_out(p.bus_address, "With `error`: address of the burst."),
            "i": stream_in(unsigned(p.width), "The beats."),
            "aw": Port(bus["aw"], "To the memory."),
            "w": Port(bus["w"], "To the memory."),
            "b": Port(bus["b"], "From the memory."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.bursts = bursts = Bursts(p)
        word = data.StructLayout({"data": p.data, "strb": p.data // 8})
        m.submodules.queue = queue = Queue(QueueParameters(depth=p.depth), shape=word)
        # Transfers stored whose burst's address is not sent; transfers of the burst to be sent;
        # bursts without a response.
        free = Signal(range(p.depth + 1))
        sending = Signal(range(p.burst + 1))
        under_way = Signal(range(p.outstanding + 1))
        left = Signal(BEAT_BITS)
        m.d.comb += [
            bursts.start.eq(self.start),
            bursts.base.eq(self.base),
            bursts.beats.eq(self.beats),
            bursts.cancel.eq(self.stop),
        ]
        self._pack(m, queue, left)
        self._address(m, bursts, free, sending, under_way)
        self._send(m, queue, sending)
        push = queue.i.valid & queue.i.ready
        # A burst whose address has been sent must have all its data, also after `stop`; only what
        # belongs to no burst is dropped.
        dropped = queue.o.valid & self.stop & (sending == 0)
        m.d.sync += [
            # An address is sent when its whole burst is stored, so a slow block never holds the bus
            # in the middle of a burst.
            free.eq(free + push - Mux(bursts.take, bursts.length, 0) - dropped),
            under_way.eq(under_way + bursts.take - self.b.valid),
        ]
        m.d.comb += [
            self.b.ready.eq(1),
            self.idle.eq((left == 0) & (bursts.length == 0) & (under_way == 0) & ~queue.o.valid),
        ]
        self._report(m)
        return m

    def _pack(self, m: Module, queue: Queue, left: Signal) -> None:
        """Beats into transfers: several into one, or the parts of one into several."""
        p, i = self.parameters, self.i
        push = queue.i
        final = Signal()  # the transfer that goes to the queue now completes the beat
        running = Signal()
        accept = Signal()  # a beat of the run is accepted
        m.d.comb += [
            # Beats that come after the run's last one wait, unless the run has none and all are
            # discarded.
            running.eq((left != 0) & ~self.stop),
            i.ready.eq(Mux(left != 0, running & final & (push.ready | ~push.valid), self.discard)),
            accept.eq(i.valid & i.ready & (left != 0)),
        ]
        beat = Signal(8 * p.beat_bytes)
        m.d.comb += beat.eq(i.payload)
        if p.lanes > 1:
            lane = Signal(range(p.lanes))
            stored = Signal(data.ArrayLayout(p.part, p.lanes))
            filled = Signal(p.lanes)
            m.d.comb += [
                final.eq(1),
                # A word of the bus goes out full, but for the run's first and last; strobes mark
                # its beats, so the bytes beside a buffer are not touched.
                push.valid.eq(i.valid & running & ((lane == p.lanes - 1) | (left == 1))),
            ]
            for n in range(p.lanes):
                here = lane == n
                at = slice(n * p.part, (n + 1) * p.part)
                strobes = slice(n * p.part // 8, (n + 1) * p.part // 8)
                m.d.comb += [
                    push.payload.data[at].eq(Mux(here, beat, stored[n])),
                    push.payload.strb[strobes].eq((here | filled[n]).replicate(p.part // 8)),
                ]
                with m.If(accept & here):
                    m.d.sync += [stored[n].eq(beat), filled[n].eq(1)]
            with m.If(accept):
                m.d.sync += lane.eq(lane + 1)
            with m.If(push.valid & push.ready):
                m.d.sync += filled.eq(0)
            with m.If(self.start):
                m.d.sync += [lane.eq(self.base[p.low : p.sizes.size]), filled.eq(0)]
        else:
            part = Signal(range(p.transfers))
            m.d.comb += [
                final.eq(part == p.transfers - 1),
                push.valid.eq(i.valid & running),
                push.payload.data.eq(word_at(beat, part, p.data)),
                push.payload.strb.eq(~0),
            ]
            with m.If(push.valid & push.ready):
                m.d.sync += part.eq(Mux(final, 0, part + 1))
            with m.If(self.start):
                m.d.sync += part.eq(0)
        with m.If(self.start):
            m.d.sync += [left.eq(self.beats), self.moved.eq(0)]
        with m.Elif(self.stop):
            m.d.sync += left.eq(0)
        with m.Elif(accept):
            m.d.sync += [left.eq(left - 1), self.moved.eq(self.moved + 1)]

    def _address(
        self, m: Module, bursts: Bursts, free: Signal, sending: Signal, under_way: Signal
    ) -> None:
        """The address of a burst whose data is stored, as the data before it has been sent."""
        p = self.parameters
        command = buffered(m, "aw", self.aw)
        ready = (bursts.length != 0) & (free >= bursts.length) & ~self.stop
        m.d.comb += [
            # One burst's data at a time: then addresses and data are in the same order by
            # construction.
            command.valid.eq(ready & (sending == 0) & (under_way != p.outstanding)),
            command.payload.addr.eq(bursts.address),
            *incremental(command.payload, bursts.length, p.sizes.size),
            bursts.take.eq(command.valid & command.ready),
        ]
        with m.If(bursts.take):
            m.d.sync += sending.eq(bursts.length)

    def _send(self, m: Module, queue: Queue, sending: Signal) -> None:
        """The data of the burst whose address was sent; with `stop` the rest is dropped."""
        word = buffered(m, "w", self.w)
        m.d.comb += [
            word.valid.eq(queue.o.valid & (sending != 0)),
            word.payload.data.eq(queue.o.payload.data),
            word.payload.strb.eq(queue.o.payload.strb),
            word.payload.last.eq(sending == 1),
            queue.o.ready.eq(Mux(sending != 0, word.ready, self.stop)),
        ]
        with m.If(word.valid & word.ready):
            m.d.sync += sending.eq(sending - 1)

    def _report(self, m: Module) -> None:
        """Addresses of the bursts as they are answered, in order, and errors."""
        p, b = self.parameters, self.b
        size, low = p.sizes.size, (p.burst - 1).bit_length()
        answered = Signal(p.bus_address - size)
        resp = Value.cast(b.payload.resp)
        # The responses carry no address; they come in order, so a counter knows whose each one is.
        with m.If(self.start):
            m.d.sync += answered.eq(self.base[size:])
        with m.Elif(b.valid):
            # All bursts but the last end at a multiple of `burst`.
            m.d.sync += answered.eq((answered[low:] + 1) << low)
        m.d.sync += self.error.eq(b.valid & resp[1])
        with m.If(b.valid):
            m.d.sync += [self.error_decode.eq(resp[0]), self.error_address[size:].eq(answered)]
