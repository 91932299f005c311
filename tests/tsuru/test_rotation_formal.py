"""Beats of the rotation keep the rules of streams; unbounded proof."""

from hw.tsuru.rotation import Rotation, RotationParameters
from tests.support.formal import prove_stream_rules


def test_stream_rules():
    p = RotationParameters(d=2, lanes=1)
    prove_stream_rules(Rotation(p), "tsuru_rotation", "o", ["i"])
