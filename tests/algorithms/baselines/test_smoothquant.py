"""SmoothQuant: the smoothed model is the same, with the scales of the paper's equation 4."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.baselines.round_to_nearest import RoundToNearestLlama, rounded
from golden.algorithms.baselines.smoothquant import SmoothQuantLlama, largest_inputs
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama
from tests.support.lm.tiny_llama import random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]
SAMPLES = [[3, 258, 99, 7, 256], [40, 41, 42], [200, 1, 2, 3]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", random_tensors())
    return Llama(read_weights(GGUFFile(path)))


def inputs_of(model, samples):
    """What matrices multiply, by layer and input, of the samples one by one."""
    seen = {}

    class Watched(Llama):
        def products(self, index, layer):
            def multiply(name, x):
                seen.setdefault((index, name), []).append(x)
                return x @ getattr(layer, name)

            return multiply

    for sample in samples:
        Watched(model.weights).hidden(sample)
    return {key: np.concatenate(rows) for key, rows in seen.items()}


def test_scales_by_the_definition(model):
    smooth = SmoothQuantLlama(model, SAMPLES, alpha=0.3).exact
    seen = inputs_of(model, SAMPLES)
    for index, layer in enumerate(model.weights.layers):
        got = smooth.weights.layers[index]
        for names, norm in ((("wq", "wk", "wv"), "attn_norm"), (("gate", "up"), "ffn_norm")):
            for j in range(48):
                x = max(abs(float(value)) for value in seen[index, names[0]][:, j])
                w = max(abs(float(v)) for name in names for v in getattr(layer, name)[j])
                scale = x**0.3 / w**0.7
                assert getattr(got, norm)[j] == pytest.approx(getattr(layer, norm)[j] / scale, 1e-4)
                for name in names:
                    expected = getattr(layer, name)[j] * scale
                    np.testing.assert_allclose(getattr(got, name)[j], expected, rtol=1e-4)
        np.testing.assert_array_equal(got.down, layer.down)
        np.testing.assert_array_equal(got.wo, layer.wo)


def test_largest_inputs_are_of_each_sample_alone(model):
    seen = inputs_of(model, SAMPLES)
    for index, maxima in enumerate(largest_inputs(model, SAMPLES)):
        for name, into in (("wq", "attn"), ("wo", "wo"), ("up", "ffn"), ("down", "down")):
            expected = np.abs(seen[index, name]).max(axis=0)
            np.testing.assert_allclose(maxima[into], expected, rtol=1e-3, atol=1e-4)


def test_smoothed_it_is_the_same_model(model):
    smooth = SmoothQuantLlama(model, SAMPLES, weight_bits=None, activation_bits=None)
    expected = model.logits(model.hidden(TEXT))
    got = smooth.logits(smooth.hidden(TEXT))
    np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max())
    # At alpha 0 or 1 alike.
    for alpha in (0.0, 1.0):
        smooth = SmoothQuantLlama(
            model, SAMPLES, weight_bits=None, activation_bits=None, alpha=alpha
        )
        got = smooth.logits(smooth.hidden(TEXT))
        np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max())


def test_products_are_rounded(model):
    quantized = SmoothQuantLlama(model, SAMPLES, weight_bits=5, activation_bits=6)
    x = np.random.default_rng(0).normal(size=(4, 48)).astype(np.float32)
    layer = quantized.exact.weights.layers[1]
    expected = rounded(x, 6, axis=1) @ rounded(layer.up, 5, axis=0)
    got = quantized.products(1, quantized.weights.layers[1])("up", x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_an_outlier_channel_errs_less(model):
    """A gain of 40 in one channel, whose weights are the smaller, as in large language models."""
    layers = []
    for layer in model.weights.layers:
        gain, up = layer.ffn_norm.copy(), layer.up.copy()
        gain[7], up[7] = 40, up[7] / 40
        layers.append(dataclasses.replace(layer, ffn_norm=gain, up=up, gate=up[:, ::-1].copy()))
    outliers = Llama(dataclasses.replace(model.weights, layers=layers))
    n = np.random.default_rng(1).normal(size=(16, 48)).astype(np.float32)
    errors = []
    for quantized in (RoundToNearestLlama(outliers), SmoothQuantLlama(outliers, SAMPLES)):
        exact = quantized.exact.weights.layers[1]
        x = n * exact.ffn_norm
        got = quantized.products(1, quantized.weights.layers[1])("up", x)
        errors.append(np.linalg.norm(got - x @ exact.up))
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.1}, "alpha must be between 0 and 1, not 1.1"),
        ({"weight_bits": 9}, "bits must be between 2 and 8, not 9"),
    ],
)
def test_wrong_options(model, options, message):
    with pytest.raises(ValueError, match=message):
        SmoothQuantLlama(model, SAMPLES, **options)
