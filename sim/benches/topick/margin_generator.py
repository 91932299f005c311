"""Bench of the margin generator: a query and its scale in, margins out."""

import numpy as np
from amaranth.hdl import signed, unsigned

from golden.topick.margin_generator import scaled_margins
from sim.benches.arith.datapath_bench import DatapathBench


def golden(p, q, mantissa, shift):
    widths = {"bits": p.bits, "chunk_bits": p.chunk_bits, "base": p.base}
    most, least = scaled_margins(q, mantissa, shift, **widths)
    return {"most": most, "least": least}


def exact(p, q, mantissa, shift):
    reach = 2.0 ** (p.bits - p.chunk_bits * np.arange(1, p.chunks)) - 1
    c = mantissa * 2.0 ** -(p.base + shift)
    return np.multiply.outer(np.maximum(q, 0).sum(axis=-1) * c, reach)


bench = DatapathBench(
    operands=lambda p: {
        "q": (signed(p.bits), p.d),
        "mantissa": unsigned(p.scale_bits),
        "shift": unsigned(p.shift_bits),
    },
    results=lambda p: {name: (unsigned(p.margin_bits), p.chunks - 1) for name in ("most", "least")},
    golden=golden,
    exact=exact,
)
