"""KLLM's core at the paper's sizes: sixteen lanes, vectors and matrices of 4096 rows."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.kllm.quantize import dynamic_outliers
from golden.kllm.cycles import VectorWork, Work, core_cycles, listing_of
from hw.kllm.kllm_core import KllmCoreParameters
from sim.testbenches.kllm.core.product_cycles import timing_of
from sim.testbenches.kllm.kllm_core import build, real_products
from tests.support.kllm.core import check, compiled

RNG = np.random.default_rng
PAPER = KllmCoreParameters.presets()["paper"]


def paper_cycles(marks, entries: int) -> np.ndarray:
    """Cycles from product to product of vectors with these outliers, in the paper's core."""
    p = dataclasses.replace(PAPER, entries=entries)
    works = [
        Work([VectorWork(*listing_of(m, p.segment, 16, entries))], 21, p.sets, p.groups, True)
        for m in marks
    ]
    times = core_cycles(timing_of(p), works)
    if not marks.any():
        assert {t.last_step - t.first_step + 1 for t in times} == {PAPER_CYCLES - 1}
    return np.diff([t.result for t in times])


PAPER_CYCLES = 2048 + 16
"""4096 x 4096 without outliers: a word of scales, which takes a cycle, for every 16 sets."""


def test_the_paper_s_rate():
    """4096 x 4096 in 2064 cycles without outliers, and the cost of 1 % outliers for each R.

    By the cycle model. The paper loses 6 to 8 % of its throughput to them.
    """
    x = RNG(5).standard_normal((16, PAPER.k)).astype(np.float16)
    marks = dynamic_outliers(x, PAPER.outliers)
    assert (paper_cycles(np.zeros_like(marks), 8) == PAPER_CYCLES).all()
    lost = {
        entries: 1 - PAPER_CYCLES / paper_cycles(marks, entries).mean() for entries in (1, 2, 4, 8)
    }
    print("throughput lost to outliers, by entries of a row:", lost)
    assert 0.02 < lost[8] < 0.08 < lost[4] < lost[2] < lost[1]


@pytest.mark.campaign
def test_the_whole_core(shipped_trace):
    """Two products of 4096 x 4096 on sixteen lanes: every bit of the model, and its cycles."""
    core = compiled(PAPER)
    products, _ = real_products(PAPER, shipped_trace, 2, columns=4096)
    stimulus = build(PAPER, products, RNG(9), [])
    assert stimulus.outputs["y"].size > 0
    outcome = check(core, stimulus)
    assert outcome.cycles == stimulus.cycles > 2 * PAPER_CYCLES
    check(core, stimulus, "random")
    print(f"{outcome.cycles} cycles for two products of 4096 x 4096")
