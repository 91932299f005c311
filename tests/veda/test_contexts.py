# amaranth: UnusedElaboratable=no
"""Several sequences at once: steps of contexts in any order, and what overlaps of them."""

import dataclasses

import numpy as np
import pytest

from golden.veda.veda_core import VedaCore
from hw.veda.veda_core import VedaCoreParameters
from sim.core.dram.timing import parse_timing
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.veda.veda_core import A, B, Steps, random_steps, real_steps
from tests.veda.test_veda_core import FAR, RNG, SLOW, SMALL, Core

THREE = VedaCoreParameters(2, 2, 1, 16, 6, 3, 8, position_bits=8, count_bits=4, contexts=3)


def test_a_sequence_is_what_it_is_alone():
    """By the model: results and reports do not depend on other contexts' steps between."""
    rng, settings = RNG(1), {"a": A, "b": B, "target": 6}
    together, apart = VedaCore(16, contexts=3), [VedaCore(16) for _ in range(3)]
    for _ in range(90):
        context = int(rng.integers(3))
        q, k, v = (rng.standard_normal((n, 8)).astype(np.float16) for n in (4, 2, 2))
        one = together.step(q, k, v, context=context, **settings)
        other = apart[context].step(q, k, v, **settings)
        assert np.array_equal(one.o, other.o) and np.array_equal(one.p, other.p)
        reports = [dataclasses.replace(report, context=context) for report in other.reports]
        assert one.reports == reports
    assert {cache.length for cache in together.contexts} == {6}


def test_random_steps_are_of_all_contexts():
    reports = [result.reports[0] for result in random_steps(SMALL, 300, RNG(4)).results]
    contexts = np.array([report.context for report in reports])
    assert np.count_nonzero(np.diff(contexts)) > 50
    assert {report.context for report in reports if report.error} == {0, 1}


@pytest.mark.campaign
def test_three_contexts_under_stalls(shipped_trace):
    """No power of two, so commands may name a context that does not exist: they are refused."""
    core, refused = Core(THREE), []
    for seed in range(4):
        for steps in (random_steps(THREE, 150, RNG(seed)), real_steps(THREE, shipped_trace, 90)[0]):
            stimulus = steps.stimulus([])
            assert stimulus.wrong_cycles(core.check(stimulus)) is None
            for stall in PATTERNS:
                for timing in (SLOW, FAR):
                    core.check(stimulus, stall, timing, seed)
            refused += [r.reports[0] for r in steps.results if r.refused]
    assert {report.context for report in refused} == {0, 1, 2, 3}
    assert all(report.length == 0 for report in refused if report.context == 3)
    assert any(report.length for report in refused)


def alternating(p: VedaCoreParameters, length: int, steps: int) -> Steps:
    """Steps of `length` slots of all contexts in turn, with a vote and an eviction each."""
    done, rng = Steps(p), RNG(1)
    for t in range(length - 1 + steps):
        kept = {"vote": t >= length - 1, "evict": t >= length - 1, "target": length - 1}
        for context in range(p.contexts):
            rows = (rng.standard_normal((n, p.d)).astype(np.float16) for n in (p.heads, 3, 3))
            command = {"restart": t == 0, "context": context, "protected": 0}
            done.add(*rows, a=A, b=B, **command, **kept)
    return done


def test_votes_are_counted_beside_the_next_step():
    """At 128 slots of nine heads of three, all but a few cycles of a step are rows in the array."""
    work = [(128, 9, 3, True, 1, n % 2) for n in range(100)]
    serial, hidden = (
        dataclasses.replace(VedaCoreParameters(), contexts=n).cycles(
            [(*step[:5], step[5] % n) for step in work]
        )
        for n in (1, 2)
    )
    assert serial / 100 > 2700 and hidden / 100 < 2380


@pytest.mark.campaign
@pytest.mark.parametrize("latency", [1, 128])
def test_the_array_is_hardly_ever_idle_with_two_contexts(latency):
    """In the RTL, with votes and evictions; a far memory, in any order, delays nothing."""
    p = VedaCoreParameters(contexts=2)
    steps = alternating(p, 128, 8)
    stimulus = steps.stimulus([])
    for timing in (MemoryTiming((latency, latency)), MemoryTiming((1, latency), reorder=True)):
        outcome = Core(p).check(stimulus, timing=timing)
        taken = np.asarray(outcome.cycles_of["o"]).reshape(-1, 9)[-13:]
        assert (np.diff(taken[:, -1]) <= 2376).all()
        assert 12 * 2304 / (taken[-1, -1] - taken[0, -1]) > 0.969
        assert outcome.memories["memory"].rows_read == sum(map(p.rows_read, steps.work))


def growing_contexts(p: VedaCoreParameters, contexts: int, tokens: int) -> Steps:
    """Steps of 1, 2, 3, ... slots of the first `contexts` in turn; all but four tokens vote."""
    done, rng = Steps(p), RNG(1)
    for t in range(tokens):
        for context in range(contexts):
            rows = (rng.standard_normal((n, p.d)).astype(np.float16) for n in (p.heads, 3, 3))
            command = {"restart": t == 0, "vote": t >= 4, "evict": False, "target": 0}
            done.add(*rows, a=A, b=B, context=context, protected=0, **command)
    return done


@pytest.mark.campaign
def test_a_second_context_hides_hbm2_from_short_steps():
    """A table of docs/dram.md. One sequence sees the latency in each step, two none of it."""
    p = VedaCoreParameters(contexts=2)
    core = Core(p)
    for contexts, least, most in ((1, 1.05, 1.2), (2, 1, 1.005)):
        for tokens in (6, 16, 32):
            stimulus = growing_contexts(p, contexts, tokens).stimulus([])
            ideal = core.check(stimulus, timing=FASTEST).cycles
            for text in ("hbm2", "hbm2,map=row:bank:column:channel,hash=on"):
                cycles = core.check(stimulus, timing=parse_timing(text)).cycles
                assert least <= cycles / ideal < most
