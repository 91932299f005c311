"""Outputs of both arrays keep the rules of streams; unbounded proof."""

import pytest

from hw.unicaim.cell_array import CellArray, CellArrayParameters
from hw.unicaim.digital_array import DigitalArray, DigitalArrayParameters
from tests.support.formal import prove_stream_rules


@pytest.mark.parametrize("kind", ["cell", "digital"])
def test_stream_rules(kind):
    array = {
        "cell": lambda: CellArray(CellArrayParameters(rows=2, d=2, key_bits=1)),
        "digital": lambda: DigitalArray(DigitalArrayParameters(rows=2, d=2, key_bits=1)),
    }[kind]()
    prove_stream_rules(array, f"{kind}_array", "lines values", ["i", "too_many"])
