"""Binary logarithms of integers, as lower or upper bounds of the true value."""

import dataclasses
import functools
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.exp2_fixed import DIGITS, DIRECTIONS
from hw.arith.tables.split_table import fit
from hw.layout import FixedPoint, integer
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class Log2FixedParameters(DatapathParameters):
    """
    width
        Bits of the operand.
    precision
        Bits of the operand below its leading one that index the tables.
    output
        Fraction bits of the result.
    rounding
        ``down`` or ``up``.
    """

    width: int = 32
    precision: int = 10
    output: int = 10
    rounding: str = "down"

    CUTS: ClassVar = ((), ("result",), ("normal", "result"), ("normal", "tables", "result"))

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.width <= 62, "width must be between 2 and 62", self.width)
        most = min(14, self.width - 1)
        rule = f"precision must be between 1 and {most}"
        require(1 <= self.precision <= most, rule, self.precision)
        require(1 <= self.output <= 24, "output must be between 1 and 24", self.output)
        require(self.rounding in DIRECTIONS, "rounding must be down or up", self.rounding)

    @property
    def truncates(self) -> bool:
        """Whether an operand may have bits below those that index the tables."""
        return self.width - 1 > self.precision

    @property
    def result_width(self) -> int:
        """Rounding up may reach the integer `width`."""
        reached = self.width - 1 + (self.rounding == "up")
        return reached.bit_length() + self.output

    @classmethod
    def presets(cls) -> dict[str, "Log2FixedParameters"]:
        return {
            "small": cls(width=8, precision=4, output=5),
            "default": cls(),
            "up": cls(rounding="up"),
            "pipelined": cls(stages=2),
            "up_pipelined": cls(rounding="up", stages=2),
        }


@functools.cache
def logarithms(precision: int, output: int, rounding: str, truncates: bool) -> tuple[int, ...]:
    """For each m, log2(1 + m / 2^precision) in units of 2^-output, rounded.

    The bits truncated from m count as zero when rounding down, as one unit of m when rounding up.
    """
    up = rounding == "up"
    first = int(up and truncates)
    whole = 1 << precision
    with localcontext() as context:
        context.prec = DIGITS
        unit = Decimal(1 << output) / Decimal(2).ln()
        inner = [
            int(
                (unit * (1 + Decimal(m) / whole).ln()).to_integral_value(
                    ROUND_CEILING if up else ROUND_FLOOR
                )
            )
            for m in range(1, whole)
        ]
    # At both ends the logarithm is an integer, which decimal arithmetic might not return exactly.
    return tuple([0, *inner, 1 << output][first : first + whole])


class Log2Fixed(Datapath[Log2FixedParameters]):
    """log2(x) of an unsigned integer, as a fixed-point number.

    x is shifted to its leading one, x = 2^e (1 + m 2^-p + t) with p = `precision` bits in m and the
    remainder t in [0, 2^-p); the logarithm of the significand comes from tables that are exact at
    every m (:mod:`hw.arith.tables.split_table`). In units of the result's last place, u =
    2^-output:

        down:  y = e + floor(log2(1 + m 2^-p) / u) u
        up:    y = e + ceil(log2(1 + (m + 1) 2^-p) / u) u     (m itself where t is always 0)

    Accuracy: down does not exceed log2(x), up is not below it, and both are off by less than
    u + log2(1 + 2^-p), or u where no operand has a remainder. Both are monotonic. Every x is valid;
    0 counts as 1. For a fixed-point operand, subtract the number of its fraction bits.

    ::

        x       | 0 … 0 | 1 | m (precision) | t … |
        y               | e | log2(1 + m 2^-p)    |

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    The logarithm of a 32-bit number has 5 integer bits:

    >>> from hw.arith.log2_fixed import Log2Fixed, Log2FixedParameters
    >>> unit = Log2Fixed(Log2FixedParameters(width=32, output=10))
    >>> unit.y.shape()
    unsigned(15)
    """

    summary = "Lower or upper bound of log2 of an integer, in fixed point"
    source = "ToPick, section III"

    def operation(self) -> Ports:
        p = self.parameters
        y = FixedPoint(unsigned(p.result_width), p.output)
        return {
            "x": wire_in(integer(p.width), "Operand, an integer."),
            "y": wire_out(y, "Logarithm of x to base 2."),
        }

    def elaborate(self, platform):
        m = Module()
        p, cut = self.parameters, self.registers(m)
        # Leading-one detection and shift together: each level shifts by half of the word if its
        # upper half is zero, and the tests are the bits of e.
        levels = (p.width - 1).bit_length()
        exponent = Signal(levels)
        normal = Signal(1 << levels, name="operand")
        m.d.comb += normal.eq(self.x)
        # log2(2^e m) = e + log2(m): e is the position of the leading one, and only m in [1, 2)
        # needs a table.
        for level in reversed(range(levels)):
            half = 1 << level
            shifted = Signal(1 << levels, name=f"shifted_{half}")
            m.d.comb += exponent[level].eq(normal[-half:].any())
            m.d.comb += shifted.eq(Mux(exponent[level], normal, normal << half))
            normal = shifted
        # m: the bits below the leading one.
        fraction = Signal(p.precision)
        m.d.comb += fraction.eq(normal[-1 - p.precision : -1])
        fraction, exponent = cut("normal", fraction=fraction, exponent=exponent)

        # The table decides where its registers are; what accompanies it must pass the same ones.
        def cut_tables(**outputs):
            """Registers at the tables' outputs, which the exponent passes too."""
            nonlocal exponent
            *registered, exponent = cut("tables", **outputs, exponent=exponent)
            return registered

        values = logarithms(p.precision, p.output, p.rounding, p.truncates)
        logarithm = fit(values).read(m, fraction, cut_tables)
        # Only rounding up carries into the integer part.
        carry = logarithm[p.output :]
        result = Signal(p.result_width)
        m.d.comb += result.eq(Cat(logarithm[: p.output], exponent + carry))
        m.d.comb += self.y.eq(cut("result", result=result))
        return m
