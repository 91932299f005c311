"""The cell array by the clock: its tables, order, stop and errors are the circuit's."""

import dataclasses
import math

import numpy as np
import pytest

from golden.studies.unicaim_circuit.arrays import arrays
from golden.studies.unicaim_circuit.setting import all_scores
from golden.unicaim.cell_array import (
    FRACTION,
    LATE,
    SLOWEST,
    CellArray,
    error_weights,
    late_steps,
    line_distances,
    line_factors,
    line_scores,
    reach,
    timed_discharge,
)
from golden.unicaim.cells import query_levels, query_planes, score_limit
from golden.unicaim.sense_line import (
    LineParameters,
    crossing_times,
    ideal_law,
    search_times,
    stop_time,
)
from hw.catalogue import find
from hw.unicaim import line_times
from hw.unicaim.cell_array import CellArrayParameters
from sim.testbenches.unicaim.cell_array import testbench
from tests.support.kllm.compiled import Compiled

LINE = LineParameters()
STEPS = 512
TIMED = CellArrayParameters(
    rows=5, d=6, key_bits=2, query_bits=2, contexts=2, spread_mv=120, seed=9,
    time_steps=48, late=100, line_error=60, calibration_bits=5,
)  # fmt: skip


def choose(distances, k: int, far: np.ndarray, late: int = 0) -> np.ndarray:
    """The rows still high at the end of a search of all rows."""
    every = np.ones(len(distances), bool)
    return timed_discharge(distances, every, k, far, late).high[-1]


@pytest.mark.parametrize(
    ("d", "key_bits", "query_bits", "steps"),
    [(4, 3, 2, 64), (4, 1, 1, 16), (5, 2, 3, 333), (3, 8, 1, 100), (128, 3, 1, 256)],
)
def test_tables_of_the_hardware_are_the_circuits(d, key_bits, query_bits, steps):
    p = CellArrayParameters(4, d, key_bits, query_bits, time_steps=steps, line_error=20)
    assert p.reach == reach(score_limit(d, key_bits, query_bits), key_bits, steps).tolist()
    assert len(p.reach) == p.steps == SLOWEST * steps + 1
    assert p.weights == error_weights(key_bits).tolist()
    assert p.factors == tuple(line_factors(4, 20, 1).tolist())
    assert [p.late_steps(step) for step in range(9)] == [late_steps(s, p.late) for s in range(9)]


def test_constants_of_the_hardware_are_the_circuits():
    names = "vdd", "v_ref", "v_read", "vth_low", "vth_high", "n", "ispec", "lam"
    h = line_times
    own = h.VDD, h.DETECTOR, h.READ, h.LOWEST, h.HIGHEST, h.SLOPE, h.CURRENT, h.MODULATION
    assert own == tuple(getattr(LINE, name) for name in names)
    assert LINE.v_verify == h.VERIFY


def test_every_score_drops_in_the_step_of_its_time():
    """All 1025 scores of 128 cells: high in step n if the circuit's time is later than n steps."""
    scores, rows = all_scores(128, 4)
    times = crossing_times(LINE, rows[:, 0])
    steps = times / times[scores == 0] * STEPS
    far = reach(512, 3, STEPS)
    high = (512 - scores << FRACTION) <= far[:, None]
    assert np.array_equal(high, steps > np.arange(len(far))[:, None])
    # Rows of a score with all cells at the ends drop within a step of these, of which there are
    # as many as a tenth of a score takes.
    ends = crossing_times(LINE, rows[:, 1]) / times[scores == 0] * STEPS
    common = steps < SLOWEST * STEPS
    assert np.abs(ends - steps)[common].max() < 0.11 / 512 * SLOWEST**2 * STEPS


@pytest.mark.parametrize("late", [0, 10, 102])
def test_the_choice_of_all_scores_is_the_circuits(late):
    """The stop after the (k + 1)-th last drop, seen in steps, and as late as stated."""
    scores, rows = all_scores(128, 4)
    times = crossing_times(LINE, rows[:, 0])
    step = times[scores == 0][0] / STEPS
    far = reach(512, 3, STEPS)
    distances = line_distances(scores, line_factors(1025, 0, 1), 512)
    for k in (*range(385, 1025, 40), 1024):
        seen = math.ceil(stop_time(times, k) / step)
        stop = seen + math.floor(seen * late / LATE + 0.5)
        assert np.array_equal(choose(distances, k, far, late), times > stop * step), k
    # Scores that take longer than the clock have no order.
    assert np.count_nonzero(choose(distances, 100, far)) == 128


def test_a_search_takes_the_time_of_the_next_score():
    """About time_steps limit / (limit - S) steps and one, the first being at no time."""
    far = reach(512, 3, STEPS)
    for score in range(-500, 380, 44):
        distances = line_distances(np.array([score + 1, score, -512]), line_factors(3, 0, 1), 512)
        steps = len(timed_discharge(distances, np.ones(3, bool), 1, far, 0).high)
        assert abs(steps - (STEPS * 512 / (512 - score) + 1)) < 1.1


def test_real_rows_are_chosen_as_by_the_circuit():
    """Rows of any cells: what differs is as near to the stop as a tenth of a score."""
    one = list(arrays(3, True))[4]
    times = search_times(LINE, one.keys, one.digits)
    step = crossing_times(LINE, np.zeros((1, 128), int))[0] / STEPS
    far = reach(512, 3, STEPS)
    same = []
    for query, of_rows in zip(one.digits, times, strict=True):
        distances = line_distances(one.keys @ query, line_factors(len(one.keys), 0, 1), 512)
        seen = math.ceil(stop_time(of_rows, 64) / step)
        differ = choose(distances, 64, far) != (of_rows > seen * step)
        assert (np.abs(of_rows[differ] / step - seen) < 1.3).all()
        same.append(not differ.any())
    assert np.mean(same) > 0.5


def test_errors_of_devices_count_as_in_the_circuit():
    """To first order: what is left of 54 mV is below a tenth of a row's deviation."""
    rng = np.random.default_rng(2)
    errors = np.rint(5.76 * rng.standard_normal((400, 128, 2))).astype(int)
    keys = rng.integers(-4, 5, (400, 128))
    digits = rng.choice([-1, 1], (1, 128))
    a, zero = ideal_law(LINE, 128)
    volts = errors * 0.15 / 2**FRACTION
    found = zero - a / search_times(LINE, keys, digits, volts)[0]
    found -= zero - a / search_times(LINE, keys, digits)[0]
    own = line_scores(keys, digits, errors, 512, error_weights(3)) - keys @ digits[0]
    assert np.std(found) == pytest.approx(np.std(own), rel=0.03)
    assert np.std(found - own) < 0.1 * np.std(found)
    linear = line_scores(keys, digits, errors, 512) - keys @ digits[0]
    assert np.std(own) > 1.9 * np.std(linear)


def test_errors_of_lines_count_as_in_the_circuit():
    """A detector's error of 5 mV and a capacitance's of 1 % are 10 1024ths of a time each."""
    rng = np.random.default_rng(3)
    scores, rows = all_scores(128, 4)
    rows, scores = rows[200:800, 0], scores[200:800]
    a, zero = ideal_law(LINE, 128)
    times = crossing_times(LINE, rows)
    error = rng.standard_normal(600)
    found = {
        "detector": crossing_times(LINE, rows, detector=-0.005 * error),
        "capacitance": crossing_times(LINE, rows, capacitance=0.01 * error),
    }
    factors = np.rint(2**12 / (1 + 10.24 / LATE * error)).astype(int)
    own = (line_distances(scores, factors, 512) / 2**FRACTION) - (512 - scores)
    for moved in found.values():
        nearer = a / moved - a / times
        assert np.std(nearer - own) < 0.1 * np.std(nearer)
    drawn = 2**12 / line_factors(20000, 10, 1) - 1
    assert np.std(drawn) == pytest.approx(10 / LATE, rel=0.03) and abs(drawn.mean()) < 2e-4


@pytest.mark.parametrize("time_steps", [0, 64])
def test_a_measured_row_keeps_the_errors_that_depend_on_the_query(time_steps):
    """Of queries of three planes: 0.32 of the deviation, and what the converter rounds."""
    p = CellArrayParameters(
        rows=300, d=64, query_bits=3, spread_mv=54, time_steps=time_steps, calibration_bits=10
    )
    rng = np.random.default_rng(4)
    keys = rng.integers(-2, 3, (300, 64))
    levels = query_levels(rng.standard_normal((20, 64)), 3)
    moved = {}
    for bits in (0, 10):
        array = CellArray(dataclasses.replace(p, calibration_bits=bits), 1)
        shown = [array.scores(0, keys, query_planes(q, 3)) - keys @ q for q in levels]
        moved[bits] = np.std(shown - np.mean(shown, axis=1, keepdims=True))
    assert moved[10] / moved[0] == pytest.approx(0.32, abs=0.03)
    # A query of zeros shows what was measured, but for the rounding: a code is 4 scores.
    zeros = CellArray(p, 1).scores(0, keys, np.zeros((3, 64), int))
    assert p.calibration_shift == 2 and set(zeros.tolist()) == {-2, -1, 0, 1}


def test_cycles_of_a_row_that_is_measured():
    """A plane for each bit of a query, the conversion, and a cycle for the code."""
    assert TIMED.write_cycles == TIMED.query_bits + TIMED.calibration_bits + 3 == 10
    assert dataclasses.replace(TIMED, calibration_bits=0).write_cycles == 1


def test_a_late_stop_and_the_last_step():
    """Steps are marked as the handshake needs them; no search is longer than the clock."""
    p = dataclasses.replace(TIMED, spread_mv=0, line_error=0, calibration_bits=0)
    array, used = CellArray(p, 1), np.ones(5, bool)
    search = array.search(np.array([3, 2, 1, 0, -1]), used, 2)
    first = int(np.argmax(~search.too_many))
    assert len(search.high) == first + late_steps(first, 100) + 1
    assert search.last.tolist() == [False] * (len(search.high) - 1) + [True]
    assert search.stoppable.sum() == 6 and search.stoppable[:6].all()  # 5 100 / 1024 rounds to 0
    full = array.search(np.full(5, 36), used, 2)
    assert len(full.high) == p.steps and full.too_many.all() and full.last[-1]
    at_once = array.search(np.full(5, 36), used, 5)
    assert len(at_once.high) == 1 and at_once.stoppable[0] and not at_once.last[0]


def test_by_the_clock_under_stalls(shipped_trace):
    compiled = Compiled(find("unicaim.cell_array"), TIMED)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(TIMED, trace, 60, seed=5)
        compiled.check_all(stimulus)
