"""Directional centres among the keys (LAD, section III-D and Algorithm 1)."""

import numpy as np

from golden.algorithms.lad.position_tables import PositionTables


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

    def add(self, keys: np.ndarray) -> None:
        """Algorithm 1 for the last of ``keys`` [kv heads, positions, d].

        The new key joins the centre with the largest abs(cos), the oldest of equals, if that
        exceeds ``collinear``; otherwise it becomes a centre. A key of length zero has cos 0 with
        every other.
        """
        kv_heads, new, heads = len(keys), keys.shape[1] - 1, np.arange(len(keys))
        if self._tables is None:
            self._tables = PositionTables(
                kv_heads, cid=np.int64, norm=keys.dtype, dnorm=keys.dtype, is_centre=bool
            )
        self._tables.append()
        norm = np.sqrt(np.square(keys[:, new]).sum(axis=-1))
        self.norm[:, new] = norm
        self.cid[:, new], self.dnorm[:, new], self.is_centre[:, new] = new, 1, True
        if new == 0:
            return
        dots = (keys[:, :new] @ keys[:, new, :, None])[..., 0]
        lengths = self.norm[:, :new] * norm[:, None]
        candidates = self.is_centre[:, :new] & (lengths > 0)
        cos = np.divide(dots, lengths, out=np.zeros_like(dots), where=candidates)
        best = np.abs(cos).argmax(axis=1)
        max_cos = cos[heads, best]
        joins = np.abs(max_cos) > self._collinear
        h, best = heads[joins], best[joins]
        self.cid[h, new] = best
        self.dnorm[h, new] = np.sign(max_cos[joins]) * norm[h] / self.norm[h, best]
        self.is_centre[h, new] = False
