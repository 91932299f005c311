"""Figs. 5 to 9 of UniCAIM drawn by the circuit, and pictures of this project's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from golden.evaluation.plots import figure
from golden.studies.study import Picture
from golden.studies.unicaim_circuit.arrays import DETECTORS, LATE, ROWS, SPREADS, TOP
from golden.studies.unicaim_circuit.lines import TERNARY
from golden.studies.unicaim_circuit.lines import TOP as TOP_OF_NINE
from golden.studies.unicaim_circuit.setting import CELLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = Mapping[str, Any]
STYLES = (("C0", "o"), ("C1", "s"), ("C2", "^"))
"""Colour and marker of the operating points."""
LATE_STOP = 0.25
"""Delay of the stop that Fig. 7c is drawn with, beside none."""

THINNED = 4
"""One row of these is drawn."""


def pictures(data: Data) -> list[Picture]:
    """All pictures of the page."""
    return [
        Picture(
            "unicaim_circuit_cell",
            "current of a cell by its product (Figs. 5d and 6b)",
            lambda: _cell(data),
        ),
        Picture(
            "unicaim_circuit_search",
            "discharges of nine rows, and the lines still high (Fig. 7b and c)",
            lambda: _search(data),
        ),
        Picture(
            "unicaim_circuit_charge",
            "voltages when the search stops, and after sharing (Fig. 8b)",
            lambda: _charge(data),
        ),
        Picture(
            "unicaim_circuit_current",
            "thresholds of 128 devices; current of a line against its score (Fig. 9a and b)",
            lambda: _current(data),
        ),
        Picture(
            "unicaim_circuit_inverse",
            "1/t against the score, beside the ideal law",
            lambda: _inverse(data),
        ),
        Picture(
            "unicaim_circuit_recall",
            "recall against the spread of devices and of detectors, and the delay of the stop",
            lambda: _recall(data),
        ),
    ]


def _cell(data: Data) -> "Figure":
    drawn = figure(9.6, 4.2)
    axes = drawn.subplots(1, 2)
    for one, bits, title in zip(
        axes, ("1", "3"), ("ternary keys (Fig. 5d)", "3-bit keys (Fig. 6b)"), strict=True
    ):
        for (color, marker), (name, of) in zip(STYLES, data["cells"].items(), strict=True):
            y = np.array(of[bits]["currents"])
            limit = len(y) // 2
            one.plot(
                np.arange(-limit, limit + 1),
                y / y[0],
                color=color,
                marker=marker,
                label=f"{name} ({1e6 * y[0]:.0f} µA)",
            )
        one.set_title(title, size=9)
        one.set_xlabel("key level times query digit")
        one.set_xticks(np.arange(-limit, limit + 1))
        one.grid(alpha=0.3)
    v = data["setting"]["line"]
    axes[0].set_ylabel(f"current at V_SL = {(v['vdd'] + v['v_ref']) / 2:g} V, of the highest")
    _legend(drawn, axes[0], ncols=1)
    return drawn


def _search(data: Data) -> "Figure":
    drawn = figure(11.0, 4.2)
    discharge, count = drawn.subplots(1, 2)
    of, line = data["search"], data["setting"]["line"]
    t, times = 1e12 * np.array(of["t"]), 1e12 * np.array(of["times"])
    stop = 1e12 * of["stop"]
    for number, (score, v) in enumerate(zip(of["scores"], of["voltages"], strict=True)):
        color = f"C{number}"
        discharge.plot(t, v, color=color, label=f"{score:+d}" if score else "0")
    discharge.axhline(line["v_ref"], color="grey", linestyle="--")
    discharge.set_title(f"rows of {TERNARY} ternary cells, by score (Fig. 7b)", size=9)
    discharge.set_xlabel("time, ps")
    discharge.set_ylabel("V_SL, V")
    discharge.grid(alpha=0.3)
    x = np.concatenate([[0.0], np.sort(times[:-1]), [t[-1]]])
    high = len(times) - np.arange(len(times))
    count.step(x, [*high, high[-1]], where="post", color="black")
    count.axhline(TOP_OF_NINE + 0.5, color="grey", linestyle="--", label="reference, k + 1/2")
    for late, style in ((0.0, "-"), (LATE_STOP, ":")):
        at = stop * (1 + late)
        count.axvline(
            at, color="C3", linestyle=style, label=f"stop, {late:.0%} late" if late else "stop"
        )
    count.set_title(f"search for the top {TOP_OF_NINE} (Fig. 7c)", size=9)
    count.set_xlabel("time, ps")
    count.set_ylabel("lines above V_DD / 2")
    count.set_ylim(0, len(times) + 0.5)
    count.grid(alpha=0.3)
    discharge.legend(
        title="score",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=9,
        fontsize=7,
        handlelength=1,
        columnspacing=0.8,
        title_fontsize=8,
    )
    count.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8)
    return drawn


def _charge(data: Data) -> "Figure":
    drawn = figure(9.6, 4.2)
    before, after = drawn.subplots(1, 2)
    of = data["charge"]
    for number, query in enumerate(of["queries"]):
        label = f"query {number + 1}, {1e3 * query['gain']:.3f} mV a score"
        style: dict[str, Any] = {"color": f"C{number}", "markersize": 3}
        marker = "o" if number else "x"
        scores, v, shared = (query[key][::THINNED] for key in ("scores", "voltages", "shared"))
        before.plot(scores, v, marker, label=label, **style)
        after.plot(scores, shared, marker, **style)
    before.axhline(data["setting"]["line"]["v_ref"], color="grey", linestyle="--")
    before.set_title("lines when the search stops", size=9)
    before.set_ylabel("V_SL, V")
    after.set_title(
        f"accumulations of {of['start']:g} V that have shared, ratio {of['ratio']:g}", size=9
    )
    after.set_ylabel("V_Acc, V")
    for one in (before, after):
        one.set_xlabel(f"score of the row, {CELLS} cells")
        one.grid(alpha=0.3)
    _legend(drawn, before, ncols=2)
    return drawn


def _current(data: Data) -> "Figure":
    drawn = figure(12.0, 6.4)
    axes = drawn.subplots(2, 3)
    spread = f"{data['setting']['spread_mv']:g} mV"
    for one, (name, of) in zip(axes[0], data["linearity"].items(), strict=True):
        for number, (label, key) in enumerate((("no spread", "exact"), (spread, "spread"))):
            one.plot(
                of["scores"],
                1e3 * np.array(of[key]["currents"]),
                "ox"[number],
                markersize=3,
                color=f"C{number}",
                label=f"{label}: R² {of[key]['r2']:.4f}, errors of {of[key]['rms']:.1f} scores",
            )
        one.set_title(f"{name}; V_SL = {of['sense']:g} V (Fig. 9b)", size=8)
        one.set_xlabel("score (MAC)")
        one.grid(alpha=0.3)
        one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=7)
    axes[0][0].set_ylabel(f"I_SL of {CELLS} cells, mA")
    histogram, *empty = axes[1]
    for states, label in zip(data["devices"]["thresholds"], ("low", "high"), strict=True):
        histogram.hist(states, bins=16, label=f"{label} state")
    histogram.set_title(f"{CELLS} devices, {spread} (Fig. 9a)", size=9)
    histogram.set_xlabel("V_TH, V")
    histogram.set_ylabel("devices")
    histogram.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, fontsize=7)
    for one, (name, of) in zip(empty, list(data["linearity"].items())[::2], strict=True):
        slope, offset = np.polyfit(of["scores"], of["exact"]["currents"], 1)
        error = (np.array(of["spread"]["currents"]) - offset) / slope - of["scores"]
        one.plot(of["scores"], error, "x", markersize=3, color="C1")
        one.set_title(f"{name}: error with {spread}", size=8)
        one.set_xlabel("score (MAC)")
        one.set_ylabel("error, scores")
        one.grid(alpha=0.3)
    return drawn


def _inverse(data: Data) -> "Figure":
    drawn = figure(12.0, 4.2)
    axes = drawn.subplots(1, 3)
    for one, (name, of) in zip(axes, data["inverse"].items(), strict=True):
        for key, style, label in (
            ("equal", "C0o", "cells as equal as possible"),
            ("ends", "C1x", "cells at the ends"),
        ):
            one.plot(of["scores"], 1e-12 * np.array(of[key]), style, markersize=3, label=label)
        one.plot(of["scores"], 1e-12 * np.array(of["ideal"]), "k-", lw=0.8, label="ideal law")
        one.set_title(name, size=8)
        one.set_xlabel(f"score of {CELLS} cells")
        one.grid(alpha=0.3)
    axes[0].set_ylabel("1/t, 1/ps")
    _legend(drawn, axes[0], ncols=3)
    return drawn


def _recall(data: Data) -> "Figure":
    drawn = figure(12.0, 4.6)
    axes = drawn.subplots(1, 3, sharey=True)
    spread, detector, late = axes
    for line, (way, of) in zip(("--", "-"), data["recall"].items(), strict=True):
        for (color, marker), (name, y) in zip(STYLES, of["spread"].items(), strict=True):
            spread.plot(
                SPREADS, y, line, color=color, marker=marker, markersize=4, label=f"{name}, {way}"
            )
        for color, (devices, y) in zip(("C3", "C4"), of["detector"].items(), strict=True):
            label = f"devices {devices}, {way}"
            detector.plot(DETECTORS, y, line, color=color, marker="o", markersize=4, label=label)
        late.plot(
            [100 * part for part in LATE],
            of["late"],
            line,
            color="C5",
            marker="o",
            markersize=4,
            label=way,
        )
    late.set_xscale("symlog", linthresh=0.1)
    late.xaxis.set_major_formatter("{x:g}")
    for one, title, x in (
        (spread, "spread of devices", "standard deviation of V_TH, mV"),
        (detector, "spread of detectors, levels by current", "standard deviation, mV"),
        (late, "delay of the stop, levels by current", "part of the search's time, %"),
    ):
        one.set_title(title, size=9)
        one.set_xlabel(x)
        one.grid(alpha=0.3)
        one.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=6.5)
    spread.set_ylabel(f"recall of the top {TOP} of {ROWS} rows")
    spread.set_ylim(0, 1.03)
    return drawn


def _legend(drawn: "Figure", axes: "Axes", ncols: int) -> None:
    handles = axes.get_legend_handles_labels()
    drawn.legend(*handles, loc="outside lower center", ncols=ncols, fontsize=8)
