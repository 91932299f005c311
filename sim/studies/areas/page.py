"""A page of areas by unit: the core beside the paper's table, and what cannot be compared."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from golden.studies.study import Claim, Study, Table
from sim.studies.areas.units import NM, NOTHING, Core, UnitArea, shares

LARGEST = 10
"""Parts in the table of the largest ones."""

Units = Mapping[str, UnitArea]


@dataclasses.dataclass(frozen=True)
class Page:
    """What a page says beside its tables.

    name
        Name of the paper's page and of its files.
    table
        The paper's table, in words.
    presets
        What the presets are.
    memories
        How memories are priced, or why they are not.
    technology, clock
        The paper's, and what mapping for its clock costs.
    notes
        More that cannot be compared, as points of a list.
    claims
        Verdicts, from the units of the preset beside the table.
    """

    core: Core
    name: str
    title: str
    table: str
    presets: str
    memories: str
    technology: str
    clock: str
    notes: str
    claims: Callable[[Units], list[Claim]]

    def study(self, rows: Iterable[dict]) -> Study:
        """The paper's shares of area beside ours.

        rows
            Rows of ``synthesis.json``, with the core's presets by hierarchy in area mode.
        """
        kept = self.core.kept(rows)
        units = {preset: self.core.units_of(row) for preset, row in kept.items()}
        last = self.core.presets[-1]
        tables = [beside(self.core, units[last], f"The preset `{last}` beside {self.table}")]
        tables += [configurations(kept, units)] if len(kept) > 1 else []
        tables += [largest(kept[last], f"The largest parts of `{last}`, without what is in them")]
        name, title = f"{self.name}_area", f"{self.title}: area by unit ({self.table})"
        return Study(name, title, self.setting(), self.claims(units[last]), tables)

    def setting(self) -> str:
        """What was mapped, by which command, and what cannot be compared."""
        core = self.core
        scale = f"({NM}/{core.nm})² = {core.scale:.2f}"
        return (
            f"{self.presets} Nangate {NM} nm, for the smallest"
            " area; each module is mapped once and counted by its instances, without wires"
            " ([what that means](../measured.md#areas-by-hierarchy)). The areas are in"
            f" `docs/results/synthesis.json`, by `python -m sim synth {core.block} --preset"
            f" {' '.join(core.presets)} --hierarchy --mode area --liberty nangate45 --json`, and"
            " `python -m sim areas -o FOLDER` writes this page.\n\n"
            "What cannot be compared:\n\n"
            "- *Memories.* The library has no SRAM macros. Memories of more than 4096 bits are"
            f" counted in bits{self.memories}\n"
            f"- *Technology.* The paper has {self.technology}; its areas are scaled by {scale}."
            " The ratios of gates, flip-flops and memory differ between libraries, so"
            " absolute areas say little, and shares are compared.\n"
            f"- *Clock.* The paper is synthesised for {self.clock}. By"
            " hierarchy a core has no clock, as paths between modules are not seen.\n"
            f"{self.notes}"
        )


def priced(core: Core, buffer: str) -> str:
    """Memories by the density of the paper's buffer, for `Page.memories`."""
    return (
        f", and priced by {buffer}, {core.bit_um2:.2f} µm² a bit after scaling. So"
        " the buffer's area is the paper's, and only what is beside it is measured."
    )


def beside(core: Core, ours: Units, title: str) -> Table:
    """A core beside the paper's table; a unit of one side alone has no figures on the other."""
    theirs, share = shares(core.um2), shares(core.areas(ours))
    columns = ["unit", "paper, mm²", "scaled, mm²", "share, %", "here, logic, mm²", "memory, bits"]
    columns += [*(["with memory, mm²"] if core.bit_um2 else []), "share, %", "of the scaled"]

    def cells(name: str, paper: float | None, unit: UnitArea | None, *percent: float) -> list[str]:
        row = [name]
        if paper is None:
            row += [""] * 3
        else:
            row += [f"{paper / 1e6:.3f}", f"{core.scale * paper / 1e6:.3f}", f"{percent[0]:.1f}"]
        if unit is None:
            return row + [""] * (len(columns) - len(row))
        row += [f"{unit.logic_um2 / 1e6:.3f}", f"{unit.memory_bits:,}"]
        row += [f"{core.area(unit) / 1e6:.3f}"] if core.bit_um2 else []
        ratio = "" if paper is None else f"{core.area(unit) / (core.scale * paper):.2f}"
        return [*row, f"{percent[1]:.1f}", ratio]

    rows = [
        cells(name, core.um2.get(name), ours.get(name), theirs.get(name, 0), share.get(name, 0))
        for name in dict.fromkeys([*core.um2, *ours])
    ]
    whole = sum(ours.values(), NOTHING)
    rows.append(cells("all", sum(core.um2.values()), whole, 100, 100))
    return Table(title, columns, rows)


def configurations(kept: Mapping[str, Mapping], units: Mapping[str, Units]) -> Table:
    """What was mapped, and each unit's share of the logic."""
    columns = ["preset", "logic, µm²", "flip-flops", "memory, bits"]
    columns += [f"{name}, %" for name in next(iter(units.values()))]
    rows = []
    for preset, row in kept.items():
        numbers = (row["area_um2"], row["flipflops"], row["memory_bits"])
        share = shares({name: unit.logic_um2 for name, unit in units[preset].items()})
        figures = (f"{value:.1f}" for value in share.values())
        rows.append([preset, *(f"{number:,.0f}" for number in numbers), *figures])
    return Table("Logic alone, memories left out", columns, rows)


def largest(row: Mapping, title: str) -> Table:
    """Parts of a row of ``synthesis.json`` with most area, without what is in them."""

    def own(part: Mapping) -> float:
        return part["instances"] * part["area_um2"]

    parts = sorted(row["parts"], key=own, reverse=True)[:LARGEST]
    return Table.of(
        title,
        parts,
        ("module", "`{0[module]}`"),
        ("instances", "{0[instances]:,}"),
        ("µm² of one", "{0[area_um2]:,.0f}"),
        ("mm² of all", lambda part: f"{own(part) / 1e6:.3f}"),
        ("of the logic, %", lambda part: f"{100 * own(part) / row['area_um2']:.1f}"),
    )
