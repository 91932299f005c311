"""The natural logarithm as the hardware computes it."""

from decimal import Context, Decimal

import ml_dtypes
import numpy as np

from golden.arith.fields import is_infinite, overflow, split, with_sign
from golden.arith.formats import DTYPES, canonical, flush, from_bits, is_nan, quiet_nan
from golden.arith.multipartite import SCALE, Multipartite

TABLES = {
    DTYPES["fp16"]: Multipartite(10, 5, ((5, 3, 5), (4, 0, 3)), 7, 3, True),
    DTYPES["bf16"]: Multipartite(7, 5, ((3, 0, 2),), 4, 3, True),
    DTYPES["fp8_e4m3"]: Multipartite(3, 3, (), 2, 3, True),
    DTYPES["fp8_e5m2"]: Multipartite(2, 2, (), 2, 3, True),
}

EXACT = Context(prec=40)


def slope(n: int, k: int) -> int:
    """ln(m) / (m - 1) times 2^SCALE, rounded down; m is 3/4 + t/2 up to t = 1/2, then 1/2 + t."""
    t = Decimal(n) / Decimal(1 << k)
    distance = (t - Decimal("0.5")) / (2 if 2 * n < 1 << k else 1)
    if distance == 0:
        return 1 << SCALE
    ratio = EXACT.divide(EXACT.ln(1 + distance), distance)
    return int(EXACT.multiply(ratio, 1 << SCALE))


def log(x: np.ndarray, *, flush_subnormals: bool = False) -> np.ndarray:
    """ln(x), with an error below one unit in the last place; see :class:`hw.arith.log.Log`.

    Formats of at most 16 bits. With `flush_subnormals`, subnormal operands count as zeros of their
    sign.
    """
    x = flush(x) if flush_subnormals else x
    table, bits = TABLES[x.dtype], ml_dtypes.finfo(x.dtype).nmant
    bias, infinity = 1 - int(ml_dtypes.finfo(x.dtype).minexp), overflow(x.dtype)
    fields = split(x).normalised(bits)
    fraction = fields.significand & ((1 << bits) - 1)
    halved = fraction >> (bits - 1)
    whole = fields.exponent + halved
    # m - 1, in units of 2^-(bits + 1), and its product with the table's slope.
    distance = np.where(halved == 1, fraction - (1 << bits), 2 * fraction)
    steepness = table(slope, fraction ^ 1 << (bits - 1))
    # Fraction bits of the sum, and of E ln(2).
    fine, coarse = bits + 1 + table.width + table.guard, bits + 6
    ln_2 = round(EXACT.multiply(EXACT.ln(Decimal(2)), 1 << coarse))
    total = distance * steepness + (whole * ln_2 << (fine - coarse))

    # Rounded by adding half a unit in the last place, which may carry into the exponent.
    length = np.frexp(np.abs(total).astype(np.float64))[1]
    dropped = length - bits - 1
    scaled = np.abs(total) << np.maximum(-dropped, 0)
    dropped = np.maximum(dropped, 0)
    rounded = (scaled + (1 << dropped >> 1)) >> dropped
    magnitude = np.where(total == 0, 0, ((length + bias - 2 - fine) << bits) + rounded)
    is_zero = split(x).significand == 0
    magnitude = np.where(is_zero | is_infinite(x), infinity, magnitude)
    result = with_sign(magnitude, is_zero | (total < 0) & ~is_infinite(x), x.dtype)
    undefined = is_nan(x) | fields.negative & ~is_zero
    return canonical(np.where(undefined, from_bits(np.array(quiet_nan(x.dtype)), x.dtype), result))
