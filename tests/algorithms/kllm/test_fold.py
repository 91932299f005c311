"""LayerNorm by the accelerator's RMSNorm, the stream's mean folded into what writes it."""

import numpy as np

from golden.algorithms.kllm.fold import centred
from golden.algorithms.kllm.quantize import dynamic_outliers, quantize_weights
from golden.attention.pair_function import SUM
from golden.attention.vector_unit import vector_unit
from golden.kllm.kllm_core import Norm, kllm_core, tables_of

DIM, INNER, OUT, EPS = 96, 40, 24, 1e-5


def layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + EPS)


def parts(seed: int):
    """Embedding, inner vector, matrix and bias of one block, whose rows have means of about 1."""
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal(DIM) + 1.5
    write = (rng.standard_normal((INNER, DIM)) + 1) / np.sqrt(INNER)
    return embedding, rng.standard_normal(INNER), write, rng.standard_normal(DIM) + 3


def test_rms_norm_of_the_centred_stream_is_layer_norm():
    for seed in range(20):
        embedding, inner, write, bias = parts(seed)
        wanted = layer_norm(embedding + inner @ write + bias)
        stream = centred(embedding) + inner @ centred(write) + centred(bias)
        found = stream / np.sqrt(np.square(stream).mean() + EPS)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
        # The stream as it was has another norm: the mean matters.
        before = embedding + inner @ write + bias
        plain = before / np.sqrt(np.square(before).mean() + EPS)
        assert np.abs(plain - wanted).max() > 0.1


def test_the_core_computes_layer_norm():
    """FP16 sums of the vector unit, then the core's product with RMSNorm, by its own centroids."""
    weights = quantize_weights(np.random.default_rng(1).standard_normal((DIM, OUT)), 4)
    codebook = np.linspace(-1, 1, 16).astype(np.float16)
    tables = tables_of(codebook, weights.codebook)
    norm = Norm(np.float32(1 / DIM), np.float32(EPS))
    for seed in range(5):
        embedding, inner, write, bias = parts(seed)
        stream = centred(embedding).astype(np.float16)
        for added in (inner @ centred(write), centred(bias)):
            stream, invalid = vector_unit(stream, added.astype(np.float16), SUM)
            assert not invalid.any()
        found, _ = kllm_core(stream[None], tables, weights.index, weights.scale, 3, norm=norm)
        outlier = dynamic_outliers(stream[None], 3)[0]
        assert outlier.sum() == 6
        wanted = layer_norm(embedding + inner @ write + bias) @ weights.dequantize(np.float64)
        # What is left is the rounding of activations to sixteen levels.
        assert np.abs(found[0] - wanted).max() < 0.12 * np.abs(wanted).max()
