"""Fetch of active positions: cycles at any number of slots, memories of any latency and order."""

import dataclasses

import numpy as np
import pytest

from golden.lad.cycles import fetch_cycles
from hw.catalogue import find
from hw.lad.active_fetch import ActiveFetchParameters
from hw.parameters import ParameterError
from sim.core.memory import MemoryTiming
from sim.drivers.run import run
from tests.support.campaign import suite_takes

BLOCK = find("lad.active_fetch")
SMALL = ActiveFetchParameters.preset("small")
DEPTHS = (4, 8, 32)


@pytest.mark.parametrize("depth", suite_takes((4,), DEPTHS))
def test_slots(depth):
    """Every stall pattern; without stalls the cycles of the formula."""
    result = run(
        BLOCK,
        "small",
        dataclasses.replace(SMALL, depth=depth),
        driver="harness",
        vectors=150,
        seed=depth,
    )
    assert result.passed, result.failures or result.first_mismatch
    assert result.cycles == result.predicted


@pytest.mark.parametrize("order", [False, True], ids=["in order", "any order"])
@pytest.mark.parametrize("latency", [(1, 1), (7, 7), (1, 100)])
def test_memories(latency, order):
    result = run(
        BLOCK,
        "small",
        SMALL,
        driver="harness",
        vectors=60,
        memory=MemoryTiming(latency, reorder=order),
    )
    assert result.passed, result.failures or result.first_mismatch


def test_a_request_per_cycle():
    """A head of |J| positions takes a cycle for each row, and 5 more."""

    def cycles(entries, depth=16):
        return fetch_cycles([entries], depth=depth)

    for number in (1, 5, 40):
        assert cycles([(True, True)] * number) == 3 * number + 5
        assert cycles([(True, False)] * number) == 2 * number + 5
    # Halved counters in a row that was read for another entry need no request.
    assert cycles([(False, False)] * 30 + [(True, True)]) == 30 + 3 + 5


@pytest.mark.parametrize("name", ["prefetch", "weights"])
def test_what_needs_the_tile(name):
    rule = "^prefetch and weights must be 0 for a block of the tile by itself, not "
    with pytest.raises(ParameterError, match=rule):
        dataclasses.replace(SMALL, **{name: 4})
    assert {getattr(p, name) for p in ActiveFetchParameters.presets().values()} == {0}


def test_positions_in_a_row_of_counters():
    """Rows of counters with one and with several positions."""
    alone = dataclasses.replace(SMALL, bounds="80_52_36_26_18_11_5", counter_bits=11)
    assert (alone.counter_words, SMALL.counter_words) == (1, 4)
    result = run(BLOCK, "small", alone, driver="harness", vectors=60)
    assert result.passed, result.failures or result.first_mismatch
    assert result.cycles == result.predicted


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_many_heads(seed):
    rng = np.random.default_rng(seed)
    timing = MemoryTiming((1, int(rng.integers(1, 60))), int(rng.integers(1, 4)), bool(seed % 2))
    result = run(BLOCK, "small", SMALL, driver="harness", vectors=600, seed=seed, memory=timing)
    assert result.passed, result.failures or result.first_mismatch
