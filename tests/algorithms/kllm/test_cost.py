"""The paper's counts of operations."""

import numpy as np
import pytest

from golden.algorithms.kllm.cost import cost
from golden.algorithms.kllm.quantize import outlier_count
from golden.kllm.orizuru import orizuru


def test_a_column_of_4096_takes_256_macs():
    found = cost(4096, 4096, outlier_count(4096))
    assert found.dense_macs == 4096 * 256 and found.plain_macs == 4096 * 4096
    assert found.sparse_macs == 4096 * 42
    assert found.comparisons == 1.5 * 4096 + 2 * 21 * 12
    assert cost(4096, 1, 0, 3, 4).dense_macs == 128


@pytest.mark.parametrize(("k", "outliers"), [(16, 0), (64, 3), (1024, 6)])
def test_comparisons_are_orizurus(k, outliers):
    made = orizuru(np.random.default_rng(0).normal(size=k), outliers).comparisons
    assert cost(k, 1, outliers).comparisons == made + 2  # the paper rounds 1.5 N - 2


def test_outliers_must_fit():
    with pytest.raises(ValueError, match="^outliers must be between 0 and K = 4, not 5$"):
        cost(4, 1, 5)
