"""The lane: its bit-exact model against the algorithm, and the lane in a closed loop.

The testbench compares lane and model under stalls, for any order of arrival; in the closed loop a
memory answers the lane's own requests.
"""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Cat, Module
from amaranth.sim import Simulator

from golden.algorithms.topick.decide import decide, leading_bits, margins, request_order
from golden.topick.pe_lane import (
    Head,
    PeLane,
    chunk_of,
    probability_sum,
    signed_chunk,
    weighted_sum,
)
from hw.catalogue import find
from hw.topick import chunk_multiplier
from hw.topick.chunk_multiplier import ChunkMultiplier
from hw.topick.pe_lane import PeLaneParameters
from sim.core.memory import MemoryTiming
from sim.testbenches.topick.pe_lane import Replay, random_head, real_head, sizes_of, testbench
from tests.support.topick.closed_loop import OTHER, check, check_guarantee, on_grid, run
from tests.support.topick.simulated_stimulus import check as simulate

BLOCK = find("topick.pe_lane")
SMALL = PeLaneParameters.preset("small")
SMALL_TOKENS = 12


# --- the bit-exact model ---


def test_chunks_make_the_key_again():
    for p in (SMALL, OTHER, PeLaneParameters()):
        z = sizes_of(p)
        k = np.arange(-(1 << z.bits - 1), 1 << z.bits - 1)
        total = 0
        for chunk in range(z.chunks):
            total = (total << z.chunk_bits) + signed_chunk(chunk_of(k, chunk, z), chunk, z)
            assert (
                total << z.unknown(chunk) == leading_bits(k, chunk + 1, z.bits, z.chunk_bits)
            ).all()
        assert (total == k).all()


def test_a_weighted_sum_wraps_around():
    z = sizes_of(PeLaneParameters(probability_bits=11))
    p, v = np.array([2047, 2047, 2047]), np.array([[2047, -2048]] * 3)
    assert weighted_sum(p, v, z).tolist() == [
        3 * 2047 * 2047 - (1 << 24),
        (1 << 24) - 3 * 2047 * 2048,
    ]
    assert weighted_sum(p[:2], v[:2], z).tolist() == [2 * 2047 * 2047, -2 * 2047 * 2048]
    assert probability_sum(p, z) == 3 * 2047 - 4096 and probability_sum(p[:2], z) == 2 * 2047


def replayed(data, p=None, seed=0) -> Replay:
    replay = Replay(p or PeLaneParameters(), np.random.default_rng(seed))
    replay.add(data)
    return replay


def test_decisions_are_nearly_the_algorithms(shipped_trace, capsys):
    """The same order of arrival in float64, where each decision knows all earlier ones.

    A token may be pruned by one and not by the other only if its p'' is within 1 % of the
    threshold; the final denominators differ by less than 1 %.
    """
    p = PeLaneParameters()
    z = sizes_of(p)
    tokens = differ = 0
    worst = 0.0
    for number in range(6):
        data, _ = real_head(p, shipped_trace, number, 10**6, np.random.default_rng(0), 130)
        head, k = data.head, data.k
        lane = PeLane(dataclasses.replace(z, entries=head.tokens))
        lane.begin(head)
        c = head.mantissa * 2.0 ** -(z.base + head.shift + z.fraction) * np.log(2)
        order = request_order(np.array([head.tokens - 1]), head.tokens)[:, 0]
        events = [(n, b) for b in range(z.chunks) for n in range(head.tokens)]
        partial = np.stack(
            [leading_bits(k, b + 1, z.bits, z.chunk_bits) @ head.q for b in range(z.chunks)]
        )[:, order]
        least, most = margins(head.q, z.bits, z.chunk_bits)
        want = decide(events, partial, least, most, c, 2.0 ** (-head.threshold / 2**z.fraction))
        kept = set()
        exact = {}
        slots = {n: lane.scoreboard.take() for n in range(head.tokens)}
        alive = set(slots)
        for n, b in events:
            if n not in alive:
                continue
            total = sum(exact.values())
            log2 = int(np.floor(np.log2(total) * 2**z.fraction)) if total else 0
            bits = chunk_of(k[order[n]], b, z)
            d = lane.decide(n, b, slots[n], bits, total > 0, log2)
            exact.pop(n, None)
            if d.pruned:
                alive.discard(n)
            else:
                exact[n] = d.term[1] * 2.0 ** -(d.term[0] + z.precision)
            kept |= {n} if d.kept else set()
        tokens += head.tokens
        differ += len(kept ^ set(np.flatnonzero(want.kept).tolist()))
        scale = np.exp((partial[-1].max()) * c)
        worst = max(worst, abs(sum(exact.values()) / (want.denominator * scale) - 1))
        check_guarantee(p, head, k, {int(order[n]) for n in kept})
    with capsys.disabled():
        print(f"\n{differ} of {tokens} tokens kept by one only, denominators within {worst:.1e}")
    assert differ <= 0.01 * tokens and worst < 0.01


def test_the_guarantee_in_any_order():
    """Random heads of extreme and ordinary codes, scales and thresholds, in random orders."""
    above = missed = 0
    for p, heads in ((PeLaneParameters(), 60), (SMALL, 120), (OTHER, 120)):
        rng = np.random.default_rng(heads)
        replay = Replay(p, rng)
        for _ in range(heads):
            data = random_head(p, 64, rng)
            begin = len(replay.decisions)
            replay.add(data)
            decisions = replay.decisions[begin:]
            kept = {d.token: d.t for d in decisions if d.kept}
            above += check_guarantee(p, data.head, data.k, kept)
            missed += data.head.tokens - len(kept)
            sums = replay.denominators[-1]
            terms = [d.term for d in decisions if d.kept]
            assert sums.units == (on_grid(terms, sums.number, p) if sums.number is not None else 0)
    assert above > 1000 and missed > 1000


# --- the hardware ---


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_another_size(stall, shipped_trace):
    for data in (None, shipped_trace):
        simulate(BLOCK, OTHER, testbench.stimulus(OTHER, data, 60, seed=7), stall)


TIMINGS = {
    "at_once": MemoryTiming(latency=(1, 1)),
    "in_order": MemoryTiming(latency=(5, 30)),
    "any_order": MemoryTiming(latency=(1, 40), reorder=True, seed=3),
    "slow": MemoryTiming(latency=(1, 90), interval=3, reorder=True, seed=4),
}


def heads_of(p: PeLaneParameters, count: int, seed: int, trace=None):
    """Random heads that fit the scale; or real ones of the trace."""
    rng = np.random.default_rng(seed)
    heads = []
    while len(heads) < count:
        if trace is None:
            data = random_head(p, 40, rng)
        else:
            data, _ = real_head(p, trace, seed + len(heads), 10**6, rng)
        heads.append((data.head, data.k))
    return heads


@pytest.mark.parametrize(
    ("timing", "stall"), [("at_once", 0.0), ("in_order", 0.4), ("any_order", 0.0), ("slow", 0.3)]
)
def test_closed_loop(timing, stall, shipped_trace):
    """Random heads and cut real ones, one after the other, with and without stalls."""
    heads = heads_of(SMALL, 5, seed=1) + heads_of(SMALL, 2, 2, shipped_trace)
    records = run(SMALL, heads, TIMINGS[timing], stall=stall, seed=5)
    check(SMALL, heads, records)
    kept = sum(len(record.kept) for record in records)
    assert 10 < kept < sum(head.tokens for head, _ in heads) - 10


@pytest.mark.parametrize("holds", [1, 2, 5])
def test_a_memory_that_takes_few_requests_does_not_deadlock(holds, shipped_trace):
    """It takes the next request only after a response has been taken, with a full scoreboard."""
    heads = heads_of(SMALL, 3, 3) + heads_of(SMALL, 2, 4, shipped_trace)
    timing = MemoryTiming(latency=(1, 20), reorder=True)
    check(SMALL, heads, run(SMALL, heads, timing, holds=holds))


class PlainMultiplier(ChunkMultiplier):
    """The same product by Amaranth's operator, which its simulator computes in one step."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.a * Cat(self.chunk, self.chunk[-1] & self.negative).as_signed())
        return m


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(chunk_multiplier, "ChunkMultiplier", PlainMultiplier)


@pytest.mark.parametrize(("bits", "chunk_bits"), [(4, 2), (2, 1), (5, 3), (6, 4)])
def test_every_product(bits, chunk_bits):
    dut = ChunkMultiplier(bits, chunk_bits)

    async def testbench(ctx):
        for a in range(-(1 << bits - 1), 1 << bits - 1):
            for chunk in range(1 << chunk_bits):
                for negative in (0, 1):
                    ctx.set(dut.a, a)
                    ctx.set(dut.chunk, chunk)
                    ctx.set(dut.negative, negative)
                    value = chunk - (negative * (chunk >> chunk_bits - 1) << chunk_bits)
                    assert ctx.get(dut.o) == a * value

    simulator = Simulator(dut)
    simulator.add_testbench(testbench)
    simulator.run()


def real_heads(p, trace, numbers, tokens):
    made = [real_head(p, trace, n, 10**6, np.random.default_rng(0), tokens)[0] for n in numbers]
    return [(data.head, data.k) for data in made]


def test_a_real_head_at_fifty_cycles(shipped_trace, capsys, fast):
    """The paper's dimensions: the lane is busy at least 95 % of the cycles while there are tokens
    left, and keeps every token above the threshold."""
    p = PeLaneParameters()
    heads = real_heads(p, shipped_trace, [1], 200)
    timing = MemoryTiming(latency=(40, 60), reorder=True, seed=2)
    records = run(p, heads, timing)
    check(p, heads, records)
    _report(p, heads, records, capsys)
    assert records[0].busy >= 0.95


@pytest.mark.campaign
@pytest.mark.parametrize(("latency", "busy"), [((50, 50), 0.95), ((20, 80), 0.95), ((1, 99), 0.94)])
def test_real_heads(latency, busy, shipped_trace, capsys, fast):
    p = PeLaneParameters()
    heads = real_heads(p, shipped_trace, range(0, 27, 4), 500)
    records = run(p, heads, MemoryTiming(latency=latency, reorder=True, seed=2))
    check(p, heads, records)
    _report(p, heads, records, capsys)
    assert all(record.busy >= busy for record in records)


@pytest.mark.campaign
def test_the_papers_scoreboard_hides_less(shipped_trace, capsys, fast):
    """With 32 entries at most 32 chunks are in flight, for 60 cycles each."""
    p = PeLaneParameters.preset("paper")
    heads = real_heads(p, shipped_trace, [1], 300)
    records = run(p, heads, MemoryTiming(latency=(50, 50)))
    check(p, heads, records)
    _report(p, heads, records, capsys)
    assert 0.5 < records[0].busy < 0.56


def _report(p, heads, records, capsys):
    with capsys.disabled():
        for (head, k), record in zip(heads, records, strict=True):
            above = check_guarantee(p, head, k, record.kept)
            print(
                f"\n{head.tokens} tokens: {len(record.arrivals)} chunks, {len(record.kept)} kept of"
                f" {above} above the threshold, busy {record.busy:.3f}",
                end="",
            )


def test_many_tokens_of_one_score_and_none():
    """Scores of 0, so that tokens are pruned once enough of them are in the denominator.

    Decisions see a denominator from before the latest ones. So a high threshold may prune all
    tokens, each of them rightly: exact probabilities are 1/40.
    """
    p = SMALL
    q, k = np.zeros(p.d, np.int64), np.zeros((40, p.d), np.int64)
    heads = [(Head(q, 40, 0, threshold, 40), k) for threshold in (2, 32, 90)]
    records = run(p, heads, MemoryTiming(latency=(2, 9), reorder=True))
    check(p, heads, records)
    assert len(records[2].kept) == 40 and 0 < len(records[1].kept) < 40
    assert not records[0].kept


def test_a_threshold_of_zero_prunes_nothing():
    """Also where every probability is below the smallest threshold with another code."""
    q, k = np.zeros(SMALL.d, np.int64), np.zeros((SMALL_TOKENS, SMALL.d), np.int64)
    k[-1], q[:] = 31, 31  # the newest token has nearly all of the probability
    zero = (1 << SMALL.threshold_bits) - 1
    heads = [(Head(q, 40, 0, threshold, len(k)), k) for threshold in (zero - 1, zero)]
    records = run(SMALL, heads, MemoryTiming(latency=(2, 9), reorder=True))
    check(SMALL, heads, records)
    assert [len(record.kept) for record in records] == [1, SMALL_TOKENS]


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_heads_without_tokens(stall):
    """Their commands are taken without any output, before, between and after other heads."""
    rng = np.random.default_rng(3)
    replay = Replay(OTHER, rng)
    for tokens in (0, 3, 0, 0, 5, 0):
        data = random_head(OTHER, max(tokens, 1), rng)
        head = dataclasses.replace(data.head, tokens=min(tokens, data.head.tokens))
        replay.add(dataclasses.replace(data, head=head))
    stimulus = replay.stimulus([])
    assert sum(decision.ended for decision in replay.decisions) == 2
    simulate(BLOCK, OTHER, stimulus, stall)
