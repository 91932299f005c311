"""Floating-point multiplication, correctly rounded, with subnormals."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.partial_products import booth_columns, pack, reduce_columns, rows, unpack

GROUP = 3  # bits that a rounding carry passes one by one


@dataclasses.dataclass(frozen=True)
class FloatMultiplyParameters(FloatParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands count as zeros of their sign, and so does a result that is
        subnormal after rounding; one that rounds up to the smallest normal number stays.
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


class FloatMultiply(Datapath):
    """o = a b, rounded to nearest even.

    Latency: `stages`. Throughput: one product per cycle. Accuracy: correctly rounded, subnormals
    and signed zeros included; NaNs come out as the canonical one. Nothing is flagged.

    Technique: significands are multiplied as they are, with a hidden bit of zero where subnormal.
    By the time the product is known, so is how far to shift it: left by its leading zeros, which
    are those of the one subnormal operand (two would make nothing but a sticky bit), or right by
    what the exponent lacks to the smallest. Either is one number from -2^k to 2^k - 1, which in
    offset binary drives a funnel of k + 1 levels that keeps `precision` + 2 bits.

    In this window the product lies between 1 and 4. It is rounded before its two positions are
    told apart: one carry, entering at the second bit, serves both. The carry skips groups of bits
    that are all ones, which is found ahead of the funnel's last level. The exponent is the least
    that it can be, plus one or two by what the window's highest bits have become.

    Infinities, NaNs and what is too large in any case shift the whole product out, and shift in
    what lies beyond it: the bits that make them what they are.

    Members
    -------
    a, b : :py:`In(format.width)`
    o : :py:`Out(format.width)`
    """

    summary = "Floating-point product, correctly rounded, with subnormals"
    source = "library"

    def __init__(self, parameters: FloatMultiplyParameters):
        self._format, self._flush = parameters.float_format, parameters.flush_subnormals
        width = self._format.width
        super().__init__(parameters, {"a": width, "b": width}, {"o": width})

    def elaborate(self, platform):
        m = Module()
        registers = self.registers(m)

        def cut(point: str, **values: Value) -> SimpleNamespace:
            return SimpleNamespace(**dict(zip(values, registers(point, **values), strict=True)))

        significands, known = self._operands(m)
        columns = reduce_columns(m, booth_columns(m, *significands), 4)
        v = cut("partial", columns=pack(columns), **known)
        columns = reduce_columns(m, unpack(columns, v.columns), 2)
        known = self._exponent(m, v)
        v = cut("reduced", columns=pack(columns), **known)
        addends = rows(unpack(columns, v.columns))
        product = Signal(len(addends[0]), name="product")
        m.d.comb += product.eq(addends[0] + addends[1])
        v = cut("product", product=product, **{name: getattr(v, name) for name in known})
        v = cut("window", **(self._fixed if self._flush else self._shifted)(m, v))
        m.d.comb += self.o.eq(registers("result", result=self._rounded(m, v)))
        return m

    def _operands(self, m: Module) -> tuple[list[Value], dict[str, Value]]:
        """Both significands, and what can be told of the operands one by one."""
        fmt = self._format
        named = _namer(m)
        fractions = [port[: fmt.mantissa] for port in (self.a, self.b)]
        fields = [port[fmt.mantissa : -1] for port in (self.a, self.b)]
        hidden = [named("hidden_a", fields[0].any()), named("hidden_b", fields[1].any())]
        normal = hidden[0] & hidden[1]
        if self._flush:
            leading_zeros, nonzero = Const(0, 1), named("nonzero", normal)
        else:
            # Where one operand is subnormal, its fraction; ones where the operand is normal.
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
        # The field of a result whose product of significands is between 1 and 2, less one: less
        # bias + 1, which is a power of two, so that only the two highest bits change.
        *low, bit, carry = total
        high = Cat(~bit, bit ^ ~carry, ~(bit | carry))
        unshifted = named("unshifted", Cat(*low, high).as_signed())
        return [Cat(f, h) for f, h in zip(fractions, hidden, strict=True)], {
            "leading_zeros": leading_zeros,
            "nonzero": nonzero,
            "unshifted": unshifted,
            "special": special,
            "nan": nan,
            "sign": self.a[-1] ^ self.b[-1],
        }

    def _exponent(self, m: Module, v) -> dict[str, Value]:
        """The field of the result, less one or two, and how far to shift."""
        fmt = self._format
        named = _namer(m)
        exponent = Signal(signed(fmt.exponent + 2))
        m.d.comb += exponent.eq(v.unshifted - v.leading_zeros)
        # From one above `edge` on, the product is too large in any case; at it, from 2 on.
        edge = (1 << fmt.exponent) - (3 if fmt.infinities else 2)
        over = named("over", v.special | (~exponent[-1] & (exponent[:-1] > edge)))
        at_edge = named("at_edge", exponent == edge)
        known = {"over": over, "at_edge": at_edge, "nan": v.nan, "sign": v.sign}
        under = named("under", exponent[-1] | ~v.nonzero)
        if self._flush:
            # At -1 the product can still round up to the smallest normal number, field 1.
            known["verge"] = named("verge", v.nonzero & (exponent == -1))
            under = named("gone", under & ~known["verge"])
            known["gone"] = over | under
        else:
            known["levels"] = self._levels(m, v, under, over)
        field = Cat(
            exponent[0] & ~over & ~under,
            *((bit & ~under) | over for bit in exponent[1 : fmt.exponent]),
        )
        return known | {"field": named("field", field)}

    @property
    def _reach(self) -> int:
        """k: shifts are from -2^k, which leaves nothing of a product, to 2^k - 1."""
        return (self._format.mantissa + 2).bit_length()

    def _levels(self, m: Module, v, under: Value, over: Value) -> Signal:
        """Which levels of the funnel shift: the shift in offset binary, inverted."""
        k = self._reach
        shift = Signal(signed(k + 1))
        m.d.comb += shift.eq(Mux(under, v.unshifted[: k + 1].as_signed(), v.leading_zeros))
        everything = over
        if self._format.bias - 1 > 1 << k:
            everything = over | (v.unshifted[-1] & ~v.unshifted[k:-1].all())
        everything = _namer(m)("everything", everything)
        levels = Signal(k + 1)
        m.d.comb += levels.eq(Cat(~shift[:k], shift[k]) | everything.replicate(k + 1))
        return levels

    def _fixed(self, m: Module, v) -> dict[str, Value]:
        """The window without a shift."""
        mantissa = self._format.mantissa
        kept = v.product[mantissa - 1 :] & ~v.gone.replicate(mantissa + 3)
        extra = Cat(v.nan, v.over) << mantissa
        window = _namer(m)("window", (kept | extra)[: mantissa + 3])
        ones = [window[low:high].all() for low, high in self._groups]
        sticky = v.product[: mantissa - 1].any()
        return self._kept(v, "verge") | {"window": window, "sticky": sticky, "ones": Cat(ones)}

    def _shifted(self, m: Module, v) -> dict[str, Value]:
        """The window of the product: bits from the result's last but one position."""
        named = _namer(m)
        mantissa, k = self._format.mantissa, self._reach
        low, size = mantissa - 1, mantissa + 3
        everything = (1 << (k + 1)) - 1
        bits = {everything // 2 + n: bit for n, bit in enumerate(v.product)}
        # What shifting by `everything` brings into the first bit and the one right of it.
        bits |= {everything + 2 * mantissa: v.over, everything + 2 * mantissa - 1: v.nan}
        lost = []
        for level in reversed(range(k + 1)):
            distance, by = 1 << level, v.levels[level]
            lost.append(Cat(bit for n, bit in bits.items() if low <= n < low + distance).any() & by)
            lost.append(Cat(bit for n, bit in bits.items() if n < low).any())
            before, bits = bits, {}
            for n in range(low, low + size + distance - 1):
                if n in before or n + distance in before:
                    come, stay = before.get(n + distance, 0), before.get(n, 0)
                    bits[n] = named(f"level_{level}_{n}", Mux(by, come, stay)[0])
        # Whether groups are all ones, from the funnel's last level but one.
        ones = []
        for first, end in self._groups:
            first, end = low + first, low + end
            shared = [before[n] for n in range(first + 1, end)]
            other = Mux(v.levels[0], before.get(end, 0), before[first])
            ones.append(Cat(shared).all() & other)
        window = named("window", Cat(bits[low + n] for n in range(size)))
        sticky = named("sticky", Cat(lost).any())
        return self._kept(v) | {"window": window, "sticky": sticky, "ones": Cat(ones)}

    def _kept(self, v, *more: str) -> dict[str, Value]:
        """What rounding needs besides the window."""
        names = ("field", "over", "at_edge", "nan", "sign", *more)
        return {name: getattr(v, name) for name in names}

    @property
    def _groups(self) -> list[tuple[int, int]]:
        """First bits and ends of the groups that a carry into the window's bit 2 skips."""
        mantissa = self._format.mantissa
        count = -(-mantissa // GROUP)
        ends = [2 + -(-mantissa * n // count) for n in range(count + 1)]
        return list(zip(ends, ends[1:], strict=False))

    def _rounded(self, m: Module, v) -> Value:
        """The result's bits."""
        fmt = self._format
        named = _namer(m)
        mantissa, window = fmt.mantissa, v.window
        two = window[mantissa + 2]
        # The last bit and half of it are bits 1 and 0 of the window below two, 2 and 1 from two on.
        half = window[0] | v.verge if self._flush else window[0]
        carry = named(
            "carry",
            Mux(two, window[1] & (window[0] | v.sticky | window[2]), half & window[1]),
        )
        rounded = {1: named("rounded_1", window[1] ^ (half & (window[1] | v.sticky)))}
        for group, (first, end) in enumerate(self._groups):
            skipped = named(f"carry_{end}", carry & v.ones[group])
            for n in range(first, end):
                rounded[n] = named(f"rounded_{n}", window[n] ^ carry)
                carry = named(f"passed_{n}", carry & window[n])
            carry = skipped
        becomes_two = named("becomes_two", two | carry)
        becomes_one = named("becomes_one", rounded[mantissa + 1] & ~two)

        field = v.field
        more = named("more", becomes_two | field[0])
        ones = [field[1:n].all() for n in range(1, fmt.exponent)]
        exponent = [field[0] ^ becomes_one]
        exponent += [bit ^ (more & all_ones) for bit, all_ones in zip(field[1:], ones, strict=True)]
        # At the edge of the range, two or more is infinity, whose fraction is zero.
        upper = named("upper", two & ~v.at_edge if fmt.infinities else two)
        fraction = [(rounded[n + 2] & upper) | (rounded[n + 1] & ~two) for n in range(mantissa)]
        magnitude = Cat(*fraction, *exponent)
        no_sign = v.nan
        if self._flush:
            subnormal = v.verge & ~becomes_two
            magnitude &= ~subnormal.replicate(fmt.width - 1)
        if not fmt.infinities:
            too_large = named("too_large", v.over | (v.at_edge & becomes_two))
            magnitude = named("magnitude", magnitude | too_large.replicate(fmt.width - 1))
            no_sign = magnitude.all()  # a number that rounds up to NaN is one, too
        return Cat(magnitude, v.sign & ~no_sign)


def _namer(m: Module):
    """A function that gives a value a name, and so one place in the hardware."""

    def named(name: str, value: Value) -> Signal:
        signal = Signal.like(value, name=name)
        m.d.comb += signal.eq(value)
        return signal

    return named


def _leading_zeros(m: Module, bits: list[Value]) -> tuple[Value, Value]:
    """How many zeros `bits` start with, if they are not all zeros; and whether they are not."""
    named = _namer(m)

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
