"""The page of a comparison: time, bytes and energy of every design at equal loss."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import InputError
from golden.evaluation.plots import figure
from golden.studies.study import Picture, Study, Table
from sim.studies.compare.data import SMOLLM2_D
from sim.studies.compare.logic import Prices, bounds
from sim.studies.compare.rows import IDEAL
from sim.studies.compare.table import area, logic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "equal_terms"
DENSE = "baseline.dense_core"
Rows = Sequence[Mapping[str, Any]]

FIGURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "time": ("µs a step and layer", lambda row: 1e6 * row["seconds"]),
    "bytes": ("kB a step and layer", lambda row: sum(row["bytes"].values()) / 1000),
}
"""What the pictures show against the loss."""


def study_of(result: Mapping[str, Any]) -> Study:
    """The page of a result of :func:`sim.studies.compare.cases.compare`."""
    s, rows = result["settings"], result["rows"]
    memories = [*dict.fromkeys(row["memory"] for row in rows)]
    cases = [*dict.fromkeys((row["n"], row.get("kl_allowed")) for row in rows)]
    tables = [
        _table(rows, memory, n, allowed, len(cases) > 1)
        for memory in memories
        for n, allowed in cases
    ]
    if any("logic_pj" in row for row in rows):
        tables += [_ranking(rows, memories, cases), _prices(result["units"])]
    left = [f"{of['design']} at {of['n']} tokens: {of['why']}" for of in result["left_out"]]
    pictures = []
    if any("kl" in row for row in rows):
        pictures = [
            Picture(
                f"{NAME}_{what}",
                f"{label} against the loss",
                lambda what=what: _against_loss(rows, memories, what),  # type: ignore[misc]
            )
            for what, (label, _) in FIGURES.items()
        ]
    return Study(
        NAME,
        "Designs at equal loss, on the same memories",
        "What it comes to: [ten findings](../compare.md#findings)."
        f" Attention of one layer's decode step in the RTL of each design: {s['heads']} heads over"
        f" {s['kv_heads']} of {s['d']} elements, {', '.join(map(str, s['n']))} tokens,"
        f" {s['clock_mhz']:g} MHz; data: {'; '.join(s['data'])}. Every output equals the bit-exact"
        " model's. Settings are from [settings at equal loss](equal_quality.md); *KL* is what"
        " they lose on held-out texts, in nats. [Designs on equal terms](../compare.md) says how"
        f" designs and states were made comparable. *Of dense* is the dense core's cycles over the"
        " design's; `ideal` is dense attention at the memory's peak, in no time for computing."
        " *µJ* is the DRAM's energy, *logic* the area and an estimate of the energy of the"
        " [design's logic](../compare.md#energy-of-the-logic), without glitches and with them."
        " `source` in the JSON is each row's command. Memories:"
        f" {'; '.join(s['memories'])}." + (f" Left out: {'; '.join(left)}." if left else ""),
        [],
        tables,
        pictures,
        data=dict(result),
    )


def _table(rows: Rows, memory: str, n: int, allowed: float | None, named: bool) -> Table:
    """The designs on a memory, at a context and an allowed loss."""
    here = [
        row
        for row in rows
        if (row["memory"], row["n"], row.get("kl_allowed")) == (memory, n, allowed)
    ]
    dense = next((row["cycles"] for row in here if row["design"] == DENSE), None)
    loss = "" if allowed is None else f", KL of at most {allowed:g} nats"
    return Table.of(
        f"`{memory}`{f', {n} tokens{loss}' if named else ''}",
        here,
        ("design", lambda row: _short(row["design"])),
        ("setting", "{0[knob]}"),
        *([] if allowed is None else [("KL", _loss)]),
        ("cycles", "{0[cycles]}"),
        ("ideal port", lambda row: _number(row["cycles_ideal_port"])),
        ("of dense", lambda row: "" if dense is None else f"{dense / row['cycles']:.2f}"),
        ("kB", lambda row: f"{FIGURES['bytes'][1](row):.1f}"),
        ("activations", lambda row: _number(row["activations"])),
        ("µJ", _energy),
        *(
            [("logic, mm²", area), ("logic, µJ", logic)]
            if any("logic_pj" in r for r in here)
            else []
        ),
        ("limit", "{0[limit]}"),
    )


def _ranking(rows: Rows, memories: Sequence[str], cases: Sequence[tuple]) -> Table:
    """Designs by the energy of memory and logic, were the DRAM's half as much or twice."""
    shares = {0.5: "DRAM × 0.5", 1.0: "DRAM × 1", 2.0: "DRAM × 2"}

    def order(memory: str, n: int, allowed: float | None, share: float) -> str:
        found = {
            _short(row["design"]): share * sum(row["energy_pj"].values())
            + bounds(row["logic_pj"])[0]
            for row in rows
            if (row["memory"], row["n"], row.get("kl_allowed")) == (memory, n, allowed)
            and "logic_pj" in row
        }
        return ", ".join(
            f"{name} {energy / 1e6:.1f}" for name, energy in sorted(found.items(), key=_second)
        )

    return Table(
        "Designs in the order of the energy of memory and logic without glitches, µJ a step",
        ("memory", "tokens", "KL of at most", *shares.values()),
        [
            [
                memory.partition(",")[0],
                f"{n}",
                "" if allowed is None else f"{allowed:g}",
                *(order(memory, n, allowed, share) for share in shares),
            ]
            for memory in memories
            for n, allowed in cases
        ],
    )


def _second(pair: tuple) -> Any:
    return pair[1]


def _prices(units: Mapping[str, Mapping[str, Any]]) -> Table:
    """What an operation of each unit costs."""
    prices = Prices(units)

    def cost(name: str) -> str:
        settled, glitches = prices.operation(name, SMOLLM2_D)
        return f"{settled:.2f} to {settled + glitches:.2f}"

    return Table.of(
        f"Prices of operations on heads of {SMOLLM2_D} elements, pJ without glitches and with",
        [*units],
        ("operation", lambda name: units[name]["operation"]),
        ("block", lambda name: f"`{units[name]['block']}`"),
        ("pJ", cost),
        ("measured by", lambda name: f"`{units[name]['source']}`"),
    )


def _loss(row: Mapping[str, Any]) -> str:
    error = f" ± {row['kl_se']:.4f}" if "kl_se" in row else ""
    return f"{row['kl']:.4f}{error}"


def _energy(row: Mapping[str, Any]) -> str:
    energy = row["energy_pj"]
    return "" if energy is None else f"{sum(energy.values()) / 1e6:.2f}"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value}"


def _short(design: str) -> str:
    return design.partition(".")[2] or design


def _against_loss(rows: Rows, memories: Sequence[str], what: str) -> "Figure":
    """A panel for each memory, a line for each design over the loss on held-out texts."""
    label, value = FIGURES[what]
    n = rows[-1]["n"]  # the longest context, of several
    drawn = figure(width=4.0 * len(memories), height=3.8)
    panels = drawn.subplots(1, len(memories), squeeze=False, sharey=what == "bytes")[0]
    for axes, memory in zip(panels, memories, strict=True):
        here = [row for row in rows if row["memory"] == memory and row["n"] == n]
        for design in dict.fromkeys(row["design"] for row in here):
            of = [row for row in here if row["design"] == design]
            if not any(row["kl"] for row in of):  # what loses nothing is a level
                style = "--" if design == IDEAL else ":"
                axes.axhline(value(of[0]), color="grey", linestyle=style, label=_short(design))
            else:
                points = [row["kl"] for row in of], [value(row) for row in of]
                axes.plot(*points, "o-", markersize=4, label=_short(design))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.set_title(f"{memory.partition(',')[0]}, {n} tokens", size=9)
        axes.set_xlabel("KL(dense ‖ design), nats a token")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel(label)
    handles, names = panels[0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8)
    return drawn


def kept(folder: Path) -> dict[str, Any]:
    """The result that a page in a folder was written from.

    :raises InputError: if the folder lacks its JSON.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    return json.loads(path.read_text())
