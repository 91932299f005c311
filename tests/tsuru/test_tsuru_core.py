"""The sixth design's core: every bit and cycle, stalls, memories, refusals, what it is worth."""

import numpy as np
import pytest

from golden.algorithms.tsuru import KeyConstants, TsuruAttention
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.tsuru.tsuru_core import TsuruCoreParameters, Work
from sim.core.design import generate
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare, compare_memories
from sim.drivers.harness.runner import Harness
from sim.testbenches.decode import random_rows, random_steps
from sim.testbenches.tsuru.row_search import rotated
from sim.testbenches.tsuru.tsuru_core import THRESHOLD, THRESHOLDS, TsuruSteps, testbench
from tests.support.kllm.compiled import Compiled

SMALL = TsuruCoreParameters.preset("small")
BLOCK = find("tsuru.tsuru_core")
FAR = MemoryTiming((20, 90), reorder=True, interval=3)
ALL = max(THRESHOLDS)


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def sequence(p, tokens: int, heads: int, group: int, threshold: int, seed: int = 1) -> TsuruSteps:
    steps, rng = TsuruSteps(p), np.random.default_rng(seed)
    for token in range(tokens):
        rows = random_rows("plain", heads, -(-heads // group), p.d, rng)
        steps.add(*rows, group=group, restart=token == 0, threshold=threshold)
    return steps


def random_sequences(p, count: int, seed: int) -> TsuruSteps:
    steps, rng = TsuruSteps(p), np.random.default_rng(seed)
    random_steps(
        steps, count, rng, (4, 12, p.capacity), lambda: {"threshold": int(rng.choice(THRESHOLDS))}
    )
    return steps


def test_sequences_under_stalls(small, shipped_trace):
    for trace, count in ((shipped_trace, 24), (None, 60)):
        small.check_all(testbench.stimulus(SMALL, trace, count, 1))


def test_words_read_of_every_length(small):
    """Search words, chosen rows, of those beyond `kept` V once more, two a sink, the mean."""
    steps = sequence(SMALL, SMALL.capacity + 1, heads=4, group=2, threshold=THRESHOLD)
    outcome = small.check(steps.stimulus([]))
    assert [result.refused for result in steps.results] == [False] * SMALL.capacity + [True]
    words = 0
    for work in filter(None, steps.work):
        for chosen in work.chosen:
            rows = sum(chosen) - 1
            again = max(0, rows - SMALL.kept)
            words += SMALL.choice.words(work.tokens + 3) + rows + again + 2 + 1
    use = outcome.memories["memory"]
    assert use.rows_read == words
    assert any(sum(chosen) - 1 > SMALL.kept for chosen in steps.work[-2].chosen)
    # A row's word, codes, scales and the mean; a sink has one more.
    assert use.rows_written == 2 * (4 * SMALL.capacity + 1)


def test_all_rows_of_a_full_memory():
    """The softmax has a row more than the memory, the search three slots more."""
    stimulus = sequence(SMALL, SMALL.capacity, heads=4, group=2, threshold=ALL).stimulus([])
    harness = Harness(design := generate(BLOCK, SMALL))
    outcome = harness.run(stimulus, PATTERNS["none"], 1)
    assert outcome.failure is None
    assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
    assert compare_memories(stimulus, outcome) == []


def test_any_memory(small):
    stimulus = random_sequences(SMALL, 40, 5).stimulus([])
    harness = Harness(design := generate(BLOCK, SMALL))
    for stall in ("none", "long"):
        harness.reset()
        outcome = harness.run(stimulus, PATTERNS[stall], 3, {"memory": FAR})
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
        assert compare_memories(stimulus, outcome) == []


@pytest.mark.parametrize("latency", [1, 5, 23])
def test_cycles_at_any_latency(small, latency):
    """The model of the cycles waits for the memory as the core does."""
    steps = random_sequences(SMALL, 40, latency)
    harness = Harness(generate(BLOCK, SMALL))
    outcome = harness.run(
        steps.stimulus([]), PATTERNS["none"], 1, {"memory": MemoryTiming((latency, latency))}
    )
    assert outcome.cycles == SMALL.cycles(steps.work, latency)


def test_a_reset_in_mid_step(small):
    long, short = (testbench.stimulus(SMALL, None, 30, seed) for seed in (5, 6))
    for beats, stall in ((1, "none"), (17, "random")):
        small.check_after_a_cut(long, beats, stall, short)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 1, "kv_heads": 1, "parallel": 1, "depth": 4, "sinks": 0, "kept": 2},
        {"heads": 6, "kv_heads": 2, "parallel": 6, "sinks": 2, "kept": 64, "query_bits": 11},
        {"heads": 9, "kv_heads": 3, "parallel": 3, "key_fraction": 3, "value_fraction": 2},
        {"heads": 12, "kv_heads": 12, "parallel": 1, "depth": 4, "kept": 4},
    ],
    ids=["one head", "two sinks", "fewer bits", "twelve kv heads"],
)
def test_other_sizes(sizes):
    p = TsuruCoreParameters(**{"d": 8, "capacity": 64, "depth": 16, "kept": 8, **sizes})
    compiled = Compiled(BLOCK, p)
    for seed in range(4):
        compiled.check_all(random_sequences(p, 60, seed).stimulus([]))


def real_layer(shipped_trace, layer: int, heads: int = 3):
    """Rotated q, k, v of a kv head's group, and the same before; its mean of K."""
    q = shipped_trace.q[layer, :heads].astype(np.float64) * shipped_trace.scale
    k, v = (x[layer, :1].astype(np.float64) for x in (shipped_trace.k, shipped_trace.v))
    mean = k[:, 4:].mean(axis=1)
    turned = [rotated(x) for x in (q, k - mean[:, None], v)]
    return turned, (q, k, v), mean


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_model_is_as_near_to_dense_attention_as_the_algorithm(shipped_trace, layer):
    (q, k, v), exact, mean = real_layer(shipped_trace, layer)
    tokens = 192
    p = TsuruCoreParameters(capacity=256, heads=3, kv_heads=1, kept=64)
    core = TsuruSteps(p).model
    found = np.stack(
        [
            core.step(q[:, t], k[:, t], v[:, t], group=3, restart=t == 0, threshold=THRESHOLD).o
            for t in range(tokens)
        ],
        axis=1,
    )
    found = rotated(found).astype(np.float64)
    one = np.ones_like(mean)
    settings = {"search": "rotated", "search_bits": 2, "key_bits": 7, "value_bits": 7}
    algorithm = TsuruAttention(scale=1, constants=[KeyConstants(mean, one, one)], **settings)
    expected = algorithm.sequence(*(x[:, :tokens] for x in exact))
    scores = np.einsum("hqd,kd->hqk", exact[0][:, :tokens], exact[1][0, :tokens])
    scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    dense = weights / weights.sum(axis=-1, keepdims=True) @ exact[2][0, :tokens]

    def error(o: np.ndarray) -> float:
        return float(np.sqrt(np.square(o - dense).sum() / np.square(dense).sum()))

    assert error(found) < 1.6 * error(expected) + 1e-3 and error(found) < 0.04


def test_all_rows_are_exact_but_for_their_codes(shipped_trace):
    """With all rows chosen nothing is left, and the softmax is that of the decoded rows."""
    (q, k, v), _, _ = real_layer(shipped_trace, 1)
    model = TsuruSteps(TsuruCoreParameters(capacity=64, heads=3, kv_heads=1, kept=64)).model
    for t in range(40):
        result = model.step(q[:, t], k[:, t], v[:, t], group=3, restart=t == 0, threshold=ALL)
    assert result.p[:, -1].max() == 0
    rows = model.rows
    scores = q[:, 39].astype(np.float64) @ rows.k[0, :40].astype(np.float64).T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    dense = p / p.sum(axis=1, keepdims=True) @ rows.v[0, :40].astype(np.float64)
    np.testing.assert_allclose(result.o, dense, atol=4e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 4}, "d must be a power of two from 8 to 256, not 4"),
        ({"kept": 1}, r"kept must be between 2 and 1024 \(capacity\), not 1"),
        ({"depth": 3}, "depth must be a power of two from 4, not 3"),
        ({"parallel": 10}, "parallel must be 1 to heads, not 10"),
        ({"d": 8, "parallel": 9}, r"parallel must be between 1 and 8 \(d\), not 9"),
        ({"key_fraction": 7}, "key_fraction must be between 1 and 6, not 7"),
    ],
)
def test_sizes_that_are_refused(settings, message):
    with pytest.raises(ParameterError, match=message):
        TsuruCoreParameters(**settings)


@pytest.mark.parametrize("tiles", [[1, 0], [0, 1], [2], [1, 1, 1]])
def test_work_without_a_row_that_is_always_read(tiles):
    """The model of the cycles would wait for that row."""
    rule = "chosen must be 2 tiles, with the sinks in the first, the newest row in the last, not"
    with pytest.raises(ParameterError, match=rule):
        SMALL.cycles([Work(10, 2, 2, [tiles])])


def test_the_port_is_busy():
    """A kv head takes at most 1.1 cycles a word and 100 more, at the default's sizes."""
    p, rng = TsuruCoreParameters(), np.random.default_rng(1)
    chosen = []
    for _ in range(3):
        slots = np.zeros(1000 + 8, int)
        slots[0] = slots[1002] = 1
        slots[4:1002] = rng.random(998) < 0.1
        chosen.append(slots.reshape(-1, 8).sum(axis=1).tolist())
    words = [p.choice.words(1003) + sum(of) - 1 + 3 for of in chosen]
    cycles = p.cycles([Work(1000, 9, 3, chosen)])
    assert sum(words) < cycles < 1.1 * sum(words) + 300
