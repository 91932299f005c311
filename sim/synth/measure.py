"""Map one configuration of a block and measure its area and delay."""

import dataclasses
import functools
import tempfile
from pathlib import Path

from golden.files import replacing
from hw.catalogue import Block, find
from hw.emit.export import module_name, to_rtlil
from hw.parameters import Parameters
from sim.synth import ecp5, hierarchy, liberty, report, xilinx
from sim.synth.flow import MODES, Mapper

FPGAS = {"ecp5": ecp5, "xilinx": xilinx}
"""Modules that map to an FPGA, with DEVICE, HEADINGS of a Usage's fields, and `measure`."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What to map designs to, and how.

    library
        Path of a Liberty file; None for an FPGA.
    sha256
        Hash of that file's content: the results of equal targets are equal.
    mode
        One of ``MODES``; None for each of them, or, if there is a clock, for the smallest mapping
        that meets it.
    clock
        Clock period in ps.
    pieces
        Gates from which on a sub-module is mapped by itself.
    hierarchy
        Whether to map each distinct module once and add up, `pieces` being the gates from which on.
    netlist
        Folder to write the netlists to.
    multiplier
        One of :data:`hw.component.MULTIPLIERS`.
    fpga
        One of `FPGAS`, without a library.
    """

    library: str | None = None
    sha256: str = ""
    mode: str | None = None
    clock: float | None = None
    pieces: int | None = None
    hierarchy: bool = False
    netlist: Path | None = None
    multiplier: str = "columns"
    fpga: str = ""

    @property
    def modes(self) -> list[str]:
        if self.mode is not None:
            return [self.mode]
        return list(MODES) if self.clock is None else ["clock"]


def measure(name: str, preset: str, parameters: Parameters, target: Target) -> list[tuple]:
    """Map one design; returns (table entry, note) pairs, one for each mode.

    :raises SynthesisError: if the design cannot be mapped.
    """
    block = find(name, parts=True)
    module = module_name(block, parameters)
    rtlil = to_rtlil(block.create(parameters), module, multiplier=target.multiplier)
    with tempfile.TemporaryDirectory(prefix="synth_") as scratch:
        if target.library is None:
            fpga = FPGAS[target.fpga]
            usage = fpga.measure(rtlil, module, Path(scratch))
            entry = {
                "block": block.name,
                "preset": preset,
                "parameters": dataclasses.asdict(parameters),
                "device": fpga.DEVICE,
                **dataclasses.asdict(usage),
            }
            return [(entry, "")]
        library = _library(target.library, target.sha256)
        if target.hierarchy:
            return _measure_parts(block, preset, parameters, target, rtlil, target.library)
        mapper = Mapper(rtlil, module, library, Path(scratch), target.pieces)
        entries = []
        for mode in target.modes:
            if mode == "clock" and target.clock is not None:
                mapped = mapper.map_for(target.clock)
            else:
                mapped = mapper.map(mode)
            row = report.row(block, preset, parameters, mapped, target.clock)
            if target.netlist:
                target.netlist.mkdir(parents=True, exist_ok=True)
                path = target.netlist / f"{module}.{mode}.v"
                with replacing(path) as file:
                    file.write(mapped.verilog.encode())
                row = dataclasses.replace(row, netlist=str(path))
            entries.append((row, report.explanation(mapped)))
        return entries


def _measure_parts(
    block: Block, preset: str, parameters: Parameters, target: Target, rtlil: str, path: str
) -> list[tuple]:
    """As :func:`measure`, by hierarchy."""
    module, library = module_name(block, parameters), _library(path, target.sha256)
    least = hierarchy.LEAST if target.pieces is None else target.pieces
    found = []
    for mode in target.modes:
        design = hierarchy.Hierarchy(rtlil, module, path, target.sha256, mode, least)
        parts = design.parts()
        entry = report.sum_row(block, preset, parameters, mode, parts, library)
        found.append((entry, report.BY_HIERARCHY))
    return found


@functools.cache
def _library(path: str, sha256: str) -> liberty.Library:
    """Read once in each process."""
    return liberty.read(Path(path))
