"""Every block and preset: real data, corner cases and random data, every stall pattern.

In both simulators, but for datapaths without state, of which Verilator gets one preset (compiling
takes most of the time, and their own tests compare every preset with its golden model on far more
numbers), and Icarus in the suite the first and the last. Of accelerators' blocks the first preset
is played in Icarus, and in Verilator by the harness under every stall pattern (`test_run.py`);
the other presets, and cocotb in Verilator, in ``make campaign``, the paper's sizes in Verilator
only. ``make sim`` plays first and default presets in both. Huge ones are tested where their block
is.
"""

import pytest

from hw.arith.datapath import DatapathParameters
from hw.catalogue import BLOCKS
from sim.cocotb_runner import SIMULATORS
from sim.design import generate
from sim.report import run_row
from sim.verilated import HUGE


def simulators(block, preset: str) -> tuple[str, ...]:
    """Where a preset is played: not where it takes minutes and says little more."""
    first = preset == block.parameters_class.preset_name("first")
    if issubclass(block.parameters_class, DatapathParameters) and not first:
        return ("icarus",)
    return ("verilator",) if preset == "paper" and not first else SIMULATORS


def marks(block, preset: str, simulator: str) -> tuple:
    first, *_, last = [*block.parameters_class.presets()] * 2
    if block.folder == "stream":
        suite = True
    elif block.folder == "arith":
        suite = preset in (first, last)
    else:
        suite = preset == first and (simulator == "icarus" or block.name == "kllm.orizuru")
    return () if suite else (pytest.mark.campaign,)


def vectors_of(block) -> int:
    """Fewer where a transaction is a vector, not a number."""
    return 24 if block.folder in ("arith", "stream") else 8


CONFIGURATIONS = [
    pytest.param(
        block,
        preset,
        simulator,
        id=f"{block.name}-{preset}-{simulator}",
        marks=marks(block, preset, simulator),
    )
    for block in BLOCKS
    for preset in block.parameters_class.presets()
    for simulator in simulators(block, preset)
]


@pytest.mark.parametrize(("block", "preset", "simulator"), CONFIGURATIONS)
def test_equals_its_golden_model(block, preset, simulator, shipped_trace):
    if generate(block, block.parameters_class.preset(preset)).instances >= HUGE:
        pytest.skip("huge: tested where its block is")
    vectors = vectors_of(block)
    row = run_row(block, preset, simulator, shipped_trace, vectors)
    assert row.verdict == "pass", row.reason
    assert row.mismatches == 0
    assert row.vectors == 3 * 2 * vectors  # three stall patterns, real and random data
    assert row.cycles == row.predicted > 0
