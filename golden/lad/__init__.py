"""Golden models of LAD."""

from golden.lad.attention import LocalityAwareAttention
from golden.lad.drift import Drift, measure_drift
from golden.lad.piecewise_exp import (
    EIGHT_BOUNDS,
    PAPER_BOUNDS,
    THIRTEEN_BOUNDS,
    PiecewiseExp,
    piecewise_softmax_attention,
)
from golden.lad.statistics import Statistics

__all__ = [
    "EIGHT_BOUNDS",
    "PAPER_BOUNDS",
    "THIRTEEN_BOUNDS",
    "Drift",
    "LocalityAwareAttention",
    "PiecewiseExp",
    "Statistics",
    "measure_drift",
    "piecewise_softmax_attention",
]
