"""Bit-exact model of the mean of rows, from their sum in FP32."""

import numpy as np

from golden.arith.float_add import float_add
from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply


def add_row(x: np.ndarray, before: np.ndarray, number: int | np.ndarray) -> np.ndarray:
    """The sum float32[..., d] with a row x float16[..., d].

    before
        The sum without it, float32[..., d]; it does not matter where `number` is 1.
    number
        How many rows the sum then has, of each.
    """
    first = np.asarray(number)[..., None] == 1
    return float_add(np.where(first, np.float32(0), before), float_convert(x, "fp32"))


def mean_of(total: np.ndarray, number: int | np.ndarray) -> np.ndarray:
    """The mean float16[..., d] of `number` rows with the sum float32[..., d]."""
    reciprocal = np.float32(1) / np.asarray(number).astype(np.float32)
    return float_convert(float_multiply(total, reciprocal[..., None]), "fp16")


def means(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means after each of the rows x, float16[row, ..., d] both, and the last sum."""
    total = np.zeros(x.shape[1:], np.float32)
    found = []
    for number, row in enumerate(x, 1):
        total = add_row(row, total, number)
        found.append(mean_of(total, number))
    return np.array(found), total
