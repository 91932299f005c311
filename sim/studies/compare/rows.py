"""What is measured of designs on one memory, beside what the memory alone would allow."""

import dataclasses
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sim.core import payload
from sim.core.dram.timing import DramTiming, DramUse, drams_of
from sim.core.memory import FASTEST, MemoryTiming
from sim.studies.compare.data import LayerData, Shape
from sim.studies.compare.designs import PORTS, Chosen
from sim.studies.compare.step import LayerStep, bytes_of, run_step

BOUND = 0.8
"""Share of a step's cycles from which on one thing alone explains them."""
IDEAL = "ideal"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all rows share.

    clock
        Frequency of all designs, in MHz.
    """

    shape: Shape
    timing: MemoryTiming
    memory: str
    clock: float
    trace: Path | None = None

    @property
    def channels(self) -> int:
        """Channels of the memory; for a memory without banks as many as Token-Picker has lanes."""
        timing = self.timing
        return timing.standard.channels if isinstance(timing, DramTiming) else PORTS

    def cycles_at_peak(self, count: int) -> int | None:
        """Cycles in which the memory moves that many bytes at its peak; None without one."""
        if not isinstance(self.timing, DramTiming):
            return None
        peak = self.timing.standard.peak_gb_s * 1e9
        return -int(-count * self.clock * 1e6 // peak)

    def seconds(self, cycles: int) -> float:
        return cycles / (self.clock * 1e6)

    def command(self, name: str, settings: Sequence[str]) -> str:
        """The command that gives a design's row."""
        s = self.shape
        words = ["python", "-m", "sim", "compare", "--d", s.d, "--n", s.n, "--heads", s.heads]
        words += ["--kv-heads", s.kv_heads, "--memory", self.memory, "--clock", f"{self.clock:g}"]
        words += ["--trace", self.trace] if self.trace else []
        words += ["--design", name]
        for setting in settings:
            words += ["--set", setting] if setting.startswith(f"{name}.") else []
        return shlex.join(map(str, words))


def ideal(setting: Setting) -> dict[str, Any] | None:
    """Dense attention at the memory's peak, in no time for computing; None without a peak."""
    shape = setting.shape
    cycles = setting.cycles_at_peak(shape.dense_bytes)
    if cycles is None:
        return None
    row = 2 * shape.kv_heads * shape.d
    moved = {"k_read": row * shape.n, "v_read": row * shape.n}
    moved |= {"k_written": row, "v_written": row}
    return {
        "design": IDEAL,
        "n": shape.n,
        "knob": "all rows, shared",
        "cycles": cycles,
        "cycles_ideal_port": None,
        "cycles_at_peak": cycles,
        "seconds": setting.seconds(cycles),
        "bytes": moved,
        "activations": None,
        "energy_pj": None,
        "share_of_peak": 1.0,
        "limit": "memory",
        "source": "bytes / peak",
    }


def measure(
    chosen: Chosen,
    setting: Setting,
    data: LayerData,
    settings: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A design's row.

    :raises ToolError: if the RTL differs from the bit-exact model.
    """
    began = time.process_time()
    say(f"{chosen.name}: its model …")
    step = chosen.step(setting.shape, data)
    say(f"{chosen.name} on the ideal port …")
    outcome = run_step(step, FASTEST)
    fastest = outcome.cycles
    if not setting.timing.is_fastest:
        say(f"{chosen.name} on {setting.memory} …")
        outcome = run_step(step, setting.timing)
    moved = bytes_of(step, outcome)
    peak = setting.cycles_at_peak(sum(moved.values()))
    uses = drams_of(outcome.memories)
    return {
        "design": chosen.name,
        "n": setting.shape.n,
        "knob": step.knob,
        "cycles": outcome.cycles,
        "cycles_ideal_port": fastest,
        "cycles_at_peak": peak,
        "seconds": setting.seconds(outcome.cycles),
        "bytes": moved,
        **dram_figures(uses),
        "share_of_peak": None if peak is None else round(peak / outcome.cycles, 4),
        "limit": limit_of(outcome.cycles, fastest, peak),
        "source": setting.command(chosen.name, settings),
        "parameters": dataclasses.asdict(chosen.parameters),
        "bits_compared": bits_of(step),
        "cpu_s": round(time.process_time() - began, 1),
    }


def bits_of(step: LayerStep) -> int:
    """Bits of outputs that were compared."""
    layouts = step.design.outputs
    outputs = step.stimulus.outputs.items()
    return sum(len(beats) * payload.width(layouts[name]) for name, beats in outputs)


def dram_figures(uses: list[DramUse]) -> dict[str, Any]:
    """Activations and energy of all DRAMs; None without any."""
    if not uses:
        return {"activations": None, "energy_pj": None}
    energy = [use.energy() for use in uses]
    parts = {f"dram_{kind}": round(1000 * sum(each[kind] for each in energy)) for kind in energy[0]}
    return {"activations": sum(use.counts.activations for use in uses), "energy_pj": parts}


def limit_of(cycles: int, fastest: int, peak: int | None) -> str:
    """What decides a step's cycles.

    ``memory``: its bytes at the memory's peak take BOUND of them. ``compute``: it takes BOUND of
    them on a memory that answers in the next cycle. Both: the longer. Neither: ``latency``, the
    design waits for rows that the memory could give sooner.
    """
    shares = {"compute": fastest / cycles, "memory": (peak or 0) / cycles}
    longest = max(shares, key=lambda name: shares[name])
    return longest if shares[longest] >= BOUND else "latency"
