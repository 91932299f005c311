"""A user's Verilog: ports in any style, and text that could act outside the simulation."""

import re
import subprocess
from pathlib import Path

import pytest

from hw.catalogue import find
from sim.core import processes
from sim.core.design import from_file, generate
from sim.core.tools import ToolError
from sim.core.user_verilog import generated_ports, refuse_unsafe, user_ports

SKID = find("stream.skid_buffer")
SMALL = SKID.parameters_class.preset("small")
NAME = generate(SKID, SMALL).module
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
    monkeypatch.setattr(processes, "run", lambda *_, **__: failed)
    with pytest.raises(ToolError, match="^Yosys did not run: PermissionError: .* '/home/x'$"):
        load(tmp_path, ANSI)


UNSAFE = [
    'initial $system("touch x");',
    'integer f; initial f = $fopen("x", "w");',
    'initial $writememh("x", memory);',
    'import "DPI-C" function int system(input string s);',
    'always $c("system(\\"touch x\\");");',
    '`include "other.v"',
    "`define call $``system",
    'initial begin $display("\\\\"); $system("a"); end',
]


@pytest.mark.parametrize("line", UNSAFE)
def test_commands_and_files_need_trust(tmp_path, line):
    text = ANSI.replace("  invert cell1", f"  {line}\n  invert cell1")
    number = 1 + text[: text.index(line)].count("\n")
    with pytest.raises(ToolError, match=rf"mine.v:{number}: .* with your rights: .* add --trust$"):
        load(tmp_path, text)


def test_trusted_verilog_is_loaded(tmp_path):
    text = ANSI.replace("  invert cell1", f"  {UNSAFE[0]}\n  invert cell1")
    assert "$system" in load(tmp_path, text, trust=True).verilog


def test_what_only_looks_unsafe(tmp_path):
    harmless = r"// $system /* $fopen */ wire \$system ; initial $display($clog2(3)); wire \$c$1 ;"
    refuse_unsafe(Path("x.v"), f"{harmless}\n/* `include\n*/ wire \\$c ; $clog2(4);")
    refuse_unsafe(Path("x.v"), generate(SKID, SMALL).verilog)
