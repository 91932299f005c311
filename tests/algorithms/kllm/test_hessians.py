"""H of each product: tokens weigh by how much its result matters to the loss."""

import numpy as np
import pytest

from golden.algorithms.kllm.fold import FoldedLlama
from golden.algorithms.kllm.hessians import layer_hessians
from golden.algorithms.kllm.model import QuantizedLlama
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.gradient import layer_gradients
from golden.lm.model import Llama
from golden.lm.weights import INPUTS

SAMPLES = [[72, 256, 13, 200, 200, 3], [258, 99, 0, 259]]
LAYER, MATRIX = 1, "wv"
STEP = 2.0**-8


@pytest.fixture(scope="module")
def model(tiny):
    return Llama(read_weights(GGUFFile(tiny)))


class Watched(Llama):
    """Adds a step to one element of one product's results, and keeps what was multiplied."""

    def __init__(self, weights, element=None, by=0.0):
        super().__init__(weights)
        self._element, self._by = element, by

    def products(self, index, layer):
        def multiply(name, x):
            y = x @ getattr(layer, name)
            if (index, name) == (LAYER, MATRIX):
                self.multiplied = x
                if self._element:
                    y[self._element] += self._by
            return y

        return multiply


def loss(model, sample):
    logits = model.logits(model.hidden(sample))[:-1].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -logs[np.arange(len(sample) - 1), sample[1:]].sum()


def test_weights_are_those_of_finite_differences(model):
    """The root mean square of the loss's slopes along a token's results."""
    total, h = 0, 0
    for sample in SAMPLES:
        plain = Watched(model.weights)
        loss(plain, sample)
        columns = getattr(model.weights.layers[LAYER], MATRIX).shape[1]
        slopes = np.empty((len(sample), columns))
        for element in np.ndindex(slopes.shape):
            up, down = (loss(Watched(model.weights, element, by), sample) for by in (STEP, -STEP))
            slopes[element] = (up - down) / (2 * STEP)
        weight = np.sqrt(np.square(slopes).mean(axis=1))
        x = plain.multiplied.astype(np.float64)
        h, total = h + x.T * weight @ x, total + weight.sum()
    found = layer_hessians(model, SAMPLES)[LAYER][MATRIX]
    np.testing.assert_allclose(found, h / total, atol=0.02 * np.abs(h / total).max())
    x = np.concatenate([m.inputs["attn"] for i, m, _ in layer_gradients(model, SAMPLES) if i == 1])
    alike = x.T @ x / len(x)
    assert np.abs(found - alike).max() > 0.05 * np.abs(alike).max()


def test_folded(model):
    """Norms' gains in the matrices divide rows of H by them, and change no weight of a token."""
    plain, folded = (layer_hessians(m, SAMPLES) for m in (model, FoldedLlama(model, False)))
    for index, (own, other) in enumerate(zip(plain, folded, strict=True)):
        layer = model.weights.layers[index]
        for name in INPUTS:
            gain = {"attn": layer.attn_norm, "ffn": layer.ffn_norm}.get(INPUTS[name], np.ones(1))
            same = other[name] * gain * gain[:, None]
            np.testing.assert_allclose(same, own[name], atol=1e-3 * np.abs(own[name]).max())


def test_results_that_do_not_matter(model):
    """A sample of one token has no loss: H is 0, and weights are fitted all the same."""
    for own in layer_hessians(model, [[72], [13]]):
        assert not any(h.any() for h in own.values())
    quantised = QuantizedLlama(model, [[72], [13]], activation_bits=None)
    for own in quantised.matrices:
        for name in INPUTS:
            assert np.isfinite(own[name].dequantize()).all()
            assert own[name].index.any()
