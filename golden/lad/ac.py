"""Bit-exact model of the attention computation module, and the caches A to F.

What is added in FP32 are FP16 numbers, multiples of 2^-24, so no sum is subnormal, and the adders
take a subnormal number, which only somebody else can have put into the memory, for a zero.
"""

from dataclasses import dataclass, fields

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

    float64 in a model without rounding. Caches of several heads have an axis more ahead.
    """

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    E: np.ndarray
    F: np.ndarray

    @classmethod
    def zero(cls, d: int, dtype: type = np.float32, heads: tuple[int, ...] = ()) -> "Caches":
        shapes: list[tuple[int, ...]] = [(d, d), (d,), (d,), (d,), (), ()]
        return cls(*(np.zeros((*heads, *shape), dtype) for shape in shapes))

    @classmethod
    def stack(cls, caches: list["Caches"]) -> "Caches":
        """Of several heads, as one."""
        return cls(*(np.stack([getattr(c, f.name) for c in caches]) for f in fields(cls)))

    @classmethod
    def from_rows(cls, rows: np.ndarray) -> "Caches":
        """From memory: uint16[..., 2 d + 7, d], two rows for each column of A, for B, C and D; then
        E and F."""
        *heads, count, d = rows.shape
        wide = np.array(rows, "<u2", order="C").view("<f4").reshape(*heads, count * d // 2)
        vectors = wide[..., : (d + 3) * d].reshape(*heads, d + 3, d)
        b, c, d_ = (vectors[..., d + place, :] for place in range(3))
        e, f = (wide[..., (d + 3) * d + place] for place in range(2))
        return cls(vectors[..., :d, :].swapaxes(-1, -2), b, c, d_, np.asarray(e), np.asarray(f))

    def to_rows(self) -> np.ndarray:
        *heads, d = self.B.shape
        wide = np.zeros((*heads, d + 3 + 1, d), np.float32)
        wide[..., :d, :] = self.A.swapaxes(-1, -2)
        for place, vector in enumerate((self.B, self.C, self.D)):
            wide[..., d + place, :] = vector
        wide[..., -1, 0], wide[..., -1, 1] = self.E, self.F
        return wide.view("<u2").reshape(*heads, -1, d)[..., :-1, :].copy()

    def __getitem__(self, head: int | None) -> "Caches":
        """A view of one of several heads' caches; with None, of one head's as several."""
        return Caches(*(getattr(self, field.name)[head, ...] for field in fields(self)))


def attend(
    caches: Caches,
    q: np.ndarray,
    m: Values,
    cf: np.ndarray,
    v: np.ndarray,
    arithmetic: Arithmetic = FP16,
) -> tuple[np.ndarray, bool]:
    """A head's output ``float16[d]``, and whether it is invalid, as :func:`attend_heads` says."""
    o, invalid = attend_heads(
        caches[None], q[None], np.atleast_1d(m), cf, v, [0, len(cf)], arithmetic
    )
    return o[0], bool(invalid[0])


def attend_heads(
    caches: Caches,
    q: np.ndarray,
    m: np.ndarray,
    cf: np.ndarray,
    v: np.ndarray,
    ends: list[int],
    arithmetic: Arithmetic = FP16,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs ``float16[H, d]`` of heads, and whether each is invalid, of ``q`` [H, d] and `m` [H].

    The active positions' factors `cf` [J] and rows `v` [J, d], which end at `ends` (0, then each
    head's end), are added in three accumulators in turn; the first one begins with C - m B, the
    second one with q A. Their element d belongs to the denominator. A, B, D and E are multiplied as
    numbers divided by 2^power, and num and den divided as numbers divided by den's power of two.
    """
    heads, d = q.shape
    widen, narrow = arithmetic.widen, arithmetic.narrow
    powers = [np.clip(exponent(x) - 1, 0, MOST_POWER) for x in (caches.F, m)]
    power = np.minimum(sum(powers), MOST_POWER)[:, None]
    columns = np.concatenate([caches.A.swapaxes(1, 2), caches.D[:, None]], axis=1)
    dots = adder_tree(float_multiply(q[:, None], narrow(columns, -power[:, None])))
    from_m = float_multiply(m[:, None], narrow(_append(caches.B, caches.E), -power))
    # A lane's first value, then its addends; a head may have fewer than the longest one.
    counts = np.diff(ends)
    sums: np.ndarray = np.zeros((heads, LANES, 1 + -(-max(counts) // LANES), d + 1), arithmetic.sum)
    sums[:, 0, 0] = _add(_append(caches.C, caches.F), widen(from_m, power), True)
    sums[:, 1, 0] = widen(dots, power)
    head = np.repeat(np.arange(heads), counts)
    number = np.arange(len(cf)) - np.asarray(ends)[head]
    places = head, number % LANES, 1 + number // LANES
    factor = cf[:, None]
    sums[places] = widen(np.concatenate([float_multiply(factor, v), factor], axis=1))
    with np.errstate(all="ignore"):
        np.add.accumulate(sums, axis=2, out=sums)
    every = np.arange(heads)
    lanes = [
        canonical(sums[every, lane, np.maximum(counts - lane + LANES - 1, 0) // LANES])
        for lane in range(LANES)
    ]
    total = _add(_add(lanes[0], lanes[1]), lanes[2])
    scaled = narrow(total, -exponent(total[:, d:]))
    o = float_multiply(arithmetic.reciprocal(scaled[:, d:]), scaled[:, :d])
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(total[:, d]) & (total[:, d] > 0) & np.isfinite(o).all(axis=1)
    return o, ~valid


def _append(vectors: np.ndarray, elements: np.ndarray) -> np.ndarray:
    return np.concatenate([vectors, elements[:, None]], axis=1)


def exponent(x: np.ndarray) -> np.ndarray:
    """e of numbers m 2^e with m from 0.5 to 1; of zeros, infinities and NaN by their bits."""
    mantissa = np.finfo(x.dtype).nmant
    width = 8 * x.dtype.itemsize - 1 - mantissa
    field = to_bits(x).astype(np.int64) >> mantissa & (1 << width) - 1
    return field - (1 << width - 1) + 2


def _add(a: np.ndarray, b: np.ndarray, subtract: bool = False) -> np.ndarray:
    return float_add(a, b, subtract, flush_subnormals=a.dtype == np.float32)


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
