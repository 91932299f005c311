"""Round to nearest against loops, and the model that multiplies so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golden.algorithms.baselines.round_to_nearest import (
    RoundToNearestLlama,
    round_to_nearest,
    rounded,
)
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama
from tests.support.lm.tiny_llama import random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]


@given(
    arrays(np.int32, (3, 5), elements=st.integers(-60, 60)),
    st.integers(2, 8),
    st.sampled_from([0, 1]),
)
def test_by_the_definition(numbers, bits, axis):
    """Integers, so that many quotients lie midway; Python's round takes those to even too."""
    x = numbers / 2
    integers, scale = round_to_nearest(x, bits, axis)
    largest = 2 ** (bits - 1) - 1
    assert integers.dtype == np.int8
    for row in range(3):
        for column in range(5):
            line = x[row] if axis == 1 else x[:, column]
            own = max(abs(value) for value in line) / largest or 1.0
            assert scale[row if axis == 1 else 0, 0 if axis == 1 else column] == own
            expected = min(max(round(x[row, column] / own), -largest), largest)
            assert integers[row, column] == expected
    np.testing.assert_allclose(rounded(x, bits, axis), integers * scale)


def test_midway_goes_to_even():
    integers, scale = round_to_nearest(np.array([[7, 0.5, 1.5, 2.5, -0.5, -1.5]]), 4, axis=1)
    assert scale == 1
    np.testing.assert_array_equal(integers, [[7, 0, 2, 2, 0, -2]])


def test_zeros_have_scale_one():
    integers, scale = round_to_nearest(np.zeros((2, 3), np.float32), 4, axis=0)
    assert not integers.any() and scale.dtype == np.float32
    np.testing.assert_array_equal(scale, [[1, 1, 1]])


@pytest.mark.parametrize("bits", [1, 9])
def test_wrong_bits(bits):
    with pytest.raises(ValueError, match=f"^bits must be between 2 and 8, not {bits}$"):
        round_to_nearest(np.ones(3), bits, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", random_tensors())
    return Llama(read_weights(GGUFFile(path)))


def test_products_are_integer_products(model):
    """Per output channel and per token: sums of integers, scaled once."""
    quantized = RoundToNearestLlama(model, weight_bits=4, activation_bits=3)
    rng = np.random.default_rng(0)
    for index, layer in enumerate(model.weights.layers):
        multiply = quantized.products(index, quantized.weights.layers[index])
        for name in ("wq", "wk", "wv", "wo", "gate", "up", "down"):
            matrix = getattr(layer, name)
            x = rng.normal(size=(4, len(matrix))).astype(np.float32)
            a, a_scale = round_to_nearest(x, 3, axis=1)
            b, b_scale = round_to_nearest(matrix, 4, axis=0)
            assert np.abs(a).max() == 3 and np.abs(b).max() == 7
            expected = (a.astype(int) @ b.astype(int)) * a_scale * b_scale
            np.testing.assert_allclose(multiply(name, x), expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_rounded_stays(model):
    dense = model.hidden(TEXT)
    neither = RoundToNearestLlama(model, weight_bits=None, activation_bits=None)
    np.testing.assert_array_equal(neither.hidden(TEXT), dense)
    for bits in ({"weight_bits": None}, {"activation_bits": None}):
        part = RoundToNearestLlama(model, **bits)
        assert np.abs(part.hidden(TEXT) - dense).max() > 1e-3


def test_more_bits_err_less(model):
    dense = model.hidden(TEXT)
    errors = [
        np.square(
            RoundToNearestLlama(model, weight_bits=bits, activation_bits=bits).hidden(TEXT) - dense
        ).mean()
        for bits in (2, 4, 8)
    ]
    assert errors[0] > 2 * errors[1] > 20 * errors[2]


def test_a_clip_saturates():
    integers, scale = round_to_nearest(np.array([[10.0, 4.9, -10.0, 0.1]]), 4, axis=1, clip=0.7)
    assert scale == 1
    np.testing.assert_array_equal(integers, [[7, 5, -7, 0]])


def test_rotated_it_is_the_same_model(model):
    """Tiny Llama's sizes, 48 and 40, need Paley's matrices of order 12 and 20."""
    rotated_model = RoundToNearestLlama(model, weight_bits=None, activation_bits=None, rotate=True)
    expected = model.logits(model.hidden(TEXT))
    got = rotated_model.logits(rotated_model.hidden(TEXT))
    np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max())
    # It is another way to it: streams and the inputs of down differ.
    assert np.abs(rotated_model.weights.embedding - model.weights.embedding).max() > 0.1
    layer, turned = model.weights.layers[1], rotated_model.weights.layers[1]
    assert np.abs(turned.down - layer.down).max() > 0.1


def test_rotated_products_are_the_float_ones_to_rounding(model):
    """Each product of rounded operands against ``exact``'s, whose inputs are not rotated."""
    quantized = RoundToNearestLlama(model, weight_bits=8, activation_bits=8, rotate=True)
    rng = np.random.default_rng(0)
    for index, layer in enumerate(quantized.exact.weights.layers):
        exact = quantized.exact.products(index, layer)
        multiply = quantized.products(index, quantized.weights.layers[index])
        for name in ("wq", "wk", "wv", "wo", "gate", "up", "down"):
            x = rng.normal(size=(4, len(getattr(layer, name)))).astype(np.float32)
            error = np.linalg.norm(multiply(name, x) - exact(name, x))
            assert 0 < error < 0.03 * np.linalg.norm(exact(name, x)), name


def test_rotation_spreads_outliers(model):
    """An element 50 times the others leaves four bits of them next to nothing."""
    x = np.random.default_rng(2).normal(size=(8, model.config.ffn)).astype(np.float32)
    x[:, 5] *= 50
    errors = []
    for rotate in (False, True):
        quantized = RoundToNearestLlama(model, weight_bits=None, rotate=rotate)
        exact = quantized.exact.products(0, quantized.exact.weights.layers[0])("down", x)
        got = quantized.products(0, quantized.weights.layers[0])("down", x)
        errors.append(np.linalg.norm(got - exact))
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("clip", [0, 1.5])
def test_wrong_clip(model, clip):
    with pytest.raises(ValueError, match=f"^clip must be above 0 and at most 1, not {clip}$"):
        RoundToNearestLlama(model, clip=clip)
