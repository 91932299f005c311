"""ToPick's guarantee on a lane of two elements: no token is pruned wrongly; unbounded proof.

Query, scale, threshold, the key of one arbitrary token, all other tokens and their chunks, the
denominators, every latency, order of arrival and stall are arbitrary. If the token is pruned, its
exact score s, of all bits of its key, is so small that

    log2(2^(c s)) + (-log2 threshold) < log_denominator,

and its share of the denominator stands for at most 2^(c s). As the denominator is made of such
shares, of which no token has two, it is at most the exact one, and so the token's exact
probability is below the threshold.
"""

import dataclasses

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import (
    Assert,
    Assume,
    Cat,
    Const,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
    signed,
)

from hw.topick import chunk_multiplier, pe_lane, rpdu
from hw.topick.margin_generator import MarginGenerator, MarginGeneratorParameters
from hw.topick.pe_lane import PeLane, PeLaneParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SIZES = {"d": 2, "bits": 4, "chunk_bits": 2, "scale_bits": 3, "shift_bits": 1, "width": 9}
SMALL = PeLaneParameters(
    **SIZES,
    fraction=2,
    precision=2,
    limb=2,
    threshold_bits=4,
    entries=2,
    token_bits=1,
    probability_bits=3,
)
TINY = PeLaneParameters(
    d=2,
    bits=2,
    chunk_bits=1,
    scale_bits=2,
    shift_bits=0,
    width=6,
    fraction=2,
    precision=2,
    limb=2,
    threshold_bits=3,
    entries=2,
    token_bits=1,
    probability_bits=1,
)
DEPTH = 26


class GuaranteeSpec(Elaboratable):
    """The memory answers each slot with the requested chunk, after any time; the chunks of
    the one token that is looked at are of its key. Other chunks are arbitrary.
    """

    def __init__(self, dut: PeLane, inductive: bool = True):
        self.dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut, leave=("value", "o"))
        live = ~first
        self._internals = internals
        m.d.comb += [dut.value.valid.eq(0), dut.o.ready.eq(1)]

        self._token = token = Signal(p.token_bits)
        key = [Signal(signed(p.bits), name=f"key_{n}") for n in range(p.d)]
        m.d.comb += [token.eq(AnyConst(p.token_bits)), Cat(key).eq(AnyConst(p.d * p.bits))]
        offered = dut.command.payload
        m.d.comb += [Assume(offered.tokens != 0), Assume(_wide_enough(p, offered))]

        # The memory.
        tag = dut.response.payload.tag
        away = [Signal(name=f"away_{n}") for n in range(p.entries)]
        asked = [Signal(p.tag_layout, name=f"asked_{n}") for n in range(p.entries)]
        asks, answers = Signal(), Signal()
        m.d.comb += [
            asks.eq(dut.request.valid & dut.request.ready & live),
            answers.eq(dut.response.valid & dut.response.ready & live),
        ]
        for slot in range(p.entries):
            with m.If(asks & (dut.request.payload.slot == slot)):
                m.d.sync += [away[slot].eq(1), asked[slot].eq(dut.request.payload)]
                m.d.comb += Assert(~away[slot], "requested twice")
            with m.Elif(answers & (tag.slot == slot)):
                m.d.sync += away[slot].eq(0)
            with m.If(dut.response.valid & (tag.slot == slot)):
                m.d.comb += Assume(away[slot] & (tag == asked[slot]))
        bits = self._chunk(key, tag.chunk)
        with m.If(dut.response.valid & (tag.token == token)):
            m.d.comb += [
                Assume(d == k) for d, k in zip(dut.response.payload.data, bits, strict=True)
            ]

        # The decision.
        self._command = command = Signal(p.command_layout)
        m.d.comb += command.as_value().eq(internals.signal("command"))
        tag_t = self._tag(m, "t")
        exact = Signal(signed(p.score_bits))
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1))
        lower = Signal(signed(p.width + 2))
        places = Signal(range(p.base + (1 << p.shift_bits)))
        deciding, prunes, keeps = Signal(), Signal(), Signal()
        denominator = dut.log_denominator
        m.d.comb += [
            exact.eq(sum(a * b for a, b in zip(command.q, key, strict=True))),
            scaled.eq(exact * command.mantissa),
            lower.eq(-internals.signal("pec.minus")),
            places.eq(p.base + command.shift),
            deciding.eq(denominator.valid & denominator.ready & live & (tag_t.token == token)),
            prunes.eq(deciding & internals.signal("rpdu.prune")),
            keeps.eq(deciding & internals.signal("rpdu.keep")),
        ]
        with m.If(deciding):
            m.d.comb += Assert(lower << places <= scaled, "its term is too large")
        with m.If(prunes):
            upper = scaled + (command.threshold << places)
            m.d.comb += [
                Assert(denominator.payload.known, "pruned without a denominator"),
                Assert(upper < denominator.payload.log2 << places, "pruned wrongly"),
                Assert(~command.threshold.all(), "pruned though the threshold is 0"),
                Assert(~command.exempt | (token != command.tokens - 1), "the exempt token pruned"),
            ]
        last = tag_t.chunk == p.chunks - 1
        m.d.comb += [
            Cover(prunes & last & (exact > 0), "pruned at its last chunk"),
            Cover(prunes & ~last, "pruned at its first chunk"),
            Cover(keeps & (exact < 0), "kept"),
        ]
        if self._inductive:
            with m.If(live):
                self._tie(m, key, away, asked)
        return m

    def _chunk(self, key: list[Signal], chunk) -> list[Value]:
        """Bits of the key's elements."""
        half = self.dut.parameters.chunk_bits
        return [Mux(chunk == 0, k[half:], k[:half]) for k in key]

    def _tag(self, m: Module, rank: str) -> Signal:
        tag = Signal(self.dut.parameters.tag_layout, name=f"tag_at_{rank}")
        m.d.comb += tag.as_value().eq(self._internals.signal(f"tag_{rank}"))
        return tag

    def _tie(self, m: Module, key, away, asked) -> None:
        """Each slot is in one place; where it is the token's, its numbers are right."""
        p, signal, command = self.dut.parameters, self._internals.signal, self._command
        ours = self._token
        dots = []
        for chunk, low in enumerate((p.chunk_bits, 0)):
            dot = Signal(signed(p.score_bits), name=f"dot_of_{chunk}")
            parts = (k[low : low + p.chunk_bits] for k in key)
            signed_parts = [part.as_signed() if chunk == 0 else part for part in parts]
            m.d.comb += dot.eq(sum(q * b for q, b in zip(command.q, signed_parts, strict=True)))
            dots.append((dot, signed_parts))
        partial = Signal(signed(p.score_bits))  # of the first chunk
        whole = Signal(signed(p.score_bits))
        m.d.comb += [partial.eq(dots[0][0]), whole.eq((partial << p.chunk_bits) + dots[1][0])]

        # What the ranks hold.
        ranks = {}
        for rank in ("product", "dot", "score", "scaled", "t", "decided", "term", "result"):
            tag = self._tag(m, rank)
            valid = Signal(name=f"is_{rank}")
            m.d.comb += valid.eq(signal("writing" if rank == "result" else f"valid_{rank}"))
            ranks[rank] = valid, tag, valid & (tag.token == ours)
        score = {rank: Signal(signed(p.score_bits), name=f"of_{rank}") for rank in ranks}
        for rank, (_, tag, _) in ranks.items():
            m.d.comb += score[rank].eq(Mux(tag.chunk == 0, partial, whole))
        entry = Signal(p.scoreboard.entry_layout, name="entry_read")
        m.d.comb += entry.as_value().eq(signal("scoreboard.entry__payload"))
        _, tag, mine = ranks["product"]
        with m.If(mine):
            for n in range(p.d):
                want = [command.q[n] * parts[n] for _, parts in dots]
                m.d.comb += Assert(
                    signal(f"product_{n}") == Mux(tag.chunk == 0, *want), "a wrong product"
                )
            m.d.comb += Assert((tag.chunk == 0) | (entry.score == partial), "a wrong entry")
        _, tag, mine = ranks["dot"]
        tree = signal("tree.result_result")
        with m.If(mine):
            m.d.comb += [
                Assert(tree.as_signed() == Mux(tag.chunk == 0, dots[0][0], dots[1][0])),
                Assert(signal("previous_dot") == Mux(tag.chunk == 0, 0, partial)),
            ]
        with m.If(ranks["score"][2]):
            m.d.comb += Assert(signal("score_score") == score["score"])
        for rank in ("scaled", "t"):
            with m.If(ranks[rank][2]):
                m.d.comb += Assert(signal(f"score_{rank}") == score[rank])
        with m.If(ranks["scaled"][2]):
            below = p.base - p.unknown(0)
            product = score["scaled"] * command.mantissa
            m.d.comb += Assert(signal("scaled_scaled").as_signed() == product >> below)
        _, tag, mine = ranks["t"]
        scaled = Signal(signed(p.score_bits + p.scale_bits + 1), name="scaled_at_t")
        m.d.comb += scaled.eq(score["t"] * command.mantissa)
        places = Mux(tag.chunk == 0, p.base - p.unknown(0), p.base) + command.shift
        with m.If(mine):
            m.d.comb += Assert(signal("t_t") == scaled >> places)
        for rank in ("decided", "term", "result"):
            valid, tag, mine = ranks[rank]
            request = signal(f"request_{rank}")
            m.d.comb += Assert(~(valid & request) | (tag.chunk == 0))
            m.d.comb += Assert(~(mine & request) | (signal(f"score_{rank}").as_signed() == partial))

        # Where slots are.
        free = self._queue(m, "scoreboard.returned.fifo", range(p.entries))
        later = self._queue(m, "requests.later.fifo", p.tag_layout)
        fresh = signal("scoreboard.fresh")
        request = Signal(p.tag_layout, name="request_tag")
        m.d.comb += request.as_value().eq(signal("requests.o__payload"))
        requested = signal("requests.o__valid")
        writing, request_result = signal("writing"), signal("request_result")
        undecided = signal("requests.remaining")
        for slot in range(p.entries):
            row = Signal(p.scoreboard.entry_layout, name=f"row_{slot}")
            m.d.comb += row.as_value().eq(self._internals.row(m, "scoreboard.rows", slot))
            full = signal("scoreboard.full")[slot]
            right = row.score == partial
            here = {rank: valid & (tag.slot == slot) for rank, (valid, tag, _) in ranks.items()}
            asked_for = requested & (request.slot == slot)
            in_later = [there & (tag.slot == slot) for there, tag in later]
            for (_, tag), there in zip(later, in_later, strict=True):
                m.d.comb += Assert(~there | (tag.chunk == 1))
                m.d.comb += Assert(~(there & (tag.token == ours)) | right)
            unused = sum(there & (value == slot) for there, value in free) + (fresh <= slot)
            places = unused + sum(in_later) + asked_for + away[slot] + sum(here.values())
            next_away = away[slot] & (asked[slot].chunk == 1)
            next_asked = asked_for & (request.chunk == 1)
            m.d.comb += [
                Assert(places == 1, "a slot is in two places"),
                Assert(~(here["result"] & full), "an entry is overwritten"),
                Assert(~away[slot] | (asked[slot].slot == slot)),
                Assert(full == (sum(in_later) | next_away | next_asked)),
                Assert(~(next_away & (asked[slot].token == ours)) | right),
                Assert(~(next_asked & (request.token == ours)) | right),
            ]
            early = [here[rank] for rank in ("product", "dot", "score", "scaled", "t")]
            late = [
                here[rank] & signal(f"request_{rank}") for rank in ("decided", "term", "result")
            ]
            undecided += sum(in_later) + asked_for + away[slot] + sum(early) + sum(late)
        m.d.comb += [
            # What a lane that does not wait writes without looking at ready.
            Assert(signal("asking") == (writing & request_result)),
            Assert(~(writing & request_result) | (signal("requests.later.fifo.level") < p.entries)),
            Assert(~writing | (signal("scoreboard.returned.fifo.level") < p.entries)),
            Assert(signal("scoreboard.returned.fifo.level") <= fresh),
            Assert(fresh <= p.entries),
            Assert(signal("undecided") == undecided),
            Assert((signal("undecided") == 0) | _wide_enough(p, command)),
            Assert(
                (signal("undecided") == 0)
                | (signal("newest") == (command.tokens - 1)[: p.token_bits])
            ),
        ]

    def _queue(self, m: Module, path: str, shape) -> list[tuple[Value, Signal]]:
        """Places of a queue: whether there is something, and what."""
        depth = self.dut.parameters.entries
        level, consume, produce = (
            self._internals.signal(f"{path}.{name}") for name in ("level", "consume", "produce")
        )
        end = Signal(range(2 * depth), name=f"end_{path.split('.')[1]}")
        m.d.comb += [
            end.eq(consume + level),
            Assert(level <= depth),
            Assert(consume < depth),
            Assert(produce == Mux(end < depth, end, end - depth)),
        ]
        places = []
        for number in range(depth):
            at = Signal(range(2 * depth), name=f"at_{path.split('.')[1]}_{number}")
            value = Signal(shape, name=f"in_{path.split('.')[1]}_{number}")
            m.d.comb += [
                at.eq(Mux(consume + number < depth, consume + number, consume + number - depth)),
                Value.cast(value).eq(self._internals.row(m, f"{path}.storage", at)),
            ]
            places.append((number < level, value))
        return places


def _wide_enough(p: PeLaneParameters, command) -> Value:
    """Whether a job's margins are not too small, as the margin generator's are."""
    found = Const(1)
    for margins, sign in ((command.most, 1), (command.least, -1)):
        total = sum(Mux(sign * q > 0, sign * q, 0) for q in command.q)
        for chunk, margin in enumerate(margins):
            reach = total * command.mantissa * ((1 << p.unknown(chunk)) - 1)
            found &= margin << (p.base + command.shift) >= reach
    return found


@pytest.mark.parametrize("size", ["tiny", pytest.param("small", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("waits", [True, False])
def test_guarantee(size, waits):
    parameters = dataclasses.replace({"tiny": TINY, "small": SMALL}[size], waits=waits)
    spec = GuaranteeSpec(PeLane(parameters))
    prove_block(spec, f"pe_lane_{size}", depth=1, seconds=560)


@pytest.mark.campaign
def test_cover():
    spec = GuaranteeSpec(PeLane(SMALL), inductive=False)
    prove_block(spec, "pe_lane", "cover", depth=DEPTH, seconds=560)


class MarginSpec(Elaboratable):
    """Margins are the least that are not below c M_max and -c M_min."""

    def __init__(self, dut: MarginGenerator):
        self.dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        m.submodules.dut = dut
        m.d.comb += [
            Cat(dut.q).eq(AnyConst(p.d * p.bits)),
            dut.mantissa.eq(AnyConst(p.scale_bits)),
            dut.shift.eq(AnyConst(p.shift_bits)),
        ]
        places = p.base + dut.shift
        for margins, sign in ((dut.most, 1), (dut.least, -1)):
            total = sum(Mux(sign * q > 0, sign * q, 0) for q in dut.q)
            for chunk, margin in enumerate(margins):
                reach = total * dut.mantissa * ((1 << p.unknown(chunk)) - 1)
                m.d.comb += [
                    Assert(margin << places >= reach, "too small"),
                    Assert((margin << places) - reach < Const(1) << places, "too large"),
                    Cover((margin == 5) & (dut.shift == 1)),
                ]
        return m


def test_margins():
    dut = MarginGenerator(MarginGeneratorParameters(**SIZES))
    for mode in ("bmc", "cover"):
        prove_block(MarginSpec(dut), "margin_generator", mode, depth=1)


FAULTS = {
    "equal_too": (rpdu, "upper < self.log_denominator", "upper <= self.log_denominator"),
    "unknown_too": (rpdu, "self.known & ~", "~"),
    "none_too": (rpdu, "~self.threshold.all() & ", ""),
    "signs": (chunk_multiplier, "multiplier.negative.eq(first)", "multiplier.negative.eq(1)"),
    "old_score": (pe_lane, "(chunk.previous << p.chunk_bits)", "(chunk.previous)"),
    "exempt_other": (pe_lane, "newest.eq(self.command.payload.tokens - 1)", "newest.eq(0)"),
    "wrong_margin": (pe_lane, "most.eq(command.most[number])", "most.eq(command.least[number])"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(monkeypatch, fault):
    module, line, instead = FAULTS[fault]
    faulty = with_fault(module, line, instead)
    lane = faulty if module is pe_lane else pe_lane
    if module is rpdu:
        monkeypatch.setattr(pe_lane, "Rpdu", faulty.Rpdu)
    if module is chunk_multiplier:
        monkeypatch.setattr(pe_lane, "multiply_chunks", faulty.products)
    spec = GuaranteeSpec(lane.PeLane(TINY), inductive=False)
    find_fault(spec, f"pe_lane_{fault}", depth=DEPTH, seconds=560)
