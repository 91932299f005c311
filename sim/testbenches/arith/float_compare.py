"""Testbench of FloatCompare: related pairs of operands against NumPy's comparisons."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.float_compare import float_compare
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import picks


class _CompareTestbench(DatapathTestbench):
    """Half of the random pairs have magnitudes that differ in one bit at most.

    Half of those have at most one bit set. Only such pairs make each bit of the comparator
    observable.
    """

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng((seed, 1))
            width = parameters.float_format.width
            a, b = (to_bits(values[port]) for port in ("a", "b"))
            kind = picks(rng, vectors, {"single bit": 1, "close": 1, "any": 2})
            one_bit = rng.integers(0, 2, vectors) << rng.integers(0, width - 1, vectors)
            a = np.where(kind == "single bit", one_bit.astype(a.dtype), a)
            flip = rng.integers(0, 2, vectors) << rng.integers(0, width, vectors)
            sign = rng.integers(0, 2, vectors) << width - 1
            b = np.where(kind != "any", a ^ (flip ^ sign).astype(a.dtype), b)
            values = {"a": from_bits(a, parameters.format), "b": from_bits(b, parameters.format)}
        return values, notes


testbench = _CompareTestbench(
    operands=lambda p: {"a": p.format, "b": p.format},
    results=lambda p: dict.fromkeys(("less", "equal", "unordered"), unsigned(1)),
    golden=lambda p, a, b: float_compare(a, b, flush_subnormals=p.flush_subnormals),
)
