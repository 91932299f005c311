"""Cosine and sine of a fraction of a turn, as FP16."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.tables.multipartite import SCALE, Field, Multipartite
from hw.layout import FixedPoint
from hw.ports import Ports, wire_in, wire_out

QUARTER = 13
"""Bits of a phase within a quarter turn."""

SINE = Multipartite(QUARTER, 8, (Field(6, 3, 5), Field(4, 0, 3)), 5, 2, True)
"""1 + sin(pi u / 2) for 0 <= u < 1; error below 2^-13.6."""

DIGITS = SINE.width + SINE.guard
"""Fraction bits of the table's values."""

PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D
"""pi in units of 2^-188."""

WIDE = 188


def one_plus_sine(n: int, k: int) -> int:
    """1 + sin(pi u / 2) times 2^SCALE, rounded down, for u = n / 2^k."""
    x = PI * n >> k + 1
    square = x * x >> WIDE
    term, total, order = x, x, 1
    # The Taylor series in integers, until a term is less than their unit.
    while term:
        term = -(term * square >> WIDE) // ((order + 1) * (order + 2))
        total, order = total + term, order + 2
        if abs(term) <= 1:
            break
    return (1 << SCALE) + (total >> WIDE - SCALE)


@dataclasses.dataclass(frozen=True)
class SineCosineParameters(DatapathParameters):
    """
    stages
        Pipeline stages, 0 to 2; the first of two is behind the tables.
    """

    stages: int = 1

    CUTS: ClassVar = ((), ("result",), ("table", "result"))

    @classmethod
    def presets(cls) -> dict[str, "SineCosineParameters"]:
        return {"small": cls(0), "default": cls()}


class SineCosine(Datapath[SineCosineParameters]):
    """``cosine`` and ``sine`` of 2 pi ``phase`` / 2^15.

    ::

        phase     | quarter q | u: 13 bits |      table: sin(pi u / 2) in units of 2^-15
        q           0    1    2    3
        cosine      C   -S   -C    S               S = sin(pi u / 2), C = sin(pi (1 - u) / 2)
        sine        S    C   -S   -C

    One table, read twice: it holds 1 + S, whose slope is small enough for the multipartite method.
    Multiples of a quarter turn are exact.

    Accuracy, over all phases: within 2^-13.6 before, 2^-11.6 after rounding to FP16.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.sine_cosine import SineCosineParameters
    >>> SineCosineParameters(stages=1).cycles(32)
    33
    """

    summary = "Cosine and sine of a fraction of a turn"
    source = "library"

    def operation(self) -> Ports:
        return {
            "phase": wire_in(FixedPoint(unsigned(QUARTER + 2), QUARTER + 2), "In turns."),
            "cosine": wire_out(FP16, "Its cosine."),
            "sine": wire_out(FP16, "Its sine."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        within, quarter = self.phase[:QUARTER], self.phase[QUARTER:]
        start = Signal()
        rest = Signal(QUARTER)
        m.d.comb += [start.eq(~within.any()), rest.eq(-within)]
        rising = self._table(m, "rising", within)
        falling = self._table(m, "falling", rest)
        # At a quarter's start the rest is a whole quarter, which the table does not have.
        rising, falling, start, quarter = cut(
            "table", rising=rising, falling=falling, start=start, quarter=quarter
        )
        # At a quarter's start they are 0 and 1 exactly, which the table is not.
        one = FP16.bias << FP16.mantissa
        numbers = []
        for name, value, exact in (("rising", rising, 0), ("falling", falling, one)):
            unit = FixedToFloat(
                FixedToFloatParameters(width=DIGITS + 1, signed=False, fraction=DIGITS)
            )
            m.submodules[f"{name}_float"] = unit
            m.d.comb += unit.a.eq(value)
            numbers.append(Mux(start, exact, unit.o)[: FP16.width - 1])
        # In odd quarters the two swap; signs follow from the quarter alone.
        odd = quarter[0]
        cosine = Cat(Mux(odd, numbers[0], numbers[1]), quarter[0] ^ quarter[1])
        sine = Cat(Mux(odd, numbers[1], numbers[0]), quarter[1])
        cosine, sine = cut("result", cosine=cosine, sine=sine)
        m.d.comb += [self.cosine.eq(cosine), self.sine.eq(sine)]
        return m

    def _table(self, m: Module, name: str, fraction: Signal) -> Signal:
        """S of `fraction`, up to 1, in units of 2^-DIGITS."""
        total = Signal(DIGITS + 2, name=f"{name}_total")
        m.submodules[name] = inner = Module()
        given = Signal(QUARTER, name=f"{name}_fraction")
        m.d.comb += given.eq(fraction)
        inner.d.comb += total.eq(sum(SINE.terms(inner, one_plus_sine, given), 0))
        value = Signal(DIGITS + 1, name=f"{name}_sine")
        m.d.comb += value.eq(total - (1 << DIGITS))
        return value
