"""Scales of columns tuned so that the quantised model predicts what the float model does.

The paper quantises each matrix apart. Here the FP16 scale of each column is tuned with all of the
model quantised, by the gradient of the divergence of its predictions from the float model's
(knowledge distillation, Hinton et al., arXiv:1503.02531). Indices, codebooks and the format do not
change.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.algorithms.kllm.quantize import QuantizedWeights
from golden.lm.gradient import LayerPass, Rounding, norm_back, parts_of
from golden.lm.model import Llama, in_memory, rms_norm, rope_angles
from golden.lm.progress import Progress, counted
from golden.lm.weights import Layer

STEPS = 48
"""Number of steps of one sample each: fewer steps of several samples do worse."""
RATE = 0.0015
"""Relative change of a scale in the first step; it falls to 0 linearly."""
MOMENT, SQUARE = 0.9, 0.95
"""Decay of the gradient's running means (Adam, Kingma and Ba, arXiv:1412.6980)."""


def tune_scales(
    exact: Llama,
    matrices: Sequence[dict[str, QuantizedWeights]],
    roundings: Sequence[Rounding],
    samples: Sequence[Sequence[int]],
    progress: Progress = False,
) -> list[dict[str, QuantizedWeights]]:
    """The matrices of each layer with other scales.

    exact
        The float model, whose norms are the quantised one's.
    roundings
        Quantisation of each layer's vectors. The output matrix and its input are the float model's.
    samples
        Tokens; each of :data:`STEPS` takes one of them, in an order that is always the same.
    """
    c = exact.config
    exact = in_memory(exact)
    layers = exact.weights.layers
    units = [_unit_layer(layer, own) for layer, own in zip(layers, matrices, strict=True)]
    logarithm = [{name: np.zeros(m.scale.shape) for name, m in own.items()} for own in matrices]
    mean, square = (
        [{name: np.zeros_like(a) for name, a in own.items()} for own in logarithm] for _ in range(2)
    )
    order = np.random.default_rng(0).permutation(len(samples))
    for step in counted(STEPS, "tuning", "step", progress):
        tokens = np.asarray(samples[order[step % len(samples)]], np.int64)
        target = _softmax(exact.logits(exact.hidden(tokens.tolist())))
        scaled = [
            _scaled(unit, own, logarithms)
            for unit, own, logarithms in zip(units, matrices, logarithm, strict=True)
        ]
        angles = rope_angles(
            np.arange(len(tokens)), c.rope_dims, c.rope_base, exact.weights.rope_factors
        )
        x, passes = exact.embed(tokens), []
        for layer, rounding in zip(scaled, roundings, strict=True):
            passes.append(LayerPass(c, layer, x, angles, parts_of([len(tokens)]), rounding))
            x = passes[-1].result
        fused = roundings[0].before_norm
        gain = np.ones(c.dim, np.float32) if fused else exact.weights.norm
        found = _softmax(exact.logits(x if fused else rms_norm(x, gain, c.norm_eps)))
        gradient = (found - target) @ exact.weights.output.T / np.float32(len(tokens))
        gradient = norm_back(x, gain, c.norm_eps, gradient)
        rate = RATE * (1 - step / STEPS)
        for index in reversed(range(c.layers)):
            passed = passes.pop()
            gradients = passed.back(gradient)
            gradient = gradients.x
            for name, array in gradients.products.items():
                # The slope of the logarithm of each column's factor.
                slope = (array * passed.products[name]).sum(axis=0)
                m, s = mean[index][name], square[index][name]
                m += (1 - MOMENT) * (slope - m)
                s += (1 - SQUARE) * (np.square(slope) - s)
                true_m, true_s = m / (1 - MOMENT ** (step + 1)), s / (1 - SQUARE ** (step + 1))
                logarithm[index][name] -= rate * true_m / (np.sqrt(true_s) + 1e-12)
    return [
        {
            name: dataclasses.replace(m, scale=_tuned(m.scale, logarithms[name]))
            for name, m in own.items()
        }
        for own, logarithms in zip(matrices, logarithm, strict=True)
    ]


def _tuned(scale: np.ndarray, logarithm: np.ndarray) -> np.ndarray:
    """``float16``; a scale that would be 0 or infinite is not changed."""
    with np.errstate(over="ignore"):
        found = (scale.astype(np.float32) * np.exp(logarithm)).astype(np.float16)
    return np.where((found > 0) & np.isfinite(found), found, scale)


def _unit_layer(layer: Layer, matrices: dict[str, QuantizedWeights]) -> Layer:
    """A layer whose matrices have scale 1."""
    made: dict[str, Any] = {
        name: m.codebook.astype(np.float32)[m.index] for name, m in matrices.items()
    }
    return dataclasses.replace(layer, **made)


def _scaled(
    unit: Layer, matrices: dict[str, QuantizedWeights], logarithm: dict[str, np.ndarray]
) -> Layer:
    made: dict[str, Any] = {
        name: getattr(unit, name) * _tuned(m.scale, logarithm[name]).astype(np.float32)
        for name, m in matrices.items()
    }
    return dataclasses.replace(unit, **made)


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row, in place."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits
