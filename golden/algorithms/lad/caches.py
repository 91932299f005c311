"""The intermediate caches A to F (LAD, equations 4 to 6)."""

import numpy as np


class Caches:
    """A [query heads, d, d], B, C, D [query heads, d], E, F [query heads]; initially zero.

    With a* and b* a position's coefficients in its mode, sums over all positions:
    A = a* k^T v, B = a* v, C = b* v, D = a* k, E = a*, F = b*.

    The output is a small difference of large terms, qA - mB + C, so it needs them more accurate
    than itself. On a real model caches in FP16 drift by up to three per cent within 2000 steps,
    which costs several per cent of the output and 2.8 of perplexity; recomputed every 64 steps they
    stay within about half a per cent; in FP32 within 1e-5 without that
    (``golden.algorithms.lad.drift``).

    ``storage`` "float16" rounds all of them to FP16, to nearest and even, after every update, whose
    own sum is not rounded; "float32" keeps them in the type of the arithmetic.
    """

    NAMES = "ABCDEF"

    def __init__(self, heads: int, d: int, dtype: type, storage: str) -> None:
        self.A = np.zeros((heads, d, d), dtype)
        self.B, self.C, self.D = np.zeros((3, heads, d), dtype)
        self.E, self.F = np.zeros((2, heads), dtype)
        self._half = storage == "float16"

    def numerator(self, q: np.ndarray, m: np.ndarray) -> np.ndarray:
        """qA - mB + C for ``q`` [query heads, d] and ``m`` [query heads]; [query heads, d]."""
        return (q[:, None] @ self.A)[:, 0] - m[:, None] * self.B + self.C

    def denominator(self, q: np.ndarray, m: np.ndarray) -> np.ndarray:
        """qD - mE + F; [query heads]."""
        return (q * self.D).sum(axis=-1) - m * self.E + self.F

    def update(
        self,
        alpha: np.ndarray,
        beta: np.ndarray,
        updated: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
    ) -> None:
        """Eq. 6: add the terms of U, ``updated`` [query heads, positions] as a mask.

        ``alpha``, ``beta`` are [query heads, positions]; ``k``, ``v`` [kv heads, positions, d].
        """
        h, j = np.nonzero(updated)
        if len(h) == 0:
            return
        # U of each head side by side, the shorter ones padded with coefficients of zero.
        sizes = np.bincount(h, minlength=len(updated))
        place = np.arange(len(h)) - (np.cumsum(sizes) - sizes)[h]
        shape = (len(updated), sizes.max())
        a, b, rows = np.zeros(shape, k.dtype), np.zeros(shape, k.dtype), np.zeros(shape, np.intp)
        a[h, place], b[h, place], rows[h, place] = alpha[h, j], beta[h, j], j
        kv = (np.arange(len(updated)) // (len(updated) // len(k)))[:, None]
        for cache, term in _sums(a, b, k[kv, rows], v[kv, rows]).items():
            getattr(self, cache)[...] += term
        self._round()

    def rebuild(self, a: np.ndarray, b: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Set all caches to their definition; arguments as in ``definition``."""
        for cache, value in definition(a, b, k, v).items():
            getattr(self, cache)[...] = value
        self._round()

    def _round(self) -> None:
        if self._half:
            for name in self.NAMES:
                cache = getattr(self, name)
                cache[...] = cache.astype(np.float16)


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
