"""Division of floating-point numbers."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, signed

from hw.arith.datapath import Datapath
from hw.arith.reciprocal import double_reciprocal
from hw.arith.special_values import classify, normalised, select_result
from hw.arith.tables.multipartite import Field, Multipartite, TableParameters
from hw.ports import Ports, wire_in, wire_out

TABLES = {
    "fp16": Multipartite(10, 6, (Field(5, 2, 4), Field(4, 0, 2)), 7, 3, True),
    "bf16": Multipartite(7, 5, (Field(3, 0, 2),), 4, 2, True),
    "fp8_e4m3": Multipartite(3, 3, (), -1, 3, True),
    "fp8_e5m2": Multipartite(2, 2, (), -1, 2, True),
}


@dataclasses.dataclass(frozen=True)
class DivideParameters(TableParameters):
    CUTS: ClassVar = (
        (),
        ("result",),
        ("factors", "result"),
        ("factors", "product", "result"),
        ("normal", "factors", "product", "result"),
    )


class Divide(Datapath[DivideParameters]):
    """``o`` = ``a`` / ``b``.

    Both operands are normalised. Tables give the reciprocal of b's significand with a relative
    error below 2^-(p + 1), where p is the precision, and one multiplication gives the quotient,
    less than half a unit off before it is rounded. A comparison of the significands tells in
    advance whether the quotient is below one, and so at which bit to round::

        a >= b:   1 . m m … m m | r …        significand from bit `dropped` + 1
        a < b:    0 . 1 m … m m m | r …      significand from bit `dropped`

    Quotients below the normal numbers are shifted right and truncated.

    Accuracy, over all operands: at most 0.931 units in the last place for FP16, 0.879 for BF16,
    0.572 for FP8 E4M3 and 0.600 for FP8 E5M2; in subnormal results, which are truncated, less than
    one unit. Quotients that are numbers of the format are exact. 0 / 0 and inf / inf are NaN, x / 0
    is infinity, or NaN in a format without infinities. With `flush_subnormals`, subnormal operands
    count as zeros of their sign, and a result whose rounded value is subnormal becomes zero.

    Latency: `stages`. Throughput: one result per cycle.

    Examples
    --------
    >>> from hw.arith.divide import Divide, DivideParameters
    >>> unit = Divide(DivideParameters(format="fp16", stages=4))
    >>> unit.parameters.cycles(operations=1000)  # pipelined, one quotient per cycle
    1004
    """

    summary = "Quotient, error below one unit in the last place"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        fmt = p.float_format
        return {
            "a": wire_in(fmt, "Dividend."),
            "b": wire_in(fmt, "Divisor."),
            "o": wire_out(fmt, "Quotient."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        fmt, table = self.parameters.float_format, TABLES[self.parameters.format]
        flush = self.parameters.flush_subnormals
        (of_a, a, a_exponent), (of_b, b, b_exponent) = self._operands(m)
        nan = Signal()
        infinite = Signal()
        zero = Signal()
        m.d.comb += [
            nan.eq(of_a.nan | of_b.nan | of_a.zero & of_b.zero | of_a.infinite & of_b.infinite),
            infinite.eq(of_a.infinite | of_b.zero),
            zero.eq(of_a.zero | of_b.infinite),
        ]
        flags = Cat(self.a[-1] ^ self.b[-1], nan, infinite, zero)
        a, b, a_exponent, b_exponent, flags = cut(
            "normal", a=a, b=b, a_exponent=a_exponent, b_exponent=b_exponent, flags=flags
        )

        # a / b = a (1 / b): the table's reciprocal has enough bits that the product is within the
        # stated error, in a few stages where a digit recurrence takes one step for each bit.
        reciprocal = Signal(table.width + table.guard + 1)
        m.d.comb += reciprocal.eq(sum(table.terms(m, double_reciprocal, b), 0))
        # Whether the quotient of the significands is at least one.
        is_one = Signal()
        m.d.comb += is_one.eq(a >= b)
        # One less than the result's field, for the significand below adds its leading one.
        field = Signal(signed(fmt.exponent + 3))
        m.d.comb += field.eq(a_exponent - b_exponent + (fmt.bias - 2) + is_one)
        a, reciprocal, is_one, field, flags = cut(
            "factors", a=a, reciprocal=reciprocal, is_one=is_one, field=field, flags=flags
        )

        # The quotient with half a unit added, which is one bit lower where it is below one.
        dropped = len(reciprocal) - 1
        product = Signal(len(reciprocal) + fmt.mantissa + 1)
        half = Mux(is_one, 1 << dropped, 1 << dropped - 1)
        m.d.comb += product.eq(Cat(a, 1) * reciprocal + half)
        significand = Signal(fmt.mantissa + 2)
        m.d.comb += significand.eq(Mux(is_one, product >> dropped + 1, product >> dropped))
        significand, field, flags = cut(
            "product", significand=significand, field=field, flags=flags
        )

        # A result below the normal numbers is shifted right by -field, and to zero beyond that.
        is_small = Signal()
        is_large = Signal()
        m.d.comb += is_small.eq(field[-1])
        m.d.comb += is_large.eq(field >= fmt.largest >> fmt.mantissa)
        # Small results are shifted after the product, so the product's path has no shifter.
        distance = Signal(len(field) - 1)
        m.d.comb += distance.eq(-field)
        levels = (fmt.mantissa + 1).bit_length()
        lost = distance[1:].any() if flush else distance[levels:].any()
        shift = Signal(levels)
        m.d.comb += shift.eq(Mux(is_small, distance[:levels], 0))
        shifted = Signal(len(significand))
        m.d.comb += shifted.eq(significand >> shift)
        is_zero = is_small & ~shifted[fmt.mantissa]
        quotient = Mux(is_zero, 0, shifted) if flush else shifted
        # The significand's leading one, added to the exponent, makes the field: so a carry of
        # rounding needs no separate case.
        magnitude = Signal(fmt.width)
        start = Mux(is_small, 0, field[: fmt.exponent])
        m.d.comb += magnitude.eq(quotient + (start << fmt.mantissa))
        # Without infinities, rounding can also reach the code of NaN.
        overflows = is_large if fmt.infinities else is_large | (magnitude >= fmt.overflow)

        sign, nan, infinite, zero = flags
        result = select_result(
            m,
            fmt,
            Cat(magnitude[:-1], sign),
            sign=sign,
            nan=nan,
            overflow=infinite | overflows & ~zero,
            zero=zero | is_small & lost,
        )
        m.d.comb += self.o.eq(cut("result", o=result))
        return m

    def _operands(self, m: Module) -> list[tuple]:
        """Class, significand without its leading one, and exponent of each operand."""
        fmt, flush = self.parameters.float_format, self.parameters.flush_subnormals
        operands = []
        for name, x in (("a", self.a), ("b", self.b)):
            of = classify(m, x, fmt, flush, name)
            subnormal = None if flush else of.subnormal
            operands.append((of, *normalised(m, x, fmt, subnormal, name=name)))
        return operands
