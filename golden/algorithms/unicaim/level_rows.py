"""The array's rows as levels of cells: what is written, and what its sense lines show.

The paper writes keys as they are. Two steps of this project's own come before the levels, and
change neither a softmax nor an order of exact scores:

- Centring takes the prompt's mean key of the kv head off every key. That takes q . mean, the same
  for all rows, off every score, and leaves the levels to what tells the rows apart.
- Rotation (``golden.unicaim.rotation``) multiplies keys and queries by one orthogonal matrix, which
  spreads the few large elements of a key over all cells.

Both are done where levels are made, outside the array, so its rows and its search do not change.
"""

import dataclasses

import numpy as np

from golden.algorithms.attention import attention_scores
from golden.algorithms.unicaim.spread import device_errors, spread_in_levels
from golden.unicaim.cells import (
    KEY_SPAN,
    converter_codes,
    key_levels,
    key_step,
    query_levels,
    query_limit,
    query_step,
    rotated_key_span,
    score_limit,
)
from golden.unicaim.rotation import rotated


@dataclasses.dataclass(frozen=True)
class LevelOptions:
    """How keys and queries meet the cells; ``ValueError`` for values that make no sense.

    key_bits, query_bits
        As in ``golden.unicaim.cells``.
    rotate, centre
        Whether keys and queries are rotated, and the keys centred.
    span
        Value of the highest level in root mean squares of the keys, centred if ``centre``.
    spread_mv
        Standard deviation of the devices' threshold voltages in mV, as in
        ``golden.algorithms.unicaim.spread``.
    seed
        Seed of the rotation's signs and of the devices.
    """

    key_bits: int = 3
    query_bits: int = 3
    rotate: bool = True
    centre: bool = True
    span: float | None = None
    spread_mv: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.span is not None and not 0 < self.span < np.inf:
            raise ValueError(f"span must be above 0 and finite, not {self.span:g}")
        if not 0 <= self.spread_mv < np.inf:
            raise ValueError(f"spread_mv must be at least 0 and finite, not {self.spread_mv:g}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")

    @property
    def used_span(self) -> float:
        """``span``, or the default for rotated keys or for keys as they are."""
        if self.span is not None:
            return self.span
        return rotated_key_span(self.key_bits) if self.rotate else KEY_SPAN


class LevelRows:
    """The rows of all kv heads' arrays of one layer, empty at first.

    The keys of the prompt, [kv heads, tokens, d], set mean key and key step for all rows to come.
    Every row's devices have their own errors, which remain when the row is overwritten.
    """

    def __init__(self, options: LevelOptions, prompt_keys: np.ndarray, rows: int) -> None:
        self._options = options
        kv_heads, _, d = prompt_keys.shape
        dtype = prompt_keys.dtype
        # A product with a matrix is faster here than a transform for each query.
        self._turn = rotated(np.eye(d, dtype=dtype), options.seed) if options.rotate else None
        mean = prompt_keys.mean(axis=1) if options.centre else np.zeros((kv_heads, d))
        self._mean = mean.astype(dtype)
        self._step = key_step(
            prompt_keys - self._mean[:, None], options.key_bits, options.used_span
        )
        spread = spread_in_levels(options.spread_mv / 1000, options.key_bits)
        rng = np.random.default_rng(options.seed)
        errors = device_errors((kv_heads, rows, d), spread, rng)
        self._key_error, self._row_error = (error.astype(dtype) for error in errors)
        self._cells = self._key_error.copy()

    def write(self, heads: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> None:
        """Write ``keys`` [kv heads, ..., d] into ``rows`` of ``heads``, both [kv heads, ...]."""
        mean = self._mean.reshape(len(keys), *[1] * (keys.ndim - 2), -1)
        levels = key_levels(self._rotated(keys - mean), self._step, self._options.key_bits)
        self._cells[heads, rows] = levels + self._key_error[heads, rows]

    def scores(self, q: np.ndarray, rows: int) -> np.ndarray:
        """What the first ``rows`` sense lines show for queries ``q`` [heads, d]: [heads, rows].

        In the unit of ``golden.unicaim.cells.row_scores``; whole numbers without spread.
        """
        bits = self._options.query_bits
        levels = query_levels(self._rotated(q), bits).astype(q.dtype)
        error = self._row_error[:, :rows] * query_limit(bits)
        shown = attention_scores(levels, self._cells[:, :rows], 1.0)
        return shown + np.repeat(error, len(q) // len(error), axis=0)

    def converted(self, q: np.ndarray, scores: np.ndarray, converter_bits: int) -> np.ndarray:
        """Inner products of queries and centred keys by ``scores`` [heads, rows], rotated or not.

        A score counts one key step times one query step. ``converter_bits`` is the resolution of
        the converters, 0 for scores as they are.
        """
        options = self._options
        if converter_bits:
            limit = score_limit(q.shape[-1], options.key_bits, options.query_bits)
            codes, unit = converter_codes(scores, limit, converter_bits)
            scores = (codes * unit).astype(scores.dtype)
        steps = np.repeat(self._step, len(q) // len(self._step))
        return scores * (steps * query_step(self._rotated(q), options.query_bits))[:, None]

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        return x if self._turn is None else x @ self._turn
