"""Two's complement K and V with one scale per kv head (Token-Picker, section 4)."""

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
    """K and V of one layer as codes of ``bits`` bits, with a scale for each kv head's K and V.

    The first ``calibration`` tokens set a scale: the largest magnitude so far, times ``headroom``,
    gets the largest code. A token that raises the maximum causes all codes to be made again from
    the rows, which are kept that long. Afterwards only codes are kept. A later row that they do not
    reach doubles its head's scale until they do; the codes of earlier rows are halved as often,
    rounded once, ties to even. So no element saturates.

    ``k`` and ``v`` are views of the codes, int32[kv heads, tokens, d]; ``k_scale`` and ``v_scale``
    are float64[kv heads]: the value of code 1.

    rewritten
        Number of tokens whose codes the last ``append`` made again: none or all of the earlier.
    stored_again
        Sum of these numbers so far.
    saturated
        Number of elements stored whose codes are not the nearest ones, as these do not exist.
    """

    def __init__(self, bits: int, calibration: int, headroom: float) -> None:
        self._bits = bits
        self._calibration = calibration
        self._headroom = headroom
        self._first = KVCache()  # the unquantised first tokens; emptied after calibration
        self._codes = KVCache()
        self._peak = np.zeros((2, 0))  # [K or V, kv heads]
        self._scales = np.zeros((2, 0))
        self.rewritten = self.stored_again = self.saturated = 0

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def k(self) -> np.ndarray:
        return self._codes.k

    @property
    def v(self) -> np.ndarray:
        return self._codes.v

    @property
    def k_scale(self) -> np.ndarray:
        return self._scales[0]

    @property
    def v_scale(self) -> np.ndarray:
        return self._scales[1]

    def append(self, k: np.ndarray, v: np.ndarray) -> int:
        """Store leading tokens of ``k`` and ``v`` [kv heads, tokens, d]; returns their number.

        Those that share one pair of scales, at least one: a later token that changes a scale is not
        stored yet, because the queries before it must not see that.
        """
        rows = np.stack([k, v])
        peaks = np.abs(rows).max(axis=-1)  # [K or V, kv heads, tokens]
        left = self._calibration - len(self)
        self.rewritten = 0
        if left > 0:
            self._calibrate(peaks[..., 0])
        else:
            self._enlarge(peaks[..., 0])
        most = np.repeat(self._reach[..., None], peaks.shape[2], axis=2)
        most[..., : max(left, 0)] = self._peak[..., None]
        raises = (peaks > most).any(axis=(0, 1))
        count = int(raises.argmax()) if raises.any() else len(raises)
        rows = rows[:, :, :count]
        if left > 0:
            self._first.append(*rows)
        self._codes.append(*self._quantised(rows))
        if len(self) >= self._calibration:
            self._first = KVCache()
        return count

    @property
    def _reach(self) -> np.ndarray:
        """Largest magnitudes that get codes without doubt."""
        return (2 ** (self._bits - 1) - 0.75) * self._scales

    def _calibrate(self, peak: np.ndarray) -> None:
        """Scales for the largest magnitudes so far and `peak` [K or V, kv heads]."""
        if self._peak.shape == peak.shape and (peak <= self._peak).all():
            return
        self._peak = np.maximum(self._peak, peak) if self._peak.shape == peak.shape else peak
        self._scales = scale_for(self._headroom * self._peak, self._bits)
        self._codes = KVCache()
        if len(self._first):
            self._codes.append(*self._quantised(np.stack([self._first.k, self._first.v])))
            self._note_rewritten()

    def _enlarge(self, peak: np.ndarray) -> None:
        """Double the scales that do not reach `peak`."""
        ratio = np.maximum(peak / self._reach, 1)
        times = 2.0 ** np.ceil(np.log2(ratio))
        if (times == 1).all():
            return
        self._scales = self._scales * times
        for codes, of in zip((self.k, self.v), times, strict=True):
            codes[:] = np.rint(codes / of[:, None, None])
        self._note_rewritten()

    def _note_rewritten(self) -> None:
        self.rewritten = len(self)
        self.stored_again += self.rewritten

    def _quantised(self, rows: np.ndarray) -> np.ndarray:
        """Codes of ``rows`` [K or V, kv heads, tokens, d]."""
        scales = self._scales[..., None, None]
        codes = quantise(rows, scales, self._bits)
        self.saturated += int(np.count_nonzero(codes != np.rint(rows / scales)))
        return codes
