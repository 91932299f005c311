"""A lane: dot products of chunks as they come, and which tokens to prune (Token-Picker, 4.1)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adder_tree import AdderTree, AdderTreeParameters
from hw.component import Component
from hw.parameters import Parameters, require
from hw.topick.chunk_multiplier import ChunkMultiplier
from hw.topick.chunk_requests import ChunkRequests
from hw.topick.lane_layouts import LaneLayouts
from hw.topick.pec import Pec
from hw.topick.rpdu import Rpdu, RpduParameters
from hw.topick.scoreboard import Scoreboard, ScoreboardParameters
from hw.topick.weighted_sums import WeightedSums


@dataclasses.dataclass(frozen=True)
class PeLaneParameters(LaneLayouts, Parameters):
    """d, bits, chunk_bits, scale_bits, shift_bits and width as in :class:`Scores`.

    fraction, precision, limb
        As in :class:`hw.topick.pec.PecParameters`.
    threshold_bits
        As in :class:`hw.topick.rpdu.RpduParameters`.
    entries
        Of the scoreboard: tokens under way at most.
    token_bits
        Of a token's number.
    """

    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    scale_bits: int = 16
    shift_bits: int = 4
    width: int = 32
    fraction: int = 10
    precision: int = 12
    limb: int = 16
    threshold_bits: int = 16
    entries: int = 64
    token_bits: int = 12

    def __post_init__(self):
        self.check_scores()
        rule = "token_bits must be between 1 and 24"
        require(1 <= self.token_bits <= 24, rule, self.token_bits)
        _ = self.pec, self.rpdu, self.scoreboard  # check the rest

    @classmethod
    def presets(cls) -> dict[str, "PeLaneParameters"]:
        small = {"scale_bits": 6, "shift_bits": 2, "width": 14, "fraction": 4, "precision": 6}
        return {
            "small": cls(
                d=4,
                bits=6,
                chunk_bits=2,
                **small,
                limb=8,
                threshold_bits=7,
                entries=6,
                token_bits=6,
            ),
            "default": cls(),
            "paper": cls(entries=32),
        }

    @property
    def rpdu(self) -> RpduParameters:
        return RpduParameters(self.width, self.margin_bits, self.threshold_bits)

    @property
    def scoreboard(self) -> ScoreboardParameters:
        """A score is parked without its last chunk."""
        score = self.score_bits - self.chunk_bits
        return ScoreboardParameters(self.entries, score, self.pec.depth_bits, self.precision)

    DECIDING = 5
    """Cycles from a chunk to its decision."""

    @property
    def latency(self) -> int:
        """Cycles from a chunk to what becomes of it: the difference, the score."""
        return self.DECIDING + 3


class Chunk:
    """A chunk on its way through the ranks: its tag, and as attributes what is known by then."""

    def __init__(self, m: Module, advance: Signal, valid: Value, tag, **values: Value):
        self._m, self._advance = m, advance
        self.valid, self.tag = valid, tag
        self.__dict__.update(values)

    def rank(self, name: str, values: dict[str, Value]) -> "Chunk":
        """The chunk behind registers that hold `values`."""
        valid = Signal(name=f"valid_{name}")
        tag = Signal.like(self.tag, name=f"tag_{name}", reset_less=True)
        known = {
            key: Signal.like(value, name=f"{key}_{name}", reset_less=True, init=0)
            for key, value in values.items()
        }
        with self._m.If(self._advance):
            self._m.d.sync += [valid.eq(self.valid), tag.eq(self.tag)]
            self._m.d.sync += [register.eq(values[key]) for key, register in known.items()]
        return Chunk(self._m, self._advance, valid, tag, **known)


class PeLane(Component):
    """Step 0: scores of keys, chunk by chunk, in any order. Step 1: sum of p v.

        s^b = 2^(chunk bits) s^(b-1) + q . (chunk b of k),   t = floor(s^b 2^r c)
        prune  <=>  t + M_max + (-log2 thr) < log2 denominator

    ::

        token ─→ first chunks ─→ request ─→ (memory) ─→ response
                      ↑ next chunks                        │
        scoreboard: s, term ←────────────────────┐   q ─→ × + ─→ s ─→ t ─→ Rpdu, Pec ─→ difference
                 └────────────────────────────── │ ────────↑               │        └─→ kept
                                                 └─────────────────────────┘
        value (p, chunks of v) ─→ × ─→ sums ─→ o

    A `job` is a head. Its tokens come in the order in which they shall be looked at, each gets a
    slot of the scoreboard, and its first chunk is asked for. A response may come at any time and
    in any order. Its decision takes one beat of ``log_denominator`` and is to prune the token, to
    ask for its next chunk, or to keep it; in all cases but a pruned first chunk there is a
    difference for the denominator, so that this is the sum of the terms of all tokens that are not
    pruned, as far as they are known. The beat of ``log_denominator`` may be older than the latest
    differences: at any time the denominator is at most the exact one. Kept tokens go out with
    their scores, and the head's last decision makes a beat of ``kept`` in any case. A head of 0
    tokens has no decision: its job is taken, and there is no beat of ``kept`` and no ``last``.

    Requests for next chunks come before first ones, and there is room for one of each slot, so no
    response ever waits for a request: a full scoreboard stops first chunks only. A response that
    was not asked for waits.

    Step 1: chunks of values, in any order, each with its token's probability, are multiplied by the
    same multipliers and added to the sums: of the first chunk of an element 2^8 as much, and so
    on. Values may come while scores of the next head are made; responses go first.

    Exact: s, and the sums unless the probabilities add up to 2 or more. t, terms and logarithms are
    rounded such that no token whose probability exceeds the threshold is pruned: the lane of the
    golden model replays every decision.

    Latency: 8 cycles from a response to its difference or score, 10 to its token's next request; 2
    from a value's last chunk to the sums. Throughput: a chunk a cycle, of keys or values.

    Handshake: an output that is not taken, other than ``request``, stops the lane, and so does a
    decision without ``log_denominator``. ``response.ready`` depends on its payload,
    ``value.ready`` on ``response``, and all of them on the outputs' ready. `job.ready` is high when
    all tokens of the last head are decided.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
    token : :py:`In(stream.Signature(token_bits))`
    request : :py:`Out(stream.Signature(parameters.tag_layout))`
    response : :py:`In(stream.Signature(parameters.response_layout))`
    log_denominator : :py:`In(stream.Signature(parameters.denominator_layout))`
        One for each response.
    difference : :py:`Out(stream.Signature(parameters.difference_layout))`
    kept : :py:`Out(stream.Signature(parameters.kept_layout))`
    value : :py:`In(stream.Signature(parameters.value_layout))`
    o : :py:`Out(stream.Signature(parameters.sum_layout))`
        Sums of p v, in units of 2^-(bits - 1) of v's codes.
    """

    summary = "Scores of keys chunk by chunk in any order, pruning, and weighted sums of values"
    source = "Token-Picker, section 4.1 and Fig. 7"

    def __init__(self, parameters: PeLaneParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "job": In(stream.Signature(p.job_layout)),
                "token": In(stream.Signature(unsigned(p.token_bits))),
                "request": Out(stream.Signature(p.tag_layout)),
                "response": In(stream.Signature(p.response_layout)),
                "log_denominator": In(stream.Signature(p.denominator_layout)),
                "difference": Out(stream.Signature(p.difference_layout)),
                "kept": Out(stream.Signature(p.kept_layout)),
                "value": In(stream.Signature(p.value_layout)),
                "o": Out(stream.Signature(p.sum_layout)),
            }
        )

    @property
    def parameters(self) -> PeLaneParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.scoreboard = scoreboard = Scoreboard(p.scoreboard)
        m.submodules.requests = requests = ChunkRequests(p.token_bits, p.chunks, p.entries)
        m.submodules.sums = sums = WeightedSums(p.d, p.bits, p.chunk_bits)
        wiring.connect(m, wiring.flipped(self.token), requests.token)
        wiring.connect(m, scoreboard.free, requests.free)
        wiring.connect(m, requests.o, wiring.flipped(self.request))
        wiring.connect(m, sums.o, wiring.flipped(self.o))

        job = Signal(p.job_layout, reset_less=True)
        starting = Signal()
        undecided = Signal(p.token_bits + 1)  # tokens
        advance = Signal()  # of all ranks
        taking = Signal()
        taking_value = Signal()
        self._take(m, scoreboard, requests, advance, taking, taking_value)
        products = self._multiply(m, advance, taking, job.q)
        value = self.value.payload
        m.d.comb += [
            sums.advance.eq(advance),
            sums.take.eq(taking_value),
            sums.chunk.eq(value.chunk),
            sums.last.eq(value.last),
            Cat(sums.products).eq(Cat(products)),
        ]
        chunk = self._scores(m, scoreboard, advance, taking, products, job)
        free, decided = self._decide(m, scoreboard, requests, advance, chunk, job, undecided)
        m.d.comb += [
            self.log_denominator.ready.eq(free & sums.free & chunk.valid),
            advance.eq(free & sums.free & (~chunk.valid | self.log_denominator.valid)),
            self.job.ready.eq(undecided == 0),
            starting.eq(self.job.valid & self.job.ready),
            requests.start.eq(starting),
            requests.tokens.eq(self.job.payload.tokens),
        ]
        with m.If(starting):
            m.d.sync += [job.eq(self.job.payload), undecided.eq(self.job.payload.tokens)]
        with m.Elif(decided):
            m.d.sync += undecided.eq(undecided - 1)
        return m

    def _take(self, m: Module, scoreboard, requests, advance, taking, taking_value) -> None:
        """A response if there is one that was asked for, else a value."""
        tag = self.response.payload.tag
        first = Signal()
        expected = Signal()
        m.d.comb += [
            first.eq(tag.chunk == 0),
            expected.eq(Mux(first, requests.awaited, scoreboard.read.ready)),
            scoreboard.read.payload.eq(tag.slot),
            scoreboard.read.valid.eq(self.response.valid & ~first & advance),
            scoreboard.entry.ready.eq(advance),
            self.response.ready.eq(advance & expected),
            taking.eq(self.response.valid & self.response.ready),
            requests.came.eq(taking & first),
            self.value.ready.eq(advance & ~(self.response.valid & expected)),
            taking_value.eq(self.value.valid & self.value.ready),
        ]

    def _multiply(self, m: Module, advance: Signal, taking: Signal, q) -> list[Signal]:
        """Registers with the products of an element and a chunk each."""
        p = self._parameters
        response, value = self.response.payload, self.value.payload
        first = Signal(name="first_of_element")
        m.d.comb += first.eq(Mux(taking, response.tag.chunk, value.chunk) == 0)
        products = []
        for number in range(p.d):
            multiplier = ChunkMultiplier(p.bits, p.chunk_bits)
            m.submodules[f"multiplier_{number}"] = multiplier
            product = Signal.like(multiplier.o, name=f"product_{number}", reset_less=True)
            m.d.comb += [
                multiplier.a.eq(Mux(taking, q[number], value.p)),
                multiplier.chunk.eq(Mux(taking, response.data[number], value.data[number])),
                multiplier.negative.eq(first),
            ]
            with m.If(advance):
                m.d.sync += product.eq(multiplier.o)
            products.append(product)
        return products

    def _scores(self, m, scoreboard, advance, taking, products, job) -> Chunk:
        """Ranks from the products to t."""
        p = self._parameters
        entry = scoreboard.entry.payload
        chunk = Chunk(m, advance, taking, self.response.payload.tag).rank("product", {})
        # The scoreboard's entry is a register beside the products.
        m.submodules.tree = tree = AdderTree(
            AdderTreeParameters(p.d, "fixed", width=p.bits + p.chunk_bits, stages=1)
        )
        m.d.comb += [
            tree.enable.eq(advance),
            Cat(tree.i).eq(Cat(products)),
        ]
        first = Signal(name="first_chunk")
        m.d.comb += first.eq(chunk.tag.chunk == 0)
        previous = Signal(signed(p.scoreboard.score_bits))
        m.d.comb += previous.eq(Mux(first, 0, entry.score))
        chunk = chunk.rank(
            "dot", {"previous": previous, "depth": entry.depth, "significand": entry.significand}
        )
        score = Signal(signed(p.score_bits), name="score_sum")
        m.d.comb += score.eq((chunk.previous << p.chunk_bits) + tree.o)
        old = {"depth": chunk.depth, "significand": chunk.significand}
        chunk = chunk.rank("score", {"score": score, **old})
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1), name="scaled_score")
        m.d.comb += scaled.eq(chunk.score * job.mantissa)
        old = {"depth": chunk.depth, "significand": chunk.significand}
        chunk = chunk.rank("scaled", {"scaled": scaled, "score": chunk.score, **old})
        places = Signal(range(p.base + (1 << p.shift_bits)))
        with m.Switch(chunk.tag.chunk):
            for number in range(p.chunks):
                with m.Case(number):
                    m.d.comb += places.eq(job.shift + (p.base - p.unknown(number)))
        t = Signal(signed(p.width), name="t_shifted")
        m.d.comb += t.eq(chunk.scaled >> places)
        old = {"depth": chunk.depth, "significand": chunk.significand}
        return chunk.rank("t", {"t": t, "score": chunk.score, **old})

    def _decide(self, m, scoreboard, requests, advance, chunk: Chunk, job, undecided):
        """The last ranks; whether what was in the very last is taken, whether a token's last
        decision is made."""
        p = self._parameters
        m.submodules.rpdu = rpdu = Rpdu(p.rpdu)
        m.submodules.pec = pec = Pec(p.pec)
        last = Signal(name="last_chunk")
        most, least = (Signal(p.margin_bits, name=name) for name in ("most", "least"))
        m.d.comb += last.eq(chunk.tag.chunk == p.chunks - 1)
        with m.Switch(chunk.tag.chunk):
            for number in range(p.chunks - 1):
                with m.Case(number):
                    m.d.comb += [most.eq(job.most[number]), least.eq(job.least[number])]
        first = Signal(name="first_decision")
        decided = Signal()
        ended = Signal()
        m.d.comb += [
            first.eq(chunk.tag.chunk == 0),
            rpdu.t.eq(chunk.t),
            rpdu.most.eq(most),
            rpdu.threshold.eq(job.threshold),
            rpdu.log_denominator.eq(self.log_denominator.payload.log2),
            rpdu.known.eq(self.log_denominator.payload.known),
            rpdu.last.eq(last),
            pec.enable.eq(advance),
            pec.t.eq(chunk.t),
            pec.least.eq(least),
            pec.drop.eq(rpdu.prune),
            pec.there.eq(~first),
            pec.old_depth.eq(chunk.depth),
            pec.old_significand.eq(chunk.significand),
            decided.eq(advance & chunk.valid & ~rpdu.request),
            ended.eq(~rpdu.request & (undecided == 1)),
        ]
        what = {
            "request": rpdu.request,
            "keep": rpdu.keep,
            "differs": ~(rpdu.prune & first),
            "ended": ended,
            "t": chunk.t,
            "score": chunk.score[: p.scoreboard.score_bits],
        }
        for name in ("decided", "term"):
            chunk = chunk.rank(name, what)
            what = {name: getattr(chunk, name) for name in what}

        # What a decision leads to waits in registers of its own until it is taken.
        writing = Signal()
        asking = Signal()
        free = Signal(name="outputs_free")
        write, later = scoreboard.write, requests.next
        kept = self.kept
        ports = [
            (write.valid, write.ready, chunk.valid, writing),
            (later.valid, later.ready, chunk.valid & chunk.request, asking),
            (self.difference.valid, self.difference.ready, chunk.valid & chunk.differs, None),
            (kept.valid, kept.ready, chunk.valid & (chunk.keep | chunk.ended), None),
        ]
        for valid, ready, comes, register in ports:
            register = valid if register is None else register
            if register is not valid:
                m.d.comb += valid.eq(register)
            with m.If(advance):
                m.d.sync += register.eq(comes)
            with m.Elif(ready):
                m.d.sync += register.eq(0)
        m.d.comb += free.eq(Cat(~valid | ready for valid, ready, *_ in ports).all())
        chunk = chunk.rank("result", what)
        m.d.comb += [
            self.difference.payload.limb.eq(pec.limb),
            self.difference.payload.high.eq(pec.high),
            self.difference.payload.low.eq(pec.low),
            kept.payload.token.eq(chunk.tag.token),
            kept.payload.t.eq(chunk.t),
            kept.payload.kept.eq(chunk.keep),
            kept.payload.last.eq(chunk.ended),
            write.payload.slot.eq(chunk.tag.slot),
            write.payload.park.eq(chunk.request),
            write.payload.entry.score.eq(chunk.score),
            write.payload.entry.depth.eq(pec.depth),
            write.payload.entry.significand.eq(pec.significand),
            later.payload.token.eq(chunk.tag.token),
            later.payload.chunk.eq(chunk.tag.chunk + 1),
            later.payload.slot.eq(chunk.tag.slot),
        ]
        return free, decided
