"""The core: tokens of whole sequences through the RTL, what it reads, and cycles.

Outputs are checked against those of the core's own decisions, see the testbench.
"""

import dataclasses

import numpy as np
import pytest

from golden.topick.pe_lane import PeLane
from golden.topick.topick_core import replay
from hw.catalogue import find
from hw.topick.topick_core import TopickCoreParameters
from sim.core import payload
from sim.core.design import generate
from sim.core.memory import FASTEST, MemoryTiming, timings_of
from sim.core.stalls import PATTERNS
from sim.drivers.harness.runner import Harness
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.topick_core import (
    Jobs,
    decisions_of,
    random_jobs,
    real_jobs,
    testbench,
)
from tests.support.topick.core_loop import run

BLOCK = find("topick.topick_core")
SMALL = TopickCoreParameters.preset("small")
BASELINE = dataclasses.replace(SMALL, pruning=False)
RNG = np.random.default_rng
FIFTY = MemoryTiming((50, 50))
ANY = MemoryTiming((1, 99), reorder=True, seed=3)
SLOW = MemoryTiming((1, 20), interval=3, reorder=True, seed=4)
TIMINGS = (FASTEST, FIFTY, ANY, SLOW)


class Core:
    """The compiled core. Each stimulus runs from reset."""

    def __init__(self, parameters: TopickCoreParameters):
        self.design = generate(BLOCK, parameters)
        self.harness = Harness(self.design)

    def run(self, stimulus, stall="none", timing=FASTEST, seed=1):
        self.harness.reset()
        stimulus.stall = stall
        timings = timings_of(stimulus.memories, timing)
        outcome = self.harness.run(stimulus, PATTERNS[stall], seed, timings)
        assert outcome.failure is None, outcome.failure
        found = testbench.compare(stimulus, outcome.outputs, self.design.outputs, outcome.cycles_of)
        assert found == [], found[0]
        return outcome

    def decisions(self, stimulus, outcome):
        found, decisions = decisions_of(
            stimulus, outcome.outputs, self.design.outputs, outcome.cycles_of
        )
        assert found == []
        return decisions


@pytest.fixture(scope="module")
def small():
    return Core(SMALL)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_any_stalls_and_any_memory(small, shipped_trace, seed):
    for data, heads in ((shipped_trace, 40), (None, 200)):
        stimulus = testbench.stimulus(SMALL, data, heads, seed)
        for stall in PATTERNS:
            for timing in TIMINGS:
                small.run(stimulus, stall, timing, seed)


def test_random_jobs_cover_what_they_should():
    jobs = random_jobs(SMALL, 3000, RNG(2))
    tokens = [job[0].head.tokens for job in jobs.work]
    assert min(tokens) == 1 and max(tokens) == SMALL.tokens and tokens.count(1) > 5
    assert {len(job) for job in jobs.work} == {1, 2, 3, 4}
    thresholds = {job[0].head.threshold for job in jobs.work}
    assert (1 << SMALL.threshold_bits) - 1 in thresholds and len(thresholds) >= 5


def test_decisions_are_those_of_the_lanes_model(shipped_trace):
    """Each decision is repeated by the bit-exact model, with the denominator that the lane saw."""
    p = dataclasses.replace(SMALL, observe=True)
    core = Core(p)
    for data, heads, timing in ((shipped_trace, 40, ANY), (None, 200, SLOW)):
        stimulus = testbench.stimulus(p, data, heads, 5)
        outcome = core.run(stimulus, "random", timing)
        check_observed(core, stimulus, outcome)


def check_observed(core, stimulus, outcome):
    p, jobs = core.design.parameters, stimulus.jobs
    decisions = core.decisions(stimulus, outcome)
    for lane in range(p.lanes):
        name = f"observed__{lane}"
        beats = payload.unpack(core.design.outputs[name], outcome.outputs[name])
        columns = ["tag.token", "tag.chunk", "tag.slot", "denominator.known", "denominator.log2"]
        log2 = beats["denominator.log2"].astype(np.int64)
        beats["denominator.log2"] = (log2 ^ 1 << p.width - 1) - (1 << p.width - 1)
        seen = list(zip(*(beats[column].astype(int).tolist() for column in columns), strict=True))
        model, share, at = PeLane(jobs.sizes), lane % p.lanes_per_head, 0
        for job, decided in zip(stimulus.work, decisions, strict=True):
            for work in jobs.heads_of(lane, job):
                rows = jobs.rows_of(lane, work.head.tokens)
                if rows == 0:
                    continue
                part = slice(share, None, p.lanes_per_head)
                newest = (work.head.tokens - 1) % p.lanes_per_head == share
                head = dataclasses.replace(work.head, tokens=rows, exempt=newest)
                made = decided[work.number]
                count = int(made.read[part].sum())
                replayed = replay(
                    model,
                    head,
                    work.k[part],
                    seen[at : at + count],
                    jobs.sizes,
                    newest=newest,
                    first=share == 0,
                )
                kept = {d.token for d in replayed if d.kept}
                assert kept == set(np.flatnonzero(made.kept[part]).tolist())
                assert (beats["head"][at : at + count] == work.number).all()
                at += count
        assert at == len(seen)


TIGHT = dataclasses.replace(SMALL, entries=2, tokens=16)


@pytest.mark.parametrize("holds", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_a_memory_that_takes_few_requests_does_not_deadlock(holds, kept):
    """It takes the next request only after a response has been taken; two slots in each lane."""
    jobs = random_jobs(TIGHT, 24, RNG(4))
    if kept:
        jobs = Jobs(TIGHT)
        for job in random_jobs(TIGHT, 24, RNG(4)).work:
            every = (1 << TIGHT.threshold_bits) - 1
            heads = [dataclasses.replace(work.head, threshold=every) for work in job]
            group = 1 + sum(work.kv_head == 0 for work in job[1:])
            kv = [[x[-1] for x in (work.k, work.v)] for work in job if work.number % group == 0]
            jobs.add(heads, *np.array(kv).swapaxes(0, 1), group)
    stimulus = jobs.stimulus([])
    outputs, cycles = run(stimulus, MemoryTiming((1, 9), reorder=True), holds)
    layouts = {"o": TIGHT.output_layout}
    layouts |= {f"decided__{lane}": TIGHT.decided_layout for lane in range(TIGHT.lanes)}
    assert testbench.compare(stimulus, outputs, layouts, cycles) == []


def test_jobs_out_of_range_count_as_one(small):
    """Of no tokens or heads, of too many, and of heads that take too many kv heads."""
    p = SMALL
    for field, value in (("tokens", 0), ("tokens", 65), ("heads", 0), ("heads", 5), ("group", 0)):
        jobs = random_jobs(p, 1, RNG(3))
        while len(jobs.work) > 1 or len(jobs.work[0]) != 1:
            jobs = random_jobs(p, 1, RNG(int(RNG().integers(1 << 30))))
        stimulus = jobs.stimulus([])
        fields = payload.unpack(p.job_layout, stimulus.inputs["job"])
        fields[field][:] = value
        stimulus.inputs["job"] = payload.pack(p.job_layout, fields)
        small.run(stimulus)


@pytest.fixture(scope="module")
def baseline():
    return Core(BASELINE)


def test_the_baseline_reads_everything(baseline, shipped_trace):
    for data, heads in ((shipped_trace, 40), (None, 200)):
        stimulus = testbench.stimulus(BASELINE, data, heads, 1)
        for stall in PATTERNS:
            for timing in (FASTEST, FIFTY, dataclasses.replace(SLOW, reorder=False)):
                outcome = baseline.run(stimulus, stall, timing)
                decisions = baseline.decisions(stimulus, outcome)
                assert all(made.kept.all() for job in decisions for made in job)


def cycles_of(core, tokens, heads, kv_heads, latency=1):
    """Cycles of a job in which nothing is pruned, of tokens that are in the memories already."""
    p = core.design.parameters
    rng = RNG(tokens)
    k, v = rng.integers(-8, 8, (2, kv_heads, tokens, p.d))
    jobs = Jobs(p, (k, v))
    made = [coded_head(p.lane, rng.integers(-8, 8, p.d), 1e-3, 0.0, tokens) for _ in range(heads)]
    jobs.add(made, k[:, -1], v[:, -1])
    return core.run(jobs.stimulus([]), timing=MemoryTiming((latency, latency))).cycles


def test_latency(small, baseline):
    for core in (small, baseline):
        assert cycles_of(core, 1, 1, 1) == core.design.parameters.latency


@pytest.mark.parametrize("latency", [1, 20])
def test_cycles_without_pruning(baseline, latency):
    for tokens in (1, 2, 7, 30, 63, 64):
        for heads in (1, 2):
            expected = BASELINE.cycles(tokens, heads, heads, latency)
            assert cycles_of(baseline, tokens, heads, heads, latency) == expected
    for tokens in (32, 50, 64):
        for heads, kv_heads in ((2, 1), (3, 1), (4, 1), (4, 2)):
            expected = BASELINE.cycles(tokens, heads, kv_heads, latency)
            found = cycles_of(baseline, tokens, heads, kv_heads, latency)
            assert abs(found - expected) <= 12 * (heads // kv_heads - 1)
