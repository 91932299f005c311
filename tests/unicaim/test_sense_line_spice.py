"""The sense line in ngspice, by the same equations and, where a card is given, by BSIM4."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from golden.studies.unicaim_circuit.setting import all_scores
from golden.unicaim.sense_line import RULES, LineParameters, crossing_times, thresholds
from tests.support.unicaim import card, spice

CARD = "SENBAZURU_CARD"
"""Names the file of the 45 nm card, which is not in the project."""
NEAR = 1e-3
"""Relative error of a time that is allowed."""

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


@pytest.mark.parametrize("p", points(), ids=["current", "voltage", "2 V", "other"])
@pytest.mark.parametrize(("cells", "step"), [(4, 1), (16, 1), (64, 32), (128, 1024)])
def test_rows_of_all_scores(p, cells, step, tmp_path):
    """As equal as possible, and all at the ends: all scores of 4 and 16 cells, some of the others.

    128 cells: the lowest and the highest score.
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
