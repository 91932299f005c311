"""UniCAIM's Figs. 5 to 9 and what its text says of them, beside the circuit."""

from typing import Any

from golden.algorithms.unicaim.cost import Constants
from golden.studies.study import OURS, Claim, Verdict
from golden.studies.unicaim_circuit import sense_claims as senses
from golden.studies.unicaim_circuit.arrays import LATE, ROWS, SPREADS, TOP
from golden.studies.unicaim_circuit.rows import QUERY_BITS
from golden.studies.unicaim_circuit.sense_claims import ENOUGH, NEAR, Data, mixed
from golden.studies.unicaim_circuit.setting import CELLS

HALF_A_LEVEL, HALF_A_CODE = 0.5, 0.5
"""In levels of a cell, and in scores: a 10-bit converter's code is one score."""
COARSE = 256
"""Steps of the clock that are told."""


def claims(data: Data) -> list[Claim]:
    """All claims; verdicts are computed but for the last two of the paper's, which lack figures."""
    return [
        _medium(data),
        _levels(data),
        senses.signed(data),
        _order(data),
        _top(data),
        _reference(data),
        senses.configured(data),
        senses.search_time(data),
        _charge(data),
        senses.evicted(data),
        senses.second_reference(data),
        _states(data),
        _linear(data),
        _selected(data),
        _converters(data),
        senses.converter_range(),
        senses.ferroelectric(),
        _rest(),
        _all_rows(data),
        _noise(data),
        _rotation(data),
        _clocked(data),
        _measured(data),
    ]


def _medium(data: Data) -> Claim:
    found = {name: of["1"]["currents"] for name, of in data["cells"].items()}
    return Claim(
        "products -1, 0 and +1 of a ternary cell are a high, a medium and a low current",
        "; ".join(
            f"{name}: {high * 1e6:.0f}, {medium * 1e6:.1f}, {low * 1e6:.2f} uA"
            for name, (high, medium, low) in found.items()
        ),
        Verdict.of(*(high > medium > low for high, medium, low in found.values())),
        "the medium threshold gives the mean of the two currents only where levels are programmed"
        " by current or the device is a resistor; else rows of one score drop at different times",
        where="Fig. 5d",
    )


def _levels(data: Data) -> Claim:
    found = {name: of["3"]["currents"] for name, of in data["cells"].items()}
    falling = {
        name: all(a > b for a, b in zip(of, of[1:], strict=False)) for name, of in found.items()
    }
    errors = {name: _level_error(of) for name, of in found.items()}
    return Claim(
        "nine levels of a 3-bit key times +1 and -1 are nine currents",
        "; ".join(
            f"{name}: {'falling' if falling[name] else 'not falling throughout'}, up to"
            f" {errors[name]:.2f} levels from a straight line"
            for name in found
        ),
        Verdict.of(*(falling[name] and errors[name] < HALF_A_LEVEL for name in found)),
        "holds is half a level. With equal steps of voltage and V_R = V_DD thresholds above V_R are"
        " off, and the device that is not read leaks more than the other carries",
        where="Fig. 6b",
    )


def _level_error(currents: list[float]) -> float:
    """The largest distance of a level from the line through both ends, in levels."""
    step = (currents[0] - currents[-1]) / (len(currents) - 1)
    return max(abs((currents[0] - at) / step - level) for level, at in enumerate(currents))


def _order(data: Data) -> Claim:
    found = {name: of["ternary"] for name, of in data["order"].items()}
    return Claim(
        "of 4 ternary cells the line with the higher score discharges more slowly, for all nine"
        " scores",
        "; ".join(f"{name}: {mixed(of)}" for name, of in found.items()),
        Verdict.of(*(of["mixed"] == 0 for of in found.values())),
        "rows of a score are tried with cells as equal as possible and with all at the ends. Two"
        " +1 and two -1 must take the time of four 0, for which the medium current must be the"
        " mean",
        where="Fig. 7b",
    )


def _top(data: Data) -> Claim:
    margin = data["search"]["margin"]
    late = {way: dict(zip(LATE, of["late"], strict=True)) for way, of in data["recall"].items()}
    at = 0.01
    return Claim(
        "the discharge stops when k lines are left, such as the top 3 of 9",
        f"3 of 9 are left if the stop is less than {margin:.0%} late. Of {TOP} of {ROWS} real rows"
        f" of {CELLS} cells, a stop {at:.0%} late leaves"
        f" {' and '.join(f'{of[at]:.0%} ({way})' for way, of in late.items())}",
        Verdict.of(margin > 0, min(of[at] for of in late.values()) > ENOUGH),
        "neighbouring scores S differ in time by 1 / (S0 - S), S0 being the number of cells times"
        " the highest level: a half for 4 ternary cells, 1 / 512 for a score of 0 of the paper's"
        " line. Reference, comparator, latch and bit lines must stop it faster than that",
        where="Fig. 7c",
    )


def _reference(data: Data) -> Claim:
    of = data["references"]
    spread = data["setting"]["spread_mv"]
    return Claim(
        "I_Ref1 = (k + 1) I_dyn stops the search at the top k",
        f"with {spread:g} mV on F_dyn {of['whole']['exact']:.0%} of the searches stop at {TOP}"
        f" rows, {of['whole']['mean']:.1f} ± {of['whole']['deviation']:.1f}; with k + 1/2"
        f" {of['half']['exact']:.0%}, {of['half']['mean']:.1f} ± {of['half']['deviation']:.1f}",
        Verdict.of(abs(of["half"]["mean"] - TOP) < 1, of["whole"]["exact"] > ENOUGH),
        "(k + 1) I_dyn is the current of k + 1 rows itself, so the comparator has no margin there;"
        f" k + 1/2 has. I_dyn, like the cells, varies, by {of['spread']:.0%} with the lowest"
        " threshold at V_DD, and a sum of k of them by the root of k times that",
        where="III-B3",
    )


def _charge(data: Data) -> Claim:
    queries = data["charge"]["queries"]
    same = {way: of["same"] for way, of in data["evictions"].items()}
    return Claim(
        "charge of the lines, shared when the discharge stops, accumulates the scores",
        f"V_SL is a straight line of the score within"
        f" {max(of['error'] for of in queries):.1f} scores, of"
        f" {' and '.join(format(1e3 * of['gain'], '.3f') for of in queries)} mV a score for two"
        f" queries (by the law {' and '.join(format(1e3 * of['ideal'], '.3f') for of in queries)});"
        f" it evicts the row of the summed scores in"
        f" {' and '.join(f'{of:.0%} ({way})' for way, of in same.items())} of the arrays",
        Verdict.of(
            all(of["error"] < 1 for of in queries), all(of > ENOUGH for of in same.values())
        ),
        "V(S) = V_DD - (V_DD / 2) (S0 - S) / (S0 - S_k) while saturated: a query weighs more, the"
        " higher its k-th score S_k, at most by the share of S_k in S0. Lines that drop early are"
        " no less exact than the others",
        where="Fig. 8b",
    )


def _states(data: Data) -> Claim:
    low, high = data["devices"]["thresholds"]
    gap = min(high) - max(low)
    line = data["setting"]["line"]
    window = line["vth_high"] - line["vth_low"]
    return Claim(
        "the lowest and the highest state of 128 devices are distinct",
        f"{gap:.2f} V between the nearest two",
        Verdict.ASSUMED if gap > 0 else Verdict.NOT,
        f"{data['setting']['spread_mv']:g} mV in a window of {window:g} V, which is assumed."
        f" Neighbours of the nine levels between them, {window / 8 * 1e3:g} mV apart, overlap",
        where="Fig. 9a",
    )


def _linear(data: Data) -> Claim:
    found = data["linearity"]
    spread = f"{data['setting']['spread_mv']:g} mV"
    return Claim(
        f"I_SL of {CELLS} cells is linear in the score, robustly under {spread}",
        "; ".join(
            f"{name}, V_SL = {of['sense']:g} V: R² {of['exact']['r2']:.4f}, with {spread}"
            f" {of['spread']['r2']:.4f}, errors of"
            f" {of['exact']['rms']:.2f} and {of['spread']['rms']:.1f} scores"
            for name, of in found.items()
        ),
        Verdict.of(
            *(of["exact"]["largest"] < HALF_A_CODE for of in found.values()),
            *(of["spread"]["rms"] < HALF_A_CODE for of in found.values()),
        ),
        f"R² over {8 * CELLS + 1} scores hides errors of many codes of the converter, which the"
        " text calls exact. Without spread the line is straight by programming, or as a resistor"
        " with V_SL clamped near 0.1 V and V_R above V_DD",
        where="Fig. 9b",
    )


def _first(data: Data, name: str) -> Any:
    return next(iter(data[name].values()))


def _selected(data: Data) -> Claim:
    found = {name: of["selected"] for name, of in data["energy"].items()}
    return Claim(
        "selected rows have a smaller I_SL, so their conversion costs less",
        "; ".join(f"{name}: {of:.1%} of the mean of all rows" for name, of in found.items()),
        Verdict.of(*(of < 1 for of in found.values())),
        "the scores of real keys are a small part of the range: most of the current is S0's",
        where="III-B5",
    )


def _converters(data: Data) -> Claim:
    constants = Constants()
    time_ns = constants.adc_cycles * constants.cycle_ns
    vdd = data["setting"]["line"]["vdd"]
    found = {name: of["milliamperes"] * vdd * time_ns for name, of in data["energy"].items()}
    return Claim(
        "converters are the primary source of power",
        "; ".join(f"{name}: {of:.0f} pJ in a selected line" for name, of in found.items())
        + f", in its converter {constants.adc_pj:g} pJ",
        Verdict.CONSTANTS,
        f"I_SL V_DD for the {time_ns:g} ns of a conversion. The text has no on-current and no size"
        " of a device: with the card's it is the line that takes most, unless converters are"
        " faster or devices narrower",
        where="III-B5",
    )


def _rest() -> Claim:
    return Claim(
        "device count, energy, delay and AEDP",
        "none",
        Verdict.CIRCULAR,
        "no absolute figure of area, energy or delay is in the text, only ratios, which"
        " [the cost model](unicaim_cost.md) judges",
        where="Figs. 10 to 12, Table II",
    )


def _all_rows(data: Data) -> Claim:
    name, of = next(iter(data["order"].items()))
    large = of[str(CELLS)]
    return Claim(
        f"rows of {CELLS} cells drop in the order of their scores, as in `golden.unicaim`",
        f"{name}: {mixed(large)}, 1/t within {large['error']:.2f} scores of a straight line; "
        + "; ".join(
            f"{other}: {mixed(found[str(CELLS)])}, {found[str(CELLS)]['error']:.0f} scores"
            for other, found in list(data["order"].items())[1:]
        ),
        Verdict.of(*(found[str(CELLS)]["mixed"] == 0 for found in data["order"].values())),
        "without spread, by rows as equal as possible and rows at the ends",
        OURS,
        "Fig. 7",
    )


def _noise(data: Data) -> Claim:
    found = {
        name: [of[way][mode] / of[way]["linear"] for way in of for mode in ("search", "current")]
        for name, of in data["deviations"].items()
    }
    linear = _first(data, "deviations")["keys as they are"]["linear"]
    return Claim(
        f"the noise that `golden.algorithms.unicaim.spread` takes, {linear:.2f} scores, is a row's"
        f" deviation within {NEAR:.0%}",
        "; ".join(f"{name}: {min(of):.2f} to {max(of):.2f} times" for name, of in found.items()),
        Verdict.of(*(all(abs(one - 1) < NEAR for one in of) for of in found.values())),
        "true where a cell's current is linear in the threshold over the whole window. By current"
        " at V_R = V_DD the levels take a part of the window alone, so 54 mV are more of a level",
        OURS,
        "Fig. 9",
    )


def _clocked(data: Data) -> Claim:
    found = {
        way: [row for row in of if row["clock"] == COARSE] for way, of in data["clock"].items()
    }
    return Claim(
        "a late stop costs few rows where the lines of the last step with too many are kept, as"
        f" `unicaim.topk_sense` does; {COARSE} steps of a clock until a line of score 0 drops",
        "; ".join(
            f"{way}, stop {row['late'] / 1024:.1%} late: {row['found']:.0%} of the top {TOP} are"
            f" high, {row['filled']:.1%} with those that fill up"
            for way, of in found.items()
            for row in of
        ),
        Verdict.of(*(row["filled"] > ENOUGH for of in found.values() for row in of)),
        "rows that a late stop loses were high in that step, with few others. It takes a register"
        " for each line beside the one that the text has for the addresses",
        OURS,
        "III-B3, stop",
    )


def _measured(data: Data) -> Claim:
    found = data["calibration"]["circuit"]
    ratios = [
        of["deviation"][1] / of["deviation"][0] for ways in found.values() for of in ways.values()
    ]
    at = SPREADS.index(54)
    linear = data["calibration"]["linear"]
    return Claim(
        "measuring a row once after each write takes half of the variance off the scores of 1-bit"
        " queries, and more of more bits",
        f"the deviation is {min(ratios):.2f} to {max(ratios):.2f} of what it was, and recall "
        + "; ".join(
            f"{of['recall'][1]:.0%} for {of['recall'][0]:.0%} ({name}, {way})"
            for name, ways in found.items()
            for way, of in ways.items()
        )
        + f"; of {QUERY_BITS}-bit queries on linear cells "
        + "; ".join(
            f"{of['measured'][at]:.0%} for {of['not measured'][at]:.0%} ({way})"
            for way, of in linear.items()
        ),
        Verdict.of(
            *(abs(ratio / 0.5**0.5 - 1) < NEAR for ratio in ratios),
            *(of["measured"][at] > of["not measured"][at] for of in linear.values()),
        ),
        "with errors a and b of a cell's devices a digit q adds q (a - b) / 2 + (a + b) / 2. The"
        " sum of the second over the row is the same for all queries, and +1 and then -1 on all"
        " cells show it; each plane of a query adds it again. Each further reference"
        " query of d digits tells about a d-th of the rest",
        OURS,
        "III-B5, rows",
    )


def _rotation(data: Data) -> Claim:
    plain, rotated = (of["spread"] for of in data["recall"].values())
    at = SPREADS.index(54)
    return Claim(
        "rotated and centred keys are found more often than keys as they are",
        "; ".join(
            f"{name}: {plain[name][0]:.0%} and {rotated[name][0]:.0%} without spread,"
            f" {plain[name][at]:.0%} and {rotated[name][at]:.0%} with 54 mV"
            for name in plain
        ),
        Verdict.of(*(rotated[name][n] >= plain[name][n] for name in plain for n in (0, at))),
        f"of the top {TOP} of {ROWS}; keys as they are first. Rotated keys use the outer levels"
        " more, so they lose more where levels are not linear",
        OURS,
        "III-B2",
    )
