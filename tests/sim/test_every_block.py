"""Every block and preset: real data, corner cases and random data, every stall pattern.

In both simulators, but for arithmetic units: of those, Verilator gets the first preset, since its
compiler takes most of the time and their own tests compare every preset with its golden model on
far more numbers; ``make sim`` runs all in both. Huge presets are tested where their block is.
"""

import pytest

from hw.catalogue import BLOCKS
from sim.cocotb_runner import SIMULATORS
from sim.design import generate
from sim.report import run_row
from sim.verilated import HUGE

CONFIGURATIONS = [
    pytest.param(block, preset, simulator, id=f"{block.name}-{preset}-{simulator}")
    for block in BLOCKS
    for number, preset in enumerate(block.parameters_class.presets())
    for simulator in SIMULATORS
    if simulator != "verilator" or block.folder != "arith" or number == 0
]
VECTORS = 24


@pytest.mark.parametrize(("block", "preset", "simulator"), CONFIGURATIONS)
def test_equals_its_golden_model(block, preset, simulator, shipped_trace):
    if generate(block, block.parameters_class.preset(preset)).instances >= HUGE:
        pytest.skip("huge: tested where its block is")
    row = run_row(block, preset, simulator, shipped_trace, VECTORS)
    assert row.verdict == "pass", row.reason
    assert row.mismatches == 0
    assert row.vectors == 3 * 2 * VECTORS  # three stall patterns, real and random data
    assert row.cycles == row.predicted > 0
