"""Beats of the mean of rows keep the rules of streams; unbounded proof."""

from hw.tsuru.value_mean import ValueMean, ValueMeanParameters
from tests.support.formal import prove_stream_rules


def test_stream_rules():
    p = ValueMeanParameters(d=1, lanes=1, capacity=1)
    prove_stream_rules(ValueMean(p), "tsuru_value_mean", "o", ["i"], cover=42)
