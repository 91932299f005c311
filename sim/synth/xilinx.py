"""Maps a design to the cells of Xilinx' 7 series by Yosys (``synth_xilinx``), without pads.

No vendor's tool is needed, and nothing is placed, so there is no clock. A vendor's tools put two
small tables into one of six inputs, so they need fewer.
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

from sim.core.yosys import yosys
from sim.synth import SynthesisError

DEVICE = "Xilinx 7 series"
HEADINGS = ("LUT", "of these memory", "DSP48", "FFs", "carries", "RAM18")
OPTIONS = "-family xc7 -flatten -noiopad -noclkbuf"
MEMORIES = {
    **{"RAM32M": 4, "RAM64M": 4, "RAM16X1D": 2, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4},
    **{"RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "SRL16E": 1, "SRLC32E": 1},
}
"""Tables that a memory or a shift register of tables takes."""
REGISTERS = ("FDRE", "FDSE", "FDCE", "FDPE")
BLOCKS = {"RAMB18E1": 1, "RAMB36E1": 2}
FREE = ("MUXF7", "MUXF8", "INV", "GND", "VCC", "$scopeinfo")
"""Multiplexers of the slices, and inverters, which tables and registers take in."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Cells that a design uses.

    luts
        Tables of up to six inputs, `memories` included.
    memories
        Tables that are memories or shift registers.
    dsp, bram
        DSP48E1 slices; block memories of 18 kbit.
    carries
        CARRY4 cells, of four bits each.
    """

    luts: int
    memories: int
    dsp: int
    flipflops: int
    carries: int
    bram: int


def measure(rtlil: str, name: str, folder: Path) -> Usage:
    """Map the design with top module `name`, using an empty folder for the tools' files.

    :raises ToolError: if Yosys fails.
    :raises SynthesisError: if there is a cell that is not counted, such as a latch.
    """
    (folder / "design.il").write_text(rtlil)
    commands = ["read_rtlil design.il", f"synth_xilinx {OPTIONS} -top {name} -json mapped.json"]
    yosys(commands, folder, f"map {name} to {DEVICE}")
    design = json.loads((folder / "mapped.json").read_text())
    return usage_of(name, Counter(x["type"] for x in design["modules"][name]["cells"].values()))


def usage_of(name: str, counts: Counter[str]) -> Usage:
    """Of a design's cells by type."""
    tables = [f"LUT{inputs}" for inputs in range(1, 7)]
    known = {*tables, *MEMORIES, *REGISTERS, *BLOCKS, *FREE, "DSP48E1", "CARRY4"}
    for kind in counts.keys() - known:
        raise SynthesisError(f"{name} has a cell {kind}, which is not counted for {DEVICE}")
    memories = sum(counts[kind] * number for kind, number in MEMORIES.items())
    return Usage(
        sum(counts[kind] for kind in tables) + memories,
        memories,
        counts["DSP48E1"],
        sum(counts[kind] for kind in REGISTERS),
        counts["CARRY4"],
        sum(counts[kind] * number for kind, number in BLOCKS.items()),
    )
