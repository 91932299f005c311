"""Finding the active positions: by centres (LAD, section III-D), by codes or by bounds.

All find the positions that have left their mode's accepted range, and the maximum m of all scores,
from different reads of K. ``ByCentres`` is the paper's. ``ByCodes`` (in ``codes``) is not in the
paper: it takes the scores from a copy of K of few bits. Nor is ``ByBounds``: it bounds every score
by the leading bits of the key, as ToPick does, and finds all active positions without exception.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from golden.algorithms.attention import grouped
from golden.algorithms.lad.centres import Centres
from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.position_tables import Column, PositionTables

CHUNKS = 3
"""Chunks of a key that identification may read one by one."""

CHUNK_BITS = 4

_BITS = 16


@dataclass(frozen=True)
class IdentificationResult:
    """Result of a step's identification, for n positions, ``old`` of them before the window.

    ``m`` [query heads]; ``active`` bool [query heads, old]; ``k_rows`` bool [kv heads, n], keys
    read completely; ``chunks`` [kv heads, old], chunks of four bits an element that were read of a
    key. ``large``: |M|, summed over query heads. ``codes``: low-precision copies of keys that were
    read, whether the key itself was read or not. ``alone`` is the result if every query head read
    for itself, with a row of ``k_rows`` and ``chunks`` for each of them; it has no ``alone``.
    """

    m: np.ndarray
    active: np.ndarray
    k_rows: np.ndarray
    chunks: np.ndarray
    large: int = 0
    codes: int = 0
    alone: "IdentificationResult | None" = None


def reading_whole_keys(
    m: np.ndarray, active: np.ndarray, keys: np.ndarray, kv_heads: int, large: int, codes: int = 0
) -> IdentificationResult:
    """The result of query heads that read no chunks, but the ``keys`` bool [query heads, n].

    ``codes`` low-precision copies are read for each kv head, or query head alone.
    """

    def read_by(readers: int, alone: IdentificationResult | None = None) -> IdentificationResult:
        k_rows = np.any(grouped(keys, readers), axis=1)
        chunks = np.zeros((readers, active.shape[1]), np.uint8)
        return IdentificationResult(m, active, k_rows, chunks, large, readers * codes, alone)

    return read_by(kv_heads, read_by(len(keys)))


class Identification(ABC):
    """Identification of one layer.

    ``g_words`` are words of G for each position and kv head, ``code_bits`` the width of an element
    in a low-precision copy of K (0 without such a copy).
    """

    g_words: int
    code_bits: int = 0

    @abstractmethod
    def add(self, keys: np.ndarray, number: int = 1) -> None:
        """New keys: the last ``number`` of ``keys`` [kv heads, positions, d]."""

    @abstractmethod
    def find(
        self, q: np.ndarray, exact: np.ndarray, modes: Modes, old: int
    ) -> IdentificationResult:
        """Active positions for ``q`` [query heads, d], already scaled.

        ``exact`` [query heads, positions] holds all scores; only scores of keys that the result
        lists as read are used. The window starts at position ``old``.
        """


class ByCentres(Identification):
    """The paper's: scores of the centres, scaled, replace the scores of all keys (EAS, APID).

    Exact are the scores of the window and of M, the positions whose mode's interval has its lower
    bound at ``near`` or above. Reads the keys of C, M and the window, each once.
    """

    g_words = 3  # norm, dnorm, cid

    def __init__(self, collinear: float, near: float) -> None:
        self.centres = Centres(collinear)
        self._near = near

    def add(self, keys: np.ndarray, number: int = 1) -> None:
        self.centres.add(keys, number)

    def find(
        self, q: np.ndarray, exact: np.ndarray, modes: Modes, old: int
    ) -> IdentificationResult:
        cid, dnorm, is_centre = self.centres.cid, self.centres.dnorm, self.centres.is_centre
        by_kv = grouped(exact, len(cid))
        s = np.take_along_axis(by_kv, cid[:, None], axis=2) * dnorm[:, None]
        s = s.reshape(exact.shape)
        read = modes.large(self._near)  # M
        read[:, old:] = True  # and the window
        np.copyto(s, exact, where=read)
        m = s.max(axis=1)
        active = modes.outside(s[:, :old] - m[:, None])
        large = int(np.count_nonzero(read[:, :old]))
        read |= np.repeat(is_centre, len(read) // len(cid), axis=0)
        return reading_whole_keys(m, active, read, len(cid), large)


class ByBounds(Identification):
    """Chunks of four bits of every key bound its score, until the bound is enough.

    A key's elements are kept in 16-bit two's complement with one unit for the key, an FP16 number,
    in planes of four bits, most significant first; a key read completely has the bytes of an FP16
    key, and a plane a quarter of them. (Of ToPick's 12-bit keys it is a third, and their one scale
    for all keys may saturate, which would void the bounds. Rounding to 16 bits itself is not
    modelled, as rounding to FP16 is not elsewhere.) With the first b planes known, an element is in
    [low, low + 2^(16 - 4b)] units, so the score is in ``q . low + 2^(16 - 4b) [sum of q's
    negatives, sum of q's positives]`` units, widened by what floating-point arithmetic may round.

    First the maximum: every key's first chunk is read; those whose upper bound exceeds the greatest
    lower bound have their next chunk read, and at last the whole key; so m is exact. Then the
    modes: a position is inactive if its bound is inside its mode's interval; where the bound
    holds a border of the interval, the next chunk is read; a position that is undecided after
    the third one is active. A chunk read for one query head serves the group, so the same search
    is made once more for query heads alone.
    """

    g_words = 1  # the unit

    def __init__(self) -> None:
        self._tables: PositionTables | None = None

    def add(self, keys: np.ndarray, number: int = 1) -> None:
        kv_heads, _, d = keys.shape
        if self._tables is None:
            low = [f"low{chunks}" for chunks in range(1, CHUNKS + 1)]
            columns: dict[str, Column] = dict.fromkeys(low, (keys.dtype, d))
            self._tables = PositionTables(kv_heads, unit=keys.dtype, **columns)
        self._tables.append(number)
        key = keys[:, -number:]
        largest = np.abs(key).max(axis=2) / 2 ** (_BITS - 1)
        unit = largest.astype(np.float16)
        # Rounded up, so that the largest element fits; never zero.
        unit = np.where(unit < largest, np.nextafter(unit, np.float16(np.inf)), unit)
        unit = np.maximum(unit, np.finfo(np.float16).smallest_subnormal).astype(keys.dtype)
        self._keys["unit"][:, -number:] = unit
        code = np.minimum(np.floor(key / unit[..., None]), 2 ** (_BITS - 1) - 1)
        for chunks in range(1, CHUNKS + 1):
            rest = 2 ** (_BITS - CHUNK_BITS * chunks)
            self._keys[f"low{chunks}"][:, -number:] = np.floor(code / rest) * rest

    @property
    def _keys(self) -> PositionTables:
        assert self._tables is not None, "no key has been added"
        return self._tables

    def bounds(self, q: np.ndarray, chunks: int, old: int) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest score that the first ``chunks`` allow: [query heads, old] twice."""
        low, unit = self._keys[f"low{chunks}"][:, :old], self._keys["unit"][:, None, :old]
        by_kv = grouped(q, len(low))
        base = by_kv @ low.transpose(0, 2, 1)
        rest = 2 ** (_BITS - CHUNK_BITS * chunks)
        negative = np.minimum(by_kv, 0).sum(axis=-1, keepdims=True)
        positive = np.maximum(by_kv, 0).sum(axis=-1, keepdims=True)
        # d + a few roundings, each relative to a sum of |q| |k| at most, here and in the score.
        rounding = 2 * (q.shape[1] + 8) * np.finfo(q.dtype).eps * 2 ** (_BITS - 1)
        slack = rounding * (positive - negative)
        least = (base + (rest * negative - slack)) * unit
        greatest = (base + (rest * positive + slack)) * unit
        return least.reshape(len(q), old), greatest.reshape(len(q), old)

    def find(
        self, q: np.ndarray, exact: np.ndarray, modes: Modes, old: int
    ) -> IdentificationResult:
        kv_heads = len(self._keys["unit"])
        planes = [self.bounds(q, chunks, old) for chunks in range(1, CHUNKS + 1)] if old else []
        alone = self._search(exact, modes, planes, len(q))
        shared = alone if kv_heads == len(q) else self._search(exact, modes, planes, kv_heads)
        return dataclasses.replace(shared, alone=alone)

    @staticmethod
    def _search(
        exact: np.ndarray,
        modes: Modes,
        planes: list[tuple[np.ndarray, np.ndarray]],
        readers: int,
    ) -> IdentificationResult:
        """``find`` where each of the ``readers``, kv heads or query heads, reads for itself.

        ``planes`` are the bounds after each chunk, none without positions before the window.
        """
        heads, n = exact.shape
        old = planes[0][0].shape[1] if planes else 0
        group = heads // readers
        k_rows = np.zeros((readers, n), bool)
        k_rows[:, old:] = True
        m = exact[:, old:].max(axis=1)
        if old == 0:
            none = np.zeros((heads, 0), bool)
            return IdentificationResult(m, none, k_rows, np.zeros((readers, 0), np.uint8))
        least, greatest = (bound.copy() for bound in planes[0])
        chunks = np.ones((readers, old), np.uint8)

        def refine(wanted: np.ndarray, step: int) -> None:
            """Read chunk ``step`` + 1 of the keys wanted [query heads, old] that lack it."""
            reads = grouped(wanted, readers).any(axis=1) & (chunks == step)
            chunks[reads] += 1
            known = np.repeat(reads, group, axis=0)
            np.copyto(least, planes[step][0], where=known)
            np.copyto(greatest, planes[step][1], where=known)

        for step in range(1, CHUNKS + 1):
            reached = np.maximum(m, least.max(axis=1))
            candidates = greatest > reached[:, None]
            if step < CHUNKS:
                refine(candidates, step)
        k_rows[:, :old] = grouped(candidates, readers).any(axis=1)
        known = np.repeat(k_rows[:, :old], group, axis=0)
        np.copyto(least, exact[:, :old], where=known)
        np.copyto(greatest, exact[:, :old], where=known)
        m = np.maximum(m, least.max(axis=1))

        for step in range(1, CHUNKS + 1):
            low, high = least - m[:, None], greatest - m[:, None]
            inside = ~modes.outside(low) & ~modes.outside(high)
            if step < CHUNKS:
                certain = (high <= modes.lower[:, :old]) | (low > modes.upper[:, :old])
                refine(~inside & ~certain & ~known, step)
        return IdentificationResult(m, ~inside, k_rows, chunks)
