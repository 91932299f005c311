"""Table I row by row, beside this project's blocks."""

from collections.abc import Callable

from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.rates import Setting
from golden.studies.study import Table, Verdict

SCALE = (45 / 28) ** 2
"""Of areas, from 28 to 45 nm."""
LIKE = 2
"""Areas within this factor are taken to be of the same circuit."""
OWN = {
    "Concat Unit": (920 / 16, "concat_unit"),
    "IdxCounter": (17829, "index_distribution_counter with its registers"),
    "MAC": (2963, "arith.float_multiply_add, FP16, two stages, mapped for 2 ns"),
    "Clustering Unit": (14763, "clustering_unit, 16 values a cycle"),
    "Orizuru": (4861, "a leaf of 16 values"),
    "Functional Unit": (85685 + 6683 + 8788, "softmax, element_function, inverse_rms"),
}
"""um2 at 45 nm, Nangate, by `python -m hw synth` (docs/kllm.md)."""


def rows(setting: Setting) -> Table:
    """Area and energy of each unit, and a verdict on the area."""

    def ratio(part: paper.Part) -> float:
        return part.unit_area * SCALE / OWN[part.name][0]

    def verdict(part: paper.Part) -> str:
        if part.name not in OWN:
            return f"{Verdict.UNKNOWN}: its ports are not stated"
        return Verdict.HOLDS if 1 / LIKE <= ratio(part) <= LIKE else Verdict.NOT

    def if_own(cell: Callable[[paper.Part], str]) -> Callable[[paper.Part], str]:
        return lambda part: cell(part) if part.name in OWN else ""

    return Table.of(
        f"Table I row by row; {Verdict.HOLDS} if areas at 45 nm (×{SCALE:.2f}) are within a factor"
        f" of {LIKE}",
        paper.PARTS,
        ("row", "{.name}"),
        ("µm² a unit", "{.unit_area:.4g}"),
        ("µm² a bit", lambda part: f"{part.bit_area:.2f}" if part.kilobytes else ""),
        ("W/mm²", "{.power_density:.3f}"),
        ("pJ a unit and cycle", lambda part: f"{1e12 * part.joules(setting.core.clock):.3g}"),
        ("µm² at 45 nm", lambda part: f"{part.unit_area * SCALE:.4g}"),
        ("here, µm²", if_own(lambda part: "{:.4g} ({})".format(*OWN[part.name]))),
        ("times ours", if_own(lambda part: f"{ratio(part):.2f}")),
        ("area", verdict),
    )
