"""Factors, products and sums of a PE as an FPGA has them: fields apart, special values as flags.

The bits of :mod:`hw.attention.packed_sum` are taken apart before an addition and put together after
it. Here they remain apart: zero is a significand of zeros, whatever its exponent; infinity and NaN
are flags, whatever the significand and the exponent. The top bit of other significands is one.

No sum is subnormal, as products of FP16 numbers are multiples of 2^-48. None overflows: a product
is below 2^32, and a sum of any number of them stops growing at 2^57, where a product is less than
half of its last place. A tree of 2^24 PEs and a last subtraction, or of four partial sums, is below
2^60. So seven bits of exponent are enough::

    field       14 to 122
    number      significand * 2^(field - 62), 1 <= significand < 2

Every result of the array has the same bits as with packed sums.
"""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Value
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.one_hot_shift import (
    FINE,
    WIDTH,
    merged,
    on_multipliers,
    one_hot,
    products,
)
from hw.arith.datapath import Datapath, namer, without
from hw.arith.float_add import shift_right
from hw.arith.float_format import FP16
from hw.attention.packed_sum import LoopAddParameters, PackedSums, WideProductParameters
from hw.attention.unpacked_product import (
    EXPONENT,
    FACTOR,
    UnpackedProduct,
    sum_layout,
    unpack_factor,
)
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class Swapped:
    """Operands by their exponents, as :class:`FloatAdd` has them.

    smaller
        One bit longer than `larger`: its significand starts one bit further down where `distance`
        is one too small.
    beyond, sticky
        All of the smaller significand is shifted out; and it is not zero.
    subtract
        The signs differ.
    """

    larger: Value
    smaller: Value
    distance: Value
    beyond: Value
    sticky: Value
    exponent: Value
    subtract: Value
    special: Value
    nan: Value
    sign: Value


class UnpackedAdd(Datapath[LoopAddParameters]):
    """o = a + b, rounded to nearest even, of sums as in the module's docstring.

    Latency: `stages`, 0 to 3. Throughput: a sum every cycle.

    The method is :class:`FloatAdd`'s, but what it does by a row of gates after the adder, the
    missing carry-in of a positive difference and rounding up, is a second carry chain here, which
    an FPGA has beside its LUTs. The complement of a negative difference is in the LUTs of the first
    level of the normalising shift, the smaller operand's in the LUTs of the last level of the
    alignment::

        larger        | larger (p)  |
        aligned       | 0 … addend  | G R | sticky
        total         | C | sum (p)   | H |             two carry chains
        coarse        by 0 or 16, complemented          multiplexers
        normal        by 0 to 15                        multiplexers, or a product
    """

    def operation(self) -> Ports:
        p = self.parameters
        layout = sum_layout(p.float_format)
        return {
            "a": wire_in(layout),
            "b": wire_in(layout),
            "o": wire_out(layout),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        v = cut.record("swap", self._swap(m))
        aligned, sticky = self._align(m, platform, v)
        v = without(v, "smaller", "distance", "beyond", "sticky")
        aligned, sticky = cut("align", aligned=aligned, sticky=sticky)
        v = cut.record("align", v)
        total, negative = self._add(m, cut, v, aligned, sticky)
        v = cut.record("sum", without(v, "larger"))
        self._normalise(m, platform, total, negative, v)
        return m

    def _swap(self, m: Module) -> Swapped:
        named = namer(m)
        a, b = self.a, self.b
        precision = len(a.significand)
        reach = (precision + 2).bit_length()
        # b - a: a borrow says that a's exponent is larger. Then the distance is the complement
        # plus one, and the smaller significand starts one bit further down instead.
        difference = named("difference", (b.exponent - a.exponent)[: EXPONENT + 1])
        nonzero = named("nonzero", Cat(a.significand[-1], b.significand[-1]))
        # A zero is the smaller one, whatever its exponent.
        a_larger = named("a_larger", nonzero[0] & (difference[-1] | ~nonzero[1]))
        distance = named("distance", difference[:-1] ^ a_larger.replicate(EXPONENT))
        subtract = named("subtract", a.sign ^ b.sign)
        beyond = named("beyond", distance[reach:].any())
        return Swapped(
            larger=named("larger", Mux(a_larger, a.significand, b.significand)),
            smaller=named("smaller", Mux(a_larger, b.significand, Cat(Const(0, 1), a.significand))),
            distance=distance[:reach],
            beyond=beyond,
            sticky=named("left_over", beyond & Mux(a_larger, nonzero[1], nonzero[0])),
            exponent=named("exponent", Mux(a_larger, a.exponent, b.exponent)),
            subtract=subtract,
            special=named("special", a.special | b.special),
            nan=named("nan", a.nan | b.nan | a.special & b.special & subtract),
            sign=named(
                "sign", Mux(Mux(a.special | b.special, a.special, a_larger), a.sign, b.sign)
            ),
        )

    def _align(self, m: Module, platform, v: Swapped) -> tuple[Value, Value]:
        """The smaller significand with two bits below the larger one's, and the sticky bit."""
        if not on_multipliers(platform):
            return shift_right(m, v.smaller, v.distance, v.beyond, v.sticky)
        named = namer(m)
        # Shifted left by 15 less the fine distance; the lowest bits of the product are lost, and
        # 16 more of them with a coarse shift.
        distance = v.distance[:FINE]
        up = one_hot(m, ~distance, ~v.beyond, "align_up")
        above = len(v.smaller) - WIDTH
        pieces = (above, WIDTH) if above > 0 else (len(v.smaller),)
        bits = products(m, v.smaller, up, pieces, "aligned_piece")
        lost, kept = bits[: len(up) - 2], bits[len(up) - 2 :]
        sticky = v.sticky | Cat(lost).any()
        if len(v.distance) == FINE:
            return named("aligned", merged(kept)), named("sticky", sticky)
        coarse = v.distance[FINE]
        moved = kept[len(up) :] + [[Const(0, 1)]] * len(up)
        aligned = Mux(coarse, merged(moved), merged(kept))
        sticky = sticky | coarse & Cat(kept[: len(up)]).any()
        return named("aligned", aligned), named("sticky", sticky)

    def _add(
        self, m: Module, cut, v: Swapped, aligned: Value, sticky: Value
    ) -> tuple[Value, Value]:
        """The rounded sum, all bits complemented if it is `negative`::

        larger      |   | larger (p)  |
        aligned   ± |   | addend (p)  | G R | sticky
        total       | C | sum (p)     | H |
        """
        named = namer(m)
        precision = len(v.larger)
        subtract = v.subtract
        # The bits below the last place, as two's complement if subtracted.
        below = named("below", aligned[:2].any() | sticky)
        round_bit = named("round_bit", aligned[0] ^ (subtract & sticky))
        guard = named("guard", aligned[1] ^ (subtract & (aligned[0] | sticky)))
        addend = named("addend", aligned[2:] ^ subtract.replicate(precision))
        total = named("first_sum", (v.larger + addend)[: precision + 1])
        carry = named("carry", total[-1] & ~subtract)
        negative = named("negative", ~total[-1] & subtract)
        # Round to nearest even at the last bit, which is bit 1 after a carry, `half` if the
        # difference moves up, and bit 0 else. Or the carry-in of an exact positive difference.
        up = Mux(
            carry,
            total[0] & (total[1] | below),
            Mux(
                subtract & ~total[-2],
                guard & round_bit,
                guard & (total[0] | round_bit | sticky),
            ),
        )
        increment = named("increment", (up | subtract & ~below) & ~negative)
        half = named("half", negative | guard ^ (round_bit & (guard | sticky)))
        total, half, increment, negative = cut(
            "sum",
            total=Cat(total[:-1], carry | negative),
            half=half,
            increment=increment,
            negative=negative,
        )
        rounded = named("rounded", (total + increment)[: precision + 1])
        return Cat(half, rounded), negative

    def _normalise(self, m: Module, platform, total: Value, negative: Value, v: Swapped) -> None:
        """The result. The top bit of `total` has the weight exponent + 1."""
        named = namer(m)
        fine = 1 << FINE
        word = named("magnitude", total ^ negative.replicate(len(total)))
        shift: Value = Const(0, 0)
        if len(word) > fine:
            shift = named("coarse", ~word[-fine:].any())
            word = named("coarse_normal", Mux(shift, word << fine, word)[: len(word)])
        place = leading_one(m, word[-fine:])
        nonzero = named("nonzero_sum", word[-fine:].any())
        shift = named("shift", Cat(~place, shift))
        fraction = len(self.o.significand) - 1
        if on_multipliers(platform):
            up = one_hot(m, ~place, 1, "normal_up")
            rest = word[:-1]
            pieces = (WIDTH, len(rest) - WIDTH) if len(rest) > WIDTH else (len(rest),)
            bits = products(m, rest, up, pieces, "normal_piece")[: len(rest)]
            normal = named("normal", merged(bits))
        else:
            normal = shift_to_top(m, word, place)[:-1]
        m.d.comb += [
            self.o.significand.eq(Cat(normal[-fraction:], nonzero)),
            self.o.exponent.eq(v.exponent - shift + 1),
            self.o.special.eq(v.special),
            self.o.nan.eq(v.nan),
            # An infinity keeps its sign; the difference of equal numbers is +0.
            self.o.sign.eq(Mux(v.special, v.sign, (v.sign ^ negative) & (nonzero | ~v.subtract))),
        ]


@dataclasses.dataclass(frozen=True)
class UnpackedSums(PackedSums):
    """What a PE is made of on an FPGA, for sums with the precision of `accumulator`."""

    @property
    def factor(self):
        return FACTOR

    @property
    def layout(self) -> data.StructLayout:
        return sum_layout(self.float_format)

    @property
    def width(self) -> int:
        return self.layout.size

    @property
    def negative_zero(self) -> Const:
        return Const(1 << (self.width - 1), self.width)

    def unpack(self, m: Module, platform, number: Value, name: str) -> data.View:
        return unpack_factor(m, platform, number, name)

    def multiplier(self) -> Datapath:
        stages = self.multiply_stages - 1
        return UnpackedProduct(WideProductParameters(format=self.accumulator, stages=stages))

    def adder(self) -> Datapath:
        return UnpackedAdd(LoopAddParameters(format=self.accumulator, stages=self.add_stages - 1))

    def to_fp16(self, m: Module, platform, total: Value) -> Value:
        return round_to_fp16(m, platform, data.View(self.layout, total))

    def finite(self, total: Value) -> Value:
        return ~data.View(self.layout, total).special


def round_to_fp16(m: Module, platform, number: data.View) -> Value:
    """The sum `number` rounded to FP16, to nearest even, with subnormals.

    ::

        significand | 1 | x … x (10) | x | x … x → sticky
        shifted     | h | fraction   | g | lost  → sticky       right by 0 to 11
        result      | sign | exponent (5) | fraction (10) |     h and "up" added

    Numbers below half of the smallest subnormal number and too large ones shift out everything.
    """
    named = namer(m, "result_")
    field, significand = number.exponent, number.significand
    upper, nonzero = field[4:], significand[-1]
    # Fields from 78 on are too large: 2^16 and more.
    below_limit = (upper == 3) | (upper == 4) & ~field[1:4].all()
    normal = named("normal", nonzero & ~number.special & below_limit)
    subnormal = named("subnormal", nonzero & ~number.special & (upper == 2))
    large = named("large", number.special | nonzero & upper[2] & ~below_limit)
    kept = FP16.precision + 1
    word, rest = significand[-kept:], significand[:-kept]
    # Fields 37 to 47 are shifted right by 11 to 1: in a word twice as long, left by the field
    # less 37, and a normal number by 11.
    if on_multipliers(platform):
        up = one_hot(m, field[:4], subnormal, "result_up")[16 - kept + 1 :]
        shifted = named("shifted", (word * Cat(up, normal))[: 2 * kept - 1])
        lost, shifted = shifted[: kept - 1], shifted[kept - 1 :]
    else:
        # Right by one and by the field's complement.
        shifted = named(
            "down", word & normal.replicate(kept) | word >> 1 & subnormal.replicate(kept)
        )
        lost = subnormal & word[0]
        for level in reversed(range(4)):
            by, move = 1 << level, subnormal & ~field[level]
            lost = named(f"lost_{by}", lost | move & shifted[:by].any())
            shifted = named(f"shifted_{by}", Mux(move, shifted >> by, shifted))
    guard, fraction, hidden = shifted[0], shifted[1:-1], shifted[-1]
    sticky = lost.any() | rest.any()
    increment = named("increment", guard & (sticky | fraction[0]))
    # A normal number's exponent is its field less 47; the one that is missing is the hidden bit.
    exponent = Cat(field[:4], ~field[4]) & normal.replicate(5) | large.replicate(5)
    quiet = Cat(fraction[:-1], fraction[-1] | number.nan)
    result = named(
        "rounded",
        (Cat(quiet, exponent) + Cat(increment, Const(0, FP16.mantissa - 1), hidden))[:15],
    )
    return Cat(result, number.sign & ~number.nan)
