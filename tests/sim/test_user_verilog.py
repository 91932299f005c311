"""A user's Verilog: ports in any style, and text that could act outside the simulation."""

import re
import subprocess
from pathlib import Path

import pytest

from hw.catalogue import find
from sim.core import processes, yosys
from sim.core.design import from_file, generate
from sim.core.tools import SIMULATORS, VERILOG_2005, ToolError
from sim.core.user_verilog import generated_ports, user_ports, without_macros
from sim.drivers.run import Simulation, stimuli_of

SKID = find("stream.skid_buffer")
SMALL = SKID.parameters_class.preset("small")
NAME = generate(SKID, SMALL).module
STIMULUS = stimuli_of(SKID, SMALL, None, 4, seed=1)[1]
ANSI = f"""\
`define W 8
primitive invert(o, a); output o; input a; table 0 : 1; 1 : 0; endtable endprimitive
(* keep *)
module other(input clk); endmodule
(* top = 1 *)
module {NAME} #(parameter W = `W) (
  input wire clk, rst, i__valid, output reg i__ready, // module nothing(
  input wire [W-1:0] i__payload,
  output wire o__valid, input wire o__ready, output reg [W-1:0] o__payload
);
  invert cell1(o__valid, clk);
endmodule
"""


def changed(old: str, new: str, text: str | None = None) -> str:
    text = generate(SKID, SMALL).verilog if text is None else text
    result = re.sub(old, new, text, count=1)
    assert result != text, "the generated text changed: adapt the fault"
    return result


def load(tmp_path: Path, text: str, **options):
    path = tmp_path / "mine.v"
    path.write_text(text)
    return from_file(SKID, SMALL, path, **options)


def test_ports_in_the_header_with_parameters_beside_cell_models(tmp_path):
    assert load(tmp_path, ANSI).inputs == generate(SKID, SMALL).inputs
    ports = user_ports(Path("x.v"), ANSI, NAME)
    assert ports == generated_ports(generate(SKID, SMALL).verilog, NAME)
    assert ports["o__payload"] == ("output", 8) and ports["rst"] == ("input", 1)


def test_ports_in_the_body(tmp_path):
    """As Verilog-1995 declares them."""
    text = generate(SKID, SMALL).verilog
    header, body = text[text.index("module ") :].split(");\n", 1)
    declared = re.findall(r"^  ((?:input|output) .*?(\w+))(?: = \S+)?,?$", header, re.M)
    names = ", ".join(name for _, name in declared)
    lines = "".join(f"  {line.replace(' reg', '')};\n" for line, _ in declared)
    kinds = "  reg i__ready, o__valid;\n  reg [7:0] o__payload;\n"
    text = f"module {NAME}({names});\n{lines}{kinds}{body}"
    assert user_ports(Path("x.v"), text, NAME) == generated_ports(
        generate(SKID, SMALL).verilog, NAME
    )
    assert load(tmp_path, text).inputs == generate(SKID, SMALL).inputs


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (r"  output reg o__valid = 1'h0,\n", "", "lacks port o__valid, an output of 1 bit"),
        (r"  input rst,\n", "", "lacks port rst, an input of 1 bit"),
        (r"\[7:0\] i__p", "[15:0] i__p", "i__payload .* an input of 8 bits, not an"),
        (r"input o__ready", "output o__ready", "o__ready .* an input of 1 bit, not an output of 1"),
        (r"(input rst,\n)", r"\1  input scan,\n", "has a port scan, which the block"),
    ],
)
def test_wrong_ports_are_one_sentence(tmp_path, old, new, sentence):
    with pytest.raises(ToolError, match=sentence):
        load(tmp_path, changed(old, new))


def test_wrong_ports_of_a_datapath(tmp_path):
    block = find("arith.float_max")
    parameters = block.parameters_class.preset("first")
    module = generate(block, parameters).module.removesuffix("_streamed")
    text = generate(block, parameters).verilog
    path = tmp_path / "mine.v"
    path.write_text(text[: text.index(f"module {module}_streamed")])
    assert from_file(block, parameters, path).clocked == generate(block, parameters).clocked
    path.write_text(changed(r"input \[15:0\] (\w+)", r"input [14:0] \1", path.read_text()))
    with pytest.raises(ToolError, match=f"port .* of {module} must be an input of 16 bits, not an"):
        from_file(block, parameters, path)


def test_unreadable_ports_are_one_sentence(tmp_path):
    with pytest.raises(ToolError, match=f"cannot read the ports of {NAME}: syntax error"):
        load(tmp_path, f"module {NAME}(clk)\n input clk\nendmodule\n")


def test_a_yosys_that_does_not_run_is_not_the_file_s_fault(tmp_path, monkeypatch):
    said = "Traceback (most recent call last):\nPermissionError: [Errno 13] denied: '/home/x'\n"
    failed = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(yosys, "command", lambda *_: failed)
    run = processes.run
    monkeypatch.setattr(processes, "run", lambda c, **k: c if c is failed else run(c, **k))
    with pytest.raises(ToolError, match="^Yosys did not run: PermissionError: .* '/home/x'$"):
        load(tmp_path, ANSI)


UNSAFE = {
    'initial $system("touch x");': "$system",
    'integer f; initial f = $fopen("x", "w");': "$fopen",
    'initial $writememh("x", memory);': "$writememh",
    "initial $dumpvars;": "$dumpvars",
    "initial $unheard_of;": "$unheard_of",
    'always $c("system(\\"touch x\\");");': "$c",
    '`include "other.v"': "`include",
    "`define call $``system": "``",
    'initial begin $display("\\\\"); $system("a"); end': "$system",
    # A string of SystemVerilog, and one that Verilator's preprocessor takes for one.
    'initial begin $display("""x " // """); $system("a"); end': '"""',
    # C++ functions, by name and by a macro.
    'import "DPI-C" function int system(input string s);': "import",
    '`define D "DPI-C"\n  import `D function int system(input string s);': "import",
    'export "DPI-C" function f;': 'export "',
    # Macros that make a task's name, as Verilator's preprocessor joins what Icarus' does not.
    '`define N system\n  initial $`N ("a");': "$system",
    '`define C(n) $n("a")\n  initial `C(system);': "$n",
    "`define C(n) \\\n    $n\n  initial `C(fopenw);": "$n",
    '`define S(x) `"$fopen x`"\n  initial $display(`S(a));': "$fopen",
    # Hidden from a tool that is not the one that runs it.
    '`ifdef VERILATOR\n  initial $system("a");\n`endif': "$system",
    # Icarus runs a task by its escaped name, and a task right behind a delay.
    'initial \\$fopen ("a", "w");': "$fopen",
    'initial #1$fopen("a", "w");': "$fopen",
    'initial #\'h1$fopen("a", "w");': "$fopen",
    '`begin_keywords "1800-2012"': "`begin_keywords",
    "`systemc_header": "`systemc_header",
    "`verilator_config": "`verilator_config",
    "`undefined": "`undefined",
    "/*verilator tag x*/": "/*verilator tag",
    "wire a/*  verilator   hier_block */;": "/*verilator hier_block",
    "// verilator sc_bv": "/*verilator sc_bv",
    "initial $display(1);\x01": "\\x01",
}
"""What a file's text may not say, and what the refusal names; its line is the last of the text."""


@pytest.mark.parametrize("line", UNSAFE)
def test_commands_and_files_need_trust(tmp_path, line):
    text = ANSI.replace("  invert cell1", f"  {line}\n  invert cell1")
    last = line.removesuffix("\n`endif")
    number = 1 + text[: text.index(line)].count("\n") + last.count("\n")
    with pytest.raises(ToolError) as caught:
        load(tmp_path, text)
    place, _, said = str(caught.value).partition(": ")
    assert place == f"{tmp_path}/mine.v:{number}"
    named = repr(UNSAFE[line]).replace("\\\\", "\\")
    assert said.startswith(named[:-1]), said
    assert said.endswith("with your rights: read the file, then add --trust")


def test_trusted_verilog_is_loaded(tmp_path):
    line = next(iter(UNSAFE))
    text = ANSI.replace("  invert cell1", f"  {line}\n  invert cell1")
    assert "$system" in load(tmp_path, text, trust=True).verilog


HARMLESS = r"""
// $system /* $fopen */
/* `include
*/ wire \$auto$proc.cc:12$3 ; wire \rows[3].$next$1 ; wire a$b;
`define WIDTH 8
`define SAY(x) $display(`"x`")
`timescale 1ns/1ps
`celldefine
initial begin $display($clog2(3), "50 $ and \\" ); `SAY(é); if ($test$plusargs("v")) $finish; end
// verilator lint_off WIDTHTRUNC
/*verilator public_flat_rw*/
reg [`WIDTH-1:0] memory [0:3]; initial $readmemh("x", memory);
specify $setup(a, posedge clk, 1); endspecify
"""


def test_what_only_looks_unsafe():
    """Every tool gets the text with its macros expanded."""
    text = without_macros(Path("x.v"), HARMLESS)
    assert 'begin $display($clog2(3), "50 $ and \\\\" ); $display("é");' in text
    assert "include" not in text and "WIDTH 8" not in text and "reg [8-1:0] memory" in text


def test_macros_that_cannot_be_expanded_are_one_sentence():
    with pytest.raises(ToolError, match=r"^x.v: Verilator cannot expand its macros: \S[^\n]+$"):
        without_macros(Path("x.v"), "module m;\n`define A(\nendmodule\n`A(")


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_systemverilog_needs_trust_in_every_tool(simulator, tmp_path):
    """Its words are names in Verilog-2005, which Yosys and both simulators read."""
    text = changed(r"\);\n", ");\n  wire unique;\n")
    design = load(tmp_path, text)
    assert design.standard(simulator) == VERILOG_2005[simulator]
    driver = {"verilator": "harness", "icarus": "cocotb"}[simulator]
    [(outcome, mismatches)] = Simulation(design, simulator, driver).run([(STIMULUS, "none")], 1)
    assert outcome.failure is None and mismatches == []
    with pytest.raises(ToolError, match="could not compile|cannot read the ports"):
        trusted = load(tmp_path, text, trust=True)
        Simulation(trusted, simulator, driver).run([(STIMULUS, "none")], seed=1)
