"""Gradients by hand against finite differences of the model's own forward pass."""

import dataclasses

import numpy as np
import pytest

from golden.lm.gradient import activation_gradients, fisher_information
from golden.lm.model import Llama
from golden.lm.weights import GGUFFile, Layer, read_weights

SAMPLES = [[72, 256, 13, 200, 200, 3], [258, 99, 0, 259]]
FIRST = {"attn": "wq", "wo": "wo", "ffn": "gate", "down": "down"}
INPUT = {"wq": "attn", "wk": "attn", "wv": "attn", "wo": "wo"}
INPUT |= {"gate": "ffn", "up": "ffn", "down": "down"}


@pytest.fixture(scope="module")
def model(tiny):
    """A model of float64 weights, precise enough for finite differences."""
    weights = read_weights(GGUFFile(tiny))
    names = [field.name for field in dataclasses.fields(Layer)]
    layers = [
        Layer(**{name: getattr(layer, name).astype(np.float64) for name in names})
        for layer in weights.layers
    ]
    wide = {name: getattr(weights, name).astype(np.float64) for name in ("embedding", "norm")}
    output = weights.output.astype(np.float64)
    return Llama(dataclasses.replace(weights, layers=layers, output=output, **wide))


class Nudged(Llama):
    """A model that adds a step to one element of one input."""

    def __init__(self, weights, layer, into, token, element, by):
        super().__init__(weights)
        self._at, self._element, self._by = (layer, into), (token, element), by

    def products(self, index, layer):
        def multiply(name, x):
            if (index, INPUT[name]) == self._at:
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


def test_fisher_information_is_the_square(model):
    gradients = activation_gradients(model, SAMPLES)
    for key, information in fisher_information(model, SAMPLES).items():
        np.testing.assert_array_equal(information, np.square(gradients[key]))
