"""Netlists equal RTL: synthesized units in the testbenches of the generated ones.

The gates are generic; cell libraries are tested with the synthesis command. Mostly in Icarus,
which reads a netlist in a fraction of the time that Verilator needs to compile it.
"""

import re

import pytest

from hw.catalogue import find
from hw.emit.export import module_name, to_rtlil
from sim.core.stalls import PATTERNS
from sim.drivers.run import run
from sim.synth import libraries
from sim.synth.flow import Mapped, Mapper

UNITS = [
    ("arith.float_add", "fp16_pipelined", "speed", "icarus"),
    ("arith.float_multiply", "bf16", "area", "icarus"),
    ("arith.float_multiply_add", "fp8_e4m3", "area", "verilator"),
    ("arith.float_max", "fp32", "speed", "icarus"),
    ("arith.float_convert", "fp32_to_fp16", "speed", "icarus"),
    ("arith.exp", "fp16_pipelined", "area", "icarus"),
    ("arith.square_root", "fp16", "area", "icarus"),
    ("arith.log2_fixed", "small", "speed", "icarus"),
]


def mapped(block, parameters, mode, folder, pieces=None) -> Mapped:
    name = module_name(block, parameters)
    rtlil = to_rtlil(block.create(parameters), name)
    return Mapper(rtlil, name, libraries.find(None), folder, pieces).map(mode)


@pytest.mark.parametrize("name, preset, mode, simulator", UNITS)
def test_a_netlist_equals_the_golden_model(name, preset, mode, simulator, tmp_path):
    block = find(name)
    parameters = block.parameters_class.preset(preset)
    path = tmp_path / "netlist.v"
    path.write_text(mapped(block, parameters, mode, tmp_path).verilog)
    driver = "cocotb" if simulator == "icarus" else "harness"
    options = {"simulator": simulator, "driver": driver, "vectors": 200, "verilog": path}
    result = run(block, preset, parameters, **options)
    assert result.passed, result.first_mismatch or result.failures
    assert result.transactions == 2 * len(PATTERNS) * 200


def test_a_netlist_of_pieces_equals_the_golden_model(tmp_path):
    """Of a block with nested sub-blocks, the inner one large enough to be mapped by itself."""
    block = find("kllm.sparse_path")
    parameters = block.parameters_class.preset("small")
    netlist = mapped(block, parameters, "area", tmp_path, pieces=150)
    assert netlist.flipflops > 300
    path = tmp_path / "netlist.v"
    path.write_text(netlist.verilog)
    result = run(block, "small", parameters, simulator="icarus", vectors=20, verilog=path)
    assert result.passed, result.first_mismatch or result.failures
    assert result.transactions == 2 * len(PATTERNS) * 20


def test_a_wrong_gate_is_noticed(tmp_path):
    block = find("arith.float_compare")
    parameters = block.parameters_class.preset("fp16")
    text = mapped(block, parameters, "area", tmp_path).verilog
    wrong = re.sub(r"assign Y = ~\(A \| B\);", "assign Y = ~(A & B);", text)
    assert wrong != text
    path = tmp_path / "wrong.v"
    path.write_text(wrong)
    result = run(block, "fp16", parameters, driver="harness", vectors=200, verilog=path)
    assert not result.passed and result.mismatches
