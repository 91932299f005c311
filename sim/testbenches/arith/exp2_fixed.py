"""Testbench of powers of two."""

from amaranth.hdl import unsigned

from golden.arith.exp2_fixed import exp2_fixed
from sim.testbenches.arith.datapath_testbench import DatapathTestbench


def golden(p, x):
    named = {name: getattr(p, name) for name in ("fraction", "precision", "output", "rounding")}
    return {"y": exp2_fixed(x, **named)}


testbench = DatapathTestbench(
    operands=lambda p: {"x": unsigned(p.integer + p.fraction)},
    results=lambda p: {"y": unsigned(p.result_width)},
    golden=golden,
)
