"""Testbench of the element-wise functions."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.formats import from_bits
from golden.kllm.element_function import element_function
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import corners
from sim.testbenches.strategies import sometimes


class ElementFunctionTestbench(DatapathTestbench):
    def default_vectors(self, parameters):
        return 4000

    def draw(self, parameters, trace, vectors, seed):
        """Operands of a trace, functions taking turns; or drawn ones.

        First all corner cases with every function, also subnormal numbers of a single bit. Half of
        the others have e^x in range.
        """
        if trace is not None:
            values, notes = super().draw(parameters, trace, vectors, seed)
            values["op"] = np.arange(vectors) % 4
            return values, [notes[0], "The four functions take turns."]
        rng = np.random.default_rng(seed)
        single = (1 << np.arange(10)) | np.array([0, 1, 32, 63])[:, None] << 10
        edges = np.concatenate([from_bits(single.ravel(), "fp16"), corners(np.float16)])
        order = rng.permutation(4 * len(edges))
        near = rng.uniform(-24, 24, vectors) * 2.0 ** -rng.integers(0, 8, vectors)
        others = from_bits(rng.integers(0, 1 << 16, vectors), "fp16")
        others = np.where(sometimes(rng, 0.5, vectors), near.astype(np.float16), others)
        op = rng.choice(4, vectors, p=(0.25, 0.4, 0.15, 0.2))
        x = np.concatenate([np.tile(edges, 4)[order], others])
        op = np.concatenate([np.repeat(np.arange(4), len(edges))[order], op])
        return {"x": x[:vectors], "op": op[:vectors]}, []


testbench = ElementFunctionTestbench(
    operands=lambda p: {"x": "fp16", "op": unsigned(2)},
    results=lambda p: {"o": "fp16"},
    golden=lambda p, x, op: {"o": element_function(x, op)},
)
