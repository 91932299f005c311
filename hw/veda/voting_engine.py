"""Votes against rows of the KV cache, and their eviction (VEDA, sections III and V)."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.attention.probability import FRACTION, fixed, is_probability
from hw.component import Component
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.veda.context_memory import ContextMemory
from hw.veda.place_memory import PlaceWords, access_layout
from hw.veda.vote_buffer import VoteBuffer
from hw.veda.vote_fifo import VoteFifo
from hw.veda.vote_threshold import VoteThreshold
from hw.veda.voting_engine_parameters import VotingEngineParameters
from hw.veda.voting_step import VotingStep


class VotingEngine(Component[VotingEngineParameters]):
    """Each token votes against the slots it pays little attention to; the most voted is evicted.

        s[j] = sum over heads of p[j],   T = a mean(s) - b std(s)
        T >= 0: every slot with s[j] < T gets a vote
        T < 0:  the slot of the least s gets one, of the oldest token on ties

    ::

        i ─→ VoteFifo: s += p ─→ VoteBuffer: least s          heads · l cycles
                │ └────────────→ VoteThreshold: S1, S2 ─→ T   4 n - 11 cycles
                └─→ s < T ─────→ VoteBuffer: votes, most ─→ o  l cycles

        IDLE ─→ JOIN ─→ SUM ─→ SUMMED ─→ THRESHOLD ─→ COUNT ─→ COUNTED ─→ MOVE ─→ REPORT ─→ IDLE
                                 ↑└→ SURVEY ─┘

    With `block` a step may have several ``tokens`` of a prompt. They all join first; `i` then
    brings for each head the probabilities of every token, for the slots up to the token's. Scores
    are kept for each token, which votes when all have come: SURVEY makes the sums over its scores,
    and REPORT goes to the next token's SUMMED. Only the last one evicts.

    A step without votes skips THRESHOLD; with neither votes nor an eviction it goes on with REPORT
    at once; without an eviction it skips MOVE. REPORT goes back to COUNT for the next eviction.

    A step is one token. It begins with a `command`: the new token joins in the slot after the last,
    with no votes and the next position, 0 after a `restart`. Then `i` brings the probabilities of
    all heads, each for all l live slots in order of their numbers. Then the votes are cast. While
    more than `target` slots are live and the command allows it, the slot with the most votes is
    evicted, of the oldest token on ties, and the token in the last slot moves into it. Each
    eviction is one report; a step without evictions has one report.

    All arithmetic is exact: a probability is a multiple of 2^-24, and sums, mean, standard
    deviation and the comparison are integers without rounding. Counts saturate. A NaN, a negative
    probability or one above 1 makes a step ``invalid``: it casts no vote.

    Overflow: a cache of `capacity` slots evicts even where the command does not allow it, as the
    next token would have no slot. Protected tokens are evicted if there are no others. Positions
    wrap around after 2^position_bits tokens.

    Latency, n = ceil(log2(capacity heads)) + 39: with l slots live, 4 n + l - 2 cycles from the
    last probability to a voting step's report, one more with an eviction; l + 6 for each further
    eviction. A block's tokens take 4 n + 2 l - 1 each, the first one 3 more. Throughput: a
    probability a cycle.

    Handshake: ``i.ready`` is high from two cycles after a command to its last probability;
    ``command.ready`` after the last report is accepted. All outputs depend on registers only.

    In the paper the scores' FIFO has 16 bits a slot; here it has 25 + ceil(log2 heads), so that
    rounding never decides a vote. The counts of all contexts are kept on the chip; steps of
    different contexts come in any order, and a sequence goes on where its last step ended.

    Parameters
    ----------
    moved : bool
        Whether contexts are places whose state is moved to a memory and back.

    Examples
    --------
    >>> from hw.veda.voting_engine import VotingEngine, VotingEngineParameters
    >>> parameters = VotingEngineParameters(capacity=1024, heads=8)
    >>> parameters.threshold.latency  # cycles from the last sum to the threshold
    197
    >>> parameters.step_cycles(length=1000, heads=8, votes=True, evictions=1)
    9209
    >>> VotingEngine(parameters).o.payload.shape().size
    49
    """

    summary = "Votes of every token against rows of the cache, and which row is evicted"
    source = "VEDA, sections III and V"

    def __init__(self, parameters: VotingEngineParameters, moved: bool = False):
        self._moved = moved
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        moved = {
            "access": wire_in(access_layout(p.contexts, p.capacity), "The mover's."),
            "given": wire_in(p.state_layout, "State of the slot, or of the sequence."),
            "kept": wire_out(p.state_layout, "The same, of the place of `access`."),
        }
        return {
            "command": stream_in(p.command_layout, "What to do with the probabilities of a step."),
            "i": stream_in(FP16, "Probabilities."),
            "o": stream_out(p.report_layout, "Reports."),
            **(moved if self._moved else {}),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        score_bits = p.threshold.score_bits
        # Scores of a block's tokens are side by side: | token | slot |.
        scores = p.block << (p.capacity - 1).bit_length() if p.block > 1 else p.capacity
        m.submodules.fifo = fifo = VoteFifo(scores, FRACTION + 1, score_bits)
        m.submodules.buffer = buffer = VoteBuffer(
            p.capacity, p.count_bits, p.position_bits, score_bits, p.contexts, self._moved
        )
        sequence = data.StructLayout({"length": range(p.capacity + 1), "token": p.position_bits})
        sequences: Any = (
            PlaceWords(p.contexts, p.capacity, sequence)
            if self._moved
            else ContextMemory(p.contexts, sequence)
        )
        m.submodules.sequences = sequences
        m.submodules.threshold = threshold = VoteThreshold(p.threshold)
        r = VotingStep(p.command_layout, p.capacity, p.heads, p.position_bits, p.block)
        m.d.comb += [
            r.next_slot.eq(r.slot + 1),
            r.last_slot.eq(r.next_slot == r.length),
            r.final_head.eq(~r.heads_left[1:].any()),
            r.full.eq(r.length == p.capacity),
            # A full cache evicts without being told, or the next token would have no slot.
            r.evicting.eq((r.command.evict & (r.length > r.command.target)) | r.full),
            r.busy.eq(fifo.busy | buffer.busy),
        ]
        # Slots pass through fifo and buffer once a head, to sum the scores, and once to count votes
        # and find the most; without votes, once for each eviction.
        self._pass(m, r, fifo, buffer, threshold)
        m.d.comb += [
            fifo.issue.slot.eq(r.slot),
            fifo.issue.first.eq(r.first_head),
            fifo.issue.final.eq(r.final_head),
            fifo.issue.add.eq(~r.counting),
            threshold.length.eq(r.length),
            threshold.a.eq(r.command.a),
            threshold.b.eq(r.command.b),
            buffer.protected.eq(r.command.protected),
            buffer.token.eq(r.token),
            buffer.context.eq(r.command.context),
            # A sequence's state is in registers during its step.
            sequences.context.eq(self.command.payload.context),
            sequences.write.context.eq(r.command.context),
            sequences.write.word.length.eq(r.length),
            sequences.write.word.token.eq(r.token),
        ]
        if self._moved:
            self._move(m, buffer, ("count", "position"))
            self._move(m, sequences, ("length", "token"))
        self._report(m, r, buffer)
        if p.block > 1:
            self._block(m, r, fifo, threshold)
        with m.If(fifo.issue.valid):
            m.d.sync += r.slot.eq(Mux(r.last_slot, 0, r.next_slot))

        with m.FSM():
            self._begin(m, r, buffer, threshold, sequences.word)
            self._sum(m, r, fifo)
            self._vote(m, r, fifo, buffer, threshold)
            self._evict(m, r, buffer, sequences)
        m.d.comb += buffer.last.eq(r.length)
        return m

    def _move(self, m: Module, part, names: tuple[str, ...]) -> None:
        """The mover's access to a part that holds these fields of the state."""
        m.d.comb += part.access.eq(self.access)
        for name in names:
            m.d.comb += [
                part.given[name].eq(self.given[name]),
                self.kept[name].eq(part.kept[name]),
            ]

    def _report(self, m: Module, r: VotingStep, buffer: VoteBuffer) -> None:
        """What the step did.

        A report is offered after its eviction, so `evicting` means that another one follows.
        """
        m.d.comb += [
            self.o.payload.evict.eq(r.evicted),
            self.o.payload.length.eq(r.length),
            self.o.payload.invalid.eq(r.is_invalid),
            self.o.payload.last.eq(~r.evicting),
            self.o.payload.context.eq(r.command.context),
        ]
        with m.If(r.evicted):
            m.d.comb += [
                self.o.payload.slot.eq(buffer.best.slot),
                self.o.payload.position.eq(buffer.best.position),
            ]

    def _begin(
        self, m: Module, r: VotingStep, buffer: VoteBuffer, threshold: VoteThreshold, sequence
    ) -> None:
        """From a command to the new token's slot."""
        with m.State("IDLE"):
            # The context's sequence goes on, or a new one begins with an empty cache.
            m.d.comb += self.command.ready.eq(1)
            m.d.sync += [
                r.command.eq(self.command.payload),
                r.length.eq(sequence.length),
                r.token.eq(sequence.token),
            ]
            with m.If(self.command.valid):
                with m.If(self.command.payload.restart):
                    m.d.sync += [r.length.eq(0), r.token.eq(0)]
                m.next = "JOIN"
        with m.State("JOIN"):
            # The token takes the slot after the last.
            m.d.comb += [buffer.join.eq(1), buffer.clear.eq(1), threshold.clear.eq(1)]
            m.d.sync += [
                r.length.eq(r.length + 1),
                r.token.eq(r.token + 1),
                r.heads_left.eq(r.command.heads),
                r.first_head.eq(1),
                r.invalid.eq(0),
                r.evicted.eq(0),
                r.counting.eq(0),
            ]
            m.next = "SUM"
            if self.parameters.block > 1:  # the tokens join one after the other
                self._next_token(m, r)
                with m.If(r.number == 0):
                    m.d.sync += r.first_length.eq(r.length + 1)
                with m.Elif(r.last_token):
                    m.d.sync += r.length.eq(r.first_length)
                with m.If(~r.last_token):
                    m.next = "JOIN"

    def _sum(self, m: Module, r: VotingStep, fifo: VoteFifo) -> None:
        """The scores of all slots."""
        block = self.parameters.block
        with m.State("SUM"):
            # A probability a cycle, all slots of each head.
            m.d.comb += [self.i.ready.eq(1), fifo.issue.valid.eq(self.i.valid)]
            with m.If(self.i.valid):
                of_token = r.invalid.bit_select(r.number, 1) if block > 1 else r.invalid
                m.d.sync += of_token.eq(r.is_invalid | ~is_probability(self.i.payload))
                with m.If(self._row_ends(m, r)):
                    m.d.sync += [r.heads_left.eq(r.heads_left - 1), r.first_head.eq(0)]
                    with m.If(r.final_head):
                        m.next = "SUMMED"

    def _vote(
        self, m: Module, r: VotingStep, fifo: VoteFifo, buffer: VoteBuffer, threshold: VoteThreshold
    ) -> None:
        """The threshold, and a pass that counts votes and finds the most."""
        with m.State("SUMMED"):
            # Wait for the last sum. Without votes the most voted is searched alone.
            with m.If(~r.busy):
                m.d.sync += [r.voting.eq(0), r.counting.eq(1)]
                with m.If(r.command.vote & ~r.is_invalid):
                    m.d.comb += threshold.start.eq(1)
                    m.d.sync += r.voting.eq(1)
                    m.next = "THRESHOLD"
                with m.Elif(r.evicting):
                    m.next = "COUNT"
                with m.Else():
                    m.next = "REPORT"
                if self.parameters.block > 1:
                    m.d.sync += r.surveying.eq(0)
                    # Probabilities of all tokens came mixed, so each one's sums are still to make.
                    several = r.command.tokens > 1
                    with m.If(r.command.vote & ~r.is_invalid & several & ~r.surveying):
                        m.d.comb += [
                            threshold.start.eq(0),
                            threshold.clear.eq(1),
                            buffer.clear.eq(1),
                        ]
                        m.d.sync += [r.voting.eq(0), r.counting.eq(0), r.surveying.eq(1)]
                        m.next = "SURVEY"
        if self.parameters.block > 1:
            with m.State("SURVEY"):
                m.d.comb += fifo.issue.valid.eq(1)
                with m.If(r.last_slot):
                    m.next = "SUMMED"
        with m.State("THRESHOLD"):
            # The threshold's root and quotient take a cycle for each bit.
            with m.If(threshold.done):
                m.next = "COUNT"
        with m.State("COUNT"):
            # A slot a cycle, with the search for the most voted begun anew.
            m.d.comb += [fifo.issue.valid.eq(1), buffer.clear.eq(r.slot == 0)]
            with m.If(r.last_slot):
                m.next = "COUNTED"
        with m.State("COUNTED"):
            # Wait for the last count. Votes are cast once, whatever is evicted then.
            with m.If(~r.busy):
                m.d.sync += r.voting.eq(0)
                m.next = "REPORT"
                with m.If(r.evicting):
                    m.next = "MOVE"

    def _evict(
        self, m: Module, r: VotingStep, buffer: VoteBuffer, sequences: ContextMemory
    ) -> None:
        """The eviction and its report, until none is left to evict."""
        with m.State("MOVE"):
            # The last slot's row moves into the evicted slot.
            m.d.comb += buffer.move.eq(1)
            m.d.sync += [r.length.eq(r.length - 1), r.evicted.eq(1)]
            m.next = "REPORT"
        with m.State("REPORT"):
            # After the eviction the counts of the others are searched again.
            m.d.comb += self.o.valid.eq(1)
            with m.If(self.o.ready):
                m.next = "IDLE"
                with m.If(r.evicting):
                    m.next = "COUNT"
                with m.Else():
                    m.d.comb += sequences.write.valid.eq(1)
                if self.parameters.block > 1:
                    with m.If(~r.evicting):
                        self._next_token(m, r)
                    with m.If(~r.last_token):  # the block's next token votes
                        m.d.sync += [r.length.eq(r.length + 1), r.counting.eq(0)]
                        m.d.comb += sequences.write.valid.eq(0)
                        m.next = "SUMMED"

    def _next_token(self, m: Module, r: VotingStep) -> None:
        """Count the tokens of a block."""
        m.d.sync += r.number.eq(Mux(r.last_token, 0, r.number + 1))

    def _row_ends(self, m: Module, r: VotingStep) -> Value:
        """Whether a head's last probability is accepted, of the block's last token."""
        if self.parameters.block == 1:
            return r.last_slot
        with m.If(r.last_slot):  # a head has a row of probabilities for each token
            self._next_token(m, r)
            m.d.sync += r.length.eq(Mux(r.last_token, r.first_length, r.length + 1))
        return r.last_slot & r.last_token

    def _block(self, m: Module, r: VotingStep, fifo: VoteFifo, threshold: VoteThreshold) -> None:
        """What differs with several tokens.

        Their rows of probabilities come in turn, so that only when all have come, sums over each
        one's scores are made. Only the last token evicts.
        """
        m.d.comb += [
            r.last_token.eq(r.number + 1 >= r.command.tokens),
            r.is_invalid.eq((r.invalid >> r.number)[0]),
            fifo.issue.slot.eq(Cat(r.slot, r.number)),
        ]
        with m.If(r.surveying):
            m.d.comb += [
                fifo.issue.add.eq(0),
                fifo.issue.probability.eq(0),
                threshold.add.eq(fifo.held.valid),
                threshold.probability.eq(fifo.held.score),
            ]
        with m.If(~r.last_token):
            m.d.comb += [r.evicting.eq(0), self.o.payload.last.eq(0)]

    def _pass(self, m: Module, r: VotingStep, fifo, buffer, threshold) -> None:
        """A slot's way through the pipeline: its score, its vote, its row.

        ::

            cycle     0      1      2                      3                4
            fifo      issue  read   held: compare with T   summed
            threshold               S1 += p                square           S2 += square
            buffer                  read                   count + vote     compare, write back
        """
        m.d.comb += [
            fifo.issue.probability.eq(fixed(self.i.payload)),
            threshold.add.eq(fifo.held.valid & fifo.held.add),
            threshold.probability.eq(fifo.held.probability),
            threshold.add_square.eq(fifo.summed.valid & fifo.summed.final & ~r.counting),
            threshold.score.eq(fifo.summed.score),
            buffer.read.valid.eq(fifo.held.valid),
            buffer.read.slot.eq(fifo.held.slot),
            # While scores are summed, the search is for the least score, over the last head's sums,
            # which are complete. It is used if the threshold is below 0: then that slot alone gets
            # the vote.
            buffer.search.eq(r.counting | fifo.summed.final),
            buffer.score.eq(fifo.summed.score),
            buffer.counting.eq(r.counting),
        ]
        # The slot of the least score, kept for a threshold below 0: the next pass searches anew.
        least = Signal.like(buffer.best.slot, reset_less=True)
        with m.If(threshold.done):
            m.d.sync += least.eq(buffer.best.slot)
        below = Signal()
        vote = Signal()
        with m.If(threshold.negative):
            m.d.comb += below.eq(fifo.held.slot[: len(least)] == least)
        with m.Else():
            m.d.comb += below.eq(~threshold.no_votes & (fifo.held.score <= threshold.limit))
        m.d.sync += vote.eq(below & r.voting)
        m.d.comb += buffer.vote.eq(vote)
