"""Beats of the level converter keep the rules of streams; unbounded proof."""

import pytest

from hw.unicaim.level_converter import LevelConverter, LevelConverterParameters
from tests.support.formal import prove_stream_rules


@pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "plain"])
def test_stream_rules(rotate):
    p = LevelConverterParameters(rows=2, d=2, key_bits=2, query_bits=2, contexts=2, rotate=rotate)
    prove_stream_rules(LevelConverter(p), f"level_converter_{rotate}", "o", ["i"])
