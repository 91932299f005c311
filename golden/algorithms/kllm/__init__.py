"""KLLM's algorithm, in floating point.

``model``, a language model with these products, is not imported here: it needs the language model.
"""

from golden.algorithms.kllm.matvec import matvec, matvec_integer
from golden.algorithms.kllm.nonlinear import layer_norm, replace_codebook, rms_norm
from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    QuantizedWeights,
    dynamic_outliers,
    fit_activation_codebook,
    outlier_count,
    quantize_activations,
    quantize_weights,
    static_outliers,
)
from golden.kllm.orizuru import OrizuruResult, orizuru

__all__ = [
    "OrizuruResult",
    "QuantizedActivations",
    "QuantizedWeights",
    "dynamic_outliers",
    "fit_activation_codebook",
    "layer_norm",
    "matvec",
    "matvec_integer",
    "orizuru",
    "outlier_count",
    "quantize_activations",
    "quantize_weights",
    "replace_codebook",
    "rms_norm",
    "static_outliers",
]
