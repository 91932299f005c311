"""Converters in turn: more and fewer than keep up, every sample, refused parameters."""

import numpy as np
import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.adc_bank import AdcBankParameters
from hw.unicaim.sar_adc import SarAdcParameters
from sim.testbenches.unicaim.sar_adc import stimulus_of, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.adc_bank")
ODD = [AdcBankParameters(converters=n, bits=5, fraction=3) for n in (1, 2, 4, 5, 7)]


@pytest.fixture(scope="module", params=ODD, ids=lambda p: p.slug())
def compiled(request):
    return Compiled(BLOCK, request.param)


def test_an_odd_size_under_stalls(compiled, shipped_trace):
    """Every sample, in cycles as the formula says; then any and real samples under stalls."""
    p = compiled.parameters
    limit = 1 << p.sample.width - 1
    samples = np.random.default_rng(p.converters).permutation(np.arange(-limit, limit))
    compiled.check(stimulus_of(p, samples))
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(p, trace, 150, seed=5))


def test_cycles_of_a_few_samples(compiled):
    p = compiled.parameters
    for count in range(1, 3 * p.converters + 2):
        compiled.check(stimulus_of(p, np.arange(count)))


def test_as_many_converters_as_bits_take_a_sample_a_cycle():
    cycles = {n: AdcBankParameters(converters=n).cycles(1000) for n in (1, 5, 9, 10, 64)}
    assert cycles[1] == SarAdcParameters().cycles(1000) == 10_002
    assert cycles == {1: 10_002, 5: 2006, 9: 1122, 10: 1011, 64: 1011}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"converters": 0}, "converters must be between 1 and 256, not 0"),
        ({"converters": 257}, "converters must be between 1 and 256, not 257"),
        ({"bits": 25}, "bits must be between 1 and 24, not 25"),
        ({"fraction": 0}, "fraction must be between 1 and 8, not 0"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        AdcBankParameters(**settings)
