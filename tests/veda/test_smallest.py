"""Every block at its smallest legal parameters: one PE, one row, one head, a cache of two rows."""

import dataclasses

import pytest

from hw.attention.pe_array import PeArrayParameters
from hw.attention.rotary_encoding import RotaryEncodingParameters
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.catalogue import find
from hw.parameters import ParameterError
from hw.veda.veda_core import VedaCoreParameters
from hw.veda.voting_engine import VotingEngineParameters
from sim.testbenches.attention import pe_array, rotary_encoding, special_function_unit
from sim.testbenches.veda import veda_core, voting_engine
from tests.support.kllm.compiled import Compiled

SMALLEST = {
    pe_array: PeArrayParameters(1, 1, 1, add_stages=1),
    special_function_unit: SpecialFunctionUnitParameters(length=2, tile=1),
    rotary_encoding: RotaryEncodingParameters(pairs=1, lanes=1, positions=2),
    voting_engine: VotingEngineParameters(2, 1, position_bits=1, count_bits=1),
    veda_core: VedaCoreParameters(1, 2, 1, 2, 1, 1, 4, position_bits=1, count_bits=1, parallel=1),
}


CASES = [
    pe_array,  # compiled for other tests too, as the next one
    voting_engine,
    veda_core,  # with a special function unit of two elements inside
    pytest.param(special_function_unit, marks=pytest.mark.campaign),
    pytest.param(rotary_encoding, marks=pytest.mark.campaign),
]


@pytest.mark.parametrize("testbench", CASES, ids=lambda module: module.__name__.split(".")[-1])
def test_smallest(testbench, shipped_trace):
    """Every bit and every cycle, on random and real data."""
    p = SMALLEST[testbench]
    compiled = Compiled(find(testbench.__name__.removeprefix("sim.testbenches.")), p)
    for data in (None, shipped_trace):
        stimulus = testbench.testbench.stimulus(p, data, 40, 1)
        compiled.check_all(stimulus)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        *((PeArrayParameters, name) for name in ("rows", "columns", "arrays", "multiply_stages")),
        *((PeArrayParameters, name) for name in ("add_stages",)),
        *((SpecialFunctionUnitParameters, name) for name in ("length", "tile", "vectors")),
        *((RotaryEncodingParameters, name) for name in ("pairs", "lanes", "positions")),
        *((VotingEngineParameters, name) for name in ("capacity", "heads", "count_bits")),
        *((VotingEngineParameters, name) for name in ("position_bits",)),
        *((VedaCoreParameters, name) for name in ("columns", "capacity", "heads", "kv_heads")),
        *((VedaCoreParameters, name) for name in ("depth", "position_bits", "count_bits")),
        (VedaCoreParameters, "parallel"),
    ],
)
def test_smaller_values_are_refused(parameters, field):
    smallest = next(p for p in SMALLEST.values() if isinstance(p, parameters))
    value = getattr(smallest, field)
    with pytest.raises(ParameterError, match=f"^{field}|^rows, columns and arrays"):
        dataclasses.replace(smallest, **{field: value // 2})
