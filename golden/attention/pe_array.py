"""Bit-exact model of the PE array: inner and outer products, in the order of its adders.

``accumulator`` is the format of sums: ``fp32``, in which products are exact, or a shorter one to
which they are rounded: ``fp16``, ``fp20``, ``fp22`` and ``fp24``. The last three are FP32 with a
fraction of 11, 13 and 15 bits; NumPy holds them in ``float64``.
"""

import numpy as np

from golden.arith.adder_tree import tree
from golden.arith.float_add import float_add
from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import DTYPES

FRACTIONS = {"fp20": 11, "fp22": 13, "fp24": 15}
"""Fraction bits of the formats that are not NumPy dtypes."""


def inner_products(
    query: np.ndarray,
    rows: np.ndarray,
    *,
    accumulator: str = "fp32",
    relative: bool = False,
    given: np.ndarray | None = None,
) -> np.ndarray:
    """``float16[..., l]``: every row's product with the query, added in pairs of neighbours.

    query, rows
        ``float16[..., d]`` and ``float16[..., l, d]``, d a power of two.
    relative
        Subtract the first finite product from all l before they are rounded to FP16.
    given
        ``float16[..., n]``: products of n more rows, which are not computed.
    """
    total = _tree(_products(query[..., None, :], rows, accumulator), accumulator)
    if given is not None:
        total = np.concatenate([total, given.astype(total.dtype)], axis=-1)
    return _rounded(less_first(total, accumulator) if relative else total)


def less_first(total: np.ndarray, accumulator: str) -> np.ndarray:
    """``total [..., l]`` less its first finite number along the last axis, which becomes 0.

    Infinities and NaNs are unchanged.
    """
    finite = np.isfinite(total)
    first = finite.argmax(axis=-1)[..., None]
    reference = np.take_along_axis(total, first, axis=-1)
    difference = np.where(finite, _add(total, -reference, accumulator), total)
    is_first = finite & (np.arange(total.shape[-1]) == first)
    return np.where(is_first, total.dtype.type(0), difference)


def outer_product(
    factors: np.ndarray, rows: np.ndarray, *, accumulator: str = "fp32", add_stages: int = 2
) -> np.ndarray:
    """``float16[..., d]``: the sum of rows times factors.

    factors, rows
        ``float16[..., l]`` and ``float16[..., l, d]``, l at least 1.
    add_stages
        L. Rows with the same j mod L make a partial sum, in order. The L partial sums are then
        added in pairs of neighbours, in the order of their last rows; a missing one is -0.
    """
    products = _products(factors[..., None], rows, accumulator)
    count = products.shape[-2]
    partial = []
    for first in range(min(add_stages, count)):
        total = products[..., first, :]
        for row in range(first + add_stages, count, add_stages):
            total = _plain_sum(total, products[..., row, :], accumulator)
        partial.append(total)
    missing = np.full_like(products[..., 0, :], -0.0)
    last = range(count - add_stages, count)
    ordered = [missing if row < 0 else partial[row % add_stages] for row in last]
    return _rounded(_tree(np.stack(ordered, axis=-1), accumulator))


def tiled_product(
    factors: np.ndarray, rows: np.ndarray, *, accumulator: str = "fp32"
) -> np.ndarray:
    """:func:`outer_product` on a fixed adder tree, which adds d terms at once.

    A tile of d rows is transposed, and its columns' inner products with its factors are rounded to
    FP16; missing rows are 0. The tiles' results are added in FP32.
    """
    count, d = rows.shape[-2:]
    total: np.ndarray | None = None
    for first in range(0, count, d):
        missing = max(0, first + d - count)
        batch = [(0, 0)] * (rows.ndim - 2)
        tile = np.pad(rows[..., first : first + d, :], [*batch, (0, missing), (0, 0)])
        query = np.pad(factors[..., first : first + d], [*batch, (0, missing)])
        columns = np.swapaxes(tile, -1, -2)
        part = inner_products(query, columns, accumulator=accumulator)
        part = float_convert(part, "fp32")
        total = part if total is None else float_add(total, part)
    assert total is not None, "there are rows"
    return _rounded(total)


def _products(a: np.ndarray, b: np.ndarray, accumulator: str) -> np.ndarray:
    dtype = DTYPES.get(accumulator, np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        product = float_multiply(np.asarray(a).astype(dtype), np.asarray(b).astype(dtype))
    return _cut(product, accumulator) if accumulator in FRACTIONS else product


def _tree(values: np.ndarray, accumulator: str) -> np.ndarray:
    return tree(values, lambda a, b: _add(a, b, accumulator))


def _add(a: np.ndarray, b: np.ndarray, accumulator: str) -> np.ndarray:
    total = float_add(a, b)
    return _cut(total, accumulator) if accumulator in FRACTIONS else total


def _plain_sum(a: np.ndarray, b: np.ndarray, accumulator: str) -> np.ndarray:
    """As `_add`, but faster: NaNs keep NumPy's bits until the result is converted."""
    with np.errstate(all="ignore"):
        total = a + b
    return _cut(total, accumulator) if accumulator in FRACTIONS else total


def _cut(values: np.ndarray, accumulator: str) -> np.ndarray:
    """``float64`` rounded to the accumulator's fraction, to nearest even.

    Rounding a sum of two such numbers to float64 first does not change the result: 53 bits are more
    than 2 p + 2 of a significand of p bits.
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    drop = 52 - FRACTIONS[accumulator]
    up = (1 << drop - 1) - 1 + (bits >> drop & 1)
    cut = (bits + up >> drop << drop).view(np.float64).reshape(values.shape)
    return np.where(np.isfinite(values), cut, values)


def _rounded(total: np.ndarray) -> np.ndarray:
    return float_convert(total, "fp16")
