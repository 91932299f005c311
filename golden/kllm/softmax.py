"""Bit-exact model of the softmax of FP16 scores, in integers."""

import numpy as np

from golden.arith.float_to_fixed import float_to_fixed
from golden.arith.formats import from_bits, is_nan, quiet_nan
from golden.arith.wide_exponent import FRACTION, inverse, powers, round_fp16

FARTHEST = (1 << 19) - 1
"""Differences from the maximum saturate here, just below 32."""


def softmax(scores: np.ndarray, keep: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """``float16[rows, n]`` probabilities of ``float16[rows, n]``, and which rows are invalid.

    keep
        ``bool[rows, n]``: the other scores are replaced by minus infinity.
    length
        Scores in the longest row that the hardware accepts, at least n: it decides how the sum is
        truncated. See :class:`hw.kllm.softmax.Softmax` for invalid rows.

    Error in units in the last place of a probability, at most 1.69: its rounding, 0.5; between any
    two terms, 0.61, mostly from rounding x log2(e) to 2^-12; rounding two scores to 2^-14, 0.125;
    truncation of the sum, 0.06; the table of reciprocals, 0.39.
    """
    score = np.where(keep, scores, np.float16(-np.inf))
    nan = is_nan(score).any(axis=1)
    plain = np.where(is_nan(score), np.float16(-np.inf), score)
    highest = plain.max(axis=1, keepdims=True)
    fixed, top = (
        float_to_fixed(x, 17 + FRACTION, fraction=FRACTION)["o"] for x in (plain, highest)
    )
    significand, shift = powers(np.minimum(top - fixed, FARTHEST))
    shift = np.minimum(shift, 31)

    integer = (length - 1).bit_length()  # bits of the sum
    places = 15 + integer  # fraction bits of the sum
    total = ((significand << (places - 15)) >> shift).sum(axis=1)
    leading = np.frexp(np.maximum(total, 1).astype(np.float64))[1] - 1  # bit of the leading one
    fraction = ((total << (places + integer - 1 - leading)) >> (places + integer - 13)) & 0xFFF
    product = significand * inverse(fraction)[:, None]
    result = round_fp16(product, 30, 14 - shift - (leading - places)[:, None])
    empty = np.isneginf(highest[:, 0]) & ~nan
    undefined = nan | np.isposinf(highest[:, 0])
    result = np.where(empty[:, None], np.float16(0), result)
    not_a_number = from_bits(np.array(quiet_nan(np.float16)), np.float16)
    return np.where(undefined[:, None], not_a_number, result), undefined | empty
