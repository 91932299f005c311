"""How far the accelerator's results can be from exact products: bounds, from its roundings.

y is the accelerator's result, y* the float64 product with the same tables, y0 that with exact
products of centroids, ya the algorithm's, whose indices are not the accelerator's everywhere.
"""

import numpy as np
import pytest

from golden.algorithms.kllm.calibration import calibration_samples
from golden.algorithms.kllm.kmeans import midpoints
from golden.algorithms.kllm.matvec import matvec, product_table, sparse_product
from golden.algorithms.kllm.model import core_product
from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
)
from golden.kllm.column_scale import column_scale
from golden.kllm.kllm_core import front_end, kllm_core, tables_of
from golden.lm.architectures import read_weights
from golden.lm.commands import open_model
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama
from golden.lm.text import default_text, first_tokens
from golden.lm.weights import INPUTS
from tests.support.kllm.recording import Recording

U = 2.0**-24
"""Relative error of one rounding to FP32."""


def half_ulp(z):
    """Error of rounding z to FP16, subnormal or not."""
    return np.maximum(2.0**-11 * np.abs(z), 2.0**-25)


def rounding_bound(y, d, o):
    """|y - y*| of y* = d + o, in which d is the inliers' part and o the outliers'."""
    fp32 = U * (2 * np.abs(d) + np.abs(o) + 2 * np.abs(y))
    return half_ulp(y) + (1 + 2.0**-10) * fp32


def compared(x, codebook, b, outliers):
    """Errors over their bounds, the worst of all tokens and columns: of y to y*, to y0, to ya.

    Also the accelerator's results, and the share of indices that are not the algorithm's.
    """
    tables = tables_of(codebook, b.codebook)
    y, invalid = kllm_core(x, tables, b.index, b.scale, outliers)
    assert np.isfinite(y).all() and not invalid.any()
    v = front_end(x, tables, outliers)
    zero = np.zeros_like(v.scale)
    core = QuantizedActivations(v.activation, codebook, v.scale, zero, v.outlier, v.value)
    algorithm = quantize_activations(x, codebook, dynamic_outliers(x, outliers))
    np.testing.assert_array_equal(core.outlier, algorithm.outlier)
    np.testing.assert_array_equal(core.scale, algorithm.scale)
    moved = (core.index != algorithm.index) & ~core.outlier
    check_moved(x, core, algorithm, moved)
    exact = product_table(codebook, b.codebook)
    table_error = half_ulp(exact).reshape(len(codebook), -1)
    centroids_a, centroids_b = (c.astype(np.float64) for c in (codebook, b.codebook))
    ratios = []
    for t in range(len(x)):
        a, own = core.token(t), algorithm.token(t)
        scale = np.float64(a.scale) * b.scale.astype(np.float64)
        o = sparse_product(a, b)
        rounded = matvec(a, b, tables.products.ravel())
        bound = rounding_bound(rounded, rounded - o, o)
        errors = [np.abs(y[t] - rounded) / bound]
        inliers = ~a.outlier
        bound = bound + scale * table_error[a.index[inliers, None], b.index[inliers]].sum(axis=0)
        errors.append(np.abs(y[t] - matvec(a, b)) / bound)
        gaps = np.abs(centroids_a[a.index] - centroids_a[own.index]) * inliers
        bound = bound + scale * (gaps @ np.abs(centroids_b)[b.index])
        errors.append(np.abs(y[t] - matvec(own, b)) / bound)
        ratios.append(errors)
    return np.max(ratios, axis=(0, 2)), y, moved.sum() / (~core.outlier).sum()


def check_moved(x, core, algorithm, moved):
    """An index moves to its neighbour only, and only where both are as near but for roundings."""
    token, _ = np.nonzero(moved)
    low = np.minimum(core.index, algorithm.index)[moved]
    np.testing.assert_array_equal(np.maximum(core.index, algorithm.index)[moved], low + 1)
    scale = core.scale[token].astype(np.float64)
    midway = midpoints(core.codebook)[low] * scale
    rounding = (2.0**-10 + 2.0**-22) * np.abs(midway) + 2.0**-25 * (1 + 1.001 * scale)
    assert (np.abs(x[moved] - midway) <= rounding).all()


def fitted(x, outliers, bits):
    """A codebook of tokens' own inliers."""
    outlier = dynamic_outliers(x, outliers)
    scale = inlier_scale(x, outlier)[:, None].astype(np.float32)
    return fit_activation_codebook((x / scale)[~outlier], bits)


@pytest.mark.parametrize("magnitude", [1e-5, 1e-3, 1, 300])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize(("k", "n", "outliers"), [(64, 60, 0), (200, 40, 1), (1536, 16, 8)])
def test_random_layers(k, n, outliers, bits, magnitude):
    rng = np.random.default_rng([k, bits])
    x = (rng.standard_t(3, (6, k)) * magnitude).astype(np.float16)
    b = quantize_weights(rng.normal(size=(k, n)) * rng.lognormal(-3, 1, n))
    ratios, _, moved = compared(x, fitted(x, outliers, bits), b, outliers)
    print(f"error / bound: {ratios}, indices moved: {moved:.2%}")
    assert (ratios <= 1).all()
    assert ratios[0] > 0.5 and ratios[1:].min() > 0.03  # no bound is beside the point


@pytest.mark.parametrize("bits", [3, 4])
def test_real_layers(shipped_trace, bits):
    worst = np.zeros(3)
    assert shipped_trace.w
    for name, w in shipped_trace.w.items():
        x = shipped_trace.x[name][:32]
        outliers = outlier_count(x.shape[1])
        b = quantize_weights(w.astype(np.float32))
        ratios, _, moved = compared(x, fitted(x, outliers, bits), b, outliers)
        print(f"{name}: error / bound {ratios}, indices moved: {moved:.2%}")
        worst = np.maximum(worst, ratios)
        assert moved < 2e-3
    print(f"worst: {worst}")
    assert (worst <= 1).all() and worst[0] > 0.9 and worst[1:].min() > 0.1


def test_sums_that_cancel_and_results_that_overflow():
    """The bound's FP32 part is as good as its FP16 part; beyond FP16 results are infinite."""
    rng = np.random.default_rng(0)
    many = 200_000
    s_a, s_b, r = (np.exp2(rng.uniform(-9, 9, many)).astype(np.float16) for _ in range(3))
    s = np.ldexp(rng.integers(-(1 << 38), 1 << 38, many).astype(np.float64), -24)
    d = s_a.astype(np.float64) * s
    # Multiples of 2^-48, like all sums of products of FP16 numbers, from -d to nothing like it.
    away = d * np.exp2(rng.uniform(-30, 3, many)) * rng.choice([-1, 1], many)
    o = np.ldexp(np.rint(np.ldexp(away, 48)), -48) - d
    y = column_scale(s.astype(np.float32), o.astype(np.float32), s_a, r, s_b)
    factor = r.astype(np.float64) * s_b.astype(np.float64)
    expected = factor * (d + o)
    bound = rounding_bound(expected, factor * d, factor * o)
    over = np.abs(expected) - bound >= 65520
    assert np.isinf(y[over]).all() and (np.sign(y[over]) == np.sign(expected[over])).all()
    fits = np.abs(expected) + bound < 65520
    assert np.isfinite(y[fits]).all()
    ratio = np.abs(y[fits] - expected[fits]) / bound[fits]
    by_fp32 = half_ulp(expected[fits]) < bound[fits] / 10
    print(f"error / bound: {ratio.max()}, {ratio[by_fp32].max()} of {by_fp32.sum()} that cancel")
    assert ratio.max() <= 1 and ratio[by_fp32].max() > 0.5
    assert over.sum() > 1000 and by_fp32.sum() > 1000


TEXT = np.random.default_rng(0).integers(0, 260, 48).tolist()
SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88], [3, 3, 250, 17, 61, 110]]


@pytest.mark.parametrize("bits", [3, 4])
def test_the_models_products_are_the_accelerators(tiny, bits):
    model = Llama(read_weights(GGUFFile(tiny)))
    quantized = Recording(model, SAMPLES, activation_bits=bits, outlier_share=0.1)
    algorithm = model.logits(quantized.hidden(TEXT))
    quantized.rounds = True
    rounded = model.logits(quantized.hidden(TEXT))
    quantized.rounds, quantized.bit_exact = False, True
    exact = model.logits(quantized.hidden(TEXT))
    assert len(quantized.seen) == 7 * 3
    for index, name, x, result in quantized.seen:
        codebook = quantized.activations[index][INPUTS[name]].codebook
        matrix = quantized.matrices[index][name]
        outliers = {48: 3, 40: 2}[x.shape[1]]
        ratios, y, _ = compared(x.astype(np.float16), codebook, matrix, outliers)
        np.testing.assert_array_equal(result, y)
        assert (ratios <= 1).all()
    # Any rounding of results moves indices in later layers; the accelerator's does not move more.
    error, unavoidable = (np.linalg.norm(logits - algorithm) for logits in (exact, rounded))
    print(f"logits differ by {error / np.linalg.norm(algorithm):.2%}", end=", ")
    print(f"by {unavoidable / np.linalg.norm(algorithm):.2%} with results rounded")
    assert 0 < error < 3 * unavoidable


def losses(model, tokens):
    """Each token's negative log-likelihood, but for the first."""
    logits = model.logits(model.hidden(tokens)).astype(np.float64)[:-1]
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return total - logits[np.arange(len(logits)), tokens[1:]]


@pytest.mark.campaign
@pytest.mark.model
@pytest.mark.parametrize("bits", [3, 4])
def test_the_real_model(smollm2, bits):
    """The accelerator's errors, and their effect, are small compared with those of quantising.

    A perplexity cannot tell more closely: that of the algorithm moves by some percent with any
    rounding, since indices that move in one layer move others in the next. So the difference of the
    two has to be nothing but that, within three standard errors of the tokens' own differences.
    """
    model, tokenizer, _ = open_model(smollm2)
    tokens = first_tokens(tokenizer, default_text(), 256, "text")
    quantized = Recording(model, calibration_samples(tokenizer), fit="paper", activation_bits=bits)
    quantized.hidden(tokens[:48])
    by_core = by_quantising = 0.0
    for index in range(model.config.layers):
        layer, quantizers = model.weights.layers[index], quantized.activations[index]
        for _, name, x, result in quantized.seen[7 * index : 7 * index + 7]:
            y = core_product(x, quantizers[INPUTS[name]], quantized.matrices[index][name])
            by_core += np.square(y - result).sum(dtype=np.float64)
            error = result - x @ getattr(layer, name)
            by_quantising += np.square(error).sum(dtype=np.float64)
    error = np.sqrt(by_core / by_quantising)
    algorithm = losses(quantized, tokens)
    quantized.bit_exact = True
    difference = losses(quantized, tokens) - algorithm
    mean, deviation = difference.mean(), difference.std() / np.sqrt(len(difference))
    print(f"accelerator's error / error of quantising: {error:.2%}")
    print(f"perplexity {np.exp(algorithm.mean()):.2f} becomes {np.exp(mean):.2%} of that", end="")
    print(f", standard error {deviation:.2%}")
    assert 0 < error < 0.05
    assert 0 < abs(mean) < 3 * deviation < 0.3
