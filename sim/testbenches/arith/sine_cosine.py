"""Testbench of cosine and sine."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.sine_cosine import sine_cosine
from sim.testbenches.arith.datapath_testbench import DatapathTestbench


class SineCosineTestbench(DatapathTestbench):
    def default_vectors(self, parameters):
        return 4000  # of 32768 phases: tables have bits that only few of them see


testbench = SineCosineTestbench(
    operands=lambda p: {"phase": unsigned(15)},
    results=lambda p: {"cosine": "fp16", "sine": "fp16"},
    golden=lambda p, phase: dict(
        zip(("cosine", "sine"), sine_cosine(np.asarray(phase)), strict=True)
    ),
)
