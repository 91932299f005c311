"""Rows that a step of LAD moves: claims and the table (III-B, III-F, Fig. 8 left)."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from golden.algorithms.lad.rows import Rows, average
from golden.evaluation.estimate import Estimate
from golden.studies.lad_trace import WINDOW
from golden.studies.study import CLOSE, Claim, Table, Verdict, exceeds

Windows = Sequence[Sequence[Mapping[str, Any]]]
"""Rows by window and length, each a :class:`Rows` as a mapping."""
Counted = Mapping[str, Windows]
"""The same by identification."""
OTHERS = "g", "exact", "counters", "caches", "written"
"""Rows that are neither of identification nor of active positions."""
FREQUENT = 0.9
"""Share of the positions in their likeliest interval at the longest context (II-B)."""


def claims(rows: Counted) -> list[Claim]:
    """Claims on rows, judged by centres, the paper's identification."""
    windows = rows["centres"]
    return [
        moved_claim(rows),
        parts_claim(windows),
        others_claim(windows),
        sublinear_claim(windows),
        share_claim(windows),
        locality_claim(windows),
        large_claim(windows),
    ]


class Ends:
    """A figure of each window at the first and at the last length.

    give
        Gives the figure of rows.
    """

    def __init__(
        self,
        windows: Windows,
        give: Callable[[Mapping[str, Any]], float],
    ) -> None:
        pairs = [[give(window[at]) for at in (0, -1)] for window in windows]
        self.first, self.last = (Estimate.of(list(of)) for of in zip(*pairs, strict=True))
        self.change = Estimate.of([last - first for first, last in pairs])

    def __format__(self, spec: str) -> str:
        return f"{self.first:{spec}} to {self.last:{spec}}"


def _at(windows: Windows) -> str:
    return f"at {windows[0][0]['n']:g} to {windows[0][-1]['n']:g} positions"


def scalars(row: Mapping[str, Any]) -> float:
    """Rows of norm, dnorm and cid, as many each as G's words of modes take."""
    return 3 * row["g"]


def parts_claim(windows: Windows) -> Claim:
    """Fig. 8, left: what identification and active positions read."""
    centres = Ends(windows, lambda row: (row["identification"] - scalars(row)) / (2 * row["n"]))
    active = Ends(windows, lambda row: row["active"] / (2 * row["n"]))
    both = Ends(
        windows,
        lambda row: (row["identification"] - scalars(row) + row["active"]) / (2 * row["n"]),
    )
    return Claim(
        "the reads of centres and of active positions are small, and smaller the longer the"
        " context (Fig. 8, left)",
        f"{_at(windows)}, of dense attention's rows: centres {centres:.1%}, active"
        f" positions {active:.1%}",
        Verdict.measured(
            both.last.against(0.5), *(part.change.against(0) for part in (centres, active))
        ),
        "small is at most half of dense attention's rows for both together, at the longest length."
        " Nearly all keys are centres, so that their share remains",
    )


def others_claim(windows: Windows) -> Claim:
    """Fig. 8, left: caches, G and what else there is."""
    others = Ends(
        windows,
        lambda row: (scalars(row) + sum(row[name] for name in OTHERS)) / (2 * row["n"]),
    )
    caches = Ends(windows, lambda row: row["caches"] / row["n"])
    return Claim(
        "all other reads, of the fixed caches and scalars, become negligible in long contexts"
        " (Fig. 8, left)",
        f"{_at(windows)}, of dense attention's rows: {others:.1%}; of that the caches, read and"
        f" written, {caches:.1%}",
        Verdict.measured(others.change.against(0), others.last.against(CLOSE)),
        "negligible is at most a tenth. G, read and written, is a fixed share of the context, and"
        " the counters of active positions, of which the figure does not tell, are read and"
        " written too. The caches are in FP32 here, twice the paper's",
    )


def sublinear_claim(windows: Windows) -> Claim:
    """Section III-B: how the number of active positions grows."""
    active = Ends(windows, lambda row: row["active"] / 2)
    lengths = [row["n"] for row in windows[0]]
    share = Ends(windows, lambda row: row["active"] / 2 / row["n"])
    power = math.log(active.last.mean / active.first.mean) / math.log(lengths[-1] / lengths[0])
    return Claim(
        "the number of active positions grows less than the context does (III-B)",
        f"{_at(windows)}: {active:.0f} active, as n to the power of {power:.2f}",
        Verdict.measured(share.change.against(0)),
        "by the change of their share in each window",
    )


def share_claim(windows: Windows) -> Claim:
    """Section III-B: the limit of the reads."""
    over = Ends(windows, lambda row: _moved(row) / row["active"])
    reads = Ends(windows, lambda row: Rows(**row).read / row["active"])
    return Claim(
        "memory access falls to |J| / n of dense attention's in long contexts (III-B)",
        f"{_at(windows)}: {over:.2f} times that, without rows written {reads:.2f}",
        Verdict.measured(reads.change.against(0), reads.last.against(1 + CLOSE)),
        "judged without rows written. Equation 4, from which the limit follows, leaves out what"
        " finds the active positions: centres, which grow as n does here, and G",
    )


def locality_claim(windows: Windows) -> Claim:
    """Section II-B: positions before the window that are in their mode's interval."""
    inside = Ends(windows, lambda row: 1 - (row["active"] / 2 - WINDOW) / (row["n"] - WINDOW))
    return Claim(
        "the likeliest interval's share rises with the context, above 90 % at 4096 positions"
        " (II-B)",
        f"{_at(windows)}: {inside:.1%}",
        Verdict.measured(exceeds(inside.change, 0), exceeds(inside.last, FREQUENT)),
        f"SmolLM2 with eight intervals, inactive positions of all but the newest {WINDOW}. The"
        " paper's figure is LLaMA2 7B's, with five wider ones",
    )


def large_claim(windows: Windows) -> Claim:
    """Section III-F: keys that are read for exact scores."""
    large = Ends(windows, lambda row: row["large_share"])
    cost = Ends(windows, lambda row: row["exact"] / _moved(row))
    return Claim(
        "few positions have a large mode, and their exact scores cost little (III-F)",
        f"{_at(windows)}: {large:.1%} of the positions; with the newest {WINDOW}, {cost:.1%} of the"
        " rows that a step moves",
        Verdict.measured(
            *(figure.against(CLOSE) for of in (large, cost) for figure in (of.first, of.last))
        ),
        "few and little are at most a tenth; a large mode is an interval from -3 up",
    )


def moved_claim(rows: Counted) -> Claim:
    """Rows moved of those that dense attention reads, at the ends of the lengths."""
    shares = {
        name: np.array([[_moved(row) / (2 * row["n"]) for row in window] for window in windows])
        for name, windows in rows.items()
    }
    ends = {
        name: [Estimate.of(of[:, at].tolist()) for at in (0, -1)] for name, of in shares.items()
    }
    risen = Estimate.of((shares["centres"][:, -1] - shares["centres"][:, 0]).tolist())
    lengths = [row["n"] for row in rows["centres"][0]]
    return Claim(
        "far fewer reads than dense attention, and a smaller share the longer the context (Fig. 8)",
        f"rows a head moves at {lengths[0]:g} to {lengths[-1]:g} positions, of dense: "
        + "; ".join(
            f"{first:.0%} to {last:.0%} with {name}" for name, (first, last) in ends.items()
        ),
        Verdict.measured(ends["centres"][1].against(0.5), risen.against(0)),
        "far fewer is half of them, at the longest length. Judged by centres, as codes are this"
        " project's own; the caches are a fixed cost, which counts less with more positions; but a"
        " small model's scores move more, so more positions are active, and centres are nearly all"
        " keys",
    )


def table(rows: Counted, group: int, of: str) -> Table:
    """Rows of a step of one query head, beside dense attention alone and shared by a group."""
    title = (
        "Rows of d numbers that a step of one query head moves after a dense prompt, averaged over"
        f" 32 steps, {of}; `written` are G, counters and caches; the"
        f" last column is dense attention whose rows are read once for the {group} query heads of a"
        " kv head. LAD reads for each head on its own, since the heads' active positions differ:"
        " grouped queries cost it what they save others"
    )
    parts = {
        "G": "g",
        "codes or centres": "identification",
        "M and window": "exact",
        "J (K and V)": "active",
        "counters": "counters",
        "caches": "caches",
        "written": "written",
    }
    means = {
        name: [
            dataclasses.asdict(average([Rows(**row) for row in same_length]))
            for same_length in zip(*windows, strict=True)
        ]
        for name, windows in rows.items()
    }
    return Table.of(
        title,
        [(name, means[name][at]) for at in range(len(means["centres"])) for name in rows],
        ("n", "{0[1][n]:.0f}"),
        ("identification", "{0[0]}"),
        ("J / n", "{0[1][active_share]:.1%}"),
        ("M / n", "{0[1][large_share]:.1%}"),
        *((name, f"{{0[1][{part}]:.0f}}") for name, part in parts.items()),
        ("sum", lambda pair: f"{_moved(pair[1]):.0f}"),
        ("dense", lambda pair: f"{2 * pair[1]['n']:.0f}"),
        (f"dense, shared by {group}", lambda pair: f"{2 * pair[1]['n'] / group:.0f}"),
    )


def _moved(row: Mapping[str, Any]) -> float:
    return Rows(**row).moved
