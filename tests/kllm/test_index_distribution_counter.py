"""Index distribution counters: all sets of a small one, random sets of larger ones."""

import numpy as np
import pytest

from golden.algorithms.kllm.matvec import count_indices
from golden.kllm.index_distribution_counter import index_distribution
from hw.catalogue import find
from hw.kllm.index_distribution_counter import IndexDistributionCounterParameters
from sim.drivers.run import load_testbench
from tests.support.arith.functions import run
from tests.support.campaign import suite_takes

BLOCK = find("kllm.index_distribution_counter")
PRESETS = IndexDistributionCounterParameters.presets()


def draw(parameters, count, seed):
    return load_testbench(BLOCK).draw(parameters, None, count, seed)[0]


def test_golden_counts_as_the_algorithm_does():
    """Column by column; integer mode as increments: sums of 2^p times the counts of line p."""
    p = PRESETS["paper"]
    sets = draw(p, 400, seed=1)
    got = index_distribution(**sets, activation_bits=4, weight_bits=4)
    assert got.shape == (400, 256)
    kinds = set()
    for row, index, mask, integer in zip(got, *sets.values(), strict=True):
        column, keep = index[:, None], mask == 1
        if integer:
            want = count_indices(column & 15, 16, keep, column >> 4)
            lines = row.reshape(16, 16)
            assert not lines[4:].any()
            assert ((1 << np.arange(4)) @ lines[:4]).tolist() == want[0].tolist()
        else:
            assert row.tolist() == count_indices(column, 256, keep)[0].tolist()
        kinds.add((bool(integer), int(row.max())))
    assert {kind for kind, most in kinds} == {False, True}
    assert {most for _, most in kinds} == set(range(17))


@pytest.mark.parametrize(
    "inputs, activation_bits, weight_bits, stages",
    suite_takes(
        [(3, 2, 2, 0), (5, 1, 2, 1)],
        [(2, 1, 1, 0), (3, 2, 2, 0), (5, 1, 2, 1), (6, 1, 1, 2), (4, 2, 1, 0)],
    ),
)
def test_every_set(inputs, activation_bits, weight_bits, stages):
    """Every choice of indices and mask, both ways of counting."""
    p = IndexDistributionCounterParameters(inputs, activation_bits, weight_bits, stages=stages)
    number = np.arange(1 << (inputs * (p.index_bits + 1) + 1))
    places = np.arange(inputs)
    index = number[:, None] >> places * p.index_bits & ((1 << p.index_bits) - 1)
    number >>= inputs * p.index_bits
    mask, mode = number[:, None] >> places & 1, number >> inputs & 1
    sets = {"index": index, "mask": mask, "integer_mode": mode}
    assert run(BLOCK, p, sets) == 0


@pytest.mark.parametrize("name", ["default"])
def test_random_sets(name):
    p = PRESETS[name]
    sets = draw(p, 50_000, seed=2)
    equal = np.sort(np.where(sets["mask"] == 1, sets["index"], -1), axis=1)
    # Every count occurs, also eight and eight of two indices.
    halves = (equal[:, 0] == equal[:, 7]) & (equal[:, 8] == equal[:, 15]) & (equal[:, 0] >= 0)
    assert np.count_nonzero(halves & (equal[:, 0] != equal[:, 8])) > 10
    counts = index_distribution(**sets, activation_bits=4, weight_bits=4)
    assert set(np.unique(counts)) == set(range(17))
    assert run(BLOCK, p, sets) == 0
