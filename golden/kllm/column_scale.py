"""Bit-exact model of the column scale: a column's result from its two sums (KLLM, Fig. 5)."""

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import canonical


def column_scale(
    s: np.ndarray, o: np.ndarray, s_a: np.ndarray, r: np.ndarray, s_b: np.ndarray
) -> np.ndarray:
    """``float16``: round16(round32(round32(round32(s_a s) + o) (r s_b))), of arrays that broadcast.

    For vectors and columns: s, o ``float32[T, N]``; s_a, r ``float16[T, 1]``; s_b ``float16[N]``.
    FP32 subnormals are flushed to zeros of their sign.
    """
    s_a, r, s_b = (float_convert(np.asarray(a, np.float16), "fp32") for a in (s_a, r, s_b))
    total = float_multiply(s_a, s, flush_subnormals=True)
    total = float_add(total, o, flush_subnormals=True)
    factor = float_multiply(r, s_b, flush_subnormals=True)
    scaled = float_multiply(total, factor, flush_subnormals=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical(scaled.astype(np.float16))
