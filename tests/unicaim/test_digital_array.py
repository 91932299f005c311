"""The digital array: its search against the algorithm; sizes other than the presets."""

import numpy as np
import pytest

from golden.algorithms.unicaim.selection import top_k
from golden.unicaim.cell_array import discharge
from golden.unicaim.digital_array import search
from golden.unicaim.topk_sense import topk_sense
from hw.catalogue import find
from hw.unicaim.digital_array import DigitalArrayParameters
from sim.testbenches.unicaim.digital_array import testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.digital_array")
ODD = DigitalArrayParameters(rows=5, d=7, key_bits=2, query_bits=3, contexts=3)


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("model", [search, discharge], ids=["search", "discharge"])
def test_a_search_is_the_algorithms(model, fill):
    """Top k of the algorithm, from either kind of steps, for any scores, rows in use and k."""
    rng = np.random.default_rng(1)
    tied = 0
    for _ in range(2000):
        rows, limit = int(rng.integers(2, 12)), int(rng.integers(1, 9))
        scores = rng.integers(-limit, limit + 1, rows)
        used, k = rng.random(rows) < rng.random(), int(rng.integers(1, rows + 1))
        high, too_many = model(scores, used, k, limit)
        assert too_many.tolist() == (high.sum(axis=1) > k).tolist()
        want = np.flatnonzero(top_k(scores, k, used, fill))
        assert topk_sense(high, k, fill) == want.tolist()
        tied += len(want) < k
    assert tied > 100


def test_steps_of_the_papers_scores():
    paper = DigitalArrayParameters.preset("paper")
    assert (paper.score_limit, paper.score.width, paper.steps) == (512, 11, 11)


def test_an_odd_size_under_stalls(shipped_trace):
    compiled = Compiled(BLOCK, ODD)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(ODD, trace, 150, seed=5)
        compiled.check_all(stimulus)


@pytest.mark.campaign
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_large_presets(preset, shipped_trace):
    p = DigitalArrayParameters.preset(preset)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check(testbench.stimulus(p, trace, 12, seed=6), "none")
