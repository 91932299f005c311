"""Cosine and sine of a fraction of a turn: every phase, the tables, the RTL."""

import numpy as np
import pytest

from golden.arith.sine_cosine import SINE as GOLDEN
from golden.arith.sine_cosine import one_plus_sine as golden_function
from golden.arith.sine_cosine import sine_cosine
from hw.arith.sine_cosine import SINE, SineCosineParameters, one_plus_sine
from hw.catalogue import find
from tests.support.arith.functions import assert_same_tables, run

BLOCK = find("arith.sine_cosine")
PHASES = np.arange(1 << 15)


def test_tables_are_the_models():
    """The hardware's series in integers and the model's float64 give the same entries."""
    assert_same_tables(SINE, one_plus_sine, GOLDEN, golden_function)


def test_errors_of_every_phase():
    angle = 2 * np.pi * PHASES / len(PHASES)
    for found, exact in zip(sine_cosine(PHASES), (np.cos(angle), np.sin(angle)), strict=True):
        errors = np.abs(found.astype(np.float64) - exact)
        assert 2**-12.5 < errors.max() < 2**-11.6


def test_quarters_are_exact():
    cosine, sine = sine_cosine(np.arange(4) << 13)
    np.testing.assert_array_equal(cosine, [1, 0, -1, 0])
    np.testing.assert_array_equal(sine, [0, 1, 0, -1])


@pytest.mark.campaign
@pytest.mark.parametrize("stages", [0, 1, 2])
def test_every_phase_through_the_rtl(stages):
    assert run(BLOCK, SineCosineParameters(stages=stages), {"phase": PHASES}) == 0
