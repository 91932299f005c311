"""Floating-point multiplication and addition with one rounding."""

import dataclasses
from typing import ClassVar, Self

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.bits.leading_zeros import leading_one
from hw.arith.bits.partial_products import Bit, Columns, reduce_columns, rows
from hw.arith.datapath import Datapath, FloatParameters, namer
from hw.arith.float_format import FloatFormat, find_format
from hw.arith.multiply_add_stages import Addends, Normal, Operand, Signs, Sum, unpacked
from hw.component import on_fpga
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class FloatMultiplyAddParameters(FloatParameters):
    __doc__ = (
        (FloatParameters.__doc__ or "")
        + """sum_format
        Format of the addend and the result; the product's if empty.
    """
    )

    CUTS: ClassVar[tuple[tuple[str, ...], ...]] = (
        (),
        ("result",),
        ("sum", "result"),
        ("product", "sum", "result"),
        ("product", "sum", "normal", "result"),
    )

    sum_format: str = ""

    def __post_init__(self):
        super().__post_init__()
        find_format(self.sum_format or self.format)

    @property
    def float_sum_format(self) -> FloatFormat:
        return find_format(self.sum_format or self.format)

    @classmethod
    def presets(cls) -> dict[str, Self]:
        return {**super().presets(), "fp16_fp32": cls(sum_format="fp32")}


class FloatMultiplyAdd(Datapath[FloatMultiplyAddParameters]):
    """``o = a b + c``, rounded once.

    Latency: `stages`, 0 to 4. Throughput: one result per cycle. Accuracy: correctly rounded (0.5
    ulp) to nearest even, with subnormals, signed zeros (x - x = +0) and infinities; every NaN is
    the format's one quiet NaN. In a format without infinities, what is too large becomes that NaN.

    With `flush_subnormals` a subnormal operand is a zero of its sign, and so is a result that is
    subnormal after rounding to the full format.

    Technique: the addend is aligned to the product while the product is computed, and added to it
    in carry-save form (Hokenek, Montoye and Cook, 1990). With n bits of precision of a and b, and
    q bits of c, and bits numbered by their weight::

        weight         top = 2n+1+q        2n         0         bottom
        c, unshifted   | c (q) |
        c, aligned     | upper              | middle   | lower    | lost → sticky
        product                             | row 0    |
                                          + | row 1    |
        high window    | 2q + 3 bits           |                     leading one: c's
        low window                      |   | product  | lower    |  else

    What keeps it small and fast:

    - Significands are multiplied as they are, with a hidden bit of zero where subnormal.
    - With opposite signs the sum is a b + ~c = a b - c - 1. If it is negative, its complement
      c - a b is the magnitude. If not, rounding adds the missing one: normalising shifts in ones,
      and as these and the bits below the last place are all ones or not, the one carries to the
      last place, makes a tie or makes no difference. So no incrementer is needed between adder
      and rounding, and only the kept bits are inverted.
    - The sum has two windows. If c is above the product, the leading one of the sum is at c's
      position or next to it; otherwise the sum fits into the low window. The exponents alone select
      the window, before normalisation.
    - Leading zeros of the low window are counted in parallel with the addition, exactly or one too
      few (Schmookler and Nowka 2001). A one at the bit position where the exponent reaches its
      lowest value ends the count for subnormal results.
    - The exponent field is the exponent minus the count, plus the sum's bit at the position that
      the count found: the last shift by one needs no second subtraction.

    Examples
    --------
    FP16 products summed in FP32:

    >>> from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
    >>> parameters = FloatMultiplyAddParameters(format="fp16", sum_format="fp32", stages=3)
    >>> unit = FloatMultiplyAdd(parameters)
    >>> unit.a.shape(), unit.c.shape(), unit.o.shape()
    (unsigned(16), unsigned(32), unsigned(32))
    """

    summary = "Fused multiply-add with one rounding, also into a wider format"
    source = "library"

    def __init__(self, parameters: FloatMultiplyAddParameters):
        self._narrow = narrow = parameters.float_format
        self._wide = wide = parameters.float_sum_format
        self._flush = parameters.flush_subnormals
        self._above = 2 * narrow.precision
        self._top = self._above + 1 + wide.precision
        self._bottom = self._lowest_weight()
        super().__init__(parameters)

    def operation(self) -> Ports:
        p = self.parameters
        narrow, wide = p.float_format, p.float_sum_format
        return {
            "a": wire_in(narrow, "First factor."),
            "b": wire_in(narrow, "Second factor."),
            "c": wire_in(wide, "Addend."),
            "o": wire_out(wide, "a b + c, rounded once."),
        }

    def _lowest_weight(self) -> int:
        """Weight of the lowest bit that is kept; lower ones only make the sticky bit.

        If a or b is normal, the sum's leading one is at most one below the product's, unless the
        addend is close and so ends further up. If both are subnormal, the product may be as small
        as 1, but the smallest exponent also limits the weight of the result's last bit.
        """
        narrow, precision = self._narrow, self._wide.precision
        leading = narrow.mantissa * (2 if self._flush else 1)
        weight = leading - 1 - precision
        if not self._flush:
            smallest = 2 * narrow.mantissa - 1 + 2 * narrow.bias - self._wide.bias
            weight = min(weight, max(smallest, -1) - precision)
        return min(weight, 0)

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        a = unpacked(m, "a", self.a, self._narrow, self._flush)
        b = unpacked(m, "b", self.b, self._narrow, self._flush)
        c = unpacked(m, "c", self.c, self._wide, self._flush)
        # Stage 1: product in carry-save form; the addend aligned meanwhile.
        signs = self._signs(m, a, b, c)
        addends = cut.record("product", self._product(m, platform, a, b, c, signs.subtract))
        signs = cut.record("product", signs)
        # Stage 2: sum, and its leading zeros in parallel.
        total = cut.record("sum", self._sum(m, addends, signs.subtract))
        signs = cut.record("sum", signs)
        # Stage 3: normalisation.
        normal = cut.record("normal", self._normal(m, total, signs.subtract))
        signs = cut.record("normal", signs)
        # Stage 4: rounding.
        m.d.comb += self.o.eq(cut("result", result=self._rounded(m, normal, signs)))
        return m

    def _product(
        self, m: Module, platform, a: Operand, b: Operand, c: Operand, subtract
    ) -> Addends:
        """Product and aligned addend."""
        shift, distances = self._distances(m, a, b, c)
        aligned = self._aligned(m, c.significand, shift, subtract)
        middle = aligned.pop("middle")
        row_0: Value
        row_1: Value
        if on_fpga(platform):
            # A carry chain adds the two; there is no row of adders to save.
            product = Signal(self._above, name="whole_product")
            m.d.comb += product.eq(a.significand * b.significand)
            row_0, row_1 = product, Cat(middle, Const(0, 1))
        else:
            row_0, row_1 = self._carry_save(m, a.significand, b.significand, middle)
        return Addends(row_0, row_1, **aligned, **distances)

    def _signs(self, m: Module, a: Operand, b: Operand, c: Operand) -> Signs:
        """Signs of the operation and of its result, and special results."""
        named = namer(m)
        sign = named("product_sign", a.sign ^ b.sign)
        infinite = named("product_infinite", a.infinite | b.infinite)
        subtract = named("subtract", sign ^ c.sign)
        nan = a.nan | b.nan | c.nan | (a.infinite & b.zero) | (b.infinite & a.zero)
        nan = named("nan", nan | (infinite & c.infinite & subtract))
        return Signs(
            subtract=subtract,
            nan=nan,
            infinite=named("infinite", infinite | c.infinite),
            sign=named("sign", Mux(c.infinite, c.sign, sign)),
            sign_negative=named("sign_negative", Mux(infinite, sign, c.sign)),
        )

    def _distances(
        self, m: Module, a: Operand, b: Operand, c: Operand
    ) -> tuple[Value, dict[str, Value]]:
        """The addend's right shift, and the fields of :class:`Addends` that exponents determine."""
        named = namer(m)
        precision = self._wide.precision
        bias = self._wide.bias - 2 * self._narrow.bias
        most = 2 * (1 << self._narrow.exponent) - 3 + bias + precision + 3
        width = max(most.bit_length(), self._wide.exponent) + 2
        # distance = exponent of a b - exponent of c + constant, in one carry-save adder and one
        # carry chain, because it is on the critical path. -c is ~c + 1.
        constant = bias + precision + 3 + 1 - (1 << self._wide.exponent)
        columns = [[Bit(0.0, Const(1, 1))] * (constant >> n & 1) for n in range(width)]
        for exponent in (a.exponent, b.exponent, ~c.exponent):
            for column, bit in zip(columns, exponent, strict=False):
                column.append(Bit(1.0, bit))
        first, second = rows(reduce_columns(m, columns, 2))
        distance = named("distance", (first + second)[:width])
        # The addend is far above the product, or the product is zero: no shift.
        far = named("far", distance[-1] | a.zero | b.zero)
        shift = named("shift", distance[: most.bit_length()] & ~far.replicate(most.bit_length()))
        near = shift[: precision.bit_length()]  # the shift, if the high window is selected
        high = named("high", shift <= precision)
        budget_low = named("budget_low", (a.exponent + b.exponent + bias + 2)[: width - 2])
        budget_high = named("budget_high", c.exponent + near)
        # High window: the leading one is c's, `near` bits from the top, or one bit above it
        # where nothing cancels.
        count = near + (self.c[-1] ^ self.a[-1] ^ self.b[-1] | ~c.normal)
        return shift, {
            "high": high,
            "budget_low": budget_low,
            "budget": named("budget", Mux(high, budget_high, budget_low)[: width - 2]),
            "count_high": named("count_high", count),
        }

    def _aligned(self, m: Module, addend: Value, shift: Value, subtract: Value) -> dict[str, Value]:
        """The addend, inverted if subtracted, shifted right, and cut at the product's ends.

        ::

            | upper: above the product | middle: the product's bits | lower | lost: any bit below
        """
        named = namer(m)
        size = self._top - self._bottom + 1
        # The word grows with each level of the shifter, up to `size` bits.
        bits, lost = named("addend", addend ^ subtract.replicate(len(addend))), Const(0, 1)
        for level, by in enumerate(shift):
            distance = 1 << level
            if distance >= size:
                break
            moved = Cat(bits, subtract.replicate(distance))
            stays = Cat(subtract.replicate(distance), bits)
            over = max(0, len(moved) - size)
            if over:
                inverted = subtract.replicate(over)
                lost = named(f"lost_{level}", lost | (by & (moved[:over] ^ inverted).any()))
            bits = named(f"aligned_{level}", Mux(by, moved[over:], stays[over:]))
        # Longer shifts than the word has bits shift everything out.
        beyond = [by for level, by in enumerate(shift) if 1 << level >= size]
        if beyond:
            beyond = named("beyond", Cat(beyond).any())
            lost = named("lost", lost | (beyond & (bits ^ subtract.replicate(size)).any()))
            bits = named("aligned", Mux(beyond, subtract.replicate(size), bits))
        return {
            "lost": lost,
            "lower": bits[: -self._bottom],
            "middle": bits[-self._bottom : self._above - self._bottom],
            "upper": bits[self._above - self._bottom :],
        }

    def _carry_save(self, m: Module, x: Value, y: Value, addend: Value) -> tuple[Value, Value]:
        """Product plus addend as two rows; the addend arrives late and enters the last adders."""
        named = namer(m)
        columns: Columns = [[] for _ in range(self._above)]
        for i, p in enumerate(x):
            for j, q in enumerate(y):
                columns[i + j].append(Bit(0.5, named(f"partial_{i}_{j}", p & q)))
        first, second = rows(reduce_columns(m, columns, 2))
        first, second = named("product_0", first), named("product_1", second)
        half = named("product_half", first ^ second)
        carries = (Mux(h, c, p) for h, c, p in zip(half, addend, first, strict=True))
        return named("row_0", half ^ addend), named("row_1", Cat(0, *carries))

    def _predicted(self, m: Module, v: Addends, subtract: Value) -> Value:
        """The left shift: to the leading one or one bit less, at most to the smallest exponent.

        Leading-zero anticipation: the digits of both rows, before they are added, show where the
        leading one or zero of the sum can be. In each position ``ones``, ``zeros`` or ``mixed``.
        """
        named = namer(m)
        first = Cat(v.lost ^ subtract, v.lower, v.row_0, v.upper[0], subtract)
        second = Cat(Const(0, 1 - self._bottom), v.row_1, Const(0, 1))
        size = len(first)
        first, second = named("digits_0", first), named("digits_1", second)
        ones = named("digit_ones", first & second)
        zeros = named("digit_zeros", ~(first | second))
        mixed = named("digit_mixed", first ^ second)
        leading = []
        for n in range(size):
            above = mixed[n + 1] if n + 1 < size else subtract
            zero, one = (zeros[n - 1], ones[n - 1]) if n else (Const(1, 1), Const(0, 1))
            begins = Mux(ones[n], ~zero, zeros[n] & ~one)
            continues = Mux(zeros[n], ~zero, ones[n] & ~one)
            leading.append(Mux(above, begins, continues))
        # The budget as a one at its bit position, counted from the top, ends the search.
        levels = (size - 1).bit_length()
        limited = ~v.budget_low[levels:].any()
        limit = named("limit", (limited << v.budget_low[:levels])[:size])
        word = named("leading", Cat(leading) | limit[::-1])
        position = leading_one(m, word, "predicted")
        return named("count", Mux(v.high, v.count_high, ~position))

    def _sum(self, m: Module, v: Addends, subtract: Value) -> Sum:
        """The sum in the selected window, and its leading zeros."""
        named = namer(m)
        total = named("total", v.row_0 + v.row_1)
        # The bits above the product only need an incrementer.
        carry = named("carry", total[self._above])
        upper = named("upper_sum", Mux(carry, (v.upper + 1)[: len(v.upper)], v.upper))
        bits = named(
            "bits",
            Cat(v.lost ^ subtract, v.lower, total[: self._above], upper, subtract),
        )
        low = bits[: self._above + 2 - self._bottom + 1]
        # The high window: all bits above the product, and below them as many as are kept.
        width = max(len(low), 2 * self._wide.precision + 3)
        windows = [Cat(subtract.replicate(width - len(low)), low), bits[-width:]]
        over = bits[:-width] ^ subtract.replicate(len(bits) - width)
        return Sum(
            window=named("window", Mux(v.high, windows[1], windows[0])),
            sticky=named("sticky", v.high & over.any()),
            negative=named("negative", subtract & ~(carry & v.upper.all())),
            count=self._predicted(m, v, subtract),
            budget=v.budget,
        )

    def _normal(self, m: Module, v: Sum, subtract: Value) -> Normal:
        """The leading one moved to the top bit, and the exponent field before rounding.

        ::

            window      | 0 … 0 | 1 | …                              |
            shifted     | 1 | fraction (q - 1) | half | sticky …     |
        """
        named = namer(m)
        precision, window, sticky = self._wide.precision, v.window, v.sticky
        for level in reversed(range(len(v.count))):
            distance = 1 << level
            moved = Cat(subtract.replicate(distance), window[:-distance])
            window = named(f"moved_{level}", Mux(v.count[level], moved, window))
            # Bits that the remaining shifts cannot move into the kept ones become sticky.
            over = max(0, len(window) - precision - 1 - distance)
            if over:
                ones = (window[:over] ^ subtract.replicate(over)).any()
                sticky = named(f"sticky_{level}", sticky | ones)
                window = window[over:]
        # The count may be one too few: `more` shifts by one bit if the smallest exponent allows it.
        left = named("budget_left", (v.budget - v.count)[: len(v.budget)])
        first, second = window[-1] ^ v.negative, window[-2] ^ v.negative
        first = named("first", first)
        more = named("more", ~first & left.any())
        sticky = named("sticky", sticky | (~more & (window[0] ^ subtract)))
        # A sum of zero has no leading one, and a field of zero.
        field = named("field", ((left & (first | second).replicate(len(left))) + first))
        return Normal(
            kept=named("kept", Mux(more, window[:-1], window[1:])),
            sticky=sticky,
            field=field[: len(left)],
            negative=v.negative,
        )

    def _rounded(self, m: Module, v: Normal, signs: Signs) -> Value:
        """The result's bits."""
        named = namer(m)
        fmt = self._wide
        bits = named("bits", v.kept ^ v.negative.replicate(len(v.kept)))
        half, last = bits[0], bits[1]
        # A difference that is not negative still lacks a one in the last place (see above).
        one_short = signs.subtract & ~v.negative
        up = Mux(one_short, half | (~v.sticky & last), half & (v.sticky | last))
        # Exponent and fraction in one incrementer: a carry out of the fraction is right.
        rounded = named("rounded", Cat(bits[1:-1], v.field) + named("up", up))
        magnitude = rounded[: fmt.width - 1]
        if self._flush:
            normal = named("normal", magnitude[fmt.mantissa :].any())
            magnitude = magnitude & normal.replicate(fmt.width - 1)
        if fmt.infinities:
            over = v.field >= (1 << fmt.exponent) - 1
        else:
            over = rounded[fmt.width - 1 :].any()
        over = named("over", over | signs.infinite)
        magnitude = Mux(signs.nan, fmt.quiet_nan, Mux(over, fmt.overflow, magnitude))
        magnitude = named("magnitude", magnitude[: fmt.width - 1])
        plus = signs.nan if fmt.infinities else magnitude.all()
        # Equal magnitudes: a difference of all ones, whose complement is plus zero.
        zero = named("is_zero", v.negative & ~v.sticky & ~bits.any() & ~signs.infinite)
        sign = Mux(v.negative, signs.sign_negative & ~zero, signs.sign)
        return Cat(magnitude, sign & ~plus)
