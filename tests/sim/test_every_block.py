"""Every block and preset: real data, corner cases and random data, with and without stalls.

cocotb drives them, under the two stall patterns that differ most; the harness runs all
(`test_every_block_harness.py`), in Verilator. The suite has first presets: in Icarus what is too
dear for the suite's harness, and a core; in both simulators the streams and Orizuru, as compiling
for cocotb's Verilator takes most of the time. Everything else is in ``make campaign``: first
presets in both simulators, default ones and the papers' sizes in Verilator, others and datapaths
without state in Icarus. ``make sim`` runs first and default presets in both. Huge ones are tested
where their block is.
"""

import pytest

from hw.arith.datapath import DatapathParameters
from hw.catalogue import blocks
from sim.commands.report import run_row
from sim.core.design import generate
from sim.drivers.cocotb.runner import SIMULATORS
from sim.drivers.harness.verilated import HUGE
from tests.support.costs import DEAR_TESTS

HUGE_PRESETS = {
    "arith.dot_product": {"fp16_128"},
    "attention.pe_array": {"default", "paper"},
    "kllm.column_counter": {"default", "paper"},
    "kllm.kllm_core": {"small", "default", "paper"},
    "kllm.orizuru": {"paper"},
    "kllm.outlier_split": {"paper"},
    "kllm.pe_lane": {"default", "paper"},
    "veda.veda_core": {"default", "paper"},
    "topick.topick_core": {"default", "paper", "streams"},
    "lad.ac": {"default", "paper"},
    "lad.lad_system": {"small", "default", "paper"},
    "lad.lad_tile": {"small", "default", "paper"},
    "lad.md": {"paper"},
    "lad.vpu": {"paper"},
    "unicaim.cell_array": {"paper"},
    "unicaim.charge_accumulator": {"paper"},
    "unicaim.digital_array": {"paper"},
    "unicaim.unicaim_core": {"default", "serial", "paper"},
    "tsuru.tsuru_core": {"default"},
}
"""Presets of HUGE or more instances that are left out; the tests of their blocks have them."""

HARNESS = "tests/sim/test_every_block_harness.py"


def simulators(block, preset: str) -> tuple[str, ...]:
    """Simulators to run a preset in: those that add something for the time they take."""
    first = preset == block.parameters_class.preset_name("first")
    if first:
        return SIMULATORS
    simple = issubclass(block.parameters_class, DatapathParameters)
    large = preset in ("paper", block.parameters_class.preset_name("default"))
    return ("verilator",) if large and not simple else ("icarus",)


def marks(block, preset: str, simulator: str) -> tuple:
    first = preset == block.parameters_class.preset_name("first")
    both = block.folder == "stream" or block.name == "kllm.orizuru"
    harness = f"{HARNESS}::test_every_block_under_every_stall[{block.name}]"
    icarus = block.name == "baseline.h2o_core" or harness in DEAR_TESTS
    suite = first and (both or (icarus and simulator == "icarus"))
    return () if suite else (pytest.mark.campaign,)


STALLS = ("none", "bursts")


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
    for block in blocks()
    for preset in block.parameters_class.presets()
    if preset not in HUGE_PRESETS.get(block.name, ())
    for simulator in simulators(block, preset)
]


@pytest.mark.campaign
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_only_huge_presets_are_left_out(block):
    """Not counted where tests are collected, because their Verilog takes minutes to generate."""
    presets = block.parameters_class.presets().items()
    huge = {name for name, parameters in presets if generate(block, parameters).instances >= HUGE}
    assert huge >= HUGE_PRESETS.get(block.name, set())


@pytest.mark.parametrize(("block", "preset", "simulator"), CONFIGURATIONS)
def test_equals_its_golden_model(block, preset, simulator, shipped_trace):
    vectors = vectors_of(block)
    row = run_row(block, preset, simulator, shipped_trace, vectors, stalls=STALLS)
    assert row.verdict == "pass", row.reason
    assert row.mismatches == 0
    assert row.vectors == 2 * len(STALLS) * vectors  # real and random data
    assert row.fewest <= row.cycles <= row.predicted and row.cycles > 0
