"""Proof that what is changed about modules' bodies keeps every bit."""

import re
import tempfile
from pathlib import Path

from hw.emit.export import yosys_verilog
from hw.emit.verilog import plain
from hw.emit.verilog_body import Body, inputs_of, wrapped
from hw.emit.verilog_passes import readable_body
from sim.core import yosys

READ = """\
read_verilog {side}.v; proc; opt_clean; memory_map; techmap -map operators.v; opt_clean
write_rtlil {side}.il"""
# Two multipliers are more than a SAT solver compares in hours. Nothing that is done to a text
# depends on what `*` computes, so another function of the same operands takes its place.
OPERATORS = """\
(* techmap_celltype = "$mul" *)
module mixed(A, B, Y);
  parameter A_SIGNED = 0;
  parameter B_SIGNED = 0;
  parameter A_WIDTH = 1;
  parameter B_WIDTH = 1;
  parameter Y_WIDTH = 1;
  input [A_WIDTH-1:0] A;
  input [B_WIDTH-1:0] B;
  output [Y_WIDTH-1:0] Y;
  wire [Y_WIDTH:0] a = {{Y_WIDTH{A_SIGNED && A[A_WIDTH-1]}}, A};
  wire [Y_WIDTH:0] b = {{Y_WIDTH{B_SIGNED && B[B_WIDTH-1]}}, B};
  assign Y = a ^ {b, b[Y_WIDTH-1]};
endmodule
"""
COMPARE = """\
design -reset; read_rtlil before.il; rename {module} gold; {names}design -stash one
design -reset; read_rtlil after.il; rename {module} gate; blackbox =* gate %d
design -copy-from one -as gold gold
equiv_make gold gate both; cd both; opt_clean; equiv_simple; equiv_status -assert"""


def assert_same_hardware(rtlil: str) -> None:
    """Each module, as Yosys writes it and as it is after all changes, is proved equivalent.

    Wires correspond by their names, and so do sub-blocks, of which only the ports count. A
    product may be any function of its operands: the proof is for one of them, and no other.

    :raises ToolError: if a bit of a port, register or sub-block's input differs, or may.
    """
    modules = [module for module in plain(yosys_verilog(rtlil)) if "\nendmodule" in module]
    inputs = inputs_of("".join(modules))
    after: list[str] = []
    names: dict[str, dict[str, str]] = {}
    for module in modules:
        name = re.search(r"^module (\w+)", module, re.M)
        assert name
        body = Body(module, inputs)
        lines = [*map(wrapped, readable_body(body))]
        after.append(body.head + "\n".join(lines) + "\n" + body.tail)
        names[name[1]] = {old: new for old, new in body.names.items() if old != new}
    with tempfile.TemporaryDirectory(prefix="same_hardware_") as folder:
        Path(folder, "before.v").write_text("".join(modules))
        Path(folder, "after.v").write_text("".join(after))
        Path(folder, "operators.v").write_text(OPERATORS)
        read = [READ.format(side="before"), "design -reset", READ.format(side="after")]
        yosys.yosys(["\n".join(read)], Path(folder), "read the texts")
        widths = [_widths(Path(folder, f"{side}.il").read_text()) for side in ("before", "after")]
        compare = [
            COMPARE.format(module=name, names=_renamed(changed, *(of[name] for of in widths)))
            for name, changed in names.items()
        ]
        yosys.yosys(["\n".join(compare)], Path(folder), "prove the texts equivalent")


def _widths(rtlil: str) -> dict[str, dict[str, int]]:
    """Widths of each module's wires other than its ports."""
    found = {}
    for name, module in re.findall(r"^module \\(\S+)\n(.*?)^end$", rtlil, re.M | re.S):
        wires = re.findall(r"^  wire (?:width (\d+) )?(?:signed )?\\(\w+)$", module, re.M)
        found[name] = {wire: int(width or 1) for width, wire in wires}
    return found


def _renamed(changed: dict[str, str], before: dict[str, int], after: dict[str, int]) -> str:
    """Commands that give wires their new names, where both texts have them."""
    pairs: dict[str, str] = {}
    for old, new in changed.items():
        if before.get(old, 0) == after.get(new, -1) and new not in pairs.values():
            pairs[old] = new
    # Another wire may have a new name already; it makes room.
    aside = "".join(f"rename {new} {new}_aside; " for new in pairs.values() if new in before)
    names = {old: f"{old}_aside" if old in pairs.values() else old for old in pairs}
    renamed = "".join(f"rename {names[old]} {new}; " for old, new in pairs.items())
    return f"cd gold; {aside}{renamed}cd; " if pairs else ""
