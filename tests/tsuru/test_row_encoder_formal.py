"""Beats of the row encoder keep the rules of streams; unbounded proof."""

from hw.tsuru.row_encoder import RowEncoder, RowEncoderParameters
from tests.support.formal import prove_stream_rules


def test_stream_rules():
    p = RowEncoderParameters(d=2, lanes=2)
    prove_stream_rules(RowEncoder(p), "tsuru_row_encoder", "o", ["i"])
