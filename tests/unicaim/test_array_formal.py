"""Outputs of all arrays keep the rules of streams; unbounded proof."""

import pytest

from hw.unicaim.cell_array import CellArray, CellArrayParameters
from hw.unicaim.digital_array import DigitalArray, DigitalArrayParameters
from hw.unicaim.serial_array import SerialArray, SerialArrayParameters
from sim.checks.formal.specs import StreamRulesSpec
from tests.support.formal import prove_block, prove_stream_rules


@pytest.mark.parametrize("kind", ["cell", "digital"])
def test_stream_rules(kind):
    array = {
        "cell": lambda: CellArray(CellArrayParameters(rows=2, d=2, key_bits=1)),
        "digital": lambda: DigitalArray(DigitalArrayParameters(rows=2, d=2, key_bits=1)),
    }[kind]()
    prove_stream_rules(array, f"{kind}_array", "lines values", ["i", "too_many"])


def test_stream_rules_of_cells_by_the_clock():
    """Also from states in which a row is measured during a search, which lasts five cycles."""
    times = {"time_steps": 16, "late": 200, "line_error": 20, "calibration_bits": 3}
    array = CellArray(CellArrayParameters(rows=2, d=2, key_bits=1, spread_mv=54, **times))
    spec = StreamRulesSpec(array, ["lines", "values"], ["i", "too_many"])
    prove_block(spec, "timed_cell_array_rules", depth=10, seconds=300)
    prove_block(spec, "timed_cell_array_rules", "cover", depth=12, seconds=300)


def test_stream_rules_of_the_serial_array():
    """The induction begins in any state, also one in which words are scored during a search. Its
    depth covers that search and the passes over the words that it overlaps; 12 is too few."""
    array = SerialArray(SerialArrayParameters(rows=4, d=2, key_bits=1, query_bits=2, parallel=2))
    spec = StreamRulesSpec(array, ["lines", "values"], ["i", "too_many"])
    prove_block(spec, "serial_array_rules", depth=16, seconds=300)
    prove_block(spec, "serial_array_rules", "cover", depth=14, seconds=300)
