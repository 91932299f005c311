"""Partial results of the tokens whose next chunk is in flight (Token-Picker, section 4.1)."""

import dataclasses
import functools

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, memory

from hw.component import Component
from hw.layout import FLAG, Integer, index, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters


@dataclasses.dataclass(frozen=True)
class ScoreboardParameters(Parameters):
    """
    entries
        Slots, 2 or more: tokens in flight at most.
    score_bits
        Width of a partial score, signed.
    shift_bits, precision
        Widths of a term's shift and significand, see :class:`hw.topick.pec.Pec`.
    waits
        Whether reads and writes may come too early. False, for a lane: an entry has been taken when
        the next one is read, and slots are written by owners that have read the entry before; so
        no write waits, and a read for its own entry alone.
    """

    entries: int = 64
    score_bits: int = 26
    shift_bits: int = 23
    precision: int = 12
    waits: bool = True

    def __post_init__(self):
        require(self.entries >= 2, "entries must be at least 2", self.entries)
        for name in ("score_bits", "shift_bits", "precision"):
            value = getattr(self, name)
            require(1 <= value <= 62, f"{name} must be between 1 and 62", value)

    @classmethod
    def presets(cls) -> dict[str, "ScoreboardParameters"]:
        return {
            "small": cls(entries=4, score_bits=6, shift_bits=5, precision=3),
            "default": cls(),
            "paper": cls(entries=32),
        }

    @property
    def latency(self) -> int:
        """Cycles from a read to its entry."""
        return 1

    @property
    def slot(self) -> Integer:
        """Number of a slot."""
        return index(range(self.entries))

    @functools.cached_property
    def entry_layout(self) -> data.StructLayout:
        """``score``; the term's ``shift`` and ``significand``, see :class:`hw.topick.pec.Pec`."""
        return data.StructLayout(
            {
                "score": integer(signed(self.score_bits)),
                "shift": integer(signed(self.shift_bits)),
                "significand": integer(self.precision),
            }
        )

    @functools.cached_property
    def write_layout(self) -> data.StructLayout:
        """``slot``; ``park`` the ``entry`` in it, or, with ``park`` low, return the slot."""
        return data.StructLayout({"slot": self.slot, "park": FLAG, "entry": self.entry_layout})


class Scoreboard(Component[ScoreboardParameters]):
    """A slot for each token in flight, which holds its partial result between two chunks.

    ``free`` issues slots: each of them once, then returned slots in the order of their return, so
    that the assignment does not depend on timing. The owner of a slot alternately parks an entry in
    it and reads the entry, and returns the slot in the end. A slot holds one entry: a read waits
    until one is parked and removes it, and parking waits until the entry before has been read. A
    return waits while all `entries` returned slots wait to be issued again, which happens only if a
    slot is returned that was never issued.

    Example of one token: take slot 3 from ``free``; write (slot 3, park, entry); read slot 3, which
    outputs the entry; write (slot 3, not park). Slot 3 is then issued again, after the other free
    slots.

    Latency: 1 cycle from a read to its entry, from parking to reading, and from returning a slot to
    issuing it. Throughput: one of each per cycle.

    Handshake: ``read.ready`` depends on the slot and on ``entry.ready``, ``write.ready`` on the
    payload. Overflow: none; an entry or slot without room waits. Without `waits`, ``write`` is
    always ready.

    The paper's scoreboard is searched by token; here tags carry the slot, so no comparators are
    needed.

    Examples
    --------
    >>> from hw.topick.scoreboard import Scoreboard, ScoreboardParameters
    >>> scoreboard = Scoreboard(ScoreboardParameters(entries=32))
    >>> scoreboard.free.payload.shape(), len(scoreboard.entry.payload.as_value())
    (unsigned(5), 61)
    """

    summary = "Partial results of tokens whose next chunk is in flight, and free slots"
    source = "Token-Picker, section 4.1"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "free": stream_out(p.slot, "Slots that are free."),
            "read": stream_in(p.slot, "Slots to read."),
            "entry": stream_out(p.entry_layout, "One for each read, in order."),
            "write": stream_in(p.write_layout, "Entries to store."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        returned = self._issue_slots(m)
        # Chunks of many tokens are in flight at once, which hides the memory's latency though a
        # token's next chunk is requested only after its last one has been judged (out-of-order,
        # section 4.1).
        m.submodules.rows = rows = memory.Memory(shape=p.entry_layout, depth=p.entries, init=[])
        reading, writing = rows.read_port(domain="comb"), rows.write_port()
        full = Signal(p.entries)  # slots with an entry
        read_slot = Signal(p.entries)  # one-hot
        write_slot = Signal(p.entries)  # one-hot
        parked = Signal()  # the slot to read has an entry
        taking = Signal()
        parking = Signal()
        park = self.write.payload
        m.d.comb += [
            read_slot.eq(Cat(self.read.payload == slot for slot in range(p.entries))),
            write_slot.eq(Cat(park.slot == slot for slot in range(p.entries))),
            # Reading waits for an entry that is still on its way through the lane's pipeline.
            parked.eq((full & read_slot).any()),
            self.read.ready.eq(parked),
            self.write.ready.eq(1),
            taking.eq(self.read.valid & self.read.ready),
            parking.eq(self.write.valid & self.write.ready & park.park),
            # The read port is combinational: the entry is needed in the cycle after the response.
            reading.addr.eq(self.read.payload),
            writing.addr.eq(park.slot),
            writing.data.eq(park.entry),
            writing.en.eq(parking),
        ]
        if p.waits:
            parkable = Signal()  # the slot to write has no entry
            m.d.comb += [
                self.read.ready.eq(parked & (~self.entry.valid | self.entry.ready)),
                parkable.eq(~(full & write_slot).any()),
                self.write.ready.eq(Mux(park.park, parkable, returned.i.ready)),
            ]
        # The output register of the entry.
        with m.If(taking):
            m.d.sync += [self.entry.payload.eq(reading.data), self.entry.valid.eq(1)]
        with m.Elif(self.entry.ready):
            m.d.sync += self.entry.valid.eq(0)
        # A read empties its slot, parking fills one.
        emptied = read_slot & taking.replicate(p.entries)
        filled = write_slot & parking.replicate(p.entries)
        m.d.sync += full.eq((full & ~emptied) | filled)
        return m

    def _issue_slots(self, m: Module) -> Queue:
        """Issue slots from 0 to the last, then returned ones; returns the queue of these."""
        p = self.parameters
        m.submodules.returned = returned = Queue(QueueParameters(depth=p.entries), shape=p.slot)
        fresh = Signal(range(p.entries + 1))  # the lowest slot that was never issued
        # Until all slots have been issued once, no queue is needed.
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
