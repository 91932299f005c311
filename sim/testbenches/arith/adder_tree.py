"""Testbench of trees of adders."""

from golden.arith.adder_tree import adder_tree
from sim.testbenches.arith.datapath_testbench import DatapathTestbench


def kind(p):
    return p.element if p.format == "fixed" else p.format


def golden(p, i):
    return {"o": adder_tree(i, p.operation, flush_subnormals=p.flush_subnormals)}


testbench = DatapathTestbench(
    operands=lambda p: {"i": (kind(p), p.n)},
    results=lambda p: {"o": p.result if p.format == "fixed" else p.format},
    golden=golden,
)
