"""Testbench of FloatConvert: any two formats against the bit-exact model."""

import numpy as np

from golden.arith.float_convert import float_convert
from golden.arith.formats import from_bits, to_bits
from sim.testbenches.arith import operands
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.strategies import sometimes


class _ConvertTestbench(DatapathTestbench):
    """Half of the random operands are ties, or one bit from a tie, many between subnormal results.

    A tie is halfway between two numbers of the result's format.
    """

    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        if trace is None:
            rng = np.random.default_rng((seed, 1))
            source, result = parameters.source_format, parameters.float_format
            below = to_bits(operands.random_floats(parameters.format, vectors, [], rng))
            subnormal = rng.integers(0, 1 << rng.integers(0, result.mantissa + 2, vectors))
            below = np.where(sometimes(rng, 0.5, vectors), subnormal, below)
            ends = [from_bits(bits, parameters.format) for bits in (below, below + 1)]
            low, high = (end.astype(np.float64) for end in ends)
            with np.errstate(invalid="ignore", over="ignore"):
                middle = operands.cast((low + high) / 2, parameters.source)
            sign = rng.integers(0, 2, vectors) << source.width - 1
            flip = rng.integers(0, 2, vectors) << rng.integers(0, source.mantissa + 1, vectors)
            close = to_bits(middle) ^ (sign ^ flip).astype(to_bits(middle).dtype)
            bits = np.where(sometimes(rng, 0.5, vectors), close, to_bits(values["a"]))
            values["a"] = from_bits(bits, parameters.source)
        return values, notes


testbench = _ConvertTestbench(
    operands=lambda p: {"a": p.source},
    results=lambda p: {"o": p.format},
    golden=lambda p, a: {
        "o": float_convert(a, p.format, flush_subnormals=p.flush_subnormals, saturate=p.saturate)
    },
)
