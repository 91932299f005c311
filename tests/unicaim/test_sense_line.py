"""The sense line against an integration in time, its laws, and the bit-exact model of the array."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import charge_share
from golden.algorithms.unicaim.spread import spread_in_levels, spread_scores
from golden.studies.unicaim_circuit.setting import all_scores, compositions, mixed_rows
from golden.unicaim.cell_array import discharge
from golden.unicaim.cells import key_levels, key_step
from golden.unicaim.sense_line import (
    RULES,
    LineParameters,
    bit_line_energy,
    conversion_energy,
    crossing_times,
    currents,
    device_current,
    ideal_law,
    level_currents,
    search_energy,
    search_times,
    share,
    stop_time,
    thresholds,
    voltages,
)

BY_CURRENT, BY_VOLTAGE = (LineParameters(rule=rule) for rule in RULES)
RESISTIVE = LineParameters(rule="voltage", v_read=2.0)
OTHER = LineParameters(
    vdd=0.9, v_ref=0.35, v_read=1.3, vth_low=-0.1, vth_high=1.1, n=1.2, ispec=3e-7, lam=0.4,
    c_cell=0.2e-15, c_fixed=3e-15, rule="voltage", key_bits=2,
)  # fmt: skip


def some(p: LineParameters, rows: int, d: int, spread: float = 0.054, seed: int = 0):
    """Products and errors of rows."""
    rng = np.random.default_rng(seed)
    products = rng.integers(-p.levels, p.levels + 1, (rows, d))
    return products, spread * rng.standard_normal((rows, d, 2))


def derivative(p: LineParameters, over, v):
    """dV/dt of rows by the equations of the design; `over` is gate less threshold, [rows, d, 2]."""
    scale, at = 2 * p.n * 0.025852, v[:, None, None]
    forward = np.logaddexp(0, over / scale) ** 2
    reverse = np.logaddexp(0, (over - p.n * at) / scale) ** 2
    total = (p.ispec * (forward - reverse) * (1 + p.lam * at)).sum(axis=(1, 2))
    return -total / (p.c_cell * over.shape[1] + p.c_fixed)


def integrate(p: LineParameters, products, errors, end, steps):
    """Voltages [steps + 1, rows] until `end` [rows], Runge-Kutta of fourth order."""
    vth, v, h = thresholds(p), np.full(len(products), p.vdd), end / steps
    own = np.stack([vth[p.levels + products], vth[p.levels - products]], axis=-1) + errors
    over = np.array([p.v_read, 0.0]) - own
    path = [v]
    for _ in range(steps):
        a = derivative(p, over, v)
        b = derivative(p, over, v + h / 2 * a)
        c = derivative(p, over, v + h / 2 * b)
        d = derivative(p, over, v + h * c)
        v = v + h / 6 * (a + 2 * b + 2 * c + d)
        path.append(v)
    return np.array(path)


@pytest.mark.parametrize(
    "p", [BY_CURRENT, BY_VOLTAGE, RESISTIVE, OTHER], ids=["current", "voltage", "2 V", "other"]
)
def test_times_and_voltages_of_an_integration_in_time(p):
    products, errors = some(p, 5, 12)
    products[0], products[1] = p.levels, -p.levels
    times = crossing_times(p, products, errors)
    path = integrate(p, products, errors, times, 150)
    # 0.1 % of a time are about 0.5 mV there; the bound is 100 times tighter.
    np.testing.assert_allclose(path[-1], p.v_ref, atol=5e-6)
    np.testing.assert_allclose(
        np.diagonal(voltages(p, products, times / 3, errors)), path[50], atol=5e-6
    )
    late = np.maximum(integrate(p, products, errors, 4 * times, 400)[-1], p.vdd / 1024)
    np.testing.assert_allclose(
        np.diagonal(voltages(p, products, 4 * times, errors)), late, atol=2e-5
    )


@pytest.mark.parametrize(("vdd", "v_ref"), [(5.0, 0.1), (0.3, 0.01), (1.3, 0.3)])
def test_times_of_long_discharges(vdd, v_ref):
    """V_DD far above the detectors: the current bends where devices saturate, and falls to 0."""
    p = LineParameters(vdd=vdd, v_ref=v_ref, v_read=1.2, n=1.2, vth_low=0.0)
    products, errors = some(p, 3, 4)
    products[0], products[1] = p.levels, -p.levels
    times = crossing_times(p, products, errors)
    low = integrate(p, products, errors, times, 600)[-1]
    assert np.abs(low - v_ref).max() < 1e-4 * v_ref


@pytest.mark.parametrize("p", [BY_CURRENT, OTHER], ids=["default", "other"])
def test_rows_without_errors_are_rows_whose_errors_are_0(p):
    """One way counts cells by product, the other adds devices; an error of all is a shift."""
    products, errors = some(p, 6, 20, spread=0.0)
    np.testing.assert_allclose(
        crossing_times(p, products), crossing_times(p, products, errors), rtol=1e-12
    )
    np.testing.assert_allclose(
        currents(p, products, [0.2, 0.7]), currents(p, products, [0.2, 0.7], errors), rtol=1e-12
    )
    moved = dataclasses.replace(
        p, rule="voltage", vth_low=p.vth_low + 0.03, vth_high=p.vth_high + 0.03
    )
    by_voltage = dataclasses.replace(p, rule="voltage")
    np.testing.assert_allclose(
        crossing_times(by_voltage, products, errors + 0.03), crossing_times(moved, products)
    )


def test_the_current_of_a_row_is_the_sum_of_its_cells():
    p, (products, _) = BY_VOLTAGE, some(BY_VOLTAGE, 4, 9)
    by_level = level_currents(p, 0.6)
    np.testing.assert_allclose(currents(p, products, 0.6), by_level[products + 4].sum(axis=1))
    assert currents(p, products, np.full((2, 3), 0.6)).shape == (2, 3, 4)


def test_thresholds_by_both_rules():
    """Equal steps of voltage, or of the current of the device read at the middle voltage."""
    np.testing.assert_allclose(np.diff(thresholds(BY_VOLTAGE)), 0.15)
    by_current = thresholds(BY_CURRENT)
    assert (by_current[0], by_current[-1]) == (0.2, 1.4) and (np.diff(by_current) > 0).all()
    read = device_current(BY_CURRENT, 1.0 - by_current, 0.75)
    np.testing.assert_allclose(np.diff(read), (read[-1] - read[0]) / 8, rtol=1e-9)
    assert thresholds(LineParameters(key_bits=1)).shape == (3,)


def test_an_off_and_a_saturated_device():
    """Far below threshold a decade for each n U_T ln 10; far above, a square law."""
    p = LineParameters(lam=0.0)
    low = device_current(p, np.array([-0.8, -0.8 - p.n * 0.025852 * np.log(10)]), 0.5)
    assert low[0] / low[1] == pytest.approx(10, rel=1e-3)
    high = device_current(p, np.array([0.8]), 1.0)[0]
    assert high == pytest.approx(p.ispec * (0.8 / (2 * p.n * 0.025852)) ** 2, rel=1e-3)
    assert device_current(p, np.array([0.8]), 0.0)[0] == 0


@pytest.mark.parametrize("cells", [4, 16, 128])
def test_the_ideal_law(cells):
    """By current t = A / (S0 - S) within 0.02 of a score a cell, but for the highest score."""
    scores, rows = all_scores(cells, 4)
    a, zero = ideal_law(BY_CURRENT, cells)
    assert zero == pytest.approx(4 * cells, rel=1e-3)
    for of in (0, 1):
        times = crossing_times(BY_CURRENT, rows[:, of])
        np.testing.assert_allclose((zero - a / times)[:-1], scores[:-1], atol=0.02 * cells)


def dropped_in_order(p: LineParameters, products: np.ndarray) -> list[bool]:
    """For each step of the bit-exact search: whether the circuit's lines drop in that order."""
    scores, times = products.sum(axis=1), crossing_times(p, products)
    limit = p.levels * products.shape[1]
    high, _ = discharge(scores, np.ones(len(scores), bool), 1, limit)
    return [
        bool(times[~lines].max() < times[lines].min())
        for lines in np.unique(high, axis=0)
        if lines.any() and not lines.all()
    ]


def test_order_of_the_bit_exact_array(shipped_trace):
    """By current lines drop in the steps of ``cell_array``; by voltage they do not."""
    rng = np.random.default_rng(1)
    k = shipped_trace.k[1, 0, :200].astype(float)
    real = key_levels(k[None], key_step(k[None], 3), 3)[0] * rng.choice([-1, 1], 64)
    for products in (real, mixed_rows(200, 128, 4, rng), compositions(5, 16, 4)):
        both = np.concatenate([products, compositions(int(products[0].sum()), len(products[0]), 4)])
        steps = dropped_in_order(BY_CURRENT, both)
        assert all(steps) and (len(steps) > 25 or len(both) == 4)
        if len(steps) > 1:
            for p in (BY_VOLTAGE, RESISTIVE):
                by_voltage = dropped_in_order(p, both)
                assert by_voltage.count(False) > len(by_voltage) / 4
    # Cells of equal products have the order of their scores by every rule but at the level whose
    # other device leaks more than it carries.
    equal = np.repeat(np.arange(-4, 4)[:, None], 16, axis=1)
    for p in (BY_CURRENT, BY_VOLTAGE, RESISTIVE):
        assert (np.diff(crossing_times(p, equal)) > 0).all()


def test_the_search_of_many_queries():
    p, rng = OTHER, np.random.default_rng(2)
    keys, errors = some(p, 7, 10)
    digits = rng.choice([-1, 1], (3, 10))
    detector, part = 0.01 * rng.standard_normal(7), 0.01 * rng.standard_normal(7)
    found = search_times(p, keys, digits, errors, detector=detector, capacitance=part)
    for times, query in zip(found, digits, strict=True):
        read = np.where((query > 0)[:, None], errors, errors[..., ::-1])
        expected = crossing_times(p, keys * query, read, detector=detector, capacitance=part)
        np.testing.assert_allclose(times, expected, rtol=1e-12)
    np.testing.assert_allclose(
        search_times(p, keys, digits)[0], crossing_times(p, keys * digits[0]), rtol=1e-12
    )


def test_errors_of_the_line():
    """A detector's error e moves the time by e C / I(V_ref), the capacitance's in proportion."""
    p, (products, errors) = BY_CURRENT, some(BY_CURRENT, 6, 32)
    times = crossing_times(p, products, errors)
    later = crossing_times(p, products, errors, detector=np.array([-1e-4] * 6))
    at = currents(p, products, p.v_ref - 0.5e-4, errors)
    np.testing.assert_allclose(later - times, 1e-4 * p.capacitance(32) / at, rtol=5e-5)
    np.testing.assert_allclose(
        crossing_times(p, products, errors, capacitance=0.02), 1.02 * times, rtol=1e-12
    )


def test_a_line_error_weighs_more_in_a_longer_row():
    """In scores: proportional to d for the detector's, to its root for the devices'."""
    rng = np.random.default_rng(3)
    moved = {}
    for d in (32, 128):
        products = rng.integers(-1, 2, (400, d))
        a, zero = ideal_law(BY_CURRENT, d)
        exact = crossing_times(BY_CURRENT, products)
        for name, found in (
            ("line", crossing_times(BY_CURRENT, products, detector=0.002 * rng.normal(size=400))),
            ("devices", crossing_times(BY_CURRENT, products, 0.01 * rng.normal(size=(400, d, 2)))),
        ):
            moved[name, d] = np.std(a / exact - a / found)
    assert moved["line", 128] / moved["line", 32] == pytest.approx(4, rel=0.15)
    assert moved["devices", 128] / moved["devices", 32] == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize(
    ("p", "sense", "near"),
    [
        (RESISTIVE, 0.1, True),
        (LineParameters(rule="voltage", v_read=3.0), 0.75, True),
        (BY_CURRENT, 0.75, False),
        (BY_VOLTAGE, 0.75, False),
    ],
    ids=["2 V, 0.1 V", "3 V, 0.75 V", "current", "voltage"],
)
def test_noise_of_the_algorithm(p, sense, near):
    """``spread_scores`` is a row's error within 10 % of its deviation where cells are linear."""
    keys, _ = some(p, 300, 128)
    digits = np.random.default_rng(4).choice([-1, 1], (1, 128))
    spread = spread_in_levels(0.054, 3, p.vth_high - p.vth_low)
    noisy = spread_scores(keys, digits, 1, spread, 1, np.random.default_rng(5))[0, 0]
    drawn = 0.054 * np.random.default_rng(5).standard_normal((2, 1, 300, 128))
    a, b = drawn[:, 0]
    read = np.where(digits > 0, a, b), np.where(digits > 0, b, a)
    products = keys * digits
    exact = products.sum(axis=1)
    shown = currents(p, products, sense, np.stack(read, axis=-1))
    slope = np.polyfit(exact, currents(p, products, sense), 1)[0]
    moved = (shown - currents(p, products, sense)) / slope
    distance = np.std(moved - (noisy - exact)) / np.std(noisy - exact)
    assert distance < 0.1 if near else distance > 0.3


def test_the_end_of_a_search():
    times = np.array([[5.0, 1.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    assert stop_time(times, 2).tolist() == [3.0, 2.0]
    assert stop_time(times, 3, 0.5).tolist() == [1.5, 1.5]
    with pytest.raises(ValueError, match="k must be 1 to 3, one less than the rows, not 4"):
        stop_time(times, 4)


def test_voltages_when_the_search_stops():
    """Linear in the score while saturated, and the line that stops it is at V_DD / 2."""
    scores, rows = all_scores(16, 4)
    some_rows = rows[40:90, 0]
    stop = float(stop_time(crossing_times(BY_CURRENT, some_rows), 10))
    v = voltages(BY_CURRENT, some_rows, stop)
    assert v[39] == pytest.approx(0.5, abs=1e-6)
    _, zero = ideal_law(BY_CURRENT, 16)
    law = 1 - 0.5 * (zero - scores[40:90]) / (zero - scores[79])
    np.testing.assert_allclose(v[20:], law[20:], atol=0.015)
    assert (voltages(BY_CURRENT, some_rows, 0.0) == 1.0).all()
    assert (voltages(BY_CURRENT, some_rows, 1.0) <= 1e-3).all()


def test_shared_charge():
    v, acc = np.array([0.4, 0.6]), np.array([0.5, 0.5])
    np.testing.assert_allclose(share(v, acc, 1 / 16), charge_share(acc, v, 4), rtol=1e-15)
    np.testing.assert_allclose(share(v, acc, 0.25), (3 * acc + v) / 4)
    with pytest.raises(ValueError, match="ratio must be above 0 and below 1, not 1"):
        share(v, acc, 1.0)


def test_energies():
    """A line that discharged to V costs C V_DD (V_DD - V); a whole discharge C V_DD^2."""
    p, (products, _) = OTHER, some(OTHER, 3, 10)
    full = (10 * p.c_cell + p.c_fixed) * p.vdd**2
    np.testing.assert_allclose(search_energy(p, products, 1.0), full, rtol=2e-3)
    t = float(crossing_times(p, products)[1])
    assert search_energy(p, products, t)[1] == pytest.approx(full * (1 - p.v_ref / p.vdd), rel=1e-5)
    assert bit_line_energy(p, 576, 128) == pytest.approx(576 * 128 * 0.2e-15 * 1.3**2)
    assert conversion_energy(p, np.array([1e-3]), 1e-8)[0] == pytest.approx(9e-12)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"vdd": 0.0}, "vdd must be above 0 and at most 10 V, not 0"),
        ({"v_ref": 1.0}, "v_ref must be above 0 and below vdd, not 1"),
        ({"v_ref": float("nan")}, "v_ref must be above 0 and below vdd, not nan"),
        ({"v_read": 11.0}, "v_read must be above 0 and at most 10 V, not 11"),
        ({"vth_low": 1.4}, "vth_low must be below vth_high, both within 10 V of 0, not 1.4 and"),
        ({"n": 0.9}, "n must be 1 to 10, not 0.9"),
        ({"ispec": 0.0}, "ispec must be above 0 and at most 1 A, not 0"),
        ({"lam": -0.1}, "lam must be 0 to 10 per volt, not -0.1"),
        ({"c_cell": -1e-15}, "c_cell must be 0 to 1 F, not -1e-15"),
        ({"c_cell": 0.0, "c_fixed": 0.0}, "c_cell and c_fixed must not both be 0"),
        ({"rule": "charge"}, "rule must be current or voltage, not charge"),
        ({"key_bits": 0}, "key_bits must be 1 to 8, not 0"),
    ],
)
def test_parameters_that_are_refused(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        LineParameters(**changed)


def test_rows_that_are_refused():
    p, (products, errors) = BY_CURRENT, some(BY_CURRENT, 2, 3)
    for call, sentence in (
        (lambda: crossing_times(p, products + 9), "products must be whole numbers of -4 to 4"),
        (lambda: crossing_times(p, products[0]), r"products must be \[rows, d\], not of shape"),
        (lambda: crossing_times(p, products * np.nan), "products must be whole numbers"),
        (lambda: crossing_times(p, products, errors[:1]), "errors must be within 10 V of 0"),
        (lambda: crossing_times(p, products, errors * np.nan), "errors must be within 10 V of 0"),
        (lambda: crossing_times(p, products, detector=0.5), "detectors must have thresholds above"),
        (lambda: search_times(p, products, np.zeros((1, 3))), r"digits must be \+1 or -1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
