"""Area of the designs' logic, and what it costs in a step.

Each design is mapped by hierarchy, at its own parameters: area, flip-flops, bits of memory. Its
energy is an estimate of five parts. *Arithmetic* is priced by operations: each unit of UNITS runs
its testbench on its mapped netlist, on real data, and costs the same in a core for each beat, in
proportion to the elements of a head. *Clock* is the pins of all flip-flops in every cycle of the
step, and the buffers of a tree to them, *leakage* is what the area and the memories' bits lose in
its time, *memories* each access to a memory on the chip that was counted in the step. *Wires*
are WIRES of toggles and clock. Left out: arithmetic without a unit here (the shell around a core's
array, tables, LAD's other arithmetic).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sim.core.jobs.executor import Task
from sim.studies.areas.veda import BIT_UM2
from sim.studies.compare.data import SMOLLM2_D, Shape
from sim.synth.memories import LEAKAGE_NW, access_pj

SOURCES = ("hw", "golden", "sim/synth", "sim/checks/gate_run.py", "sim/testbenches")
"""Files that decide areas and energies."""
LIBRARY = "nangate45"
VOLTS = 1.1
"""Voltage of the library."""
RUNS = 4
WIRES = {"arithmetic": 0.24, "arithmetic_glitches": 0.24, "clock": 0.08}
"""What wires between close neighbours, 0.18 fF/µm, add to the parts, at most of what was measured
with placed cells of three blocks (docs/measured.md, "Wires"); at least is nothing."""
BUFFER_FJ, FAN_OUT = 12.3, 20
"""A buffer of the clock tree in a cycle, and pins or buffers behind each: what CLKBUF_X3 takes for
both edges at such a load, and its pin."""
PICO = 1e-3
"""pJ of a fJ."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """A block whose operations are priced.

    settings
        Parameters that differ from the preset's, which has heads of SMOLLM2_D elements.
    vectors
        Transactions of a run.
    operations
        Function of the row of ``python -m sim energy``: operations in a run.
    what
        An operation, in words.
    """

    block: str
    preset: str
    vectors: int
    operations: Callable[[Mapping[str, Any]], float]
    what: str
    settings: tuple[str, ...] = ()

    @property
    def parameters(self) -> Any:
        from hw.catalogue import find

        preset = find(self.block).parameters_class.preset(self.preset)
        return preset.replace_from_text([*self.settings])

    @property
    def command(self) -> str:
        """The command that measures it."""
        sets = "".join(f" --set {setting}" for setting in self.settings)
        line = f"python -m sim energy {self.block} --preset {self.preset}{sets}"
        return f"{line} --vectors {self.vectors} --runs {RUNS} --json"


def beats(*streams: str) -> Callable[[Mapping[str, Any]], float]:
    """Beats of these streams in a run."""
    return lambda row: sum(row["beats"][name] for name in streams)


KLLM_LANE = "k=64", "counters=4", "macs=64", "entries=6", "columns=6"

UNITS = {
    "array": Unit(
        "attention.pe_array", "default", 6, beats("i"), "d products and d sums, FP16 into FP32"
    ),
    "score": Unit("attention.special_function_unit", "scores", 24, beats("i"), "a softmax's score"),
    "search": Unit(
        "tsuru.row_search", "default", 2, beats("words"), "a word of 8 rows' codes, three queries"
    ),
    "chunk": Unit(
        "topick.pe_lane", "default", 80, beats("response", "value"), "a chunk of 4 bits times d"
    ),
    "vector": Unit("lad.vpu", "default", 100, beats("i"), "d products, and d sums of half of them"),
    "plane": Unit(
        "unicaim.serial_array",
        "default",
        4,
        lambda row: (
            row["results"]["values"] * row["parameters"]["query_bits"] * row["parameters"]["rows"]
        ),
        "a row's levels times one bit of each element of a query",
        ("query_bits=3",),
    ),
    # A word of the core has the positions of a head: a key is one step of a lane, a channel of
    # the values has several, and is reduced once.
    "key": Unit("kllm.pe_lane", "small", 36, beats("i"), "d positions of a key", KLLM_LANE),
    "values": Unit(
        "kllm.pe_lane",
        "small",
        18,
        beats("i"),
        "d positions of a channel of the values",
        ("k=512", *KLLM_LANE[1:]),
    ),
}


def operations(row: Mapping[str, Any], shape: Shape) -> dict[str, float]:
    """How often a design's step uses each unit, from the rows that it moves."""
    design, moved, group = row["design"], row["bytes"], shape.group
    k, v, other = (moved.get(f"{kind}_read", 0) / (2 * shape.d) for kind in ("k", "v", "other"))
    if design in ("baseline.dense_core", "veda.veda_core"):  # a row read serves a group
        return {"array": (k + v) * group, "score": k * group}
    if design == "tsuru.tsuru_core":  # a word of a row has K and V
        return {"search": k, "array": 2 * other * group, "score": other * group}
    if design == "topick.topick_core":
        bits = row["parameters"]["chunk_bits"]
        return {"chunk": (k + v) * 16 / bits}
    if design in ("lad.lad_tile", "lad.lad_system"):
        return {"vector": k + v + other}
    if design == "kllm.kllm_core":  # a row's bytes have four bits for each position
        return {"key": 4 * k * group, "values": 4 * v * group}
    found = {"array": k + v, "score": k}
    if design == "unicaim.unicaim_core":
        planes = row["parameters"]["query_bits"] * row["parameters"]["rows"]
        found["plane"] = shape.heads * planes
    return found


def tasks(chosen: Iterable[tuple[str, Any]]) -> list[Task]:
    """What is to be measured for designs and their parameters, each once."""
    from sim.commands import energy, mapping
    from sim.synth import measure

    library, sha256 = mapping.library_of(LIBRARY)
    target = measure.Target(library, sha256, mode="area", hierarchy=True)
    seeds = range(1, RUNS + 1)
    found = {
        name: Task(
            f"energy of {unit.block}, {unit.what}",
            energy.measure,
            (unit.block, unit.parameters, unit.vectors, seeds, library, sha256),
        )
        for name, unit in UNITS.items()
    }
    for name, parameters in chosen:
        arguments = name, "", parameters, target
        found.setdefault(
            repr((name, parameters)), Task(f"area of {name}", measure.measure, arguments)
        )
    return [*found.values()]


@dataclasses.dataclass(frozen=True)
class Prices:
    """What units cost, from their rows of ``python -m sim energy`` by unit."""

    rows: Mapping[str, Mapping[str, Any]]

    def operation(self, unit: str, d: int) -> tuple[float, float]:
        """pJ of an operation on heads of d elements: settled values' toggles, and glitches."""
        row = self.rows[unit]
        each = UNITS[unit].operations(row) * SMOLLM2_D / d
        return row["settled_fj"] * PICO / each, row["glitches_fj"] * PICO / each

    def _mean(self, of: str, over: str) -> float:
        return sum(row[of] for row in self.rows.values()) / sum(
            row[over] for row in self.rows.values()
        )

    @property
    def clock(self) -> float:
        """pJ of a flip-flop's clock pin in a cycle, and of its share of the tree."""
        return (self._mean("clock_fj", "flipflops") + BUFFER_FJ / (FAN_OUT - 1)) * PICO

    @property
    def leakage(self) -> float:
        """µW of a µm²."""
        return self._mean("leakage_uw", "area_um2")


def area_of(entry: Any) -> dict[str, Any]:
    """Figures of a design that was mapped by hierarchy."""
    return {
        "area_um2": entry.area_um2,
        "flipflops": entry.flipflops,
        "memory_bits": entry.memory_bits,
        "memory_um2": round(BIT_UM2 * entry.memory_bits),
    }


def memories_of(row: Mapping[str, Any]) -> float:
    """pJ of all accesses to memories on the chip."""
    return sum(
        of["reads"] * access_pj(of["rows"], of["bits"], VOLTS)
        + access_pj(of["rows"], of["bits_written"], VOLTS)
        for of in row["memories"]
    )


def energy_of(row: Mapping[str, Any], shape: Shape, prices: Prices) -> dict[str, float]:
    """pJ of a step on the chip by part, from a row with its area."""
    settled = glitches = 0.0
    for unit, count in operations(row, shape).items():
        each = prices.operation(unit, shape.d)
        settled, glitches = settled + count * each[0], glitches + count * each[1]
    leaks = prices.leakage * row["area_um2"] + LEAKAGE_NW * row["memory_bits"] / 1000  # µW
    parts = {
        "arithmetic": settled,
        "arithmetic_glitches": glitches,
        "clock": prices.clock * row["flipflops"] * row["cycles"],
        "leakage": leaks * row["seconds"] * 1e6,
        "memories": memories_of(row),
    }
    parts["wires"] = sum(share * parts[name] for name, share in WIRES.items())
    return {name: round(value) for name, value in parts.items()}


def bounds(parts: Mapping[str, float]) -> tuple[float, float]:
    """pJ without glitches and wires, and with both."""
    most = sum(parts.values())
    return most - parts["arithmetic_glitches"] - parts["wires"], most
