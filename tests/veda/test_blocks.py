# amaranth: UnusedElaboratable=no
"""Blocks of a prompt: tokens that share what is read, equal to one token after the other."""

import dataclasses

import numpy as np
import pytest

from golden.veda.veda_core import VedaCore
from hw.parameters import ParameterError
from hw.veda.core_work import OverflowWork, StepWork
from hw.veda.veda_core import VedaCoreParameters
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.testbenches.decode import layers_of
from sim.testbenches.veda.veda_core import A, B, Steps, block_of, random_steps, real_steps
from tests.veda.test_veda_core import FAR, FASTEST, RNG, SLOW, SMALL, Core

BLOCKS = dataclasses.replace(SMALL, block=5)
PROMPTS = VedaCoreParameters.preset("prompts")  # the same, with products
# One context, where cycles are exact; a longer block, a group of any size.
ALONE = dataclasses.replace(BLOCKS, contexts=1)
WIDE = dataclasses.replace(ALONE, heads=6, kv_heads=3, parallel=4, block=7)


@pytest.fixture(scope="module")
def core():
    return Core(BLOCKS)


def rows(rng, heads: int, kv_heads: int, tokens: int, d: int) -> list[np.ndarray]:
    """``q [heads, tokens, d]``, ``k`` and ``v [kv heads, tokens, d]``."""
    return [
        rng.standard_normal((n, tokens, d)).astype(np.float16) for n in (heads, kv_heads, kv_heads)
    ]


def blocks_of(work: list) -> list[StepWork]:
    return [step for step in work if isinstance(step, StepWork) and step.tokens > 1]


def test_a_block_is_causal_attention():
    """By the model, against float64: no token sees the rows after it; o is by head, then token."""
    rng, d = RNG(1), 16
    model = VedaCore(64, block=9)
    before, block = (rows(rng, 4, 2, tokens, d) for tokens in (5, 9))
    model_args = {"a": A, "b": B, "evict": False}
    q, k, v = (
        np.concatenate(x, axis=1).astype(np.float64) for x in zip(before, block, strict=True)
    )
    results = [model.step(*part, restart=part is before, **model_args) for part in (before, block)]
    o = np.concatenate([r.o.reshape(4, -1, d) for r in results], axis=1).astype(np.float64)
    for head in range(4):
        scores = np.where(np.tri(14, dtype=bool), q[head] @ k[head // 2].T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = weights / weights.sum(axis=1, keepdims=True) @ v[head // 2]
        assert np.abs(o[head] - wanted).max() < 4e-3
    assert [report.length for report in results[1].reports] == list(range(6, 15))
    assert [report.last for report in results[1].reports] == [False] * 8 + [True]
    assert not results[1].p[0, 6:].any() and results[1].p[8].all()


def test_a_block_is_its_tokens_one_after_the_other(core):
    """In the RTL: results, reports but for ``last``, and what is evicted later, by the votes."""
    outcomes = []
    for tokens in (5, 1):
        steps, rng = Steps(BLOCKS), RNG(3)
        q, k, v = rows(rng, 4, 2, 20, BLOCKS.d)
        command = {"protected": 0, "a": A, "b": B, "context": 1, "vote": True}
        for t in range(0, 20, tokens):
            part = (x[:, t : t + tokens] for x in (q, k, v))
            steps.add(*part, restart=t == 0, evict=False, target=0, **command)
        part = (x[:, 0] for x in rows(rng, 4, 2, 1, BLOCKS.d))
        steps.add(*part, restart=False, evict=True, target=3, **command)
        outcome = core.check(steps.stimulus([]), "long", SLOW)
        o = np.concatenate([r.o.reshape(4, -1, BLOCKS.d) for r in steps.results], axis=1)
        reports = [dataclasses.replace(r, last=True) for x in steps.results for r in x.reports]
        outcomes.append((o.tobytes(), reports, outcome.memories["memory"].contents.tobytes()))
    assert outcomes[0] == outcomes[1]
    evicted = [report.position for report in outcomes[0][1] if report.evict]
    assert len(evicted) == 18 and evicted != sorted(evicted)


def prompt_of(p: VedaCoreParameters, trace, tokens: int, block: int) -> Steps:
    """A prompt of the trace's first layer, which does not evict, in blocks."""
    steps, (q, k, v, _), t = Steps(p), layers_of(p, trace), 0
    limits = {"evict": False, "target": 0, "protected": 0, "a": A, "b": B}
    of = dataclasses.replace(p, block=block)
    while t < tokens:
        end = t + block_of(of, t, tokens, 4)
        steps.add(*(x[0, :, t:end] for x in (q, k, v)), restart=t == 0, vote=t >= 4, **limits)
        t = end
    return steps


def test_rows_are_read_once_for_a_block(core, shipped_trace):
    """Of K and V, old and new, in each kv head; a run beyond the buffer once for each head."""
    read = {}
    for tokens, block in ((16, 5), (16, 1), (24, 5)):
        steps = prompt_of(BLOCKS, shipped_trace, tokens, block)
        use = core.check(steps.stimulus([])).memories["memory"]
        assert use.rows_written == 2 * 2 * tokens
        read[tokens, block] = use.rows_read
    ends = (4, 9, 14, 16)  # four tokens do not vote
    assert read[16, 5] == 2 * 2 * sum(ends) and read[16, 1] == 2 * 2 * sum(range(1, 17))
    beyond = 4 * 2 * (sum(range(15, 20)) + sum(range(20, 25)))
    assert BLOCKS.depth == 16 and read[24, 5] == 2 * 2 * (4 + 9 + 14) + beyond


def test_the_array_is_as_busy_as_before():
    """A block saves rows of the memory and no cycles: 2.1 % more, for sums of all votes' scores."""
    p = VedaCoreParameters(block=8)
    work = {
        tokens: [
            StepWork(end, 9, 3, (True,) * tokens if tokens > 1 else True, 0)
            for end in range(tokens, 129, tokens)
        ]
        for tokens in (1, 8)
    }
    read = {tokens: sum(map(p.rows_read, steps)) for tokens, steps in work.items()}
    assert read == {1: 2 * 3 * sum(range(1, 129)), 8: 2 * 3 * sum(range(8, 129, 8))}
    assert 1.02 < p.cycles(work[8]) / p.cycles(work[1]) < 1.022


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_blocks_under_stalls(shipped_trace, seed):
    core = Core(PROMPTS)
    for steps in (random_steps(PROMPTS, 200, RNG(seed)), real_steps(PROMPTS, shipped_trace, 90)[0]):
        stimulus = steps.stimulus([])
        assert len(blocks_of(steps.work)) >= 5
        for stall in PATTERNS:
            for timing in (FASTEST, SLOW, FAR):
                outcome = core.check(stimulus, stall, timing, seed)
                if (stall, timing) == ("none", FASTEST):
                    assert stimulus.wrong_cycles(outcome) is None


@pytest.mark.campaign
def test_random_steps_have_blocks_of_every_kind():
    steps = random_steps(BLOCKS, 800, RNG(3))
    blocks = blocks_of(steps.work)
    assert {block.tokens for block in blocks} == {2, 3, 4, 5}
    assert any(block.slots == BLOCKS.capacity for block in blocks)
    assert sum(block.slots > BLOCKS.depth for block in blocks) > 10
    assert any(len(set(block.votes)) == 2 for block in blocks)  # an invalid token among others
    assert any(block.evictions > 1 for block in blocks)
    assert any(isinstance(step, OverflowWork) for step in steps.work)


@pytest.mark.campaign
@pytest.mark.parametrize("p", [ALONE, WIDE], ids=["alone", "wide"])
def test_cycles_are_exact_in_one_context(p):
    """Of random steps, refused ones between."""
    core = Core(p)
    for seed in range(8):
        steps = random_steps(p, 90, RNG(seed))
        stimulus = steps.stimulus([])
        outcome = core.check(stimulus)
        assert len(blocks_of(steps.work)) > 20 and outcome.cycles == stimulus.cycles
        work = [step for step in steps.work if isinstance(step, StepWork)]
        assert outcome.memories["memory"].rows_read == sum(map(p.rows_read, work))


def test_what_does_not_fit_is_refused(core):
    """No tokens, too many, or more than there are slots; nothing has changed then."""
    steps, rng, d = Steps(BLOCKS), RNG(5), BLOCKS.d
    command = {"vote": True, "evict": False, "target": 0, "protected": 0, "a": A, "b": B}
    for tokens in (5, 5, 5, 5, 5, 4):
        steps.add(*rows(rng, 4, 2, tokens, d), restart=not steps.work, **command)
    refused = [(0, False), (6, False), (7, True), (4, False), (5, False)]
    for tokens, restart in refused:
        steps.add_refused(4, 2, tokens=tokens, restart=restart, **command)
    assert [isinstance(step, OverflowWork) for step in steps.work[-5:]] == [False] * 3 + [True] * 2
    steps.add(*rows(rng, 4, 2, 3, d), restart=False, **command)  # fills the cache, and evicts a row
    steps.add_refused(4, 2, tokens=2, restart=False, **command)
    steps.add(*rows(rng, 4, 2, 2, d), restart=True, **command)
    for stall in PATTERNS:
        core.check(steps.stimulus([]), stall, MemoryTiming((1, 9)))
    reports = [result.reports[-1] for result in steps.results]
    assert [report.error for report in reports].count(True) == len(refused) + 1
    assert reports[-3].evict and reports[-3].length == BLOCKS.capacity - 1


@pytest.mark.campaign
def test_a_block_that_is_refused_late_has_no_turn():
    """That it does not fit is known when the step before is reported; a norm's turn comes next."""
    steps, rng, d = Steps(PROMPTS), RNG(5), PROMPTS.d
    steps.weights[:] = rng.standard_normal(steps.weights.shape)
    command = {"vote": True, "evict": False, "target": 0, "protected": 0, "a": A, "b": B}
    for tokens in (5,) * 6:
        steps.add(*rows(rng, 4, 2, tokens, d), restart=not steps.work, **command)
    steps.add_refused(4, 2, tokens=3, restart=False, **command)
    x, moments = (
        rng.standard_normal((2, 24)).astype(np.float16),
        (np.float32(1 / 24), np.float32(0)),
    )
    steps.add_product(x, 0, 2, moments)
    steps.add(*rows(rng, 4, 2, 2, d), restart=True, **command)
    Core(PROMPTS).check(steps.stimulus([]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "tokens must be at least 1, not 0"),
        ({"block": 33}, "block must be 1 to the capacity"),
        ({"block": 2, "parallel": 1, "dataflow": "tree"}, "block must be 1 with another dataflow"),
    ],
)
def test_parameters_that_do_not_fit(change, message):
    with pytest.raises(ParameterError, match=message):
        dataclasses.replace(ALONE, **change)
    with pytest.raises(ParameterError, match="vectors must be between 1 and 64, not 66"):
        VedaCoreParameters(block=22)
