"""The sparse path: exact sums of outliers times weights, in the model and in hardware.

The rounding of sums is explained in docs/kllm.md, "Rounding of sums".
"""

from fractions import Fraction

import numpy as np
import pytest

from golden.algorithms.kllm.matvec import sparse_product
from golden.algorithms.kllm.quantize import QuantizedActivations, QuantizedWeights
from golden.arith.formats import to_bits
from golden.kllm.sparse_path import sparse_path
from hw.catalogue import find
from hw.kllm.sparse_path import SparsePathParameters
from sim.testbenches.kllm.columns import columns_of
from sim.testbenches.kllm.sparse_path import build, expected, random_rows, real_rows, testbench
from tests.kllm.test_reduction import nearest_float32
from tests.support.campaign import suite_takes
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.sparse_path")
SIZES = [
    SparsePathParameters(k=3, weight_bits=1, counters=1, entries=1),
    SparsePathParameters(k=40, weight_bits=2, counters=3, entries=3),
    SparsePathParameters(k=300, weight_bits=3, counters=2, entries=2),
]


def exact_sums(value, weight, codebook, keep):
    """FP32 results by rational arithmetic; None for NaN."""
    results = []
    for column in range(weight.shape[1]):
        pairs = [
            (float(v), float(c))
            for v, c, kept in zip(value, codebook[weight[:, column]], keep, strict=True)
            if kept
        ]
        finite = all(np.isfinite(pair).all() for pair in pairs)
        total = sum((Fraction(v) * Fraction(c) for v, c in pairs), Fraction(0)) if finite else None
        results.append(nearest_float32(total) if finite else None)
    return results


def operands(rng, tokens, terms, columns, special=True):
    value = rng.integers(0, 1 << 16, (tokens, terms)).astype(np.uint16)
    codebook = rng.integers(0, 1 << 16, 16).astype(np.uint16)
    for array in (value, codebook):
        array[array & 0x7C00 == 0x7C00] &= 0xBFFF
    if special:
        value[0, 0], codebook[7] = 0xFC00, 0x7E01
    weight = rng.integers(0, 16, (terms, columns))
    keep = rng.random((tokens, terms)) < 0.5
    return value.view(np.float16), weight, codebook.view(np.float16), keep


def test_golden_is_the_exact_sum_rounded_once():
    rng = np.random.default_rng(1)
    numbers = 0
    for _ in range(20):
        value, weight, codebook, keep = operands(rng, 3, 6, 20)
        got, invalid = sparse_path(value, weight, codebook, keep)
        for token in range(3):
            exact = exact_sums(value[token], weight, codebook, keep[token])
            for column, result in enumerate(exact):
                assert invalid[token, column] == (result is None)
                if result is None:
                    assert to_bits(got[token, column]) == 0x7FC00000
                else:
                    assert to_bits(got[token, column]) == to_bits(result)
                    numbers += 1
    assert 300 < numbers < 1200


def test_forms_of_the_model_agree():
    """Lists of outliers, single vectors and whole matrices; values of any or of one size."""
    rng = np.random.default_rng(2)
    for limited in (False, True):
        value, weight, codebook, keep = operands(rng, 9, 40, 11)
        if limited:  # the sum then fits float64 at once
            value = rng.standard_normal(value.shape).astype(np.float16)
            codebook = rng.uniform(-1, 1, 16).astype(np.float16)
        matrix, invalid = sparse_path(value, weight, codebook, keep)
        lists = sparse_path(value, np.broadcast_to(weight, (9, *weight.shape)), codebook, keep)
        np.testing.assert_array_equal(to_bits(matrix), to_bits(lists[0]))
        np.testing.assert_array_equal(invalid, lists[1])
        one, bad = sparse_path(value[3], weight, codebook, keep[3])
        np.testing.assert_array_equal(to_bits(one), to_bits(matrix[3]))
        np.testing.assert_array_equal(bad, invalid[3])
    empty, bad = sparse_path(np.zeros((2, 40), np.float16), weight, codebook)
    assert not to_bits(empty).any() and not bad.any()


def test_close_to_the_algorithm(shipped_trace):
    """Real outliers: within one rounding of the float64 sum."""
    c = columns_of(shipped_trace, 576, 4, 4, 40)
    one = np.ones(1, np.float16)
    for column in range(40):
        got, invalid = sparse_path(c.value[column], c.weight[column][:, None], c.codebook_b)
        a = QuantizedActivations(
            c.activation[column], c.codebook_a, one, one, c.outlier[column], c.value[column]
        )
        b = QuantizedWeights(c.weight[column][:, None], c.codebook_b, one, one * 0)
        exact = sparse_product(a, b)
        assert abs(got[0] - exact[0]) <= 2.0**-24 * abs(exact[0]) and not invalid[0]
    assert c.outlier.sum(axis=1).min() == 6


@pytest.mark.parametrize("parameters", suite_takes(SIZES[1:], SIZES), ids=lambda p: p.slug())
def test_every_size(parameters, shipped_trace):
    compiled = Compiled(BLOCK, parameters)
    # Activations are clustered to 16 centroids even where weights are not.
    for data, vectors in ((None, 1000), (shipped_trace, 30 if parameters.k > 16 else 0)):
        if not vectors:
            continue
        stimulus = testbench.stimulus(parameters, data, vectors, seed=5)
        compiled.check_all(stimulus)


def test_short_columns_are_not_lost():
    """Columns of one row, one each cycle."""
    p = SIZES[2]
    weight, codebook, valid, position, value, _ = random_rows(p, 30, np.random.default_rng(6))
    stimulus = build(p, weight, codebook, valid, position, value, np.arange(1, len(weight) + 1), [])
    compiled = Compiled(BLOCK, p)
    taken = compiled.check_all(stimulus)["none"].cycles_of["o"]
    assert np.array_equal(taken, np.arange(len(weight)) + p.latency)


def test_random_rows_cover_what_they_should():
    """Infinite, cancelling, empty and full columns occur, and no column has more than k entries."""
    p = SparsePathParameters.preset("default")
    rows = random_rows(p, 400, np.random.default_rng(7))
    total, invalid = expected(*rows)
    valid, ends = rows[2], rows[5]
    counts = np.add.reduceat(valid.sum(axis=1), np.append(0, ends[:-1]))
    assert counts.max() <= p.k and (counts == 0).sum() > 5
    assert 20 < invalid.sum() < 300
    print(f"{invalid.sum()} of 400 invalid, {np.count_nonzero(total == 0)} zero")


def test_rows_of_a_trace(shipped_trace):
    """Every outlier is in one row; a segment has more than one row only where entries are short."""
    p = SparsePathParameters()
    rng = np.random.default_rng(8)
    (*_, valid, _, _, ends), _ = real_rows(p, shipped_trace, 32, rng)
    assert valid.sum() == 6 * 32 and ends[-1] >= 32 * p.segments
    print(f"{ends[-1] / 32:.2f} rows a column, {p.segments} segments")
