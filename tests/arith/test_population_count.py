"""Population counts: every number of few bits, random ones of many."""

import numpy as np
import pytest

from golden.arith.population_count import population_count
from hw.arith.population_count import PopulationCountParameters
from hw.catalogue import find
from sim.drivers.run import load_testbench
from tests.support.arith.functions import run

BLOCK = find("arith.population_count")


def test_golden_is_pythons():
    numbers = np.random.default_rng(1).integers(0, 1 << 62, 1000)
    bits = numbers[:, None] >> np.arange(64) & 1
    assert population_count(bits).tolist() == [n.bit_count() for n in numbers.tolist()]


@pytest.mark.parametrize("n, stages", [(2, 0), (11, 1), (16, 0)])
def test_every_number(n, stages):
    bits = np.arange(1 << n)[:, None] >> np.arange(n) & 1
    parameters = PopulationCountParameters(n=n, stages=stages)
    assert run(BLOCK, parameters, {"i": bits}) == 0


@pytest.mark.parametrize("n", [100])
def test_every_count_of_many_bits(n):
    parameters = PopulationCountParameters(n=n)
    values, _ = load_testbench(BLOCK).draw(parameters, None, 50_000, seed=n)
    runs = np.arange(n) < np.arange(n + 1)[:, None]
    bits = np.concatenate([values["i"], runs, ~runs, np.eye(n, dtype=bool)])
    assert set(population_count(bits)) == set(range(n + 1))
    assert run(BLOCK, parameters, {"i": bits}) == 0
