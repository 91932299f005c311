"""Areas of VEDA's core by unit beside the paper's (VEDA, Table I).

From rows of ``python -m sim synth veda.veda_core --hierarchy --json``, which `sim tables --add`
keeps.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from golden.studies.study import Claim, Study, Table, Verdict, close
from hw.veda.veda_core_parameters import VedaCoreParameters

PAPER_UM2 = {
    "PE array": 493e3,
    "voting engine": 69e3,
    "special function unit": 29e3,
    "schedule": 41e3,
    "on-chip buffer": 426e3,
}
"""The paper's areas (Table I), in TSMC 28 nm."""

UNITS = {
    "PE array": ("pe_array", None),
    "voting engine": ("voting_engine", None),
    "special function unit": ("compared_rows", "pe_array"),
    "on-chip buffer": ("reorder_buffer", None),
}
"""Module of each unit, and a module inside it that is another unit. The rest is the schedule.

The special function unit is mapped with what joins it to the array.
"""

SCALE = (45 / 28) ** 2
"""Area in 45 nm over area in 28 nm, by the squares of the names of the technologies."""

BUFFER_BITS = 8 * 256 * 1024
BIT_UM2 = PAPER_UM2["on-chip buffer"] * SCALE / BUFFER_BITS
"""Area of a bit of memory in 45 nm, by the paper's buffer."""

PRESETS, MODE = ("default", "paper"), "area, by hierarchy"


@dataclasses.dataclass(frozen=True)
class UnitArea:
    """Mapped area of a unit, and bits of its memories that are not in this area."""

    logic_um2: float
    memory_bits: int

    @property
    def um2(self) -> float:
        """With memories, by the density of the paper's buffer."""
        return self.logic_um2 + BIT_UM2 * self.memory_bits

    def __sub__(self, inside: "UnitArea") -> "UnitArea":
        bits = self.memory_bits - inside.memory_bits
        return UnitArea(self.logic_um2 - inside.logic_um2, bits)


def units_of(row: Mapping) -> dict[str, UnitArea]:
    """Area of each unit of a core that was mapped by hierarchy.

    row
        Row of ``synthesis.json`` with `parts`.

    :raises ValueError: if a unit's module is not among the parts, once.
    """
    parts = {part["module"]: part for part in row["parts"]}

    def whole(unit: str, module: str) -> UnitArea:
        part = parts.get(module)
        if part is None or part["instances"] != 1:
            raise ValueError(f"{unit} of {row['block']} {row['preset']} must be a single part")
        return UnitArea(part["whole_um2"], part["whole_memory_bits"])

    found = {}
    for unit, (module, inside) in UNITS.items():
        found[unit] = whole(unit, module)
        if inside:
            found[unit] -= whole(unit, inside)
    schedule = UnitArea(row["area_um2"], row["memory_bits"])
    for area in found.values():
        schedule -= area
    found["schedule"] = schedule
    return {unit: found[unit] for unit in PAPER_UM2}


def shares(areas: Mapping[str, float]) -> dict[str, float]:
    """Each area in percent of all."""
    total = sum(areas.values())
    return {name: 100 * area / total for name, area in areas.items()}


def kept_rows(rows: Iterable[dict]) -> dict[str, dict]:
    """Rows of the core by hierarchy in area mode, by preset."""
    found = {
        row["preset"]: row
        for row in rows
        if (row["block"], row["mode"]) == ("veda.veda_core", MODE)
    }
    return {preset: found[preset] for preset in PRESETS}


def area_study(rows: Iterable[dict]) -> Study:
    """The paper's shares of area beside ours.

    rows
        Rows of ``synthesis.json``, with the core's PRESETS by hierarchy in area mode.
    """
    kept = kept_rows(rows)
    units = {preset: units_of(row) for preset, row in kept.items()}
    ours = units["paper"]
    tables = [_beside(ours), _configurations(kept, units)]
    return Study("veda_area", "VEDA: area by unit (Table I)", _setting(), _claims(ours), tables)


def _setting() -> str:
    p = VedaCoreParameters.presets()["paper"]
    return (
        f"`paper` has the paper's {p.d} PEs, {p.capacity} slots and a buffer of {p.depth} rows of"
        f" {p.d} FP16 numbers, `default` 64 PEs and 256 slots. Nangate 45 nm, for the smallest"
        " area; each module is mapped once and counted by its instances, without wires"
        " ([what that means](../measured.md#areas-by-hierarchy)). The areas are in"
        " `docs/results/synthesis.json`, by `python -m sim synth veda.veda_core --preset default"
        " paper --hierarchy --mode area --liberty nangate45 --json`, and `python -m sim ablation"
        " --area FILE.md` writes this page.\n\n"
        "What cannot be compared:\n\n"
        "- *Memories.* The library has no SRAM macros. Memories of more than 4096 bits are counted"
        f" in bits, and priced by the paper's own buffer, {BIT_UM2:.2f} µm² a bit after scaling. So"
        " the buffer's area is the paper's, and only what is beside it is measured.\n"
        "- *Technology.* The paper has TSMC 28 nm; its areas are scaled by (45/28)² ="
        f" {SCALE:.2f}. The ratios of gates, flip-flops and memory differ between libraries, so"
        " absolute areas say little, and shares are compared.\n"
        "- *Clock.* The paper is synthesised for 1 GHz. For the smallest area, adders are slower: a"
        " PE that meets 1 GHz has 1.5 times the area ([PEs](../veda.md#area-and-delay)). By"
        " hierarchy a core has no clock, as paths between modules are not seen.\n"
        "- *Formats.* Sums are FP32 here and scores of votes have 30 bits, where the paper has FP16"
        " and 16 bits."
    )


def _claims(ours: Mapping[str, UnitArea]) -> list[Claim]:
    share, theirs = shares({name: unit.um2 for name, unit in ours.items()}), shares(PAPER_UM2)
    total = sum(unit.um2 for unit in ours.values())
    array, buffer, votes, functions = (
        *("PE array", "on-chip buffer", "voting engine", "special function unit"),
    )
    largest = {*sorted(share, key=share.__getitem__)[-2:]}
    ratio = ours[array].logic_um2 / (SCALE * PAPER_UM2[array])

    def logic(name: str) -> str:
        return f"its logic alone is {100 * ours[name].logic_um2 / total:.1f} %"

    return [
        Claim(
            "PE array and buffer dominate the area (46.6 and 40.3 %)",
            f"{share[array]:.1f} and {share[buffer]:.1f} %",
            Verdict.of(largest == {array, buffer}, close(share[array], theirs[array])),
            f"they are the largest units, but the array has {ratio:.2f} of the paper's scaled area,"
            " which raises all other shares",
        ),
        Claim(
            "the special function unit has less than 3 % (2.7 %)",
            f"{share[functions]:.1f} %",
            Verdict.of(share[functions] < 3),
            f"{logic(functions)}; its FIFO holds the scores of two heads of 4096 rows, where the"
            " paper's has 32",
        ),
        Claim(
            "the voting engine costs 6.5 %",
            f"{share[votes]:.1f} %",
            Verdict.of(close(share[votes], theirs[votes])),
            f"{logic(votes)}; the rest is memory: scores of 30 bits, counts of 16 and positions of"
            " 24, where the paper has two memories of 16 bits",
        ),
        Claim(
            "scheduling and control have 3.9 %",
            f"{share['schedule']:.1f} %",
            Verdict.of(close(share["schedule"], theirs["schedule"])),
            "here with the map of rows, the reader's control, ports and queues; the paper does not"
            " say what is in it",
        ),
    ]


def _beside(ours: Mapping[str, UnitArea]) -> Table:
    """The core `paper` beside Table I."""
    theirs, share = shares(PAPER_UM2), shares({name: unit.um2 for name, unit in ours.items()})
    columns = ["unit", "paper, mm²", "scaled, mm²", "share, %"]
    columns += ["here, logic, mm²", "memory, bits", "with memory, mm²", "share, %"]

    def cells(name: str, area: float, unit: UnitArea, *percent: float) -> list[str]:
        figures = (area, SCALE * area, unit.logic_um2, unit.um2)
        paper, scaled, logic, whole = (f"{figure / 1e6:.3f}" for figure in figures)
        before, after = (f"{value:.1f}" for value in percent)
        return [name, paper, scaled, before, logic, f"{unit.memory_bits:,}", whole, after]

    rows = [
        cells(name, area, ours[name], theirs[name], share[name]) for name, area in PAPER_UM2.items()
    ]
    logic = sum(unit.logic_um2 for unit in ours.values())
    bits = sum(unit.memory_bits for unit in ours.values())
    rows.append(cells("all", sum(PAPER_UM2.values()), UnitArea(logic, bits), 100, 100))
    return Table("The preset `paper` beside Table I", columns, rows)


def _configurations(
    kept: Mapping[str, Mapping], units: Mapping[str, Mapping[str, UnitArea]]
) -> Table:
    """What was mapped, and each unit's share of the logic."""
    columns = ["preset", "logic, µm²", "flip-flops", "memory, bits"]
    rows = []
    for preset, row in kept.items():
        numbers = (row["area_um2"], row["flipflops"], row["memory_bits"])
        share = shares({name: unit.logic_um2 for name, unit in units[preset].items()})
        figures = (f"{value:.1f}" for value in share.values())
        rows.append([preset, *(f"{number:,.0f}" for number in numbers), *figures])
    columns += [f"{name}, %" for name in PAPER_UM2]
    return Table("Logic alone, memories left out", columns, rows)
