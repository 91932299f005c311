"""The scoreboard in several sizes, and the slots of its bit-exact model."""

import pytest

from golden.topick.scoreboard import Scoreboard
from hw.catalogue import find
from hw.topick.scoreboard import ScoreboardParameters
from sim.testbenches.topick.scoreboard import testbench
from tests.support.topick.simulated_stimulus import check

BLOCK = find("topick.scoreboard")


def test_slots_are_reused_in_order_of_return():
    board = Scoreboard(3)
    assert [board.take() for _ in range(3)] == [0, 1, 2] and board.free == 0
    for slot in (2, 0):
        board.free_slot(slot)
    board.park(1, "entry")
    assert [board.take(), board.take()] == [2, 0] and board.read(1) == "entry"
    board.free_slot(1)
    assert board.take() == 1


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("entries", [2, 3, 7])
def test_every_size(entries, stall):
    parameters = ScoreboardParameters(entries, score_bits=9, shift_bits=4, precision=2)
    check(BLOCK, parameters, testbench.stimulus(parameters, None, 40, seed=entries), stall)
