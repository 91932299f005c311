"""Bit-exact model of the column scale: a column's result from its two sums (KLLM, Fig. 5)."""

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import canonical


def column_sum(
    s: np.ndarray, o: np.ndarray, s_a: np.ndarray, kept: np.ndarray | None = None
) -> np.ndarray:
    """``float32``: round32(round32(round32(s_a s) + o) + kept), of arrays that broadcast.

    For vectors and columns: s, o, kept ``float32[T, N]``; s_a ``float16[T, 1]``. ``kept`` are the
    sums of the rows of the matrix before, by default zeros. FP32 subnormals are flushed to zeros
    of their sign.
    """
    total = float_multiply(
        float_convert(np.asarray(s_a, np.float16), "fp32"), s, flush_subnormals=True
    )
    total = float_add(total, o, flush_subnormals=True)
    return float_add(total, np.float32(0) if kept is None else kept, flush_subnormals=True)


def column_result(total: np.ndarray, r: np.ndarray, s_b: np.ndarray) -> np.ndarray:
    """``float16``: round16(round32(total (r s_b))), of arrays that broadcast.

    total
        ``float32[T, N]``, as :func:`column_sum` has it.
    r, s_b
        ``float16[T, 1]`` and ``float16[N]``.
    """
    r, s_b = (float_convert(np.asarray(a, np.float16), "fp32") for a in (r, s_b))
    factor = float_multiply(r, s_b, flush_subnormals=True)
    scaled = float_multiply(total, factor, flush_subnormals=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return canonical(scaled.astype(np.float16))


def column_scale(
    s: np.ndarray,
    o: np.ndarray,
    s_a: np.ndarray,
    r: np.ndarray,
    s_b: np.ndarray,
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """``float16``: the result of :func:`column_sum`'s sum by :func:`column_result`."""
    return column_result(column_sum(s, o, s_a, kept), r, s_b)
