"""The core: tokens of whole sequences through the RTL, what it reads, and cycles.

Outputs are checked against those of the core's own decisions, see the testbench.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from hw.catalogue import find
from hw.topick.core_parameters import TokenWork, TopickCoreParameters
from sim.core import payload
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.topick.core_jobs import Jobs
from sim.testbenches.topick.core_random import random_jobs, real_jobs
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.topick_core import decisions_of, testbench
from tests.support.sim.checked import Checked
from tests.support.topick.core_loop import run

BLOCK = find("topick.topick_core")
SMALL = TopickCoreParameters.preset("small")
BASELINE = dataclasses.replace(SMALL, pruning=False, observe=False)
RNG = np.random.default_rng
FIFTY = MemoryTiming((50, 50))
ANY = MemoryTiming((1, 99), reorder=True, seed=3)
SLOW = MemoryTiming((1, 20), interval=3, reorder=True, seed=4)
TIMINGS = (FASTEST, FIFTY, ANY, SLOW)


class Core(Checked):
    """The compiled core."""

    def decisions(self, stimulus, outcome):
        found, decisions = decisions_of(
            stimulus, outcome.outputs, self.design.outputs, outcome.cycles_of
        )
        assert found == []
        return decisions


@pytest.fixture(scope="module")
def small():
    return Core(BLOCK, SMALL)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_any_stalls_and_any_memory(small, shipped_trace, seed):
    for data, heads in ((shipped_trace, 40), (None, 120)):
        stimulus = testbench.stimulus(SMALL, data, heads, seed)
        for stall in PATTERNS:
            for timing in TIMINGS:
                outcome = small.run(stimulus, stall, timing, seed)
                if stall == "none":
                    assert outcome.cycles == stimulus.predicted(timing).cycles


@pytest.mark.parametrize("instead", [0.0, 0.9])
def test_another_threshold_than_the_job_s_is_seen(small, shipped_trace, instead):
    """As a core would do that never prunes, or too much; a cycle more or less is seen, too."""
    p = SMALL
    stimulus = Jobs.stimulus(real_jobs(p, shipped_trace, 9, RNG(1))[0], [])
    outcome = small.run(stimulus)
    assert stimulus.wrong_cycles(outcome) is None
    for cycles in (outcome.cycles - 1, outcome.cycles + 1):
        wrong = stimulus.wrong_cycles(dataclasses.replace(outcome, cycles=cycles))
        assert wrong == f"took {cycles} cycles where the formula says {outcome.cycles}"
    fields = payload.unpack(p.command_layout, stimulus.inputs["command"])
    fields["threshold"][:] = coded_head(p.lane, np.zeros(p.d, int), 1.0, instead, 1).threshold
    stimulus.inputs["command"] = payload.pack(p.command_layout, fields)
    other = small.simulate(stimulus)
    layouts = small.design.outputs
    found = testbench.compare(stimulus, other.outputs, layouts, other.cycles_of)
    assert found[0].stream.startswith("report") and found[0].field == "kept"
    assert stimulus.wrong_cycles(other) is not None


def test_random_jobs_cover_what_they_should():
    jobs = random_jobs(SMALL, 3000, RNG(2))
    work = [job for job in jobs.work if job]
    assert len(jobs.work) - len(work) > 50, "refused jobs"
    tokens = [job[0].head.tokens for job in work]
    assert min(tokens) == 1 and max(tokens) == SMALL.tokens and tokens.count(1) > 5
    assert {len(job) for job in work} == {1, 2, 3, 4}
    thresholds = {job[0].head.threshold for job in work}
    assert (1 << SMALL.threshold_bits) - 1 in thresholds and len(thresholds) >= 5


def test_a_wrong_denominator_is_seen(small, shipped_trace):
    """Also where no decision differs: the prediction has one that is a unit higher."""
    stimulus = testbench.stimulus(SMALL, shipped_trace, 4, 1)
    outcome = small.run(stimulus)
    seen = stimulus.predicted(FASTEST).seen[1]
    at = next(n for n, (_, _, known, _) in enumerate(seen) if known)
    seen[at] = (*seen[at][:3], seen[at][3] + 1)
    found = testbench.compare(stimulus, outcome.outputs, small.design.outputs, outcome.cycles_of)
    assert [(it.stream, it.beat, it.field) for it in found] == [
        ("observed__1", at, "denominator.log2")
    ]


def test_sequences_of_long_runs_begin_with_cached_tokens():
    """Heads of any number of tokens, also one after another in the same lanes."""
    work = [job for job in random_jobs(SMALL, 300, RNG(3)).work if job]
    tokens = [job[0].head.tokens for job in work]
    assert max(tokens) > 60 and min(tokens) < 5
    assert sum(len(job) == SMALL.heads and job[-1].kv_head == 0 for job in work) > 5
    jumps = [pair for pair in itertools.pairwise(tokens) if pair[1] not in (1, pair[0] + 1)]
    assert len(jumps) > 10


TIGHT = dataclasses.replace(SMALL, entries=2, tokens=16, observe=False)


@pytest.mark.parametrize("holds", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_a_memory_that_takes_few_requests_does_not_deadlock(holds, kept):
    """It takes the next request only after a response has been taken; two slots in each lane."""
    jobs = random_jobs(TIGHT, 12, RNG(4))
    if kept:
        jobs = Jobs(TIGHT)
        for job in filter(None, random_jobs(TIGHT, 12, RNG(4)).work):
            every = (1 << TIGHT.threshold_bits) - 1
            heads = [dataclasses.replace(work.head, threshold=every) for work in job]
            group = 1 + sum(work.kv_head == 0 for work in job[1:])
            kv = [[x[-1] for x in (work.k, work.v)] for work in job if work.number % group == 0]
            jobs.add(heads, *np.array(kv).swapaxes(0, 1), group)
    stimulus = jobs.stimulus([])
    outputs, cycles = run(stimulus, MemoryTiming((1, 9), reorder=True), holds)
    layouts = {"o": TIGHT.output_layout}
    layouts |= {f"report__{lane}": TIGHT.report_layout for lane in range(TIGHT.lanes)}
    assert testbench.compare(stimulus, outputs, layouts, cycles) == []


def test_jobs_that_do_not_fit_are_refused(small):
    """Each rule broken alone, before a job that fits, whose group is larger than its heads."""
    p = SMALL
    broken = [(0, 1, 1), (p.tokens + 1, 1, 1), (1, 0, 1), (1, p.heads + 1, p.heads), (1, 1, 0)]
    broken.append((1, p.kv_heads + 1, 1))
    rng, jobs = RNG(1), Jobs(p)
    for numbers in broken:
        jobs.add_refused(*numbers)
        heads = [coded_head(p.lane, rng.integers(-32, 32, p.d), 1e-3, 0.0, 1) for _ in range(2)]
        jobs.add(heads, *rng.integers(-32, 32, (2, 1, p.d)), group=(1 << p.heads.bit_length()) - 1)
    for stall, timing in (("none", FASTEST), ("random", ANY)):
        outcome = small.run(jobs.stimulus([]), stall, timing)
        written = sum(memory.rows_written for memory in outcome.memories.values())
        assert written == len(broken) * 2 * p.lane.chunks  # a kv head each, and none of the refused


@pytest.fixture(scope="module")
def baseline():
    return Core(BLOCK, BASELINE)


def test_the_baseline_reads_everything(baseline, shipped_trace):
    for data, heads in ((shipped_trace, 40), (None, 200)):
        stimulus = testbench.stimulus(BASELINE, data, heads, 1)
        for stall in PATTERNS:
            for timing in (FASTEST, FIFTY, dataclasses.replace(SLOW, reorder=False)):
                outcome = baseline.run(stimulus, stall, timing)
                if stall == "none":
                    assert outcome.cycles == stimulus.predicted(timing).cycles
                decisions = baseline.decisions(stimulus, outcome)
                assert all(made.kept.all() for job in decisions for made in job)


def cycles_of(core, tokens, heads, kv_heads, timing=FASTEST):
    """Cycles of a job in which nothing is pruned, of tokens that are in the memories already."""
    p = core.parameters
    rng = RNG(tokens)
    k, v = rng.integers(-8, 8, (2, kv_heads, tokens, p.d))
    jobs = Jobs(p, (k, v))
    made = [coded_head(p.lane, rng.integers(-8, 8, p.d), 1e-3, 0.0, tokens) for _ in range(heads)]
    jobs.add(made, k[:, -1], v[:, -1])
    return core.run(jobs.stimulus([]), timing=timing).cycles


@pytest.mark.campaign
@pytest.mark.parametrize("timing", [FASTEST, SLOW], ids=["fastest", "slow"])
def test_heads_of_all_rows_wait_for_room(timing):
    """Every token is kept, each with a probability that does not round to 0. With few values
    requested between the keys, the next head has to wait for the generators."""
    p, rng, tokens = dataclasses.replace(SMALL, entries=40, observe=False), RNG(1), 60
    core = Core(BLOCK, p)
    k, v = rng.integers(-32, 32, (2, 1, tokens, p.d))
    jobs = Jobs(p, (k, v))
    heads = [coded_head(p.lane, np.zeros(p.d, int), 1e-3, 0.0, tokens) for _ in range(4)]
    for _ in range(2):
        jobs.add(heads, k[:, -1], v[:, -1])
    outcome = core.run(jobs.stimulus([]), timing=timing)
    read = sum(memory.rows_read for memory in outcome.memories.values())
    assert read == 2 * 4 * tokens * 2 * p.lane.chunks


def test_latency(small):
    assert cycles_of(small, 1, 1, 1) == SMALL.latency


@pytest.mark.parametrize("latency", [1, 20])
def test_cycles_without_pruning(baseline, latency):
    assert cycles_of(baseline, 1, 1, 1) == BASELINE.latency
    timing = MemoryTiming((latency, latency))
    for tokens in (1, 2, 7, 30, 63, 64):
        for heads in (1, 2):
            expected = BASELINE.cycles([TokenWork(tokens, heads, heads)], latency)
            assert cycles_of(baseline, tokens, heads, heads, timing) == expected
    for tokens in (32, 50, 64):
        for heads, kv_heads in ((2, 1), (3, 1), (4, 1), (4, 2)):
            expected = BASELINE.cycles([TokenWork(tokens, heads, kv_heads)], latency)
            found = cycles_of(baseline, tokens, heads, kv_heads, timing)
            assert abs(found - expected) <= 12 * (heads // kv_heads - 1)


# --- larger cores ---


def run_real(core, trace, heads, tokens, timing, layer=0, stall="none", seed=1):
    """Heads of a layer with as many tokens; returns the outcome and the decisions."""
    p = core.parameters
    jobs, _ = real_jobs(p, trace, heads, RNG(seed), tokens=tokens, layer=layer)
    stimulus = jobs.stimulus([])
    outcome = core.run(stimulus, stall, timing, seed)
    return stimulus, outcome, core.decisions(stimulus, outcome)


def reads_of(core, stimulus, outcome, decisions):
    """Chunks of K and V that were read, by lane; those of K are the ones decided upon."""
    jobs = stimulus.jobs
    keys = np.zeros(core.parameters.lanes, int)
    for lane in range(len(keys)):
        part = slice(lane % jobs.parameters.lanes_per_head, None, jobs.parameters.lanes_per_head)
        for job, made in zip(stimulus.work, decisions, strict=True):
            keys[lane] += sum(made[w.number].read[part].sum() for w in jobs.heads_of(lane, job))
    total = np.array([outcome.memories[f"memory__{lane}"].rows_read for lane in range(len(keys))])
    return keys, total - keys


@pytest.fixture(scope="module")
def default():
    return Core(BLOCK, TopickCoreParameters(observe=True))


@pytest.mark.campaign
@pytest.mark.parametrize("timing", [FASTEST, FIFTY, ANY], ids=["fastest", "fifty", "any"])
def test_default_on_real_heads(default, shipped_trace, timing):
    for layer in range(3):
        stimulus, outcome, decisions = run_real(default, shipped_trace, 18, 200, timing, layer)
        keys, values = reads_of(default, stimulus, outcome, decisions)
        tokens = sum(len(made.read) for job in decisions for made in job)
        assert tokens < keys.sum() < 3 * tokens and (values >= 0).all()


@pytest.mark.campaign
def test_default_on_random_heads(default):
    stimulus = testbench.stimulus(default.parameters, None, 200, 1)
    for stall, timing in (("none", FIFTY), ("random", ANY), ("bursts", SLOW)):
        default.run(stimulus, stall, timing)


@pytest.mark.campaign
def test_use_of_the_lanes(default, shipped_trace, capsys):
    """At 500 tokens a head's scores take at most 1300 cycles on average; the slowest lane has a
    chunk in 90 % of the cycles until its last value."""
    for layer in range(3):
        stimulus, outcome, decisions = run_real(default, shipped_trace, 9, 500, FIFTY, layer)
        keys, values = reads_of(default, stimulus, outcome, decisions)
        slowest = (keys + values).argmax()
        ends = [outcome.cycles_of[f"report__{lane}"][-1] for lane in range(3)]
        used = (keys + values)[slowest] / outcome.cycles
        with capsys.disabled():
            print(f"\nlayer {layer}: {outcome.cycles} cycles, K {keys}, V {values}, use {used:.3f}")
        assert used >= 0.9 and np.mean(ends) / 3 <= 1300


@pytest.mark.campaign
def test_longer_vectors():
    """d = 128, 1000 tokens: random keys around a common one, so that scores differ as real ones."""
    p = TopickCoreParameters(d=128, lanes=1, heads=3, kv_heads=1)
    core = Core(BLOCK, p)
    rng = RNG(3)
    k = np.clip(rng.normal(0, 300, (1, 1000, p.d)).astype(int), -2048, 2047)
    v = rng.integers(-2048, 2048, (1, 1000, p.d))
    jobs = Jobs(p, (k[:, :-1], v[:, :-1]))
    q = np.clip(rng.normal(0, 600, (3, p.d)).astype(int), -2048, 2047)
    heads = [coded_head(p.lane, codes, 1.5 / (300 * 600 * p.d**0.5), 1e-3, 1000) for codes in q]
    jobs.add(heads, k[:, -1], v[:, -1])
    stimulus = jobs.stimulus([])
    outcome = core.run(stimulus, timing=FIFTY)
    keys, values = reads_of(core, stimulus, outcome, core.decisions(stimulus, outcome))
    assert (keys + values)[0] / outcome.cycles >= 0.95


@pytest.mark.campaign
def test_buffers_answer_for_the_other_heads_of_a_group(shipped_trace):
    """A row that several heads of a kv head need is read once, and o stays the same."""
    p = TopickCoreParameters(buffer_tokens=512)
    core = Core(BLOCK, p)
    stimulus, outcome, decisions = run_real(core, shipped_trace, 9, 300, FIFTY)
    requested = read = 0
    for job, made in zip(stimulus.work, decisions, strict=True):
        for kv_head in range(3):
            group = np.stack([made[w.number].read for w in job if w.kv_head == kv_head])
            requested, read = requested + group.sum(), read + group.max(axis=0).sum()
    total = sum(memory.rows_read for memory in outcome.memories.values())
    assert read < total < 0.75 * (requested + 3 * 9 * 300)
    for stall, timing in (("random", ANY), ("bursts", SLOW)):
        core.run(stimulus, stall, timing)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["paper", "streams"])
def test_the_other_presets(preset):
    """Two heads of 1024 tokens, or all streams with few."""
    p = TopickCoreParameters.preset(preset)
    core = Core(BLOCK, p)
    rng = RNG(3)
    tokens, heads, kv_heads = (1024, 2, 2) if preset == "paper" else (150, 16, 16)
    k = np.clip(rng.normal(0, 300, (kv_heads, tokens, p.d)).astype(int), -2048, 2047)
    v = rng.integers(-2048, 2048, (kv_heads, tokens, p.d))
    jobs = Jobs(p, (k[:, :-1], v[:, :-1]))
    q = np.clip(rng.normal(0, 600, (heads, p.d)).astype(int), -2048, 2047)
    c = 1.5 / (300 * 600 * p.d**0.5)
    jobs.add([coded_head(p.lane, codes, c, 1e-3, tokens) for codes in q], k[:, -1], v[:, -1])
    stimulus = jobs.stimulus([])
    for timing in (FIFTY, ANY):
        outcome = core.run(stimulus, timing=timing)
        decisions = core.decisions(stimulus, outcome)
        kept = np.mean([made.kept.mean() for job in decisions for made in job])
        assert 0.01 < kept < 0.9


def test_small_with_buffers(shipped_trace):
    core = Core(BLOCK, dataclasses.replace(SMALL, buffer_tokens=16))
    for data, heads in ((shipped_trace, 40), (None, 120)):
        stimulus = testbench.stimulus(core.parameters, data, heads, 3)
        for stall, timing in (("random", ANY), ("bursts", SLOW)):
            core.run(stimulus, stall, timing)
        for timing in (FASTEST, FIFTY):
            outcome = core.run(stimulus, timing=timing)
            assert outcome.cycles == stimulus.predicted(timing).cycles
