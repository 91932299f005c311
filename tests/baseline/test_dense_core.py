"""The dense core with lanes that share rows: every bit and cycle, stalls, memories, refusals."""

import numpy as np
import pytest

from hw.baseline.dense_core import DenseCoreParameters
from hw.catalogue import find
from sim.core.design import generate
from sim.core.memory import MemoryTiming
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare, compare_memories
from sim.drivers.harness.runner import Harness
from sim.testbenches.baseline.dense_core import DenseSteps, testbench
from sim.testbenches.decode import random_rows, random_steps
from tests.support.kllm.compiled import Compiled

GROUPED = DenseCoreParameters.preset("grouped")
BLOCK = find("baseline.dense_core")
FAR = MemoryTiming((20, 90), reorder=True, interval=3)


@pytest.fixture(scope="module")
def grouped():
    return Compiled(BLOCK, GROUPED)


def test_sequences_under_stalls(grouped, shipped_trace):
    for trace, count in ((shipped_trace, 24), (None, 60)):
        grouped.check_all(testbench.stimulus(GROUPED, trace, count, 1))


def sequence(p: DenseCoreParameters, tokens: int, heads: int, group: int) -> DenseSteps:
    steps, rng = DenseSteps(p), np.random.default_rng(1)
    for token in range(tokens):
        rows = random_rows("plain", heads, -(-heads // group), p.d, rng)
        steps.add(*rows, group=group, restart=token == 0)
    return steps


def test_rows_are_read_once_for_the_heads_of_a_batch(grouped):
    """At every length, in the cycles of the formula; a token more than the capacity is refused."""
    steps = sequence(GROUPED, GROUPED.capacity + 1, heads=6, group=3)
    outcome = grouped.check(steps.stimulus([]))
    assert [result.refused for result in steps.results] == [False] * GROUPED.capacity + [True]
    use = outcome.memories["memory"]
    assert use.rows_read == sum(2 * 2 * length for length in range(1, GROUPED.capacity + 1))
    assert use.rows_written == 2 * 2 * GROUPED.capacity


def test_any_memory(grouped):
    steps = DenseSteps(GROUPED)
    random_steps(steps, 40, np.random.default_rng(5), (4, 12))
    stimulus = steps.stimulus([])
    harness = Harness(design := generate(BLOCK, GROUPED))
    for stall in ("none", "long"):
        harness.reset()
        outcome = harness.run(stimulus, PATTERNS[stall], 3, {"memory": FAR})
        assert outcome.failure is None
        assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
        assert compare_memories(stimulus, outcome) == []


def test_a_reset_in_mid_step(grouped):
    long, short = (testbench.stimulus(GROUPED, None, 30, seed) for seed in (5, 6))
    for beats, stall in ((1, "none"), (17, "random")):
        grouped.check_after_a_cut(long, beats, stall, short)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "sizes",
    [
        {"d": 2, "capacity": 16, "heads": 12, "kv_heads": 2, "depth": 4, "parallel": 12},
        {"d": 4, "capacity": 16, "heads": 10, "kv_heads": 3, "depth": 16, "parallel": 4},
        {"d": 8, "capacity": 64, "heads": 4, "kv_heads": 1, "depth": 8, "parallel": 4},
    ],
    ids=["twelve", "four", "one kv head"],
)
def test_cycles_with_any_number_of_lanes(sizes):
    """Results that wait for others stall lanes that are to take the next queries."""
    p = DenseCoreParameters(**sizes)
    compiled = Compiled(BLOCK, p)
    for seed in range(12):
        steps = DenseSteps(p)
        random_steps(steps, 60, np.random.default_rng(seed), (1, 3, 12, p.capacity + 3))
        compiled.check(steps.stimulus([]))


def test_cycles_of_models():
    """A read of every row for each query head, or one for the four heads of a kv head."""
    sizes = {"d": 128, "capacity": 4096, "heads": 32, "kv_heads": 8, "depth": 64}
    found = [
        DenseCoreParameters(**sizes, parallel=lanes).cycles([(1024, 32, 4)]) for lanes in (1, 2, 4)
    ]
    assert found == [66843, 33452, 16772]
