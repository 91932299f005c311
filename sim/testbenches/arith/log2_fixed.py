"""Testbench of binary logarithms."""

from amaranth.hdl import unsigned

from golden.arith.log2_fixed import log2_fixed
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import random_integers
from sim.testbenches.strategies import mixture


def golden(p, x):
    named = {name: getattr(p, name) for name in ("width", "precision", "output", "rounding")}
    return {"y": log2_fixed(x, **named)}


def integers(bits, signed, count, rng):
    """Half of the integers have few ones, so that each bit of the leading-one search matters."""
    dense = random_integers(bits, signed, count, rng)
    first = 1 << rng.integers(0, bits, count)
    few = rng.integers(0, first) & rng.integers(0, first) & rng.integers(0, first)
    return mixture(
        rng, count, {"dense": (2, dense), "few bits": (1, first | few), "one bit": (1, first)}
    )


testbench = DatapathTestbench(
    operands=lambda p: {"x": unsigned(p.width)},
    results=lambda p: {"y": unsigned(p.result_width)},
    golden=golden,
    integers=integers,
)
