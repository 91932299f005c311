"""A vector that is given out only when all of it is there."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.stream.queue import Queue, QueueParameters


class VectorBuffer(Component):
    """What VEDA does without: a stage that begins when the one before it is done with a vector.

    Latency: a vector of n beats comes out n cycles later than it went in. Throughput: a beat a
    cycle. Overflow: a vector of more than `length` beats never comes out.

    Members
    -------
    i, o : :py:`In(stream.Signature(shape)), Out(stream.Signature(shape))`
        Beats with a field ``last``.
    """

    def __init__(self, length: int, shape):
        self._length = length
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        i, o, shape = self.i, self.o, self.o.payload.shape()
        m.submodules.queue = queue = Queue(QueueParameters(shape.size, self._length), shape=shape)
        whole = Signal(range(self._length + 1))  # vectors
        comes, goes = Signal(), Signal()
        wiring.connect(m, wiring.flipped(i), queue.i)
        m.d.comb += [
            o.payload.eq(queue.o.payload),
            o.valid.eq(whole.any()),
            queue.o.ready.eq(whole.any() & o.ready),
            comes.eq(i.valid & i.ready & i.payload.last),
            goes.eq(o.valid & o.ready & o.payload.last),
        ]
        m.d.sync += whole.eq(whole + comes - goes)
        return m
