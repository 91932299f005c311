"""The top-k sense: every small search of both kinds; sizes other than the presets."""

import itertools

import numpy as np
import pytest

from golden.unicaim.topk_sense import topk_sense
from hw.catalogue import find
from hw.unicaim.topk_sense import TopkSenseParameters
from sim.testbenches.unicaim.topk_sense import Searches, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.topk_sense")
SIZES = [TopkSenseParameters(rows=5), TopkSenseParameters(rows=5, fill=False)]


@pytest.fixture(scope="module", params=SIZES, ids=["fill", "bare"])
def compiled(request):
    return Compiled(BLOCK, request.param)


def test_every_search_of_four_rows(compiled):
    """Scores -1 to 1, any rows in use, every k; the fifth row is never in use."""
    searches = Searches(compiled.parameters)
    unused = -2
    for scores in itertools.product((unused, -1, 0, 1), repeat=4):
        scores = np.array([*scores, unused])
        used = scores > unused
        for k in range(6):
            for _ in range(2):  # as a search, and as a discharge
                searches.add(np.where(used, scores, 0), used, k, 1)
    sizes = [len(addresses) for addresses in searches.addresses]
    assert len(sizes) == 2 * 6 * 4**4 and set(sizes) == {0, 1, 2, 3, 4}
    compiled.check(searches.stimulus(), "none")


def test_an_odd_size_under_stalls(compiled, shipped_trace):
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(compiled.parameters, trace, 300, seed=7)
        compiled.check_all(stimulus)


def test_equal_scores_drop_together():
    """Fig. 7's example with a tie: three wanted, the bare circuit keeps two."""
    high = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 1, 0, 0, 1]], bool)
    assert topk_sense(high, 3, fill=True) == [1, 2, 4]
    assert topk_sense(high, 3, fill=False) == [1, 4]
    assert topk_sense(high, 0) == []


@pytest.mark.campaign
@pytest.mark.parametrize("fill", [True, False])
def test_576_rows(fill, shipped_trace):
    p = TopkSenseParameters(rows=576, fill=fill)
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(p, trace, 60, seed=8)
        compiled.check_all(stimulus)
