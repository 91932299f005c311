"""The rows of a comparison as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from sim.studies.compare.logic import bounds

AREA, ENERGY = "chip, mm²", "chip, µJ"
"""Columns of designs whose logic was mapped: area of logic and of memories; energy of both."""
COLUMNS = (
    "design",
    "n",
    "memory",
    "KL",
    "setting",
    "cycles",
    "µs",
    "ideal port",
    "of peak",
    "K, kB",
    "V, kB",
    "rest, kB",
    "act.",
    "µJ",
    AREA,
    ENERGY,
    "limit",
)


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each design, bytes read and written together, activations and energy of DRAMs."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    several = len({row["memory"] for row in rows}) > 1
    left = {"memory"} if not several else set()
    left |= set() if any("kl_allowed" in row for row in rows) else {"KL"}
    left |= set() if any("chip_pj" in row for row in rows) else {AREA, ENERGY}
    shown = [name for name in COLUMNS if name not in left]
    for name in shown:
        table.add_column(name, no_wrap=name not in ("setting", "memory"))
    for row in rows:
        moved = {
            kind: sum(count for name, count in row["bytes"].items() if name.startswith(kind))
            for kind in ("k_", "v_", "other_")
        }
        energy = row["energy_pj"]
        cells = (
            row["design"].partition(".")[2] or row["design"],
            f"{row['n']}",
            row["memory"].partition(",")[0],
            f"{row['kl']:.4f}" if "kl" in row else "",
            row["knob"],
            f"{row['cycles']}",
            f"{1e6 * row['seconds']:.2f}",
            number(row["cycles_ideal_port"]),
            "" if row["share_of_peak"] is None else f"{row['share_of_peak']:.1%}",
            *(f"{count / 1000:.1f}" if count else "" for count in moved.values()),
            number(row["activations"]),
            "" if energy is None else f"{sum(energy.values()) / 1e6:.2f}",
            area(row),
            chip(row),
            row["limit"],
        )
        by_name = dict(zip(COLUMNS, cells, strict=True))
        table.add_row(*(by_name[name] for name in shown))
    return table


def number(value: int | None) -> str:
    """A number, or an empty cell without one."""
    return "" if value is None else f"{value}"


def area(row: Mapping[str, Any]) -> str:
    """Area of the logic, and of the memories beside it."""
    if "area_um2" not in row:
        return ""
    return f"{row['area_um2'] / 1e6:.2f} + {row['memory_um2'] / 1e6:.2f}"


def chip(row: Mapping[str, Any]) -> str:
    """Energy of logic and memories without glitches and wires, and with them."""
    if "chip_pj" not in row:
        return ""
    least, most = bounds(row["chip_pj"])
    return f"{least / 1e6:.2f} to {most / 1e6:.2f}"
