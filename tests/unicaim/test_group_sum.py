"""Sums over a group: odd sizes, the extreme sums, refused parameters."""

import numpy as np
import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.group_sum import GroupSumParameters
from sim.testbenches.unicaim.group_sum import stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.group_sum")
ODD = GroupSumParameters(rows=5, score_bits=3, group=7)


@pytest.fixture(scope="module")
def compiled():
    return Compiled(BLOCK, ODD)


def test_an_odd_size_under_stalls(compiled, shipped_trace):
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(ODD, trace, 150, seed=5))


def test_the_extreme_sums_fit(compiled):
    """A full group of the lowest score and one of the highest, then a single query."""
    lowest, highest = np.full((7, 5), -4), np.full((7, 5), 3)
    stimulus = stimulus_of(ODD, [lowest, highest, lowest[:1], highest, lowest])
    assert ODD.sum_bits == 6 and 7 * -4 >= -(1 << 5)
    assert stimulus.cycles == 4 * 7 + 1 + 5
    compiled.check(stimulus)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 255, 256])
def test_sums_need_no_more_bits(group):
    p = GroupSumParameters(score_bits=2, group=group)
    assert -(1 << p.sum_bits - 1) <= -2 * group
    assert p.sum_bits == 2 or -(1 << p.sum_bits - 2) > -2 * group


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 1}, "rows must be at least 2, not 1"),
        ({"score_bits": 1}, "score_bits must be between 2 and 24, not 1"),
        ({"score_bits": 25}, "score_bits must be between 2 and 24, not 25"),
        ({"group": 0}, "group must be between 1 and 256, not 0"),
        ({"group": 257}, "group must be between 1 and 256, not 257"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        GroupSumParameters(**settings)
