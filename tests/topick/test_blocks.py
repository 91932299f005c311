"""Blocks of a prompt: queries of several tokens that share what is read, none of them pruned."""

import dataclasses

import numpy as np
import pytest

from golden.topick.pe_lane import Head, PeLane
from golden.topick.topick_core import attend_all, replay_whole, scores
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.core_work import TokenWork, queries_in_order
from sim.core import payload
from sim.core.memory import FASTEST, MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.topick.core_jobs import Jobs, work_of
from sim.testbenches.topick.core_random import random_jobs
from sim.testbenches.topick.pe_lane import coded_head, sizes_of
from sim.testbenches.topick.prediction import CorePrediction
from sim.testbenches.topick.topick_core import sums_of, testbench
from tests.support.sim.checked import Checked
from tests.support.topick.core_loop import run

CORE = find("topick.topick_core")
PROMPTS = TopickCoreParameters.preset("prompts")
# One group of one lane, a kv head after the other; a block as long as the sequence.
ALONE = dataclasses.replace(
    PROMPTS, lanes=1, lanes_per_head=1, tokens=32, heads=6, block=32, observe=False
)
RNG = np.random.default_rng
FIFTY = MemoryTiming((50, 50))
ANY = MemoryTiming((1, 99), reorder=True, seed=3)
SLOW = MemoryTiming((1, 20), interval=3, reorder=True, seed=4)


@pytest.fixture(scope="module")
def core():
    return Checked(CORE, PROMPTS)


def codes(p: TopickCoreParameters, heads: int, kv_heads: int, tokens: int, seed: int = 1):
    """Codes of ``q [tokens, heads, d]``, ``k`` and ``v [kv heads, tokens, d]``, any bits."""
    rng, half = RNG(seed), 1 << p.bits - 1
    q = rng.integers(-half, half, (tokens, heads, p.d))
    return q, *rng.integers(-half, half, (2, kv_heads, tokens, p.d))


def sequence(p: TopickCoreParameters, q, k, v, blocks, threshold: float = 0.0) -> Jobs:
    """A sequence in commands of as many tokens as `blocks` says."""
    jobs, first, c = Jobs(p), 0, 8 / (4 ** (p.bits - 2) * p.d**0.5)
    for new in blocks:
        part = slice(first, first + new)
        heads = [
            [coded_head(p.lane, row, c, threshold, token + 1) for row in q[token]]
            for token in range(first, first + new)
        ]
        if new > 1:
            jobs.add_block(heads, k[:, part], v[:, part])
        else:
            jobs.add(heads[0], k[:, first], v[:, first])
        first += new
    return jobs


def outputs(core: Checked, outcome) -> dict[tuple[int, int], list[int]]:
    """Sums by token and head."""
    p = core.parameters
    beats = payload.unpack(p.output_layout, outcome.outputs["o"])
    labels = zip(beats["token"].tolist(), beats["head"].tolist(), strict=True)
    return dict(zip(labels, sums_of(p, beats).tolist(), strict=True))


def chunks_read(outcome) -> int:
    return sum(memory.rows_read for memory in outcome.memories.values())


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2])
def test_any_stalls_and_any_memory(core, shipped_trace, seed):
    for data, heads in ((shipped_trace, 40), (None, 90)):
        stimulus = testbench.stimulus(PROMPTS, data, heads, seed)
        assert sum(job[0].whole for job in stimulus.work if job) >= 2
        for stall in PATTERNS:
            for timing in (FASTEST, FIFTY, ANY, SLOW):
                outcome = core.run(stimulus, stall, timing, seed)
                if stall == "none":
                    assert outcome.cycles == stimulus.predicted(timing).cycles


def test_a_block_is_its_tokens_one_after_the_other(core):
    """In the RTL, at a threshold that prunes nothing: every bit of every sum, and the memories.

    Two of the three kv heads are in the same lanes.
    """
    found = []
    for blocks in ([5, 5, 3, 5], [1] * 18):
        jobs = sequence(PROMPTS, *codes(PROMPTS, 3, 3, 18), blocks)
        outcome = core.run(jobs.stimulus([]), "random", ANY)
        memories = {name: use.contents.tobytes() for name, use in outcome.memories.items()}
        found.append((outputs(core, outcome), memories))
    assert len(found[0][0]) == 3 * 18
    assert found[0] == found[1]


def test_the_threshold_of_a_block_is_not_looked_at(core):
    """Where a token alone is pruned: the same sums at any threshold."""
    operands, found = codes(PROMPTS, 2, 2, 60, seed=4), []
    for threshold in (0.0, 0.9):
        jobs = sequence(PROMPTS, *operands, [5] * 12, threshold)
        found.append(outputs(core, core.run(jobs.stimulus([]))))
    assert found[0] == found[1]


def test_a_block_is_causal(core):
    """Later rows of K and V, and later queries, change no earlier sum."""
    (q, k, v), found = codes(PROMPTS, 4, 2, 10), []
    for other in (False, True):
        q, k, v = q.copy(), k.copy(), v.copy()
        if other:
            for x in (q.swapaxes(0, 1), k, v):
                x[:, 8:] = RNG(9).integers(-32, 32, x[:, 8:].shape)
        jobs = sequence(PROMPTS, q, k, v, [5, 5])
        found.append(outputs(core, core.run(jobs.stimulus([]), "bursts", SLOW)))
    same = [label for label in found[0] if found[0][label] == found[1][label]]
    assert {label for label in found[0] if label[0] < 8} <= set(same)
    assert len(same) < len(found[0])


def test_rows_are_read_and_written_once(core):
    """Of K and V, old and new, in each kv head; a token alone reads them for each head."""
    p, chunks = PROMPTS, 2 * PROMPTS.lane.chunks
    operands = codes(p, 4, 2, 20)
    for blocks in ([5] * 4, [2, 4, 3, 5, 5, 1]):
        jobs = sequence(p, *operands, blocks)
        for stall, timing in (("none", FASTEST), ("random", ANY)):
            outcome = core.run(jobs.stimulus([]), stall, timing)
            ends = np.cumsum(blocks)
            often = sum(2 * end if new > 1 else 0 for end, new in zip(ends, blocks, strict=True))
            written = sum(memory.rows_written for memory in outcome.memories.values())
            assert written == chunks * 2 * 20
            alone = chunks_read(outcome) - chunks * often
            assert alone == 0 if 1 not in blocks else 0 < alone <= chunks * 4 * 20


def test_a_block_that_fills_all_rows(core):
    """Of the core, in all lanes: the last token that there is room for."""
    p = PROMPTS
    (q, k, v), c = codes(p, 3, 3, p.tokens), 8 / (4 ** (p.bits - 2) * p.d**0.5)
    for first in (p.tokens - 5, p.tokens - 2):
        jobs = Jobs(p, (k[:, :first], v[:, :first]))
        heads = [
            [coded_head(p.lane, row, c, 0.0, token + 1) for row in q[token]]
            for token in range(first, p.tokens)
        ]
        jobs.add_block(heads, k[:, first:], v[:, first:])
        for stall, timing in (("none", FASTEST), ("random", ANY)):
            outcome = core.run(jobs.stimulus([]), stall, timing)
            assert chunks_read(outcome) == 3 * p.tokens * 2 * p.lane.chunks


def test_a_prompt_in_one_block():
    """As long as the sequence: each row is read once by each kv head, three in one lane."""
    core = Checked(CORE, ALONE)
    jobs = sequence(ALONE, *codes(ALONE, 6, 3, 32), [32])
    for stall, timing in (("none", FASTEST), ("none", FIFTY), ("random", ANY), ("long", SLOW)):
        stimulus = jobs.stimulus([])
        outcome = core.run(stimulus, stall, timing)
        assert chunks_read(outcome) == 3 * 32 * 2 * ALONE.lane.chunks
        if stall == "none":
            assert outcome.cycles == stimulus.predicted(timing).cycles


@pytest.mark.campaign
@pytest.mark.parametrize("lanes_per_head", [1, 4])
def test_a_prompt_of_128_tokens(shipped_trace, lanes_per_head):
    """The trace's, through lanes of the paper's size, in one block; sums near exact attention."""
    p = TopickCoreParameters(
        lanes=4 if lanes_per_head > 1 else 3,
        lanes_per_head=lanes_per_head,
        tokens=128,
        block=128,
    )
    assert shipped_trace.q is not None and shipped_trace.k is not None
    q = shipped_trace.q[0, :, :128].astype(np.float64)
    k, v = (x[0, :, :128].astype(np.float64) for x in (shipped_trace.k, shipped_trace.v))
    top = (1 << p.bits - 1) - 1
    parts = [np.abs(x).max(axis=(1, 2), keepdims=True) / top for x in (q, k, v)]
    q, k, v = (np.rint(x / part) for x, part in zip((q, k, v), parts, strict=True))
    jobs, group = Jobs(p), len(q) // len(k)
    c = (parts[0] * np.repeat(parts[1], group, axis=0))[:, 0, 0] * shipped_trace.scale
    heads = [
        [coded_head(p.lane, q[h, t], c[h], 1e-3, t + 1) for h in range(len(q))] for t in range(128)
    ]
    jobs.add_block(heads, k.astype(int), v.astype(int))
    core, stimulus = Checked(CORE, p), jobs.stimulus([])
    outcome = core.run(stimulus, timing=FIFTY)
    assert outcome.cycles == stimulus.predicted(FIFTY).cycles
    assert chunks_read(outcome) == 3 * 128 * 2 * p.lane.chunks
    for (token, head), sums in outputs(core, outcome).items():
        s = k[head // group, : token + 1] @ q[head, token] * c[head]
        weights = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        wanted = weights @ v[head // group, : token + 1]
        got = np.array(sums[:-1]) / sums[-1]
        assert np.abs(got - wanted).max() < 0.01 * np.abs(v[head // group, : token + 1]).max()
    core.run(stimulus, "random", ANY)


LONG = dataclasses.replace(ALONE, tokens=64, block=4)
SHARED = dataclasses.replace(PROMPTS, lanes=8, lanes_per_head=8, observe=False)
FOUR = dataclasses.replace(PROMPTS, lanes_per_head=1, kv_heads=4, entries=12, observe=False)

# As many lanes on one head as in the paper, of 4 rows each.
SIXTEEN = dataclasses.replace(PROMPTS, d=2, lanes=16, lanes_per_head=16, observe=False)


def formula_errors(p: TopickCoreParameters, seed: int, count: int, simulate) -> list:
    """Random blocks of any length, heads and memory whose cycles are not the formula's."""
    rng, found = RNG(seed), []
    for _ in range(count):
        kv_heads = int(rng.integers(1, p.kv_heads + 1))
        most = p.heads // kv_heads if p.groups == 1 else min(p.heads // kv_heads, p.queries)
        heads = kv_heads * int(rng.integers(1, most + 1))
        new = int(rng.integers(2, p.block + 1))
        tokens, latency = int(rng.integers(new, p.tokens + 1)), int(rng.choice([1, 2, 9, 50]))
        jobs = Jobs(p)
        rows = np.zeros((kv_heads, new, p.d), int)
        head = coded_head(p.lane, np.zeros(p.d, int), 1e-3, 0.0, tokens - new + 1)
        made = [[dataclasses.replace(head, tokens=head.tokens + n)] * heads for n in range(new)]
        for _ in range(2):
            jobs.add_block(made, rows, rows)
        jobs.add_refused(0, 1, 1)
        work = TokenWork(tokens, heads, kv_heads, new)
        assert work_of(jobs.work[0]) == work
        timing = MemoryTiming((latency, latency))
        wanted, got = p.cycles([work, work, None], latency), simulate(jobs, timing)
        if wanted != got:
            found.append((work, latency, wanted, got))
    return found


def test_cycles_are_the_formula_s(core):
    """Of the RTL, with any memory: long rows and short ones, room for all scores and for few."""

    def simulate(jobs, timing):
        return core.run(jobs.stimulus([]), timing=timing).cycles

    assert formula_errors(PROMPTS, 1, 25, simulate) == []


@pytest.mark.campaign
@pytest.mark.parametrize("p", [ALONE, LONG, SHARED, FOUR], ids=["alone", "long", "8", "four"])
def test_cycles_of_other_cores_are_the_formula_s(p):
    core = Checked(CORE, p)
    assert (
        formula_errors(p, 2, 25, lambda *of: core.run(of[0].stimulus([]), "none", of[1]).cycles)
        == []
    )


def prediction_errors(p: TopickCoreParameters, seed: int, count: int) -> list:
    """Like `formula_errors`, by the prediction register by register, which the RTL equals in
    :func:`test_any_stalls_and_any_memory`."""

    def simulate(jobs, timing):
        return CorePrediction(p, timing).run(jobs.work).cycles

    return formula_errors(p, seed, count, simulate)


@pytest.mark.campaign
@pytest.mark.parametrize("p", [PROMPTS, ALONE, LONG, SHARED, FOUR, SIXTEEN])
def test_the_formula_is_the_prediction(p):
    assert prediction_errors(p, 3, 60) == []


def test_the_formula_is_the_prediction_of_16_lanes():
    assert prediction_errors(SIXTEEN, 4, 5) == []


def test_16_lanes_of_long_rows_take_at_most_8_cycles_a_query_more():
    """The last lane's sums wait for 15 others, which the formula does not have."""
    errors = prediction_errors(dataclasses.replace(SIXTEEN, tokens=512), 3, 4)
    assert errors
    for work, _, wanted, got in errors:
        queries = 2 * work.block * work.heads  # of both commands
        assert 0 < got - wanted <= 8 * queries


def test_what_does_not_fit_is_refused(core):
    """Each rule broken alone, between blocks; nothing has changed then."""
    p, rng, jobs = PROMPTS, RNG(1), Jobs(PROMPTS)
    broken = [(6, 1, 1, 0), (p.tokens, 1, 1, p.block + 1), (4, 1, 1, 5), (p.tokens, 1, 1, 7)]
    broken += [(p.tokens + 1, 1, 1, 5), (0, 1, 1, 0), (5, 0, 1, 5), (5, p.kv_heads + 1, 1, 5)]
    for number, numbers in enumerate(broken):
        jobs.add_refused(*numbers)
        heads = [
            [coded_head(p.lane, rng.integers(-32, 32, p.d), 1e-3, 0.0, 2 * number + 1 + token)] * 2
            for token in range(2)
        ]
        jobs.add_block(heads, *rng.integers(-32, 32, (2, 1, 2, p.d)))
    for stall, timing in (("none", FASTEST), ("random", ANY)):
        outcome = core.run(jobs.stimulus([]), stall, timing)
        written = sum(memory.rows_written for memory in outcome.memories.values())
        assert written == len(broken) * 2 * 2 * p.lane.chunks


@pytest.mark.campaign
@pytest.mark.parametrize("holds", [1, 2])
def test_a_memory_that_takes_few_requests_does_not_deadlock(holds):
    p = dataclasses.replace(PROMPTS, entries=2, tokens=16, observe=False)
    jobs = sequence(p, *codes(p, 3, 3, 11), [5, 1, 5])
    stimulus = jobs.stimulus([])
    outputs, cycles = run(stimulus, MemoryTiming((1, 9), reorder=True), holds)
    layouts = {"o": p.output_layout}
    layouts |= {f"report__{lane}": p.report_layout for lane in range(p.lanes)}
    assert testbench.compare(stimulus, outputs, layouts, cycles) == []


def test_random_jobs_have_blocks_of_every_kind():
    jobs = random_jobs(PROMPTS, 3000, RNG(2))
    blocks = [work_of(job) for job in jobs.work if job and job[0].whole]
    assert {work.block for work in blocks} == {2, 3, 4, 5}
    assert max(work.tokens for work in blocks) == PROMPTS.tokens
    assert any(work.tokens == work.block for work in blocks)
    assert {work.kv_heads for work in blocks} == {1, 2, 3}
    assert any(work.heads % work.kv_heads for work in blocks)
    assert sum(not job for job in jobs.work) > 30


def test_the_order_of_queries():
    """Every query once; kv heads that run side by side together, token by token."""
    for groups, heads, group, block in ((1, 9, 3, 4), (3, 9, 3, 4), (2, 7, 2, 3), (2, 3, 9, 2)):
        order = queries_in_order(groups, heads, group, block)
        assert sorted(order) == [(t, h) for t in range(block) for h in range(heads)]
        for kv_head in range(-(-heads // group)):
            of = [at for at, (_, head) in enumerate(order) if head // group == kv_head]
            assert [order[at] for at in of] == sorted(order[at] for at in of)
            together = [at for at in range(of[0], of[-1] + 1) if at not in of]
            turn = {order[at][1] // group // groups for at in together}
            assert turn <= {kv_head // groups}


def test_nothing_is_left_out_of_a_sum():
    """All tokens of the model have the probability of their exact score, nearly."""
    z, rng = sizes_of(PROMPTS.lane), RNG(1)
    head = Head(rng.integers(-32, 32, 4), 40, 0, 2, 30)
    k, v = rng.integers(-32, 32, (2, 30, 4))
    got = attend_all(head, k, v, z)
    t = scores(head, k, z)[-1] / 2**z.fraction
    weights = np.exp2(t - t.max()) / np.exp2(t - t.max()).sum()
    assert np.abs(got.p / got.total - weights).max() < 0.02 and got.total == got.p.sum()
    assert got.o.tolist() == (got.p @ v).tolist()


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([(1, 0, 0), (0, 0, 0)], r"row 0, chunk 0 is in slot 0 instead of \(0, 1\)"),
        ([(1, 1, 0)], r"row 1, chunk 1 is in slot 0 instead of \(1, 0\)"),
        ([(0, 0, 0)], r"row 0, chunk 0 is in slot 0 instead of \(1, 0\)"),
        ([(1, 0, 0)], "1 rows are left unread"),
        ([(1, 0, 0), (0, 0, 1), (1, 0, 2)], "row 1, chunk 0 is in slot 2 instead of None"),
    ],
)
def test_impossible_observations_are_refused(observed, message):
    with pytest.raises(ValueError, match=message):
        replay_whole(PeLane(sizes_of(PROMPTS.lane)), 2, [(*o, False, 0) for o in observed])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, r"block must be 1 to 64 \(tokens\), not 0"),
        ({"block": 65}, r"block must be 1 to 64 \(tokens\), not 65"),
        ({"pruning": False, "observe": False}, "block must be 1 without pruning, or with buffer_"),
        ({"buffer_tokens": 16}, "block must be 1 without pruning, or with buffer_tokens, not 5"),
    ],
)
def test_parameters_that_do_not_fit(change, message):
    with pytest.raises(ParameterError, match=message):
        dataclasses.replace(PROMPTS, **change)
