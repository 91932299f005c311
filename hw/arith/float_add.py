"""Floating-point addition and subtraction."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.datapath import Datapath, FloatParameters
from hw.layout import FLAG
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class FloatAddParameters(FloatParameters):
    __doc__ = FloatParameters.__doc__

    CUTS: ClassVar[tuple[tuple[str, ...], ...]] = (
        (),
        ("result",),
        ("sum", "result"),
        ("align", "sum", "result"),
        ("swap", "align", "sum", "result"),
    )


class FloatAdd(Datapath[FloatAddParameters]):
    """``o = a + b``, or ``a - b`` where `subtract` is high.

    Correctly rounded (0.5 ulp) to nearest even, with subnormals, signed zeros (x - x = +0,
    -0 + -0 = -0) and infinities; every NaN is the format's one quiet NaN. In a format without
    infinities, what is too large becomes that NaN.

    With `flush_subnormals` a subnormal operand is a zero of its sign, and so is a subnormal
    result. None of them could have rounded up to a normal number: sums that small are exact.

    Latency: `stages`, 0 to 4. Throughput: one sum per cycle. With one stage `o` may be wired back
    to `a` or `b`, and the unit accumulates a number each cycle.

    One path for all operands: swap, align, add, round, normalise. With p bits of precision::

        larger        | larger (p)  |
        smaller       | smaller (p) | 0 0 |             shifted right by the distance
        aligned       | 0 … addend  | G R | sticky      addend, guard and round bit
        total       | C | sum (p)   | H |               carry, sum, half a unit

    What keeps it small and fast:

    - The exponents are subtracted once, as a + ~b without carry-in. The carry-out says whether
      a > b. The distance is the complement of the difference, or the difference plus one; for
      this one, the smaller significand starts one bit further down.
    - The significands are not compared. Their difference is computed without carry-in too, so
      that a negative one is the complement of its magnitude.
    - That complement, the missing carry-in of a positive difference, and rounding up are one row
      of gates after the adder. It inverts a bit if the difference is negative, or if one is added
      and all lower bits are ones (flagged prefix adder, Burgess 2002).
    - Rounding precedes normalisation, at one of three bit positions, because sums that are
      shifted further are exact. Normalising by the leading one also handles a rounding carry.
    - For subnormal sums, a one at the bit position where the exponent reaches its lowest value is
      inserted into the word that is searched for the leading one, not into the shifted word.

    Otherwise as in Muller et al., Handbook of Floating-Point Arithmetic, chapter 8.

    Examples
    --------
    An accumulator needs a latency of one cycle:

    >>> from hw.arith.float_add import FloatAdd, FloatAddParameters
    >>> parameters = FloatAddParameters(format="fp32", stages=1)
    >>> parameters.latency
    1
    >>> FloatAdd(parameters).operands
    ('a', 'b', 'subtract')
    """

    summary = "Floating-point addition and subtraction, correctly rounded"
    source = "library"

    def operation(self) -> Ports:
        p = self.parameters
        fmt = p.float_format
        return {
            "a": wire_in(fmt, "First operand."),
            "b": wire_in(fmt, "Second operand."),
            "subtract": wire_in(FLAG, "The result is a - b, else a + b."),
            "o": wire_out(fmt, "Sum or difference."),
        }

    def elaborate(self, platform):
        m = Module()
        cut = self.registers(m)
        # Exponent difference and swap.
        values = cut("swap", **self._swap(m))
        larger, smaller, distance, clear, sticky, exponent, subtract, sign, nan = values
        aligned, sticky = self._align(m, smaller, distance, clear, sticky)
        larger, aligned, sticky, exponent, subtract, sign, nan = cut(
            "align",
            larger=larger,
            aligned=aligned,
            sticky=sticky,
            exponent=exponent,
            subtract=subtract,
            sign=sign,
            nan=nan,
        )
        # Addition and rounding.
        total, sign = self._add(m, larger, aligned, sticky, subtract, sign)
        total, exponent, sign, nan = cut("sum", total=total, exponent=exponent, sign=sign, nan=nan)
        result = self._normalise(m, total, exponent, sign, nan)
        m.d.comb += self.o.eq(cut("result", o=result))
        return m

    def _swap(self, m: Module) -> dict[str, Value]:
        """The operand with the larger exponent, the other one, and the exponents' distance."""
        f, flush = self.parameters.float_format, self.parameters.flush_subnormals
        a, b = (self._unpack(m, name) for name in ("a", "b"))
        # Bits of a distance that the shifter needs; larger ones shift everything out.
        reach = min((f.precision + 2).bit_length(), f.exponent)

        # a + ~b = a - b - 1 + 2^exponent: the carry says a > b.
        complement = Signal(f.exponent)
        difference = Signal(f.exponent + 1)
        a_larger = Signal()
        b_sign = Signal()
        subtract = Signal()
        distance = Signal(f.exponent)
        m.d.comb += [
            complement.eq(~b.exponent),
            difference.eq(a.exponent + complement),
            a_larger.eq(difference[-1]),
            b_sign.eq(self.b[-1] ^ self.subtract),
            subtract.eq(self.a[-1] ^ b_sign),
            distance.eq(difference[:-1] ^ (~a_larger).replicate(f.exponent)),
        ]
        larger = Signal(f.precision)
        smaller = Signal(f.precision + 1)
        smaller_hidden = Signal()
        smaller_fraction = Signal()
        exponent = Signal(f.exponent)
        sign = Signal()
        m.d.comb += [
            larger.eq(Mux(a_larger, a.significand, b.significand)),
            # If a is larger, the difference is one less than the distance.
            smaller.eq(Mux(a_larger, b.significand, Cat(Const(0, 1), a.significand))),
            smaller_hidden.eq(Mux(a_larger, b.hidden, a.hidden)),
            smaller_fraction.eq(Mux(a_larger, b.has_fraction, a.has_fraction)),
            exponent.eq(Mux(a_larger, a.exponent, b.exponent)),
            sign.eq(Mux(a_larger, self.a[-1], b_sign)),
        ]
        # Special operands. `ignore`: the smaller operand does not count at all.
        nan = Signal()
        ignore = Signal()
        clear = Signal()
        sticky = Signal()
        if f.infinities:
            # The sum of an infinity and a number is the infinity, so the smaller one is ignored.
            m.d.comb += [
                nan.eq(
                    a.special & a.has_fraction
                    | b.special & b.has_fraction
                    | subtract & a.special & b.special
                ),
                ignore.eq(a.special | b.special | (~smaller_hidden if flush else 0)),
            ]
        else:
            m.d.comb += [
                nan.eq(a.special | b.special),
                ignore.eq(~smaller_hidden if flush else 0),
            ]
        # Shifted out completely, a smaller operand other than zero leaves a sticky bit.
        beyond = distance[reach:].any()
        m.d.comb += [
            clear.eq(beyond | ignore),
            sticky.eq(beyond & ~ignore & (smaller_hidden | smaller_fraction)),
        ]
        return {
            "larger": larger,
            "smaller": smaller,
            "distance": distance[:reach],
            "clear": clear,
            "sticky": sticky,
            "exponent": exponent,
            "subtract": subtract,
            "sign": sign,
            "nan": nan,
        }

    def _unpack(self, m: Module, name: str) -> "Operand":
        """Fields of an operand: the significand has its hidden bit, subnormals an exponent of 1."""
        f = self.parameters.float_format
        bits = getattr(self, name)
        mantissa, field = bits[: f.mantissa], bits[f.mantissa : -1]
        operand = Operand(
            hidden=Signal(name=f"{name}_hidden"),
            has_fraction=Signal(name=f"{name}_has_fraction"),
            special=Signal(name=f"{name}_special"),
            exponent=Signal(f.exponent, name=f"{name}_exponent"),
            significand=Signal(f.precision, name=f"{name}_significand"),
        )
        # Subnormals have the lowest exponent of the others; flushed to zero they need none.
        lowest = 0 if self.parameters.flush_subnormals else ~operand.hidden
        m.d.comb += [
            operand.hidden.eq(field.any()),
            operand.has_fraction.eq(mantissa.any()),
            operand.special.eq(field.all() if f.infinities else bits[:-1].all()),
            operand.exponent.eq(Cat(field[0] | lowest, field[1:])),
            operand.significand.eq(Cat(mantissa, operand.hidden)),
        ]
        return operand

    def _align(
        self, m: Module, smaller: Value, distance: Value, clear: Value, sticky: Value
    ) -> tuple[Value, Value]:
        """`smaller` shifted right, with guard and round bit below, and the sticky bit."""
        return shift_right(m, smaller, distance, clear, sticky)

    def _add(
        self, m: Module, larger: Value, aligned: Value, sticky: Value, subtract: Value, sign: Value
    ) -> tuple[Value, Value]:
        """Magnitude of the rounded sum, one bit above and one below the larger operand; its sign.

        ::

            larger      |   | larger (p)  |
            aligned   ± |   | addend (p)  | G R | sticky
            rounded     | C | sum (p)     | H |
        """
        precision = self.parameters.float_format.precision
        below = Signal()
        guard = Signal()
        round_bit = Signal()
        addend = Signal(precision)
        total = Signal(precision + 1)
        m.d.comb += [
            # The bits below the last place, as two's complement if subtracted.
            below.eq(aligned[:2].any() | sticky),
            round_bit.eq(aligned[0] ^ (subtract & sticky)),
            guard.eq(aligned[1] ^ (subtract & (aligned[0] | sticky))),
            addend.eq(aligned[2:] ^ subtract.replicate(precision)),
            total.eq(larger + addend),
        ]
        carry = Signal()
        negative = Signal()
        half_place = Signal()
        increment = Signal()
        half = Signal()
        m.d.comb += [
            carry.eq(total[-1] & ~subtract),
            negative.eq(~total[-1] & subtract),
            # A difference without its top bit is normalised by one bit, or by more and is exact.
            half_place.eq(subtract & ~total[-2]),
            # Round to nearest even at the last bit, which is bit 1 after a carry, `half` if the
            # difference moves up, and bit 0 else. And the carry-in of an exact subtraction.
            increment.eq(
                Mux(
                    carry,
                    total[0] & (total[1] | below),
                    Mux(half_place, guard & round_bit, guard & (total[0] | round_bit | sticky)),
                )
                | subtract & ~below
            ),
            half.eq(guard ^ (round_bit & (guard | sticky))),
        ]
        # The row after the adder: a bit flips if the difference is negative, or if one is added
        # and all lower bits are ones.
        ones: Value = Const(1, 1)
        flips = []
        for bit in total[:precision]:
            flips.append(negative | increment & ones)
            lower_ones = Signal(name=f"ones_{len(flips)}")
            m.d.comb += lower_ones.eq(bit & ones)
            ones = lower_ones
        flip = Signal(precision)
        rounded = Signal(precision + 2)
        signed = Signal()
        zero = Signal()
        # Without carry-in, the difference of equal numbers is all ones.
        flushed = ~larger[-1] if self.parameters.flush_subnormals else 0
        m.d.comb += [
            flip.eq(Cat(flips)),
            rounded.eq(Cat(half, total[:precision] ^ flip, carry | increment & ones & ~subtract)),
            zero.eq(subtract & (ones | flushed)),
            signed.eq((sign ^ negative) & ~zero),
        ]
        return rounded, signed

    def _normalise(
        self, m: Module, total: Value, exponent: Value, sign: Value, nan: Value
    ) -> Value:
        """The result's bits. `total` has two integer bits: the carry and the hidden bit.

        ::

            total       | C | hidden | fraction    | H |
            shifted     | hidden | fraction    | …     |      left, leading one to the top
        """
        f = self.parameters.float_format
        top = len(total) - 1
        stops = Signal(top + 1)
        searched = Signal(top + 1)
        # A subnormal result: the shift must not exceed the exponent. A one at the bit position
        # equal to the exponent stops the search there. Ones further down do not matter, so the
        # comparison may be "exponent is a submask of the shift" instead of "equal".
        within = [~(exponent & ~Const(shift, f.exponent)).any() for shift in range(1, top + 1)]
        m.d.comb += [stops.eq(Cat(reversed(within))), searched.eq(total | stops)]
        position = leading_one(m, searched)
        normal = shift_to_top(m, total, position)

        above = Signal(f.exponent)
        field = Signal(f.exponent)
        replaced = Signal()  # by infinity or NaN
        number = Signal(f.width - 1)
        overflowing = exponent[1:].all() if f.infinities else exponent.all()
        hidden = normal[-1]
        mantissa = normal[-1 - f.mantissa : -1]
        if self.parameters.flush_subnormals:
            mantissa = mantissa & hidden.replicate(f.mantissa)
        shift = Signal(len(position))
        m.d.comb += [
            # The top bit of `total` has the weight exponent + 1.
            shift.eq(~position),
            above.eq(exponent + 1),
            field.eq(above - shift),
            replaced.eq(nan | total[-1] & overflowing),
            number.eq(
                Cat(
                    mantissa & (~replaced).replicate(f.mantissa),
                    field & hidden.replicate(f.exponent),
                )
            ),
        ]
        # An overflow leaves the mantissa zero with an exponent of ones: infinity. NaN adds the
        # quiet bit.
        magnitude = Signal(f.width - 1)
        positive = Signal()
        if f.infinities:
            m.d.comb += [
                magnitude.eq(number | nan << (f.mantissa - 1)),
                positive.eq(nan),
            ]
        else:
            m.d.comb += [
                magnitude.eq(number | replaced.replicate(f.width - 1)),
                positive.eq(magnitude.all()),
            ]
        return Cat(magnitude, sign & ~positive)


def shift_right(
    m: Module, smaller: Value, distance: Value, clear: Value, sticky: Value
) -> tuple[Value, Value]:
    """`smaller` shifted right with one more bit below; whether a one is lost, or `sticky` is set.

    The longest shift comes first; its multiplexer is an AND-OR that can also `clear` the word.
    """
    word: Value = Cat(Const(0, 1), smaller)
    levels = list(range(len(distance)))
    for level in levels[-1:] + levels[:-1]:
        step = 1 << level
        shifted = Signal(len(word), name=f"aligned_{step}")
        any_lost = Signal(name=f"lost_{step}")
        move, stay = distance[level], ~distance[level]
        if level == levels[-1]:
            move, stay = Signal(name="move_first"), Signal(name="stay_first")
            m.d.comb += [move.eq(distance[level] & ~clear), stay.eq(~distance[level] & ~clear)]
            moved = word >> step & move.replicate(len(word)) | word & stay.replicate(len(word))
        else:
            moved = Mux(move, word >> step, word)
        m.d.comb += [
            shifted.eq(moved),
            any_lost.eq(sticky | move & word[:step].any()),
        ]
        word, sticky = shifted, any_lost
    return word, sticky


@dataclasses.dataclass(frozen=True)
class Operand:
    """Fields of a number.

    hidden
        The hidden bit: one if the number is normal.
    has_fraction
        The mantissa is not zero.
    special
        Infinity or NaN.
    exponent
        Exponent field; 1 for subnormal numbers.
    significand
        Mantissa with the hidden bit.
    """

    hidden: Signal
    has_fraction: Signal
    special: Signal
    exponent: Signal
    significand: Signal
