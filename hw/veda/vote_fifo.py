"""Scores of the slots, summed over heads as probabilities arrive (VEDA, section V)."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, memory

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class VoteFifo(Component[None]):
    """A memory of scores: each is read, added to and written back.

    ::

        cycle 0     1               2             3
        issue ─→ memory ─→ held.score ──→ + ─→ summed
                   ↑     held.probability │
                   └──────────────────────┘

    One issue a cycle. Two additions to the same slot may be issued in successive cycles: a sum that
    is not in the memory yet is forwarded.

    Parameters
    ----------
    slots : int
    probability_bits, score_bits : int
        Width of an addend, and width of a sum.
    """

    def __init__(self, slots: int, probability_bits: int, score_bits: int):
        self._probability_bits = probability_bits
        self._slots = slots
        self._score_bits = score_bits
        super().__init__()

    def ports(self) -> Ports:
        flags = {"valid": 1, "slot": range(self._slots)}
        addend = flags | {"probability": self._probability_bits, "add": 1}
        return {
            "issue": wire_in(
                data.StructLayout(addend | {"first": 1, "final": 1}),
                "``add`` the probability to a slot's score, or to 0 if it is the ``first`` one. "
                "Without ``add`` the score is only read; then nothing was added to it in the "
                "two cycles before. ``final`` is passed on.",
            ),
            "held": wire_out(
                data.StructLayout(addend | {"score": self._score_bits}),
                "Two cycles later, before the addition; the score is valid for issues without "
                "``add``.",
            ),
            "summed": wire_out(
                data.StructLayout(flags | {"final": 1, "score": self._score_bits}),
                "Three cycles later, after the addition.",
            ),
            "busy": wire_out(1, "An issue has not reached `summed` yet."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.scores = scores = memory.Memory(
            shape=unsigned(self._score_bits), depth=self._slots, init=[]
        )
        read_port, write_port = scores.read_port(), scores.write_port()
        issue, held, summed = self.issue, self.held, self.summed
        # Read, add, write in three cycles, one slot a cycle: VEDA's score buffer is a FIFO, since
        # each head passes all slots in the same order.
        valid = Signal(3)  # of cycles 1 to 3
        m.d.sync += valid.eq(valid << 1 | issue.valid)

        def register(value, name):
            result = Signal.like(value, name=name, reset_less=True)
            m.d.sync += result.eq(value)
            return result

        # The issue in cycles 1 (read), 2 (held) and 3 (summed).
        read = register(issue, "read")
        hold = {
            name: register(read[name], f"held_{name}") for name in ("slot", "probability", "add")
        }
        final = register(read.final, "held_final")
        summed_slot = register(hold["slot"], "summed_slot")
        total = Signal(self._score_bits)
        score = register(total, "summed_score")

        # Forwarding. The sum in cycle 3 was written to the memory one cycle ago; the issues one and
        # two cycles after it have read the memory before that.
        forward_to_sum = Signal()  # the issue in cycle 2
        forward_to_held = Signal()  # the issue in cycle 1
        m.d.comb += [
            forward_to_held.eq(valid[2] & (summed_slot == read.slot)),
            forward_to_sum.eq(valid[2] & (summed_slot == hold["slot"])),
        ]
        # The first head of a step begins new sums, so the memory need not be cleared.
        stored = Mux(read.first, 0, read_port.data)
        before = register(Mux(forward_to_held, score, stored), "held_score")
        m.d.comb += [
            # The nearer issue has the newer sum, so its forwarding comes last, in front of the
            # adder. A cache of one or two slots returns to a slot within the pipeline's length; a
            # longer one never does.
            total.eq(Mux(forward_to_sum, score, before) + hold["probability"]),
            read_port.en.eq(issue.valid),
            read_port.addr.eq(issue.slot),
            write_port.en.eq(valid[1] & hold["add"]),
            write_port.addr.eq(hold["slot"]),
            write_port.data.eq(total),
        ]
        m.d.comb += [held[name].eq(value) for name, value in hold.items()]
        m.d.comb += [
            held.valid.eq(valid[1]),
            held.score.eq(before),
            summed.valid.eq(valid[2]),
            summed.slot.eq(summed_slot),
            summed.final.eq(register(final, "summed_final")),
            summed.score.eq(score),
            self.busy.eq(valid[:2].any()),
        ]
        return m
