"""A block's streams as bytes: a queue in block memory, and a shift register beside the block.

The queue is eight bits wide whatever a beat's width, so a wide stream costs its beat's bits in
flip-flops and one block memory. A byte a cycle is fifty times what a serial line carries.
"""

from amaranth.hdl import Cat, Module, ResetInserter, Signal, unsigned
from amaranth.lib import fifo

from hw.component import Component
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


def bytes_of(width: int) -> int:
    """Bytes of a beat or row of `width` bits."""
    return max(1, -(-width // 8))


def beats_held(width: int, size: int) -> int:
    """Beats of `width` bits that a queue of `size` bytes holds; it is made for two at least."""
    return max(size // bytes_of(width), 2)


class InputPort(Component[None]):
    """Beats for a block, from bytes.

    A beat counts as held until the block accepts it, so `room` is a credit: that many beats may be
    pushed whatever the block does. Latency: 2 + bytes of a beat, from its last byte to ``o.valid``.
    Throughput: a beat in that many cycles. Handshake: ``o.valid`` depends on registers only.

    Parameters
    ----------
    width : int
        Width of the payload.
    size : int
        Bytes of the queue.
    """

    def __init__(self, width: int, size: int):
        self._width = width
        self._size = size
        super().__init__()

    def ports(self) -> Ports:
        return {
            **{
                "clear": wire_in(1, "Drop everything."),
                "push": wire_in(1),
                "data": wire_in(
                    8, "The next byte, lowest first. Only while `room` is not 0, or within a beat."
                ),
            },
            **{"room": wire_out(16), "beats": wire_out(32, "Accepted by the block since `clear`.")},
            "o": stream_out(unsigned(self._width)),
        }

    def elaborate(self, platform):
        m = Module()
        size, capacity = bytes_of(self._width), beats_held(self._width, self._size)
        queue = fifo.SyncFIFOBuffered(width=8, depth=capacity * size)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        bits = Signal(8 * size)
        missing = Signal(range(size + 1), init=size)  # bytes of the beat in `bits`
        pushed = Signal(range(size))  # bytes of the beat that is being pushed
        begins = Signal()
        accepted = Signal()
        m.d.comb += [
            queue.w_en.eq(self.push),
            queue.w_data.eq(self.data),
            queue.r_en.eq(missing != 0),
            self.o.valid.eq(missing == 0),
            self.o.payload.eq(bits),
            accepted.eq(self.o.valid & self.o.ready),
            # Credit is taken with a beat's first byte and returned when the block accepts the beat;
            # bytes between have their place already.
            begins.eq(self.push & (pushed == 0)),
        ]
        room = Signal(16, init=capacity)
        m.d.comb += self.room.eq(room)
        m.d.sync += room.eq(room - begins + accepted)
        with m.If(queue.r_rdy & queue.r_en):
            m.d.sync += [bits.eq(Cat(bits, queue.r_data)[8:]), missing.eq(missing - 1)]
        with m.If(accepted):
            m.d.sync += [missing.eq(size), self.beats.eq(self.beats + 1)]
        if size > 1:
            with m.If(self.push):
                m.d.sync += pushed.eq(pushed + 1)
                with m.If(pushed == size - 1):
                    m.d.sync += pushed.eq(0)
        # Last, so that a clear wins over a byte or beat of the same cycle.
        with m.If(self.clear):
            m.d.sync += [room.eq(capacity), missing.eq(size), pushed.eq(0), self.beats.eq(0)]
        return m


class OutputPort(Component[None]):
    """Beats of a block, as bytes. The block stalls while the queue is full.

    Latency: 2 + bytes of a beat, from the transfer until the beat counts in `level`. Throughput: a
    beat in as many cycles. Handshake: ``i.ready`` depends on registers only.

    Parameters
    ----------
    width : int
        Width of the payload.
    size : int
        Bytes of the queue.
    """

    def __init__(self, width: int, size: int):
        self._width = width
        self._size = size
        super().__init__()

    def ports(self) -> Ports:
        return {
            **{
                "clear": wire_in(1, "Drop everything."),
                "pop": wire_in(1, "Take `data`; only while `level` is not 0, or within a beat."),
                "data": wire_out(8, "The next byte, lowest first."),
            },
            **{
                "level": wire_out(16, "Whole beats that wait."),
                "beats": wire_out(32, "Transferred from the block since `clear`."),
            },
            "i": stream_in(unsigned(self._width)),
        }

    def elaborate(self, platform):
        m = Module()
        size, capacity = bytes_of(self._width), beats_held(self._width, self._size)
        queue = fifo.SyncFIFOBuffered(width=8, depth=capacity * size)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        bits = Signal(8 * size)
        left = Signal(range(size + 1))  # bytes in `bits`
        popped = Signal(range(size))  # bytes of the beat that is being popped
        level = Signal(16)
        moved = Signal()
        ends = Signal()
        begins = Signal()
        m.d.comb += [
            # One beat at a time in the shift register: the block stalls meanwhile, which only costs
            # time, as a link has no cycle to keep.
            self.i.ready.eq(left == 0),
            queue.w_data.eq(bits[:8]),
            queue.w_en.eq(left != 0),
            moved.eq(queue.w_en & queue.w_rdy),
            ends.eq(moved & (left == 1)),
            # The level falls with a beat's first byte, so the host never begins a beat that is not
            # whole.
            begins.eq(self.pop & (popped == 0)),
            self.data.eq(queue.r_data),
            queue.r_en.eq(self.pop),
            # A beat counts a cycle late, because its last byte needs one to pass an empty queue.
            self.level.eq(level),
        ]
        whole = Signal(2)
        m.d.sync += [whole.eq(Cat(ends, whole)), level.eq(level + whole[1] - begins)]
        with m.If(moved):
            m.d.sync += [bits.eq(bits >> 8), left.eq(left - 1)]
        with m.Elif(self.i.valid & self.i.ready):
            m.d.sync += [bits.eq(self.i.payload), left.eq(size), self.beats.eq(self.beats + 1)]
        if size > 1:
            with m.If(self.pop):
                m.d.sync += popped.eq(popped + 1)
                with m.If(popped == size - 1):
                    m.d.sync += popped.eq(0)
        with m.If(self.clear):
            m.d.sync += [level.eq(0), left.eq(0), popped.eq(0), whole.eq(0), self.beats.eq(0)]
        return m
