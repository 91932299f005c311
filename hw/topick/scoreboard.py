"""Partial results of the tokens whose next chunk is on its way (Token-Picker, section 4.1)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.parameters import Parameters, require
from hw.stream.queue import Queue, QueueParameters


@dataclasses.dataclass(frozen=True)
class ScoreboardParameters(Parameters):
    """
    entries
        Tokens, 2 or more.
    score_bits
        Of a partial score, signed.
    depth_bits, precision
        Of a term: see :class:`hw.topick.pec.Pec`.
    """

    entries: int = 64
    score_bits: int = 26
    depth_bits: int = 23
    precision: int = 12

    def __post_init__(self):
        require(self.entries >= 2, "entries must be at least 2", self.entries)
        for name in ("score_bits", "depth_bits", "precision"):
            value = getattr(self, name)
            require(1 <= value <= 62, f"{name} must be between 1 and 62", value)

    @classmethod
    def presets(cls) -> dict[str, "ScoreboardParameters"]:
        return {
            "small": cls(entries=4, score_bits=6, depth_bits=5, precision=3),
            "default": cls(),
            "paper": cls(entries=32),
        }

    @property
    def latency(self) -> int:
        """Cycles from a read to its entry."""
        return 1

    @property
    def slot(self) -> range:
        return range(self.entries)

    @property
    def entry_layout(self) -> data.StructLayout:
        """``score``; the term's ``depth`` and ``significand``."""
        return data.StructLayout(
            {
                "score": signed(self.score_bits),
                "depth": signed(self.depth_bits),
                "significand": self.precision,
            }
        )

    @property
    def write_layout(self) -> data.StructLayout:
        """``slot``; whether to ``park`` the ``entry`` in it, or else to give the slot back."""
        return data.StructLayout({"slot": self.slot, "park": 1, "entry": self.entry_layout})


class Scoreboard(Component):
    """A slot for each token under way, and its partial result while the next chunk is.

    ``free`` gives out slots: all of them once, then those that were given back, in that order, so
    that it depends on no timing which token gets which. The holder of a slot parks an entry in it
    and reads it again, by turns, and gives it back in the end. A slot holds one entry: a read
    waits until one is parked and takes it away, and parking waits until the one before was read.
    Giving back waits while as many slots as there are came back and wait to be given out, which
    only a slot that was never taken can cause.

    Latency: 1 cycle from a read to its entry, from parking to reading, and from giving back to
    giving out. Throughput: one of each a cycle.

    Handshake: ``read.ready`` depends on the slot and on ``entry.ready``, ``write.ready`` on the
    payload. Overflow: none, what has no room waits.

    The paper's scoreboard is found by token; here tags carry the slot, which spares it comparators.

    Members
    -------
    free : :py:`Out(stream.Signature(slot))`
    read : :py:`In(stream.Signature(slot))`
    entry : :py:`Out(stream.Signature(parameters.entry_layout))`
        One for each read, in order.
    write : :py:`In(stream.Signature(parameters.write_layout))`
    """

    summary = "Partial results of tokens whose next chunk is on its way, and free slots"
    source = "Token-Picker, section 4.1"

    def __init__(self, parameters: ScoreboardParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "free": Out(stream.Signature(p.slot)),
                "read": In(stream.Signature(p.slot)),
                "entry": Out(stream.Signature(p.entry_layout)),
                "write": In(stream.Signature(p.write_layout)),
            }
        )

    @property
    def parameters(self) -> ScoreboardParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        returned = self._give_out(m)
        m.submodules.rows = rows = memory.Memory(shape=p.entry_layout, depth=p.entries, init=[])
        reading, writing = rows.read_port(domain="comb"), rows.write_port()
        full = Signal(p.entries)  # slots with an entry
        read_slot = Signal(p.entries)  # one-hot
        write_slot = Signal(p.entries)
        parked = Signal()
        parkable = Signal()
        taking = Signal()
        parking = Signal()
        park = self.write.payload
        m.d.comb += [
            read_slot.eq(Cat(self.read.payload == slot for slot in p.slot)),
            write_slot.eq(Cat(park.slot == slot for slot in p.slot)),
            parked.eq((full & read_slot).any()),
            parkable.eq(~(full & write_slot).any()),
            self.read.ready.eq(parked & (~self.entry.valid | self.entry.ready)),
            self.write.ready.eq(Mux(park.park, parkable, returned.i.ready)),
            taking.eq(self.read.valid & self.read.ready),
            parking.eq(self.write.valid & self.write.ready & park.park),
            reading.addr.eq(self.read.payload),
            writing.addr.eq(park.slot),
            writing.data.eq(park.entry),
            writing.en.eq(parking),
        ]
        with m.If(taking):
            m.d.sync += [self.entry.payload.eq(reading.data), self.entry.valid.eq(1)]
        with m.Elif(self.entry.ready):
            m.d.sync += self.entry.valid.eq(0)
        gone = read_slot & taking.replicate(p.entries)
        come = write_slot & parking.replicate(p.entries)
        m.d.sync += full.eq((full & ~gone) | come)
        return m

    def _give_out(self, m: Module) -> Queue:
        """Slots from 0 to the last, then those that came back; the queue of these."""
        p = self._parameters
        m.submodules.returned = returned = Queue(QueueParameters(depth=p.entries), shape=p.slot)
        fresh = Signal(range(p.entries + 1))
        left = Signal()
        m.d.comb += [
            left.eq(fresh != p.entries),
            self.free.valid.eq(left | returned.o.valid),
            self.free.payload.eq(Mux(left, fresh, returned.o.payload)),
            returned.o.ready.eq(self.free.ready & ~left),
            returned.i.valid.eq(self.write.valid & ~self.write.payload.park),
            returned.i.payload.eq(self.write.payload.slot),
        ]
        with m.If(self.free.ready & left):
            m.d.sync += fresh.eq(fresh + 1)
        return returned
