"""Bit-exact model of the attention computation module, and the caches A to F.

What is added in FP32 are FP16 numbers, multiples of 2^-24, so no sum is subnormal, and the adders
take a subnormal number, which only somebody else can have put into the memory, for a zero.
"""

from dataclasses import dataclass

import numpy as np

from golden.arith.adder_tree import adder_tree
from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from golden.arith.formats import Values, canonical, to_bits
from golden.lad.arithmetic import FP16, Arithmetic

LANES = 3
"""Computation components, each with an accumulator."""

MOST_POWER = 31
"""The largest power of two by which sums are divided to be multiplied."""


@dataclass(eq=False)
class Caches:
    """float32: A [d, d], the column A[:, r] for element r of V; B, C, D [d]; E, F.

    float64 in a model without rounding.
    """

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    E: np.ndarray
    F: np.ndarray

    @classmethod
    def zero(cls, d: int, dtype: type = np.float32) -> "Caches":
        shapes = [(d, d), (d,), (d,), (d,), (), ()]
        return cls(*(np.zeros(shape, dtype) for shape in shapes))

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> "Caches":
        """From memory: uint16[2 d + 7, d], two rows for each column of A, for B, C and D; E, F."""
        d = rows.shape[1]
        wide = np.ascontiguousarray(rows, "<u2").view("<f4").reshape(-1, d // 2)
        vectors = wide[: 2 * d + 6].reshape(d + 3, d)
        e, f = _scalars(*wide[-1, :2])
        b, c, d_ = vectors[d:].copy()
        return cls(vectors[:d].T.copy(), b, c, d_, e, f)

    def to_rows(self) -> np.ndarray:
        d = len(self.B)
        wide = np.zeros((d + 3 + 1, d), np.float32)
        wide[:d] = self.A.T
        wide[d : d + 3] = self.B, self.C, self.D
        wide[-1, :2] = self.E, self.F
        return wide.view("<u2").reshape(-1, d)[:-1].copy()


def _scalars(e: float, f: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array(e, np.float32), np.array(f, np.float32)


def attend(
    caches: Caches,
    q: np.ndarray,
    m: Values,
    cf: np.ndarray,
    v: np.ndarray,
    arithmetic: Arithmetic = FP16,
) -> tuple[np.ndarray, bool]:
    """A head's output ``float16[d]``, and whether it is invalid.

    The active positions' factors `cf` [J] and rows `v` [J, d] are added in three accumulators in
    turn; the first one begins with C - m B, the second one with q A. Their element d belongs to the
    denominator. A, B, D and E are multiplied as numbers divided by 2^power, and num and den divided
    as numbers divided by den's power of two.
    """
    d = len(q)
    widen, narrow = arithmetic.widen, arithmetic.narrow
    power = sum(int(np.clip(exponent(x) - 1, 0, MOST_POWER)) for x in (caches.F, np.asarray(m)))
    power = min(power, MOST_POWER)
    dots = adder_tree(float_multiply(q, narrow(np.vstack([caches.A.T, caches.D]), -power)))
    from_m = float_multiply(m, narrow(np.append(caches.B, caches.E), -power))
    begin = [
        _add(np.append(caches.C, caches.F), widen(from_m, power), True),
        widen(dots, power),
        np.zeros(d + 1, arithmetic.sum),
    ]
    addends = widen(np.concatenate([float_multiply(cf[:, None], v), cf[:, None]], axis=1))
    lanes = [_sum(begin[lane], addends[lane::LANES]) for lane in range(LANES)]
    total = _add(_add(lanes[0], lanes[1]), lanes[2])
    scaled = narrow(total, -exponent(total[d]))
    o = float_multiply(arithmetic.reciprocal(scaled[d:]), scaled[:d])
    with np.errstate(invalid="ignore"):
        invalid = not (np.isfinite(total[d]) and total[d] > 0 and np.isfinite(o).all())
    return o, invalid


def exponent(x: np.ndarray) -> int:
    """e of a number m 2^e with m from 0.5 to 1; of a zero, an infinity or NaN by its bits."""
    mantissa = np.finfo(x.dtype).nmant
    width = 8 * x.dtype.itemsize - 1 - mantissa
    field = int(to_bits(x)) >> mantissa & (1 << width) - 1
    return field - (1 << width - 1) + 2


def _add(a: np.ndarray, b: np.ndarray, subtract: bool = False) -> np.ndarray:
    return float_add(a, b, subtract, flush_subnormals=a.dtype == np.float32)


def _sum(begin: np.ndarray, addends: np.ndarray) -> np.ndarray:
    """``begin`` [d + 1] and rows [number, d + 1], added one after another."""
    with np.errstate(all="ignore"):
        return canonical(np.add.accumulate(np.vstack([begin, addends]), axis=0)[-1])


def update(
    caches: Caches,
    terms: list[tuple[bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
    arithmetic: Arithmetic = FP16,
) -> None:
    """Add terms to the caches, or remove them: ``(remove, a, b, k, v)``, in order."""
    for remove, a, b, k, v in terms:
        from_v = float_multiply(a, v)
        addends = {
            "A": float_multiply(from_v[None, :], k[:, None]),
            "B": from_v,
            "C": float_multiply(b, v),
            "D": float_multiply(a, k),
            "E": a,
            "F": b,
        }
        for name, addend in addends.items():
            cache = getattr(caches, name)
            cache[...] = _add(cache, arithmetic.widen(addend), remove)
