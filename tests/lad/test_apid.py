"""Active position identification: its model against modes and counters, rate, queue, bounds."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.lad import EIGHT_BOUNDS, PAPER_BOUNDS, PiecewiseExp
from golden.algorithms.lad.modes import Modes
from golden.lad.apid import identify
from hw.catalogue import find
from hw.lad.apid_parameters import ApidParameters
from sim.core import payload
from sim.core.stalls import PATTERNS
from sim.testbenches.lad.apid import Step, build, random_steps, real_steps, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("lad.apid")
SIZES = [
    ApidParameters(lanes=3, positions=100, depth=8, outputs=1, window=1, bounds="1"),
    ApidParameters(lanes=2, positions=50, depth=16, outputs=4, window=20, counter_bits=2),
    ApidParameters(lanes=5, positions=300, depth=32, outputs=4, window=7, slack=256),
    ApidParameters(positions=300, depth=32),
    ApidParameters(lanes=4, positions=60, depth=8, outputs=1, window=4, slack=13, counter_bits=4),
    ApidParameters(lanes=8, positions=300, depth=16, outputs=1, slack=13, counter_bits=11),
    ApidParameters(lanes=12, positions=300, depth=32, outputs=1, slack=64, counter_bits=11),
    ApidParameters(lanes=16, positions=300, depth=32, outputs=1, slack=13, counter_bits=11),
]


@pytest.fixture(scope="module")
def small():
    return Compiled(BLOCK, ApidParameters.preset("small"))


def test_the_bounds_are_the_algorithms():
    assert ApidParameters().bound_values == EIGHT_BOUNDS
    assert ApidParameters.preset("small").bound_values == PAPER_BOUNDS
    assert ApidParameters().intervals == 8


def test_golden_equals_modes_and_counters():
    """Steps of a head: inactive positions get the counters of the algorithm's tables."""
    bounds, window, bits = PAPER_BOUNDS, 4, 4
    exp = PiecewiseExp(bounds, np.float32)
    modes = Modes(1, exp, bits)
    rng = np.random.default_rng(1)
    usual = -rng.exponential(4, 80)
    compared = halved = 0
    for n in range(1, 81):
        modes.append()
        x = (usual[:n] + rng.normal(scale=0.8, size=n)).astype(np.float16)
        m = x.max()
        mode = modes.mode[0].astype(int)
        count = modes.counters[0, np.arange(n), mode].astype(int)
        found = identify(x, m, mode, count, bounds=bounds, window=window, counter_bits=bits)
        rounded = (x - m).astype(np.float32)
        outside = modes.outside(rounded[None])[0]
        outside[max(0, n - window) :] = True
        assert np.array_equal(found.active, outside)
        interval = np.where(found.active, exp.interval(rounded), mode)
        modes.record(interval[None], n - window)
        kept = np.flatnonzero(~found.active)
        assert np.array_equal(found.count[kept], modes.counters[0, kept, mode[kept]])
        compared, halved = compared + len(kept), halved + found.halve.sum()
    print(f"{compared} counters, {halved} halved")
    assert compared > 800 and halved > 50


def test_close_to_the_algorithm():
    """It differs from exact differences only within half a unit in the last place of a bound."""
    rng = np.random.default_rng(2)
    s = (-rng.exponential(6, 40000)).astype(np.float16)
    m = np.float16(rng.normal())
    exp = PiecewiseExp(EIGHT_BOUNDS)
    exact = s.astype(np.float64) - float(m)
    mode = exp.interval(exact + rng.normal(scale=0.5, size=len(s)))
    found = identify(s, m, mode, np.zeros(len(s), int), window=1)
    modes_outside = (exact <= exp.lower[mode]) | (exact > exp.upper[mode])
    differ = np.flatnonzero((found.active != modes_outside)[:-1])
    nearest = np.abs(exact[:, None] - np.array(EIGHT_BOUNDS)).min(axis=1)
    assert (nearest[differ] <= 2.0**-11 * np.abs(exact[differ])).all()
    share = len(differ) / len(s)
    print(f"{len(differ)} of {len(s)} differ")
    assert 0 < share < 2e-3 and 0.2 < found.active.mean() < 0.8


def test_odd_values():
    """NaN and modes without an interval are active; infinities are in the outer intervals."""
    s = np.array([np.nan, -np.inf, np.inf, 5, -20, -20, -20], np.float16)
    mode = np.array([0, 0, 7, 7, 0, 8, 15])
    found = identify(s, np.float16(0), mode, np.full(7, 9), window=1)
    assert found.active.tolist() == [True, False, False, False, False, True, True]
    assert found.count.tolist() == [9, 10, 10, 10, 10, 9, 9]
    assert found.mode.tolist() == [0, 0, 7, 7, 0, 8, 0]
    with_nan = identify(s[4:], np.float16(np.nan), mode[4:], np.full(3, 9), window=1)
    assert with_nan.active.all()


def test_full_counters():
    count = np.array([0, 4093, 4094, 4095, 7])
    s = np.full(5, -20, np.float16)
    found = identify(s, np.float16(0), np.zeros(5, int), count, window=1)
    assert found.count.tolist() == [1, 4094, 2047, 2048, 7]
    assert found.halve.tolist() == [False, False, True, True, False]


def test_slack():
    """A mode is accepted beyond its interval while its line is close to exp, and no further."""
    exp, slack = PiecewiseExp(EIGHT_BOUNDS), 64
    x = -(np.arange(1, 15000) / 1024).astype(np.float16)
    differ = 0
    for mode in range(8):
        modes, zeros = np.full(len(x), mode), np.zeros(len(x), int)
        plain, wide = (
            identify(x, np.float16(0), modes, zeros, slack=value, window=1) for value in (0, slack)
        )
        assert not (wide.active & ~plain.active).any()
        beyond = (plain.active & ~wide.active)[:-1]
        error = np.abs(exp.a[mode] * x + exp.b[mode] - np.exp(x.astype(np.float64)))[:-1]
        assert (error[beyond] <= slack / 2**16).all()
        differ += beyond.sum()
    print(f"{differ} of {8 * len(x)} accepted because of the slack")
    assert differ > 1000


def test_halved_positions_are_queued(small):
    """An inactive position whose counter was halved leaves the queue in order, marked."""
    p, full = small.parameters, (1 << small.parameters.counter_bits) - 1
    n = 2 * p.lanes
    s = np.full(n, -30, np.float16)
    s[1] = 0
    count = np.array([full - 1, full - 1, 0, full - 2, full, 7, 7, 7])
    was_active = np.arange(n) % 2 == 0
    step = Step(s, np.float16(0), np.zeros(n, int), count, was_active)
    stimulus = build(p, [step], np.random.default_rng(9), [])
    # Positions 0, 1 and the window; 3 becomes full - 1, which is not full.
    o = payload.unpack(p.active_layout, stimulus.outputs["o"])
    entries = {
        name: np.ravel([o[f"positions[{k}].{name}"] for k in range(p.outputs)], order="F").tolist()
        for name in ("index", "count", "fresh", "halve")
    }
    assert entries == {
        "index": [0, 1, 4, 5, 6, 7],
        "count": [full >> 1, full - 1, full, 7, 7, 7],
        "fresh": [0, 1, 0, 1, 0, 1],
        "halve": [1, 0, 0, 0, 0, 0],
    }
    small.check_all(stimulus)


def steps_with(p, counts, rng):
    """Steps of whole beats; `counts` are the active positions of each beat of each step."""
    steps = []
    for step in counts:
        active = np.concatenate([rng.permutation(np.arange(p.lanes) < count) for count in step])
        n = len(active)
        mode = np.where(active, 1, 0)
        zeros = np.zeros(n, int)
        steps.append(Step(np.full(n, -30, np.float16), np.float16(0), mode, zeros, zeros == 1))
    return steps


def test_a_beat_a_cycle(small):
    """While groups leave as fast as positions arrive, no beat waits, also between steps."""
    p, rng = small.parameters, np.random.default_rng(3)
    shares = [[p.outputs] * 10, [0, 1, 3, 2, 0, 4] * 2, [1] * 5, [0] * 14]
    steps = steps_with(p, [[*share, p.lanes] for share in shares], rng)
    outcome = small.check(build(p, steps, rng, []), "none")
    beats = sum(len(share) + 1 for share in shares)
    counters = outcome.cycles_of["counters"]
    assert np.array_equal(counters, 1 + p.latency + np.arange(beats))
    # The first step's first group is full with its first beat.
    assert outcome.cycles_of["o"][0] == 1 + p.queue_latency


def test_a_full_queue_waits(small):
    """All positions active: a beat every lanes / outputs cycles once the queue is full."""
    p, rng = small.parameters, np.random.default_rng(4)
    steps = steps_with(p, [[p.lanes] * 15] * 4, rng)
    outcome = small.check(build(p, steps, rng, []), "none")
    groups = outcome.cycles_of["o"]
    assert np.array_equal(np.diff(groups), np.ones(len(groups) - 1))  # the output never pauses
    assert len(groups) == 4 * 15 * p.lanes // p.outputs
    last = outcome.cycles_of["counters"][-10:]
    assert np.array_equal(np.diff(last), np.full(9, p.lanes // p.outputs))
    for stall in PATTERNS:
        small.check(build(p, steps, rng, []), stall)


def test_steps_of_every_length(small):
    p, rng = small.parameters, np.random.default_rng(5)
    steps = random_steps(p, 200, rng)
    steps = [
        dataclasses.replace(
            step,
            **{
                name: np.resize(getattr(step, name), n)
                for name in ("s", "mode", "count", "was_active")
            },
        )
        for n, step in zip([*range(1, 61)] * 3, steps, strict=False)
    ]
    for stall in PATTERNS:
        small.check(build(p, steps, rng, []), stall)


def test_reset_in_the_middle(small):
    """A run that was cut short has no effect on the next one."""
    p = small.parameters
    for seed in range(5):
        long, short = (testbench.stimulus(p, None, steps, seed) for steps in (20, 10))
        small.check_after_a_cut(long, 30, "bursts", short)


def test_real_heads(small, shipped_trace):
    """Steps in the middle of a head have counters of every size, and few active positions."""
    p = small.parameters
    steps, _ = real_steps(p, shipped_trace, 60, np.random.default_rng(6))
    found = [step.result(p) for step in steps if len(step.s) > 30]
    share = np.concatenate([f.active[: -p.window] for f in found]).mean()
    print(f"{share:.1%} active")
    assert 0.05 < share < 0.6 and any(f.halve.any() for f in found)
    assert len({int(c) for f in found for c in f.count}) == (1 << p.counter_bits) - 1


@pytest.mark.campaign
@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_more_sizes(parameters, shipped_trace):
    compiled = Compiled(BLOCK, parameters)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(parameters, trace, 150, seed=7))


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["single", "default", "paper"])
def test_presets(preset, shipped_trace):
    p = ApidParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 100, seed=8))
