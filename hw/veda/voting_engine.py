"""Votes against rows of the KV cache, and which of them leaves (VEDA, sections III and V)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.component import Component
from hw.parameters import Parameters, require
from hw.veda.vote_buffer import VoteBuffer
from hw.veda.vote_fifo import VoteFifo
from hw.veda.vote_threshold import WEIGHT_BITS, VoteThreshold, VoteThresholdParameters

FRACTION = 24
ONE = 0x3C00


@dataclasses.dataclass(frozen=True)
class VotingEngineParameters(Parameters):
    """
    capacity
        Most live slots, 2 or more.
    heads
        Most heads.
    position_bits
        Of a token's position: a sequence has up to 2^position_bits tokens.
    count_bits
        Of a slot's vote count, 1 to 16.
    """

    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16

    def __post_init__(self):
        require(self.capacity >= 2, "capacity must be at least 2", self.capacity)
        require(self.heads >= 1, "heads must be at least 1", self.heads)
        wide = 1 << self.position_bits >= self.capacity if self.position_bits >= 0 else False
        rule = f"position_bits must be at least {(self.capacity - 1).bit_length()}"
        require(wide, rule, self.position_bits)
        rule = "count_bits must be between 1 and 16"
        require(1 <= self.count_bits <= 16, rule, self.count_bits)

    @classmethod
    def presets(cls) -> dict[str, "VotingEngineParameters"]:
        return {
            "small": cls(capacity=8, heads=2, position_bits=6, count_bits=4),
            "default": cls(),
            "paper": cls(capacity=4096, heads=32),
        }

    @property
    def threshold(self) -> VoteThresholdParameters:
        return VoteThresholdParameters(self.capacity, FRACTION + 1, self.heads << FRACTION)

    @property
    def latency(self) -> int:
        """Cycles from a step's last probability to its report, with no vote and no eviction."""
        return self.PASSING + 1

    @property
    def idle_bound(self) -> int:
        """A pass over all slots, behind the threshold."""
        return self.step_cycles(self.capacity, 0, True, 0)

    PASSING = 4
    """Cycles from the last slot of a pass to its end."""

    def step_cycles(self, length: int, heads: int, votes: bool, evictions: int) -> int:
        """Cycles of a step with `length` slots live, the new one included, when nothing stalls."""
        passes = max(int(votes), evictions)
        return (
            2
            + heads * length
            + self.PASSING
            + votes * self.threshold.latency
            + sum(length - number + self.PASSING for number in range(passes))
            + evictions
            + max(1, evictions)
        )

    @property
    def job_layout(self) -> data.StructLayout:
        """What a step shall do.

        ``restart`` a new sequence; ``vote`` cast votes; ``evict`` while more than ``target`` slots
        are live; ``protected`` positions below it leave last; ``a``, ``b`` times 2^12; ``heads``,
        where 0 means 1.
        """
        return data.StructLayout(
            {
                "restart": 1,
                "vote": 1,
                "evict": 1,
                "target": range(self.capacity + 1),
                "protected": self.position_bits,
                "a": WEIGHT_BITS,
                "b": WEIGHT_BITS,
                "heads": range(self.heads + 1),
            }
        )

    @property
    def report_layout(self) -> data.StructLayout:
        """What a step did.

        ``evict`` whether a slot leaves, ``slot`` which, ``position`` of its token, both 0 if none
        does; ``length`` slots are live then; ``invalid`` if one of the step's probabilities was;
        ``last`` on the step's last report.
        """
        return data.StructLayout(
            {
                "evict": 1,
                "slot": range(self.capacity),
                "position": self.position_bits,
                "length": range(self.capacity + 1),
                "invalid": 1,
                "last": 1,
            }
        )


class VotingEngine(Component):
    """Each token votes against the slots it pays little attention to; the most voted leaves.

        s[j] = sum over heads of p[j],   T = a mean(s) - b std(s)
        T >= 0: every slot with s[j] < T gets a vote
        T < 0:  the slot of the least s gets one, of the oldest token on ties

    ::

        i ─→ VoteFifo: s += p ─→ VoteBuffer: least s          heads · l cycles
                │ └────────────→ VoteThreshold: S1, S2 ─→ T   4 n - 11 cycles
                └─→ s < T ─────→ VoteBuffer: votes, most ─→ o  l cycles

    A step is one token. It begins with a `job`, on which the new token joins in the slot after the
    last, with a count of 0 and the next position, from 0 after a `restart`. Then `i` gives the
    probabilities of all heads, each for all l live slots in order of their numbers. Then the votes
    are cast, and while more than `target` slots are live and the job lets them, the slot with the
    most votes leaves, of the oldest token on ties, and the token in the last slot moves into its
    slot. Each slot that leaves is one report; a step in which none does has one report.

    All is exact: a probability is a multiple of 2^-24, and sums, mean, standard deviation and the
    comparison are made on integers without rounding. Counts saturate. A NaN, or
    a probability above 1 or with a sign, makes a step ``invalid``: it casts no vote.

    Overflow: a cache of `capacity` slots evicts even where the job does not ask for it, as the next
    token would have no slot. Protected tokens leave if there are no others. Positions wrap around
    after 2^position_bits tokens.

    Latency, n = ceil(log2(capacity heads)) + 39: with l slots live, 4 n + l - 2 cycles from the
    last probability to a voting step's report, one more if a slot leaves; l + 6 for each further
    slot that leaves. Throughput: a probability a cycle.

    Handshake: ``i.ready`` is high from two cycles after a job to its last probability; then
    ``job.ready`` after the last report is taken. All outputs depend on registers only.

    In the paper the scores' FIFO has 16 bits a slot; here it has 25 + ceil(log2 heads), so that no
    rounding decides about a vote. Counts stay on the chip, of one layer.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
    i : :py:`In(stream.Signature(16))`
        Probabilities, FP16.
    o : :py:`Out(stream.Signature(parameters.report_layout))`
        Reports.
    """

    summary = "Votes of every token against rows of the cache, and which row leaves it"
    source = "VEDA, sections III and V"

    def __init__(self, parameters: VotingEngineParameters):
        self._parameters = parameters
        super().__init__(
            {
                "job": In(stream.Signature(parameters.job_layout)),
                "i": In(stream.Signature(FP16.width)),
                "o": Out(stream.Signature(parameters.report_layout)),
            }
        )

    @property
    def parameters(self) -> VotingEngineParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        score_bits = p.threshold.score_bits
        m.submodules.fifo = fifo = VoteFifo(p.capacity, FRACTION + 1, score_bits)
        m.submodules.buffer = buffer = VoteBuffer(
            p.capacity, p.count_bits, p.position_bits, score_bits
        )
        m.submodules.threshold = threshold = VoteThreshold(p.threshold)

        job = Signal(p.job_layout, reset_less=True)
        length = Signal(range(p.capacity + 1))  # live slots
        token = Signal(p.position_bits)  # tokens joined, the next one's position
        slot = Signal(range(p.capacity))
        next_slot = Signal(range(p.capacity + 1))
        at_end = Signal()
        heads_left = Signal(range(p.heads + 1), reset_less=True)
        first_head = Signal(reset_less=True)
        final_head = Signal()
        invalid = Signal(reset_less=True)
        evicting = Signal()
        evicted = Signal(reset_less=True)
        m.d.comb += [
            next_slot.eq(slot + 1),
            at_end.eq(next_slot == length),
            final_head.eq(~heads_left[1:].any()),
            evicting.eq((job.evict & (length > job.target)) | (length == p.capacity)),
        ]

        # Slots pass through twice: to sum scores up, then to count votes.
        counting = Signal(reset_less=True)
        voting = Signal(reset_less=True)
        moving = Signal()
        m.d.comb += moving.eq(fifo.busy | buffer.busy)
        self._pass(m, fifo, buffer, threshold, counting, voting)
        m.d.comb += [
            fifo.issue.slot.eq(slot),
            fifo.issue.first.eq(first_head),
            fifo.issue.final.eq(final_head),
            fifo.issue.add.eq(~counting),
            threshold.length.eq(length),
            threshold.a.eq(job.a),
            threshold.b.eq(job.b),
            buffer.protected.eq(job.protected),
            buffer.token.eq(token),
            self.o.payload.evict.eq(evicted),
            self.o.payload.length.eq(length),
            self.o.payload.invalid.eq(invalid),
            self.o.payload.last.eq(~evicting),
        ]
        with m.If(evicted):
            m.d.comb += [
                self.o.payload.slot.eq(buffer.best.slot),
                self.o.payload.position.eq(buffer.best.position),
            ]
        with m.If(fifo.issue.valid):
            m.d.sync += slot.eq(Mux(at_end, 0, next_slot))

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += job.eq(self.job.payload)
                with m.If(self.job.valid):
                    with m.If(self.job.payload.restart):
                        m.d.sync += [length.eq(0), token.eq(0)]
                    m.next = "JOIN"
            with m.State("JOIN"):
                m.d.comb += [buffer.join.eq(1), buffer.clear.eq(1), threshold.clear.eq(1)]
                m.d.sync += [
                    length.eq(length + 1),
                    token.eq(token + 1),
                    heads_left.eq(job.heads),
                    first_head.eq(1),
                    invalid.eq(0),
                    evicted.eq(0),
                    counting.eq(0),
                ]
                m.next = "SUM"
            with m.State("SUM"):
                m.d.comb += [self.i.ready.eq(1), fifo.issue.valid.eq(self.i.valid)]
                with m.If(self.i.valid):
                    m.d.sync += invalid.eq(invalid | (self.i.payload > ONE))
                    with m.If(at_end):
                        m.d.sync += [heads_left.eq(heads_left - 1), first_head.eq(0)]
                        with m.If(final_head):
                            m.next = "SUMMED"
            with m.State("SUMMED"):
                with m.If(~moving):
                    m.d.sync += [voting.eq(0), counting.eq(1)]
                    with m.If(job.vote & ~invalid):
                        m.d.comb += threshold.start.eq(1)
                        m.d.sync += voting.eq(1)
                        m.next = "THRESHOLD"
                    with m.Elif(evicting):
                        m.next = "COUNT"
                    with m.Else():
                        m.next = "REPORT"
            with m.State("THRESHOLD"):
                with m.If(threshold.done):
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += [fifo.issue.valid.eq(1), buffer.clear.eq(slot == 0)]
                with m.If(at_end):
                    m.next = "COUNTED"
            with m.State("COUNTED"):
                with m.If(~moving):
                    m.d.sync += voting.eq(0)
                    m.next = "REPORT"
                    with m.If(evicting):
                        m.next = "MOVE"
            with m.State("MOVE"):
                m.d.comb += buffer.move.eq(1)
                m.d.sync += [length.eq(length - 1), evicted.eq(1)]
                m.next = "REPORT"
            with m.State("REPORT"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
                    with m.If(evicting):
                        m.next = "COUNT"
        m.d.comb += buffer.last.eq(length)
        return m

    def _pass(self, m: Module, fifo, buffer, threshold, counting: Signal, voting: Signal) -> None:
        """What becomes of a slot on its way, from the sum of scores to its row."""
        m.d.comb += [
            fifo.issue.number.eq(_fixed(self.i.payload)),
            threshold.add.eq(fifo.held.valid & fifo.held.add),
            threshold.number.eq(fifo.held.number),
            threshold.square.eq(fifo.summed.valid & fifo.summed.final & ~counting),
            threshold.score.eq(fifo.summed.score),
            buffer.read.valid.eq(fifo.held.valid),
            buffer.read.slot.eq(fifo.held.slot),
            buffer.search.eq(counting | fifo.summed.final),
            buffer.score.eq(fifo.summed.score),
            buffer.counting.eq(counting),
        ]
        least = Signal.like(buffer.best.slot, reset_less=True)
        with m.If(threshold.done):
            m.d.sync += least.eq(buffer.best.slot)
        chosen = Signal()
        vote = Signal()
        with m.If(threshold.negative):
            m.d.comb += chosen.eq(fifo.held.slot == least)
        with m.Else():
            m.d.comb += chosen.eq(~threshold.nobody & (fifo.held.score <= threshold.limit))
        m.d.sync += vote.eq(chosen & voting)
        m.d.comb += buffer.vote.eq(vote)


def _fixed(p) -> Cat:
    """A probability in units of 2^-24."""
    field = p[FP16.mantissa : FP16.mantissa + 4]
    hidden = field.any()
    shift = (field - hidden)[:4]  # a subnormal has the smallest exponent
    return (Cat(p[: FP16.mantissa], hidden) << shift)[: FRACTION + 1]
