"""Pictures of a comparison: time and bytes against the loss, time against the context, and energy
by part."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from golden.evaluation.plots import figure
from sim.studies.compare.rows import IDEAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

CHIP = "arithmetic", "arithmetic_glitches", "clock", "leakage", "memories", "wires"
"""Parts of a chip's energy in the order of a bar."""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A picture's name in its file's name, its text, and what draws it."""

    name: str
    label: str
    draw: Callable[[], "Figure"]


def pictures_of(
    rows: Rows, memories: Sequence[str], cases: Sequence[tuple[int, float | None]]
) -> list[Drawing]:
    """The pictures that rows have the figures for."""
    found = []
    if any("kl" in row for row in rows):
        figures = [
            ("time", "µs a step and layer", microseconds),
            ("bytes", "kB a step and layer", kilobytes),
        ]
        found += [
            Drawing(
                name, f"{label} against the loss", partial(against_loss, rows, memories, label, of)
            )
            for name, label, of in figures
        ]
    losses = [*dict.fromkeys(allowed for _, allowed in cases)]
    n, allowed = cases[-1][0], losses[len(losses) // 2]
    loss = "" if allowed is None else f", KL of at most {allowed:g} nats"
    if len({of for of, _ in cases}) > 1:
        here = [row for row in rows if row.get("kl_allowed") == allowed]
        label = f"µs a step and layer against the context{loss}"
        found.append(Drawing("context", label, partial(against_context, here, memories)))
    if any("chip_pj" in row for row in rows):
        here = [row for row in rows if (row["n"], row.get("kl_allowed")) == (n, allowed)]
        label = f"energy of a step and layer by part, {n} tokens{loss}"
        found.append(Drawing("energy", label, partial(by_part, here, memories)))
    return found


def kilobytes(row: Mapping[str, Any]) -> float:
    return sum(row["bytes"].values()) / 1000


def microseconds(row: Mapping[str, Any]) -> float:
    return 1e6 * row["seconds"]


def against_loss(
    rows: Rows,
    memories: Sequence[str],
    label: str,
    value: Callable[[Mapping[str, Any]], float],
) -> "Figure":
    """A panel for each memory, a line for each design over the loss on held-out texts."""
    n = rows[-1]["n"]  # the longest context, of several
    drawn = figure(width=4.0 * len(memories), height=3.8)
    panels = drawn.subplots(1, len(memories), squeeze=False, sharey=value is kilobytes)[0]
    for axes, memory in zip(panels, memories, strict=True):
        here = [row for row in rows if row["memory"] == memory and row["n"] == n]
        for design in dict.fromkeys(row["design"] for row in here):
            of = [row for row in here if row["design"] == design]
            if not any(row["kl"] for row in of):  # what loses nothing is a level
                style = "--" if design == IDEAL else ":"
                axes.axhline(value(of[0]), color="grey", linestyle=style, label=short(design))
            else:
                points = [row["kl"] for row in of], [value(row) for row in of]
                axes.plot(*points, "o-", markersize=4, label=short(design))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.set_title(f"{memory.partition(',')[0]}, {n} tokens", size=9)
        axes.set_xlabel("KL(dense ‖ design), nats a token")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel(label)
    return _with_legend(drawn, panels[0])


def against_context(rows: Rows, memories: Sequence[str]) -> "Figure":
    """A panel for each memory, a line for each design over the tokens in view."""
    drawn = figure(width=4.0 * len(memories), height=3.8)
    panels = drawn.subplots(1, len(memories), squeeze=False)[0]
    for axes, memory in zip(panels, memories, strict=True):
        here = [row for row in rows if row["memory"] == memory]
        for design in dict.fromkeys(row["design"] for row in here):
            of = [row for row in here if row["design"] == design]
            points = [row["n"] for row in of], [microseconds(row) for row in of]
            style = {"color": "grey", "linestyle": "--"} if design == IDEAL else {}
            axes.plot(*points, marker="o", markersize=4, label=short(design), **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(memory.partition(",")[0], size=9)
        axes.set_xlabel("tokens in view")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("µs a step and layer")
    return _with_legend(drawn, panels[0])


def by_part(rows: Rows, memories: Sequence[str]) -> "Figure":
    """A panel for each memory, a bar for each design: the DRAM's energy, then the chip's."""
    drawn = figure(width=4.0 * len(memories), height=3.4)
    panels = drawn.subplots(1, len(memories), squeeze=False)[0]
    for axes, memory in zip(panels, memories, strict=True):
        _bars(axes, [row for row in rows if row["memory"] == memory and "chip_pj" in row])
        axes.set_title(memory.partition(",")[0], size=9)
        axes.set_xlabel("µJ a step and layer")
    return _with_legend(drawn, panels[0])


def _with_legend(drawn: "Figure", panel: "Axes") -> "Figure":
    """The figure, with a legend of one of its panels below all of them."""
    handles, names = panel.get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    return drawn


def _bars(axes: "Axes", rows: Rows) -> None:
    designs = [short(row["design"]) for row in rows]
    parts = {"DRAM": [sum((row["energy_pj"] or {}).values()) / 1e6 for row in rows]}
    for name in CHIP:
        label = name.partition("_")[2] or name
        parts[label] = [row["chip_pj"][name] / 1e6 for row in rows]
    begin = [0.0] * len(rows)
    for label, values in parts.items():
        axes.barh(designs, values, left=begin, label=label)
        begin = [at + value for at, value in zip(begin, values, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(alpha=0.3, axis="x")


def short(design: str) -> str:
    """A design's name without its folder."""
    return design.partition(".")[2] or design
