"""The page's matrix: every block by simulator, proof, mutants, area and clock, with links."""

import json
from collections.abc import Sequence

from hw.catalogue import Block
from sim.commands.page.links import Links
from sim.commands.tables import OVERVIEW, SYNTHESIS, VERIFICATION, block_files

COLUMNS = ("Verilator", "Icarus", "proofs", "surviving mutants", "area", "clock")
NOTHING = ("–", "", "else")
PAGES = {"arith": "arithmetic", "stream": "simulation"}


def matrix(blocks: Sequence[Block], rows: Sequence, links: Links) -> list[dict]:
    """A row for each block: its name, links, and a cell ``(text, link, kind)`` for each column.

    A cell of NOTHING has no link.

    rows
        Of :class:`sim.commands.report.Row`. A simulator that ran nothing of a block here has the
        link to the tests that do.
    """
    verification, synthesis = (json.loads(path.read_text()) for path in (VERIFICATION, SYNTHESIS))
    return [_row(block, rows, verification, synthesis, links) for block in blocks]


def _row(block: Block, rows: Sequence, verification: dict, synthesis: list, links: Links) -> dict:
    page = f"docs/{PAGES.get(block.folder, block.folder)}.md"
    cells = [_simulator(block, tool, rows, links) for tool in ("verilator", "icarus")]
    cells += _proof_and_mutants(block, verification.get(block.name, {}), page, links)
    cells += _area_and_clock(block, synthesis, page, links)
    return {
        "block": block,
        "link": links.to(f"docs/blocks.md#{block.folder}"),
        "hardware": links.to(f"hw/{block.folder}/{block.module}.py"),
        "cells": cells,
    }


def _simulator(block: Block, tool: str, rows: Sequence, links: Links) -> tuple[str, str, str]:
    mine = [row for row in rows if (row.block, row.simulator) == (block.name, tool)]
    if not mine:
        test = "test_every_block_harness.py" if tool == "verilator" else "test_every_block.py"
        return "suite", links.to(f"tests/sim/{test}"), "else"
    bad = [row for row in mine if row.verdict != "pass"]
    if bad:
        return bad[0].verdict, f"#run-{bad[0].anchor}", bad[0].verdict
    count = sum(row.vectors for row in mine)
    return f"{count:,} vectors, 0 differ", f"#run-{mine[0].anchor}", "pass"


def _proof_and_mutants(block: Block, entry: dict, page: str, links: Links) -> list[tuple]:
    proofs = [path for label, path in block_files(block) if label == "proof"]
    said, home = entry.get("proofs"), "docs/blocks.md#verification"
    proved = links.to(proofs[0] if proofs else page)
    cells = [(said or "proofs", proved, "")] if said or proofs else [NOTHING]
    if "mutants" not in entry:
        return [*cells, ("not counted", links.to(home), "else")]
    count, of = entry["surviving"], entry["mutants"]
    return [*cells, (f"{count} of {of}", links.to(page if count else home), "")]


def _area_and_clock(block: Block, synthesis: list, page: str, links: Links) -> list[tuple]:
    mine = [row for row in synthesis if row["block"] == block.name]
    default = block.parameters_class.preset_name("default")
    mine.sort(key=lambda row: row["preset"] != default)
    if not mine:
        said = next((row.area for row in OVERVIEW if row.block == block.name), "")
        if ": " not in said:
            return [NOTHING] * 2
        # A block too large for the kept measurements has: "small, mapped for area: 81,860 µm²".
        how, _, figures = said.partition(": ")
        area, _, clock = figures.partition(", ")
        large = f"{area} ({how})", links.to(page), ""
        return [large, (clock, large[1], "") if clock else NOTHING]
    [row, *_] = mine
    link = links.to("docs/results/synthesis.json")
    area = f"{row['area_um2']:,.0f} µm²"
    if row.get("parts"):  # whose delay is a bound only
        return [(f"{area} ({row['preset']}, {row['mode']})", link, ""), NOTHING]
    speed = f"{row['delay_ps']:,.0f} ps"
    if row["flipflops"]:
        speed = f"{1e6 / row['delay_ps']:,.0f} MHz"
    return [(f"{area} ({row['preset']})", link, ""), (speed, link, "")]
