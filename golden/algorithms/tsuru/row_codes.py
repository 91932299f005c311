"""Rows in few bits: rotated, with a scale a row, or by channel, with constant scales.

A rotation spreads large elements (QuaRot, Ashkboos et al., arXiv:2404.00456), so that the elements
of a row are nearly normal with one variance. Bits by channel go where queries look (as Double
Sparsity, Yang et al., arXiv:2408.07092, chooses channels).
"""

import dataclasses
import heapq

import numpy as np

from golden.algorithms.baselines.hadamard import hadamard_transform
from golden.algorithms.tsuru.float_levels import float_levels
from golden.algorithms.tsuru.gaussian_levels import gaussian_levels, lost_share, nearest

SCALE_BYTES = 1
LEVELS = {"normal": gaussian_levels, "float": float_levels}
"""Of rotated rows, by name: those that lose least, and those that hardware stores."""
_FRACTION_BITS = 3
"""A row's scale is a float of eight bits without sign; these are its fraction."""
MOST_CHANNEL_BITS = 6
SATURATED = 4.0
"""Standard deviations beyond which a channel's code says too little."""


def rotated_rows(x: np.ndarray, bits: int, levels: str = "normal") -> np.ndarray:
    """What codes of `bits` bits an element give back of rows x [..., d], in x's dtype.

    A code is the level, of those named `levels`, that is the nearest to x, rotated, over the row's
    scale: its root mean square, as a float of three fraction bits.
    """
    turned = hadamard_transform(x)
    scale = np.sqrt(np.mean(np.square(turned), axis=-1, keepdims=True))
    fraction, exponent = np.frexp(scale)
    steps = x.dtype.type(2 ** (_FRACTION_BITS + 1))
    scale = np.ldexp(np.rint(fraction * steps) / steps, exponent)
    normal = turned / np.where(scale > 0, scale, x.dtype.type(1))
    back = hadamard_transform(np.eye(x.shape[-1], dtype=x.dtype)).T
    return (nearest(normal, LEVELS[levels](bits)) * scale) @ back


def rotated_bytes(d: int, bits: int) -> int:
    """Bytes of such a row."""
    return -(-d * bits // 8) + SCALE_BYTES


@dataclasses.dataclass(frozen=True)
class KeyConstants:
    """What is known of a layer's keys before a sequence begins; float32 [kv head, d] each.

    mean, deviation
        Of keys by channel, positions encoded.
    power
        Mean square of the queries that read them.
    """

    mean: np.ndarray
    deviation: np.ndarray
    power: np.ndarray

    def balance(self) -> np.ndarray:
        """Factors of keys by channel, float32 [kv head, d]; queries get their inverse.

        Of errors that are alike in all channels of both, a score's variance is the least where the
        factor's square is the root of the queries' power over the keys' variance.
        """
        tiny = np.finfo(np.float32).tiny
        ratio = np.maximum(self.power, tiny) / np.maximum(np.square(self.deviation), tiny)
        return ratio ** np.float32(0.25)

    def widths(self, bits: int) -> np.ndarray:
        """Bits of each channel's code, int [kv head, d]; a row has ``bits`` times d.

        Each bit goes where it takes most from the variance that rounding gives a score: the
        queries' power times the keys' variance times the share of it that is lost.
        """
        weights = self.power * np.square(self.deviation)
        found = np.zeros(weights.shape, int)
        gain = [lost_share(n) - lost_share(n + 1) for n in range(MOST_CHANNEL_BITS)]
        for of, weight in zip(found, weights, strict=True):
            heap = [(-w * gain[0], channel) for channel, w in enumerate(weight)]
            heapq.heapify(heap)
            for _ in range(bits * len(weight)):
                _, channel = heapq.heappop(heap)
                of[channel] += 1
                if of[channel] < MOST_CHANNEL_BITS:
                    heapq.heappush(heap, (-weight[channel] * gain[of[channel]], channel))
        return found


def channel_rows(
    x: np.ndarray, widths: np.ndarray, deviation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What codes of ``widths`` bits give back of rows x [kv head, row, d] of mean 0.

    Also which rows have an element beyond ``SATURATED`` deviations in a channel that has a code,
    bool [kv head, row].
    """
    found = np.zeros_like(x)
    scale = np.maximum(deviation, np.finfo(np.float32).tiny).astype(x.dtype)[:, None]
    normal = x / scale
    for bits in range(1, int(widths.max(initial=0)) + 1):
        chosen = np.broadcast_to((widths == bits)[:, None], x.shape)
        found[chosen] = nearest(normal[chosen], gaussian_levels(bits))
    saturated = (np.abs(normal) > SATURATED) & (widths > 0)[:, None]
    return found * scale, saturated.any(axis=-1)
