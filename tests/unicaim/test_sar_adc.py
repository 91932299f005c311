"""The converter: every sample, and the error of its code."""

import numpy as np
import pytest

from golden.unicaim.sar_adc import sar_adc
from hw.catalogue import find
from hw.unicaim.sar_adc import SarAdc, SarAdcParameters
from sim.testbenches.unicaim.sar_adc import stimulus_of
from tests.support.formal import prove_stream_rules
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.sar_adc")
PAPER = SarAdcParameters.preset("default")


def every_sample(p: SarAdcParameters) -> np.ndarray:
    limit = 1 << p.sample.width - 1
    return np.arange(-limit, limit)


@pytest.mark.parametrize(("bits", "fraction"), [(10, 2), (10, 6), (1, 1), (4, 8)])
def test_within_half_a_step_over_the_whole_range(bits, fraction):
    samples = every_sample(SarAdcParameters(bits, fraction))
    codes, exact = sar_adc(samples, bits, fraction), samples / 2**fraction
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    inside = (exact >= low - 0.5) & (exact < high + 0.5)
    assert np.abs(codes - exact)[inside].max() == 0.5
    assert inside.sum() == 2 ** (bits + fraction)
    assert np.array_equal(codes, np.clip(np.floor(exact + 0.5), low, high))


def test_every_sample_through_the_hardware():
    """8192 samples of 10 bits, in 10 cycles each."""
    compiled = Compiled(BLOCK, PAPER)
    samples = every_sample(PAPER)
    stimulus = stimulus_of(PAPER, np.random.default_rng(1).permutation(samples))
    assert stimulus.cycles == 10 * 8192 + 2
    for stall in ("none", "bursts"):
        compiled.check(stimulus, stall)


def test_the_papers_highest_score_has_no_code():
    scores = np.array([-512, -511, 511, 512])
    assert sar_adc(scores << 2, 10, 2).tolist() == [-512, -511, 511, 511]


def test_stream_rules():
    prove_stream_rules(SarAdc(SarAdcParameters(bits=3, fraction=1)), "sar_adc", "o", ["i"])
