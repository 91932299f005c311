"""LAD's algorithm, in floating point."""

from golden.algorithms.lad.accepted_ranges import accepted_ranges
from golden.algorithms.lad.attention import LocalityAwareAttention
from golden.algorithms.lad.drift import Drift, measure_drift
from golden.algorithms.lad.piecewise_exp import (
    EIGHT_BOUNDS,
    PAPER_BOUNDS,
    THIRTEEN_BOUNDS,
    PiecewiseExp,
    piecewise_softmax_attention,
)
from golden.algorithms.lad.statistics import Statistics

__all__ = [
    "EIGHT_BOUNDS",
    "PAPER_BOUNDS",
    "THIRTEEN_BOUNDS",
    "Drift",
    "LocalityAwareAttention",
    "PiecewiseExp",
    "Statistics",
    "accepted_ranges",
    "measure_drift",
    "piecewise_softmax_attention",
]
