"""The H2O core: every bit and cycle, evictions from each kv head, refused commands."""

import numpy as np
import pytest

from hw.baseline.h2o_core import H2oCoreParameters
from hw.catalogue import find
from sim.testbenches.baseline.h2o_core import H2oSteps, made, testbench
from sim.testbenches.decode import random_rows
from tests.support.kllm.compiled import Compiled

SMALL = H2oCoreParameters.preset("small")
BLOCK = find("baseline.h2o_core")


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def test_sequences_under_stalls(small, shipped_trace):
    for trace, count in ((shipped_trace, 40), (None, 120)):
        small.check_all(testbench.stimulus(SMALL, trace, count, 1))


def sequence(steps: H2oSteps, tokens: int, kind: str = "plain", **limits: int) -> None:
    rng = np.random.default_rng(7)
    for token in range(tokens):
        steps.add(*random_rows(kind, 4, 2, SMALL.d, rng), restart=token == 0, **limits)


def test_the_longest_sequence(small):
    """Of 2^position_bits tokens; the next one is refused, and a new sequence begins."""
    steps, last = H2oSteps(SMALL), 1 << SMALL.position_bits
    sequence(steps, last + 1, target=SMALL.capacity - 1, recent=6)
    sequence(steps, 8, "ties", target=1, recent=1)
    assert [n for n, result in enumerate(steps.results) if result.refused] == [last]
    small.check(steps.stimulus([]))
    rows = [result.reports[0].rows for result in steps.results]
    assert any(row[0] != row[1] for row in rows), "both kv heads evict alike"


def test_refused_commands(small):
    """They change nothing, and the sequence goes on."""
    steps, rng = H2oSteps(SMALL), np.random.default_rng(3)
    rows = random_rows("plain", 4, 2, SMALL.d, rng)
    steps.add(*rows, restart=False, target=3)  # no sequence has begun
    sequence(steps, 6, target=3, recent=1)
    refused = [
        {"restart": True, "target": 0},
        {"restart": True, "target": 2, "recent": 3},
        {"restart": True, "target": 3, "group": 0},
        {"restart": True, "target": 3, "group": 1},
        {"restart": False, "group": 3},
    ]
    for command in refused:
        assert steps.add(*rows, **command).refused, command
        assert not steps.add(*rows, restart=False).refused
    small.check(steps.stimulus([]), "random")
    assert steps.results[0].refused


def test_random_steps_cover_what_they_should():
    steps, _ = made(SMALL, None, 600, np.random.default_rng(1))
    accepted = [result for result in steps.results if not result.refused]
    lengths = [result.p.shape[1] for result in accepted]
    assert {len(result.o) for result in accepted} == {1, 2, 3, 4}
    assert lengths.count(1) > 20 and max(lengths) > SMALL.capacity - 3
    assert len(steps.results) - len(accepted) > 30
    assert sum(result.invalid.any() for result in accepted) > 3
    same = [a == b for a, b in zip(lengths, lengths[1:], strict=False)]
    assert sum(same) > 100, "evicts too seldom"
