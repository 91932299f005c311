"""Vote counts and positions of the slots, and the search through them (VEDA, section V)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.veda.context_memory import context_index
from hw.veda.place_memory import PlaceMemory, access_layout


class VoteBuffer(Component[None]):
    """A row for each slot, with vote count and token's position; a search for the least key.

    ::

        cycle 0     1                    2
        read ─→ memory ─→ count + vote ─→ write back, compare with the best so far

        counting:   key = | protected | ~count |     most votes first, protected rows last
        else:       key = | score |                  least score first
        compared:   | key | position |               the oldest token on ties

    While `counting`, each row read gets its vote (the count saturates), and the search finds the
    row to evict: the one with the most votes, of the oldest token on ties; a protected one only if
    all are. Otherwise the search finds the least score, of the oldest token on ties. Positions must
    differ, so no two keys are equal. One row a cycle; `best` is final two cycles after the last row
    was read.

    Parameters
    ----------
    slots, count_bits, position_bits, score_bits : int
        A score must have more bits than a count.
    contexts : int
        Number of caches, each with its rows.
    moved : bool
        Whether contexts are places whose rows are moved to a memory and back.
    """

    def __init__(
        self,
        slots: int,
        count_bits: int,
        position_bits: int,
        score_bits: int,
        contexts: int = 1,
        moved: bool = False,
    ):
        self._slots, self._contexts, self._moved = slots, contexts, moved
        self._count_bits = count_bits
        self._position_bits = position_bits
        self._score_bits = score_bits
        super().__init__()

    @property
    def _row(self) -> data.StructLayout:
        return data.StructLayout({"count": self._count_bits, "position": self._position_bits})

    def ports(self) -> Ports:
        moved = {
            "access": wire_in(access_layout(self._contexts, self._slots), "The mover's."),
            "given": wire_in(self._row, "The row that `access` writes."),
            "kept": wire_out(self._row, "The row that `access` has read."),
        }
        best = data.StructLayout({"slot": range(self._slots), "position": self._position_bits})
        return {
            "context": wire_in(
                context_index(self._contexts), "Whose rows; constant while any are in the pipeline."
            ),
            "read": wire_in(
                data.StructLayout({"valid": 1, "slot": range(self._slots)}), "Row to read."
            ),
            "vote": wire_in(1, "One cycle later than `read`: a vote for the row."),
            "search": wire_in(
                1, "One cycle later than `read`: the search for the least key includes the row."
            ),
            "score": wire_in(self._score_bits, "One cycle later: the score of its slot."),
            "counting": wire_in(1, "Constant while rows are in the pipeline."),
            "protected": wire_in(self._position_bits, "Positions below it are protected."),
            "clear": wire_in(
                1, "Begin a search, a cycle before its first row is compared or earlier."
            ),
            "join": wire_in(
                1,
                "Write a row while none is in the pipeline. `join`: slot `last` gets position "
                "`token` and no votes. `move`: the best slot gets the row that was read last.",
            ),
            "move": wire_in(
                1, "The best slot gets the row that was read last, while no row is in the pipeline."
            ),
            "last": wire_in(range(self._slots)),
            "token": wire_in(self._position_bits),
            "best": wire_out(best, "Row with the least key."),
            "busy": wire_out(1, "A row was read and not compared yet."),
            **(moved if self._moved else {}),
        }

    def elaborate(self, platform):
        m = Module()
        row = self._row
        context_bits, slot_bits = (n.bit_length() for n in (self._contexts - 1, self._slots - 1))
        depth = self._contexts << slot_bits if context_bits else self._slots
        rows: Any = (
            PlaceMemory(self._contexts, self._slots, row)
            if self._moved
            else memory.Memory(shape=row, depth=depth, init=[])
        )
        m.submodules.rows = rows
        if self._moved:
            self._move(m, rows)
        context = self.context[:context_bits]
        read_port, write_port = rows.read_port(), rows.write_port()
        best = self.best

        # Cycle 1: the row arrives; add the vote.
        found = Signal(row)
        arrived = Signal()
        arrived_slot = Signal.like(self.read.slot, reset_less=True)
        count = Signal(self._count_bits)
        protected = Signal()
        m.d.sync += [arrived.eq(self.read.valid), arrived_slot.eq(self.read.slot)]
        m.d.comb += [
            read_port.en.eq(self.read.valid),
            read_port.addr.eq(Cat(self.read.slot, context)),
            found.eq(read_port.data),
            count.eq(found.count + (self.vote & ~found.count.all())),
            protected.eq(found.position < self.protected),
            self.busy.eq(arrived),
        ]

        # Cycle 2: compare with the best so far.
        passed = Signal()
        searched = Signal()
        slot = Signal.like(self.read.slot, name="passed_slot", reset_less=True)
        key = Signal(self._score_bits, reset_less=True)
        position = Signal(self._position_bits, reset_less=True)
        m.d.sync += [passed.eq(arrived), searched.eq(arrived & self.search)]
        with m.If(arrived):
            m.d.sync += [
                slot.eq(arrived_slot),
                position.eq(found.position),
                key.eq(Mux(self.counting, Cat(~count, protected), self.score)),
            ]
        # A flag marks an empty search, because no key is above all others: all ones may be a row's.
        search_empty = Signal()  # nothing was compared since `clear`
        best_key = Signal.like(key, reset_less=True)
        best_slot = Signal.like(slot, reset_less=True)
        best_position = Signal.like(position, reset_less=True)
        less = Signal()
        m.d.comb += [
            less.eq(Cat(position, key) < Cat(best_position, best_key)),
            best.slot.eq(best_slot),
            best.position.eq(best_position),
        ]
        with m.If(self.clear):
            m.d.sync += search_empty.eq(1)
        with m.Elif(searched):
            m.d.sync += search_empty.eq(0)
        with m.If(searched & (search_empty | less)):
            m.d.sync += [best_key.eq(key), best_slot.eq(slot), best_position.eq(position)]

        # And write back: the counted row, a new one, or the last row read into the best slot.
        # The key is the upper part of the comparison: votes (complemented) or score first, then
        # position. Positions differ, so the result does not depend on the order of slots, which
        # evictions permute.
        written = Signal.like(slot, name="written_slot")
        m.d.comb += [
            written.eq(Mux(self.join, self.last, Mux(self.move, best_slot, slot))),
            # One write port is enough: the parent joins and moves only while no row is in the
            # pipeline.
            write_port.en.eq((passed & self.counting) | self.join | self.move),
            write_port.addr.eq(Cat(written, context)),
            write_port.data.count.eq(Mux(self.join, 0, ~key[: self._count_bits])),
            write_port.data.position.eq(Mux(self.join, self.token, position)),
        ]
        return m

    def _move(self, m: Module, rows: PlaceMemory) -> None:
        """Access to the slots of a place."""
        m.d.comb += [
            rows.access.eq(self.access),
            rows.given.eq(self.given),
            self.kept.eq(rows.kept),
        ]
