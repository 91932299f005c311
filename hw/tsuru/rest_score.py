"""The score of the rest: the logarithm of a sum of powers of two, as FP16."""

import math

from amaranth.hdl import Module, Mux, Signal, signed

from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.log2_fixed import Log2Fixed, Log2FixedParameters
from hw.attention.delay import delay
from hw.component import Component
from hw.layout import count
from hw.ports import Ports, wire_in, wire_out
from hw.tsuru.estimate_sum import OCTAVES, SUM_FRACTION

LOG_STAGES = 2
"""Cycles of a logarithm."""
REST_FRACTION = 10
"""Fraction bits of the rest's logarithm, and bits that index its table."""
LN2_BITS = 16
LN2 = round(math.log(2) * 2**LN2_BITS)
SCORE_CYCLES = 2
"""Cycles from the rest's logarithm to its score."""


class RestScore(Component[None]):
    """score = ln(total 2^(origin - SUM_FRACTION)), minus infinity of 0.

    Latency: LOG_STAGES + SCORE_CYCLES; the origin comes LOG_STAGES after the total. Throughput: a
    score a cycle. There is no handshake.

    Parameters
    ----------
    width : int
        Bits of the total.
    """

    def __init__(self, width: int):
        self._width = width
        super().__init__()

    def ports(self) -> Ports:
        return {
            "total": wire_in(count(self._width), "A sum of powers."),
            "origin": wire_in(count(OCTAVES), "Octaves of its unit, LOG_STAGES later."),
            "score": wire_out(FP16, "Its natural logarithm."),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.log2 = log2 = Log2Fixed(
            Log2FixedParameters(
                self._width, REST_FRACTION, REST_FRACTION, "down", stages=LOG_STAGES
            )
        )
        none = delay(m, "none", ~self.total.any(), LOG_STAGES + SCORE_CYCLES)
        logarithm = Signal(signed(OCTAVES.width + 1 + REST_FRACTION), reset_less=True)
        natural = Signal(signed(len(logarithm) + LN2_BITS - REST_FRACTION), reset_less=True)
        m.d.comb += log2.x.eq(self.total)
        m.d.sync += [
            logarithm.eq(log2.y + ((self.origin - SUM_FRACTION) << REST_FRACTION)),
            natural.eq((logarithm * LN2) >> REST_FRACTION),
        ]
        m.submodules.convert = convert = FixedToFloat(
            FixedToFloatParameters(width=len(natural), fraction=LN2_BITS)
        )
        m.d.comb += [
            convert.a.eq(natural),
            self.score.eq(Mux(none, FP16.infinity | 1 << 15, convert.o)),
        ]
        return m
