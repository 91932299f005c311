"""The voting engine: its model against exact fractions and the algorithm; every size in RTL."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from golden.algorithms.veda.voting import VotingAttention, cast_votes, count_votes, slot_to_evict
from golden.attention.probability import fixed, is_probability
from golden.veda.voting_engine import (
    VotingEngine,
    threshold,
    vote,
    weight,
)
from hw.attention import probability
from hw.catalogue import find
from hw.veda.vote_threshold import VoteThreshold, VoteThresholdParameters
from hw.veda.voting_engine import VotingEngineParameters
from sim.testbenches.veda.voting_engine import A, B, Steps, attention_inputs, real_steps, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("veda.voting_engine")
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
SIZES = [
    VotingEngineParameters(capacity=2, heads=1, position_bits=1, count_bits=1),
    VotingEngineParameters(capacity=13, heads=3, position_bits=10, count_bits=16),
    VotingEngineParameters(capacity=13, heads=3, position_bits=10, count_bits=16, block=4),
]


# --- the bit-exact model ---


def test_every_probability_is_a_multiple_of_the_smallest():
    good = is_probability(EVERY)
    assert good.sum() == 0x3C01 and not good[0x8000]
    values = EVERY[good]
    assert all(Fraction(float(p)) * 2**24 == n for p, n in zip(values, fixed(values), strict=True))


def votes_by_fractions(s, positions, a, b):
    """Figure 3 without roots: deviation^2 and squares are rational."""
    s = [Fraction(int(value)) for value in s]
    a, b = Fraction(a, 4096), Fraction(b, 4096)
    mean = sum(s) / len(s)
    variance = sum((value - mean) ** 2 for value in s) / len(s)
    if (a * mean) ** 2 < b**2 * variance:
        return [j == min(range(len(s)), key=lambda j: (s[j], positions[j])) for j in range(len(s))]
    gaps = [a * mean - value for value in s]
    return [gap > 0 and gap**2 > b**2 * variance for gap in gaps]


def cases(rng, count):
    """Scores, positions, weights: any, and few different ones, so that scores meet thresholds."""
    for _ in range(count):
        slots = int(rng.integers(1, 12))
        scale = rng.choice([4, 64, 1 << 12, 1 << 29])
        s = rng.integers(0, scale + 1, slots)
        a, b = rng.integers(0, 1 << 15, 2) >> rng.integers(0, 15, 2)
        weights = [(A, B), (4096, 4096), (4096, 0), (0, 800), (2048, 4096), (int(a), int(b))]
        yield s, rng.permutation(20)[:slots], *weights[rng.integers(0, len(weights))]


def test_votes_are_exact():
    rng = np.random.default_rng(1)
    kinds = {"some": 0, "none": 0, "negative": 0, "all but exact": 0}
    for s, positions, a, b in cases(rng, 4000):
        got = vote(s, positions, a, b)
        assert got.tolist() == votes_by_fractions(s, positions, a, b)
        negative, limit = threshold(s, a, b)
        kinds["negative"] += negative
        kinds["none"] += not got.any()
        kinds["some"] += 0 < got.sum() < len(s) and not negative
        kinds["all but exact"] += bool((s == limit + 1).any()) and not negative
    assert min(kinds.values()) > 200, kinds


def test_votes_are_the_algorithms():
    """Equal to level 1 unless a score lies so close to T that float64 may be wrong."""
    rng = np.random.default_rng(2)
    compared = 0
    for s, positions, a, b in cases(rng, 4000):
        want, t = cast_votes(s, positions, a / 4096, b / 4096)
        reach = 1e-9 * (abs(t) + a / 4096 * s.mean() + b / 4096 * s.std() + 1e-9)
        if abs(t) > reach and (np.abs(s - t) > reach).all():
            assert np.array_equal(vote(s, positions, a, b), want)
            compared += 1
    assert compared > 2500


def test_counts_and_evictions_are_the_algorithms():
    """Step by step with level 1's functions, on the votes of exact scores."""
    rng = np.random.default_rng(3)
    evicted = 0
    for _ in range(20):
        engine = VotingEngine(12)
        positions, counts = np.empty(0, np.int64), np.empty(0, np.uint16)
        protected = int(rng.integers(0, 4))
        for token in range(40):
            positions, counts = np.append(positions, token), np.append(counts, np.uint16(0))
            p = rng.random((3, len(positions))).astype(np.float16)
            reports = engine.step(p, a=A, b=B, evict=token > 9, target=6, protected=protected)
            counts = count_votes(counts, vote(fixed(p).sum(axis=0), positions, A, B))
            for report in reports[: len(reports) if reports[0].evict else 0]:
                slot = slot_to_evict(counts, positions, protected)
                assert (report.slot, report.position) == (slot, positions[slot])
                positions[slot], counts[slot] = positions[-1], counts[-1]
                positions, counts = positions[:-1], counts[:-1]
                evicted += 1
            assert np.array_equal(engine.positions, positions)
            assert np.array_equal(engine.counts, counts)
            assert reports[-1].length == len(positions) and reports[-1].last
    assert evicted > 500


def test_weights():
    assert (weight(1.0), weight(0.2), weight(0)) == (4096, 819, 0)
    for wrong in (-0.01, 8, float("nan")):
        with pytest.raises(ValueError, match="a weight must be at least 0 and below 8"):
            weight(wrong)


def test_real_sequences_against_level_1(shipped_trace, capsys):
    """FP16 probabilities and b = 819/4096 against float64: which tokens leave, layer by layer."""
    p = VotingEngineParameters(capacity=64, heads=shipped_trace.q.shape[1])
    tokens, target = min(200, shipped_trace.q.shape[2]), 48
    q, k, scale = attention_inputs(p, shipped_trace)
    both = left = 0
    for layer in range(len(q)):
        level_1 = VotingAttention(target, reserved=16, scale=scale)
        engine = VotingEngine(p.capacity)
        out = []
        for t in range(tokens):
            rows = np.append(engine.positions, t)
            scores = scale * np.einsum("hd,hld->hl", q[layer, :, t], k[layer][:, rows])
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            s = (e / e.sum(axis=1, keepdims=True)).astype(np.float16)
            reports = engine.step(s, a=A, b=B, vote_cast=t >= 16, target=target)
            out += [report.position for report in reports if report.evict]
            level_1.step(q[layer, :, t], k[layer, :, t], k[layer, :, t])
        left += len(out)
        both += len(set(out) & set(level_1.evicted))
    with capsys.disabled():
        print(f"\n{both} of {left} evicted tokens are level 1's")
    assert left > 100 and both > 0.97 * left


# --- the hardware ---


def test_every_probability_becomes_fixed_point():
    m = Module()
    p, number = Signal(16), Signal(25)
    m.d.comb += number.eq(probability.fixed(p))
    want = fixed(EVERY[:0x3C01]).tolist()

    async def testbench(ctx):
        for code, right in enumerate(want):
            ctx.set(p, code)
            assert ctx.get(number) == right

    simulate(m, testbench, clocked=False)


def simulate(dut, testbench, clocked=True):
    done = False

    async def process(ctx):
        nonlocal done
        await testbench(ctx)
        done = True

    simulator = Simulator(dut)
    if clocked:
        simulator.add_clock(1e-9)
    simulator.add_testbench(process)
    simulator.run()
    assert done


def test_threshold_of_small_numbers():
    """Every list of up to three scores of 0 to 3, with weights that often meet them exactly."""
    dut = VoteThreshold(VoteThresholdParameters(slots=3, probability_bits=2, largest=3))
    weights = [(4096, 819), (4096, 4096), (4096, 0), (0, 4096), (6144, 4096), (32767, 32767)]
    lists = [s for slots in (1, 2, 3) for s in itertools.product(range(4), repeat=slots)]
    kinds = {"negative": 0, "no votes": 0, "all": 0, "some": 0}

    async def testbench(ctx):
        for s, (a, b) in itertools.product(lists, weights):
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            for name, value in (
                ("length", len(s)),
                ("a", a),
                ("b", b),
                ("add", 1),
                ("add_square", 1),
            ):
                ctx.set(getattr(dut, name), value)
            for score in s:
                ctx.set(dut.probability, score)
                ctx.set(dut.score, score)
                await ctx.tick()
            for name, value in (("add", 0), ("add_square", 0), ("start", 1)):
                ctx.set(getattr(dut, name), value)
            await ctx.tick()
            ctx.set(dut.start, 0)
            cycles = 1
            while not ctx.get(dut.done):
                await ctx.tick()
                cycles += 1
            assert cycles == dut.parameters.latency
            await ctx.tick()
            negative, limit = threshold(np.array(s), a, b)
            no_votes = bool(ctx.get(dut.no_votes))
            assert (ctx.get(dut.negative), no_votes) == (negative, limit < 0)
            assert no_votes or ctx.get(dut.limit) == limit
            votes = sum(score <= limit for score in s)
            some = "some" if votes < len(s) else "all"
            kinds["negative" if negative else some if votes else "no votes"] += 1

    simulate(dut, testbench)
    assert sum(kinds.values()) == 84 * 6 and min(kinds.values()) > 20, kinds


@pytest.mark.parametrize(
    "p",
    [
        SIZES[1],
        pytest.param(VotingEngineParameters(), marks=pytest.mark.campaign),
        pytest.param(VotingEngineParameters.preset("paper"), marks=pytest.mark.campaign),
    ],
    ids=lambda p: f"capacity{p.capacity}",
)
def test_a_cache_that_fills_up(p):
    """From one slot to all of them; then a slot is evicted though the command forbids it."""
    rng = np.random.default_rng(5)
    steps = Steps(p)
    for token in range(p.capacity + 3):
        e = np.exp(rng.normal(size=(1 + (token % 64 == 0), steps.length(False))))
        s = (e / e.sum(axis=1, keepdims=True)).astype(np.float16)
        steps.add(s, restart=False, vote=True, evict=False, target=0, protected=0, a=A, b=B)
    evictions = [report.evict for step in steps.reports for report in step]
    assert evictions == [False] * (p.capacity - 1) + [True] * 4
    Compiled(BLOCK, p).check(steps.stimulus([]), "none")


def test_a_prompt_longer_than_the_cache(shipped_trace):
    """Several slots are evicted in one step, one report each, the last with ``last``."""
    p = SIZES[1]
    reports = [step for step in real_steps(p, shipped_trace, 100).reports if len(step) > 1]
    assert reports and all([r.last for r in step] == [False, True] for step in reports)


def test_an_invalid_step_leaves_no_trace():
    """It counts no votes; later steps are as if it had been a step without votes."""
    p = SIZES[1]
    compiled = Compiled(BLOCK, p)
    for bad in (0x7C00, 0x7E01, 0xFC00, 0x8000, 0x3C01):
        steps = {True: Steps(p), False: Steps(p)}
        for invalid, outcome in steps.items():
            rng = np.random.default_rng(bad)
            for token in range(8):
                s = (rng.random((2, token + 1)) / 4).astype(np.float16)
                if token == 4 and invalid:
                    s[1, 2] = np.uint16(bad).view(np.float16)
                fields = {"target": 1, "protected": 0, "a": A, "b": B, "evict": token == 7}
                outcome.add(s, restart=token == 0, vote=token != 4 or invalid, **fields)
            compiled.check(outcome.stimulus([]), "none")
        left = [[(r.slot, r.position) for r in outcome.reports[-1]] for outcome in steps.values()]
        assert left[0] == left[1] and len(left[0]) == 7
        flags = [step[0].invalid for step in steps[True].reports]
        assert flags == [token == 4 for token in range(8)]


def test_every_size_and_stall(shipped_trace):
    for parameters in SIZES:
        compiled = Compiled(BLOCK, parameters)
        for data, steps in ((None, 200), (shipped_trace, 60)):
            stimulus = testbench.stimulus(parameters, data, steps, seed=7)
            compiled.check_all(stimulus)
