"""``python -m sim tables``: the tables of README.md and docs that a program can make.

A table is between two lines of its page and is replaced as a whole::

    <!-- table overview: made by `make docs` -->
    ...
    <!-- end of table -->

Sources: the catalogue (names, summaries, presets, latencies), the files of the checkout, and
measurements that took long and are kept in ``docs/results``: ``synthesis.json`` (rows of
``python -m sim synth --json``), ``verification.json`` (proofs, and the counts of
``python -m sim mutate`` that the folders' pages explain), ``fpga.json`` (``python -m hw fpga
--json``), ``layout.json`` (``python -m sim layout --json``), ``dram.json`` (``python -m sim dram
--cores --json``), and the papers' claims, of ``make eval``.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from golden.files import replacing
from golden.markdown import table_head, table_row
from golden.studies.study import GROUPS, PAPER
from hw.catalogue import FOLDERS, PARTS, Block, blocks, find
from sim.core.tools import ROOT, ToolError, UnusableFile, require_checkout

RESULTS = ROOT / "docs" / "results"
SYNTHESIS, VERIFICATION = RESULTS / "synthesis.json", RESULTS / "verification.json"
FPGA = RESULTS / "fpga.json"
# What tells measurements apart, and what of a design built for a board is kept.
SYNTHESIZED = ("block", "preset", "mode")
BUILT = ("board", "block", "configuration")
OF_BUILT = (*BUILT, "used", "clock_mhz", "fmax_mhz")
DRAM = RESULTS / "dram.json"
LAYOUT = RESULTS / "layout.json"
PAGES = (
    *("README.md", "docs/blocks.md", "docs/boards.md", "docs/buses.md", "docs/dram.md"),
    "docs/measured.md",
)
PAPERS = {
    "kllm": {
        "quality": "kllm",
        "cost": "kllm_cost",
        "counting": "kllm_counting",
        "area": "kllm_area",
    },
    "veda": {"quality": "veda", "speed": "veda_speed", "area": "veda_area"},
    "topick": {"quality": "topick", "speed": "topick_speed", "area": "topick_area"},
    "lad": {"quality": "lad", "speed": "lad_speed", "area": "lad_area"},
    "unicaim": {"quality": "unicaim", "cost": "unicaim_cost", "circuit": "unicaim_circuit"},
}
"""Pages of results with claims of a paper, and what they are about."""
MARK = re.compile(
    r"(<!-- table (\w+): made by `make docs` -->\n)(.*?)(<!-- end of table -->)", re.S
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A main block.

    page
        Where its figures and its proofs are explained.
    rate
        Throughput in words, as the page has it.
    area
        What the page says of area and speed, of a block too large for ``synthesis.json``.
    """

    block: str
    page: str
    rate: str
    area: str = "see page"


OVERVIEW = (
    Row(
        "kllm.kllm_core",
        "kllm",
        "4096 × 4096 in 2064 cycles on 16 lanes",
    ),
    Row("kllm.orizuru", "kllm", "a pair a cycle, at any N"),
    Row("kllm.functional_unit", "kllm", "8 softmax scores and one function a cycle"),
    Row(
        "veda.veda_core",
        "veda",
        "a head of l rows in 2 l + 11 cycles, d = 128",
    ),
    Row("attention.special_function_unit", "veda", "an element a cycle"),
    Row("veda.voting_engine", "veda", "a probability a cycle"),
    Row(
        "topick.topick_core",
        "topick",
        "a chunk of d elements of 4 bits per lane and cycle",
        "a lane, 128 rows, 32 slots, for 2 ns: 221,777 µm², 504 MHz",
    ),
    Row("topick.pe_lane", "topick", "a chunk of d elements of 4 bits a cycle"),
    Row(
        "lad.lad_tile",
        "lad",
        "a row of d numbers per cycle from memory, |J| of n positions read",
    ),
    Row("lad.vpu", "lad", "an operation on d elements a cycle"),
    Row("lad.apid", "lad", "12 positions a cycle"),
    Row("unicaim.unicaim_core", "unicaim", "a query of k rows in 2 k + 40 cycles, d = 128"),
    Row("unicaim.digital_array", "unicaim", "all rows at once, a bit of the score a cycle"),
    Row("tsuru.tsuru_core", "tsuru", "about 1.1 cycles a word read, and 100 a kv head"),
    Row(
        "baseline.dense_core",
        "baseline",
        "up to `parallel` heads of l rows in about 2 l + 46 cycles, d = 128",
    ),
    Row("baseline.h2o_core", "baseline", "a head of l kept rows in 2 l + 46 cycles, d = 128"),
    Row("arith.float_multiply_add", "arithmetic", "a result a cycle"),
)


CORES = ("_core", "_tile")
"""Ends of the names of whole cores."""


def cores() -> list[str]:
    """The whole cores of the first page, with throughput and verification."""
    lines = table_head("core", "what it does", "throughput", "verification")
    for row in OVERVIEW:
        if row.block.endswith(CORES):
            name = f"[`{row.block}`](docs/{row.page}.md)"
            summary = find(row.block).summary
            lines.append(table_row(name, summary, row.rate, _status(row.block)))
    return lines


def overview() -> list[str]:
    """Main blocks with latency, area and clock, and verification."""
    lines = table_head(
        "block, preset", "what it does", "latency", "throughput", "45 nm", "verification"
    )
    for row in OVERVIEW:
        block = find(row.block)
        preset = block.parameters_class.preset_name("default")
        latency = block.parameters_class.preset(preset).latency
        name = f"[`{block.name}`]({row.page}.md) {preset}"
        area, status = measured(block.name, preset) or row.area, _status(block.name)
        lines.append(table_row(name, block.summary, str(latency), row.rate, area, status))
    return lines


def measured(name: str, preset: str) -> str:
    """Area and speed of a configuration, or of another one of the block; empty if none was."""
    rows = [row for row in _read(SYNTHESIS) if row["block"] == name]
    rows.sort(key=lambda row: row["preset"] != preset)
    if not rows:
        return ""
    [row, *_] = rows
    other = "" if row["preset"] == preset else f"{row['preset']}: "
    if row.get("parts"):  # whose delay is a bound only
        bits = f" and {row['memory_bits']:,} bits" if row["memory_bits"] else ""
        return f"{other}{row['area_um2']:,.0f} µm²{bits}, {row['mode']}"
    speed = f"{row['delay_ps']:.0f} ps"
    if row["flipflops"]:
        speed = f"{1e6 / row['delay_ps']:.0f} MHz"
    return f"{other}{row['area_um2']:,.0f} µm², {speed}"


def verification_of(name: str) -> dict:
    """What was measured of a block's verification; empty if nothing was."""
    return _read(VERIFICATION).get(name, {})


def _status(name: str) -> str:
    entry = verification_of(name)
    if "mutants" not in entry:
        return "V1"
    level = "V3" if not entry["surviving"] else "V2" if entry["proofs"] else "V1"
    return f"{level}, {entry['surviving']} of {entry['mutants']}"


def claims() -> list[str]:
    """How many of each page's claims of the paper hold, without this project's own."""
    lines, every = table_head("claims of", *GROUPS), Counter[str]()
    for pages in PAPERS.values():
        found = []
        for page in pages.values():
            result = _read(RESULTS / f"{page}.json")
            found += [claim["verdict"] for claim in result["claims"] if claim["whose"] == PAPER]
        counts = {name: sum(map(found.count, of)) for name, of in GROUPS.items()}
        # A verdict in no group would be left out without a word.
        assert sum(counts.values()) == len(found), pages
        links = ", ".join(f"[{what}](docs/results/{page}.md)" for what, page in pages.items())
        name = result["title"].partition(":")[0]
        lines.append(table_row(f"{name}: {links}", *map(str, counts.values())))
        every.update(counts)
    return [*lines, table_row("all", *(str(every[name]) for name in GROUPS))]


def catalogue() -> list[str]:
    """Every block with its presets, the latency of the default one, and its files."""
    lines = []
    for folder in FOLDERS:
        page = {"arith": "arithmetic", "stream": "simulation"}.get(folder, folder)
        lines += ["", f"## [{folder}]({page}.md)", ""]
        lines += table_head("block", "what it does", "from", "presets, latency", "files")
        for block in blocks():
            if block.folder == folder:
                presets = block.parameters_class.presets()
                default = block.parameters_class.preset_name("default")
                shown = [
                    f"**{name}** {preset.latency}" if name == default else name
                    for name, preset in presets.items()
                ]
                listed = ", ".join(shown)
                files = ", ".join(f"[{label}](../{path})" for label, path in block_files(block))
                lines.append(
                    table_row(f"`{block.name}`", block.summary, block.source, listed, files)
                )
    return [*lines[1:], ""]


def block_files(block: Block) -> list[tuple[str, str]]:
    """Label and path of a block's generator, model, testbench, tests and proofs."""
    folder, name = block.folder, block.module
    found = [("hardware", f"hw/{folder}/{name}.py")]
    model = f"golden/{folder}/{name}.py"
    found += [("model", model)] * (ROOT / model).exists()
    found.append(("testbench", f"sim/testbenches/{folder}/{name}.py"))
    home = ROOT / "tests" / folder
    tests = sorted(home.glob(f"test_{name}.py")) + sorted(home.glob(f"test_{name}_*.py"))
    if not tests:  # a test of several blocks
        mention = re.compile(rf"hw\.{folder}\.{name}\b|\"{folder}\.{name}\"")
        tests = [path for path in sorted(home.glob("*.py")) if mention.search(path.read_text())]
    for path in tests:
        label = "proof" if path.stem.endswith("_formal") else "tests"
        found.append((label, str(path.relative_to(ROOT))))
    return found


def verification() -> list[str]:
    """Proofs and surviving mutants, as measured."""
    lines = table_head("block", "proofs, exhaustive runs", "surviving mutants")
    for name, entry in _read(VERIFICATION).items():
        count = f"{entry['surviving']} of {entry['mutants']}" if "mutants" in entry else ""
        lines.append(table_row(f"`{name}`", entry["proofs"], count))
    return lines


def fpga() -> list[str]:
    """Designs built for boards: what they use of the device, and their clocks."""
    from hw.boards.platforms import find_board
    from sim.synth.report import share

    names = ("LUT4", "flip-flops", "multipliers", "block memories")
    lines = table_head("board", "block, configuration", *names, "Fmax, MHz", "clock, MHz")
    for row in _read(FPGA):
        board = find_board(row["board"])
        room = dataclasses.asdict(board.resources)
        used = [share(n, room[kind]) for kind, n in row["used"].items()]
        name = f"`{row['block']}` {row['configuration']}"
        lines.append(
            table_row(board.name, name, *used, f"{row['fmax_mhz']:.1f}", f"{row['clock_mhz']:g}")
        )
    return lines


def parts() -> list[str]:
    """Components that are no blocks: area and clock in cells."""
    lines = table_head("part, preset", "45 nm", "cells", "flip-flops")
    for name in PARTS:
        preset = find(name, parts=True).parameters_class.preset_name("default")
        [row] = [r for r in _read(SYNTHESIS) if (r["block"], r["preset"]) == (name, preset)]
        counts = (f"{row[kind]:,}" for kind in ("cells", "flipflops"))
        lines.append(table_row(f"`{name}` {preset}", measured(name, preset), *counts))
    return lines


def layouts() -> list[str]:
    """Placed blocks: their cores, wires, and delays without wires and with each capacitance."""
    rows = _read(LAYOUT)
    capacitances = [f"{wires['ff_per_um']:g}" for wires in rows[0]["with_wires"]]
    lines = table_head(
        *("block, preset, mode", "cells", "core, µm", "wires, mm", "longest, µm"),
        *("wires over pins, pF", "delay, ps", *(f"at {value} fF/µm" for value in capacitances)),
    )
    for row in rows:
        without, middle = row["delay_ps"], row["with_wires"][len(capacitances) // 2]
        lines.append(
            table_row(
                f"`{row['block']}` {row['preset']}, {row['mode']}",
                f"{row['cells']:,}",
                f"{row['width_um']:.0f} × {row['height_um']:.0f}",
                f"{row['wires_mm'] + row['clock_mm']:.1f}",
                f"{row['longest_um']:.0f}",
                f"{middle['wires_pf'] / row['pins_pf']:.2f}",
                f"{without:.0f}",
                *(f"+ {wires['delay_ps'] / without - 1:.0%}" for wires in row["with_wires"]),
            )
        )
    return lines


def dram() -> list[str]:
    """Each core on each DRAM."""
    from sim.commands.dram_cores import table_of

    return table_of(_read(DRAM))


def standards() -> list[str]:
    """Organisation, timing and energy of each DRAM standard."""
    from sim.core.dram.standards import table_of

    return table_of()


TABLES: dict[str, Callable[[], list[str]]] = {
    "cores": cores,
    "overview": overview,
    "claims": claims,
    "catalogue": catalogue,
    "verification": verification,
    "fpga": fpga,
    "parts": parts,
    "layouts": layouts,
    "dram": dram,
    "standards": standards,
}


def _read(path: Path):
    return json.loads(path.read_text())


def filled(text: str) -> str:
    """A page's text with its tables as they should be.

    :raises ToolError: for a table that there is not.
    """

    def replace(match: re.Match) -> str:
        if match[2] not in TABLES:
            raise ToolError(f"a table must be one of {', '.join(TABLES)}, not {match[2]}")
        return match[1] + "\n".join(TABLES[match[2]]()) + "\n" + match[4]

    return MARK.sub(replace, text)


def add_measured(path: Path) -> None:
    """Keep the rows that ``sim synth``, ``sim layout`` or ``hw fpga`` printed with ``--json``."""
    try:
        new, kept, key = _read(path), SYNTHESIS, SYNTHESIZED
        if new and "with_wires" in new[0]:
            kept = LAYOUT
        elif new and "board" in new[0]:
            new, kept, key = [{name: row[name] for name in OF_BUILT} for row in new], FPGA, BUILT
        keyed = _keyed(new, key)
    except (ValueError, TypeError, KeyError):
        commands = "`--json` of `python -m sim synth`, `sim layout` or `python -m hw fpga`"
        raise UnusableFile(f"{path} must hold what {commands} prints") from None
    rows = _keyed(_read(kept) if kept.exists() else [], key) | keyed
    text = json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n"
    with replacing(kept) as file:
        file.write(text.encode())


def _keyed(rows: list[dict], names: tuple[str, ...]) -> dict[tuple, dict]:
    return {tuple(row[name] for name in names): row for row in rows}


def tables_command(arguments) -> int:
    require_checkout("sim tables")
    for path in arguments.add:
        add_measured(path)
    stale = []
    for name in PAGES:
        page = ROOT / name
        text = page.read_text()
        new = filled(text)
        if new != text:
            stale.append(name)
            if not arguments.check:
                with replacing(page) as file:
                    file.write(new.encode())
    for name in stale:
        print(f"{name}: {'out of date, run make docs' if arguments.check else 'written'}")
    return int(bool(stale) and arguments.check)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "tables",
        help="write the tables of README.md and docs",
        description=(
            "Write the tables of README.md and three pages of docs from the catalogue "
            "and from the measurements in docs/results."
        ),
    )
    command.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.json",
        help="first keep what `python -m sim synth ... --liberty nangate45 --mode speed --json`, "
        "`python -m sim layout ... --json` or `python -m hw fpga ... --json` printed; may be "
        "repeated",
    )
    command.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    command.set_defaults(run=tables_command)
