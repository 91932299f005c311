"""What a simulator computes under a condition only: the text, and proofs that no bit changes."""

import re

import pytest

from hw.arith.float_multiply import FloatMultiplyParameters
from hw.catalogue import blocks, find
from hw.emit.export import export
from sim.core.tools import ToolError
from sim.drivers.harness.fast_verilog import WRITTEN, computed_where_read, with_one_clock
from tests.support.hw.same_hardware import assert_same_text

UNIT = """\
module unit(
  input clk,
  input enable,
  input [3:0] a,
  input [3:0] b,
  output reg [3:0] total = 4'h0,
  output [3:0] now
);
  wire [3:0] sum = a + b;
  wire [3:0] half = {1'h0, sum[3:1]};
  wire [3:0] name = half;
  wire [3:0] both = a & b;
  reg [3:0] chosen;
  reg run_at_time_0;
  initial run_at_time_0 <= 0;  // makes each always @* run at time 0
  assign now = both;
  always @(posedge clk) begin
    if (enable) begin
      total <= chosen ^ half ^ both;
    end
  end
  always @* begin
    if (run_at_time_0) begin end
    chosen = a;
    if (b[0]) chosen = sum;
  end
endmodule
"""

COMPUTED = """\
    if (enable) begin
      sum = a + b;
      half = {1'h0, sum[3:1]};
      chosen = a;
      if (b[0]) chosen = sum;
      total <= chosen ^ half ^ both;
    end
"""


def test_what_a_load_alone_reads_is_computed_in_it():
    after = computed_where_read(WRITTEN + UNIT)
    inside = after[after.index("    if (enable)") : after.index("  end\nendmodule")]
    # Statements that do not read each other may have any order.
    assert sorted(inside.splitlines()) == sorted(COMPUTED.splitlines())
    assert inside.index("sum = a") < inside.index("half = ") and "always @*" not in after
    assert "  wire [3:0] both = a & b;\n" in after and " name" not in after
    assert_same_text(UNIT, after.removeprefix(WRITTEN))


def test_a_value_in_the_wrong_place_is_found():
    after = computed_where_read(WRITTEN + UNIT).removeprefix(WRITTEN)
    wrong = after.replace("chosen = a;", "chosen = b;")
    with pytest.raises(ToolError, match="could not prove the texts of unit equivalent"):
        assert_same_text(UNIT, wrong)


@pytest.mark.parametrize(
    "change",
    [
        ("    end\n  end", "    end else total <= half;\n  end"),  # reads it otherwise, too
        ("assign now = both", "assign now = sum ^ chosen"),
        ("      total <= chosen", "      total <= other ^ chosen"),
    ],
)
def test_what_is_read_elsewhere_too_stays_outside(change):
    before = UNIT.replace(*change)
    assert before != UNIT
    after = computed_where_read(WRITTEN + before)
    assert "  wire [3:0] sum = a + b;\n" in after or "other" in before
    if "other" not in before:
        assert_same_text(before, after.removeprefix(WRITTEN))


@pytest.mark.parametrize(
    "text",
    [
        UNIT,  # not written by this project
        WRITTEN + UNIT.replace("now = both", "now = unit.sum"),
        WRITTEN + UNIT.replace("  assign now", "  specify endspecify\n  assign now"),
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert computed_where_read(text) == text


def test_registers_name_the_clock_of_the_top():
    text = "module top(\n  input clk\n);\n  unit u (\n    .clk(clk),\n    .a(a)\n  );\nendmodule\n"
    assert "\n  always @(posedge top.clk) begin\n" in with_one_clock(text + UNIT, "top")
    other = text.replace("(clk),", "(slow),") + UNIT
    assert with_one_clock(other, "top") == other


def test_a_unit_that_holds_computes_nothing():
    text = export(find("arith.float_multiply"), FloatMultiplyParameters(stages=2)).verilog
    assert re.search(r"^  wire ", text, re.M)
    assert not re.search(r"^  wire ", computed_where_read(text), re.M)


@pytest.mark.campaign
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_no_bit_of_any_block_changes(block):
    text = export(block, block.parameters_class.preset("first")).verilog
    assert_same_text(text, computed_where_read(text))
