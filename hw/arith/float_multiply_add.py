"""Floating-point multiplication and addition with one rounding."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_format import FloatFormat, find_format
from hw.arith.leading_zeros import leading_one
from hw.arith.partial_products import Bit, reduce_columns, rows


@dataclasses.dataclass(frozen=True)
class FloatMultiplyAddParameters(FloatParameters):
    __doc__ = (
        FloatParameters.__doc__
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
    def presets(cls) -> dict[str, "FloatMultiplyAddParameters"]:
        return super().presets() | {"fp16_fp32": cls(sum_format="fp32")}


class FloatMultiplyAdd(Datapath):
    """``o = a b + c``, rounded once.

    Latency: `stages`, 0 to 4. Throughput: one result per cycle. Accuracy: correctly rounded (0.5
    ulp) to nearest even, with subnormals, signed zeros (x - x = +0) and infinities; every NaN is
    the format's one quiet NaN. In a format without infinities, what is too large becomes that NaN.

    With `flush_subnormals` a subnormal operand is a zero of its sign, and so is a result that is
    subnormal after rounding to the full format.

    Technique: the addend is aligned to the product while that is being computed, and added to it
    in carry-save form (Hokenek, Montoye and Cook, 1990). What keeps it small and fast:

    - Significands are multiplied as they are, with a hidden bit of zero where subnormal.
    - With opposite signs the sum is a b + ~c = a b - c - 1. Where that is negative, its complement
      c - a b is the magnitude. Where not, the one is added by the rounding: normalising shifts in
      ones, and as these and what is left below the last place are all ones or not, the one
      arrives at the last place, makes a tie or makes no difference. Thus nothing is complemented
      and incremented between adder and rounding, and inversion is due for the kept bits only.
    - The sum has two windows. Above the product, the addend's leading one tells that of the sum,
      but for one place; otherwise the sum has only as many bits as the low window. The windows
      are selected before normalising, by the exponents alone.
    - Leading zeros of the low window are counted ahead of the sum, one place short or exact
      (Schmookler and Nowka 2001). A one where the exponent reaches its lowest value ends the
      count for subnormal results.
    - The exponent field is what is left of it by the count, plus the result's bit in the place
      that the count arrived at: the last shift by one needs no second subtraction.

    Members
    -------
    a, b : :py:`In(format.width)`
    c : :py:`In(sum_format.width)`
    o : :py:`Out(sum_format.width)`
    """

    summary = "Fused multiply-add with one rounding, also into a wider format"
    source = "library"

    def __init__(self, parameters: FloatMultiplyAddParameters):
        narrow, wide = parameters.float_format, parameters.float_sum_format
        self._narrow, self._wide = narrow, wide
        self._flush = parameters.flush_subnormals
        # Bits are numbered by their weight, the product's last place being 0.
        self._above = 2 * narrow.precision  # of the first place above the product
        self._top = self._above + 1 + wide.precision  # of an addend's leading bit, not shifted
        self._bottom = self._lowest_place()
        super().__init__(
            parameters, {"a": narrow.width, "b": narrow.width, "c": wide.width}, {"o": wide.width}
        )

    def _lowest_place(self) -> int:
        """The last place that is not just sticky.

        With one operand normal, the sum's leading one is at most one below the product's, unless
        the addend is close and so ends further up. With none, the product may be as small as 1,
        but the smallest exponent also limits how low the result's last place can be.
        """
        narrow, precision = self._narrow, self._wide.precision
        leading = narrow.mantissa * (2 if self._flush else 1)
        place = leading - 1 - precision
        if not self._flush:
            smallest = 2 * narrow.mantissa - 1 + 2 * narrow.bias - self._wide.bias
            place = min(place, max(smallest, -1) - precision)
        return min(place, 0)

    def elaborate(self, platform):
        m = Module()
        registers = self.registers(m)

        def cut(point: str, **values: Value) -> SimpleNamespace:
            return SimpleNamespace(**dict(zip(values, registers(point, **values), strict=True)))

        a, b = (self._unpacked(m, name, self._narrow) for name in "ab")
        c = self._unpacked(m, "c", self._wide)
        signs = self._signs(m, a, b, c)
        known = self._distances(m, a, b, c)
        addend = self._aligned(m, c.significand, known.shift, signs["subtract"])
        row_0, row_1 = self._carry_save(m, a.significand, b.significand, addend["middle"])
        budgets = {"high": known.high, "budget": known.budget, "budget_low": known.budget_low}
        counts = {"count_high": known.count_high}
        del addend["middle"]
        v = cut("product", row_0=row_0, row_1=row_1, **addend, **budgets, **counts, **signs)
        count = self._predicted(m, v)
        v = cut("sum", count=count, budget=v.budget, **self._sum(m, v), **_signs_of(v))
        v = cut("normal", **self._normal(m, v), **_signs_of(v))
        m.d.comb += self.o.eq(registers("result", result=self._rounded(m, v)))
        return m

    def _unpacked(self, m: Module, name: str, fmt: FloatFormat) -> SimpleNamespace:
        """An operand's parts; a subnormal number has the exponent of the smallest normal one."""
        named = _namer(m, f"{name}_")
        bits = getattr(self, name)
        field, fraction = bits[fmt.mantissa : -1], bits[: fmt.mantissa]
        normal = named("normal", field.any())
        nonzero = normal if self._flush else normal | fraction.any()
        highest = named("highest", field.all())
        nan = bits[:-1].all()
        if fmt.infinities:
            nan = highest & fraction.any()
        kept = fraction & normal.replicate(fmt.mantissa) if self._flush else fraction
        return SimpleNamespace(
            sign=bits[-1],
            normal=normal,
            exponent=named("exponent", Cat(field[0] | ~normal, field[1:])),
            significand=named("significand", Cat(kept, normal)),
            zero=named("zero", ~nonzero),
            nan=named("nan", nan),
            infinite=named("infinite", highest & ~nan if fmt.infinities else Const(0, 1)),
        )

    def _signs(self, m: Module, a, b, c) -> dict[str, Value]:
        """Whether magnitudes are subtracted, what the result is called if so, and specials."""
        named = _namer(m)
        sign = named("product_sign", a.sign ^ b.sign)
        infinite = named("product_infinite", a.infinite | b.infinite)
        subtract = named("subtract", sign ^ c.sign)
        nan = a.nan | b.nan | c.nan | (a.infinite & b.zero) | (b.infinite & a.zero)
        nan = named("nan", nan | (infinite & c.infinite & subtract))
        return {
            "subtract": subtract,
            "nan": nan,
            "infinite": named("infinite", infinite | c.infinite),
            "sign": named("sign", Mux(c.infinite, c.sign, sign)),
            "sign_negative": named("sign_negative", Mux(infinite, sign, c.sign)),
        }

    def _distances(self, m: Module, a, b, c) -> SimpleNamespace:
        """What follows from the exponents: `shift` of the addend to the right, whether the `high`
        window holds the result, and how far its bits may move left at most (`budget`)."""
        named = _namer(m)
        precision = self._wide.precision
        bias = self._wide.bias - 2 * self._narrow.bias
        most = 2 * (1 << self._narrow.exponent) - 3 + bias + precision + 3
        width = max(most.bit_length(), self._wide.exponent) + 2
        # One carry chain for three exponents, since everything waits for it. -c is ~c + 1.
        constant = bias + precision + 3 + 1 - (1 << self._wide.exponent)
        columns = [[Bit(0.0, Const(1, 1))] * (constant >> n & 1) for n in range(width)]
        for exponent in (a.exponent, b.exponent, ~c.exponent):
            for column, bit in zip(columns, exponent, strict=False):
                column.append(Bit(1.0, bit))
        first, second = rows(reduce_columns(m, columns, 2))
        distance = named("distance", (first + second)[:width])
        # The addend is far above the product, or there is no product.
        far = named("far", distance[-1] | a.zero | b.zero)
        shift = named("shift", distance[: most.bit_length()] & ~far.replicate(most.bit_length()))
        near = shift[: precision.bit_length()]  # whole in the high window
        high = named("high", shift <= precision)
        budget_low = named("budget_low", (a.exponent + b.exponent + bias + 2)[: width - 2])
        budget_high = named("budget_high", c.exponent + near)
        # Where nothing cancels, the sum can have one place more than the addend.
        count = near + (self.c[-1] ^ self.a[-1] ^ self.b[-1] | ~c.normal)
        return SimpleNamespace(
            shift=shift,
            high=high,
            budget_low=budget_low,
            budget=named("budget", Mux(high, budget_high, budget_low)[: width - 2]),
            count_high=named("count_high", count),
        )

    def _aligned(self, m: Module, addend: Value, shift: Value, subtract: Value) -> dict:
        """The addend, inverted if subtracted, in all places: those of the product (`middle`),
        `upper`, `lower`, and whether there are ones below (`lost`)."""
        named = _namer(m)
        size = self._top - self._bottom + 1
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
        """Product and addend as two rows, the late addend in the last row of adders."""
        named = _namer(m)
        columns = [[] for _ in range(self._above)]
        for i, p in enumerate(x):
            for j, q in enumerate(y):
                columns[i + j].append(Bit(0.5, named(f"partial_{i}_{j}", p & q)))
        first, second = rows(reduce_columns(m, columns, 2))
        first, second = named("product_0", first), named("product_1", second)
        half = named("product_half", first ^ second)
        carries = (Mux(h, c, p) for h, c, p in zip(half, addend, first, strict=True))
        return named("row_0", half ^ addend), named("row_1", Cat(0, *carries))

    def _predicted(self, m: Module, v) -> Value:
        """How far to move the window's bits left: to the leading one or one place less, but not
        further than the smallest exponent allows."""
        named = _namer(m)
        first = Cat(v.lost ^ v.subtract, v.lower, v.row_0, v.upper[0], v.subtract)
        second = Cat(Const(0, 1 - self._bottom), v.row_1, Const(0, 1))
        size = len(first)
        first, second = named("digits_0", first), named("digits_1", second)
        ones = named("digit_ones", first & second)
        zeros = named("digit_zeros", ~(first | second))
        mixed = named("digit_mixed", first ^ second)
        leading = []
        for n in range(size):
            above = mixed[n + 1] if n + 1 < size else v.subtract
            zero, one = (zeros[n - 1], ones[n - 1]) if n else (Const(1, 1), Const(0, 1))
            begins = Mux(ones[n], ~zero, zeros[n] & ~one)
            goes_on = Mux(zeros[n], ~zero, ones[n] & ~one)
            leading.append(Mux(above, begins, goes_on))
        levels = (size - 1).bit_length()
        limited = ~v.budget_low[levels:].any()
        limit = named("limit", (limited << v.budget_low[:levels])[:size])
        word = named("leading", Cat(leading) | limit[::-1])
        position = leading_one(m, word, "predicted")
        return named("count", Mux(v.high, v.count_high, ~position))

    def _sum(self, m: Module, v) -> dict[str, Value]:
        """The sum in its window, whether it is negative, and whether there is more below."""
        named = _namer(m)
        total = named("total", v.row_0 + v.row_1)
        carry = named("carry", total[self._above])
        upper = named("upper_sum", Mux(carry, (v.upper + 1)[: len(v.upper)], v.upper))
        places = named(
            "places",
            Cat(v.lost ^ v.subtract, v.lower, total[: self._above], upper, v.subtract),
        )
        low = places[: self._above + 2 - self._bottom + 1]
        # The high window needs all places above the product, and as many again as are kept.
        width = max(len(low), 2 * self._wide.precision + 3)
        windows = [Cat(v.subtract.replicate(width - len(low)), low), places[-width:]]
        over = places[:-width] ^ v.subtract.replicate(len(places) - width)
        return {
            "window": named("window", Mux(v.high, windows[1], windows[0])),
            "sticky": named("sticky", v.high & over.any()),
            "negative": named("negative", v.subtract & ~(carry & v.upper.all())),
        }

    def _normal(self, m: Module, v) -> dict[str, Value]:
        """The leading one in the first place, and the exponent field before rounding."""
        named = _namer(m)
        precision, window, sticky = self._wide.precision, v.window, v.sticky
        for level in reversed(range(len(v.count))):
            distance = 1 << level
            moved = Cat(v.subtract.replicate(distance), window[:-distance])
            window = named(f"moved_{level}", Mux(v.count[level], moved, window))
            # What cannot come back to the kept places is only looked at for ones.
            over = max(0, len(window) - precision - 1 - distance)
            if over:
                ones = (window[:over] ^ v.subtract.replicate(over)).any()
                sticky = named(f"sticky_{level}", sticky | ones)
                window = window[over:]
        left = named("budget_left", (v.budget - v.count)[: len(v.budget)])
        first, second = window[-1] ^ v.negative, window[-2] ^ v.negative
        first = named("first", first)
        more = named("more", ~first & left.any())
        sticky = named("sticky", sticky | (~more & (window[0] ^ v.subtract)))
        # A sum of zero has no leading one at all.
        field = named("field", ((left & (first | second).replicate(len(left))) + first))
        return {
            "kept": named("kept", Mux(more, window[:-1], window[1:])),
            "sticky": sticky,
            "field": field[: len(left)],
            "negative": v.negative,
        }

    def _rounded(self, m: Module, v) -> Value:
        """The result's bits."""
        named = _namer(m)
        fmt = self._wide
        places = named("places", v.kept ^ v.negative.replicate(len(v.kept)))
        half, last = places[0], places[1]
        one_short = v.subtract & ~v.negative
        up = Mux(one_short, half | (~v.sticky & last), half & (v.sticky | last))
        rounded = named("rounded", Cat(places[1:-1], v.field) + named("up", up))
        magnitude = rounded[: fmt.width - 1]
        if self._flush:
            normal = named("normal", magnitude[fmt.mantissa :].any())
            magnitude = magnitude & normal.replicate(fmt.width - 1)
        if fmt.infinities:
            over = v.field >= (1 << fmt.exponent) - 1
        else:
            over = rounded[fmt.width - 1 :].any()
        over = named("over", over | v.infinite)
        magnitude = Mux(v.nan, fmt.quiet_nan, Mux(over, fmt.overflow, magnitude))
        magnitude = named("magnitude", magnitude[: fmt.width - 1])
        plus = v.nan if fmt.infinities else magnitude.all()
        # Equal magnitudes have a difference of minus one, whose complement is plus zero.
        zero = named("is_zero", v.negative & ~v.sticky & ~places.any() & ~v.infinite)
        sign = Mux(v.negative, v.sign_negative & ~zero, v.sign)
        return Cat(magnitude, sign & ~plus)


def _signs_of(v) -> dict[str, Value]:
    """What goes through all ranks of registers unchanged."""
    names = ("subtract", "nan", "infinite", "sign", "sign_negative")
    return {name: getattr(v, name) for name in names}


def _namer(m: Module, prefix: str = ""):
    """A function that gives a value a name, and so one place in the hardware."""

    def named(name: str, value: Value) -> Signal:
        signal = Signal.like(value, name=prefix + name)
        m.d.comb += signal.eq(value)
        return signal

    return named
