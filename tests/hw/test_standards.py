"""Generated Verilog is right as Verilog and as SystemVerilog, and Verilator takes it as it is."""

import dataclasses
import subprocess

import pytest

from hw.catalogue import blocks, find
from hw.emit.verilog import WAIVERS, unwaived
from hw.emit.verilog_body import START_LINES
from sim.core.design import Design, generate
from sim.core.tools import verilator
from sim.core.user_verilog import generated_ports
from sim.drivers.run import Simulation, stimuli_of

STANDARDS = ("2001", "2005", "2005-sv", "2009", "2012")
QUICK = ("stream.arbiter", "kllm.orizuru", "unicaim.row_manager")


def first(name: str) -> Design:
    block = find(name)
    return generate(block, block.parameters_class.preset("first"))


def bench(design: Design) -> str:
    """A testbench that prints valid and ready of every port, four cycles after the reset."""
    ports = generated_ports(design.verilog, design.module)
    kinds = {"input": "reg [{}:0] {} = 0;", "output": "wire [{}:0] {};"}
    declared = [kinds[way].format(width - 1, name) for name, (way, width) in ports.items()]
    connected = ", ".join(f".{name}({name})" for name in ports)
    shown = ", ".join(name for name, (way, width) in ports.items() if (way, width) == OUT)
    cycles = "repeat (4) begin #5 clk = 1; #5 clk = 0; end"
    run = f"rst = 1; {cycles} rst = 0; {cycles}" if design.clocked else "#5;"
    end = f'initial begin {run} $display("%b", {{{shown}}}); $finish; end'
    return "\n".join(
        ["module bench;", *declared, f"{design.module} dut({connected});", end, "endmodule\n"]
    )


OUT = ("output", 1)


@pytest.mark.icarus
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(block.name, marks=() if block.name in QUICK else pytest.mark.campaign)
        for block in blocks()
    ],
)
def test_every_standard_s_simulation_starts(name, tmp_path):
    """Outputs that nothing drives at time 0 would stay X."""
    design = first(name)
    (tmp_path / "bench.v").write_text(bench(design))
    (tmp_path / "design.v").write_text(design.verilog)
    printed = {}
    for standard in STANDARDS:
        sources = ["-s", "bench", "-o", "sim.vvp", "bench.v", "design.v"]
        subprocess.run(["iverilog", f"-g{standard}", *sources], cwd=tmp_path, check=True)
        run = subprocess.run(["vvp", "-n", "sim.vvp"], cwd=tmp_path, capture_output=True, text=True)
        # Later versions of Icarus say where the simulation has ended.
        lines = [line for line in run.stdout.splitlines() if "$finish" not in line]
        printed[standard] = " ".join(lines).split()
    assert len(set(map(tuple, printed.values()))) == 1, printed
    assert len(printed["2012"]) == 1 and set(printed["2012"][0]) <= {"0", "1"}, printed


@pytest.mark.icarus
def test_icarus_runs_systemverilog():
    """The driver finds a constant that is no event there, as users of cocotb's makefiles would."""
    block = find("kllm.orizuru")
    parameters = block.parameters_class.preset("first")
    design = first(block.name)
    text = design.verilog.replace(START_LINES, START_LINES.partition(";")[0] + " = 0;\n")
    assert text != design.verilog
    simulation = Simulation(dataclasses.replace(design, verilog=text), "icarus")
    [stimulus, _] = stimuli_of(block, parameters, None, 1, seed=1)
    [(outcome, _)] = simulation.run([(stimulus, "none")], seed=1)
    assert outcome.failure == "stream i: i__ready is X"


def test_verilator_has_nothing_to_say(tmp_path):
    """No warning for a user without options, nor with all of them; each waiver is one of these."""
    design = first("kllm.orizuru")
    (tmp_path / "design.v").write_text(design.verilog)
    (tmp_path / "unwaived.v").write_text(unwaived(design.verilog))
    for source, options in (("design.v", ["-Wall"]), ("design.v", ["--public-flat-rw"])):
        command = [str(verilator()), "--lint-only", *options, str(tmp_path / source)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0 and "%" not in run.stderr, run.stderr
    command = [str(verilator()), "--lint-only", "-Wall", str(tmp_path / "unwaived.v")]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert "%Warning-INITIALDLY" in said
    assert design.verilog.count("lint_off") == len(WAIVERS)
