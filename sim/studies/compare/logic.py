"""Area of the designs' logic, and what it costs in a step.

Each design is mapped by hierarchy, at its own parameters: area, flip-flops, bits of memory. Its
energy is an estimate of four parts. *Arithmetic* is priced by operations: each unit of UNITS runs
its testbench on its mapped netlist, on real data, and costs the same in a core for each beat, in
proportion to the elements of a head. *Clock pins* are of all flip-flops in every cycle of the step,
*leakage* of the whole area for its time. Left out: arithmetic without a unit here (the shell around
a core's array, tables, LAD's other arithmetic), memories on the chip, wires, the clock tree.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sim.core.jobs.executor import Task
from sim.studies.compare.data import SMOLLM2_D, Shape

SOURCES = ("hw", "golden", "sim/synth", "sim/checks/gate_run.py", "sim/testbenches")
"""Files that decide areas and energies."""
LIBRARY = "nangate45"
RUNS = 4
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
    if design == "lad.lad_tile":
        return {"vector": k + v + other}
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
        f"energy of {unit.block}": Task(
            f"energy of {unit.block}",
            energy.measure,
            (unit.block, unit.parameters, unit.vectors, seeds, library, sha256),
        )
        for unit in UNITS.values()
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
        """pJ of a flip-flop's clock pin in a cycle."""
        return self._mean("clock_fj", "flipflops") * PICO

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
    }


def energy_of(row: Mapping[str, Any], shape: Shape, prices: Prices) -> dict[str, float]:
    """pJ of a step's logic by part, from a row with its area."""
    settled = glitches = 0.0
    for unit, count in operations(row, shape).items():
        each = prices.operation(unit, shape.d)
        settled, glitches = settled + count * each[0], glitches + count * each[1]
    parts = {
        "arithmetic": settled,
        "arithmetic_glitches": glitches,
        "clock": prices.clock * row["flipflops"] * row["cycles"],
        "leakage": prices.leakage * row["area_um2"] * row["seconds"] * 1e6,
    }
    return {name: round(value) for name, value in parts.items()}


def bounds(parts: Mapping[str, float]) -> tuple[float, float]:
    """pJ without glitches and with them."""
    most = sum(parts.values())
    return most - parts["arithmetic_glitches"], most
