"""Area, delay and switching energy of one design."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

from hw.export import to_rtlil
from sim.commands.counting.designs import Design
from sim.core.tools import ToolError
from sim.synth import power
from sim.synth.activity import RUNS, Activity
from sim.synth.flow import Mapped, Mapper
from sim.synth.liberty import Library

CLOCK = 2000.0
"""Period in ps, the paper's 500 MHz."""

RESET = 2
DRAIN = 24
"""Cycles after the last step, in which its results arrive."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A design's areas (µm²) and energies (fJ), each a position.

    smallest, delay
        Area without a delay target, and its slowest path (ps).
    clocked, clocked_delay
        Area mapped for CLOCK, and its slowest path.
    registers
        Flip-flops of the whole design.
    settled
        Energy of the toggles between settled values.
    glitches
        What more toggles cost that every gate's delay of one unit makes.
    clock
        Energy of the clock pins.
    """

    name: str
    positions: int
    smallest: float
    delay: float
    clocked: float
    clocked_delay: float
    registers: int
    settled: float
    glitches: float
    clock: float

    @property
    def energy(self) -> float:
        return self.settled + self.glitches + self.clock


def measure(design: Design, library: Library, columns: int) -> Measured:
    """Map a design, and run it on its inputs; the first of the `columns` only fills the pipeline.

    :raises ToolError: if an output is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="counting_") as scratch:
        rtlil = to_rtlil(design.component(), "design")
        mapper = Mapper(rtlil, "design", library, Path(scratch), design.pieces)
        smallest = mapper.map("area")
        clocked = mapper.map_for(CLOCK, smallest)
    settled, glitches, clock = energy(design, clocked, library, power.read(library.path))
    each = RUNS * (columns - 1) * design.steps * design.positions
    return Measured(
        name=design.name,
        positions=design.positions,
        smallest=round(smallest.area / design.positions, 1),
        delay=round(smallest.delay),
        clocked=round(clocked.area / design.positions, 1),
        clocked_delay=round(clocked.delay),
        registers=clocked.flipflops,
        settled=round(settled / each, 1),
        glitches=round(glitches / each, 1),
        clock=round(clock / each, 1),
    )


def energy(
    design: Design, mapped: Mapped, library: Library, cells: power.Power
) -> tuple[float, float, float]:
    """fJ of all runs from the second column on: settled values, glitches, clock pins."""
    costs = power.energies(mapped.netlist, library, cells)
    activity = Activity(mapped.netlist, library)
    inputs = design.inputs()
    cycles = len(next(iter(inputs.values())))
    idle = {name: np.zeros_like(bits[0]) for name, bits in inputs.items()}
    reset = "rst" in mapped.netlist.inputs
    for _ in range(RESET if reset else 0):
        activity.cycle(idle | {"rst": np.ones((RUNS, 1), bool)})
    recorded: dict[str, list[np.ndarray]] = {name: [] for name in mapped.netlist.outputs}
    low = {"rst": np.zeros((RUNS, 1), bool)} if reset else {}
    found = (0.0, 0.0, 0.0)
    for cycle in range(cycles + DRAIN):
        if cycle == design.steps:
            activity.clear()
        beat = {name: bits[min(cycle, cycles - 1)] for name, bits in inputs.items()}
        if cycle >= cycles and "i__valid" in beat:
            beat["i__valid"] = idle["i__valid"]
        activity.cycle(beat | low)
        for name, outputs in recorded.items():
            outputs.append(activity.output(name))
        if cycle == cycles - 1:
            each = np.append([costs.net.get(net, 0.0) for net in activity.row], [0.0, 0.0])
            settled = float(activity.settled @ each)
            glitches = float(activity.toggles @ each) - settled
            found = settled, glitches, costs.cycle * RUNS * (cycles - design.steps)
    if not design.check({name: np.stack(bits) for name, bits in recorded.items()}):
        raise ToolError(f"{design.name}: the mapped netlist's results must be the model's")
    return found
