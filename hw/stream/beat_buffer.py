"""Beats that wait in a circular memory for another pass."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import memory

from hw.stream.credit_counter import CreditCounter, CreditCounterParameters


class BeatBuffer:
    """Beats in a circular memory. Room is reserved by a write, or earlier by :meth:`reserve`."""

    def __init__(self, m: Module, name: str, depth: int, width: int):
        self._name, self._depth = name, depth
        beats = memory.Memory(shape=unsigned(width), depth=depth, init=[])
        m.submodules[f"{name}s"] = beats
        self._in, self._out = beats.write_port(), beats.read_port()
        # Credits count room and not beats: a place may be reserved long before its beat has passed
        # the pipeline in front.
        credits = CreditCounter(CreditCounterParameters(depth))
        m.submodules[f"{name}_credits"] = self._credits = credits
        self.room = credits.available

    def reserve(self, m: Module, taken) -> None:
        m.d.comb += self._credits.take.eq(taken)

    def write(self, m: Module, valid, beat, *, reserved: bool = False) -> None:
        if not reserved:
            self.reserve(m, valid)
        m.d.comb += [self._in.en.eq(valid), self._in.data.eq(beat)]
        self._step(m, self._in.addr, valid, "write")

    def read(self, m: Module, valid):
        """The beat that is read, from the next cycle on until another is read."""
        # A row is free as it is read, because the read port keeps its value.
        m.d.comb += [self._out.en.eq(valid), self._credits.give.eq(valid)]
        self._step(m, self._out.addr, valid, "read")
        return self._out.data

    def _step(self, m: Module, address, valid, name: str) -> None:
        row = Signal(range(self._depth), name=f"{self._name}_{name}_address")
        m.d.comb += address.eq(row)
        with m.If(valid):
            m.d.sync += row.eq(Mux(row == self._depth - 1, 0, row + 1))
