"""The intermediate caches A to F (LAD, equations 4 to 6)."""

from collections.abc import Iterable

import numpy as np


class Caches:
    """A [query heads, d, d], B, C, D [query heads, d], E, F [query heads]; initially zero.

    With a* and b* a position's coefficients in its mode, sums over all positions:
    A = a* k^T v, B = a* v, C = b* v, D = a* k, E = a*, F = b*.

    The output is a small difference of large terms, qA - mB + C, so it needs them more accurate
    than itself. On a real model caches in FP16 drift by about one per cent within 2000 steps, and
    by 17 at most, which costs five per cent of the output and 2.8 of perplexity; recomputed every
    64 steps they cost 0.7 per cent of the output; in FP32 they keep to 2e-5 without that
    (``golden.algorithms.lad.drift``).

    ``storage`` "float16" rounds all of them to FP16, to nearest and even, after every update, whose
    own sum is not rounded; "float32" keeps them in the type of the arithmetic.

    ``terms`` "differences" is eq. 6: a position that changes its mode adds one term, with the
    difference of the new and the old coefficients. "pairs" takes its old term out, exactly as it
    was once put in, and puts the new one in. In exact arithmetic they are the same.

    ``arithmetic`` "fp16" rounds each product of a term to FP16, as multipliers do: a* v, that times
    k for A; b* v; a* k. The terms are added one after another, without further rounding than the
    caches' own. Then differences drift: alpha k^T v rounded is not the new term less the old one.
    Pairs do not: what is taken out is what was put in, so only the sums' rounding remains.
    """

    NAMES = "ABCDEF"

    def __init__(
        self,
        heads: int,
        d: int,
        dtype: np.dtype | type,
        storage: str,
        terms: str = "differences",
        arithmetic: str = "float",
    ) -> None:
        vectors: np.ndarray = np.zeros((3, heads, d), dtype)
        scalars: np.ndarray = np.zeros((2, heads), dtype)
        self.A: np.ndarray = np.zeros((heads, d, d), dtype)
        self.B, self.C, self.D = vectors
        self.E, self.F = scalars
        self._half = storage == "float16"
        self._pairs = terms == "pairs"
        self._rounds = arithmetic == "fp16"

    def numerator(self, q: np.ndarray, m: np.ndarray) -> np.ndarray:
        """qA - mB + C for ``q`` [query heads, d] and ``m`` [query heads]; [query heads, d]."""
        return (q[:, None] @ self.A)[:, 0] - m[:, None] * self.B + self.C

    def denominator(self, q: np.ndarray, m: np.ndarray) -> np.ndarray:
        """qD - mE + F; [query heads]."""
        return (q * self.D).sum(axis=-1) - m * self.E + self.F

    def update(
        self,
        old: tuple[np.ndarray, np.ndarray],
        new: tuple[np.ndarray, np.ndarray],
        updated: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
    ) -> None:
        """Exchange the terms of U, ``updated`` [query heads, positions] as a mask.

        ``old`` and ``new`` are the coefficients (a*, b*), [query heads, positions] each; ``k``,
        ``v`` [kv heads, positions, d].
        """
        h, j = np.nonzero(updated)
        if len(h) == 0:
            return
        # U of each head side by side, the shorter ones padded with coefficients of zero.
        sizes = np.bincount(h, minlength=len(updated))
        place = np.arange(len(h)) - (np.cumsum(sizes) - sizes)[h]
        shape = (len(updated), sizes.max())
        rows = np.zeros(shape, np.intp)
        rows[h, place] = j

        def padded(values: np.ndarray) -> np.ndarray:
            result = np.zeros(shape, k.dtype)
            result[h, place] = values[h, j]
            return result

        before, after = ([padded(values) for values in pair] for pair in (old, new))
        kv = (np.arange(len(updated)) // (len(updated) // len(k)))[:, None]
        if self._pairs:
            # Rounding is symmetric: the term of -a is exactly minus the term of a.
            rows = np.concatenate([rows, rows], axis=1)
            a, b = (np.concatenate([-x, y], axis=1) for x, y in zip(before, after, strict=True))
        else:
            a, b = (y - x for x, y in zip(before, after, strict=True))
        self._add(a, b, k[kv, rows], v[kv, rows])

    def rebuild(self, a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Set all caches to the sum of all terms; arguments as in ``definition``."""
        for name in self.NAMES:
            getattr(self, name)[...] = 0
        group = len(a) // len(k)
        self._add(a, b, np.repeat(k, group, axis=0), np.repeat(v, group, axis=0))

    def _add(self, a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Add terms: ``a``, ``b`` [query heads, rows], ``k``, ``v`` [query heads, rows, d]."""
        parts: Iterable[dict[str, np.ndarray]]
        if self._rounds:
            a, b = to_fp16(a), to_fp16(b)
            parts = (_rounded_term(*(x[:, row] for x in (a, b, k, v))) for row in range(a.shape[1]))
        else:
            parts = (_sums(a, b, k, v),)
        for part in parts:
            for cache, term in part.items():
                getattr(self, cache)[...] += term
        if self._half:
            for name in self.NAMES:
                cache = getattr(self, name)
                cache[...] = to_fp16(cache)


def to_fp16(x: np.ndarray) -> np.ndarray:
    """Rounded to FP16, to nearest and even, in the type of ``x``."""
    return x.astype(np.float16).astype(x.dtype)


def definition(a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Eq. 5: the caches summed from scratch.

    ``a``, ``b`` [query heads, positions] are the coefficients of each position's mode; ``k``, ``v``
    are [kv heads, positions, d].
    """
    group = len(a) // len(k)
    return _sums(a, b, np.repeat(k, group, axis=0), np.repeat(v, group, axis=0))


def _sums(a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Sums over rows: ``a``, ``b`` [heads, rows], ``k``, ``v`` [heads, rows, d]."""
    weighted = a[..., None] * k
    return {
        "A": weighted.transpose(0, 2, 1) @ v,
        "B": (a[:, None] @ v)[:, 0],
        "C": (b[:, None] @ v)[:, 0],
        "D": weighted.sum(axis=1),
        "E": a.sum(axis=1),
        "F": b.sum(axis=1),
    }


def _rounded_term(
    a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray
) -> dict[str, np.ndarray]:
    """A term of each head, products rounded: ``a``, ``b`` [heads], ``k``, ``v`` [heads, d]."""
    a_v = to_fp16(a[:, None] * v)
    return {
        "A": to_fp16(k[:, :, None] * a_v[:, None]),
        "B": a_v,
        "C": to_fp16(b[:, None] * v),
        "D": to_fp16(a[:, None] * k),
        "E": a,
        "F": b,
    }
