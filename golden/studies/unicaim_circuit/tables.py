"""Tables of the study."""

from collections.abc import Mapping
from typing import Any

from golden.studies.study import Table
from golden.studies.unicaim_circuit.arrays import CAPACITANCES, DETECTORS, LATE, ROWS, SPREADS, TOP
from golden.studies.unicaim_circuit.rows import CONVERTER_BITS, QUERY_BITS, THIRD
from golden.studies.unicaim_circuit.setting import A_VT, CELLS, INVERTER

Data = Mapping[str, Any]


def tables(data: Data) -> list[Table]:
    """All tables, those that are printed first."""
    return [
        _spread(data),
        _order(data),
        _read_voltages(data),
        _detector(data),
        _capacitance(data),
        _late(data),
        _clock(data),
        _measured(data),
        _measured_spread(data),
        _linear(data),
        _noise(data),
        _energy(data),
        _constants(data),
    ]


def _spread(data: Data) -> Table:
    return Table.of(
        f"Recall of the top {TOP} of {ROWS} rows by the spread of thresholds, 1-bit queries",
        [
            (f"{name}, {way}", found)
            for way, of in data["recall"].items()
            for name, found in of["spread"].items()
        ],
        ("", "{0[0]}"),
        *((f"{mv} mV", f"{{0[1][{n}]:.0%}}") for n, mv in enumerate(SPREADS)),
    )


def _order(data: Data) -> Table:
    return Table.of(
        "Neighbouring scores of which some rows drop in the wrong order, without spread, and the"
        " largest distance of 1/t from a straight line in scores",
        [
            (name, "4 ternary" if label == "ternary" else label, found)
            for name, of in data["order"].items()
            for label, found in of.items()
        ],
        ("", "{0[0]}"),
        ("cells", "{0[1]}"),
        ("overlap", "{0[2][mixed]}"),
        ("of", "{0[2][of]}"),
        ("1/t, scores", "{0[2][error]:.3g}"),
    )


def _detector(data: Data) -> Table:
    width, length = INVERTER
    return Table.of(
        "Recall by the spread of the detectors' thresholds, levels by current"
        f" ({DETECTORS[-1]} mV: inverters of {width * 1e3:g} × {length * 1e3:g} nm with {A_VT:g} mV"
        " um, assumed)",
        [
            (f"{way}, devices {spread}", found)
            for way, of in data["recall"].items()
            for spread, found in of["detector"].items()
        ],
        ("", "{0[0]}"),
        *((f"{mv} mV", f"{{0[1][{n}]:.0%}}") for n, mv in enumerate(DETECTORS)),
    )


def _capacitance(data: Data) -> Table:
    return Table.of(
        "Recall by the spread of the lines' capacitances, levels by current, no other error",
        [(way, of["capacitance"]) for way, of in data["recall"].items()],
        ("", "{0[0]}"),
        *((f"{part:.1%}", f"{{0[1][{n}]:.0%}}") for n, part in enumerate(CAPACITANCES)),
    )


def _read_voltages(data: Data) -> Table:
    return Table.of(
        f"The same order of {CELLS} cells by V_R",
        data["read_voltages"],
        ("equal steps of", "{0[rule]}"),
        ("V_R, V", "{0[v_read]:g}"),
        ("overlap", "{0[mixed]}"),
        ("of", "{0[of]}"),
        ("1/t, scores", "{0[error]:.3g}"),
        ("time of score 0, ps", lambda row: f"{1e12 * row['time']:.2f}"),
    )


def _late(data: Data) -> Table:
    return Table.of(
        "Recall by the delay of the stop, of a search's time, levels by current, no spread",
        [(way, of["late"]) for way, of in data["recall"].items()],
        ("", "{0[0]}"),
        *((f"{late:.1%}", f"{{0[1][{n}]:.0%}}") for n, late in enumerate(LATE)),
    )


def _clock(data: Data) -> Table:
    return Table.of(
        "By the clock of `unicaim.cell_array`, no spread: recall of the rows that are high when the"
        " search ends, and with rows of the last step with too many that fill up to"
        f" {TOP}, lowest addresses first",
        [(way, row) for way, of in data["clock"].items() for row in of],
        ("", "{0[0]}"),
        ("steps until a score of 0", "{0[1][clock]}"),
        ("late, 1024ths", "{0[1][late]}"),
        ("high", "{0[1][found]:.0%}"),
        ("filled up", "{0[1][filled]:.1%}"),
        ("steps of a search", "{0[1][steps]:.0f}"),
    )


def _measured(data: Data) -> Table:
    return Table.of(
        f"Rows with {data['setting']['spread_mv']:g} mV as they are, and with their own errors"
        f" measured once: deviation of a score by 1/t, and recall, 1-bit queries, every"
        f" {THIRD}rd array",
        [
            (f"{name}, {way}", found)
            for name, of in data["calibration"]["circuit"].items()
            for way, found in of.items()
        ],
        ("", "{0[0]}"),
        ("scores", "{0[1][deviation][0]:.2f}"),
        ("measured", "{0[1][deviation][1]:.2f}"),
        ("recall", "{0[1][recall][0]:.0%}"),
        ("recall, measured", "{0[1][recall][1]:.0%}"),
    )


def _measured_spread(data: Data) -> Table:
    return Table.of(
        f"Recall by the spread of thresholds, {QUERY_BITS}-bit queries on linear cells, own errors"
        f" measured by converters of {CONVERTER_BITS} bits",
        [
            (f"{way}, {name}", found)
            for way, of in data["calibration"]["linear"].items()
            for name, found in of.items()
        ],
        ("", "{0[0]}"),
        *((f"{mv} mV", f"{{0[1][{n}]:.0%}}") for n, mv in enumerate(SPREADS)),
    )


def _linear(data: Data) -> Table:
    spread = data["setting"]["spread_mv"]
    return Table.of(
        "Where a cell's current is linear in its level: the largest distance from a straight line,"
        f" and {spread:g} mV of the read device at the levels of least, middle and most threshold,"
        " all in levels",
        data["linear_points"],
        ("equal steps of", "{0[rule]}"),
        ("V_R, V", "{0[v_read]:g}"),
        ("V_SL, V", "{0[sense]:g}"),
        ("distance", "{0[error]:.2g}"),
        ("noise, -L", "{0[noise][0]:.2f}"),
        ("0", "{0[noise][1]:.2f}"),
        ("L", "{0[noise][2]:.2f}"),
    )


def _noise(data: Data) -> Table:
    return Table.of(
        f"Deviation of a row's score with {data['setting']['spread_mv']:g} mV, in scores",
        [
            (f"{name}, {way}", found)
            for name, of in data["deviations"].items()
            for way, found in of.items()
        ],
        ("", "{0[0]}"),
        ("by 1/t", "{0[1][search]:.2f}"),
        ("by I_SL", "{0[1][current]:.2f}"),
        ("linear cells", "{0[1][linear]:.2f}"),
    )


def _energy(data: Data) -> Table:
    return Table.of(
        "Energy of a search, a row and query: what lines lose until the stop of V_DD, to charge"
        " them and their bit lines again, and the current of a row that is converted",
        list(data["energy"].items()),
        ("", "{0[0]}"),
        ("lost", "{0[1][swing]:.0%}"),
        ("lines, fJ", "{0[1][line]:.1f}"),
        ("bit lines, fJ", "{0[1][bits]:.1f}"),
        ("I_SL, mA", "{0[1][milliamperes]:.2f}"),
    )


def _constants(data: Data) -> Table:
    return Table.of(
        "Constants of the line (`--set`), SI units",
        [item for item in data["setting"]["line"].items() if item[0] not in ("rule", "key_bits")],
        ("constant", "{0[0]}"),
        ("value", "{0[1]:g}"),
    )
