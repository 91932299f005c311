"""Powers of two of fixed-point numbers, as lower or upper bounds of the true value."""

import dataclasses
import functools
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Signal, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.tables.split_table import fit
from hw.layout import FixedPoint
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out

DIRECTIONS = ("down", "up")
DIGITS = 50  # of decimal arithmetic: no power is that close to an integer


@dataclasses.dataclass(frozen=True)
class Exp2FixedParameters(DatapathParameters):
    """
    integer, fraction
        Integer and fraction bits of the operand.
    precision
        Fraction bits of the power of the operand's fraction, before it is shifted.
    output
        Fraction bits of the result.
    rounding
        ``down`` or ``up``.
    """

    integer: int = 5
    fraction: int = 10
    precision: int = 12
    output: int = 24
    rounding: str = "down"

    CUTS: ClassVar = (
        (),
        ("result",),
        ("significand", "result"),
        ("tables", "significand", "result"),
    )

    def __post_init__(self):
        super().__post_init__()
        require(0 <= self.integer <= 8, "integer must be between 0 and 8", self.integer)
        require(1 <= self.fraction <= 14, "fraction must be between 1 and 14", self.fraction)
        require(2 <= self.precision <= 24, "precision must be between 2 and 24", self.precision)
        rule = f"output must be between {self.precision} (precision) and 64"
        require(self.precision <= self.output <= 64, rule, self.output)
        require(self.rounding in DIRECTIONS, "rounding must be down or up", self.rounding)

    @property
    def result_width(self) -> int:
        return self.output + (self.rounding == "up")

    @classmethod
    def presets(cls) -> dict[str, "Exp2FixedParameters"]:
        return {
            "small": cls(integer=3, fraction=4, precision=6, output=8),
            "default": cls(),
            "up": cls(rounding="up"),
            "pipelined": cls(stages=2),
            "up_pipelined": cls(rounding="up", stages=2),
        }


@functools.cache
def significands(fraction: int, precision: int) -> tuple[int, ...]:
    """For each f the greatest integer below 2^(precision - f / 2^fraction)."""
    with localcontext() as context:
        context.prec = DIGITS
        powers = [
            Decimal(2) ** (precision - Decimal(f) / (1 << fraction)) for f in range(1 << fraction)
        ]
        # The power of f = 0 is an integer, which the operator ** need not return exactly.
        powers[0] = Decimal(1 << precision)
        return tuple(int(power.to_integral_value(ROUND_CEILING)) - 1 for power in powers)


class Exp2Fixed(Datapath[Exp2FixedParameters]):
    """2^-x of an unsigned fixed-point number, as a fixed-point number of at most 1.

    With x = n + f, n its integer part, the significand 2^-f comes from tables that are exact at
    every f (:mod:`hw.arith.tables.split_table`) and is shifted right by n. In units of the result's
    last place, u = 2^-output, and with p = 2^-precision:

        s = the greatest multiple of p below 2^-f
        down:  y = floor(s * 2^-n / u) u
        up:    y = ceil((s + p) * 2^-n / u) u

    Accuracy: down is below 2^-x, by at most u + p 2^-n; up is not below it, and by less than that
    above. With precision = output both err by at most u, so down is the greatest multiple of u
    below 2^-x, and up is exactly u more. Both are monotonic. Every x is valid.

    ::

        significand     | precision bits | 1 … 1 or 0 … 0 |      below 1, `output` bits
        shifted by n    | 0 … 0 | precision bits | 1 … 1  |

    Latency: `stages`. Throughput: one result per cycle. Arguments of exponentials are mostly
    differences from a maximum, t - t_max, whose negation is t_max - t; for 2^t of any t = e - x
    with an integer e, use `integer` = 0 for x = e - t in [0, 1).

    Examples
    --------
    Rounding up, a result of exactly 1 needs one bit more:

    >>> from hw.arith.exp2_fixed import Exp2Fixed, Exp2FixedParameters
    >>> Exp2Fixed(Exp2FixedParameters(output=24, rounding="down")).y.shape()
    unsigned(24)
    >>> Exp2Fixed(Exp2FixedParameters(output=24, rounding="up")).y.shape()
    unsigned(25)
    """

    summary = "Lower or upper bound of 2^-x in fixed point"
    source = "ToPick, section III"

    def operation(self) -> Ports:
        p = self.parameters
        x = FixedPoint(unsigned(p.integer + p.fraction), p.fraction)
        return {
            "x": wire_in(x, "Exponent, negated: the result is 2^-x."),
            "y": wire_out(
                FixedPoint(unsigned(p.result_width), p.output), "Only round-up results reach 1."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, cut = self.parameters, self.registers(m)
        # x = n + f: f indexes the tables, n is the right shift.
        n = self.x[p.fraction :]

        def cut_tables(**outputs):
            """Registers at the tables' outputs, which `n` passes too."""
            nonlocal n
            *registered, n = cut("tables", **outputs, shift=n)
            return registered

        # 2^-(n + f) = 2^-f 2^-n: a table of one octave, and a shift by the integer part.
        table = fit(significands(p.fraction, p.precision))
        below = table.read(m, self.x[: p.fraction], cut_tables)
        below, n = cut("significand", significand=below, shift=n)

        # Rounding up uses the significand plus one. With ones shifted in below the significand, the
        # one is added after the shift: ceil(k / 2^n) = floor((k - 1) / 2^n) + 1.
        tail = p.output - p.precision
        up = p.rounding == "up"
        shifted = Signal(p.output)
        m.d.comb += shifted.eq(Cat(Const(-int(up), tail), below) >> n)
        result = Signal(p.result_width)
        m.d.comb += result.eq(shifted + 1 if up else shifted)
        m.d.comb += self.y.eq(cut("result", result=result))
        return m
