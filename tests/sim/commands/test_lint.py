"""Lint passes generated Verilog and refuses broken Verilog."""

import dataclasses
import re

import pytest

from hw.catalogue import blocks, find
from sim.commands import lint
from sim.core.design import generate
from sim.core.tools import ToolError

BLOCK = find("stream.skid_buffer")
PARAMETERS = BLOCK.parameters_class.preset("small")
PORTS = "clk, rst, i__payload, i__valid, i__ready, o__payload, o__valid, o__ready"
MODULE = f"""module stream_skid_buffer_small({PORTS});
  input clk, rst, i__valid, o__ready;
  input [7:0] i__payload;
  output i__ready, o__valid;
  output reg [7:0] o__payload;
  assign i__ready = o__ready;
  assign o__valid = i__valid;
  BODY
endmodule
"""
BODIES = {
    "latch": ("always @* if (i__valid) o__payload = i__payload;", "atch"),
    "undriven": ("", "o__payload"),
    "partly undriven": ("always @* o__payload[6:0] = i__payload[6:0];", "o__payload"),
    "driven twice": (
        "always @(posedge clk) o__payload <= i__payload;\n  assign i__ready = rst;",
        "i__ready",
    ),
    "black box": (
        "always @(posedge clk) o__payload <= i__payload;\n  secret s(.a(clk), .b(rst));",
        "secret",
    ),
    "too wide": ("always @(posedge clk) o__payload <= {i__payload, rst};", "WIDTHTRUNC"),
    "a loop": ("wire [7:0] a = a ^ i__payload;\n  always @* o__payload = a;", ""),
    "no Verilog": ("always begin", "syntax error"),
}


@pytest.mark.parametrize("block", [block.name for block in blocks() if block.folder == "stream"])
def test_every_preset_is_clean(run, block):
    status, out, err = run(f"lint {block} --jobs 1 --fresh")
    presets = find(block).parameters_class.presets()
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"{block} {preset}: clean" for preset in presets]


NAMES = [block.name for block in blocks() if block.folder != "stream"]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_preset_is_clean(name):
    block = find(name)
    lint.lint(block, block.parameters_class.preset("first"))


def linted(verilog: str, monkeypatch):
    design = dataclasses.replace(generate(BLOCK, PARAMETERS), verilog=verilog)
    monkeypatch.setattr(lint, "generate", lambda block, parameters: design)
    lint.lint(BLOCK, PARAMETERS)


def test_the_frame_of_the_broken_designs_is_clean(monkeypatch):
    linted(MODULE.replace("BODY", "always @(posedge clk) o__payload <= i__payload;"), monkeypatch)


@pytest.mark.parametrize("fault", BODIES)
def test_broken_designs_are_refused(fault, monkeypatch):
    body, sign = BODIES[fault]
    with pytest.raises(ToolError) as caught:
        linted(MODULE.replace("BODY", body), monkeypatch)
    message = str(caught.value)
    assert message.split(" on ")[0] in ("Verilator", "Yosys") and "\n" not in message
    assert "stream_skid_buffer_small: " in message and sign in message


@pytest.mark.parametrize(
    "body, check",
    [
        ("always @* if (i__valid) o__payload = i__payload;", "latch"),
        ("", "undriven"),
        ("always @(posedge clk) o__payload <= i__payload;\n  secret s(.a(clk));", "box"),
    ],
    ids=["latch", "undriven", "black box"],
)
def test_yosys_refuses_them_too(body, check, monkeypatch):
    """Faults that both tools detect are detected by each alone."""
    first = lint._check

    def yosys_only(command, tool, *more):
        if tool == "Yosys":
            first(command, tool, *more)

    monkeypatch.setattr(lint, "_check", yosys_only)
    with pytest.raises(ToolError, match="^Yosys on "):
        linted(MODULE.replace("BODY", body), monkeypatch)


def test_a_refusal_is_one_sentence(run, monkeypatch):
    design = dataclasses.replace(generate(BLOCK, PARAMETERS), verilog=MODULE.replace("BODY", ""))
    monkeypatch.setattr(lint, "generate", lambda block, parameters: design)
    status, out, err = run("lint stream.skid_buffer --jobs 1 --fresh")
    assert status == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_every_waiver_has_its_reason():
    for rule, text, reason in lint.WAIVERS:
        assert rule.isupper() and text and len(reason.split()) > 4


QUEUE = find("stream.queue")


@pytest.mark.parametrize(
    "old, new, sign",
    [
        (r"\A", "", None),
        (r"(?m)^endmodule$", "  wire a = lost;\nendmodule", "lost"),  # in each module
        (r"\.rst\(rst\)", ".rst({rst, rst})", "rst"),  # at a part's port
        (r"\.rst\(rst\)", ".reset(rst)", "PINMISSING"),
    ],
    ids=["as it is", "in a module", "width of a port", "name of a port"],
)
def test_modules_of_a_vast_design_one_by_one(old, new, sign, monkeypatch):
    monkeypatch.setattr(lint, "VAST", 1)
    design = generate(QUEUE, QUEUE.parameters_class.preset("small"))
    assert design.instances == 1 and len(list(lint.modules_apart(design.verilog))) == 2
    changed = re.sub(old, new, design.verilog)
    assert (changed == design.verilog) == (sign is None)
    if sign is None:
        lint.check(design)
        return
    with pytest.raises(ToolError, match=f"^Verilator on .*{sign}"):
        lint.check(dataclasses.replace(design, verilog=changed))
