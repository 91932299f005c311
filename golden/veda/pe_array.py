"""Bit-exact twin of the PE array: inner and outer products as its adders make them."""

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_add import float_add
from golden.arith.float_convert import float_convert
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import DTYPES


def inner_products(query: np.ndarray, rows: np.ndarray, *, accumulator: str = "fp32") -> np.ndarray:
    """``float16[..., l]``: every row's product with the query, added up in neighbours.

    query, rows
        ``float16[..., d]`` and ``float16[..., l, d]``, d a power of two.
    accumulator
        ``fp32``, in which products are exact, or ``fp16``, to which they are rounded.
    """
    return _rounded(adder_tree(_products(query[..., None, :], rows, accumulator)))


def outer_product(
    factors: np.ndarray, rows: np.ndarray, *, accumulator: str = "fp32", add_stages: int = 2
) -> np.ndarray:
    """``float16[..., d]``: the sum of rows times factors.

    factors, rows
        ``float16[..., l]`` and ``float16[..., l, d]``, l at least 1.
    add_stages
        L. Rows j mod L make a partial sum, in order; those of the last L rows are then added up,
        neighbours first, a missing one being -0.
    """
    products = _products(factors[..., None], rows, accumulator)
    count = products.shape[-2]
    partial = []
    with np.errstate(all="ignore"):  # and NaNs are made the hardware's in the end
        for first in range(min(add_stages, count)):
            total = products[..., first, :]
            for row in range(first + add_stages, count, add_stages):
                total = total + products[..., row, :]
            partial.append(total)
    missing = np.full_like(products[..., 0, :], -0.0)
    last = range(count - add_stages, count)
    ordered = [missing if row < 0 else partial[row % add_stages] for row in last]
    return _rounded(adder_tree(np.stack(ordered, axis=-1)))


def tiled_product(
    factors: np.ndarray, rows: np.ndarray, *, accumulator: str = "fp32"
) -> np.ndarray:
    """:func:`outer_product` on a fixed adder tree, which adds d terms at once.

    Each d rows are an inner product of their columns with their factors, those that are missing
    being 0; its results, rounded to FP16, are added up in FP32.
    """
    count, d = rows.shape[-2:]
    total = None
    for first in range(0, count, d):
        missing = max(0, first + d - count)
        here = [(0, 0)] * (rows.ndim - 2)
        tile = np.pad(rows[..., first : first + d, :], [*here, (0, missing), (0, 0)])
        query = np.pad(factors[..., first : first + d], [*here, (0, missing)])
        columns = np.swapaxes(tile, -1, -2)
        part = inner_products(query, columns, accumulator=accumulator)
        part = float_convert(part, "fp32")
        total = part if total is None else float_add(total, part)
    return _rounded(total)


def _products(a: np.ndarray, b: np.ndarray, accumulator: str) -> np.ndarray:
    dtype = DTYPES[accumulator]
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return float_multiply(np.asarray(a).astype(dtype), np.asarray(b).astype(dtype))


def _rounded(total: np.ndarray) -> np.ndarray:
    return float_convert(total, "fp16")
