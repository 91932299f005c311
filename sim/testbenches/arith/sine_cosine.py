"""Testbench of cosine and sine."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.sine_cosine import sine_cosine
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

testbench = DatapathTestbench(
    operands=lambda p: {"phase": unsigned(15)},
    results=lambda p: {"cosine": "fp16", "sine": "fp16"},
    golden=lambda p, phase: dict(
        zip(("cosine", "sine"), sine_cosine(np.asarray(phase)), strict=True)
    ),
)
