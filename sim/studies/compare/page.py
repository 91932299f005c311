"""The page of a comparison: time, bytes and energy of every design at equal loss."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden import InputError
from golden.studies.study import Picture, Study, Table
from sim.studies.compare.data import SMOLLM2_D
from sim.studies.compare.logic import Prices, bounds
from sim.studies.compare.pictures import Rows, kilobytes, pictures_of, short
from sim.studies.compare.table import AREA, ENERGY, area, chip

NAME = "equal_terms"
DENSE = "baseline.dense_core"


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
    if any("chip_pj" in row for row in rows):
        tables += [_ranking(rows, memories, cases), _prices(result["units"])]
    left = [f"{of['design']} at {of['n']} tokens: {of['why']}" for of in result["left_out"]]
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
        " *µJ* is the DRAM's energy, *chip* the area of the design's logic and of its memories, and"
        " [an estimate](../compare.md#energy-on-the-chip) of their energy, without glitches and"
        " wires, and with both."
        " `source` in the JSON is each row's command. Memories:"
        f" {'; '.join(s['memories'])}." + (f" Left out: {'; '.join(left)}." if left else ""),
        [],
        tables,
        [
            Picture(f"{NAME}_{of.name}", of.label, of.draw)
            for of in pictures_of(rows, memories, cases)
        ],
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
        ("design", lambda row: short(row["design"])),
        ("setting", "{0[knob]}"),
        *([] if allowed is None else [("KL", _loss)]),
        ("cycles", "{0[cycles]}"),
        ("ideal port", lambda row: _number(row["cycles_ideal_port"])),
        ("of dense", lambda row: "" if dense is None else f"{dense / row['cycles']:.2f}"),
        ("kB", lambda row: f"{kilobytes(row):.1f}"),
        ("activations", lambda row: _number(row["activations"])),
        ("µJ", _energy),
        *([(AREA, area), (ENERGY, chip)] if any("chip_pj" in r for r in here) else []),
        ("limit", "{0[limit]}"),
    )


def _ranking(rows: Rows, memories: Sequence[str], cases: Sequence[tuple]) -> Table:
    """Designs by the energy of memory and logic, were the DRAM's half as much or twice."""
    shares = {0.5: "DRAM × 0.5", 1.0: "DRAM × 1", 2.0: "DRAM × 2"}

    def order(memory: str, n: int, allowed: float | None, share: float) -> str:
        found = {
            short(row["design"]): share * sum(row["energy_pj"].values()) + bounds(row["chip_pj"])[0]
            for row in rows
            if (row["memory"], row["n"], row.get("kl_allowed")) == (memory, n, allowed)
            and "chip_pj" in row
        }
        return ", ".join(
            f"{name} {energy / 1e6:.1f}" for name, energy in sorted(found.items(), key=_second)
        )

    return Table(
        "Designs by the energy of DRAM and chip, without glitches and wires, µJ a step",
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


def kept(folder: Path) -> dict[str, Any]:
    """The result that a page in a folder was written from.

    :raises InputError: if the folder lacks its JSON.
    """
    path = folder / f"{NAME}.json"
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    return json.loads(path.read_text())
