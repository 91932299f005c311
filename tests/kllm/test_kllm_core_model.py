"""The whole accelerator's bit-exact model against the algorithm in float64."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.matvec import matvec
from golden.algorithms.kllm.nonlinear import replace_codebook, rms_norm
from golden.algorithms.kllm.quantize import dynamic_outliers, quantize_activations
from golden.arith.formats import to_bits
from golden.kllm.element_function import SILU
from golden.kllm.kllm_core import Norm, front_end, kllm_core
from sim.testbenches.kllm.layers import layers_of


def close_to(algorithm, y):
    """Largest error relative to the largest result."""
    return np.abs(y - algorithm).max() / np.abs(algorithm).max()


def test_model_is_close_to_the_algorithm(shipped_trace):
    """The product, RMSNorm and SiLU, in FP16 steps against float64."""
    layers, _ = layers_of(shipped_trace, 576, 32, 4, 4, 3)
    norm = Norm(np.float32(1 / 576), np.float32(1e-5))
    errors = np.zeros(3)
    for layer in layers:
        x = layer.x[:6]
        outlier = dynamic_outliers(x, 3)
        index, scale = layer.weights.index, layer.weights.scale
        plain, _ = kllm_core(x, layer.tables, index, scale, 3)
        normal, _ = kllm_core(x, layer.tables, index, scale, 3, norm=norm)
        silu, _ = kllm_core(x, layer.tables, index, scale, 3, function=SILU)
        a = quantize_activations(x, layer.codebook, outlier)
        front = front_end(x, layer.tables, 3)
        np.testing.assert_array_equal(front.outlier, outlier)
        assert np.count_nonzero(front.activation != a.index) <= x.size // 500  # scaled midpoints
        for token in range(len(x)):
            one = dataclasses.replace(a.token(token), index=front.activation[token])
            for number, (vector, y) in enumerate(
                (
                    (one, plain),
                    (rms_norm(one, 1e-5), normal),
                    (replace_codebook(lambda v: v / (1 + np.exp(-v)), one), silu),
                )
            ):
                error = close_to(matvec(vector, layer.weights), y[token])
                errors[number] = max(errors[number], error)
    print("largest errors, of the largest result:", errors)
    assert (errors < 2.0**-9).all() and (errors > 2.0**-14).all()


def test_matrix_form_of_the_model_is_that_of_its_vectors(shipped_trace):
    layer = layers_of(shipped_trace, 64, 20, 4, 4, 1)[0][0]
    index, scale = layer.weights.index, layer.weights.scale
    options = [{}, {"norm": Norm(np.float32(1 / 64), np.float32(0))}, {"function": SILU}]
    for option in options:
        whole, _ = kllm_core(layer.x, layer.tables, index, scale, 1, **option)
        for token in (0, 7, 63):
            one, _ = kllm_core(layer.x[token : token + 1], layer.tables, index, scale, 1, **option)
            assert to_bits(one[0]).tolist() == to_bits(whole[token]).tolist()
