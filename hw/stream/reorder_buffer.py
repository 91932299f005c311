"""Words of any addresses, in order, from a memory that answers out of order."""

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import memory

from hw.component import Component
from hw.layout import FLAG, address, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


class ReorderBuffer(Component[None]):
    """Request words and output them in the order of the requests.

    Slots are allocated in order of request and read in the same order. A request's tag is the
    number of its slot, so every response is accepted at once. At most `depth` words are requested
    or wait in a slot at any time, and one more waits at the output.

    With `repeat`, a run of words, up to one with ``last``, may be output several times: its slots
    are kept until its last time. Such a run has at most `depth` words. With `partly` several words
    of a run may have ``last``, and all times but the last may end with any of these.

    The slots are one memory of `depth` words with a synchronous read port, fit for block RAM or
    SRAM, and a register for each slot says whether it is filled.

    Timing: a request in the cycle of its address, a word two cycles after its response, then one
    a cycle.

    Parameters
    ----------
    depth : int
        A power of two, at least 4.
    address_width : int
    shape : shape-like
        Shape of a word.
    repeat : bool
        Whether there are `again`, `take` and `run_end`.
    partly : bool
        Whether there are `skip` and `skipped`, too.
    """

    def __init__(
        self, depth: int, address_width: int, shape, repeat: bool = False, partly: bool = False
    ):
        self._shape = shape
        self._address_width = address_width
        self._depth = depth
        self._repeat = repeat
        self._partly = partly
        super().__init__()

    def ports(self) -> Ports:
        repeating = (
            {
                "again": wire_in(
                    1,
                    "The run that is read is read again from its first word after its last. "
                    "Constant from a run's first word to its last.",
                ),
                "take": wire_out(1, "A word is read: it is at the output from the next cycle on."),
                "run_end": wire_out(1, "A word with ``last`` is read."),
            }
            if self._repeat
            else {}
        )
        if self._partly:
            repeating |= {
                "skip": wire_in(1, "The next word with `last` does not end the run this time."),
                "skipped": wire_out(1, "Such a word is read; it is output without `last`."),
            }
        tag, where = index(range(self._depth)), address(self._address_width)
        return {
            "i": stream_in(
                {"address": where, "last": FLAG}, "What to read; `last` comes out with the word."
            ),
            "request": stream_out(
                {"tag": tag, "address": where},
                "Its valid depends combinationally on ``i.valid``, ``i.ready`` on its ready.",
            ),
            "response": stream_in({"tag": tag, "data": self._shape}, "In any order; always ready."),
            "o": stream_out({"data": self._shape, "last": FLAG}),
            **repeating,
        }

    def elaborate(self, platform):
        m = Module()
        depth, request, response, o = self._depth, self.request, self.response, self.o

        # Slot numbers of the next request and of the oldest word kept, with a wrap bit each: equal
        # pointers are an empty buffer, pointers that differ in the wrap bit only a full one. The
        # oldest word is the next to read, unless a run is repeated.
        requested = Signal(range(2 * depth))
        emptied = Signal(range(2 * depth))
        reading = Signal(range(2 * depth)) if self._repeat else emptied
        full = Signal()
        issue = Signal()  # a request is accepted by the memory
        m.d.comb += [
            full.eq((requested ^ emptied) == depth),
            request.valid.eq(self.i.valid & ~full),
            request.payload.tag.eq(requested[:-1]),
            request.payload.address.eq(self.i.payload.address),
            issue.eq(request.valid & request.ready),
            self.i.ready.eq(request.ready & ~full),
        ]
        m.d.sync += requested.eq(requested + issue)

        # Words are written when they arrive, their `last` flags when they are requested.
        word = Shape.cast(response.payload.shape()["data"].shape).width
        m.submodules.slots = slots = memory.Memory(shape=unsigned(word), depth=depth, init=[])
        m.submodules.finals = finals = memory.Memory(shape=1, depth=depth, init=[])
        write, read = slots.write_port(), slots.read_port()
        write_final, read_final = finals.write_port(), finals.read_port()
        # A slot's bit toggles with every word written: in even passes through the buffer 1 means
        # filled, in odd passes 0. So reading a slot need not clear its bit.
        filled = Signal(depth)
        present = Signal()  # the next word to read is in its slot
        take = Signal()  # it is read into the output register of the memory
        turn = Cat(reading[:-1] == slot for slot in range(depth))  # its slot, one-hot
        m.d.comb += [
            response.ready.eq(1),
            write.en.eq(response.valid),
            write.addr.eq(response.payload.tag),
            write.data.eq(Value.cast(response.payload.data)),
            write_final.en.eq(issue),
            write_final.addr.eq(requested[:-1]),
            write_final.data.eq(self.i.payload.last),
            # The wrap bit of `reading` says which pass through the buffer this is.
            present.eq((filled & turn).any() ^ reading[-1]),
            take.eq(present & (~o.valid | o.ready)),
            read.en.eq(take),
            read.addr.eq(reading[:-1]),
            read_final.en.eq(take),
            read_final.addr.eq(reading[:-1]),
            # The memories' read registers are the output register.
            Value.cast(o.payload.data).eq(read.data),
        ]
        arrived = Cat(response.valid & (response.payload.tag == slot) for slot in range(depth))
        m.d.sync += filled.eq(filled ^ arrived)
        if self._repeat:
            ahead = Signal(range(depth))  # words of the run that are read and kept
            ends = Signal(depth)  # slots of words with `last`
            issued = Cat(issue & (requested[:-1] == slot) for slot in range(depth))
            m.d.comb += [reading.eq(emptied + ahead), self.take.eq(take)]
            self._end_runs(m, take, take & (ends & turn).any(), read_final.data)
            m.d.sync += ends.eq(Mux(self.i.payload.last, ends | issued, ends & ~issued))
            with m.If(take & self.again):
                m.d.sync += ahead.eq(Mux(self.run_end, 0, ahead + 1))
            with m.Elif(take):
                m.d.sync += emptied.eq(emptied + 1)
        else:
            m.d.comb += o.payload.last.eq(read_final.data)
            m.d.sync += emptied.eq(emptied + take)
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(present)
        return m

    def _end_runs(self, m: Module, take: Signal, ends: Value, last: Value) -> None:
        """Which words end a run: `ends` if the one taken may, `last` if the output's may."""
        if not self._partly:
            m.d.comb += [self.run_end.eq(ends), self.o.payload.last.eq(last)]
            return
        passing = Signal()  # the word at the output was read with `skip`
        m.d.comb += [
            self.run_end.eq(ends & ~self.skip),
            self.skipped.eq(ends & self.skip),
            self.o.payload.last.eq(last & ~passing),
        ]
        with m.If(take):
            m.d.sync += passing.eq(self.skip)
