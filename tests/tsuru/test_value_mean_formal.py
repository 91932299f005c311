"""Beats of the mean of rows keep the rules of streams; unbounded proof."""

from hw.tsuru.value_mean import ValueMean, ValueMeanParameters
from sim.checks.formal.specs import StreamRulesSpec
from tests.support.formal import prove_block


def test_stream_rules():
    """By induction; a search for a stalled beat, 37 cycles deep in FP32, takes minutes."""
    p = ValueMeanParameters(d=1, lanes=1, capacity=1)
    prove_block(StreamRulesSpec(ValueMean(p), ["o"], ["i"]), "tsuru_value_mean_rules", depth=2)
