"""Every block, preset and simulator: real data, corner cases and random data, every stall pattern.

Huge presets are tested where their block is.
"""

import pytest

from hw.catalogue import BLOCKS
from sim.cocotb_runner import SIMULATORS
from sim.design import generate
from sim.report import run_row
from sim.verilated import HUGE

CONFIGURATIONS = [
    pytest.param(block, preset, id=f"{block.name}-{preset}")
    for block in BLOCKS
    for preset in block.parameters_class.presets()
]
VECTORS = 24


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize(("block", "preset"), CONFIGURATIONS)
def test_equals_its_golden_model(block, preset, simulator, shipped_trace):
    if generate(block, block.parameters_class.preset(preset)).instances >= HUGE:
        pytest.skip("huge: tested where its block is")
    row = run_row(block, preset, simulator, shipped_trace, VECTORS)
    assert row.verdict == "pass", row.reason
    assert row.mismatches == 0
    assert row.vectors == 3 * 2 * VECTORS  # three stall patterns, real and random data
    assert row.cycles == row.predicted > 0
