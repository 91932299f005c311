"""Contexts: sequences in the same memories, whose commands overlap."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.core_work import TokenWork
from sim.core import payload
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.topick.core_jobs import Jobs
from sim.testbenches.topick.core_random import random_jobs, real_jobs
from sim.testbenches.topick.pe_lane import coded_head
from sim.testbenches.topick.prediction import CorePrediction
from sim.testbenches.topick.topick_core import testbench
from tests.support.sim.checked import Checked
from tests.support.topick.core_loop import run

BLOCK = find("topick.topick_core")
SMALL = TopickCoreParameters.preset("contexts")
# A lane a head, which takes half the time to compile.
CONTEXTS = dataclasses.replace(SMALL, lanes=2, lanes_per_head=1)
RNG = np.random.default_rng
FIFTY = MemoryTiming((50, 50))
ANY = MemoryTiming((1, 99), reorder=True, seed=3)
SLOW = MemoryTiming((1, 20), interval=3, reorder=True, seed=4)


@pytest.fixture(scope="module")
def core():
    return Checked(BLOCK, CONTEXTS)


def add(jobs: Jobs, context: int, tokens: int, heads: int, kv_heads: int) -> None:
    """A job of random heads of which nothing is pruned."""
    p, rng = jobs.parameters, RNG(tokens)
    made = [coded_head(p.lane, rng.integers(-8, 8, p.d), 1e-3, 0.0, tokens) for _ in range(heads)]
    jobs.add(made, *rng.integers(-8, 8, (2, kv_heads, p.d)), context=context)


def cached(p: TopickCoreParameters, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    k, v = RNG(seed).integers(-8, 8, (2, p.kv_heads, tokens, p.d))
    return k, v


def contexts_of(p: TopickCoreParameters, outcome) -> list[int]:
    """The context of each beat of ``o``."""
    return payload.unpack(p.output_layout, outcome.outputs["o"])["context"].tolist()


def test_two_stall_patterns(core, shipped_trace):
    """Real heads of three layers in turn; cycles and decisions are predicted."""
    stimulus = testbench.stimulus(CONTEXTS, shipped_trace, 12, 1)
    assert {job[0].context for job in stimulus.work} == {0, 1, 2}
    outcome = core.run(stimulus, timing=FIFTY)
    assert outcome.cycles == stimulus.predicted(FIFTY).cycles
    core.run(stimulus, "random", ANY)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lanes": 3, "lanes_per_head": 1, "contexts": 2},
        {"lanes": 1, "lanes_per_head": 1, "contexts": 5},
        {"pruning": False, "observe": False, "contexts": 4},
    ],
    ids=["small", "three groups", "one lane", "baseline"],
)
def test_any_stalls_and_any_memory(shipped_trace, changes):
    p = dataclasses.replace(SMALL, **changes)
    core, timings = Checked(BLOCK, p), [FASTEST, FIFTY, ANY, SLOW]
    for data, heads in ((shipped_trace, 60), (None, 120)):
        stimulus = testbench.stimulus(p, data, heads, 1)
        for stall in PATTERNS:
            for timing in timings:
                timing = dataclasses.replace(timing, reorder=timing.reorder and p.pruning)
                outcome = core.run(stimulus, stall, timing)
                if stall == "none":
                    assert outcome.cycles == stimulus.predicted(timing).cycles


def test_random_jobs_have_every_context():
    jobs = random_jobs(CONTEXTS, 600, RNG(2))
    used = [job[0].context for job in jobs.work if job]
    assert set(used) == {0, 1, 2}
    pairs = list(zip(used, used[1:], strict=False))
    assert any(a == b for a, b in pairs) and any(a != b for a, b in pairs)


def test_refused_contexts_and_the_order_of_reports(core):
    """A context that does not exist; its report comes after all o of the commands before."""
    jobs = Jobs(CONTEXTS)
    add(jobs, 0, 1, 2, 2)
    add(jobs, 2, 1, 2, 2)
    jobs.add_refused(1, 1, 1, context=3)
    add(jobs, 1, 1, 1, 1)
    jobs.add_refused(0, 1, 1, context=1)
    for stall, timing in (("none", FASTEST), ("random", ANY), ("long", FASTEST)):
        outcome = core.run(jobs.stimulus([]), stall, timing)
        report = payload.unpack(CONTEXTS.report_layout, outcome.outputs["report__0"])
        refusals = outcome.cycles_of["report__0"][np.flatnonzero(report["error"])]
        o = outcome.cycles_of["o"]
        assert o[3] < refusals[0] < o[4] < refusals[1]


def test_a_context_waits_for_itself_alone(core):
    """Its own command before, not others': o of one that is short come before a long one's."""
    p = CONTEXTS
    for short, overlaps in ((1, True), (0, False)):
        jobs = Jobs(p, *(cached(p, 60, seed) for seed in range(2)))
        add(jobs, 0, 60, 1, 1)  # in group 0 alone
        add(jobs, short, 61 if short == 0 else 1, 1, 1)  # context 1's kv head 0 is in group 1
        outcome = core.run(jobs.stimulus([]), timing=FIFTY)
        assert contexts_of(p, outcome) == ([1, 0] if overlaps else [0, 0])


def test_rows_of_each_context_are_kept(core):
    """Tokens of three contexts in turn, of several kv heads; the memories hold every row."""
    p = CONTEXTS
    jobs = Jobs(p)
    for token in range(1, 5):
        for context in range(3):
            add(jobs, context, token, 3, 3)
    for stall, timing in (("none", FASTEST), ("bursts", SLOW)):
        outcome = core.run(jobs.stimulus([]), stall, timing)
        for name, words in jobs.contents().items():
            assert (outcome.memories[name].contents == words).all()
        written = sum(memory.rows_written for memory in outcome.memories.values())
        assert written == 12 * 3 * 2 * p.lane.chunks


def predicted(p: TopickCoreParameters, jobs: Sequence, timing: MemoryTiming = FIFTY) -> int:
    return CorePrediction(p, timing).run(jobs).cycles


def in_turn(p: TopickCoreParameters, jobs: Sequence, timing: MemoryTiming = FIFTY) -> int:
    """Cycles where each job waits for the one before."""
    one = CorePrediction(p, timing)
    return sum(one.run([job]).cycles + 1 for job in jobs) - 1


def test_what_overlap_saves_without_pruning():
    """Equal jobs fill every lane: but for the first one's start all cycles are chunks, read and
    written, and up to 12 cycles for each further job, as for a further head."""
    p = dataclasses.replace(CONTEXTS, lanes=3, lanes_per_head=1, pruning=False, observe=False)
    for tokens in (20, 60):
        jobs = Jobs(p, *(cached(p, tokens - 1, seed) for seed in range(3)))
        for context in range(3):
            add(jobs, context, tokens, 3, 3)
        chunks = 3 * 2 * p.lane.chunks * tokens
        alone = p.cycles([TokenWork(tokens, 3, 3)]) - 2 * p.lane.chunks * tokens
        cycles = predicted(p, jobs.work, FASTEST)
        more = 2 * (12 + 2 * p.lane.chunks)
        assert chunks + alone <= cycles <= chunks + alone + more
        assert cycles < in_turn(p, jobs.work, FASTEST) - 2 * 20


def test_each_context_has_its_heads_in_other_lanes():
    """So a kv head that is pruned least is not in the same lane in every context."""
    p = dataclasses.replace(CONTEXTS, lanes=3, lanes_per_head=1)
    rng = RNG(1)
    k = rng.integers(-8, 8, (3, 3, 60, p.d))
    k[:, 1:] = np.clip(4 * k[:, 1:], -32, 31)  # of kv head 0 nearly nothing is pruned
    jobs = Jobs(p, *((rows[:, :-1], rows[:, :-1]) for rows in k))
    for context, rows in enumerate(k):
        heads = [coded_head(p.lane, rng.integers(-32, 32, p.d), 1e-2, 0.02, 60) for _ in range(3)]
        jobs.add(heads, rows[:, -1], rows[:, -1], context=context)
    cycles, apart = predicted(p, jobs.work), in_turn(p, jobs.work)
    same = [[dataclasses.replace(work, context=0) for work in job] for job in jobs.work]
    assert in_turn(p, same) == apart
    lanes = [[p.group_of(0, context) for context in range(3)], [0, 1, 2]]
    assert lanes[0] == lanes[1] and cycles < 0.85 * apart


TIGHT = dataclasses.replace(SMALL, entries=2, tokens=16, observe=False)


@pytest.mark.parametrize("holds", [1, 2])
def test_a_memory_that_takes_few_requests_does_not_deadlock(holds):
    """It takes the next request only after a response has been taken, while rows are written."""
    jobs = random_jobs(TIGHT, 14, RNG(4))
    assert len({job[0].context for job in jobs.work if job}) > 1
    stimulus = jobs.stimulus([])
    outputs, cycles = run(stimulus, MemoryTiming((1, 9), reorder=True), holds)
    layouts = {"o": TIGHT.output_layout}
    layouts |= {f"report__{lane}": TIGHT.report_layout for lane in range(TIGHT.lanes)}
    assert testbench.compare(stimulus, outputs, layouts, cycles) == []


def test_a_sum_of_another_context_is_seen(core, shipped_trace):
    """The testbench, where two beats of o change places, and where a context is another."""
    stimulus = real_jobs(CONTEXTS, shipped_trace, 9, RNG(1))[0].stimulus([])
    outcome = core.run(stimulus)
    layouts = core.design.outputs
    o = payload.unpack(CONTEXTS.output_layout, outcome.outputs["o"])
    for field in ("context", "head"):
        changed = {name: column.copy() for name, column in o.items()}
        changed[field][[0, -1]] = changed[field][[-1, 0]] if field == "context" else 3
        outputs = outcome.outputs | {"o": payload.pack(CONTEXTS.output_layout, changed)}
        assert testbench.compare(stimulus, outputs, layouts, outcome.cycles_of)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": 0}, "contexts must be at least 1, not 0"),
        ({"block": 5, "entries": 16}, "contexts must be 1 with block or buffer_tokens, not 3"),
        ({"buffer_tokens": 16}, "contexts must be 1 with block or buffer_tokens, not 3"),
    ],
)
def test_parameters_are_checked(changes, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        dataclasses.replace(CONTEXTS, **changes)
