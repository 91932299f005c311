"""A lane: dot products of chunks as they arrive, and which tokens to prune (Token-Picker, 4.1)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring

from hw.arith.adder_tree import AdderTree, AdderTreeParameters
from hw.component import Component
from hw.layout import position
from hw.ports import Ports, stream_in, stream_out
from hw.topick.chunk_multiplier import products as multiply_chunks
from hw.topick.chunk_pipeline import Chunk, stage
from hw.topick.chunk_requests import ChunkRequests
from hw.topick.lane_outputs import deliver
from hw.topick.pe_lane_parameters import PeLaneParameters
from hw.topick.pec import Pec
from hw.topick.rpdu import Rpdu
from hw.topick.scoreboard import Scoreboard
from hw.topick.weighted_sums import WeightedSums

__all__ = ["PeLane", "PeLaneParameters"]


class PeLane(Component[PeLaneParameters]):
    """Step 0: scores of keys, chunk by chunk, in any order. Step 1: sum of p v.

        s^b = 2^(chunk bits) s^(b-1) + q . (chunk b of k),   t = floor(s^b 2^r c)
        prune  <=>  t + M_max + (-log2 thr) < log2 denominator

    ::

        token ─→ first chunks ─→ request ─→ (memory) ─→ response
                      ↑ next chunks                        │
        scoreboard: s, term ←────────────────────┐   q ─→ × + ─→ s ─→ t ─→ Rpdu, Pec ─→ difference
                 └────────────────────────────── │ ────────↑               │        └─→ decided
                                                 └─────────────────────────┘
        value (p, chunks of v) ─→ × ─→ sums ─→ o

    A `command` starts a head. Its tokens arrive in the order in which they are to be examined; each
    gets a slot of the scoreboard, and its first chunk is requested. Responses may arrive at any
    time and in any order. For each response the lane takes one beat of ``log_denominator`` and
    decides: prune the token, request its next chunk, or keep it. Except for a token pruned at its
    first chunk, each decision outputs a ``difference``; the sum of all differences is the sum of
    the latest terms of all tokens that are not pruned. The beat of ``log_denominator`` may be older
    than the latest differences: at any time the denominator is at most the exact one. Each token
    makes one beat of ``decided``, when it is pruned or kept. A head of 0 tokens has no decision:
    its command is taken, and there is no beat of ``decided`` and no ``last``.

    Requests for next chunks precede those for first chunks, and there is room for one of each slot,
    so no response ever waits for a request: a full scoreboard stops first chunks only. A response
    that was not requested waits.

    Step 1: chunks of values, in any order, each with its token's probability, use the same
    multipliers; the products are added to the sums, shifted left by the number of bits below the
    chunk. Values may arrive during the scores of the next head; responses have priority.

    Exact: s, and the sums unless the probabilities add up to 2 or more. t, terms and logarithms are
    rounded such that no token whose probability exceeds the threshold is pruned: the golden
    model's lane replays every decision.

    With the parameter `whole`, a head whose command says so takes its keys whole: each response is
    chunk 0 with the others beside it, its token is kept, whatever the denominator is, and the
    difference is its term. Values may come whole in any head.

    Latency: 8 cycles from a response to its difference or score, 10 to its token's next request; 2
    from a value's last chunk to the sums. Throughput: one chunk per cycle, of keys or values,
    or one whole key or value.

    Handshake: an output that is not taken, other than ``request``, stops the lane, and so does a
    decision without ``log_denominator``. ``response.ready`` depends on its payload,
    ``value.ready`` on ``response``, and all of them on the outputs' ready. `command.ready` is high
    when all tokens of the last head are decided.

    Examples
    --------
    >>> from hw.topick.pe_lane import PeLaneParameters
    >>> parameters = PeLaneParameters(d=64, bits=12, chunk_bits=4, entries=64)
    >>> parameters.latency, parameters.request_latency
    (8, 10)
    >>> [(name, field.offset, field.width) for name, field in parameters.tag_layout]
    [('token', 0, 12), ('chunk', 12, 2), ('slot', 14, 6)]
    """

    summary = "Scores of keys chunk by chunk in any order, pruning, and weighted sums of values"
    source = "Token-Picker, section 4.1 and Fig. 7"

    def ports(self) -> Ports:
        p = self.parameters
        ports = {
            "command": stream_in(p.command_layout, "Heads, each with its query."),
            "token": stream_in(
                position(p.token_bits), "Tokens in the order in which their keys are read."
            ),
            "request": stream_out(p.tag_layout, "Chunks of keys to read."),
            "response": stream_in(p.response_layout, "These chunks, in any order."),
            "log_denominator": stream_in(p.denominator_layout, "One for each response."),
            "difference": stream_out(p.difference_layout, "Changes of the denominator."),
            "decided": stream_out(p.decided_layout, "One for each token."),
            "value": stream_in(p.value_layout, "Kept tokens with their scores, for the values."),
            "o": stream_out(
                p.sum_layout,
                "Sums of p v, in units of 2^-probability_bits of v's codes, and the sum of p.",
            ),
        }
        if p.observe:
            ports["observed"] = stream_out(
                p.observed_layout,
                "Only with `observe`: one for each response, in the order of the decisions.",
            )
        return ports

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.scoreboard = scoreboard = Scoreboard(p.scoreboard)
        m.submodules.requests = requests = ChunkRequests(p.token_bits, p.chunks, p.entries)
        # Values share the multipliers with keys and have accumulators for each element.
        m.submodules.sums = sums = WeightedSums(p)
        wiring.connect(m, wiring.flipped(self.token), requests.token)
        wiring.connect(m, scoreboard.free, requests.free)
        wiring.connect(m, requests.o, wiring.flipped(self.request))
        wiring.connect(m, sums.o, wiring.flipped(self.o))

        # One command at a time: a head's registers change when all of its tokens are decided.
        command = Signal(p.command_layout, reset_less=True)
        starting = Signal()
        undecided = Signal(p.token_bits + 1)  # tokens
        advance = Signal()  # all pipeline stages
        taking = Signal()  # a response
        taking_value = Signal()

        # The multipliers take a response or a value; then the two pipelines part.
        self._take(m, scoreboard, requests, advance, taking, taking_value)
        products = multiply_chunks(
            m,
            p,
            advance,
            taking,
            self.response.payload,
            self.value.payload,
            command.q,
        )
        value = self.value.payload
        m.d.comb += [
            sums.advance.eq(advance),
            sums.take.eq(taking_value),
            sums.chunk.eq(value.chunk),
            sums.p.eq(value.p),
            sums.last.eq(value.last),
            Cat(sums.products).eq(Cat(products)),
        ]
        # All stages advance together, so nothing needs a queue inside.
        chunk = self._scores(m, scoreboard, advance, taking, products, command)
        result, pec, decided = self._decide(m, advance, chunk, command, undecided)
        free = deliver(m, self, advance, result, pec, scoreboard.write, requests.next)

        # The whole lane stops for an output that is not taken and for a missing log_denominator.
        m.d.comb += [
            self.log_denominator.ready.eq(free & sums.free & chunk.valid),
            advance.eq(free & sums.free & (~chunk.valid | self.log_denominator.valid)),
            self.command.ready.eq(undecided == 0),
            starting.eq(self.command.valid & self.command.ready),
            requests.start.eq(starting),
            requests.tokens.eq(self.command.payload.tokens),
        ]
        with m.If(starting):
            m.d.sync += [
                command.eq(self.command.payload),
                undecided.eq(self.command.payload.tokens),
            ]
        # The head ends with the decision on its last undecided token.
        with m.Elif(decided):
            m.d.sync += undecided.eq(undecided - 1)
        return m

    def _take(self, m: Module, scoreboard, requests, advance, taking, taking_value) -> None:
        """Take a response that was requested, else a value."""
        tag = self.response.payload.tag
        first = Signal()
        expected = Signal()  # of a first chunk, a request; of another one, an entry
        m.d.comb += [
            first.eq(tag.chunk == 0),
            expected.eq(Mux(first, requests.first_pending, scoreboard.read.ready)),
            scoreboard.read.payload.eq(tag.slot),
            scoreboard.read.valid.eq(self.response.valid & ~first & advance),
            scoreboard.entry.ready.eq(advance),
            # A chunk after the first needs its token's entry, which may still be in the pipeline.
            self.response.ready.eq(advance & expected),
            taking.eq(self.response.valid & self.response.ready),
            requests.first_arrived.eq(taking & first),
            # Values use the cycles that keys leave.
            self.value.ready.eq(advance & ~(self.response.valid & expected)),
            taking_value.eq(self.value.valid & self.value.ready),
        ]

    def _scores(self, m, scoreboard, advance, taking, products, command) -> Chunk:
        """Stages from the products to the score t as a binary logarithm."""
        p = self.parameters
        # Stage "product": the products, and the scoreboard's entry in its own output register.
        chunk = stage(m, advance, "product", Chunk(taking, self.response.payload.tag))
        entry = scoreboard.entry.payload

        # Stage "dot": q . chunk, from the tree's register.
        m.submodules.tree = tree = AdderTree(
            AdderTreeParameters(p.d, "fixed", width=p.bits + p.multiplied_bits, stages=1)
        )
        m.d.comb += [
            tree.enable.eq(advance),
            *(i.eq(product) for i, product in zip(tree.i, products, strict=True)),
        ]
        first = Signal(name="first_chunk")
        m.d.comb += first.eq(chunk.tag.chunk == 0)
        previous = Signal(signed(p.scoreboard.score_bits))
        m.d.comb += previous.eq(Mux(first, 0, entry.score))
        term = {"shift": entry.shift, "significand": entry.significand}
        chunk = stage(m, advance, "dot", Chunk(chunk.valid, chunk.tag, previous=previous, **term))

        # Stage "score": s = | previous | 0 … 0 | + q . chunk, with a chunk's number of zeros.
        # A whole key's is q . k: it comes as a first chunk. Other chunks are a lane's upper bits.
        score = Signal(signed(p.score_bits), name="score_sum")
        dot = tree.o
        if p.whole:
            dot = Mux(command.whole, tree.o, tree.o >> p.unknown(0))
        m.d.comb += score.eq((chunk.previous << p.chunk_bits) + dot)
        chunk = dataclasses.replace(chunk, previous=None, score=score)
        chunk = stage(m, advance, "score", chunk)

        # Stage "scaled": s mantissa, without the bits that every t leaves out.
        below = p.base - p.unknown(0)
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1 - below), name="scaled_score")
        m.d.comb += scaled.eq((chunk.score * command.mantissa) >> below)
        chunk = stage(m, advance, "scaled", dataclasses.replace(chunk, scaled=scaled))

        # Stage "t": t = floor(s mantissa 2^-(base + shift) 2^r), with r bits unknown.
        right = Signal(range(p.unknown(0) + (1 << p.shift_bits)))
        with m.Switch(chunk.tag.chunk):
            for number in range(p.chunks):
                with m.Case(number):
                    m.d.comb += right.eq(command.shift + (p.unknown(0) - p.unknown(number)))
        if p.whole:
            with m.If(command.whole):
                m.d.comb += right.eq(command.shift + p.unknown(0))
        t = Signal(signed(p.width), name="t_shifted")
        m.d.comb += t.eq(chunk.scaled >> right)
        return stage(m, advance, "t", dataclasses.replace(chunk, scaled=None, t=t))

    def _margins(self, m: Module, chunk: Chunk, command) -> tuple[Signal, Signal, Signal]:
        """Whether the chunk is its key's last, and the margins of its t; 0 for the last one."""
        p = self.parameters
        last = Signal(name="last_chunk")
        most, least = (Signal(p.margin_bits, name=name) for name in ("most", "least"))
        m.d.comb += last.eq(chunk.tag.chunk == p.chunks - 1)
        with m.Switch(chunk.tag.chunk):
            for number in range(p.chunks - 1):
                with m.Case(number):
                    m.d.comb += [most.eq(command.most[number]), least.eq(command.least[number])]
        return last, most, least

    def _decide(self, m: Module, advance, chunk: Chunk, command, undecided):
        """The decision on the stage "t", and two more stages, of Pec.

        Returns (the chunk, Pec, a token's last decision is made).
        """
        p = self.parameters
        m.submodules.rpdu = rpdu = Rpdu(p.rpdu)
        m.submodules.pec = pec = Pec(p.pec)
        last, most, least = self._margins(m, chunk, command)
        first = Signal(name="first_decision")
        newest = Signal(p.token_bits)  # the head's last token
        exempt = Signal()
        decided = Signal()
        done = Signal()
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += newest.eq(self.command.payload.tokens - 1)
        m.d.comb += [
            first.eq(chunk.tag.chunk == 0),
            exempt.eq(command.exempt & (chunk.tag.token == newest)),
            rpdu.t.eq(chunk.t),
            rpdu.most.eq(most),
            rpdu.threshold.eq(command.threshold),
            rpdu.log_denominator.eq(self.log_denominator.payload.log2),
            # Without a denominator no token is pruned.
            rpdu.known.eq(self.log_denominator.payload.known & ~exempt),
            rpdu.last.eq(last),
            pec.enable.eq(advance),
            pec.t.eq(chunk.t),
            pec.least.eq(least),
            pec.drop.eq(rpdu.prune),
            pec.old_valid.eq(~first),
            pec.old_shift.eq(chunk.shift),
            pec.old_significand.eq(chunk.significand),
            decided.eq(advance & chunk.valid & ~rpdu.request),
            done.eq(~rpdu.request & (undecided == 1)),
        ]
        if p.whole:
            # Nothing of a whole key is unknown, and none is pruned.
            with m.If(command.whole):
                m.d.comb += [last.eq(1), most.eq(0), least.eq(0), rpdu.known.eq(0)]
        chunk = Chunk(
            chunk.valid,
            chunk.tag,
            request=rpdu.request,
            keep=rpdu.keep,
            # A token that is pruned at its first chunk has no share of the denominator.
            differs=~(rpdu.prune & first),
            ended=done,
            t=chunk.t,
            score=chunk.score[: p.scoreboard.score_bits],
            denominator=self.log_denominator.payload if p.observe else None,
        )
        for name in ("decided", "term"):
            chunk = stage(m, advance, name, chunk)
        return chunk, pec, decided
