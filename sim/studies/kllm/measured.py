"""Area, delay and switching energy of one design."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hw.emit.export import to_rtlil
from sim.core.tools import ToolError
from sim.studies.kllm.designs import Design
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
        What more toggles cost that the gates' inertial delays make.
    clock
        Energy of the clock pins.
    leakage
        Energy that leaks in a period of CLOCK.
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
    leakage: float

    @property
    def quiet(self) -> float:
        """Without glitches."""
        return self.settled + self.clock + self.leakage

    @property
    def energy(self) -> float:
        return self.quiet + self.glitches


def measure(
    design: Design, library: Library, columns: int, progress: Callable[[str], None]
) -> Measured:
    """Map a design, and run it on its inputs; the first of the `columns` only fills the pipeline.

    progress
        Called with what is done next.

    :raises ToolError: if an output is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="counting_") as scratch:
        rtlil = to_rtlil(design.component(), "design")
        progress("synthesis")
        mapper = Mapper(rtlil, "design", library, Path(scratch), design.pieces)
        progress("smallest mapping")
        smallest = mapper.map("area")
        progress(f"mapping for {CLOCK:.0f} ps")
        clocked = mapper.map_for(CLOCK, smallest)
    costs = power.energies(clocked.netlist, library, power.read(library.path))
    settled, glitches = energy(design, clocked, library, costs, progress)
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
        clock=round(costs.cycle / design.positions, 1),
        leakage=round(costs.idle(CLOCK) / design.positions, 1),
    )


def energy(
    design: Design,
    mapped: Mapped,
    library: Library,
    costs: power.Energies,
    progress: Callable[[str], None],
) -> tuple[float, float]:
    """fJ of the toggles of all runs from the second column on: settled values, glitches."""
    activity = Activity(mapped.netlist, library)
    inputs = design.inputs()
    cycles = len(next(iter(inputs.values())))
    idle = {name: np.zeros_like(bits[0]) for name, bits in inputs.items()}
    reset = "rst" in mapped.netlist.inputs
    for _ in range(RESET if reset else 0):
        activity.cycle(idle | {"rst": np.ones((RUNS, 1), bool)}, counted=False)
    recorded: dict[str, list[np.ndarray]] = {name: [] for name in mapped.netlist.outputs}
    low = {"rst": np.zeros((RUNS, 1), bool)} if reset else {}
    for cycle in range(cycles + DRAIN):
        beat = {name: bits[min(cycle, cycles - 1)] for name, bits in inputs.items()}
        if cycle >= cycles and "i__valid" in beat:
            beat["i__valid"] = idle["i__valid"]
        counted = design.steps <= cycle < cycles
        if counted:
            progress(f"cycle {cycle - design.steps + 1} of {cycles - design.steps}")
        activity.cycle(beat | low, counted)
        for name, outputs in recorded.items():
            outputs.append(activity.output(name))
    if not design.check({name: np.stack(bits) for name, bits in recorded.items()}):
        raise ToolError(f"{design.name}: the mapped netlist's results must be the model's")
    each = np.append([costs.net.get(net, 0.0) for net in activity.row], [0.0, 0.0])
    settled = float(activity.settled @ each)
    return settled, float(activity.toggles @ each) - settled
