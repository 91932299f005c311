"""The quantised model: its products are KLLM's, its calibration data are the model's own inputs."""

import numpy as np
import pytest

from golden import InputError
from golden.algorithms.attention import DenseAttention
from golden.algorithms.baselines.round_to_nearest import RoundToNearestLlama
from golden.algorithms.kllm.activations import fit_activation_quantizer
from golden.algorithms.kllm.calibration import SeparateSamples, calibration_samples
from golden.algorithms.kllm.fold import NORMED, rotation
from golden.algorithms.kllm.matvec import matvec
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.kllm.nonlinear import rms_norm
from golden.algorithms.kllm.quantize import quantize_weights
from golden.lm.architectures import read_weights
from golden.lm.commands import open_model
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from golden.lm.gradient import fisher_information
from golden.lm.model import Llama
from golden.lm.perplexity import perplexity
from golden.lm.text import default_text, first_tokens, many_subjects, read_text
from golden.lm.weights import INPUTS
from tests.support.kllm.recording import Recording

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]
SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88], [3, 3, 250, 17, 61, 110]]
MATRICES = ["wq", "wk", "wv", "wo", "gate", "up", "down"]


@pytest.fixture(scope="module")
def model(tiny):
    return Llama(read_weights(GGUFFile(tiny)))


@pytest.mark.parametrize("thresholds", ["dynamic", "static"])
def test_products_are_the_index_based_ones(model, thresholds):
    quantized = Recording(
        model, SAMPLES, fit="paper", activation_bits=3, outlier_share=0.1, thresholds=thresholds
    )
    quantized.hidden(TEXT)
    assert [name for _, name, _, _ in quantized.seen] == MATRICES * 3
    for index, name, x, result in quantized.seen:
        quantizer = quantized.activations[index][INPUTS[name]]
        matrix = quantized.matrices[index][name]
        a = quantizer(x)
        for t in range(len(TEXT)):
            expected = matvec(a.token(t), matrix)
            size = np.abs(a.dequantize()[t]) @ np.abs(matrix.dequantize())
            assert (np.abs(result[t] - expected) <= 1e-5 * size).all()


def test_weights_are_each_layers_own(model):
    quantized = QuantizedLlama(model, SAMPLES, weight_bits=3, fit="paper")
    for index, layer in enumerate(model.weights.layers):
        for name in MATRICES:
            expected = quantize_weights(getattr(layer, name), 3)
            found = quantized.matrices[index][name]
            np.testing.assert_array_equal(found.index, expected.index)
            np.testing.assert_array_equal(found.codebook, expected.codebook)
        held = quantized.weights.layers[index]
        np.testing.assert_array_equal(held.attn_norm, layer.attn_norm)
        np.testing.assert_array_equal(held.ffn_norm, layer.ffn_norm)
    assert len(quantized.weights.layers) == 3


def inputs_alone(model, sample):
    """What each product multiplies when a sample runs through the dense model by itself."""
    seen = {}
    alone = Llama(model.weights)

    def products(index, layer):
        def multiply(name, x):
            seen[index, INPUTS[name]] = x
            return x @ getattr(layer, name)

        return multiply

    alone.products = products
    alone.hidden(sample)
    return seen


@pytest.mark.parametrize("errors", ["alike", "rows", "fisher"])
@pytest.mark.parametrize("thresholds", ["dynamic", "static"])
def test_calibration_sees_each_sample_alone(model, thresholds, errors):
    fisher, fit = errors == "fisher", "paper" if errors == "alike" else "fitted"
    options = {"thresholds": thresholds, "fisher": fisher, "fit": fit, "weight_bits": None}
    quantized = QuantizedLlama(model, SAMPLES, outlier_share=0.1, **options)
    information = fisher_information(model, SAMPLES)
    parts = [inputs_alone(model, sample) for sample in SAMPLES]
    for (index, into), _ in parts[0].items():
        x = np.concatenate([part[index, into] for part in parts])
        weights = information[index, into] if fisher else None
        if errors == "rows":
            matrices = [getattr(model.weights.layers[index], name) for name in MATRICES]
            some = [m for name, m in zip(MATRICES, matrices, strict=True) if INPUTS[name] == into]
            rows = np.square(np.concatenate(some, axis=1)).sum(axis=1)
            weights = np.broadcast_to(rows, x.shape)
        expected = fit_activation_quantizer(x, 4, 0.1, thresholds == "static", weights)
        found = quantized.activations[index][into]
        np.testing.assert_allclose(found.codebook, expected.codebook, rtol=0.01, atol=0.01)
        if thresholds == "static":
            np.testing.assert_allclose(found.thresholds, expected.thresholds, rtol=2e-3)
    assert len(quantized.activations) == 3
    assert all(set(layer) == {"attn", "wo", "ffn", "down"} for layer in quantized.activations)


def test_fused_norms_let_errors_of_small_vectors_count(model):
    """By what they are after the division by the vector's RMS."""
    quantized = QuantizedLlama(model, SAMPLES, norms="fused", weight_bits=None, outlier_share=0.1)
    layer = quantized.exact.weights.layers[0]
    tokens = [token for sample in SAMPLES for token in sample]
    x = quantized.exact.weights.embedding[tokens]  # no layer came before
    rows = sum(np.square(getattr(layer, name)).sum(axis=1) for name in ("wq", "wk", "wv"))
    weights = rows / np.square(x).mean(axis=1, keepdims=True)
    expected = fit_activation_quantizer(x, 4, 0.1, False, weights).codebook
    found = quantized.activations[0]["attn"].codebook
    np.testing.assert_allclose(found, expected, atol=2e-3)
    plain = fit_activation_quantizer(x, 4, 0.1, False).codebook
    assert np.abs(plain - expected).max() > 0.02


def test_separate_samples():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(heads, 9, 4)) for heads in (4, 2, 2))
    found = SeparateSamples([2, 4, 3]).sequence(q, k, v)
    for first, last in ((0, 2), (2, 6), (6, 9)):
        part = slice(first, last)
        expected = DenseAttention().sequence(q[:, part], k[:, part], v[:, part])
        np.testing.assert_array_equal(found[:, part], expected)


def test_dynamic_quantizers_take_each_tokens_own_scale():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 50)).astype(np.float32)
    quantizer = fit_activation_quantizer(x, 4, 0.08, False)
    one, many = quantizer(x), quantizer(8 * x)
    np.testing.assert_array_equal(one.index, many.index)
    np.testing.assert_array_equal(8 * one.scale, many.scale)
    np.testing.assert_array_equal(one.outlier.sum(axis=1), 4)


def test_static_quantizers_do_not():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 50)).astype(np.float32)
    quantizer = fit_activation_quantizer(x, 4, 0.1, True)
    low, high = quantizer.thresholds
    ordered = np.sort(x.astype(np.float16).ravel())
    assert ordered[99] <= low <= ordered[100] and ordered[-101] <= high <= ordered[-100]
    assert quantizer.scale == max(-low, high)
    found = quantizer(8 * x)
    assert (found.scale == quantizer.scale).all()
    np.testing.assert_array_equal(found.outlier, (8 * x < low) | (8 * x > high))


def test_fisher_information_weighs_the_samples():
    """Of x / s_A it is s_A^2 that of x: tokens ten times larger weigh a hundred times more."""
    token = np.array([[1, 0.5, 0.25, 0]], np.float32)
    other = np.array([[10, 7.5, 1.25, 0]], np.float32)
    x = np.concatenate([token, other])
    found = fit_activation_quantizer(x, 1, 0, False, np.ones_like(x)).codebook
    low = (0.25 + 0 + 100 * (0.125 + 0)) / 202
    high = (1 + 0.5 + 100 * (1 + 0.75)) / 202
    np.testing.assert_allclose(found, [low, high], rtol=1e-3)
    heavy = np.where(x == 0.25, 1e6, 1).astype(np.float32)
    assert fit_activation_quantizer(x, 1, 0, False, heavy).codebook[0] == 0.25


def test_what_is_not_quantised_stays(model):
    dense = model.hidden(TEXT)
    neither = QuantizedLlama(model, SAMPLES, weight_bits=None, activation_bits=None)
    np.testing.assert_array_equal(neither.hidden(TEXT), dense)
    weights = QuantizedLlama(model, SAMPLES, fit="paper", activation_bits=None)
    assert weights.activations == [{}, {}, {}]
    activations = QuantizedLlama(model, SAMPLES, weight_bits=None)
    assert activations.matrices == [{}, {}, {}]
    for part in (weights, activations):
        assert np.abs(part.hidden(TEXT) - dense).max() > 1e-3


def test_more_bits_err_less(model):
    dense = model.hidden(TEXT)
    errors = [
        np.square(
            QuantizedLlama(
                model, SAMPLES, fit="paper", weight_bits=bits, activation_bits=bits
            ).hidden(TEXT)
            - dense
        ).mean()
        for bits in (1, 4, 6)
    ]
    assert errors[0] > errors[1] > 4 * errors[2]


def test_the_model_given_is_left_alone(model):
    before = model.hidden(TEXT)
    QuantizedLlama(model, SAMPLES)
    np.testing.assert_array_equal(model.hidden(TEXT), before)


def test_wrong_settings(model):
    with pytest.raises(ValueError, match="^thresholds must be 'dynamic' or 'static', not 'x'$"):
        QuantizedLlama(model, SAMPLES, thresholds="x")
    with pytest.raises(ValueError, match="share of outliers"):
        QuantizedLlama(model, SAMPLES, outlier_share=2)
    with pytest.raises(ValueError, match="bits must be between 1 and 8, not 0"):
        QuantizedLlama(model, SAMPLES, weight_bits=0)
    with pytest.raises(ValueError, match="^bit_exact: thresholds must be 'dynamic'$"):
        QuantizedLlama(model, SAMPLES, bit_exact=True, thresholds="static")
    for bits in ({"weight_bits": None}, {"activation_bits": None}):
        with pytest.raises(ValueError, match="^bit_exact: weights and activations must both be"):
            QuantizedLlama(model, SAMPLES, bit_exact=True, **bits)


@pytest.mark.parametrize("characters", [0, 3_000, 120_000])
def test_calibration_never_sees_the_evaluated_text(tiny, characters):
    """Half are of the default text's second half, or after what is evaluated, half of the other."""
    tokenizer = read_tokenizer(GGUFFile(tiny))
    text, other = default_text(), many_subjects()
    for whole in (text, read_text("cranes")[0]):
        evaluated = whole[:characters]
        samples = calibration_samples(tokenizer, evaluated=evaluated)
        assert [len(sample) for sample in samples] == [128] * 32
        least = max(len(text) // 2, len(evaluated) if whole is text else 0)
        for number, sample in enumerate(samples):
            found = tokenizer.decode(sample).strip("\ufffd")  # half a character at the end
            assert len(found) > 100 and found in (text[least:] if number < 16 else other)
            words = found.split()
            assert not any(
                " ".join(words[n : n + 12]) in " ".join(evaluated.split())
                for n in range(len(words) - 11)
            )


def test_a_text_evaluated_whole_leaves_nothing_to_calibrate_on(tiny):
    tokenizer = read_tokenizer(GGUFFile(tiny))
    text = default_text()
    with pytest.raises(
        InputError, match="^the text is evaluated up to character 16[45][0-9]* of 165005"
    ):
        calibration_samples(tokenizer, evaluated=text[:165_000] + "?")


FUSED = {"norms": "fused", "weight_bits": None, "activation_bits": None}


@pytest.mark.parametrize("rotate", [False, True])
def test_folding_leaves_the_model_as_it_is(model, rotate):
    folded = QuantizedLlama(model, SAMPLES, rotate=rotate, **FUSED)
    expected = model.logits(model.hidden(TEXT))
    found = folded.logits(folded.hidden(TEXT))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    for layer in folded.exact.weights.layers:
        assert (layer.attn_norm == 1).all() and (layer.ffn_norm == 1).all()


def test_rotations_are_orthogonal():
    for n in (8, 48):
        np.testing.assert_allclose(rotation(n) @ rotation(n).T, np.eye(n), atol=1e-6)


WHOLE = {"norms": "fused", "attention": "quantised", "head": True, "fit": "paper"}


def test_fused_norms_come_from_indices_and_outliers(model):
    """A product is nonlinear.rms_norm of the quantised residual stream times the matrix."""
    quantized = Recording(model, SAMPLES, outliers=2, **WHOLE)
    quantized.hidden(TEXT)
    for index, name, x, result in quantized.seen:
        a = quantized.activations[index][INPUTS[name]](x)
        for t in range(len(TEXT)):
            token = a.token(t)
            if name in NORMED:
                token = rms_norm(token, model.config.norm_eps)
            expected = matvec(token, quantized.matrices[index][name])
            size = np.abs(token.dequantize()) @ np.abs(quantized.matrices[index][name].dequantize())
            assert (np.abs(result[t] - expected) <= 1e-5 * size).all()


def test_bit_exact_is_the_float_form_but_for_roundings(model):
    """On the same inputs, norms and head included: within 2^-9 in the median of the tokens.

    Products of centroids, factor and results are rounded to FP16, 2^-11 each. In a token where an
    index between two centroids moves it is more, up to a tenth of these 40 to 48 elements.
    """
    quantized = Recording(model, SAMPLES, outliers=2, **WHOLE)
    hidden = quantized.hidden(TEXT)
    seen, logits = quantized.seen, quantized.logits(hidden)
    quantized.bit_exact = True
    exact = [quantized.logits(hidden)]
    found = [logits]
    for index, name, x, result in seen:
        layer = quantized.weights.layers[index]
        found.append(result)
        exact.append(QuantizedLlama.products(quantized, index, layer)(name, x))
    for one, other in zip(found, exact, strict=True):
        error = np.linalg.norm(one - other, axis=1) / np.linalg.norm(one, axis=1)
        assert np.median(error) < 2**-9 and error.max() < 0.1
    assert any((one != other).any() for one, other in zip(found, exact, strict=True))
    whole = quantized.logits(quantized.hidden(TEXT))
    assert np.isfinite(whole).all() and whole.shape == logits.shape


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fit": "x"}, "fit must be 'fitted' or 'paper', not 'x'"),
        ({"norms": "x"}, "norms must be 'float' or 'fused', not 'x'"),
        ({"attention": "x"}, "attention must be 'float' or 'quantised', not 'x'"),
        ({"rotate": True}, "rotate: norms must be 'fused'"),
        ({"norms": "fused", "fisher": True}, "norms=fused: thresholds must be 'dynamic'"),
        ({"head": True, "weight_bits": None}, "head: weights must be quantised"),
    ],
)
def test_settings_that_do_not_go_together(model, wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        QuantizedLlama(model, SAMPLES, **wrong)


@pytest.mark.model
def test_the_order_of_the_paper(smollm2):
    """RTN is unusable at W4A4, K-Means is not, and three bits are worse than four [Table II]."""
    model, tokenizer, _ = open_model(smollm2)
    tokens = first_tokens(tokenizer, default_text(), 128, "text")
    samples = calibration_samples(tokenizer, 4)
    dense = perplexity(model, tokens).perplexity
    four = perplexity(QuantizedLlama(model, samples, fit="paper"), tokens).perplexity
    rtn = perplexity(RoundToNearestLlama(model), tokens).perplexity
    assert dense < four < 4 * dense < 20 * four < rtn
