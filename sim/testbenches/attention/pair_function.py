"""Testbench of the element-wise functions of two numbers."""

import numpy as np
from amaranth.hdl import unsigned

from golden.arith.formats import from_bits
from golden.attention.pair_function import pair_function
from sim.testbenches.arith.datapath_testbench import DatapathTestbench
from sim.testbenches.arith.operands import corners
from sim.testbenches.strategies import picks, select

OPERATIONS = 4

SPECIAL = (np.inf, -np.inf, -np.inf, np.nan, 0.0, -0.0, 1, -1, 65504, -65504, 2.0**-24, -(2.0**-24))
"""Operands whose pairs the rules of IEEE 754 or of the gates name one by one."""


class PairFunctionTestbench(DatapathTestbench):
    def default_vectors(self, parameters):
        return 4000

    def draw(self, parameters, trace, vectors, seed):
        """Operands of a trace, operations taking turns; or drawn ones.

        Drawn ones are corner cases, infinities, NaN, zeros and limits in pairs, pairs of any bits,
        gates where the logistic function is neither 0 nor 1, sums that cancel, and gates so low
        that only a large factor makes more of the product than zero.
        """
        if trace is not None:
            values, notes = super().draw(parameters, trace, vectors, seed)
            values["op"] = np.arange(vectors) % OPERATIONS
            return values, [*notes[:2], "The operations take turns."]
        rng = np.random.default_rng(seed)
        a, b, op = drawn_pairs(vectors, rng)
        return {"a": a, "b": b, "op": op}, []


def drawn_pairs(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`count` pairs of ``float16`` and their operations."""
    edges = corners(np.float16)
    bits = from_bits(rng.integers(0, 1 << 16, (2, count)), "fp16")
    near = (rng.uniform(-24, 24, count) * 2.0 ** -rng.integers(0, 8, count)).astype(np.float16)
    low = -rng.uniform(5, 33, count).astype(np.float16)
    large = (rng.uniform(0.5, 1, count) * 65504).astype(np.float16)
    step = rng.integers(-3, 4, count).astype(np.int16)
    opposite = from_bits((bits[0].view(np.int16) ^ np.int16(-(1 << 15))) + step, "fp16")
    special = rng.choice(SPECIAL, (2, count)).astype(np.float16)
    kinds = {"corner": 1, "special": 0.5, "any": 1, "gate": 1, "cancels": 0.5, "tail": 0.5}
    kind = picks(rng, count, kinds)
    pairs = {
        "corner": (rng.choice(edges, count), rng.choice(edges, count)),
        "special": (special[0], special[1]),
        "any": (bits[0], bits[1]),
        "gate": (near, bits[1]),
        "cancels": (bits[0], opposite),
        "tail": (low, large),
    }
    a, b = (select(kind, {name: pair[n] for name, pair in pairs.items()}) for n in (0, 1))
    op = rng.integers(0, OPERATIONS, count)
    op = np.where(kind == "cancels", 0, np.where(kind == "tail", rng.integers(2, 4, count), op))
    return a, b, op


testbench = PairFunctionTestbench(
    operands=lambda p: {"a": "fp16", "b": "fp16", "op": unsigned(2)},
    results=lambda p: {"o": "fp16"},
    golden=lambda p, a, b, op: {"o": pair_function(a, b, op)},
)
