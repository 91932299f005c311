"""Testbench of the concat unit, and real indices for this and other testbenches."""

import numpy as np
from amaranth.hdl import unsigned

from golden.algorithms.kllm.quantize import (
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    quantize_weights,
)
from golden.kllm.concat_unit import concat_unit
from golden.trace import Trace
from hw.kllm.concat_unit import ConcatUnitParameters
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

TOKENS, CHANNELS = 8, 8  # of each array of a trace; to quantise all of it would take long
LARGEST = np.float16(65504)


def real_indices(
    trace: Trace, activation_bits: int, weight_bits: int, k: int, columns: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Indices of a trace's activations and weights, ``activation, weight, mask [columns, k]``.

    Each column has the activations of one vector and the weights of one channel, quantised, and cut
    or repeated to k; the mask excludes the vector's outliers, 0.5 % at either end.
    """
    arrays = vectors_by_name(trace)
    notes = [f"Columns are {', '.join(arrays)}, quantised, and cut or repeated to {k}."]
    found = []
    for name, rows in arrays.items():
        x, remarks = to_fp16(name, rows[:TOKENS])
        x = np.clip(x, -LARGEST, LARGEST)
        # Where a trace has no weights for these activations, activations are used instead.
        w = trace.w.get(name.removeprefix("x/"), rows[-CHANNELS:].T)[:, :CHANNELS]
        w = np.clip(np.asarray(w, np.float32), -LARGEST, LARGEST)
        outlier = dynamic_outliers(x, outlier_count(x.shape[1]))
        if outlier.all():
            outlier[:] = False  # a vector of one or two values would have no inliers
        scaled = x.astype(np.float64) / inlier_scale(x, outlier)[:, None]
        codebook = fit_activation_codebook(scaled[~outlier], activation_bits)
        a = quantize_activations(x, codebook, outlier)
        b = quantize_weights(w, weight_bits)
        found.append((a.index, b.index.T, ~outlier))
        notes += remarks
    values: dict[str, list[np.ndarray]] = {"activation": [], "weight": [], "mask": []}
    for column in range(columns):
        # One column from each array in turn, so that a few already show every layer.
        turn, which = divmod(column, len(found))
        for (name, stack), rows in zip(values.items(), found[which], strict=True):
            number = turn // CHANNELS + turn if name == "weight" else turn
            stack.append(np.resize(rows[number % len(rows)], k))
    return {name: np.array(stack, np.int64) for name, stack in values.items()}, notes


def random_masks(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """``bool``: rows that are all set, not at all, or any share of them."""
    kind = rng.integers(0, 4, (shape[0], 1))
    share = np.choose(kind, [0.0, 1.0, 1.0, rng.random((shape[0], 1))])
    return sometimes(rng, share, shape)


class ConcatUnitTestbench(DatapathTestbench):
    """Real indices, or random ones."""

    def draw(self, parameters: ConcatUnitParameters, trace: Trace | None, vectors: int, seed: int):
        p = parameters
        if trace is not None:
            return real_indices(trace, p.activation_bits, p.weight_bits, p.n, vectors)
        rng = np.random.default_rng(seed)
        values = {
            "activation": rng.integers(0, 1 << p.activation_bits, (vectors, p.n)),
            "weight": rng.integers(0, 1 << p.weight_bits, (vectors, p.n)),
            "mask": rng.integers(0, 2, (vectors, p.n)),
        }
        return values, []


testbench = ConcatUnitTestbench(
    operands=lambda p: {
        "activation": (unsigned(p.activation_bits), p.n),
        "weight": (unsigned(p.weight_bits), p.n),
        "mask": (unsigned(1), p.n),
    },
    results=lambda p: {"index": (unsigned(p.index_bits), p.n), "mask_out": (unsigned(1), p.n)},
    golden=lambda p, activation, weight, mask: {
        "index": concat_unit(activation, weight, p.weight_bits),
        "mask_out": mask,
    },
)
