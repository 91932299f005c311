"""Figs. 10 to 12 of UniCAIM, drawn from the cost model."""

import functools
from typing import TYPE_CHECKING, Any

from golden.algorithms.unicaim.cost import PRUNINGS
from golden.evaluation.plots import figure
from golden.studies.study import Picture
from golden.studies.unicaim_cost.sweeps import Setting, conventional, cost, lengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    name: {"color": f"C{number}", "marker": marker, "markersize": size, "fillstyle": fill}
    for number, (name, (marker, size, fill)) in enumerate(
        zip(
            PRUNINGS,
            (("o", 4, "full"), ("s", 4, "full"), ("o", 9, "none"), ("s", 9, "none")),
            strict=True,
        )
    )
}
"""Curves that nearly coincide can be told apart: hollow markers around full ones."""


def pictures(setting: Setting) -> list[Picture]:
    """Devices, energy and delay."""
    ways = "ways to select, against the length of input and output"
    return [
        Picture(
            "unicaim_cost_devices",
            "devices against the length of input and output (Fig. 10)",
            lambda: _devices(setting),
        ),
        *(
            Picture(
                f"unicaim_cost_{name}",
                f"{name} of a step: {ways} ({where})",
                functools.partial(_cost, setting, quantity, f"{name} of a step, {unit}"),
            )
            for name, quantity, unit, where in (
                ("energy", "energy_pj", "pJ", "Fig. 11"),
                ("delay", "delay_ns", "ns", "Fig. 12"),
            )
        ),
    ]


def _devices(setting: Setting) -> "Figure":
    drawn = figure(9.6, 4.4)
    axes = drawn.subplots(1, 2, sharey=True)
    for one, swept in zip(axes, ("input", "output"), strict=True):
        for cells, line, at in (("1-bit", ":", setting.one_bit_cells()), ("3-bit", "-", setting)):
            _sweep(one, at, swept, "devices", line, f", {cells} cells")
        _lengths_axis(one, setting, swept)
    axes[0].set_ylabel("FeFETs and transistors")
    drawn.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    return drawn


def _cost(setting: Setting, quantity: str, label: str) -> "Figure":
    drawn = figure(12.0, 3.8)
    bars, *axes = drawn.subplots(1, 3)
    energy, delay = conventional(setting)
    heights = {
        "dense": getattr(cost(setting, "dense"), quantity),
        "conventional\ndynamic": {"energy_pj": energy, "delay_ns": delay}[quantity],
        "UniCAIM\ndynamic": getattr(cost(setting, "dynamic"), quantity),
    }
    bars.bar(list(heights), list(heights.values()), width=0.6)
    bars.set_ylabel(label)
    bars.set_title(
        f"input {setting.prompt}, output {setting.generated}, {setting.kept} % selected", size=9
    )
    for one, swept in zip(axes, ("input", "output"), strict=True):
        _sweep(one, setting, swept, quantity, "-", "")
        _lengths_axis(one, setting, swept)
    axes[1].sharey(axes[0])
    axes[0].legend(fontsize=8)
    return drawn


def _sweep(
    axes: "Axes", setting: Setting, swept: str, quantity: str, line: str, suffix: str
) -> None:
    points = lengths(setting)[swept]
    x = [point[swept == "output"] for point in points]
    for name in PRUNINGS:
        y = [getattr(cost(setting, name, *point), quantity) for point in points]
        axes.plot(x, y, line, label=name + suffix, **STYLES[name])


def _lengths_axis(axes: "Axes", setting: Setting, swept: str) -> None:
    x = [point[swept == "output"] for point in lengths(setting)[swept]]
    fixed = f"output {setting.generated}" if swept == "input" else f"input {setting.long_prompt}"
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(x, [f"{value:g}" for value in x], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"length of the {swept}, with {fixed}")
    axes.grid(alpha=0.3)
