"""Balanced models compute the same; what they quantise has channels that matter alike."""

import functools

import numpy as np
import pytest

from golden.algorithms.kllm.balance import LARGEST, balanced, factors
from golden.algorithms.kllm.fold import FoldedLlama
from golden.algorithms.kllm.model import INPUTS, _run, fit_activation_quantizer
from golden.lm.model import Llama
from golden.lm.weights import GGUFFile, read_weights

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]
SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88], [3, 3, 250, 17, 61, 110]]


@pytest.fixture(scope="module", params=["float", "folded", "rotated"])
def exact(request, tiny):
    model = Llama(read_weights(GGUFFile(tiny)))
    return model if request.param == "float" else FoldedLlama(model, request.param == "rotated")


@pytest.fixture(scope="module")
def pair(exact):
    return exact, balanced(exact, functools.partial(_run, samples=SAMPLES))


def test_the_model_is_the_same(pair):
    expected, found = (model.logits(model.hidden(TEXT)) for model in pair)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    before, after = (model.weights.layers[0] for model in pair)
    for name in ("wq", "wk", "wv", "wo", "up", "down"):
        assert (getattr(before, name) != getattr(after, name)).mean() > 0.9
    np.testing.assert_array_equal(before.gate, after.gate)


def test_channels_matter_alike(pair):
    """Of down's input: what a channel holds over what it is multiplied with is one number."""
    _, model = pair
    ratios = []

    def products(index, layer):
        def multiply(name, x):
            if name == "down":
                ratios.append(np.abs(x).mean(axis=0) / np.sqrt(np.square(layer.down).mean(axis=1)))
            return type(model).products(model, index, layer)(name, x)

        return multiply

    watched = type(model).__new__(type(model))
    watched.__dict__ |= model.__dict__ | {"products": products}
    _run(watched, SAMPLES)
    assert len(ratios) == model.config.layers
    for ratio in ratios:
        np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-3)


def test_rotated_pairs_have_one_factor(pair):
    c = pair[0].config
    for before, after in zip(*(model.weights.layers for model in pair), strict=True):
        key = (before.wk / after.wk).mean(axis=0).reshape(c.kv_heads, -1)
        pairs = key[:, : c.rope_dims].reshape(c.kv_heads, -1, 2)
        np.testing.assert_allclose(pairs[..., 0], pairs[..., 1], rtol=1e-4)
        query = (after.wq / before.wq).mean(axis=0).reshape(c.kv_heads, -1, key.shape[1])
        np.testing.assert_allclose(query, np.broadcast_to(key[:, None], query.shape), rtol=1e-4)


def test_products_of_uneven_channels_err_less():
    """Of inputs quantised to four bits, by a half and more."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 96)) * rng.lognormal(0, 1, 96)).astype(np.float32)
    w = (rng.normal(size=(96, 40)) * rng.lognormal(0, 1, 96)[:, None]).astype(np.float32)
    f = factors(np.abs(x).mean(axis=0), np.sqrt(np.square(w).mean(axis=1)))
    errors = []
    for inputs, matrix in ((x, w), (x / f, w * f[:, None])):
        quantised = fit_activation_quantizer(inputs, 4, 0.02, False)(inputs)
        errors.append(np.linalg.norm(quantised.dequantize() @ matrix - x @ w))
    assert errors[1] < 0.75 * errors[0]


def test_factors_of_nothing_and_of_extremes():
    np.testing.assert_array_equal(factors(np.zeros(3, np.float32), np.ones(3, np.float32)), 1)
    found = factors(np.float32([1e-8, 1, 1, 1e8]), np.ones(4, np.float32))
    np.testing.assert_allclose(found, [1 / LARGEST, 1, 1, LARGEST], rtol=1e-5)


def test_every_input_that_can_be_is_balanced(pair):
    """Norms' results are left, since all layers share the residual stream."""
    before, after = (model.weights.layers[0] for model in pair)
    rows = {INPUTS[name] for name in INPUTS if _rows_changed(before, after, name)}
    assert rows == {"wo", "down"}


def _rows_changed(before, after, name) -> bool:
    """Whether ratios within a column differ."""
    ratio = getattr(after, name) / getattr(before, name)
    return np.ptp(ratio, axis=0).max() > 1e-3 * np.abs(ratio).max()
