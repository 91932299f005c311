"""The serial array: what it takes, and sizes other than the presets."""

import pytest

from hw.catalogue import find
from hw.parameters import ParameterError
from hw.unicaim.serial_array import SerialArrayParameters
from sim.testbenches.unicaim.serial_array import testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("unicaim.serial_array")
ODD = SerialArrayParameters(rows=12, d=7, key_bits=2, query_bits=3, contexts=3, parallel=4)


@pytest.mark.parametrize("parallel", [0, 1, 3, 8, 16])
def test_rows_that_are_not_whole_words(parallel):
    with pytest.raises(ParameterError, match="parallel must be a power of two"):
        SerialArrayParameters(rows=8, parallel=parallel)


def test_an_odd_size_under_stalls(shipped_trace):
    compiled = Compiled(BLOCK, ODD)
    for trace in (None, shipped_trace):
        compiled.check_all(testbench.stimulus(ODD, trace, 150, seed=5))


@pytest.mark.campaign
def test_the_papers_size(shipped_trace):
    p = SerialArrayParameters.preset("paper")
    compiled = Compiled(BLOCK, p)
    for trace in (None, shipped_trace):
        compiled.check(testbench.stimulus(p, trace, 12, seed=6), "none")
