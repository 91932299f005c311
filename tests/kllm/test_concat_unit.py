"""Concat units, and the real indices of the testbenches."""

import numpy as np
import pytest

from golden.kllm.concat_unit import concat_unit
from hw.catalogue import find
from hw.kllm.concat_unit import ConcatUnitParameters
from sim.testbenches.kllm.concat_unit import real_indices
from tests.support.arith.functions import run

BLOCK = find("kllm.concat_unit")


@pytest.mark.parametrize("activation_bits, weight_bits, stages", [(4, 4, 1), (3, 4, 0)])
def test_every_pair(activation_bits, weight_bits, stages):
    a, w = np.divmod(np.arange(1 << activation_bits + weight_bits), 1 << weight_bits)
    operands = {
        "activation": np.stack([a, a[::-1]], axis=1),
        "weight": np.stack([w, np.roll(w, 3)], axis=1),
        "mask": np.stack([a ^ w, a >> 1], axis=1) & 1,
    }
    parameters = ConcatUnitParameters(2, activation_bits, weight_bits, stages=stages)
    assert run(BLOCK, parameters, operands) == 0
    assert concat_unit(a, w, weight_bits).tolist() == list(range(len(a)))


def test_real_indices(shipped_trace):
    values, notes = real_indices(shipped_trace, 4, 4, 576, 100)
    assert "quantised" in notes[0]
    for name, value in values.items():
        assert value.shape == (100, 576)
        assert set(np.unique(value)) == set(range(2 if name == "mask" else 16))
    # Three outliers at either end of a vector of 576 values.
    assert np.count_nonzero(values["mask"][0] == 0) == 6
    columns = np.concatenate([values["activation"], values["weight"]], axis=1)
    assert len(np.unique(columns, axis=0)) == 100
