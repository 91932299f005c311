"""Intervals of a real trace's scores, and the error of LAD's softmax on them (II-B, III-F)."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from golden.algorithms.lad.piecewise_exp import PiecewiseExp
from golden.arith.float_add import float_add
from golden.arith.float_multiply import float_multiply
from golden.lad.tables import line_tables
from golden.studies.study import Claim, Verdict
from golden.trace import Trace

ROWS = 32
"""Rows of scores of a head, the longest ones, on which softmax is computed."""
WINDOW = 16
"""Newest positions, whose history is too short for a mode."""
ERROR = 1e-6
"""Mean squared error of the softmax's results that the paper states (III-F)."""
WAYS = {"float": "float64", "bits": "the tile's FP16", "table": "a table of as many words"}
"""Exponentials by their name in the data."""


def differences(trace: Trace) -> Iterator[np.ndarray]:
    """Scores less their row's maximum, float64 [token, position], of each layer and query head.

    Positions behind the token are -inf.
    """
    q, k, _, scale = trace.attention
    behind = ~np.tri(q.shape[2], dtype=bool)
    for layer in range(len(q)):
        for head in range(q.shape[1]):
            keys = k[layer, head // trace.group].astype(np.float64)
            scores = q[layer, head].astype(np.float64) @ keys.T * scale
            scores[behind] = -np.inf
            yield scores - scores.max(axis=1, keepdims=True)


def tile_exp(x: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    """The line at x in the tile's arithmetic: FP16 table, difference, product and sum."""
    tables, half = line_tables(tuple(bounds), 0), x.astype(np.float16)
    interval = (half[..., None] > tables.bounds).sum(axis=-1)
    finite = np.where(interval > 0, half, np.float16(0))  # interval 0 has a = b = 0
    return float_add(float_multiply(tables.a[interval], finite), tables.b[interval])


def table_exp(x: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    """A table's word at x: the mean of exp in equal steps between the first bound and 0.

    It has two words for each interval, as many as the lines have coefficients; 0 below it.
    """
    words = 2 * (len(bounds) + 1)
    ends = np.linspace(bounds[0], 0, words + 1)
    means = np.diff(np.exp(ends)) / np.diff(ends)
    step = np.clip(np.ceil((np.maximum(x, bounds[0]) - bounds[0]) / np.diff(ends)[0]), 1, words)
    return np.where(x > bounds[0], means[step.astype(int) - 1], 0.0)


def softmax_errors(x: np.ndarray, bounds: Sequence[float]) -> dict[str, float]:
    """Mean squared error of the probabilities of rows x, by way, over the positions in view."""
    exact = _normal(np.exp(x))
    view = np.isfinite(x)
    lines = PiecewiseExp(bounds)
    weights = {
        "float": np.where(view, lines(np.where(view, x, bounds[0] - 1)), 0.0),
        "bits": tile_exp(x, bounds).astype(np.float64),
        "table": table_exp(x, bounds),
    }
    return {way: float(((_normal(w) - exact)[view] ** 2).mean()) for way, w in weights.items()}


def _normal(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=1, keepdims=True)


def neighbours(x: np.ndarray, bounds: Sequence[float]) -> float:
    """Share of the positions whose second likeliest interval is next to their likeliest one.

    Of those that were in more than one interval, without the newest ones; NaN of none.
    """
    lines = PiecewiseExp(bounds)
    interval, view = lines.interval(np.where(np.isfinite(x), x, bounds[0] - 1)), np.isfinite(x)
    counts = np.stack([((interval == i) & view).sum(axis=0) for i in range(len(lines))], axis=-1)
    counts = counts[: max(len(x) - WINDOW, 0)]
    order = np.argsort(counts, axis=-1, kind="stable")[:, -2:]
    both = np.take_along_axis(counts, order, axis=-1).min(axis=-1) > 0
    beside = np.abs(np.diff(order, axis=-1))[:, 0] == 1
    return float(beside[both].mean()) if both.any() else np.nan


def measure(trace: Trace, bounds: Mapping[int, Sequence[float]]) -> dict:
    """Figures for JSON: of each number of intervals, the mean over heads.

    ``uniform`` is the mean squared error of probabilities that are all equal.
    """
    heads = list(differences(trace))
    rows = [x[-ROWS:] for x in heads]
    view = [np.isfinite(x) for x in rows]
    equal = [
        ((_normal(np.exp(x)) - 1 / v.sum(axis=1, keepdims=True))[v] ** 2).mean()
        for x, v in zip(rows, view, strict=True)
    ]
    found = {}
    for number, inner in bounds.items():
        errors = [softmax_errors(x, inner) for x in rows]
        found[str(number)] = {way: float(np.mean([e[way] for e in errors])) for way in WAYS} | {
            "neighbours": float(np.nanmean([neighbours(x, inner) for x in heads]))
        }
    return {
        "tokens": len(heads[0]),
        "heads": len(heads),
        "uniform": float(np.mean(equal)),
        "intervals": found,
    }


def claims(measured: Mapping) -> list[Claim]:
    """Claims on the measured trace."""
    found = measured["intervals"]
    n = measured["tokens"]
    of = f"of {measured['heads']} heads of SmolLM2's trace, {n - ROWS + 1} to {n} positions"

    def told(*ways: str) -> str:
        return "; ".join(
            f"{number} intervals: " + ", ".join(f"{one[way]:.1e} with {WAYS[way]}" for way in ways)
            for number, one in found.items()
        )

    return [
        Claim(
            "the piecewise linear exp adds less than 1e-6 of mean squared error to the softmax"
            " (III-F)",
            told("float", "bits"),
            Verdict.of(*(one[way] < ERROR for one in found.values() for way in ("float", "bits"))),
            f"{of}, without any wrong interval. The measure falls as the context grows: equal"
            f" weights for all positions err by {measured['uniform']:.0e}. The paper does not say"
            " how many intervals it has",
        ),
        Claim(
            "the piecewise linear exp errs no more than a look-up table (III-F)",
            told("float", "table"),
            Verdict.of(*(one["float"] <= one["table"] for one in found.values())),
            "the table has a word for each coefficient, in equal steps over the same range, without"
            " interpolation; the paper names no table to compare with",
        ),
        Claim(
            "most positions' second likeliest interval is next to the likeliest one (II-B)",
            ", ".join(
                f"{one['neighbours']:.1%} with {number} intervals" for number, one in found.items()
            ),
            Verdict.of(*(one["neighbours"] > 0.5 for one in found.values())),
            f"most is more than half, of the positions that were in two intervals or more; {n}"
            f" steps, all but the newest {WINDOW} positions",
        ),
    ]
