"""Two's complement K and V with one fixed scale per kv head (Token-Picker, section 4)."""

import numpy as np

from golden.algorithms.cache import KVCache


def scale_for(peak: np.ndarray, bits: int) -> np.ndarray:
    """Scale in float64 that gives magnitudes up to ``peak`` the ``bits``-bit codes; 1 for zero."""
    peak = np.asarray(peak, np.float64)
    return np.where(peak > 0, peak, 2 ** (bits - 1) - 1) / (2 ** (bits - 1) - 1)


def quantise(x: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """Codes nearest to ``x / scale`` (ties to even), saturating at ``bits`` bits, as int32."""
    limit = 2 ** (bits - 1)
    return np.clip(np.rint(x / scale), -limit, limit - 1).astype(np.int32)


class QuantisedCache:
    """K and V of one layer as codes of ``bits`` bits, the scales calibrated on the first tokens.

    The largest magnitude of K (and of V, apart) in the first ``calibration`` tokens of a kv head,
    times ``headroom``, is the largest magnitude that its codes reach. From then on the scales are
    fixed and larger values saturate, so stored codes never change. Before that, the scales follow
    the maximum so far, and a token that raises it causes all codes to be recomputed.

    ``k`` and ``v`` are views of the codes, int32[kv heads, tokens, d]; ``k_scale`` and ``v_scale``
    are float64[kv heads]: the value of code 1.
    """

    def __init__(self, bits: int, calibration: int, headroom: float) -> None:
        self._bits = bits
        self._calibration = calibration
        self._headroom = headroom
        self._first = KVCache()  # the unquantised first tokens; emptied after calibration
        self._codes = KVCache()
        self._peak: np.ndarray | None = None  # [K or V, kv heads]
        self.k_scale = self.v_scale = np.empty(0)

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def k(self) -> np.ndarray:
        return self._codes.k

    @property
    def v(self) -> np.ndarray:
        return self._codes.v

    def append(self, k: np.ndarray, v: np.ndarray) -> int:
        """Store leading tokens of ``k`` and ``v`` [kv heads, tokens, d]; returns their number.

        Those that share one pair of scales, at least one: a later token of the calibration that
        raises a maximum is not stored yet, as the queries before it must not see its scale.
        """
        count = k.shape[1]
        left = self._calibration - len(self)
        if left <= 0:
            self._codes.append(*self._quantised(k, v))
            return count
        peaks = np.abs(np.stack([k[:, :left], v[:, :left]])).max(axis=-1)  # [2, kv heads, tokens]
        peak = peaks[..., 0] if self._peak is None else np.maximum(self._peak, peaks[..., 0])
        raised = (peaks > peak[..., None]).any(axis=(0, 1))
        if raised.any():
            count = int(raised.argmax())
        k, v = k[:, :count], v[:, :count]
        if self._peak is None or (peak > self._peak).any():
            self._peak = peak
            self.k_scale, self.v_scale = scale_for(self._headroom * peak, self._bits)
            self._codes = KVCache()
            if len(self._first):
                self._codes.append(*self._quantised(self._first.k, self._first.v))
        self._first.append(k, v)
        self._codes.append(*self._quantised(k, v))
        if len(self) >= self._calibration:
            self._first = KVCache()
        return count

    def _quantised(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (
            quantise(k, self.k_scale[:, None, None], self._bits),
            quantise(v, self.v_scale[:, None, None], self._bits),
        )
