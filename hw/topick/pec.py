"""Partial exponential calculator: a token's term of the denominator (Token-Picker, 4.1)."""

import dataclasses
import functools
from typing import ClassVar

from amaranth.hdl import Module, Mux, Signal, Value, signed, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.exp2_fixed import Exp2Fixed, Exp2FixedParameters
from hw.layout import FLAG, FixedPoint, integer
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class PecParameters(DatapathParameters):
    """
    width
        Width of a score's binary logarithm, signed.
    margin_bits
        Width of a margin, unsigned; less than `width`.
    fraction
        Fraction bits of binary logarithms and margins.
    precision
        Width of a term's significand.
    limb
        Width of a limb, a power of two, at least `precision`.
    """

    width: int = 32
    margin_bits: int = 27
    fraction: int = 10
    precision: int = 12
    limb: int = 16

    CUTS: ClassVar = (
        (),
        ("result",),
        ("significand", "result"),
        ("shift", "significand", "result"),
    )

    def __post_init__(self):
        super().__post_init__()
        rule = f"margin_bits must be at least 1 and below {self.width} (width)"
        require(1 <= self.margin_bits < self.width <= 48, rule, self.margin_bits)
        power = self.limb > 1 and self.limb & (self.limb - 1) == 0
        rule = f"limb must be a power of two of at least {self.precision} (precision)"
        require(power and self.precision <= self.limb <= 32, rule, self.limb)
        Exp2FixedParameters(0, self.fraction, self.precision, self.precision)  # checks these
        rule = f"fraction must be below {self.width - 1 - self.offset_bits}"
        require(self.fraction < self.width - 1 - self.offset_bits, rule, self.fraction)

    @classmethod
    def presets(cls) -> dict[str, "PecParameters"]:
        return {
            "small": cls(width=10, margin_bits=7, fraction=3, precision=4, limb=4),
            "default": cls(),
            "pipelined": cls(stages=3),
        }

    @functools.cached_property
    def exp2(self) -> Exp2FixedParameters:
        return Exp2FixedParameters(0, self.fraction, self.precision, self.precision)

    @property
    def shift_bits(self) -> int:
        """Width of a term's shift, signed; one more than a logarithm's integer part."""
        return self.width + 1 - self.fraction

    @property
    def offset_bits(self) -> int:
        """Width of a bit position within a limb."""
        return self.limb.bit_length() - 1

    @property
    def limb_bits(self) -> int:
        """Width of a limb's number, signed."""
        return self.shift_bits - self.offset_bits


class Pec(Datapath[PecParameters]):
    """term = 2^(t - least), rounded down; difference = new term - earlier term.

    A term is significand 2^-(shift + precision). The significand, from :class:`Exp2Fixed`, always
    has its first bit set.

    So that sums are exact in any order, terms are put on a grid of limbs. Limb number L holds the
    bits of weights 2^(limb L) to 2^(limb (L + 1) - 1). A term with its first bit in limb L has bits
    in limbs L and L - 1 only::

        limb        |       L        |     L - 1      |     L - 2      |
        new term    | 0 0 1 x x x x x x x x 0 0 0 0 0 |
        old term                     | 0 1 x x x x x x x x x 0 0 0 0 0 |
        difference  |      high      |      low       |  (left out)    |

    The difference has two limbs, ``high`` of number ``limb`` and ``low`` of the next lower number,
    both signed: the new term's less the old term's, in the limbs of the larger one. The bits of the
    smaller term below ``low`` are left out.

    The adder of differences keeps the two limbs of the largest term so far, without a carry from
    the lower one to the upper one. When a larger term arrives, it drops the lower limb, and with it
    those bits of all terms alike; a difference to an earlier term of which only the upper limb is
    left has dropped the same bits.

    A pruned token (``drop``) has no new term, its first chunk (``old_valid`` low) no old one.

    Accuracy: a term is below 2^(t - least), by less than 2^(1 - precision) of it. Latency:
    `stages`. Overflow: none, the exponent holds every t. Source: Token-Picker, section 4.1 (3).

    Examples
    --------
    >>> from hw.topick.pec import Pec, PecParameters
    >>> parameters = PecParameters(precision=12, limb=16, stages=3)
    >>> parameters.shift_bits, parameters.limb_bits, parameters.latency
    (23, 19, 3)
    >>> Pec(parameters).high.shape()
    signed(17)
    """

    summary = "A token's term of the denominator, and its difference to the earlier term"
    source = "Token-Picker, section 4.1"

    def operation(self) -> Ports:
        p = self.parameters
        shift, significand = integer(signed(p.shift_bits)), integer(unsigned(p.precision))
        part = integer(signed(p.limb + 1))
        return {
            "t": wire_in(FixedPoint(signed(p.width), p.fraction), "Score, a logarithm."),
            "least": wire_in(
                FixedPoint(unsigned(p.margin_bits), p.fraction),
                "Least that unread chunks add, negated.",
            ),
            "drop": wire_in(FLAG, "The token is dropped: it has no new term."),
            "old_valid": wire_in(FLAG, "Whether the token has an earlier term."),
            "old_shift": wire_in(shift, "Shift of the earlier term."),
            "old_significand": wire_in(significand, "Significand of the earlier term."),
            "shift": wire_out(shift, "Shift of the new term, also if it is dropped."),
            "significand": wire_out(significand, "Significand of the new term."),
            "limb": wire_out(
                integer(signed(p.limb_bits)), "Limb of the denominator that `low` is added to."
            ),
            "high": wire_out(part, "Part of the difference for the next limb."),
            "low": wire_out(
                part,
                "Part for `limb`; 0, with any limb, if there is neither a new nor an old term.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, cut = self.parameters, self.registers(m)
        # 2^(t - least) = 2^-minus, and minus = | shift (signed) | fraction |. The significand is
        # 2^-fraction, between 1/2 and 1.
        m.submodules.exp2 = exp2 = Exp2Fixed(p.exp2)
        # Without multiplier: a power of two is a table of its fraction and a position of its bits.
        minus = Signal(signed(p.width + 1))
        m.d.comb += minus.eq(self.least - self.t)
        minus, new_valid, old_valid, old_shift, old_significand = cut(
            "shift",
            minus=minus,
            new_valid=~self.drop,
            old_valid=self.old_valid,
            old_shift=self.old_shift,
            old_significand=self.old_significand,
        )
        shift = Signal(signed(p.shift_bits), name="new_shift")
        m.d.comb += [exp2.x.eq(minus[: p.fraction]), shift.eq(minus >> p.fraction)]
        significand, shift, new_valid, old_valid, old_shift, old_significand = cut(
            "significand",
            significand=exp2.y,
            shift=shift,
            new_valid=new_valid,
            old_valid=old_valid,
            old_shift=old_shift,
            old_significand=old_significand,
        )

        # Both terms in limbs. The difference is in the limbs of the term with the higher number, so
        # the other term is in the same two limbs, one limb lower, or below both.
        limb, (new_low, new_high) = self._limbs(m, "new", shift, significand)
        old_limb, (old_low, old_high) = self._limbs(m, "old", old_shift, old_significand)
        ahead = Signal(signed(p.limb_bits + 1))  # limbs by which the new term is above the old one
        m.d.comb += ahead.eq(limb - old_limb)
        # A later chunk of a token replaces its earlier estimate: the denominator gets the
        # difference of the two terms, so no sum has to be undone (Token-Picker, section 4.1, PEC).
        both = new_valid & old_valid
        new_same, new_lower = Signal(name="new_same"), Signal(name="new_lower")
        old_same, old_lower = Signal(name="old_same"), Signal(name="old_lower")
        m.d.comb += [
            new_same.eq(new_valid & (~both | (ahead >= 0))),
            new_lower.eq(both & (ahead == -1)),
            old_same.eq(old_valid & (~both | (ahead <= 0))),
            old_lower.eq(both & (ahead == 1)),
        ]
        high, low = (Signal(signed(p.limb + 1), name=f"difference_{n}") for n in ("high", "low"))
        m.d.comb += [
            high.eq(_if(new_same, new_high) - _if(old_same, old_high)),
            low.eq(
                (_if(new_same, new_low) | _if(new_lower, new_high))
                - (_if(old_same, old_low) | _if(old_lower, old_high))
            ),
        ]
        results = cut(
            "result",
            shift=shift,
            significand=significand,
            limb=Mux(new_same, limb, old_limb),
            high=high,
            low=low,
        )
        m.d.comb += [
            getattr(self, name).eq(result)
            for name, result in zip(self.results, results, strict=True)
        ]
        return m

    def _limbs(self, m: Module, name: str, shift: Value, significand: Value):
        """Number of a term's upper limb, and its lower and upper limb.

        ::

            | upper limb             | lower limb             |
            | 0 … 0 | significand            | 0 …          0 |
                     ↑ bit `offset` of the upper limb
        """
        p = self.parameters
        # The first bit's weight is 2^-(shift + 1), and -(x + 1) is ~x: its upper bits are the
        # limb's number, its lower ones the offset.
        first = Signal(signed(p.shift_bits), name=f"first_{name}")
        placed = Signal(2 * p.limb, name=f"placed_{name}")
        number = Signal(signed(p.limb_bits), name=f"limb_{name}")
        m.d.comb += [
            first.eq(~shift),
            number.eq(first >> p.offset_bits),
            placed.eq(significand << (p.limb + 1 - p.precision) << first[: p.offset_bits]),
        ]
        return number, (placed[: p.limb], placed[p.limb :])


def _if(condition: Value, value: Value) -> Value:
    """`value`, or 0."""
    return value & condition.replicate(len(value))
