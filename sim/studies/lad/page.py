"""Page and picture of LAD's speed: cycles of the tile in RTL, and rows that the algorithm moves.

The rows are in ``docs/results/lad.json``, counted on long windows of a language model.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from golden.algorithms.lad.rows import Rows
from golden.evaluation.plots import figure
from golden.studies.study import CLOSE, OURS, Claim, Picture, Study, Table, Verdict
from sim.core.tools import ROOT, require_checkout
from sim.studies.lad import figures, power
from sim.studies.lad.machine import GROUPS, GROWTH, HIT, LATENCY, MODELS, SPEEDUP, cases
from sim.studies.lad.measured import STEPS, Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "lad_speed"
KEPT = ROOT / "docs" / "results" / "lad.json"
COMPARED = KEPT.with_name("equal_terms.json")


def kept_rows(path: Path = KEPT) -> dict[str, list[Rows]]:
    """Rows of a head-step by identification, at each length, averaged over the windows."""
    require_checkout("sim locality")
    kept = json.loads(path.read_text())["extras"]["rows"]
    return {name: [_mean(some) for some in zip(*kept[name], strict=True)] for name in kept}


def compared(path: Path = COMPARED) -> list[dict[str, Any]]:
    """Designs' measurements on equal terms, with the energy of their parts."""
    require_checkout("sim locality")
    return json.loads(path.read_text())["rows"]


def read(path: Path) -> list[Measured]:
    """Measurements of a page's JSON."""
    return [Measured(**one) for one in json.loads(path.read_text())["measured"]]


def _mean(rows: Iterable[Mapping[str, float]]) -> Rows:
    listed = list(rows)
    means: dict[str, Any] = {x: float(np.mean([row[x] for row in listed])) for x in listed[0]}
    return Rows(**means)


def moved(row: Rows, d: int = 64, hit: float = 0) -> float:
    """Rows of a head-step; caches are 2 d + 7 rows, read and written.

    hit
        Share of the active positions' rows that are loaded before.
    """
    return row.moved + 2 * (2 * d + 7 - row.caches) - hit * row.active


def share(rows: Sequence[Rows], n: int, d: int, hit: float = 0) -> float:
    """Of 2 n rows, between the lengths at which rows were counted."""
    lengths = [row.n for row in rows]
    return float(np.interp(n, lengths, [moved(row, d, hit) / (2 * row.n) for row in rows]))


def attention_shares(rows: Sequence[Rows], group: Sequence[int], hit: float = 0) -> list[float]:
    """LAD's share of dense attention's time at each test case of a group."""
    return [share(rows, n, model.d, hit) for model, n in cases(group)]


def latency(rows: Sequence[Rows], group: Sequence[int], hit: float = 0) -> float:
    """LAD's share of the ideal accelerator's latency, averaged over a group's test cases."""
    return float(
        np.mean(
            [
                sum(model.ideal(n, share(rows, n, model.d, hit))) / sum(model.ideal(n))
                for model, n in cases(group)
            ]
        )
    )


def growth(rows: Sequence[Rows], hit: float = 0) -> float:
    """By how much attention's share of LLaMA2 13B's latency grows from 512 to 4096 positions."""
    model, parts = MODELS["LLaMA2 13B"], []
    for n in (512, 4096):
        products, attention = model.ideal(n, share(rows, n, model.d, hit))
        parts.append(attention / (products + attention))
    return parts[1] - parts[0]


def terms(row: Rows, updated: float, d: int = 64) -> list[float]:
    """Cycles of the four stages in equation 7, by centres."""
    centres = row.identification - 3 * row.n / d  # without norm, dnorm and cid
    large, active = row.large_share * row.n, row.active / 2
    return [
        (2 * centres + row.n / 128 + large) / 2,
        row.n / 12,
        active / 2,
        (d + active + updated * d + 3 * updated) / 3,
    ]


def study(measured: Sequence[Measured], rows: Mapping[str, Sequence[Rows]]) -> Study:
    """The study of measurements, and of rows by identification."""
    means = by_positions(measured)
    return Study(
        NAME,
        "LAD: speed (equation 7, Fig. 7, Fig. 8 right)",
        "Cycles of the compiled RTL of `lad.lad_tile`, `default` with room for all positions, on"
        " real queries, keys and values of SmolLM2, nine heads over three kv heads, every output"
        f" and row checked; mean of {STEPS} tokens at each number of positions in each of the"
        " trace's three layers. A row of d FP16"
        " numbers passes the memory's port in a cycle. Rows at 512 to 4096 positions are from"
        " [the results](lad.md), SmolLM2, d = 64, eight intervals. What names neither is"
        " arithmetic on the paper's own figures. `python -m sim locality -o FOLDER` writes this"
        " page.",
        [*claims(means, rows), *figures.claims(), *power.claims(compared())],
        [rtl_table(means), latency_table(rows), figures.batches()],
        [Picture(NAME, "cycles of a head-step against positions", lambda: picture(means, rows))],
        data={"measured": [dataclasses.asdict(one) for one in measured]},
    )


def by_positions(measured: Sequence[Measured]) -> list[Measured]:
    """The mean over layers at each number of positions."""
    names = [field.name for field in dataclasses.fields(Measured)]
    found = []
    for n in sorted({one.positions for one in measured}):
        here = [one for one in measured if one.positions == n]
        means: dict[str, Any] = {
            name: float(np.mean([getattr(one, name) for one in here])) for name in names
        }
        found.append(Measured(**means | {"positions": n}))
    return found


def claims(means: Sequence[Measured], rows: Mapping[str, Sequence[Rows]]) -> list[Claim]:
    made = [equation_claim(means, rows["centres"])]
    for group, theirs in zip(GROUPS, SPEEDUP, strict=True):
        at = f"{group[0]} to {group[-1]} positions"
        shares = {name: attention_shares(rows[name], group, HIT) for name in rows}
        gains = {name: np.exp(-np.mean(np.log(some))) for name, some in shares.items()}
        made.append(
            Claim(
                f"attention {theirs[0]} to {theirs[1]} times as fast as on a GPU with the same"
                f" memory bandwidth, at {at} (Fig. 7)",
                "; ".join(
                    f"{gain:.2f} times dense attention, {name}" for name, gain in gains.items()
                ),
                Verdict.ASSUMED if max(gains.values()) < theirs[0] else Verdict.REPRODUCED,
                f"geometric mean; {HIT:.0%} of the active rows loaded before attention, more than"
                " was seen. Both at the memory's full bandwidth: the rest of the paper's factor is"
                f" what the GPU leaves unused, {1 - max(gains.values()) / theirs[0]:.0%} or more",
            )
        )
    for group, theirs in zip(GROUPS, LATENCY, strict=True):
        ours = {name: latency(rows[name], group, HIT) for name in rows}
        without = {name: latency(rows[name], group) for name in rows}
        made.append(
            Claim(
                f"{theirs[0]} to {theirs[1]} of the ideal accelerator's latency, at {group[0]} to"
                f" {group[-1]} positions (Fig. 8, right)",
                "; ".join(
                    f"{ours[name]:.2f}, without loading ahead {without[name]:.2f}, {name}"
                    for name in rows
                ),
                Verdict.of(ours["centres"] <= (1 + CLOSE) * theirs[1]),
                "mean over the paper's models; the ideal accelerator has all multipliers busy, then"
                f" all of the bandwidth. {HIT:.0%} of the active rows loaded before. Judged"
                " by centres, the paper's identification",
            )
        )
    grows = {name: growth(rows[name], HIT) for name in rows}
    made.append(
        Claim(
            "attention's share of LLaMA2 13B's latency grows by 3 % only from 512 to 4096"
            " positions (V-C)",
            ", ".join(f"{100 * value:.1f} %, {name}" for name, value in grows.items()),
            Verdict.of(grows["centres"] <= (1 + CLOSE) * GROWTH),
            "the same model of latency, with rows loaded ahead",
        )
    )
    return [*made, pays_claim(means, rows)]


def equation_claim(means: Sequence[Measured], rows: Sequence[Rows]) -> Claim:
    """Judged at 2048 positions, in the middle of the paper's lengths."""
    row = next(row for row in rows if row.n == 2048)
    stages = terms(row, means[-1].updated)
    port = moved(row)
    balanced = max(stages) <= 2 * sorted(stages)[-2]
    return Claim(
        "the terms of equation 7 are balanced, and the tile's share of the bandwidth balances"
        " stages 1 and 4 with them (IV-C)",
        f"terms at {row.n:.0f} positions: {', '.join(f'{term:.0f}' for term in stages)} cycles;"
        f" rows of stages 1 and 4: {port:.0f}",
        Verdict.of(balanced, port <= 2 * max(stages)),
        "balanced is within a factor of two of the next. The first term is of the centres, which"
        " are nearly all keys here, so that everything else waits for them; with few centres the"
        " last one would be the longest",
    )


def pays_claim(means: Sequence[Measured], rows: Mapping[str, Sequence[Rows]]) -> Claim:
    """From where on a tile is faster than dense attention on the same port."""
    codes = next(rows[name] for name in rows if name.startswith("codes"))
    own = [one.positions for one in means if one.cycles < 2 * one.positions]
    shared = [row.n for row in codes if moved(row) < 2 * row.n / 3]
    return Claim(
        "faster than dense attention on the same port",
        (f"RTL: from {own[0]} positions on" if own else "RTL: nowhere")
        + " with a kv head for each query head; by rows, with three query heads that share one, "
        + (f"from {shared[0]:.0f} on" if shared else f"nowhere up to {codes[-1].n:.0f}"),
        Verdict.of(bool(own), bool(shared)),
        "codes, the tile's default. Dense attention reads a row once for all query heads of its"
        " group; LAD's active positions differ by query head",
        whose=OURS,
    )


def rtl_table(means: Sequence[Measured]) -> Table:
    return Table.of(
        "Cycles of a head-step in RTL, by codes, memory of one cycle; *dense* reads all rows of K"
        " and V, for each query head or once for a group of three",
        means,
        ("positions", "{.positions}"),
        ("cycles", "{.cycles:.0f}"),
        ("port in use", lambda one: f"{one.port / one.cycles:.1%}"),
        ("active", "{.active:.0f}"),
        ("changed modes", "{.updated:.1f}"),
        ("dense", lambda one: str(2 * one.positions)),
        ("LAD of it", lambda one: f"{one.cycles / (2 * one.positions):.0%}"),
        ("dense, group of 3", lambda one: f"{2 * one.positions / 3:.0f}"),
        ("LAD of it", lambda one: f"{one.cycles / (2 * one.positions / 3):.0%}"),
    )


def latency_table(rows: Mapping[str, Sequence[Rows]]) -> Table:
    """The paper's models at the lengths at which rows were counted."""
    items = [
        (name, n)
        for name, model in MODELS.items()
        for n in (512, 1024, 2048, 4096)
        if n <= model.longest
    ]
    columns: list[tuple[str, Callable[[Any], str]]] = [
        (f"LAD, {name}, {hit:.0%} ahead", functools.partial(_of_ideal, some, hit))
        for name, some in rows.items()
        for hit in (0, HIT)
    ]
    return Table.of(
        "Latency of a token by the paper's machine, of the ideal accelerator's; *attention* is its"
        " share of the ideal accelerator's time",
        items,
        ("model", lambda item: item[0]),
        ("positions", lambda item: str(item[1])),
        ("ideal, ms", lambda item: f"{1e3 * sum(MODELS[item[0]].ideal(item[1])):.2f}"),
        ("attention", lambda item: f"{_attention(*item):.0%}"),
        *columns,
    )


def _attention(name: str, n: int) -> float:
    products, attention = MODELS[name].ideal(n)
    return attention / (products + attention)


def _of_ideal(rows: Sequence[Rows], hit: float, item: tuple[str, int]) -> str:
    name, n = item
    model = MODELS[name]
    return f"{sum(model.ideal(n, share(rows, n, model.d, hit))) / sum(model.ideal(n)):.2f}"


def picture(means: Sequence[Measured], rows: Mapping[str, Sequence[Rows]]) -> "Figure":
    drawn = figure()
    axes = drawn.add_subplot()
    lengths = np.array([means[0].positions, max(row.n for row in rows["centres"])])
    axes.plot(lengths, 2 * lengths, "--", color="grey", label="dense")
    axes.plot(lengths, 2 * lengths / 3, ":", color="grey", label="dense, group of 3")
    for name, some in rows.items():
        axes.plot(
            [row.n for row in some], [moved(row) for row in some], "o-", label=f"rows, {name}"
        )
    cycles = [one.cycles for one in means]
    axes.plot([one.positions for one in means], cycles, "s-", label="cycles in RTL, codes")
    axes.set(xscale="log", yscale="log", xlabel="positions", ylabel="of a head-step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return drawn
