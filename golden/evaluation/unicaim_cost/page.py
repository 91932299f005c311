"""The page, the tables and the JSON of UniCAIM's cost model."""

import dataclasses
from collections.abc import Sequence

from golden.algorithms.unicaim.cost import PRUNINGS, digital_search_steps
from golden.evaluation.section import Table
from golden.evaluation.unicaim_cost.claims import Claim, ratio
from golden.evaluation.unicaim_cost.pictures import CAPTIONS
from golden.evaluation.unicaim_cost.sweeps import Cost, Setting, cost, lengths
from golden.markdown import table_text

TITLE = "UniCAIM: devices, energy and delay (Table II, Figs. 10 to 12)"
FACTOR = 10
"""By which the sensitivity table varies a constant."""
VARIED = ("search_cycles", "write_cycles", "sense_line_ff", "bit_line_ff", "write_fj")


def about(setting: Setting) -> str:
    """What was modelled, in words."""
    shape = setting.shape
    return (
        "An analytical model: counts of rows, conversions, search steps and writes of each decode"
        f" step, times constants. {shape.heavy} + {shape.reserved} rows of {shape.d} elements of"
        f" {shape.key_bits} bits, {setting.constants.converters} converters,"
        f" {setting.kept} % of the rows in use selected, input {setting.prompt}, output"
        f" {setting.generated} unless stated. The paper's 20 % of *pruning ratio* are read as 20 %"
        " selected. Devices are FeFETs and transistors and stand for the area; capacitors,"
        " converters and drivers are left out."
        " The paper's Figs. 10 to 12 and Table II are pictures: only ratios that its text states"
        " are compared. `python -m golden unicaim-cost -o docs/results` writes this page,"
        " `--counts FILE` takes counts of the core's reports instead of the formulas."
    )


def markdown(setting: Setting, claims: Sequence[Claim]) -> str:
    """The page; the pictures are files beside it."""
    verdicts = Table(
        "",
        ["paper", "here", "verdict", "why"],
        [[c.paper, c.ours, c.verdict, c.why] for c in claims],
    )
    parts = [f"# {TITLE}", about(setting), table_text(verdicts.columns, verdicts.rows)]
    parts += [f"![{caption}]({name}.svg)" for name, caption in CAPTIONS.items()]
    for table in (prunings(setting), searches(setting), sensitivity(setting), constants(setting)):
        parts += [f"{table.title}:", table_text(table.columns, table.rows)]
    return "\n\n".join(parts) + "\n"


def prunings(setting: Setting) -> Table:
    """Every pruning, with cells of all bits and of one; AEDP beside dense with the same cells."""
    rows = []
    bits = setting.shape.cell_bits
    cells = {bits: setting} | ({1: setting.one_bit_cells()} if bits > 1 else {})
    for bits, at in cells.items():
        dense = cost(at, "dense").aedp
        for name in PRUNINGS:
            c = cost(at, name)
            rows.append(
                [
                    f"{bits}-bit cells, {name}",
                    str(c.rows),
                    str(c.devices),
                    f"{c.conversions:.1f}",
                    f"{c.energy_pj:.0f}",
                    f"{c.delay_ns:.0f}",
                    f"{dense / c.aedp:.1f}" if c.aedp else "-",
                ]
            )
    return Table(
        "Array, and mean of a step; AEDP beside the dense array with the same cells",
        ["", "rows", "devices", "conversions", "energy, pJ", "delay, ns", "AEDP, dense over it"],
        rows,
    )


def searches(setting: Setting) -> Table:
    """Speed-up by the steps of a search."""
    digital = digital_search_steps(setting.shape.d, setting.shape.key_bits)
    rows = []
    for label, steps in (
        ("cells, one discharge", 1),
        ("digital array, bit by bit", digital),
    ):
        at = dataclasses.replace(setting, search_steps=steps)
        rows.append(
            [label, str(steps), f"{cost(at, 'both').delay_ns:.0f}", f"{ratio(at, 'delay_ns'):.2f}"]
        )
    return Table("Delay by the search", ["search", "steps", "delay, ns", "times shorter"], rows)


def sensitivity(setting: Setting) -> Table:
    """Dense over both prunings with a constant divided and multiplied by `FACTOR`."""
    rows = []
    for name in VARIED:
        value = getattr(setting.constants, name)
        row = [name, f"{value:g}"]
        for quantity in ("energy_pj", "delay_ns"):
            for factor in (1 / FACTOR, 1, FACTOR):
                varied = dataclasses.replace(setting.constants, **{name: value * factor})
                row.append(f"{ratio(dataclasses.replace(setting, constants=varied), quantity):.2f}")
        rows.append(row)
    columns = [f"{q}, {f}" for q in ("energy", "delay") for f in (f"/{FACTOR}", "as is", "×10")]
    return Table(
        "Dense over both prunings, with constants that are not in the text varied",
        ["constant", "value", *columns],
        rows,
    )


def constants(setting: Setting) -> Table:
    """Every constant with its source."""
    rows = [
        [
            field.name,
            f"{getattr(setting.constants, field.name):g} {field.metadata['unit']}".strip(),
            field.metadata["basis"]
            if getattr(setting.constants, field.name) == field.default
            else "given",
            field.metadata["source"],
        ]
        for field in dataclasses.fields(setting.constants)
    ]
    return Table("Constants", ["constant", "value", "basis", "source"], rows)


def content(setting: Setting, claims: Sequence[Claim]) -> dict:
    """What the page says and the pictures show, for JSON. Energy in pJ, delay in ns."""
    return {
        "title": TITLE,
        "setting": dataclasses.asdict(setting),
        "constants": [
            dict(zip(("name", "value", "basis", "source"), row, strict=True))
            for row in constants(setting).rows
        ],
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "costs": {name: _cost_json(cost(setting, name)) for name in PRUNINGS},
        "sweeps": {
            swept: [
                {"input": point[0], "output": point[1]}
                | {name: _cost_json(cost(setting, name, *point)) for name in PRUNINGS}
                for point in points
            ]
            for swept, points in lengths(setting).items()
        },
    }


def _cost_json(c: Cost) -> dict:
    return dataclasses.asdict(c) | {"aedp": c.aedp}
