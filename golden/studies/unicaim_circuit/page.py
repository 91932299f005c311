"""The page and the JSON of UniCAIM's circuit."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from golden.studies.study import Study
from golden.studies.unicaim_circuit.arrays import COPIES, ROWS, TOP
from golden.studies.unicaim_circuit.claims import claims
from golden.studies.unicaim_circuit.pictures import pictures
from golden.studies.unicaim_circuit.tables import tables

NAME = "unicaim_circuit"


def about(data: Mapping[str, Any]) -> str:
    """What was computed, in words."""
    line = data["setting"]["line"]
    return (
        "The sense line as a circuit (`golden/unicaim/sense_line.py`): a constant capacitance that"
        " pairs of FeFETs discharge, each an EKV transistor whose threshold is the level; times are"
        " integrals over the voltage, without a step in time. ngspice agrees with them. The paper"
        " shows Figs. 5 to 9 as pictures, and its text has no threshold, voltage, current or"
        f" capacitance: a window of {line['vth_low']:g} to {line['vth_high']:g} V is assumed,"
        f" V_DD is {line['vdd']:g} V, and slope, current and its modulation are of the predictive"
        " 45 nm card with W = L = 90 nm. So shapes and ratios are judged here, not picoseconds."
        " Levels are programmed by equal steps of the threshold, or of the current when read; V_R"
        " is open, too. Each combination is one operating point, and no figure is of two."
        f" Whole arrays are the shipped trace's keys: {ROWS} rows of {COPIES} × 64 cells, as the 0"
        " of a 1-bit query is a +1 and a -1 on two cells of one key. One line cannot weigh planes,"
        " so a query of more bits would take 2^(b + 1) cells for bit b, or a search for each plane,"
        f" whose results no line adds. Recall is the share of the {TOP} rows left high whose"
        f" score is not below the {TOP}th largest. `python -m golden unicaim-circuit -o"
        " docs/results` writes this page."
    )


def study(data: Mapping[str, Any]) -> Study:
    """The study of what ``measure`` returns."""
    return Study(
        NAME,
        "UniCAIM: the sense line as a circuit (Figs. 5 to 9)",
        about(data),
        claims(data),
        tables(data),
        pictures(data),
        data=data,
    )


def read(path: Path) -> dict[str, Any]:
    """The figures in a file that the study wrote."""
    content = json.loads(path.read_text())
    return {name: of for name, of in content.items() if name not in ("title", "claims")}
