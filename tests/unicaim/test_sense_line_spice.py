"""The sense line in ngspice, by the same equations and, where a card is given, by BSIM4."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from golden.studies.unicaim_circuit.setting import all_scores, compositions
from golden.unicaim.sense_line import RULES, LineParameters, crossing_times, thresholds
from tests.support.unicaim import card, spice

CARD = "SENBAZURU_CARD"
"""Names the file of the 45 nm card, which is not in the project."""
NEAR = 1e-3
"""Relative error of a time that is allowed."""
SETS = int(os.environ.get("SENBAZURU_LINES", "6"))
"""Sets of parameters that are drawn."""

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(shutil.which("ngspice") is None, reason=spice.ADVICE),
]


def points() -> list[LineParameters]:
    """Both rules, a gate above V_DD, and other constants."""
    return [
        *(LineParameters(rule=rule) for rule in RULES),
        LineParameters(rule="voltage", v_read=2.0),
        LineParameters(n=1.3, ispec=4e-7, lam=0.4, vdd=0.9, v_ref=0.4, v_read=1.4, vth_low=0.0),
    ]


def drawn(rng: np.random.Generator) -> LineParameters:
    """All parameters at once, uniform over ranges or, of currents and capacitances, decades."""
    vdd, vth_low = rng.uniform(0.3, 5), rng.uniform(-0.5, 0.8)
    return LineParameters(
        vdd=vdd,
        v_ref=vdd * rng.uniform(0.02, 0.9),
        v_read=rng.uniform(0.3, 5),
        vth_low=vth_low,
        vth_high=vth_low + rng.uniform(0.2, 2.5),
        n=rng.uniform(1, 2.5),  # the slope is n U_T ln 10 a decade, at 300 K
        ispec=10 ** rng.uniform(-9, -5),
        lam=rng.uniform(0, 1),
        c_cell=10 ** rng.uniform(-17, -15),
        c_fixed=10 ** rng.uniform(-16, -14),
        rule=rng.choice(RULES).item(),
        key_bits=rng.integers(1, 5).item(),
    )


@pytest.mark.parametrize("seed", range(SETS))
def test_drawn_sets_of_parameters(seed, tmp_path):
    """Scores at both ends, next to them, between and in the middle, and rows with spread."""
    rng = np.random.default_rng(seed)
    p, spread = drawn(rng), rng.uniform(0, 0.1)
    worst = 0.0
    for cells in (4, 16, 64):
        top = p.levels * cells
        scores = sorted({s for at in (0, top // 2, top - 1, top) for s in (-at, at)} | {1, -1})
        exact = np.concatenate([compositions(score, cells, p.levels) for score in scores])
        some = rng.integers(-p.levels, p.levels + 1, (2, cells))
        for products, errors in (
            (exact, None),
            (some, spread * rng.standard_normal((*some.shape, 2))),
        ):
            expected = crossing_times(p, products, errors)
            found = spice.crossing_times(p, products, errors, expected, tmp_path)
            worst = max(worst, np.abs(found / expected - 1).max())
    print(f"set {seed}: {100 * worst:.4f} %")
    assert worst < NEAR, f"set {seed} is {100 * worst:.3f} % off: spread {spread:.3f} V, {p}"


@pytest.mark.parametrize("p", points(), ids=["current", "voltage", "2 V", "other"])
@pytest.mark.parametrize(("cells", "step"), [(4, 1), (16, 2), (64, 32), (128, 1024)])
def test_rows_of_all_scores(p, cells, step, tmp_path):
    """As equal as possible, and all at the ends: all scores of 4 cells, every second of 16.

    Some of 64 cells, and the lowest and the highest of 128.
    """
    _, rows = all_scores(cells, p.levels, step)
    products = rows.reshape(-1, cells)
    expected = crossing_times(p, products)
    found = spice.crossing_times(p, products, None, expected, tmp_path)
    np.testing.assert_allclose(found, expected, rtol=NEAR)


@pytest.mark.parametrize("p", points(), ids=["current", "voltage", "2 V", "other"])
@pytest.mark.parametrize(("rows", "cells"), [(20, 16), (2, 128)])
def test_rows_with_spread(p, rows, cells, tmp_path):
    """54 mV on every device, each a source."""
    rng = np.random.default_rng(cells)
    products = rng.integers(-p.levels, p.levels + 1, (rows, cells))
    errors = 0.054 * rng.standard_normal((rows, cells, 2))
    expected = crossing_times(p, products, errors)
    found = spice.crossing_times(p, products, errors, expected, tmp_path)
    np.testing.assert_allclose(found, expected, rtol=NEAR)


def test_another_line_is_noticed(tmp_path):
    """Times of a line with a window 2 mV lower miss the bound."""
    p = LineParameters(rule="voltage")
    other = LineParameters(rule="voltage", vth_low=0.198, vth_high=1.398)
    _, rows = all_scores(4, 4, 8)
    products = rows[:, 0]
    expected = crossing_times(p, products)
    found = spice.crossing_times(other, products, None, expected, tmp_path)
    assert (np.abs(found / expected - 1) > 2 * NEAR).all()


@pytest.fixture
def the_card() -> Path:
    path = Path(os.environ.get(CARD, ""))
    if not path.is_file():
        pytest.skip(f"{CARD} names no card (ngspice's examples/klu/Circuits/technology/45nm_HP.pm)")
    return path


def test_bsim4(the_card, tmp_path):
    """The default constants are fitted to the card's DC curves; times of BSIM4 transistors.

    By current one factor is between them for all rows, as the fit's on-current is 46 % too high; by
    voltage the card's current, limited by velocity, is no square of the voltage.
    """
    curves = card.dc_curves(the_card, tmp_path)
    n, ispec, lam, zero = card.fit(curves, 0.5)
    default = LineParameters()
    assert (round(n, 2), round(ispec, 7), round(lam, 2)) == (default.n, default.ispec, default.lam)
    rng = np.random.default_rng(0)
    products = rng.integers(-4, 5, (40, 16))
    products[:9] = np.arange(-4, 5)[:, None]
    late = {}
    for rule in RULES:
        p = LineParameters(rule=rule, n=n, ispec=ispec, lam=lam)
        expected = crossing_times(p, products)
        by_rule = card.programmed(curves, p, zero) if rule == "current" else thresholds(p)
        found = card.line_times(p, products, expected, by_rule - zero, the_card, tmp_path)
        late[rule] = 100 * (found / expected - 1)
        print(f"{rule}: {late[rule][9:].mean():.1f} ± {late[rule][9:].std():.2f} % later")
        print(f"levels: {late[rule][:9].round(1)}")
    assert late["current"].std() < 0.7 and late["current"].mean() == pytest.approx(45.6, abs=0.5)
    assert late["voltage"][9:].mean() == pytest.approx(19, abs=1)
    assert late["voltage"][9:].std() < 10
