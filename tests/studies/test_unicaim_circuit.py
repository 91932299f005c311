"""The command ``unicaim-circuit``: its page again, its parts on small settings, its verdicts."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from golden import __main__ as cli
from golden.algorithms.unicaim.cost import Constants
from golden.studies.study import Verdict
from golden.studies.unicaim_circuit import arrays, lines, rows, sense_claims, senses
from golden.studies.unicaim_circuit.claims import claims
from golden.studies.unicaim_circuit.measure import measure
from golden.studies.unicaim_circuit.page import NAME, read, study
from golden.studies.unicaim_circuit.setting import (
    Setting,
    all_scores,
    compositions,
    mixed_rows,
    points,
    rounded,
)
from golden.unicaim.sense_line import crossing_times, search_times, stop_time, voltages

KEPT = Path(__file__).parents[2] / "docs" / "results" / f"{NAME}.json"
FIRST, BY_VOLTAGE, RESISTIVE = points(Setting())


@pytest.fixture(scope="module")
def kept():
    return read(KEPT)


def assert_near(found, expected):
    """Nested numbers agree to the digits that machines share."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for name in found:
            assert_near(found[name], expected[name])
    elif isinstance(found, list) and found and isinstance(found[0], dict):
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    elif isinstance(found, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)


@pytest.mark.campaign
def test_the_kept_data_follow_from_the_circuit(kept):
    assert_near(json.loads(json.dumps(measure(Setting()))), kept)


@pytest.mark.parametrize(
    "name",
    [
        "cells",
        "search",
        "order",
        "read_voltages",
        "inverse",
        "devices",
        "linearity",
        "linear_points",
    ],
)
def test_kept_figures_of_lines(kept, name):
    assert_near(json.loads(json.dumps(getattr(lines, name)(Setting()))), kept[name])


@pytest.mark.campaign
def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    # Two arrays are enough to see the options arrive.
    every = arrays.arrays
    monkeypatch.setattr(
        arrays, "arrays", lambda *which: (one for n, one in enumerate(every(*which)) if n < 5)
    )
    status, out, _ = call(
        cli.main, "unicaim-circuit --json --set v_read=1.2 --spread-mv 20 --detector-mv 3 -o made"
    )
    made = json.loads(out)
    assert status == 0 and json.loads((tmp_path / f"made/{NAME}.json").read_text()) == made
    assert made["setting"]["line"]["v_read"] == 1.2 and made["setting"]["spread_mv"] == 20
    assert list(made["cells"])[0] == "by current, V_R = 1.2 V"
    page = (tmp_path / f"made/{NAME}.md").read_text()
    assert "| v_read | 1.2 |" in page and all(claim["why"] in page for claim in made["claims"])
    written = {path.name for path in (tmp_path / "made").iterdir()}
    assert written == {f"{NAME}.json", f"{NAME}.md"} | {
        f"{NAME}_{name}.svg"
        for name in ("cell", "search", "charge", "current", "inverse", "recall")
    }


@pytest.mark.parametrize(("score", "cells", "limit"), [(-64, 16, 4), (5, 16, 4), (63, 16, 4)])
def test_rows_of_a_score(score, cells, limit):
    equal, ends = compositions(score, cells, limit)
    assert equal.sum() == ends.sum() == score and np.abs([equal, ends]).max() <= limit
    assert np.ptp(equal) <= 1 and np.count_nonzero(np.abs(ends) != limit) <= 1


def test_mixed_rows_have_all_scores():
    rows = mixed_rows(300, 128, 4, np.random.default_rng(0))
    assert rows.shape == (300, 128) and np.abs(rows).max() == 4
    assert rows.sum(axis=1).min() < -400 and rows.sum(axis=1).max() > 400


def test_numbers_are_rounded():
    assert rounded([[1.23456789e-12, -0.0]], 3) == [[1.23e-12, 0.0]]


@pytest.mark.parametrize("name", ["query_products", "numbers", "first_row"])
def test_kept_figures_of_senses(kept, name):
    assert_near(json.loads(json.dumps(getattr(senses, name)(Setting()))), kept[name])


def test_products_of_a_linear_cell_are_in_order(monkeypatch):
    """By hand: a current of 3 - level gives one of 6 (3) - 2 q k; a bend mixes 2 × 1 and 1 × 2."""
    levels = np.arange(-2.0, 3)
    monkeypatch.setattr(senses, "level_currents", lambda line, v: 3 - levels)
    of = senses.query_products(Setting())[FIRST]
    assert of == {"mixed": 0, "of": 10, "error": pytest.approx(0, abs=1e-9)}
    monkeypatch.setattr(senses, "level_currents", lambda line, v: np.exp(-2 * levels))
    of = senses.query_products(Setting())[FIRST]
    assert of["mixed"] > 0 and of["error"] > 1


def test_sums_of_currents_by_hand():
    """Without spread k + 1/2 currents leave k rows, and the first row's is never above its own."""
    exact = Setting(spread_mv=1e-6)
    for k, of in senses.numbers(exact, trials=3).items():
        assert of["mean"] == int(k) and of["deviation"] == 0
    line = exact.line
    few, many = senses.NUMBERS[0], senses.NUMBERS[-1]
    on = senses.spread_currents(line, senses.numbers(exact, 3)[str(many)]["threshold"], 0.0)
    most = senses.spread_currents(line, line.vth_low, 0.0)
    assert most / on == pytest.approx((many + 0.5) / (few + 0.5), rel=1e-2)
    assert senses.first_row(Setting(spread_mv=5))["half"] == 1
    assert senses.first_row(Setting(spread_mv=5))["whole"] == pytest.approx(0.5, abs=0.02)


def even_rows(bits: int, rotate: bool):
    """Two arrays of 448 rows of scores -511 .. -64 for each of three queries."""
    keys = np.array([compositions(score, 128, 4)[0] for score in range(-511, -63)])
    for _ in range(2):
        yield arrays.Array(keys, np.ones((3, 128), int))


def test_evictions_under_spread_by_hand(monkeypatch):
    """Three equal queries share 1 - (15/16)^3 of the distances of the lines when a search stops."""
    monkeypatch.setattr(arrays, "arrays", even_rows)
    of = arrays.evictions(Setting())["keys as they are"]
    assert of["same"] == 1 and of["spread"] < 0.2 and 20 < of["place"] < 224
    line, keys = points(Setting())[FIRST].line, next(even_rows(3, False)).keys
    v = voltages(line, keys, float(stop_time(crossing_times(line, keys), 64)))
    assert (np.diff(v) > 0).all()
    shared = 1e3 * (v - v[0]) * (1 - (15 / 16) ** 3)
    assert of["gap"] == pytest.approx(shared[1], rel=1e-2)
    assert of["range"] == pytest.approx(shared[-1], rel=1e-3)
    sure = arrays.evictions(Setting(spread_mv=1e-4))["keys as they are"]
    assert sure["spread"] == 1 and sure["place"] == 0


def test_search_lengths_by_hand(monkeypatch):
    """The search of a part of the rows ends when the 17th last of these drops."""
    monkeypatch.setattr(senses, "arrays", even_rows)
    one = next(even_rows(3, False))
    line = points(Setting())[FIRST].line
    last = np.sort(crossing_times(line, one.keys))
    short = np.sort(crossing_times(line, one.keys[:112]))
    found = senses.search_lengths(Setting())["keys as they are"]
    assert found[0] == pytest.approx(short[-17] / last[-17], rel=2e-4) and found[-1] == 1


def test_ternary_rows_by_hand():
    """Score 1 / t of four cells, of which one is +1 and three are 0, by currents of a cell."""
    found = lines.search(Setting())
    line = points(Setting())[FIRST].line
    high, medium, low = lines.cells(Setting())[FIRST]["1"]["currents"]
    current = low + 3 * medium
    farads = 4 * line.c_cell + line.c_fixed
    assert found["times"][5] == pytest.approx(farads * 0.5 / current, rel=0.01)
    assert found["stop"] == found["times"][5] and 0.49 < found["margin"] < 0.51
    assert high > medium > low


def test_arrays_are_the_scores_of_1_bit_queries(shipped_trace):
    """Two cells an element, the second against the first where the query's digit is 0."""
    first = next(arrays.arrays(3, False))
    assert first.keys.shape == (448, 128) and first.digits.shape == (24, 128)
    pair = first.digits.reshape(24, 64, 2)
    query = pair.sum(axis=2) // 2
    assert set(np.unique(query)) == {-1, 0, 1}
    np.testing.assert_array_equal(first.scores, 2 * query @ first.keys[:, ::2].T)
    q = shipped_trace.q[0, 0, 448].astype(float)
    np.testing.assert_array_equal(query[0], np.rint(q / np.sqrt(np.mean(q**2))).clip(-1, 1))


def test_recall_counts_ties_as_right():
    scores = np.repeat([[3, 2, 2, 1]], 32, axis=1)
    times = np.arange(128.0)[None]
    # Of 128 rows 64 have a score of 2; the top 64 are the 3 and half of these.
    assert arrays.found_rows(scores + 1e-3 * times, scores) == 1
    assert arrays.found_rows(-scores + 1e-3 * times, scores) == 0.5
    assert arrays.found_rows(scores + 1e-3 * times, scores, late=10.0) == 0


def test_a_row_without_errors_is_found_by_current_alone():
    one = next(arrays.arrays(3, True))
    found = {
        name: arrays.found_rows(search_times(of.line, one.keys, one.digits), one.scores)
        for name, of in points(Setting()).items()
    }
    assert found[FIRST] == 1 and found[BY_VOLTAGE] < 0.7 and 0.8 < found[RESISTIVE] < 1
    np.testing.assert_allclose(
        search_times(points(Setting())[FIRST].line, one.keys[:5], one.digits[:1])[0],
        crossing_times(points(Setting())[FIRST].line, one.keys[:5] * one.digits[0]),
    )


def test_own_errors_by_hand():
    """A level more on one device of every cell is half of the cells, of resistors, whatever m."""
    point = points(Setting())[RESISTIVE]
    keys = np.array([[-2, 0, 1, 2] * 8, [3, 3, -1, 0] * 8])
    level = (point.line.vth_high - point.line.vth_low) / 8
    for device in (0, 1):
        errors = np.zeros((2, 32, 2))
        errors[..., device] = level
        own = rows.own_errors(point, arrays.Array(keys, np.ones((1, 32), int)), errors)
        np.testing.assert_allclose(own, 16, atol=0.5)
    assert not rows.own_errors(point, arrays.Array(keys, np.ones((1, 32), int)), 0 * errors).any()


def test_the_clock_by_hand(monkeypatch):
    """Of rows of scores -511 .. -64 the search stops at -128, after 512 / 640 of a 0's time."""
    monkeypatch.setattr(rows, "arrays", even_rows)
    monkeypatch.setattr(rows, "CLOCKS", (64, 1024))
    coarse, fine, late_coarse, late = rows.clock(Setting())["keys as they are"]
    assert fine["found"] == fine["filled"] == 1 and fine["steps"] == 820 + 1
    # Step 52 of 64 is the time of a score of -118.2, step 53 of -106.3; 828 of 1024 of -121.2.
    of_rows = [of["found"] * 64 for of in (coarse, late_coarse, late)]
    np.testing.assert_allclose(of_rows, [55, 43, 58], atol=0.01)
    # Rows that fill up were high in the step before it was late, all but one of which are right.
    assert late["filled"] >= 63 / 64 and coarse["filled"] > coarse["found"]


def test_rows_by_scores_count_ties_as_right():
    scores = np.repeat([[3, 2, 2, 1]], 32, axis=1)
    assert rows.right_rows(scores, scores) == 1 and rows.right_rows(-scores, scores) == 0.5


def test_all_scores_are_in_steps():
    scores, rows = all_scores(4, 1, 2)
    assert scores.tolist() == [-4, -2, 0, 2, 4] and rows.shape == (5, 2, 4)


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        (("cells", FIRST, "1", "currents"), [1.0, 2.0, 0.5], "Fig. 5d", Verdict.PARTLY),
        (("cells", FIRST, "3", "currents"), [9.0, 1.0, *[0.1] * 7], "Fig. 6b", Verdict.NOT),
        (("order", BY_VOLTAGE, "ternary", "mixed"), 0, "Fig. 7b", Verdict.REPRODUCED),
        (("search", "margin"), 0.0, "Fig. 7c", Verdict.NOT),
        (("references", "half", "mean"), 99.0, "III-B3", Verdict.NOT),
        (("query_products", BY_VOLTAGE, "mixed"), 0, "Fig. 6d", Verdict.REPRODUCED),
        (("numbers", "64", "mean"), 57.0, "III-B3, k", Verdict.PARTLY),
        (("numbers", "16", "deviation"), 1.7, "III-B3, k", Verdict.PARTLY),
        (("search_lengths", "keys as they are"), [0.9, 1.0, 1.0], "III-B3, time", Verdict.PARTLY),
        (("evictions", "rotated and centred", "same"), 0.9, "III-B4", Verdict.PARTLY),
        (("first_row", "whole"), 0.91, "III-B4, I_Ref2", Verdict.REPRODUCED),
        (("first_row", "half"), 0.9, "III-B4, I_Ref2", Verdict.NOT),
        (("charge", "queries", 0, "error"), 3.0, "Fig. 8b", Verdict.PARTLY),
        (("devices", "thresholds"), [[0.5], [0.4]], "Fig. 9a", Verdict.NOT),
        (("linearity", RESISTIVE, "spread", "rms"), 0.4, "Fig. 9b", Verdict.PARTLY),
        (("energy", RESISTIVE, "selected"), 1.1, "III-B5", Verdict.PARTLY),
        (("order", FIRST, "128", "mixed"), 4, "Fig. 7", Verdict.NOT),
        (("deviations", RESISTIVE, "rotated and centred", "search"), 9.0, "Fig. 9", Verdict.NOT),
        (
            ("recall", "rotated and centred", "spread", FIRST),
            [0.9] * 6,
            "III-B2",
            Verdict.PARTLY,
        ),
        (("clock", "rotated and centred", 9, "filled"), 0.9, "III-B3, stop", Verdict.PARTLY),
        (
            ("calibration", "circuit", FIRST, "keys as they are", "deviation"),
            [8.0, 7.0],
            "III-B5, rows",
            Verdict.PARTLY,
        ),
    ],
)
def test_verdicts_follow_the_figures(kept, path, value, where, expected):
    data = copy.deepcopy(kept)
    *inside, last = path
    at = data
    for name in inside:
        at = at[name]
    at[last] = value
    changed, before = _at(data, where), _at(kept, where)
    assert changed.verdict == expected
    assert changed.ours != before.ours or changed.verdict != before.verdict


def test_the_eviction_works_above_its_threshold(kept):
    """All shares must be above nine tenths."""
    data = copy.deepcopy(kept)
    for of in data["evictions"].values():
        of["spread"] = 0.91
    assert _at(data, "III-B4").verdict == Verdict.REPRODUCED
    of["spread"] = 0.9
    assert _at(data, "III-B4").verdict == Verdict.PARTLY


def _at(data, where):
    return next(claim for claim in claims(data) if claim.where == where)


def test_the_range_of_scores_by_hand(kept, monkeypatch):
    """1025 scores are one too many for 10 bits; of 127 cells there are 1017."""
    said = _at(kept, "IV-A")
    assert (
        said.verdict == Verdict.PARTLY
        and "1025 scores for 1024 codes: 512 reads as 511" in said.ours
    )
    monkeypatch.setattr(sense_claims, "CELLS", 127)
    monkeypatch.setattr(sense_claims, "RANGE", 508)
    assert _at(kept, "IV-A").verdict == Verdict.REPRODUCED


def test_the_cost_model_has_the_circuits_swing(kept):
    """What lines lose until the stop, and the supply and capacitances of the energies."""
    constants, line = Constants(), Setting().line
    for name in (FIRST, RESISTIVE):
        assert constants.line_swing == pytest.approx(kept["energy"][name]["swing"], abs=0.005)
    assert constants.supply_v == line.vdd
    assert constants.sense_line_ff == pytest.approx(1e15 * line.c_cell)
    assert constants.bit_line_ff == pytest.approx(1e15 * line.c_bit)


def test_the_page_says_which_operating_points(kept):
    page = study(kept).markdown()
    assert all(name in page for name in (FIRST, BY_VOLTAGE, RESISTIVE))
    assert "not reproducible from the text" in page
