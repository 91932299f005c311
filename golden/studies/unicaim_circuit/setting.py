"""What the study is of: a line, its operating points, rows of given scores."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from golden.unicaim.sense_line import RULES, LineParameters

CELLS = 128
"""Cells of a line (section IV-A)."""
A_VT = 2.5
"""Mismatch of a 45 nm transistor's threshold, mV um; 2 to 3 is usual, the paper has none."""
INVERTER = 0.09, 0.045
"""Width and length of a detector's transistors in um, assumed."""
CLAMP = 0.1
"""V_SL in the current-domain mode where devices are to be resistors, V."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Parameters of the study.

    line
        Constants of the line; `rule` and, at one point, `v_read` are the operating points'.
    spread_mv, detector_mv
        Standard deviations of the devices' thresholds (section III-B5) and of the detectors', mV.
    seed
        Seed of all errors.
    """

    line: LineParameters = dataclasses.field(default_factory=LineParameters)
    spread_mv: float = 54.0
    detector_mv: float = 0.0
    seed: int = 0


class Point(NamedTuple):
    """An operating point: how levels are programmed and read.

    sense
        V_SL at which the current-domain mode converts, V.
    """

    line: LineParameters
    sense: float


def points(setting: Setting) -> dict[str, Point]:
    """The operating points by name. The first is the one whose discharge follows the scores."""
    line = setting.line
    above = 2 * line.vdd

    def name(rule: str, v_read: float) -> str:
        return f"by {rule}, V_R = {v_read:g} V"

    found = {
        name(rule, line.v_read): Point(dataclasses.replace(line, rule=rule), line.v_verify)
        for rule in RULES
    }
    resistive = dataclasses.replace(line, rule="voltage", v_read=above)
    return found | {f"{name('voltage', above)}, above V_DD": Point(resistive, CLAMP * line.vdd)}


def inverter_mv() -> float:
    """Standard deviation of an inverter's threshold: a transistor's, its variance halved, mV."""
    width, length = INVERTER
    return A_VT / (width * length) ** 0.5 / 2**0.5


def compositions(score: int, cells: int, limit: int) -> np.ndarray:
    """Two rows of a score, products [2, cells]: as equal as possible, and all at the ends."""
    low, more = divmod(score, cells)
    equal = np.full(cells, low)
    equal[:more] += 1
    at_top, rest = divmod(score + limit * cells, 2 * limit)
    ends = np.full(cells, -limit)
    ends[:at_top] = limit
    if rest:
        ends[at_top] += rest
    return np.stack([equal, ends])


def all_scores(cells: int, limit: int, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Scores, each `step`-th, and both rows of each: [scores], [scores, 2, cells]."""
    scores = np.arange(-limit * cells, limit * cells + 1, step)
    return scores, np.array([compositions(int(score), cells, limit) for score in scores])


def mixed_rows(rows: int, cells: int, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of all scores and of narrow and wide spread of products: [rows, cells]."""
    centre = np.linspace(-limit, limit, rows)[:, None]
    width = rng.choice([0.3, 1.0, 2.0], (rows, 1)) * limit / 2
    drawn = centre + width * rng.standard_normal((rows, cells))
    return np.clip(np.rint(drawn), -limit, limit).astype(int)


def rounded(values: Any, digits: int = 5) -> Any:
    """A number or nested lists of numbers, to digits on which machines agree."""
    array = np.asarray(values)
    if array.ndim:
        return [rounded(part, digits) for part in array]
    return float(f"{array:.{digits}g}")
