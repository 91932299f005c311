"""Results of synthesis, as rows for programs and tables for people."""

import dataclasses
from collections.abc import Sequence

from rich import box
from rich.table import Table

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.synth.flow import Mapped, driver, nand2_area
from sim.synth.hierarchy import Part
from sim.synth.liberty import Library
from sim.synth.libraries import is_generic


@dataclasses.dataclass(frozen=True)
class Row:
    """One configuration, mapped in one mode to one cell library.

    area_um2, delay_ps
        None for the generic set, which has neither; `delay_levels` is None for all other libraries.
    nand2_equivalents
        Area over the library's smallest two-input NAND; None if it has none.
    start, end
        The slowest path's: ports, or nets and data pins of registers.
    paths
        The slowest delay of each kind of path, in ps or levels.
    slack_ps, met
        Slack at the requested clock period, and whether it is met; None without one.
    netlist
        The file written; None without ``--netlist``.
    """

    block: str
    preset: str
    parameters: dict
    mode: str
    library: str
    area_um2: float | None
    cells: int
    flipflops: int
    nand2_equivalents: float | None
    delay_ps: float | None
    delay_levels: int | None
    start: str | None
    end: str | None
    paths: dict[str, float]
    clock_ps: float | None = None
    slack_ps: float | None = None
    met: bool | None = None
    netlist: str | None = None


@dataclasses.dataclass(frozen=True)
class SumRow(Row):
    """One configuration mapped by hierarchy: the sum of its parts.

    delay_ps, delay_levels
        The slowest part's; `start`, `end` and `paths` are not given.
    memory_bits
        Bits of memories that are not in the area.
    parts
        Fields of each :class:`sim.synth.hierarchy.Part`.
    """

    memory_bits: int = 0
    parts: list[dict] = dataclasses.field(default_factory=list)


def sum_row(
    block: Block,
    preset: str,
    parameters: Parameters,
    mode: str,
    parts: list[Part],
    library: Library,
) -> SumRow:
    """The row of a design that was mapped part by part, the first being the design itself."""
    generic, nand2 = is_generic(library), nand2_area(library)
    area, delay = parts[0].whole_um2, max(part.delay_ps for part in parts)
    return SumRow(
        block=block.name,
        preset=preset,
        parameters=dataclasses.asdict(parameters),
        mode=f"{mode}, by hierarchy",
        library=library.name,
        area_um2=None if generic else area,
        cells=sum(part.instances * part.cells for part in parts),
        flipflops=sum(part.instances * part.flipflops for part in parts),
        nand2_equivalents=round(area / nand2, 1) if nand2 else None,
        delay_ps=None if generic else delay,
        delay_levels=round(delay / 1000) if generic else None,
        start=None,
        end=None,
        paths={},
        memory_bits=parts[0].whole_memory_bits,
        parts=[dataclasses.asdict(part) for part in parts],
    )


PARTS = ("part", "instances", "one, alone", "one, whole", "all, alone", "share, %", "memory, bits")


def part_rows(entry: dict) -> list[list[str]]:
    """The largest parts of a design mapped by hierarchy, as the row's JSON has them; see PARTS.

    The area of a part *alone* is without the parts inside it; all of these add up to the design's.
    Parts below a hundredth of the design are one line.
    """
    total = entry["parts"][0]["whole_um2"]
    sums = [(part, part["instances"] * part["area_um2"]) for part in entry["parts"]]
    sums.sort(key=lambda pair: -pair[1])
    rows, rest = [], [0, 0.0, 0]
    for part, area in sums:
        bits = part["instances"] * part["memory_bits"]
        if area < total / 100 and not bits:
            rest = [rest[0] + part["instances"], rest[1] + area, 0]
            continue
        areas = (part["area_um2"], part["whole_um2"], area)
        shown = [f"{value:,.0f}" for value in areas]
        share = f"{100 * area / total:.1f}"
        rows.append([part["module"], f"{part['instances']:,}", *shown, share, f"{bits:,}"])
    if rest[0]:
        share = f"{100 * rest[1] / total:.1f}"
        rows.append(["smaller ones", f"{rest[0]:,}", "", "", f"{rest[1]:,.0f}", share, "0"])
    return rows


def parts_table(entry: SumRow) -> Table:
    """What a design mapped by hierarchy consists of."""
    unit = "NAND2 equivalents" if entry.area_um2 is None else "um2"
    title = f"{entry.block} {entry.preset}, {entry.mode}: {unit}"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in PARTS:
        shown.add_column(name, justify="left" if name == "part" else "right")
    for values in part_rows(dataclasses.asdict(entry)):
        shown.add_row(*values)
    return shown


def row(
    block: Block, preset: str, parameters: Parameters, mapped: Mapped, clock: float | None
) -> Row:
    """The row of a mapped design, without its netlist's file."""
    generic = is_generic(mapped.library)
    nand2 = nand2_area(mapped.library)
    worst = mapped.timing.worst

    def delay(ps: float) -> float:
        return round(ps / 1000) if generic else round(ps, 1)

    slack = None if clock is None else round(clock - mapped.delay, 1)
    return Row(
        block=block.name,
        preset=preset,
        parameters=dataclasses.asdict(parameters),
        mode=mapped.mode,
        library=mapped.library.name,
        area_um2=None if generic else round(mapped.area, 3),
        cells=len(mapped.netlist.cells),
        flipflops=mapped.flipflops,
        nand2_equivalents=round(mapped.area / nand2, 1) if nand2 else None,
        delay_ps=None if generic else delay(mapped.delay),
        delay_levels=round(mapped.delay / 1000) if generic else None,
        start=worst.start if worst else None,
        end=worst.end if worst else None,
        paths={kind: delay(path.delay) for kind, path in mapped.timing.paths.items()},
        clock_ps=clock,
        slack_ps=slack,
        met=None if slack is None else slack >= 0,
    )


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def table(rows: list[Row]) -> Table:
    """Rows of one library."""
    generic = rows[0].delay_levels is not None
    clocked = rows[0].clock_ps is not None
    title = f"library {rows[0].library}"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    shown.add_column("block", no_wrap=True)
    shown.add_column("mode")
    measures = [] if generic else ["area, um2"]
    measures += ["cells", "FFs", "NAND2 eq."]
    measures += ["delay, levels" if generic else "delay, ps"] + ["slack, ps"] * clocked
    for name in measures:
        shown.add_column(name, justify="right")
    for entry in rows:
        values = [] if generic else [number(entry.area_um2)]
        values += [number(entry.cells), number(entry.flipflops), number(entry.nand2_equivalents)]
        values.append(number(entry.delay_levels if generic else entry.delay_ps))
        if clocked:
            values.append(number(entry.slack_ps))
        shown.add_row(f"{entry.block} {entry.preset}", entry.mode, *values)
    return shown


def slowest(entry: Row) -> str:
    """A sentence about a row's slowest path."""
    what = f"{entry.block} {entry.preset}, {entry.mode}"
    if isinstance(entry, SumRow):
        return f"{what}: {entry.memory_bits:,} bits of memories are not in the area."
    if entry.start is None:
        return f"{what}: nothing lies between two ports or registers."
    path = f"slowest from {entry.start} to {entry.end}"
    if entry.slack_ps is None:
        return f"{what}: {path}."
    margin = f"met by {entry.slack_ps}" if entry.met else f"missed by {-entry.slack_ps}"
    return f"{what}: {entry.clock_ps:g} ps {margin} ps; {path}."


def explanation(mapped: Mapped) -> str:
    """What the delays are, in a sentence or two."""
    if is_generic(mapped.library):
        return (
            "Delays are in gate levels and areas in NAND2 equivalents, of a generic gate set; "
            "give --liberty for picoseconds and square micrometres."
        )
    name = driver(mapped.library)
    source = f"inputs driven by {name}" if name else "ideal inputs"
    return f"Delays are of cells alone, no wires: {source}, nothing at outputs, an ideal clock."


BY_HIERARCHY = (
    "The delay is the slowest part's, a lower bound of the period: paths between parts are not"
    " seen."
)


def usage_table(rows: list[dict], device: str, headings: Sequence[str]) -> Table:
    """What designs use of an FPGA, out of context."""
    shown = Table(title=f"{device}, out of context", title_justify="left", box=box.SIMPLE)
    shown.add_column("block", no_wrap=True)
    for name in headings:
        shown.add_column(name, justify="right")
    for entry in rows:
        used = list(entry.values())[-len(headings) :]
        shown.add_row(f"{entry['block']} {entry['preset']}", *map(number, used))
    return shown


def share(used: int, room: int) -> str:
    """A number of parts of a device, and their share if it has any."""
    return f"{used:,} ({100 * used / room:.0f} %)" if room else f"{used:,} of 0"


def fpga_table(built: list, board) -> Table:
    """What designs use of a board's FPGA, each with its share of the device, and their clocks."""
    shown = Table(title=board.name, title_justify="left", box=box.SIMPLE)
    shown.add_column("block", no_wrap=True)
    names = ("LUT4", "flip-flops", "multipliers", "block memories")
    for name in (*names, "Fmax, MHz", "clock, MHz"):
        shown.add_column(name, justify="right")
    room = dataclasses.astuple(board.resources)
    for one in built:
        shares = map(share, dataclasses.astuple(one.used), room)
        shown.add_row(
            f"{one.block} {one.configuration}",
            *shares,
            f"{one.fmax_mhz:.1f}",
            f"{one.clock_mhz:g}",
        )
    return shown
