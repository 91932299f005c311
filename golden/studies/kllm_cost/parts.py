"""Table I row by row, beside this project's blocks."""

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
    made = []
    for part in paper.PARTS:
        unit = 1e6 * part.area / part.units
        cells = [part.name, f"{unit:.4g}"]
        bit = f"{unit / (8192 * part.kilobytes):.2f}" if part.kilobytes else ""
        joules = part.power / part.units / setting.core.clock
        cells += [bit, f"{part.power / part.area:.3f}", f"{joules * 1e12:.3g}"]
        if part.name in OWN:
            own, block = OWN[part.name]
            ratio = unit * SCALE / own
            verdict = Verdict.HOLDS if 1 / LIKE <= ratio <= LIKE else Verdict.NOT
            cells += [f"{unit * SCALE:.4g}", f"{own:.4g} ({block})", f"{ratio:.2f}", verdict]
        else:
            cells += [f"{unit * SCALE:.4g}", "", "", f"{Verdict.UNKNOWN}: its ports are not stated"]
        made.append(cells)
    return Table(
        f"Table I row by row; {Verdict.HOLDS} if areas at 45 nm (×{SCALE:.2f}) are within a factor"
        f" of {LIKE}",
        [
            "row",
            "µm² a unit",
            "µm² a bit",
            "W/mm²",
            "pJ a unit and cycle",
            "µm² at 45 nm",
            "here, µm²",
            "times ours",
            "area",
        ],
        made,
    )
