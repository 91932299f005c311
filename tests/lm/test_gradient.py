"""Gradients by hand against finite differences of the model's own forward pass."""

import dataclasses

import numpy as np
import pytest

from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.gradient import (
    LayerPass,
    activation_gradients,
    fisher_information,
    layer_gradients,
    parts_of,
)
from golden.lm.model import Llama, rope_angles
from golden.lm.weights import INPUTS, Layer
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

SAMPLES = [[72, 256, 13, 200, 200, 3], [258, 99, 0, 259]]
FIRST = {"attn": "wq", "wo": "wo", "ffn": "gate", "down": "down"}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request, tmp_path_factory):
    """A model of float64 weights, precise enough for finite differences."""
    tensors = random_tensors(arch=request.param)
    path = tmp_path_factory.mktemp(request.param) / "tiny.gguf"
    weights = read_weights(GGUFFile(write_gguf(path, tensors, arch=request.param)))
    layers = [_wide(layer) for layer in weights.layers]
    wide = {name: getattr(weights, name).astype(np.float64) for name in ("embedding", "norm")}
    output = weights.output.astype(np.float64)
    return Llama(dataclasses.replace(weights, layers=layers, output=output, **wide))


def _wide(layer):
    arrays = {name: a.astype(np.float64) for name, a in vars(layer).items() if hasattr(a, "astype")}
    biases = {name: bias.astype(np.float64) for name, bias in layer.biases.items()}
    return Layer(**arrays, biases=biases)


class Nudged(Llama):
    """A model that adds a step to one element of one input."""

    def __init__(self, weights, layer, into, token, element, by):
        super().__init__(weights)
        self._at, self._element, self._by = (layer, into), (token, element), by

    def products(self, index, layer):
        def multiply(name, x):
            if (index, INPUTS[name]) == self._at:
                x = x.copy()
                x[self._element] += self._by
            return x @ getattr(layer, name)

        return multiply


def loss(model, sample):
    logits = model.logits(model.hidden(sample))[:-1]
    top = logits.max(axis=-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    return -logs[np.arange(len(sample) - 1), sample[1:]].sum()


def test_finite_differences(model):
    gradients = activation_gradients(model, SAMPLES)
    assert set(gradients) == {(layer, into) for layer in range(3) for into in FIRST}
    rng = np.random.default_rng(0)
    step = 2.0**-8
    for (layer, into), gradient in gradients.items():
        for number, sample in enumerate(SAMPLES):
            offset = len(SAMPLES[0]) * number
            for token in (0, len(sample) // 2, len(sample) - 2):
                element = int(rng.integers(gradient.shape[1]))
                losses = [
                    loss(Nudged(model.weights, layer, into, token, element, by), sample)
                    for by in (-2 * step, -step, step, 2 * step)
                ]
                # Fourth order: the attention's float32 results forbid steps much smaller.
                slope = (losses[0] - 8 * losses[1] + 8 * losses[2] - losses[3]) / (12 * step)
                found = gradient[offset + token, element]
                scale = np.sqrt(np.square(gradient).mean())
                assert found == pytest.approx(slope, rel=1e-3, abs=1e-3 * scale), (layer, into)


def test_the_last_token_of_a_sample_matters_to_nothing(model):
    for gradient in activation_gradients(model, SAMPLES).values():
        assert not gradient[[5, 9]].any()
        assert np.abs(gradient[[0, 4, 6, 8]]).max(axis=1).all()


def test_samples_are_alone(model):
    together = activation_gradients(model, SAMPLES)
    first, second = (activation_gradients(model, [sample]) for sample in SAMPLES)
    for key, gradient in together.items():
        apart = np.concatenate([first[key], second[key]])
        np.testing.assert_allclose(gradient, apart, rtol=1e-4, atol=1e-5 * np.abs(apart).max())


def test_any_number_of_samples_at_a_time(model, monkeypatch):
    samples = [[n + 3, 99, 2 * n + 1, 256, 7] for n in range(9)]
    together = activation_gradients(model, samples)
    for tokens, groups in ((1, 9), (14, 5), (15, 3)):
        monkeypatch.setattr("golden.lm.gradient._GROUP_TOKENS", tokens)
        steps = list(layer_gradients(model, samples))
        assert [index for index, _, _ in steps] == [2, 1, 0] * groups
        for key, found in activation_gradients(model, samples).items():
            wanted = together[key]
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_fisher_information_is_the_square(model):
    gradients = activation_gradients(model, SAMPLES)
    for key, information in fisher_information(model, SAMPLES).items():
        np.testing.assert_array_equal(information, np.square(gradients[key]))


def test_factors_of_columns_by_finite_differences(model):
    """Of a layer's result times fixed numbers, each matrix's columns scaled in turn."""
    c, layer = model.config, model.weights.layers[1]
    rng = np.random.default_rng(0)
    x, given = rng.normal(size=(2, 9, c.dim))
    angles = rope_angles(np.arange(9), c.rope_dims, c.rope_base, None)
    parts = parts_of([5, 4])
    layer_pass = LayerPass(c, layer, x, angles, parts)
    gradients = layer_pass.back(given)
    assert set(gradients.products) == set(layer_pass.products) == set(INPUTS)
    step = 2.0**-10
    for name, gradient in gradients.products.items():
        product = layer_pass.products[name]
        np.testing.assert_allclose(product, layer_pass.inputs[INPUTS[name]] @ getattr(layer, name))
        found, matrix = (gradient * product).sum(axis=0), getattr(layer, name)
        assert found.shape == matrix.shape[1:]
        for column in rng.integers(len(found), size=3):
            sums = []
            for by in (-step, step):
                scaled = matrix.copy()
                scaled[:, column] *= 1 + by
                changed = dataclasses.replace(layer, **{name: scaled})
                sums.append((LayerPass(c, changed, x, angles, parts).result * given).sum())
            slope = (sums[1] - sums[0]) / (2 * step)
            size = np.abs(found).mean()
            assert found[column] == pytest.approx(slope, rel=1e-3, abs=1e-3 * size), name


def test_other_layers_are_refused(tmp_path):
    sizes = SIZES | {"sliding_window": 4}
    path = write_gguf(
        tmp_path / "m.gguf", random_tensors(arch="gemma3"), sizes=sizes, arch="gemma3"
    )
    sentence = (
        "layers like Llama's, without norms of the products wq, wk, wo, down and the activation"
        " gelu and layers with a window of 4 tokens"
    )
    with pytest.raises(ValueError, match=sentence):
        activation_gradients(Llama(read_weights(GGUFFile(path))), SAMPLES)
