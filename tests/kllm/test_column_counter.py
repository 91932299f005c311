"""The column counter's RTL: columns of every length, its latency and its throughput."""

import dataclasses
import itertools

import numpy as np
import pytest

from golden.algorithms.kllm.matvec import concatenate, count_indices
from golden.kllm.column_counter import column_counts
from hw.catalogue import find
from hw.kllm.column_counter import ColumnCounterParameters
from sim.core import payload
from sim.drivers.run import run
from sim.testbenches.kllm.column_counter import (
    build,
    integer_groups,
    random_columns,
    testbench,
)
from tests.support.campaign import suite_takes
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.column_counter")
TINY = ColumnCounterParameters.presets()["tiny"]
# Every number of stages, one group and many, one counter and several.
SIZES = [
    TINY,
    dataclasses.replace(TINY, counters=1, inputs=5, macs=8, stages=0),
    dataclasses.replace(TINY, k=6, counters=2, macs=1, stages=1),
    dataclasses.replace(TINY, k=64, activation_bits=1, macs=4, counters=5, inputs=2, stages=2),
]


@pytest.fixture(scope="module", params=suite_takes(SIZES[:2], SIZES), ids=lambda p: p.slug())
def compiled(request):
    return Compiled(BLOCK, request.param)


def test_every_size(compiled, shipped_trace):
    p = compiled.parameters
    for data, columns in ((None, 3000), (shipped_trace, 100)):
        stimulus = testbench.stimulus(p, data, columns, seed=7)
        assert stimulus.transactions == columns
        compiled.check_all(stimulus)


def test_largest_counts(compiled):
    """k equal indices, for every index, are counted exactly; k + 1 wrap."""
    p = compiled.parameters
    beats = -(-(p.k + 1) // p.segment)
    position = np.arange(beats * p.segment)
    index = np.repeat(np.arange(p.bins), 2)[:, None] + 0 * position
    wanted = np.resize([p.k, p.k + 1], (2 * p.bins, 1))
    columns = np.repeat(np.arange(2 * p.bins), beats)
    arrays = {
        "activation": (index >> p.weight_bits).reshape(-1, p.segment),
        "weight": (index & ((1 << p.weight_bits) - 1)).reshape(-1, p.segment),
        "mask": (position < wanted).reshape(-1, p.segment),
        "integer": np.zeros(len(columns), bool),
    }
    rng = np.random.default_rng(2)
    stimulus = build(p, arrays, columns, np.full(2 * p.bins, p.groups), [], rng)
    counts = payload.unpack(p.output_layout, stimulus.outputs["o"])
    counts = np.stack([counts[f"counts[{i}]"] for i in range(p.macs)], axis=1)
    largest = counts.reshape(-1, p.bins).max(axis=1).reshape(-1, 2)
    assert (largest == (p.k, (p.k + 1) % (1 << p.count_bits))).all()
    compiled.check(stimulus, "random")


def test_latency_and_throughput(compiled):
    """First group stages + 1 cycles after the last beat; then max(B', groups) cycles a column."""
    p = compiled.parameters
    rng = np.random.default_rng(2)
    lengths = {1, p.groups - 1 or 1, p.groups, p.groups + 2}
    for beats, groups in itertools.product(lengths, {1, p.groups // 2 or 1, p.groups}):
        count = 6
        columns = np.repeat(np.arange(count), beats)
        shape = (len(columns), p.segment)
        arrays = {
            "activation": np.zeros(shape, int),
            "weight": np.arange(shape[0] * shape[1]).reshape(shape) & 1,
            "mask": np.ones(shape, bool),
            "integer": np.zeros(len(columns), bool),
        }
        stimulus = build(p, arrays, columns, np.full(count, groups), [], rng)
        outcome = compiled.check(stimulus, "none")
        taken = outcome.cycles_of["o"].reshape(count, groups)
        assert taken[0, 0] == beats - 1 + p.latency
        assert (np.diff(taken, axis=1) == 1).all()
        assert set(np.diff(taken[:, 0])) == {max(beats, groups)}
        assert p.cycles([beats] * count, [groups] * count) == outcome.cycles == taken[-1, -1] + 1
        assert p.cycles([beats] * count) == p.cycles([beats] * count, [p.groups] * count)


def test_every_pair_of_groups(compiled):
    """Columns of every number of groups, short and long, each after each other one."""
    p = compiled.parameters
    rng = np.random.default_rng(3)
    every = range(1, p.groups + 1)
    pairs = list(itertools.product(every, every, (1, p.groups + 1)))
    order = rng.permutation(len(pairs))[:150]
    groups = np.array([pairs[n][:2] for n in order]).ravel()
    columns = np.repeat(np.arange(len(groups)), np.repeat([pairs[n][2] for n in order], 2))
    shape = (len(columns), p.segment)
    arrays = {
        "activation": rng.integers(0, 1 << p.activation_bits, shape),
        "weight": rng.integers(0, 1 << p.weight_bits, shape),
        "mask": np.ones(shape, bool),
        "integer": np.zeros(len(columns), bool),
    }
    assert set(groups) == set(every)
    compiled.check_all(build(p, arrays, columns, groups, [], rng))


def test_integer_counts_are_in_the_first_groups(compiled):
    """No other group has one, so that the others need no output."""
    p = compiled.parameters
    rng = np.random.default_rng(4)
    index = rng.integers(0, p.bins, (300, p.segment))
    fields = (index >> p.weight_bits, index % (1 << p.weight_bits), np.ones(index.shape, bool))
    flags = np.ones(300, bool)
    counts = column_counts(*fields, flags, flags, p.activation_bits, p.weight_bits)
    groups = counts.reshape(300, p.groups, p.macs).sum(axis=(0, 2))
    assert (groups > 0).tolist() == (np.arange(p.groups) < integer_groups(p)).tolist()


def test_golden_counts_as_the_algorithm_does():
    p = ColumnCounterParameters.presets()["small"]
    beats, columns = random_columns(p, 60, np.random.default_rng(3))
    beats["integer"][:] = False
    last = np.append(columns[1:] != columns[:-1], True)
    got = column_counts(*beats.values(), last, p.activation_bits, p.weight_bits)
    assert got.shape == (60, p.bins)
    for number, row in enumerate(got):
        beats_of = columns == number
        a, w, keep = (beats[name][beats_of].ravel() for name in ("activation", "weight", "mask"))
        want = count_indices(concatenate(a, w[:, None], p.weight_bits), p.bins, keep)
        assert row.tolist() == want[0].tolist()
    with pytest.raises(ValueError, match="^last must be set on the last beat$"):
        column_counts(*beats.values(), last & False, p.activation_bits, p.weight_bits)


def test_the_paper_s_lane():
    """4096 indices in 8 beats of 32 counters, 256 counts in 8 groups: input and output balance."""
    p = ColumnCounterParameters.presets()["paper"]
    assert (p.segment, p.beats, p.groups, p.count_bits) == (512, 8, 8, 13)
    columns = 4096 // 16
    assert p.cycles([p.beats] * columns) == 8 * columns + p.stages + p.groups


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_huge_presets(preset):
    """Too many instances for the tests of every block."""
    parameters = ColumnCounterParameters.presets()[preset]
    outcome = run(
        BLOCK, preset, parameters, driver="harness", vectors=32 if preset == "default" else 4
    )
    assert outcome.passed, outcome.first_mismatch
    assert outcome.transactions > 0
