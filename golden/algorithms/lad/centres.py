"""Directional centres among the keys (LAD, section III-D and Algorithm 1)."""

import numpy as np

from golden.algorithms.lad.position_tables import PositionTables

_BLOCK = 256


class Centres:
    """Which keys of each kv head are centres, and every other key relative to its centre.

    Tables over [kv heads, positions]: ``cid``, the position of the key's centre (its own when it is
    one), ``norm``, the key's length, and ``dnorm``, its length relative to its centre's (negative
    when it points the other way), so that ``k ~ dnorm * K[cid]``.
    """

    def __init__(self, collinear: float) -> None:
        if not 0 <= collinear <= 1:
            raise ValueError(f"collinear must lie between 0 and 1, not {collinear}")
        self._collinear = collinear
        self._tables: PositionTables | None = None

    @property
    def _columns(self) -> PositionTables:
        assert self._tables is not None, "no key has been added"
        return self._tables

    @property
    def cid(self) -> np.ndarray:
        return self._columns["cid"]

    @property
    def norm(self) -> np.ndarray:
        return self._columns["norm"]

    @property
    def dnorm(self) -> np.ndarray:
        return self._columns["dnorm"]

    @property
    def is_centre(self) -> np.ndarray:
        """C as a mask: [kv heads, positions]."""
        return self._columns["is_centre"]

    def add(self, keys: np.ndarray, number: int = 1) -> None:
        """Algorithm 1 for the last ``number`` of ``keys`` [kv heads, positions, d].

        A new key joins the centre with the largest abs(cos), the oldest of equals, if that
        exceeds ``collinear``; otherwise it becomes a centre. A key of length zero has cos 0 with
        every other.
        """
        if self._tables is None:
            self._tables = PositionTables(
                len(keys), cid=np.int64, norm=keys.dtype, dnorm=keys.dtype, is_centre=bool
            )
        self._tables.append(number)
        first = keys.shape[1] - number
        self.norm[:, first:] = np.sqrt(np.square(keys[:, first:]).sum(axis=-1))
        self.cid[:, first:] = np.arange(first, keys.shape[1])
        self.dnorm[:, first:], self.is_centre[:, first:] = 1, True
        if number == 1:
            self._join(keys, first, slice(None))
            return
        near = np.stack([self._near_another(keys[head], head, first) for head in range(len(keys))])
        for new in np.flatnonzero(near.any(axis=0)).tolist():
            for head in np.flatnonzero(near[:, new]).tolist():
                self._join(keys, first + new, slice(head, head + 1))

    def _near_another(self, keys: np.ndarray, head: int, first: int) -> np.ndarray:
        """Which of a head's ``keys`` [positions, d] from ``first`` on may join a centre.

        Its cosines with all earlier keys come from one product of matrices, which rounds otherwise
        than the one that decides.
        """
        slack = 8 * (keys.shape[1] + 8) * np.finfo(keys.dtype).eps
        least, norm, found = self._collinear - slack, self.norm[head], []
        for start in range(first, len(keys), _BLOCK):
            end = min(start + _BLOCK, len(keys))
            dots = np.abs(keys[start:end] @ keys[:end].T)
            near = dots > least * (norm[start:end, None] * norm[:end])
            near[:, start:] &= np.tri(end - start, k=-1, dtype=bool)
            found.append(near.any(axis=1))
        return np.concatenate(found)

    def _join(self, keys: np.ndarray, new: int, heads: slice) -> None:
        """Let key ``new`` of some kv heads join a centre, if one is near enough."""
        if new == 0:
            return
        norms, norm = self.norm[heads, :new], self.norm[heads, new]
        dots = (keys[heads, :new] @ keys[heads, new, :, None])[..., 0]
        lengths = norms * norm[:, None]
        candidates = self.is_centre[heads, :new] & (lengths > 0)
        cos = np.divide(dots, lengths, out=np.zeros_like(dots), where=candidates)
        best = np.abs(cos).argmax(axis=1)
        of = np.arange(len(best))
        max_cos = cos[of, best]
        joins = np.abs(max_cos) > self._collinear
        of, best = of[joins], best[joins]
        self.cid[heads, new][of] = best
        self.dnorm[heads, new][of] = np.sign(max_cos[joins]) * norm[of] / norms[of, best]
        self.is_centre[heads, new][of] = False
