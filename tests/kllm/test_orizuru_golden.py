"""The model of Orizuru against sorting, the paper's figures, and real activations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golden.kllm.orizuru import order_key, orizuru, pop_order
from golden.trace import load, shipped

SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]
NANS = [0x7C01, 0x7E00, 0x7FFF, 0xFC01, 0xFE00, 0xFFFF]
QUIET_NAN = 0x7E00

unhurried = settings(deadline=None)  # a busy machine is no failure


@st.composite
def vectors(draw, longest=70):
    """FP16 bits as float16: arbitrary ones, corner cases, or few values with many ties."""
    length = draw(st.integers(1, longest))
    element = draw(
        st.sampled_from(
            [
                st.integers(0, 0xFFFF),
                st.sampled_from(SPECIAL + NANS),
                st.sampled_from([0x0000, 0x8000, 0x3C00, 0x7E00]),
                st.sampled_from(SPECIAL),
            ]
        )
    )
    return draw(arrays(np.uint16, length, elements=element)).view(np.float16)


def sorted_indices(x, k):
    """The k largest and the k smallest by numpy.lexsort: NaNs last, ties by index."""
    x = x.astype(np.float64)  # quiets NaNs; exact
    nan = np.isnan(x)
    value = np.where(nan, 0, x)
    index = np.arange(len(x))
    return tuple(np.lexsort((index, sign * value, nan))[:k] for sign in (-1, 1))


def bits(values):
    return np.asarray(values, np.float16).view(np.uint16)


def canonical_bits(x):
    """By looking at the bits alone."""
    magnitude = bits(x) & 0x7FFF
    return np.where(magnitude > 0x7C00, QUIET_NAN, np.where(magnitude == 0, 0, bits(x)))


def check(x, k):
    result = orizuru(x, k)
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        largest, smallest = sorted_indices(x, k)
    np.testing.assert_array_equal(result.max_indices, largest)
    np.testing.assert_array_equal(result.min_indices, smallest)
    assert result.max_values.dtype == result.min_values.dtype == x.dtype
    np.testing.assert_array_equal(bits(result.max_values), canonical_bits(x)[largest])
    np.testing.assert_array_equal(bits(result.min_values), canonical_bits(x)[smallest])
    return result


@unhurried
@given(vectors(), st.data())
def test_pops_in_sorted_order(x, data):
    check(x, data.draw(st.integers(0, len(x))))


@pytest.mark.parametrize("n", [1, 2, 128, 1024, 4096])
def test_pops_in_sorted_order_at_powers_of_two(n):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 1 << 16, n).astype(np.uint16).view(np.float16)
    for k in {0, 1, n // 200 + 1, min(n, 100)}:
        check(x, k)


def test_every_value_of_a_long_vector_leaves_both_ends():
    rng = np.random.default_rng(3)
    check(rng.standard_normal(512).astype(np.float16).round(1), 512)


@unhurried
@given(vectors(), st.data())
def test_hardware_order_is_the_trees(x, data):
    k = data.draw(st.integers(0, len(x)))
    result = orizuru(x, k)
    popped = pop_order(x[None], np.ones((1, len(x)), bool), k)
    for end in ("max", "min"):
        np.testing.assert_array_equal(popped[f"{end}_index"][0], getattr(result, f"{end}_indices"))
        values = bits(getattr(result, f"{end}_values"))
        np.testing.assert_array_equal(popped[f"{end}_value"][0], values)
    assert popped["present"].all()
    assert popped["invalid"][0] == np.isnan(x).any()


@unhurried
@given(vectors(), st.data())
def test_hardware_order_of_the_values_kept(x, data):
    """A vector with values not kept is popped like the vector of the kept ones."""
    keep = data.draw(arrays(bool, len(x)))
    k = data.draw(st.integers(0, len(x)))
    popped = pop_order(x[None], keep[None], k)
    kept = np.flatnonzero(keep)
    pairs = min(k, len(kept))
    np.testing.assert_array_equal(popped["present"][0], np.arange(k) < len(kept))
    assert popped["invalid"][0] == np.isnan(x[keep]).any()
    if pairs:
        result = orizuru(x[keep], pairs)
        for end in ("max", "min"):
            index = kept[getattr(result, f"{end}_indices")]
            np.testing.assert_array_equal(popped[f"{end}_index"][0, :pairs], index)
            values = bits(getattr(result, f"{end}_values"))
            np.testing.assert_array_equal(popped[f"{end}_value"][0, :pairs], values)
    for end in ("max", "min"):
        assert not popped[f"{end}_index"][0, pairs:].any()
        assert not popped[f"{end}_value"][0, pairs:].any()


def test_hardware_order_of_many_vectors_is_that_of_each():
    rng = np.random.default_rng(7)
    x = rng.choice(np.array(SPECIAL + NANS, np.uint16), (50, 12)).view(np.float16)
    keep = rng.random((50, 12)) < 0.7
    together = pop_order(x, keep, 9)
    for row in range(50):
        alone = pop_order(x[row : row + 1], keep[row : row + 1], 9)
        for name, value in alone.items():
            np.testing.assert_array_equal(together[name][row], value[0])


def test_order_keys_sort_as_values_do():
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        value = every.astype(np.float64)
    key = order_key(every).astype(np.int64)
    numbers = np.flatnonzero(~np.isnan(value))
    numbers = numbers[np.argsort(value[numbers], kind="stable")]
    np.testing.assert_array_equal(np.sign(np.diff(key[numbers])), np.diff(value[numbers]) > 0)
    assert (key[np.isnan(value)] == 1).all() and key[numbers].min() > 1


def test_the_largest_of_figure_7():
    """The paper's example: the largest of eight values, 9, is leaf 14, found by path bits 110.

    The text tells node 14, its path, and that both values below node 7 are among the three
    largest; the other values are ours.
    """
    x = np.array([3, 1, 5, 2, 7, 4, 9, 8], np.float16)
    result = orizuru(x, 3)
    leaf = len(x) + result.max_indices[0]
    assert (leaf, f"{leaf:b}", result.max_values[0]) == (14, "1110", 9)
    np.testing.assert_array_equal(result.max_indices, [6, 7, 4])
    np.testing.assert_array_equal(result.min_indices, [1, 3, 0])


@pytest.mark.parametrize("n", [2, 4, 8, 16, 128, 1024, 4096])
@pytest.mark.parametrize("share", [0, 0.005, 0.05, 1])
def test_comparisons_of_the_paper(n, share):
    k = min(int(np.ceil(share * n)), 300)
    x = np.random.default_rng(n).standard_normal(n).astype(np.float16)
    levels = n.bit_length() - 1
    comparisons = orizuru(x, k).comparisons
    if n == 2:
        assert comparisons == 1 + 2 * k  # the one comparison is shared by both trees
    else:
        assert comparisons == 1.5 * n - 2 + 2 * k * levels
    assert 0 <= 1.5 * n + 2 * k * levels - comparisons <= 2  # 1.5 N + 2 k log2 N in the paper


@unhurried
@given(vectors(), st.data())
def test_comparisons_need_two_contenders(x, data):
    """Missing leaves need no comparison: N - 1 comparisons set one tree up, at any N."""
    n, k = len(x), data.draw(st.integers(0, len(x)))
    levels = (n - 1).bit_length()
    comparisons = orizuru(x, k).comparisons
    setup = 2 * (n - 1) - n // 2
    assert setup <= comparisons <= setup + 2 * k * levels
    assert orizuru(x, 0).comparisons == setup


@unhurried
@given(vectors(), st.data())
def test_ends_are_independent(x, data):
    """The pops of one end do not depend on the other, though all values are popped at both."""
    k = data.draw(st.integers(len(x) // 2 + 1, len(x)))
    result, everything = orizuru(x, k), orizuru(x, len(x))
    assert set(result.max_indices) & set(result.min_indices)
    np.testing.assert_array_equal(result.max_indices, everything.max_indices[:k])
    np.testing.assert_array_equal(result.min_indices, everything.min_indices[:k])
    np.testing.assert_array_equal(np.sort(everything.max_indices), np.arange(len(x)))
    np.testing.assert_array_equal(np.sort(everything.min_indices), np.arange(len(x)))
    if not np.isnan(x).any():
        negated = orizuru(-x, k)
        np.testing.assert_array_equal(negated.max_indices, result.min_indices)
        np.testing.assert_array_equal(negated.min_indices, result.max_indices)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_floats(dtype):
    x = np.random.default_rng(2).standard_normal(100).astype(dtype)
    result = orizuru(x, 10)
    assert result.max_values.dtype == dtype
    np.testing.assert_array_equal(result.max_values, np.sort(x)[::-1][:10])
    np.testing.assert_array_equal(result.min_values, np.sort(x)[:10])


def test_the_input_is_left_alone():
    x = np.array([-0.0, np.nan, 1, -1], np.float16)
    before = x.tobytes()
    orizuru(x, 4)
    pop_order(x[None], np.ones((1, 4), bool), 4)
    assert x.tobytes() == before


@pytest.mark.parametrize(
    "x, message",
    [
        (np.zeros((2, 3), np.float16), r"x must be a vector of floats, not float16\[2, 3\]"),
        (np.zeros(0, np.float16), r"x must be a vector of floats, not float16\[0\]"),
        (np.float16(1), r"x must be a vector of floats, not float16\[\]"),
        (np.zeros(3, np.int16), r"x must be a vector of floats, not int16\[3\]"),
    ],
)
def test_wrong_vectors(x, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        orizuru(x, 0)


@pytest.mark.parametrize("k", [-1, 4])
def test_wrong_numbers_of_pairs(k):
    with pytest.raises(ValueError, match=f"^k must be between 0 and N = 3, not {k}$"):
        orizuru(np.zeros(3, np.float16), k)


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_real_activations(path):
    """Activation vectors of a language model, with the paper's 0.5 % for each end."""
    for tokens in load(path).x.values():
        x = tokens.astype(np.float16)
        k = -(-x.shape[1] // 200)
        popped = pop_order(x, np.ones(x.shape, bool), k)
        for token in range(min(4, len(x))):
            result = check(x[token], k)
            np.testing.assert_array_equal(popped["max_index"][token], result.max_indices)
            np.testing.assert_array_equal(popped["min_index"][token], result.min_indices)
