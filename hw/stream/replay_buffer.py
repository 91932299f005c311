"""Words that are output several times, in order."""

from amaranth.hdl import Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import count
from hw.ports import Ports, stream_in, stream_out


class ReplayBuffer(Component[None]):
    """Store words, and output n of them t times, as a job says.

    ::

        i ─→ ring of `depth` words ─→ o
                    ↑
                   job

    A word is output for the first time as soon as it is stored. Words of the next jobs are stored
    while there is room; a job's words are freed with its last one, the last time.

    Latency: 2 cycles from a word to its first output. Throughput: a word a cycle, also from the
    last word of a time to the first of the next.

    Handshake: a job is accepted with its last word read, the last time. ``i.ready`` depends on
    registers only.

    Parameters
    ----------
    depth : int
        Number of words. A job has 1 to `depth`, and 1 to `times` times.
    times : int
    shape : shape-like
        Shape of a word.
    """

    def __init__(self, depth: int, times: int, shape):
        self._depth, self._times, self._shape = depth, times, shape
        super().__init__()

    def ports(self) -> Ports:
        job = {"words": count(range(self._depth + 1)), "times": count(range(self._times + 1))}
        return {
            "job": stream_in(data.StructLayout(job), "Number of words, n, and of times, t."),
            "i": stream_in(self._shape, "Words."),
            "o": stream_out(self._shape, "The same, each time."),
        }

    def elaborate(self, platform):
        m = Module()
        job, i, o, depth = self.job, self.i, self.o, self._depth
        width = Shape.cast(self._shape).width
        m.submodules.words = words = memory.Memory(shape=unsigned(width), depth=depth, init=[])
        write, read = words.write_port(), words.read_port()
        held = Signal(range(depth + 1))  # words that are stored and not freed
        position = Signal(range(depth + 1))  # of the next word in its job
        number = Signal(range(1, self._times + 1), init=1)  # of the time
        # Words are freed all at once: until a job's last time each of them is read again.
        first = Signal(range(depth))  # address of the job's first word
        stored = Signal()
        take = Signal()  # a word is read into the memory's output register
        end = Signal()  # it is the last one of its time
        freed = Signal()
        m.d.comb += [
            i.ready.eq(held != depth),
            stored.eq(i.valid & i.ready),
            write.en.eq(stored),
            write.data.eq(Value.cast(i.payload)),
            take.eq(job.valid & (position < held) & (~o.valid | o.ready)),
            end.eq(take & (position + 1 == job.payload.words)),
            freed.eq(end & (number == job.payload.times)),
            job.ready.eq(freed),
            read.en.eq(take),
            Value.cast(o.payload).eq(read.data),
        ]

        def following(address):
            return Mux(address == depth - 1, 0, address + 1)

        m.d.sync += held.eq(held + stored - Mux(freed, job.payload.words, 0))
        with m.If(stored):
            m.d.sync += write.addr.eq(following(write.addr))
        with m.If(take):
            m.d.sync += [position.eq(position + 1), read.addr.eq(following(read.addr))]
        with m.If(end):  # again from the first word
            m.d.sync += [position.eq(0), number.eq(number + 1), read.addr.eq(first)]
        with m.If(freed):  # the next job's words follow
            m.d.sync += [
                number.eq(1),
                first.eq(following(read.addr)),
                read.addr.eq(following(read.addr)),
            ]
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(take)
        return m
