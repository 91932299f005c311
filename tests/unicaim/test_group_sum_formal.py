"""Sums over a group keep the rules of streams; unbounded proof."""

from hw.unicaim.group_sum import GroupSum, GroupSumParameters
from tests.support.formal import prove_stream_rules


def test_stream_rules():
    dut = GroupSum(GroupSumParameters(rows=2, score_bits=2, group=3))
    prove_stream_rules(dut, "group_sum", "o", ["i"])
