"""Testbench of the margin generator: a query and its scale in, margins out."""

import numpy as np
from amaranth.hdl import signed, unsigned

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.margin_generator import scale_code, scaled_margins
from sim.testbenches.arith.datapath_testbench import DatapathTestbench

FRACTION = 10  # fraction bits of the margins of real queries


def golden(p, q, mantissa, shift):
    widths = {"bits": p.bits, "chunk_bits": p.chunk_bits, "base": p.base}
    most, least = scaled_margins(q, mantissa, shift, **widths)
    return {"most": most, "least": least}


class MarginGeneratorTestbench(DatapathTestbench):
    """Queries of the trace, if it has any, each with its own scale times the keys' scale."""

    def draw(self, parameters, trace, vectors, seed):
        if trace is None or trace.q is None:
            return super().draw(parameters, trace, vectors, seed)
        p = parameters
        q = np.asarray(trace.q, np.float64)[..., : p.d].reshape(-1, min(p.d, trace.q.shape[-1]))
        chosen = np.arange(vectors) * 7 % len(q)
        q = np.pad(q[chosen], ((0, 0), (0, p.d - q.shape[1])))
        parts = scale_for(np.abs(q).max(axis=1), p.bits)
        key = float(scale_for(np.abs(trace.k).max(), p.bits)) * trace.scale / np.log(2)
        sizes = {"base": p.base, "scale_bits": p.scale_bits, "shift_bits": p.shift_bits}
        codes = [scale_code(c * key * 2.0**FRACTION, **sizes) for c in parts.tolist()]
        values = {"q": quantise(q, parts[:, None], p.bits).astype(np.int64)}
        values |= dict(zip(("mantissa", "shift"), np.array(codes).T, strict=True))
        note = f"Queries are every seventh of q, cut or filled up to {p.d} elements, quantised"
        return values, [f"{note}, repeated where there are not enough; scales of q and of k."]


testbench = MarginGeneratorTestbench(
    operands=lambda p: {
        "q": (signed(p.bits), p.d),
        "mantissa": unsigned(p.scale_bits),
        "shift": unsigned(p.shift_bits),
    },
    results=lambda p: {name: (unsigned(p.margin_bits), p.chunks - 1) for name in ("most", "least")},
    golden=golden,
)
