"""Tuned scales: the way forward is the quantised model's, and predictions come closer."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.kllm.attention import QuantizedAttention, fit_codebooks, quantised_heads
from golden.algorithms.kllm.calibration import SeparateSamples, tuning_samples
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.kllm.tune import RATE, STEPS
from golden.lm.architectures import read_weights
from golden.lm.commands import open_model
from golden.lm.gguf_file import GGUFFile
from golden.lm.gradient import LayerPass, Rounding, parts_of
from golden.lm.model import Llama, rope_angles
from golden.lm.text import default_text, sampled_prose
from golden.lm.weights import INPUTS

SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88], [3, 3, 250, 17, 61, 110], [72, 99, 13, 200, 4]]
WHOLE = {"norms": "fused", "attention": "quantised", "head": True}


@pytest.fixture(scope="module")
def model(tiny):
    return Llama(read_weights(GGUFFile(tiny)))


def divergence(model: Llama, quantised: Llama) -> float:
    """Mean of the samples' tokens."""
    found = []
    for sample in SAMPLES:
        p, q = (m.logits(m.hidden(sample)).astype(np.float64) for m in (model, quantised))
        p, q = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (p, q))
        found.append((np.exp(p) * (p - q)).sum(axis=-1).mean())
    return float(np.mean(found))


@pytest.mark.parametrize("options", [{}, {"norms": "fused"}, WHOLE, {"fit": "paper"}])
def test_predictions_come_closer(model, options):
    # Two bits, since four leave a model as small as this one too little to gain.
    options = {"weight_bits": 2} | options
    before = QuantizedLlama(model, SAMPLES, **options)
    after = QuantizedLlama(model, SAMPLES, tuned=True, tuning=SAMPLES, **options)
    found = [divergence(model, each) for each in (before, after)]
    print(found)
    assert found[1] < 0.9 * found[0]
    moved = 0
    for own, tuned in zip(before.matrices, after.matrices, strict=True):
        for name in INPUTS:
            np.testing.assert_array_equal(own[name].index, tuned[name].index)
            np.testing.assert_array_equal(own[name].codebook, tuned[name].codebook)
            assert tuned[name].scale.dtype == np.float16
            moved += (own[name].scale != tuned[name].scale).sum()
            np.testing.assert_allclose(tuned[name].scale, own[name].scale, rtol=1.5 * RATE * STEPS)
    assert moved


@pytest.mark.parametrize("norms", ["float", "fused"])
def test_the_way_forward_is_the_models(model, norms):
    quantised = QuantizedLlama(model, SAMPLES, weight_bits=3, activation_bits=3, norms=norms)
    lengths = [len(sample) for sample in SAMPLES]
    tokens = [token for sample in SAMPLES for token in sample]
    c = model.config
    angles = rope_angles(np.arange(len(tokens)), c.rope_dims, c.rope_base, None)
    x = quantised.weights.embedding[tokens]
    for index in range(c.layers):
        quantizers = quantised.activations[index]
        rounding = Rounding(
            lambda name, x, own=quantizers: own[name](x).dequantize(np.float32),
            before_norm=norms == "fused",
        )
        layer = quantised.weights.layers[index]
        x = LayerPass(c, layer, x, angles, parts_of(lengths), rounding).result
    separate = [SeparateSamples(lengths) for _ in range(c.layers)]
    expected = quantised.hidden(tokens, separate)
    np.testing.assert_allclose(quantised.normalise(x, quantised.weights.norm), expected, atol=1e-4)


@pytest.mark.parametrize("fitted", [False, True])
def test_heads_are_those_of_quantised_attention(fitted):
    """Dense attention on them differs from it by the weights' four bits alone."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(heads, 40, 16)).astype(np.float32) for heads in (6, 2, 2))
    codebooks = fit_codebooks(q, k, v, fitted=fitted)
    expected = QuantizedAttention(codebooks).sequence(q, k, v)
    exact = DenseAttention().sequence(q, k, v)
    found = DenseAttention().sequence(*quantised_heads(codebooks, q, k, v))
    errors = [np.linalg.norm(found - expected), np.linalg.norm(exact - expected)]
    print(errors)
    assert errors[0] < errors[1] / 3


def test_refusal(model):
    with pytest.raises(ValueError, match="^tuned: weights must be quantised$"):
        QuantizedLlama(model, SAMPLES, weight_bits=None, tuned=True, tuning=SAMPLES)


def test_samples(tiny):
    """As many as wanted, each another, and no run of 12 words of the text that is evaluated."""
    tokenizer = open_model(tiny)[1]
    evaluated = default_text()[:2000]
    found = tuning_samples(tokenizer, 8, 32, evaluated)
    assert [len(sample) for sample in found] == [32] * 8
    assert len({tuple(sample) for sample in found}) == 8
    evaluated = sampled_prose()[:20_000]
    some = [tokenizer.decode(sample) for sample in tuning_samples(tokenizer, 12, 128, evaluated)]
    words = evaluated.split()
    runs = {" ".join(words[at : at + 12]) for at in range(len(words) - 11)}
    assert not any(run in " ".join(text.split()) for text in some for run in runs)
    assert any(text.split()[1] in sampled_prose() for text in some[4:])
