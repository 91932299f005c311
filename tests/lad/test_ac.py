"""Attention computation: any changes of modes, caches of one head to the next, cycles."""

import dataclasses

import numpy as np
import pytest

from golden.lad.cycles import ac_cycles
from hw.catalogue import find
from hw.lad.ac import AcParameters
from sim.core import payload
from sim.testbenches.lad.ac import build, results_of, testbench
from sim.testbenches.lad.active_heads import ActiveHead, random_heads, write_order
from tests.support.kllm.compiled import Compiled

BLOCK = find("lad.ac")
SMALL = AcParameters.preset("small")


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, SMALL)


def change_any(p: AcParameters, head: ActiveHead, count: int, rng: np.random.Generator) -> None:
    """Let `count` positions, or all, change between any two modes, with two terms or one."""
    found = head.discrepancies
    number = len(found.cf)
    changed = np.zeros(number, bool)
    changed[rng.permutation(number)[:count]] = True
    minus = rng.integers(0, p.intervals, number)
    plus = (minus + rng.integers(1, p.intervals, number)) % p.intervals
    head.__dict__["discrepancies"] = dataclasses.replace(
        found, changed=changed, minus=np.where(changed, minus, 0), plus=np.where(changed, plus, 0)
    )


def test_any_changes(small):
    """As many positions as there is room for; each number of them, with each number of terms."""
    p, rng = SMALL, np.random.default_rng(1)
    heads = random_heads(p, 60, rng)
    for number, head in enumerate(heads):
        change_any(p, head, number % (p.updates + 1), rng)
    small.check_all(build(p, heads, rng, []))
    terms = {result.terms for result in results_of(p, heads, np.random.default_rng(2))}
    assert terms == set(range(2 * p.updates + 1))


def test_caches_are_written_only_with_a_term_or_if_clear(small):
    p, rng = SMALL, np.random.default_rng(3)
    heads = random_heads(p, 30, rng)
    for head in heads:
        change_any(p, head, 0, rng)
    stimulus = build(p, heads, rng, [])
    clear = int(stimulus.outputs["written"].shape[0]) // p.cache_rows
    assert 0 < clear < len(heads)
    rows = payload.unpack(BLOCK.create(p).written.payload.shape(), stimulus.outputs["written"])
    assert not any(values.any() for name, values in rows.items() if name != "row")
    small.check_all(stimulus)


@pytest.mark.parametrize("d", [8, 16, 32, 64, 128])
def test_every_row_is_written_once(d):
    assert sorted(write_order(d)) == list(range(2 * d + 7))


def test_invalid_heads():
    """Each reason occurs alone: the command's, an infinite score, the denominator."""
    p, rng = SMALL, np.random.default_rng(4)
    heads = random_heads(p, 200, rng)
    results = results_of(p, heads, rng)
    told = [result.invalid for result in results]
    infinite = [head.discrepancies.infinite for head in heads]
    found = [result.is_invalid for result in results]
    assert any(t and not i for t, i in zip(told, infinite, strict=True))
    assert any(i and not t for t, i in zip(told, infinite, strict=True))
    others = list(zip(told, infinite, found, strict=True))
    assert any(f and not t and not i for t, i, f in others)
    assert all(f for t, i, f in others if t or i)
    assert 0.2 < np.mean(found) < 0.8


def test_cycles_per_position_and_per_term():
    """Equation 7's T d / 3 and T, from three components; |J| / 3 is |J|, a position per cycle."""
    sizes = {"d": 128, "latency": 3, "dot_latency": 18}

    def cycles(active, terms, clear=False):
        order = [] if clear else [range(2 * 128 + 7)]
        return ac_cycles([(active, terms, clear)], order, **sizes)

    columns = 43
    assert cycles(500, 0) - cycles(499, 0) == 1
    # From seven terms on, the sums of three columns take longer than writing them back.
    assert cycles(500, 9) - cycles(500, 8) == columns + 1
    # Until then a column of A takes two cycles to write.
    assert cycles(500, 1) - cycles(500, 0) >= 2 * 128 + 7
    assert cycles(500, 0) - cycles(500, 0, clear=True) < 2 * 128 + 7


def test_reset_in_the_middle(small):
    """A run that was cut short has no effect on the next one."""
    for seed in range(4):
        long, short = (testbench.stimulus(SMALL, None, heads, seed) for heads in (12, 8))
        small.check_after_a_cut(long, 1 + 5 * seed, "bursts", short)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    [
        {"d": 16, "multiply_stages": 4, "add_stages": 3},
        {"updates": 2, "bounds": "1"},
        {"updates": 20, "bounds": "80_52_36_26_18_11_5"},
    ],
    ids=str,
)
def test_more_sizes(settings, shipped_trace):
    parameters = dataclasses.replace(SMALL, **settings)
    compiled, rng = Compiled(BLOCK, parameters), np.random.default_rng(5)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(parameters, trace, 30, seed=6))
    heads = random_heads(parameters, 40, rng)
    for number, head in enumerate(heads):
        change_any(parameters, head, number % (parameters.updates + 1), rng)
    compiled.check_all(build(parameters, heads, rng, []))
