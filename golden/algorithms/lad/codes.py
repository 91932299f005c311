"""Finding the active positions by a copy of K in a few bits (not in the paper)."""

import numpy as np

from golden.algorithms.attention import grouped
from golden.algorithms.lad.identification import (
    Identification,
    IdentificationResult,
    reading_whole_keys,
)
from golden.algorithms.lad.modes import Modes
from golden.algorithms.lad.position_tables import PositionTables


class ByCodes(Identification):
    """Scores of codes replace the keys' scores, except in M and in the window.

    A key's codes are its elements in ``code_bits`` bits of two's complement, with one unit for the
    key, an FP16 number::

        peak = max |k|    L = 2^(code_bits - 1) - 1
        code = round(k L / peak)    unit = FP16(peak / L)    score = (q . code) unit

    With 6 bits (L = 31) the key (3.1, -1, 0.04) has the codes (31, -10, 0) and the unit 0.1. Only
    decisions use these scores: M, the window and active positions are computed with the key itself.

    Reads the codes of all positions before the window, and the keys of M and of the window. The
    codes are stored beside K, ``code_bits`` / 16 of its size.
    """

    g_words = 1  # the unit

    def __init__(self, code_bits: int, near: float) -> None:
        if not 2 <= code_bits <= 8:
            raise ValueError(f"code_bits must lie between 2 and 8, not {code_bits}")
        self.code_bits, self._near = code_bits, near
        self._tables: PositionTables | None = None

    def add(self, keys: np.ndarray, number: int = 1) -> None:
        kv_heads, _, d = keys.shape
        if self._tables is None:
            self._tables = PositionTables(kv_heads, unit=keys.dtype, code=(keys.dtype, d))
        self._tables.append(number)
        key, limit = keys[:, -number:], 2 ** (self.code_bits - 1) - 1
        peak = np.abs(key).max(axis=2)
        # A key of zeros has codes of zero.
        size = peak[..., None]
        share = np.divide(key, size, out=np.zeros_like(key), where=size > 0)
        self._tables["code"][:, -number:] = np.rint(share * limit)
        self._tables["unit"][:, -number:] = (peak / limit).astype(np.float16)

    def scores(self, q: np.ndarray, old: int) -> np.ndarray:
        """Scores of the first ``old`` positions by their codes: [query heads, old].

        They differ from the keys' by at most half a unit in each element and 2^-11 of themselves,
        as long as the unit is a normal FP16 number.
        """
        assert self._tables is not None, "no key has been added"
        code, unit = self._tables["code"][:, :old], self._tables["unit"][:, None, :old]
        by_kv = grouped(q, len(code)) @ code.transpose(0, 2, 1)
        return (by_kv * unit).reshape(len(q), old)

    def find(
        self, q: np.ndarray, exact: np.ndarray, modes: Modes, old: int
    ) -> IdentificationResult:
        assert self._tables is not None, "no key has been added"
        kv_heads = len(self._tables["unit"])
        read = modes.large(self._near)  # M
        read[:, old:] = True  # and the window
        s = exact.copy()
        np.copyto(s[:, :old], self.scores(q, old), where=~read[:, :old])
        m = s.max(axis=1)
        active = modes.outside(s[:, :old] - m[:, None])
        large = int(np.count_nonzero(read[:, :old]))
        return reading_whole_keys(m, active, read, kv_heads, large, old)
