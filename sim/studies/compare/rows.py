"""What is measured of designs on one memory, beside what the memory alone would allow."""

import dataclasses
import functools
import shlex
import time
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from hw.parameters import ParameterError, require
from sim.core import payload
from sim.core.dram.timing import DramTiming, DramUse, drams_of, parse_timing
from sim.core.memory import FASTEST, MemoryTiming
from sim.studies.compare.data import LayerData, Shape, layer_data
from sim.studies.compare.designs import ALGORITHMS, PORTS, Chosen, choose
from sim.studies.compare.step import LayerStep, Ran, bytes_of, run_step

BOUND = 0.8
"""Share of a step's cycles from which on one thing alone explains them."""
IDEAL = "ideal"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the rows of a memory share.

    memory
        ``ideal``, or a memory as `sim run` has it, without a clock.
    clock
        Frequency of all designs, in MHz, as text.
    trace, digest
        File of queries, keys and values, and its content's hash.
    :raises ParameterError: for a memory or a clock that cannot be.
    """

    shape: Shape
    memory: str
    clock: str
    trace: str | None = None
    digest: str = ""

    def __post_init__(self):
        assert self.mhz and self.timing

    @property
    def mhz(self) -> Decimal:
        try:
            clock = Decimal(self.clock)
        except InvalidOperation:
            clock = Decimal("nan")
        fits = clock.is_finite() and 0 < clock <= 10_000
        require(fits, "clock must be a number of MHz above 0, at most 10000", self.clock)
        return clock

    @functools.cached_property
    def timing(self) -> MemoryTiming:
        if self.memory == "ideal":
            return FASTEST
        timing = parse_timing(self.memory)
        if not isinstance(timing, DramTiming):
            return timing
        if ",clock=" in self.memory:
            raise ParameterError("--memory: give the clock by --clock")
        return parse_timing(f"{self.memory},clock={self.mhz:f}")

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
        return -int(-count * float(self.mhz) * 1e6 // peak)

    def seconds(self, cycles: int) -> float:
        return cycles / (float(self.mhz) * 1e6)

    def command(self, name: str, settings: Sequence[str]) -> str:
        """The command that gives a design's row."""
        s = self.shape
        words = ["python", "-m", "sim", "compare", "--d", s.d, "--n", s.n, "--heads", s.heads]
        words += ["--kv-heads", s.kv_heads, "--memory", self.memory, "--clock", self.clock]
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
    count = {"k_read": row * shape.n, "v_read": row * shape.n}
    count |= {"k_written": row, "v_written": row}
    return {
        "design": IDEAL,
        "n": shape.n,
        "memory": setting.memory,
        "knob": "all rows, shared",
        "cycles": cycles,
        "cycles_ideal_port": None,
        "cycles_at_peak": cycles,
        "seconds": setting.seconds(cycles),
        "bytes": count,
        "activations": None,
        "energy_pj": None,
        "share_of_peak": 1.0,
        "limit": "memory",
        "source": "bytes / peak",
    }


def measure(name: str, settings: Sequence[Setting], sets: Sequence[str]) -> list[dict[str, Any]]:
    """A design's or an algorithm's rows at one shape, on one memory after another.

    :raises ToolError: if the RTL differs from the bit-exact model.
    """
    shape, trace = settings[0].shape, settings[0].trace
    data = layer_data(shape, None if trace is None else Path(trace))
    if name in ALGORITHMS:
        return [moved(name, setting, sets, data) for setting in settings]
    steps: list[tuple[Chosen, LayerStep, Ran]] = []
    rows = []
    for setting in settings:
        began = time.process_time()
        chosen = choose(name, shape, setting.channels, sets)
        found = next((of for of in steps if of[0] == chosen), None)
        if found is None:
            step = chosen.step(shape, data)
            found = chosen, step, run_step(step, FASTEST)
            steps.append(found)
        _, step, fastest = found
        ran = fastest if setting.timing.is_fastest else run_step(step, setting.timing)
        row = figures_of(step, setting, ran, fastest.cycles)
        cpu_s = round(time.process_time() - began, 1)
        source = {"source": setting.command(name, sets)}
        parameters = {"parameters": dataclasses.asdict(step.design.parameters)}
        more = {"data": data.about, "cpu_s": cpu_s}
        rows.append({"design": name} | row | source | parameters | more)
    return rows


def moved(name: str, setting: Setting, sets: Sequence[str], data: LayerData) -> dict[str, Any]:
    """An algorithm's row on a DRAM."""
    timing = setting.timing
    assert isinstance(timing, DramTiming)
    moves = choose(name, setting.shape, setting.channels, sets).moves(setting.shape, data)
    use = moves.through(timing)
    per_cycle, per_clock = timing.ratio
    cycles = -(-use.clocks * per_clock // per_cycle)
    peak = setting.cycles_at_peak(sum(moves.bytes.values()))
    assert peak is not None
    return {
        "design": name,
        "n": setting.shape.n,
        "memory": setting.memory,
        "knob": moves.knob,
        "cycles": cycles,
        "cycles_ideal_port": None,
        "cycles_at_peak": peak,
        "seconds": setting.seconds(cycles),
        "bytes": moves.bytes,
        **dram_figures([use]),
        "share_of_peak": round(peak / cycles, 4),
        "limit": limit_of(cycles, 0, peak),
        "source": setting.command(name, sets),
        "data": data.about,
    }


def figures_of(step: LayerStep, setting: Setting, ran: Ran, fastest: int) -> dict[str, Any]:
    """What a step's run on a memory gives; `fastest` are its cycles on the ideal port."""
    outcome = ran.outcome
    count = bytes_of(step, outcome)
    peak = setting.cycles_at_peak(sum(count.values()))
    return {
        "n": setting.shape.n,
        "memory": setting.memory,
        "knob": step.knob,
        "cycles": outcome.cycles,
        "cycles_ideal_port": fastest,
        "cycles_at_peak": peak,
        "seconds": setting.seconds(outcome.cycles),
        "bytes": count,
        **dram_figures(drams_of(outcome.memories)),
        "share_of_peak": None if peak is None else round(peak / outcome.cycles, 4),
        "limit": limit_of(outcome.cycles, fastest, peak),
        "bits_compared": bits_of(step),
        "memories": [of.figures() for of in ran.accesses],
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
