"""Options of the array's levels: which change no result, what each of them does."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention, attention_scores, softmax
from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.unicaim.level_rows import LevelOptions, LevelRows
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import SPREAD
from golden.unicaim.rotation import rotated


def keys_with_outliers(kv_heads, rows, d, seed):
    """Normal keys, two elements of which are much larger and much the same in all rows."""
    rng = np.random.default_rng(seed)
    k = rng.normal(size=(kv_heads, rows, d))
    k[..., 1] = 8 + rng.normal(size=(kv_heads, rows))
    k[..., d // 2] *= 6
    return k


@pytest.mark.parametrize("d", [64, 96, 6, 5])
def test_rotation_and_centring_change_no_exact_score(d):
    """Inner products stay; the mean key adds the same to all rows: softmax and top k are equal."""
    k = keys_with_outliers(2, 50, d, seed=1)
    q = np.random.default_rng(2).normal(size=(6, d))
    mean = k.mean(axis=1, keepdims=True)
    exact = attention_scores(q, k)
    for turned, centred in ((True, False), (False, True), (True, True)):
        keys, queries = k - mean if centred else k, q
        if turned:
            keys, queries = rotated(keys, 3), rotated(queries, 3)
        scores = attention_scores(queries, keys)
        np.testing.assert_allclose(softmax(scores), softmax(exact), rtol=1e-10)
        np.testing.assert_array_equal(np.argsort(scores), np.argsort(exact))
        difference = scores - exact
        np.testing.assert_allclose(difference, difference[:, :1].repeat(50, axis=1), atol=1e-10)


@pytest.mark.parametrize("options", [{"rotate": False}, {"centre": False}, {"seed": 8}])
def test_without_cells_the_options_change_nothing(options):
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(2, 40, 8)) for _ in range(3))
    given = {"heavy": 12, "reserved": 4, "top_k": 5, "prompt": 20, "key_bits": 0}
    outputs = [StaticDynamicAttention(**given | more).sequence(q, k, v) for more in ({}, options)]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("seed", range(3))
def test_many_bits_without_spread_are_dense_attention(seed):
    """From the cells' own levels too: 8 bits each, converters of 20 bits, all rows selected."""
    rng = np.random.default_rng(seed)
    q, v = rng.normal(size=(4, 40, 16)), rng.normal(size=(2, 40, 16))
    k = keys_with_outliers(2, 40, 16, seed)
    dense = DenseAttention().sequence(q, k, v)
    options = {"prompt": 20, "key_bits": 8, "query_bits": 8, "exact": "cells", "span": 8.0}
    for more in ({}, {"rotate": False}, {"centre": False}, {"converter_bits": 20}):
        o = StaticDynamicAttention(**options | more).sequence(q, k, v)
        error = np.linalg.norm(o - dense) / np.linalg.norm(dense)
        assert error < 0.06, (seed, more, error)


def test_rotation_and_centring_find_more_of_the_nearest_rows():
    """Of keys with outliers, on 3 bits and with the paper's spread."""
    k = keys_with_outliers(1, 300, 64, seed=5)
    q = np.random.default_rng(6).normal(size=(40, 64))
    near = top_k(attention_scores(q, k), 30)

    def found(**options):
        rows = LevelRows(LevelOptions(spread_mv=1000 * SPREAD, **options), k, 300)
        rows.write(np.zeros((1, 1), int), np.arange(300), k)
        return np.count_nonzero(near & top_k(rows.scores(q, 300), 30)) / np.count_nonzero(near)

    plain = found(rotate=False, centre=False)
    centred, turned = found(rotate=False), found(centre=False)
    both = found()
    assert plain < centred < both and plain < turned < both, (plain, centred, turned, both)
    assert both > plain + 0.15


def test_a_row_written_again_keeps_its_devices():
    """The noise on a row is that of its address, whatever was written; other seeds, other noise."""
    k = np.random.default_rng(7).normal(size=(2, 10, 16))
    q = np.random.default_rng(8).normal(size=(4, 16))
    heads = np.arange(2)[:, None]

    def noise(seed, keys):
        shown = []
        for spread_mv in (54, 0):
            rows = LevelRows(LevelOptions(spread_mv=spread_mv, seed=seed, rotate=False), k, 12)
            rows.write(heads, np.arange(10), k)
            rows.write(heads, np.arange(10), keys)
            shown.append(rows.scores(q, 10))
        return shown[0] - shown[1]

    first = noise(0, k)
    assert np.abs(first).min() > 0
    np.testing.assert_allclose(noise(0, k[:, ::-1]), first, atol=1e-9)
    assert np.abs(noise(1, k) - first).min() > 0


@pytest.mark.parametrize("query_bits", [1, 3])
def test_noise_of_the_rows(query_bits):
    """Its standard deviation is that of ``spread``: see the closed form there, digits of 1."""
    k = np.zeros((1, 1, 64))
    q = np.ones((1, 64)) * 100
    options = LevelOptions(query_bits=query_bits, spread_mv=54, rotate=False)
    shown = LevelRows(options, k, 4000).scores(q, 4000).ravel()
    digit = {1: 1, 3: 2}[query_bits]  # a constant query is at 7 / 3 levels of 3 bits, so 2
    top = 2**query_bits - 1
    # digit (a - b) / 2 + top (a + b) / 2 for each of 64 cells.
    deviation = 0.36 * (64 * ((top + digit) ** 2 + (top - digit) ** 2) / 4) ** 0.5
    assert shown.std() == pytest.approx(deviation, rel=0.05)
    assert abs(shown.mean()) < 4 * deviation / 4000**0.5


@pytest.mark.parametrize("bits", [0, 10])
def test_calibration_leaves_the_errors_that_depend_on_the_query(bits):
    """Digit (a - b) / 2 of each of 64 cells and, with converters, their rounding: codes of 4."""
    k, q = np.zeros((1, 1, 64)), np.ones((1, 64)) * 100
    options = LevelOptions(spread_mv=54, rotate=False, converter_bits=bits, calibrate="lines")
    rows = LevelRows(options, k, 4000)
    left = 0.36 * 2 * (64 / 2) ** 0.5  # a constant query is at 2 levels
    rounding = 4 / 12**0.5 if bits else 0
    assert rows.scores(q, 4000).std() == pytest.approx(np.hypot(left, rounding), rel=0.04)
    if not bits:  # codes are the same scores, only later
        codes = LevelRows(dataclasses.replace(options, calibrate="codes"), k, 4000)
        assert codes.scores(q, 4000).std() > 2.5 * left
        later, lines = (x.converted(q, x.scores(q, 4000)) for x in (codes, rows))
        np.testing.assert_allclose(later, lines, atol=1e-9)


def test_a_token_of_the_prompt_counts_if_the_last_queries_need_it():
    """Old queries look at token 2 and the last two at token 5; one row is kept."""
    d, prompt = 4, 12
    k = np.zeros((1, prompt, d))
    k[0, 2, 0] = k[0, 5, 1] = 9
    q = np.zeros((1, prompt, d))
    q[0, :10, 0] = q[0, 10:, 1] = 9
    kept = {}
    for observe in (0, 2, 11, 50):
        attention = StaticDynamicAttention(heavy=1, prompt=prompt, observe=observe)
        attention.sequence(q, k, k)
        kept[observe] = attention.positions.ravel().tolist()
    assert kept == {0: [2], 2: [5], 11: [2], 50: [2]}


def test_coarse_converters_tie_and_fine_ones_do_not():
    rng = np.random.default_rng(9)
    q, k, v = (rng.normal(size=(1, 30, 16)) for _ in range(3))

    def output(**options):
        attention = StaticDynamicAttention(prompt=20, top_k=4, **options)
        return attention.sequence(q, k, v)[:, 20:]

    rounded = [output(exact="cells", converter_bits=bits) for bits in (2, 8, 12)]
    free = output(exact="cells")
    off = [np.abs(o - free).max() for o in rounded]
    # Scores of 16 cells are within 16 * 4 * 7 = 448: 12 bits hold each of them.
    assert off[0] > off[1] > off[2] == 0
