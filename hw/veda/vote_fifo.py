"""Scores of the slots, summed over heads as they stream by (VEDA, section V)."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from hw.component import Component


class VoteFifo(Component):
    """A memory of scores, in which a slot's score is read, added to and written back.

    ::

        cycle 0     1        2          3
        issue ─→ memory ─→ held ──→ + ─→ summed
                   ↑       number   │
                   └────────────────┘

    One issue a cycle. Additions to the same slot may follow each other at once: sums that are not
    in the memory yet are forwarded.

    Parameters
    ----------
    slots : int
    number_bits, score_bits : int
        Of what is added, and of a sum.

    Members
    -------
    issue : :py:`In({valid, slot, number, add, first, final})`
        ``add`` the number to a slot's score, or to 0 if it is the ``first`` one. Without ``add``
        the score is read, and was not added to in the two cycles before. ``final`` is passed on.
    held : :py:`Out({valid, slot, number, add, score})`
        Two cycles later, before the addition; the score is for issues without ``add``.
    summed : :py:`Out({valid, slot, final, score})`
        Three cycles later, after the addition.
    busy : :py:`Out(1)`
        An issue is on its way and not at `summed` yet.
    """

    def __init__(self, slots: int, number_bits: int, score_bits: int):
        self._slots, self._score_bits = slots, score_bits
        flags = {"valid": 1, "slot": range(slots)}
        number = flags | {"number": number_bits, "add": 1}
        self._issue = data.StructLayout(number | {"first": 1, "final": 1})
        super().__init__(
            {
                "issue": In(self._issue),
                "held": Out(data.StructLayout(number | {"score": score_bits})),
                "summed": Out(data.StructLayout(flags | {"final": 1, "score": score_bits})),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.scores = scores = memory.Memory(
            shape=unsigned(self._score_bits), depth=self._slots, init=[]
        )
        get, put = scores.read_port(), scores.write_port()
        issue, held, summed = self.issue, self.held, self.summed
        valid = Signal(3)  # by cycle
        m.d.sync += valid.eq(valid << 1 | issue.valid)

        def later(value, name):
            register = Signal.like(value, name=name, reset_less=True)
            m.d.sync += register.eq(value)
            return register

        read = later(issue, "read")
        waiting = {name: later(read[name], f"held_{name}") for name in ("slot", "number", "add")}
        final = later(read.final, "held_final")
        slot = later(waiting["slot"], "summed_slot")
        total = Signal(self._score_bits)
        score = later(total, "summed_score")

        # What was written in the last two cycles was not read.
        fresh = Signal()
        stale = Signal()
        m.d.comb += [
            fresh.eq(valid[2] & (slot == read.slot)),
            stale.eq(valid[2] & (slot == waiting["slot"])),
        ]
        before = later(Mux(fresh, score, Mux(read.first, 0, get.data)), "held_score")
        m.d.comb += [
            total.eq(Mux(stale, score, before) + waiting["number"]),
            get.en.eq(issue.valid),
            get.addr.eq(issue.slot),
            put.en.eq(valid[1] & waiting["add"]),
            put.addr.eq(waiting["slot"]),
            put.data.eq(total),
        ]
        m.d.comb += [held[name].eq(value) for name, value in waiting.items()]
        m.d.comb += [
            held.valid.eq(valid[1]),
            held.score.eq(before),
            summed.valid.eq(valid[2]),
            summed.slot.eq(slot),
            summed.final.eq(later(final, "summed_final")),
            summed.score.eq(score),
            self.busy.eq(valid[:2].any()),
        ]
        return m
