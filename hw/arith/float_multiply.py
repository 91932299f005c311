"""Floating-point multiplication, correctly rounded, with subnormals."""

import dataclasses
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.bits.partial_products import pack, product_columns, reduce_columns, rows, unpack
from hw.arith.datapath import Datapath, FloatParameters, namer
from hw.ports import Ports, wire_in, wire_out

GROUP = 3  # bits that a rounding carry ripples through; whole groups of ones are skipped


@dataclasses.dataclass(frozen=True)
class FloatMultiplyParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros of their sign, and so does a result that is
        subnormal after rounding; one that rounds up to the smallest normal number is kept.
    stages
        0 to 4.
    """

    CUTS: ClassVar[tuple[tuple[str, ...], ...]] = (
        (),
        ("result",),
        ("product", "result"),
        ("reduced", "window", "result"),
        ("partial", "product", "window", "result"),
    )


@dataclasses.dataclass(frozen=True)
class Operands:
    """Properties of the two operands.

    leading_zeros
        Number of leading zeros of the subnormal operand, if there is one.
    nonzero
        No operand is zero, and at most one is subnormal: else the product is below half of the
        smallest subnormal number.
    unshifted
        Exponent field of the result minus one, if no operand is subnormal.
    special
        An operand is infinite or NaN.
    """

    leading_zeros: Value
    nonzero: Value
    unshifted: Value
    special: Value
    nan: Value
    sign: Value


@dataclasses.dataclass(frozen=True)
class Exponent:
    """Exponent of the result, before the product is known.

    field
        Exponent field of the result, less one or two.
    over, at_edge
        The result is too large in any case, or if the window is 2 or more.
    levels
        Multiplexer control of each level of the funnel shifter; with flushed subnormals instead
    cleared
        The result is zero, infinite or NaN in any case, and
    nearly_normal
        half of the smallest normal number or more, so that it may round up to that.
    """

    field: Value
    over: Value
    at_edge: Value
    nan: Value
    sign: Value
    levels: Any = None
    cleared: Any = None
    nearly_normal: Any = None


@dataclasses.dataclass(frozen=True)
class Window:
    """The shifted product; `ones` has a bit for each group of bits that are all ones."""

    window: Value
    sticky: Value
    ones: Value
    field: Value
    over: Value
    at_edge: Value
    nan: Value
    sign: Value
    nearly_normal: Any = None


class FloatMultiply(Datapath[FloatMultiplyParameters]):
    """o = a b, rounded to nearest even.

    Latency: `stages`. Throughput: one product per cycle. Accuracy: correctly rounded, subnormals
    and signed zeros included; every NaN is the format's quiet NaN. No exception flags.

    Technique: significands are multiplied as they are, with a hidden bit of zero where subnormal.
    In parallel with the multiplication, the exponents and the leading zeros of the operands give
    the shift of the product: left by the leading zeros of the one subnormal operand (with two, only
    a sticky bit is left), or right by the distance to the smallest exponent. Either is one number
    from -2^k to 2^k - 1, which in offset binary controls a funnel shifter of k + 1 levels. It keeps
    `mantissa` + 3 bits::

        product           | i i | f f f … f f | f f … f |
        window, 1 to 2    | 0 1 | mantissa    | h |      sticky
        window, 2 to 4    | 1 m | mantissa    | h |      the last bit is one higher

    The window is rounded before it is known which of the two cases it is: one carry, which enters
    at bit 2, serves both. The carry skips groups of bits that are all ones, which are detected in
    parallel with the last level of the shifter. The exponent is its smallest possible value, plus
    one or two depending on the window's highest bits after rounding.

    Infinities, NaNs and results that are too large in any case shift out the whole product, and
    shift in the constant bits of the result from above it.

    Examples
    --------
    >>> from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
    >>> pipelined = FloatMultiplyParameters.preset("fp16_pipelined")
    >>> pipelined.latency, pipelined.cycles(operations=64)
    (2, 66)
    >>> FloatMultiply(pipelined).enable.init  # always enabled unless connected
    1
    """

    summary = "Floating-point product, correctly rounded, with subnormals"
    source = "library"

    def __init__(self, parameters: FloatMultiplyParameters):
        self._format = parameters.float_format
        self._flush = parameters.flush_subnormals
        super().__init__(parameters)

    def operation(self) -> Ports:
        fmt = self._format
        return {
            "a": wire_in(fmt, "First factor."),
            "b": wire_in(fmt, "Second factor."),
            "o": wire_out(fmt, "Product."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        # Partial products; columns of bits are registered as one value each.
        significands, operands = self._operands(m)
        columns = reduce_columns(m, product_columns(m, platform, *significands), 4)
        columns = unpack(columns, cut("partial", columns=pack(columns)))
        operands = cut.record("partial", operands)
        # Two rows.
        columns = reduce_columns(m, columns, 2)
        exponent = self._exponent(m, operands)
        columns = unpack(columns, cut("reduced", columns=pack(columns)))
        exponent = cut.record("reduced", exponent)
        # Product.
        addends = rows(columns)
        product = Signal(len(addends[0]), name="product")
        m.d.comb += product.eq(addends[0] + addends[1])
        product = cut("product", product=product)
        exponent = cut.record("product", exponent)
        # Shift, then rounding.
        window = (self._fixed if self._flush else self._shifted)(m, product, exponent)
        window = cut.record("window", window)
        m.d.comb += self.o.eq(cut("result", result=self._rounded(m, window)))
        return m

    def _operands(self, m: Module) -> tuple[list, Operands]:
        """Both significands, and properties of the operands."""
        fmt = self._format
        named = namer(m)
        fractions = [port[: fmt.mantissa] for port in (self.a, self.b)]
        fields = [port[fmt.mantissa : -1] for port in (self.a, self.b)]
        hidden = [named("hidden_a", fields[0].any()), named("hidden_b", fields[1].any())]
        normal = hidden[0] & hidden[1]
        leading_zeros: Value
        if self._flush:
            leading_zeros, nonzero = Const(0, 1), named("nonzero", normal)
        else:
            # The fraction of a subnormal operand, because a normal one's is set to ones. If
            # both are normal, a leading one makes the count zero.
            filled = [f | h.replicate(fmt.mantissa) for f, h in zip(fractions, hidden, strict=True)]
            digits = named("subnormal", Cat(filled[0] & filled[1], normal))
            leading_zeros, nonzero = _leading_zeros(m, list(reversed(digits)))
        if fmt.infinities:
            highest = [named("highest_a", fields[0].all()), named("highest_b", fields[1].all())]
            special = named("special", highest[0] | highest[1])
            nans = [top & f.any() for top, f in zip(highest, fractions, strict=True)]
            nan = named("nan", nans[0] | nans[1] | (special & ~nonzero))
        else:
            nan = special = named("nan", self.a[:-1].all() | self.b[:-1].all())
        # A subnormal number has the exponent of the smallest normal one.
        scales = [Cat(e[0] | ~h, e[1:]) for e, h in zip(fields, hidden, strict=True)]
        total = named("total", scales[0] + scales[1])
        # Exponent field minus one, if the product of the significands is between 1 and 2. That is
        # total - (bias + 1), and bias + 1 a power of two, so that only the two highest bits change.
        *low, bit, carry = total
        high = Cat(~bit, bit ^ ~carry, ~(bit | carry))
        unshifted = named("unshifted", Cat(*low, high).as_signed())
        significands = [Cat(f, h) for f, h in zip(fractions, hidden, strict=True)]
        sign = self.a[-1] ^ self.b[-1]
        return significands, Operands(leading_zeros, nonzero, unshifted, special, nan, sign)

    def _exponent(self, m: Module, v: Operands) -> Exponent:
        """The exponent field of the result, less one or two, and the shift of the product."""
        fmt = self._format
        named = namer(m)
        exponent = Signal(signed(fmt.exponent + 2))
        m.d.comb += exponent.eq(v.unshifted - v.leading_zeros)
        # Above `edge` the result is too large in any case; at it, if the window is 2 or more.
        edge = (1 << fmt.exponent) - (3 if fmt.infinities else 2)
        over = named("over", v.special | (~exponent[-1] & (exponent[:-1] > edge)))
        at_edge = named("at_edge", exponent == edge)
        under = named("under", exponent[-1] | ~v.nonzero)
        levels = cleared = nearly_normal = None
        if self._flush:
            # At -1 the product can still round up to the smallest normal number, field 1.
            nearly_normal = named("nearly_normal", v.nonzero & (exponent == -1))
            under = named("underflow", under & ~nearly_normal)
            cleared = over | under
        else:
            levels = self._levels(m, v, under, over)
        field = Cat(
            exponent[0] & ~over & ~under,
            *((bit & ~under) | over for bit in exponent[1 : fmt.exponent]),
        )
        field = named("field", field)
        return Exponent(field, over, at_edge, v.nan, v.sign, levels, cleared, nearly_normal)

    @property
    def _reach(self) -> int:
        """k: shifts are from -2^k, which shifts out the whole product, to 2^k - 1."""
        return (self._format.mantissa + 2).bit_length()

    def _levels(self, m: Module, v: Operands, under: Value, over: Value) -> Signal:
        """Control of the funnel shifter's levels: the shift in offset binary, inverted."""
        k = self._reach
        shift = Signal(signed(k + 1))
        m.d.comb += shift.eq(Mux(under, v.unshifted[: k + 1].as_signed(), v.leading_zeros))
        # Shift out everything: the result is special, or the right shift exceeds 2^k.
        all_out = over
        if self._format.bias - 1 > 1 << k:
            all_out = over | (v.unshifted[-1] & ~v.unshifted[k:-1].all())
        all_out = namer(m)("all_out", all_out)
        levels = Signal(k + 1)
        m.d.comb += levels.eq(Cat(~shift[:k], shift[k]) | all_out.replicate(k + 1))
        return levels

    def _fixed(self, m: Module, product: Value, v: Exponent) -> Window:
        """The window without a shift, where subnormals are flushed."""
        mantissa = self._format.mantissa
        kept = product[mantissa - 1 :] & ~v.cleared.replicate(mantissa + 3)
        extra = Cat(v.nan, v.over) << mantissa
        window = namer(m)("window", (kept | extra)[: mantissa + 3])
        ones = [window[low:high].all() for low, high in self._groups]
        return self._window(v, window, product[: mantissa - 1].any(), ones)

    def _shifted(self, m: Module, product: Value, v: Exponent) -> Window:
        """The window of the product: bits from the result's last but one position."""
        named = namer(m)
        mantissa, k = self._format.mantissa, self._reach
        low, size = mantissa - 1, mantissa + 3
        longest = (1 << (k + 1)) - 1  # a right shift by this shifts out the product
        bits = {longest // 2 + n: bit for n, bit in enumerate(product)}
        # Bits far above the product, which the longest shift moves to the window's top: `over` to
        # the hidden bit, which increments the exponent, and `nan` to the fraction's highest bit.
        bits |= {longest + 2 * mantissa: v.over, longest + 2 * mantissa - 1: v.nan}
        lost = []
        for level in reversed(range(k + 1)):
            distance, by = 1 << level, v.levels[level]
            lost.append(Cat(bit for n, bit in bits.items() if low <= n < low + distance).any() & by)
            lost.append(Cat(bit for n, bit in bits.items() if n < low).any())
            before, bits = bits, {}
            for n in range(low, low + size + distance - 1):
                if n in before or n + distance in before:
                    moved, stays = before.get(n + distance, 0), before.get(n, 0)
                    bits[n] = named(f"level_{level}_{n}", Mux(by, moved, stays)[0])
        # Groups of ones, from the bits before the last level, which shifts by one bit: the bits
        # between are in the group either way.
        ones = []
        for first, end in self._groups:
            first, end = low + first, low + end
            shared = [before[n] for n in range(first + 1, end)]
            other = Mux(v.levels[0], before.get(end, 0), before[first])
            ones.append(Cat(shared).all() & other)
        window = named("window", Cat(bits[low + n] for n in range(size)))
        sticky = named("sticky", Cat(lost).any())
        return self._window(v, window, sticky, ones)

    @staticmethod
    def _window(v: Exponent, window: Value, sticky: Value, ones: list[Value]) -> Window:
        flags = (v.field, v.over, v.at_edge, v.nan, v.sign, v.nearly_normal)
        return Window(window, sticky, Cat(ones), *flags)

    @property
    def _groups(self) -> list[tuple[int, int]]:
        """First bits and ends of the groups that a carry into the window's bit 2 skips."""
        mantissa = self._format.mantissa
        count = -(-mantissa // GROUP)
        ends = [2 + -(-mantissa * n // count) for n in range(count + 1)]
        return list(zip(ends, ends[1:], strict=False))

    def _rounded(self, m: Module, v: Window) -> Value:
        """The result's bits."""
        fmt = self._format
        named = namer(m)
        mantissa, window = fmt.mantissa, v.window
        # Last bit and rounding bit are bits 1 and 0 of the window below two, 2 and 1 from two on.
        two = window[mantissa + 2]
        half = window[0] | v.nearly_normal if self._flush else window[0]
        carry = named(
            "carry",
            Mux(two, window[1] & (window[0] | v.sticky | window[2]), half & window[1]),
        )
        # The carry into bit 2, and bit 1, where a carry may come from below.
        rounded = {1: named("rounded_1", window[1] ^ (half & (window[1] | v.sticky)))}
        for group, (first, end) in enumerate(self._groups):
            skipped = named(f"carry_{end}", carry & v.ones[group])
            for n in range(first, end):
                rounded[n] = named(f"rounded_{n}", window[n] ^ carry)
                carry = named(f"passed_{n}", carry & window[n])
            carry = skipped
        becomes_two = named("becomes_two", two | carry)
        becomes_one = named("becomes_one", rounded[mantissa + 1] & ~two)

        # field + 1 or + 2, prepared for both: bit 0 is field[0] xor "plus one", and the other bits
        # are incremented for "plus two", or for "plus one" if bit 0 carries.
        field = v.field
        increment = named("increment", becomes_two | field[0])
        ones = [field[1:n].all() for n in range(1, fmt.exponent)]
        exponent = [field[0] ^ becomes_one]
        exponent += [bit ^ (increment & low) for bit, low in zip(field[1:], ones, strict=True)]
        # At the edge of the range, two or more is infinity, whose fraction is zero.
        upper = named("upper", two & ~v.at_edge if fmt.infinities else two)
        fraction = [(rounded[n + 2] & upper) | (rounded[n + 1] & ~two) for n in range(mantissa)]
        magnitude = Cat(*fraction, *exponent)
        no_sign = v.nan
        if self._flush:
            subnormal = v.nearly_normal & ~becomes_two
            magnitude &= ~subnormal.replicate(fmt.width - 1)
        if not fmt.infinities:
            too_large = named("too_large", v.over | (v.at_edge & becomes_two))
            magnitude = named("magnitude", magnitude | too_large.replicate(fmt.width - 1))
            no_sign = magnitude.all()  # a number that rounds up to NaN's code is a NaN, too
        return Cat(magnitude, v.sign & ~no_sign)


def _leading_zeros(m: Module, bits: list[Value]) -> tuple[Value, Value]:
    """Number of zeros before the first one of `bits`, highest bit first, and whether it exists."""
    named = namer(m)

    def count(bits: list[Value], name: str) -> tuple[list[Value], Value]:
        if len(bits) == 1:
            return [], bits[0]
        middle = 1 << ((len(bits) - 1).bit_length() - 1)
        first, found_first = count(bits[:middle], f"{name}_0")
        second, found_second = count(bits[middle:], f"{name}_1")
        second += [Const(0, 1)] * (len(first) - len(second))
        zeros = [Mux(found_first, x, y) for x, y in zip(first, second, strict=True)]
        zeros = named(f"zeros{name}", Cat(*zeros, ~found_first))
        return list(zeros), named(f"found{name}", found_first | found_second)

    zeros, found = count(bits, "")
    return Cat(zeros), found
