"""Units of a paper's table of areas, made of the parts of a core that was mapped by hierarchy.

From rows of ``python -m sim synth BLOCK --hierarchy --json``, which `sim tables --add` keeps.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from sim.core.tools import UnusableFile

MODE = "area, by hierarchy"
NM = 45
"""Name of the technology of the areas here, in nm."""


@dataclasses.dataclass(frozen=True)
class UnitArea:
    """Mapped area of a unit, and bits of its memories that are not in this area."""

    logic_um2: float
    memory_bits: int

    def __add__(self, other: "UnitArea") -> "UnitArea":
        bits = self.memory_bits + other.memory_bits
        return UnitArea(self.logic_um2 + other.logic_um2, bits)

    def __mul__(self, number: int) -> "UnitArea":
        return UnitArea(number * self.logic_um2, number * self.memory_bits)

    def __sub__(self, inside: "UnitArea") -> "UnitArea":
        return self + inside * -1


NOTHING = UnitArea(0, 0)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of the paper, as modules here.

    modules
        Modules that are the unit with all that is inside them, and how many of each the core has.
    inside
        Modules inside these that are other units, and how many of each.
    """

    modules: Mapping[str, int]
    inside: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def area(self, parts: Mapping[str, Mapping]) -> UnitArea:
        """Sum over the modules.

        parts
            Parts of a row of ``synthesis.json`` by module.

        :raises ValueError: if a module's number differs.
        """

        def whole(module: str, number: int, all_of_them: bool) -> UnitArea:
            part = parts.get(module, {"instances": 0})
            there = part["instances"]
            if there != number if all_of_them else there < number:
                raise ValueError(f"{number} × {module}, not {there}")
            return UnitArea(part["whole_um2"], part["whole_memory_bits"]) * number

        area = NOTHING
        for module, number in self.modules.items():
            area += whole(module, number, True)
        for module, number in self.inside.items():
            area -= whole(module, number, False)
        return area


def shares(areas: Mapping[str, float]) -> dict[str, float]:
    """Each area in percent of all."""
    total = sum(areas.values())
    return {name: 100 * area / total for name, area in areas.items()}


@dataclasses.dataclass(frozen=True)
class Core:
    """A paper's table of areas, and the core here whose units are beside it.

    nm
        Name of the paper's technology.
    um2
        The paper's areas by unit, in µm².
    units
        Units here. Units of the paper that are not among them have no counterpart.
    rest
        Unit that has all else of the core.
    buffer, buffer_bits
        The paper's buffer whose density prices memories, and its bits; 0: they have no price.
    pooled
        The buffer has the memories of all units.
    presets
        The presets mapped, the one beside the paper's table last.
    """

    block: str
    nm: int
    um2: Mapping[str, float]
    units: Mapping[str, Unit]
    rest: str = "the rest"
    buffer: str = ""
    buffer_bits: int = 0
    pooled: bool = False
    presets: tuple[str, ...] = ("paper",)

    @property
    def scale(self) -> float:
        """Area in 45 nm over area in the paper's, by the squares of the technologies' names."""
        return (NM / self.nm) ** 2

    @property
    def bit_um2(self) -> float:
        """Area of a bit of memory in 45 nm, by the paper's buffer."""
        return self.um2[self.buffer] * self.scale / self.buffer_bits if self.buffer_bits else 0

    def area(self, unit: UnitArea) -> float:
        """µm² of a unit with its memories, if these have a price."""
        return unit.logic_um2 + self.bit_um2 * unit.memory_bits

    def areas(self, units: Mapping[str, UnitArea]) -> dict[str, float]:
        """The same of all units, by name."""
        return {name: self.area(unit) for name, unit in units.items()}

    def units_of(self, row: Mapping) -> dict[str, UnitArea]:
        """Area of each unit, the paper's rows first; they add up to the core's.

        row
            Row of ``synthesis.json`` with `parts`.

        :raises ValueError: if the core has not the number of a unit's modules.
        """
        parts = {part["module"]: part for part in row["parts"]}
        found = {}
        for name, unit in self.units.items():
            try:
                found[name] = unit.area(parts)
            except ValueError as mistake:
                core = f"{row['block']} {row['preset']}"
                raise ValueError(f"{name} of {core} must be {mistake}") from None
        rest = UnitArea(row["area_um2"], row["memory_bits"])
        for area in found.values():
            rest -= area
        found[self.rest] = rest
        if self.pooled:
            found = {name: UnitArea(unit.logic_um2, 0) for name, unit in found.items()}
            found[self.buffer] = UnitArea(0, row["memory_bits"])
        return {name: found[name] for name in [*self.um2, *found] if name in found}

    def kept(self, rows: Iterable[dict]) -> dict[str, dict]:
        """Rows of the presets by hierarchy in area mode, by preset.

        :raises UnusableFile: if one is not among the rows.
        """
        of = [row for row in rows if (row["block"], row["mode"]) == (self.block, MODE)]
        found = {row["preset"]: row for row in of if row["preset"] in self.presets}
        for preset in self.presets:
            if preset not in found:
                raise UnusableFile(f"the kept areas lack {self.block} {preset}, {MODE}")
        return {preset: found[preset] for preset in self.presets}
