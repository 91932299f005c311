"""The page, the tables and the JSON of UniCAIM's cost model."""

import dataclasses

from golden.algorithms.unicaim.cost import PRUNINGS, digital_search_steps
from golden.studies.study import Study, Table
from golden.studies.unicaim_cost.claims import claims, ratio
from golden.studies.unicaim_cost.pictures import pictures
from golden.studies.unicaim_cost.sweeps import Setting, cost, lengths

NAME = "unicaim_cost"
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


def study(setting: Setting) -> Study:
    """The study of a setting. Energy in pJ, delay in ns."""
    listed = constants(setting)
    return Study(
        NAME,
        "UniCAIM: devices, energy and delay (Table II, Figs. 10 to 12)",
        about(setting),
        claims(setting),
        (prunings(setting), searches(setting), sensitivity(setting), listed),
        pictures(setting),
        about={
            "setting": dataclasses.asdict(setting),
            "constants": [
                dict(zip(("name", *listed.columns[1:]), row, strict=True)) for row in listed.rows
            ],
        },
        data={
            "costs": _costs(setting),
            "sweeps": {
                swept: [
                    {"input": point[0], "output": point[1]} | _costs(setting, *point)
                    for point in points
                ]
                for swept, points in lengths(setting).items()
            },
        },
    )


def _costs(setting: Setting, *point: int) -> dict[str, dict]:
    found = {name: cost(setting, name, *point) for name in PRUNINGS}
    return {name: dataclasses.asdict(c) | {"aedp": c.aedp} for name, c in found.items()}


def prunings(setting: Setting) -> Table:
    """Every pruning, with cells of all bits and of one; AEDP beside dense with the same cells."""
    bits = setting.shape.cell_bits
    cells = {bits: setting} | ({1: setting.one_bit_cells()} if bits > 1 else {})
    return Table.of(
        "Array, and mean of a step; AEDP beside the dense array with the same cells",
        [
            (f"{bits}-bit cells, {name}", cost(at, name), cost(at, "dense").aedp)
            for bits, at in cells.items()
            for name in PRUNINGS
        ],
        ("", "{0[0]}"),
        ("rows", "{0[1].rows}"),
        ("devices", "{0[1].devices}"),
        ("conversions", "{0[1].conversions:.1f}"),
        ("energy, pJ", "{0[1].energy_pj:.0f}"),
        ("delay, ns", "{0[1].delay_ns:.0f}"),
        ("AEDP, dense over it", lambda row: f"{row[2] / row[1].aedp:.1f}" if row[1].aedp else "-"),
    )


def searches(setting: Setting) -> Table:
    """Speed-up by the steps of a search."""
    digital = digital_search_steps(setting.shape.d, setting.shape.key_bits)
    steps = {"cells, one discharge": 1, "digital array, bit by bit": digital}
    return Table.of(
        "Delay by the search",
        [(label, dataclasses.replace(setting, search_steps=n)) for label, n in steps.items()],
        ("search", "{0[0]}"),
        ("steps", "{0[1].search_steps}"),
        ("delay, ns", lambda row: f"{cost(row[1], 'both').delay_ns:.0f}"),
        ("times shorter", lambda row: f"{ratio(row[1], 'delay_ns'):.2f}"),
    )


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

    def value(field: dataclasses.Field) -> float:
        return getattr(setting.constants, field.name)

    return Table.of(
        "Constants",
        dataclasses.fields(setting.constants),
        ("constant", "{.name}"),
        ("value", lambda field: f"{value(field):g} {field.metadata['unit']}".strip()),
        (
            "basis",
            lambda field: field.metadata["basis"] if value(field) == field.default else "given",
        ),
        ("source", "{.metadata[source]}"),
    )
