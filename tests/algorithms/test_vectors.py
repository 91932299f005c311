"""Operations on vectors in FP16, against the model's own in float32."""

import numpy as np
import pytest

from golden import InputError
from golden.algorithms.vectors import HalfVectors, combined, gains_of, norm_of_model, normalised
from golden.lm.commands import open_model
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

LAYERS = 6
"""Of Gemma 3 the sixth sees all tokens, and those before it a window."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "tiny.gguf"
    sizes = SIZES | {"layers": LAYERS, "sliding_window": 8}
    tensors = random_tensors(sizes=sizes, arch="gemma3")
    return open_model(write_gguf(path, tensors, sizes=sizes, arch="gemma3"))[0]


def test_positions_of_each_kind_of_layer(model):
    """Local layers have another base, and their turns are another table."""
    c = model.config
    assert {c.window(layer) is None for layer in range(LAYERS)} == {True, False}
    half = HalfVectors(model.weights)
    half.half_positions = True
    positions = np.arange(40, 45)
    x = np.random.default_rng(1).standard_normal((c.heads, 5, c.d)).astype(np.float16)
    angles = model.angles(positions)
    turned = [half.turn(layer, positions, x, angles[layer]) for layer in range(LAYERS)]
    for layer, found in enumerate(turned):
        wanted = model.turn(layer, positions, x.astype(np.float32), angles[layer])
        np.testing.assert_allclose(found, wanted, atol=8e-3)
    assert np.abs(turned[0] - turned[-1]).max() > 0.1


def test_without_the_flags_it_is_the_model(model):
    half, rng = HalfVectors(model.weights), np.random.default_rng(2)
    a, b = rng.standard_normal((2, 3, 8)).astype(np.float32)
    np.testing.assert_array_equal(half.combine(0, "sum", a, b), a + b)
    half.half_vectors = True
    np.testing.assert_array_equal(half.combine(0, "sum", a, b), combined("sum", a, b))


@pytest.mark.parametrize("op, word", [("sum", "sum"), ("silu", "gated product")])
def test_what_is_beyond_fp16_is_said(op, word):
    a = np.full((1, 4), 60000, np.float32)
    with pytest.raises(InputError, match=f"^the {word} of two vectors of the model is beyond FP16"):
        combined(op, a, a)


def test_a_norm_of_what_is_beyond_fp16_is_refused(model):
    x = np.array([[1, 2], [np.inf, 1]], np.float16)
    with pytest.raises(InputError, match="^a vector of the model to be normalised is beyond FP16"):
        normalised(x, norm_of_model(model))


def test_a_norm_takes_the_gain_that_its_matrices_have(model):
    layer = model.weights.layers[1]
    gains, norm = gains_of(layer), norm_of_model(model)
    assert gains.keys() == {0, 2} and gains[2] is layer.ffn_norm
    x = np.random.default_rng(3).standard_normal((4, model.config.dim)).astype(np.float16)
    wanted = model.normalise(x.astype(np.float32), gains[0])
    np.testing.assert_allclose(normalised(x, norm) * gains[0], wanted, rtol=2**-10)
