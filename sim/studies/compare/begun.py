"""A design whose registers begin in a state that a run to it would take very long to reach.

A sequence of n tokens takes n² / 2 rows to reach its last step. A core whose whole state is some
registers of its top module can begin there: the generated Verilog, with these registers' values at
reset from further ports.
"""

import dataclasses
import re
from collections.abc import Sequence

from sim.core.design import Design

BITS = 32
"""Width of a port; a register takes its lowest bits."""


def begun(design: Design, registers: Sequence[str]) -> Design:
    """The design with an input ``begin_NAME`` for the value at reset of each of the registers."""
    text = design.verilog
    start = re.search(rf"^module {re.escape(design.module)}\(\n", text, re.M)
    assert start is not None
    end = text.index("\nendmodule", start.end())
    body = text[start.end() : end]
    ports = "".join(f"  input [{BITS - 1}:0] begin_{name},\n" for name in registers)
    lines = [f"      {name} <= begin_{name};" for name in registers]
    reset = "\n".join(["    if (rst) begin", *lines, "    end\n"])
    blocks = re.compile(r"^  always @\(posedge clk\) begin\n.*?^  end\n", re.M | re.S)
    found = [block for block in blocks.finditer(body) if assigns(block[0], registers)]
    # The last of several assignments to a register counts.
    [block] = found
    inside = block.end() - len("  end\n")
    body = ports + body[:inside] + reset + body[inside:]
    constants = (*design.constants, *(f"begin_{name}" for name in registers))
    verilog = text[: start.end()] + body + text[end:]
    return dataclasses.replace(design, verilog=verilog, constants=constants)


def assigns(block: str, registers: Sequence[str]) -> bool:
    """Whether a clocked block assigns all of the registers."""
    return all(re.search(rf"\b{name}(\[[\d:]+\])? <= ", block) for name in registers)
