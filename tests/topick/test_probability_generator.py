"""The probability generator: p against exact powers, and the hardware in several sizes."""

import dataclasses

import numpy as np
import pytest

from golden.topick.probability_generator import generator_cycles, probability
from hw.catalogue import Block
from hw.parameters import ParameterError
from hw.topick.probability_generator import ProbabilityGenerator, ProbabilityGeneratorParameters
from sim.testbenches.topick.probability_generator import testbench
from tests.support.topick.simulated_stimulus import check

BLOCK = Block(ProbabilityGenerator)
SMALL = ProbabilityGeneratorParameters.preset("small")
SIZES = {
    "small": SMALL,
    "smallest": ProbabilityGeneratorParameters(
        4, 1, bits=2, chunk_bits=1, d=1, rows=2, probability_bits=1
    ),
    "other": ProbabilityGeneratorParameters(
        20, 7, bits=8, chunk_bits=2, d=3, rows=5, probability_bits=9
    ),
    "all_requested": dataclasses.replace(SMALL, skip=False),
    "default_but_d": ProbabilityGeneratorParameters(d=8),
}


# --- the bit-exact model ---


@pytest.mark.parametrize(("fraction", "places"), [(10, 11), (10, 16), (1, 1), (14, 19)])
def test_p_is_the_power_to_nearest(fraction, places):
    """Every log2 - t: within 1/2 and what the power, rounded down, loses of 2^(t - log2)."""
    minus = np.arange(-5, places + 4 << fraction)
    got = probability(-minus, 0, fraction=fraction, places=places)
    most = (1 << places) - 1
    exact = np.minimum(np.exp2(-minus / 2**fraction) * 2**places, most)
    assert (np.abs(got - exact) <= 0.5 + 1 / 8 + 1e-9).all()
    assert (got[minus <= 0] == most).all() and not got[minus > places + 1 << fraction].any()
    assert (np.diff(got) <= 0).all()
    for n in range(1, places + 1):  # powers of two are exact
        assert probability(-(n << fraction), 0, fraction=fraction, places=places) == 1 << places - n
    assert probability(-(1 << 40), 1 << 40, fraction=fraction, places=places) == 0


def test_cycles_of_a_head():
    """5 cycles to the first request, one for each chunk, one for its response, and the end."""
    p = SMALL
    for n in (1, 2, 7):
        cycles = generator_cycles([[3] * n], chunks=p.chunks, rows=p.rows)
        assert cycles == p.latency + n * p.chunks + 2
    # Entries that are not requested take a cycle each.
    without = generator_cycles([[0] * 9], chunks=p.chunks, rows=p.rows)
    assert without == generator_cycles([[0] * 2], chunks=p.chunks, rows=p.rows) + 7


# --- the hardware ---


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, stall, shipped_trace):
    parameters = SIZES[size]
    for trace in (None, shipped_trace):
        vectors = 12 if trace is None and parameters.d < 8 else 3
        check(BLOCK, parameters, testbench.stimulus(parameters, trace, vectors, seed=1), stall)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_bits": 12}, r"chunk_bits must divide 12 \(bits\) and be less, not 12"),
        ({"rows": 1}, r"rows must be between 2 and 2\^20, not 1"),
        ({"width": 8, "fraction": 7}, "fraction must be between 1 and 6, not 7"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        ProbabilityGeneratorParameters(**options)
