"""Vote counts and positions of the slots, and the search through them (VEDA, section V)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from hw.component import Component


class VoteBuffer(Component):
    """A row for each slot, of its vote count and its token's position; a search for the least key.

    ::

        cycle 0     1                    2
        read ─→ memory ─→ count + vote ─→ write back, compare with the best so far

        key = {rank, position};  rank = counting ? {protected, ~count} : score

    While `counting`, a row passed through gets its vote, the count saturating, and the search finds
    the row with the most votes, of the oldest token on ties; protected ones only if all are. Else
    it finds the least score, of the oldest token on ties. Positions must differ, so no keys are
    equal. One row a cycle; the best is known two cycles after the last row was read.

    Parameters
    ----------
    slots, count_bits, position_bits, score_bits : int
        A score has more bits than a count.

    Members
    -------
    read : :py:`In({valid, slot})`
        Row to pass through.
    vote, search : :py:`In(1)`
        One cycle later: a vote for that row, and whether the search considers it.
    score : :py:`In(score_bits)`
        One cycle later: the score of its slot.
    counting : :py:`In(1)`
        Steady while rows pass.
    protected : :py:`In(position_bits)`
        Positions below it are protected.
    clear : :py:`In(1)`
        Begin a search, a cycle before its first row is compared or earlier.
    join, move : :py:`In(1)`
        Write a row: `token` with no votes into slot `last`, or into the best slot the row that was
        passed through last. Not while rows pass.
    last : :py:`In(range(slots))`
    token : :py:`In(position_bits)`
    best : :py:`Out({slot, position})`
        Of the least key.
    busy : :py:`Out(1)`
        A row was read that is not compared yet.
    """

    def __init__(self, slots: int, count_bits: int, position_bits: int, score_bits: int):
        self._slots, self._count_bits = slots, count_bits
        self._position_bits, self._score_bits = position_bits, score_bits
        best = data.StructLayout({"slot": range(slots), "position": position_bits})
        super().__init__(
            {
                "read": In(data.StructLayout({"valid": 1, "slot": range(slots)})),
                "vote": In(1),
                "search": In(1),
                "score": In(score_bits),
                "counting": In(1),
                "protected": In(position_bits),
                "clear": In(1),
                "join": In(1),
                "move": In(1),
                "last": In(range(slots)),
                "token": In(position_bits),
                "best": Out(best),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        row = data.StructLayout({"count": self._count_bits, "position": self._position_bits})
        m.submodules.rows = rows = memory.Memory(shape=row, depth=self._slots, init=[])
        get, put = rows.read_port(), rows.write_port()
        best = self.best

        found = Signal(row)
        arrived = Signal()
        arrived_slot = Signal.like(self.read.slot, reset_less=True)
        count = Signal(self._count_bits)
        protected = Signal()
        m.d.sync += [arrived.eq(self.read.valid), arrived_slot.eq(self.read.slot)]
        m.d.comb += [
            get.en.eq(self.read.valid),
            get.addr.eq(self.read.slot),
            found.eq(get.data),
            count.eq(found.count + (self.vote & ~found.count.all())),
            protected.eq(found.position < self.protected),
            self.busy.eq(arrived),
        ]

        passed = Signal()
        searched = Signal()
        slot = Signal.like(self.read.slot, name="passed_slot", reset_less=True)
        rank = Signal(self._score_bits, reset_less=True)
        position = Signal(self._position_bits, reset_less=True)
        m.d.sync += [passed.eq(arrived), searched.eq(arrived & self.search)]
        with m.If(arrived):
            m.d.sync += [
                slot.eq(arrived_slot),
                position.eq(found.position),
                rank.eq(Mux(self.counting, Cat(~count, protected), self.score)),
            ]

        none = Signal()
        best_rank = Signal.like(rank, reset_less=True)
        best_slot = Signal.like(slot, reset_less=True)
        best_position = Signal.like(position, reset_less=True)
        less = Signal()
        m.d.comb += [
            less.eq(Cat(position, rank) < Cat(best_position, best_rank)),
            best.slot.eq(best_slot),
            best.position.eq(best_position),
        ]
        with m.If(self.clear):
            m.d.sync += none.eq(1)
        with m.Elif(searched):
            m.d.sync += none.eq(0)
        with m.If(searched & (none | less)):
            m.d.sync += [best_rank.eq(rank), best_slot.eq(slot), best_position.eq(position)]

        m.d.comb += [
            put.en.eq((passed & self.counting) | self.join | self.move),
            put.addr.eq(Mux(self.join, self.last, Mux(self.move, best_slot, slot))),
            put.data.count.eq(Mux(self.join, 0, ~rank[: self._count_bits])),
            put.data.position.eq(Mux(self.join, self.token, position)),
        ]
        return m
