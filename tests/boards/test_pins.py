"""Boards at their pins, in Verilator and Icarus: faults on the line and resets, made good."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cocotb_tools.runner import get_runner

from hw.boards.design import BoardParameters, board_design
from hw.catalogue import find
from sim.core import tools
from sim.drivers.board.desk import desk

CASES = 6
LINK = {"divisor": 5, "packet": 256, "stream_bytes": 256, "memory_rows": 64}
ARGUMENTS = {"icarus": ["-g2012"], "verilator": ["-Wno-fatal", "-Wno-lint", "-O3"]}
READER = ("stream.sequential_reader", 6, {"memory_rows": -1})
SDRAM = ("stream.sequential_reader", 6, {"memory": "sdram", "period": 40_000, "memory_rows": -1})
TOPICK = ("topick.topick_core", 3, {"memory_rows": 384})


@pytest.mark.parametrize(
    ("block", "vectors", "link", "simulator"),
    [
        (*READER, "icarus"),
        pytest.param(*READER, "verilator", marks=pytest.mark.campaign),
        pytest.param(*SDRAM, "icarus", marks=pytest.mark.campaign),
        pytest.param(*SDRAM, "verilator", marks=pytest.mark.campaign),
        pytest.param(*TOPICK, "icarus", marks=pytest.mark.campaign),
        pytest.param(*TOPICK, "verilator", marks=pytest.mark.campaign),
    ],
)
def test_faults_on_the_line(block, vectors, link, simulator, tmp_path, monkeypatch):
    for name, value in tools.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(tools.ROOT))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    found = find(block)
    link = LINK | link
    design = board_design(found, found.parameters_class.preset("first"), BoardParameters(**link))
    source = tmp_path / "board.v"
    module, verilog = desk(design)
    source.write_text(verilog)
    runner = get_runner(simulator)
    runner.build(
        sources=[source],
        hdl_toplevel=module,
        build_dir=tmp_path,
        build_args=ARGUMENTS[simulator],
        timescale=("1ns", "1ps"),
        log_file=tmp_path / "build.log",
    )
    case = {"block": block, "board": link, "vectors": vectors, "seed": 1}
    results = runner.test(
        test_module="tests.support.boards.pins_bench",
        hdl_toplevel=module,
        build_dir=tmp_path,
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
        log_file=tmp_path / "run.log",
        extra_env={"BOARD": json.dumps(case), "COCOTB_REWRITE_ASSERTION_FILES": ""},
    )
    cases = list(ElementTree.parse(Path(results)).iter("testcase"))
    kinds = ("failure", "error", "skipped")
    failed = [c.get("name") for c in cases if any(c.find(kind) is not None for kind in kinds)]
    assert len(cases) == CASES and not failed, (tmp_path / "run.log").read_text()
