"""Testbench of population counts."""

import numpy as np
from amaranth.hdl import Shape, unsigned

from golden.arith.formats import to_bits
from golden.arith.population_count import population_count
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import cast, trace_values
from sim.testbenches.strategies import sometimes


class PopulationCountTestbench(DatapathTestbench):
    """Random bits of a random density, so that all counts have about the same probability."""

    def draw(self, parameters, trace, vectors, seed):
        if trace is not None:
            values, name = trace_values(trace, -(-vectors * parameters.n // 16), 0)
            bits = to_bits(cast(values, "fp16")).view(np.uint8)
            bits = np.unpackbits(bits, count=vectors * parameters.n).astype(np.int64)
            return {"i": bits.reshape(vectors, -1)}, [f"i is {name} as FP16 bits."]
        rng = np.random.default_rng(seed)
        share = rng.integers(0, parameters.n + 1, (vectors, 1)) / parameters.n
        bits = sometimes(rng, share, (vectors, parameters.n))
        return {"i": bits.astype(np.int64)}, []


testbench = PopulationCountTestbench(
    operands=lambda p: {"i": (unsigned(1), p.n)},
    results=lambda p: {"o": Shape.cast(range(p.n + 1))},
    golden=lambda p, i: {"o": population_count(i)},
)
