"""Testbench of dot products."""

from golden.arith.dot_product import dot_product
from sim.testbenches.arith.datapath_testbench import DatapathTestbench


def operands(p):
    fixed = p.format == "fixed"
    return {name: (shape if fixed else p.format, p.n) for name, shape in p.operands.items()}


testbench = DatapathTestbench(
    operands=operands,
    results=lambda p: {"o": p.result if p.format == "fixed" else p.format},
    golden=lambda p, a, b: {"o": dot_product(a, b, flush_subnormals=p.flush_subnormals)},
)
