"""A FIFO that outputs a vector only when it is complete."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from hw.component import Component
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters


class VectorBuffer(Component[None]):
    """Stores and forwards vectors, for VEDA's comparison with stages that wait for whole vectors.

    Latency: the first beat of a vector of n beats is output n cycles after it was accepted, if they
    came without gaps. Throughput: a beat a cycle. Overflow: a vector of more than `length` beats is
    never output, and blocks the input.
    """

    def __init__(self, length: int, shape):
        self._shape = shape
        self._length = length
        super().__init__()

    def ports(self) -> Ports:
        return {
            "i": stream_in(self._shape, "Beats with a field ``last``."),
            "o": stream_out(self._shape, "The same beats, once the whole vector is stored."),
        }

    def elaborate(self, platform):
        m = Module()
        i, o, shape = self.i, self.o, self.o.payload.shape()
        m.submodules.queue = queue = Queue(QueueParameters(shape.size, self._length), shape=shape)
        # Only whole vectors leave: this models a stage that begins when its predecessor has
        # finished (VEDA, Fig. 6, without element-serial scheduling).
        complete = Signal(range(self._length + 1))  # complete vectors in the queue
        enters = Signal()  # a vector's last beat
        leaves = Signal()
        wiring.connect(m, wiring.flipped(i), queue.i)
        m.d.comb += [
            o.payload.eq(queue.o.payload),
            o.valid.eq(complete.any()),
            queue.o.ready.eq(complete.any() & o.ready),
            enters.eq(i.valid & i.ready & i.payload.last),
            leaves.eq(o.valid & o.ready & o.payload.last),
        ]
        m.d.sync += complete.eq(complete + enters - leaves)
        return m
