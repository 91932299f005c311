"""The array's rows as levels of cells: what is written, and what its sense lines show.

The paper writes keys as they are. Two steps of this project's own come before the levels, and
change neither a softmax nor an order of exact scores:

- Centring takes the prompt's mean key of the kv head off every key. That takes q . mean, the same
  for all rows, off every score, and leaves the levels to what tells the rows apart.
- Rotation (``golden.unicaim.rotation``) multiplies keys and queries by one orthogonal matrix, which
  spreads the few large elements of a key over all cells.

Both are done where levels are made, outside the array, so its rows and its search do not change.

A third answers the spread of the devices. A row adds the same sum of half of all its devices'
errors to every score, whatever the query (``golden.algorithms.unicaim.spread``), and a query of
zeros shows this sum alone. Calibration converts it once after each write and takes the code off the
row's scores from then on. What is left is the conversion's rounding and the errors that depend on
the query, and it knows nothing of detectors and capacitances, which have no part in a current.
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

CALIBRATE = ("none", "codes", "lines")


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
    calibrate
        What a row's own error, measured after each write, is taken off: ``none``; ``codes``, its
        converted scores; ``lines``, all of its scores, as if its detector were trimmed by it.
    converter_bits
        Resolution of the converters, 0 for none.
    """

    key_bits: int = 3
    query_bits: int = 3
    rotate: bool = True
    centre: bool = True
    span: float | None = None
    spread_mv: float = 0.0
    seed: int = 0
    calibrate: str = "none"
    converter_bits: int = 0

    def __post_init__(self) -> None:
        if self.calibrate not in CALIBRATE:
            known = ", ".join(CALIBRATE)
            raise ValueError(f"calibrate must be one of {known}, not {self.calibrate}")
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
        self._row_error *= query_limit(options.query_bits)
        # A row's own error does not depend on its key here, so one measurement is as good as one
        # after each write.
        self._measured = self._codes(self._row_error, d)

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
        error = self._row_error[:, :rows]
        if self._options.calibrate == "lines":
            error = error - self._measured[:, :rows]
        shown = attention_scores(levels, self._cells[:, :rows], 1.0)
        return shown + np.repeat(error, len(q) // len(error), axis=0)

    def converted(self, q: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Inner products of queries and centred keys by ``scores`` [heads, rows], rotated or not.

        A score counts one key step times one query step.
        """
        options = self._options
        scores = self._codes(scores, q.shape[-1])
        if options.calibrate == "codes":
            measured = self._measured[:, : scores.shape[1]]
            scores = scores - np.repeat(measured, len(q) // len(measured), axis=0)
        steps = np.repeat(self._step, len(q) // len(self._step))
        return scores * (steps * query_step(self._rotated(q), options.query_bits))[:, None]

    def _codes(self, scores: np.ndarray, d: int) -> np.ndarray:
        """Scores of rows of `d` cells as their converters show them, in scores."""
        options = self._options
        if not options.converter_bits:
            return scores
        limit = score_limit(d, options.key_bits, options.query_bits)
        codes, unit = converter_codes(scores, limit, options.converter_bits)
        return (codes * unit).astype(scores.dtype)

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        return x if self._turn is None else x @ self._turn
