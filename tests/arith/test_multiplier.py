"""Products as an FPGA's multipliers: every bit as with columns of partial products."""

import pytest
from amaranth.hdl import Module, Signal

from hw.arith.bits import partial_products
from hw.catalogue import find
from hw.emit.export import export
from hw.parameters import ParameterError
from sim.checks.exhaustive.exhaustive import Exhaustive
from sim.core.design import generate
from sim.drivers.run import Simulation, stimuli_of
from tests.support.campaign import suite_takes

ALL = [(format, flush) for format in ("fp16", "bf16") for flush in (False, True)]


@pytest.mark.parametrize(("format", "flush"), suite_takes([("fp16", False)], ALL))
def test_all_pairs(format, flush):
    unit = Exhaustive("arith.float_multiply", format, flush, multiplier="dsp")
    outcome = unit.run()
    assert outcome.difference is None, outcome.difference
    assert outcome.compared == 1 << 32


def test_a_dropped_bit_is_found(monkeypatch):
    def dropped(m: Module, platform, x, y):
        product = Signal(2 * len(x))
        m.d.comb += product.eq(x * y)
        return [[partial_products.Bit(0.0, bit)] for bit in product[:-1]] + [[]]

    monkeypatch.setattr("hw.arith.float_multiply.product_columns", dropped)
    unit = Exhaustive("arith.float_multiply", "fp16", multiplier="dsp")
    assert unit.run(range(0x3C00, 0x4000)).difference is not None


USERS = [
    ("arith.float_multiply", "dsp"),
    ("attention.pe_array", "dsp"),
    ("attention.pe_array", "dsp_shifts"),
    ("veda.veda_core", "dsp"),
    ("veda.veda_core", "dsp_shifts"),
    ("lad.apid", "dsp"),
    ("lad.vpu", "dsp"),  # idle units hold
    ("lad.lad_tile", "dsp"),
    ("kllm.softmax", "dsp"),
    ("kllm.column_counter", "dsp"),
    ("kllm.reduction", "dsp"),
    ("kllm.reduction", "dsp_shifts"),
    ("kllm.sparse_path", "dsp_shifts"),
    ("kllm.inverse_rms", "dsp"),
    ("kllm.element_function", "dsp"),
    ("kllm.kllm_core", "dsp"),
    ("kllm.kllm_core", "dsp_shifts"),
]

IN_SUITE = [("attention.pe_array", "dsp_shifts"), ("kllm.reduction", "dsp_shifts")]

PRESETS = {"lad.vpu": "eight"}  # small has a tree of one register


@pytest.mark.parametrize(("name", "multiplier"), suite_takes(IN_SUITE, USERS))
def test_testbenches_see_no_difference(name, multiplier, shipped_trace):
    block = find(name)
    parameters = block.parameters_class.preset(PRESETS.get(name, "first"))
    design = generate(block, parameters, multiplier)
    assert design.verilog != generate(block, parameters).verilog
    stimuli = stimuli_of(block, parameters, shipped_trace, 20, seed=3)
    runs = [(stimulus, stall) for stimulus in stimuli for stall in ("none", "random")]
    results = Simulation(design, "verilator", "harness").run(runs, seed=3)
    for (stimulus, stall), (outcome, mismatches) in zip(runs, results, strict=True):
        assert outcome.failure is None and not mismatches
        assert stall != "none" or stimulus.wrong_cycles(outcome) is None


def test_names_tell():
    block = find("arith.float_multiply")
    parameters = block.parameters_class()
    columns, dsp = export(block, parameters), export(block, parameters, multiplier="dsp")
    assert dsp.name == f"{columns.name}_dsp" == dsp.sidecar["module"]
    assert " * " in dsp.verilog and " * " not in columns.verilog
    with pytest.raises(
        ParameterError, match="multiplier must be one of columns, dsp, dsp_shifts, not"
    ):
        export(block, parameters, multiplier="dps")
