"""Boards: what does not fit is named, platforms agree with the table."""

from dataclasses import replace

import pytest

from hw.boards.fpga_top import FpgaTop
from hw.boards.platforms import BOARDS, shortage


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_clock_is_the_oscillators(board):
    assert board.platform().default_clk_frequency == board.clock_mhz * 1e6


@pytest.mark.parametrize("field", ["lut4", "flipflops", "dsp", "bram"])
def test_one_more_than_the_device_has_does_not_fit(field):
    board = BOARDS["ulx3s_85f"]
    assert shortage(board.resources, board) is None
    room = getattr(board.resources, field)
    message = shortage(replace(board.resources, **{field: room + 1}), board)
    assert f"needs {room + 1} " in message and f"ulx3s_85f has {room}" in message


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_top_gets_the_boards_pins(board):
    verilog = "module loop(input clk, rst, rx, output tx, running, error);\nendmodule\n"
    plan = board.platform().build(FpgaTop("loop", verilog), do_build=False)
    assert any("loop" in str(text) for text in plan.files.values())
