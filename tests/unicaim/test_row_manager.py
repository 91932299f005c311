"""The row manager: odd sizes, rows to evict that arrive late or early, refused parameters."""

import pytest

from golden.unicaim.row_manager import RowManager
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.row_manager import RowManagerParameters
from sim.testbenches.unicaim.row_manager import Beats, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.row_manager")
ODD = RowManagerParameters(rows=5, contexts=3)


@pytest.fixture(scope="module", params=[ODD, RowManagerParameters(rows=3)], ids=lambda p: p.slug())
def compiled(request):
    return Compiled(BLOCK, request.param)


def test_rows_in_order_then_evicted_ones():
    model = RowManager(3)
    assert [model.take() for _ in range(3)] == [(0, False, False), (1, False, False), (2, False, 1)]
    assert model.full and model.take(1) == (1, True, True) and model.take(0) == (0, True, True)
    model.clear()
    assert not model.full and model.take() == (0, False, False)


def test_under_stalls(compiled, shipped_trace):
    """Rows to evict are offered as early as they are accepted, or later: the same results."""
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(compiled.parameters, trace, 300, seed=5)
        for seed in (1, 2, 3):
            compiled.check_all(stimulus, seed=seed)


def test_cycles_of_a_full_array(compiled):
    """One beat a cycle; two for a row to evict straight after another of the same context."""
    p = compiled.parameters
    beats = Beats(p)
    for context in range(p.contexts):
        for _ in range(p.rows):
            beats.take(context, 0)
    for number in range(6):
        beats.take(number % p.contexts, number % p.rows)
    assert beats.consecutive == (5 if p.contexts == 1 else 0)
    beats.clear(p.contexts - 1, 1)  # drops a row
    for _ in range(p.rows + 1):
        beats.take(p.contexts - 1, 2)
    beats.take(p.contexts - 1, 0)
    outcome = compiled.check(beats.stimulus())
    waits = 7 if p.contexts == 1 else 2
    assert outcome.cycles == p.rows * (p.contexts + 1) + 6 + 1 + 2 + waits + 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 1}, "rows must be at least 2, not 1"),
        ({"contexts": 0}, "contexts must be between 1 and 256, not 0"),
        ({"contexts": 257}, "contexts must be between 1 and 256, not 257"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        RowManagerParameters(**settings)
