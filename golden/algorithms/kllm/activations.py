"""How KLLM quantises the input of a product, and what it learns for that (KLLM, section III-D)."""

import dataclasses

import numpy as np

from golden.algorithms.kllm.quantize import (
    QuantizedActivations,
    dynamic_outliers,
    fit_activation_codebook,
    inlier_scale,
    outlier_count,
    quantize_activations,
    static_outliers,
)
from golden.kllm.kllm_core import parts_of


@dataclasses.dataclass(frozen=True, eq=False)
class ActivationQuantizer:
    """How one product's input is quantised: outliers, scale and codebook.

    ``thresholds`` and ``scale`` are fixed offline in KLLM-S and None in KLLM, where ``share`` of
    each token's values are outliers, or ``outliers`` at each end whatever the share, and the scale
    is the token's own.
    """

    codebook: np.ndarray
    share: float
    thresholds: tuple[float, float] | None = None
    scale: np.floating | None = None
    outliers: int | None = None
    rows: int | None = None

    def __call__(self, x: np.ndarray) -> QuantizedActivations:
        """Quantise tokens [token, K]; they are rounded to FP16 first."""
        x = x.astype(np.float16)
        outlier = _outliers(x, self.count(x.shape[-1]), self.thresholds)
        return quantize_activations(x, self.codebook, outlier, self.scale)

    def count(self, n: int) -> int:
        """Outliers at each end of a token of `n` values."""
        return outlier_count(n, self.share) if self.outliers is None else self.outliers


def fit_activation_quantizer(
    x: np.ndarray,
    bits: int,
    share: float,
    static: bool,
    fisher: np.ndarray | None = None,
    outliers: int | None = None,
    rows: int | None = None,
) -> ActivationQuantizer:
    """Train on calibration tokens [token, K].

    Static thresholds leave ``share`` / 2 of all calibration values beyond each; the larger of their
    magnitudes is the fixed scale. ``fisher`` [token, K] is the diagonal Fisher information of `x`;
    the information of x / s_A, the codebook's values, is s_A^2 times as large. ``outliers`` at each
    end of a token replace the share. With `rows`, parts of at most as many values are separate
    vectors.
    """
    x = x.astype(np.float16)
    if rows is not None and x.shape[1] > rows:
        parts = parts_of(x.shape[1], rows)
        # Parts are of about one size; the shortest one's number of values is used for all.
        length = min(part.stop - part.start for part in parts)

        def stacked(a: np.ndarray) -> np.ndarray:
            return np.concatenate([a[:, part.start : part.start + length] for part in parts])

        fisher = None if fisher is None else stacked(np.broadcast_to(fisher, x.shape))
        x = stacked(x)
    thresholds = scale = None
    if static:
        ends = [share / 2, 1 - share / 2]
        low, high = np.quantile(x.astype(np.float32), ends).astype(np.float16)
        thresholds, scale = (low, high), max(abs(low), abs(high)) or np.float16(1)
    count = outlier_count(x.shape[-1], share) if outliers is None else outliers
    outlier = _outliers(x, count, thresholds)
    scales = inlier_scale(x, outlier) if scale is None else np.full(len(x), scale)
    scales = scales.astype(np.float32)[:, None]
    samples = (x / scales)[~outlier]
    if not samples.size:
        raise ValueError("outliers: none of a vector's values is left to quantise")
    weights = None if fisher is None else (fisher * scales**2)[~outlier]
    codebook = fit_activation_codebook(samples, bits, weights)
    return ActivationQuantizer(codebook, share, thresholds, scale, outliers, rows)


def _outliers(x: np.ndarray, count: int, thresholds: tuple[float, float] | None) -> np.ndarray:
    if thresholds is not None:
        return static_outliers(x, *thresholds)
    return dynamic_outliers(x, count)
