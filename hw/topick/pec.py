"""A token's share of the denominator, and its difference to the earlier one (Token-Picker, 4.1)."""

import dataclasses
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed, unsigned

from hw.arith.datapath import Datapath, DatapathParameters
from hw.arith.exp2_fixed import Exp2Fixed, Exp2FixedParameters
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class PecParameters(DatapathParameters):
    """
    width
        Of a score's binary logarithm, signed.
    margin_bits
        Of a margin, unsigned; less than `width`.
    fraction
        Bits of both behind the point.
    precision
        Bits of a term's significand.
    limb
        Bits of a limb, a power of two, at least `precision`.
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
        ("depth", "significand", "result"),
    )

    def __post_init__(self):
        super().__post_init__()
        rule = f"margin_bits must be at least 1 and below {self.width} (width)"
        require(1 <= self.margin_bits < self.width <= 48, rule, self.margin_bits)
        power = self.limb > 1 and self.limb & (self.limb - 1) == 0
        rule = f"limb must be a power of two of at least {self.precision} (precision)"
        require(power and self.precision <= self.limb <= 32, rule, self.limb)
        _ = self.exp2  # checks the rest
        rule = f"fraction must be below {self.width - 1 - self.place_bits}"
        require(self.fraction < self.width - 1 - self.place_bits, rule, self.fraction)

    @classmethod
    def presets(cls) -> dict[str, "PecParameters"]:
        return {
            "small": cls(width=10, margin_bits=7, fraction=3, precision=4, limb=4),
            "default": cls(),
            "pipelined": cls(stages=3),
        }

    @property
    def exp2(self) -> Exp2FixedParameters:
        return Exp2FixedParameters(0, self.fraction, self.precision, self.precision)

    @property
    def depth_bits(self) -> int:
        """Of minus a term's exponent, signed; one more than a logarithm's integer part."""
        return self.width + 1 - self.fraction

    @property
    def place_bits(self) -> int:
        """Of a place within a limb."""
        return self.limb.bit_length() - 1

    @property
    def limb_bits(self) -> int:
        """Of a limb's number, signed."""
        return self.depth_bits - self.place_bits


class Pec(Datapath):
    """term = 2^(t - least), rounded down; difference = term - the earlier term.

    A term is significand 2^-(depth + precision), the significand of :class:`Exp2Fixed`, always with
    its first bit set. For sums, it is put on a grid of limbs: limb number L holds the bits of
    weights 2^(limb L) to 2^(limb (L + 1) - 1), and a term with its first bit in limb L has bits in
    limbs L and L - 1 only. The difference has two limbs too, ``high`` of number ``limb`` and
    ``low`` of the next lower one, both signed: those of the new term less those of the old, in
    the higher one's limbs. What the lower one has beneath them is left out.

    That makes sums exact whatever order terms come and go in. Whoever adds up differences keeps the
    two limbs of the largest term so far, and no carry from one to the other: then dropping the
    lower limb when a larger term comes drops those bits of all terms, as does adding the
    difference to an earlier term of which only the higher limb is left.

    Nothing is new if a token is pruned (``drop``), nothing old at its first chunk (not ``there``).

    Accuracy: a term is below 2^(t - least), by less than 2^(1 - precision) of it. Latency:
    `stages`. Overflow: none, the exponent holds every t. Source: Token-Picker, section 4.1 (3).

    Members
    -------
    t : :py:`In(signed(width))`
    least : :py:`In(unsigned(margin_bits))`
        In units of 2^-fraction, as `t` is.
    drop, there : :py:`In(unsigned(1))`
    old_depth : :py:`In(signed(depth_bits))`
    old_significand : :py:`In(unsigned(precision))`
    depth : :py:`Out(signed(depth_bits))`
    significand : :py:`Out(unsigned(precision))`
        The new term, also if it is dropped.
    limb : :py:`Out(signed(limb_bits))`
    high, low : :py:`Out(signed(limb + 1))`
        The difference; 0 if there is neither a new nor an old term, and `limb` is arbitrary then.
    """

    summary = "A token's share of the denominator, and its difference to the earlier one"
    source = "Token-Picker, section 4.1"

    def __init__(self, parameters: PecParameters):
        p = parameters
        term = {"depth": signed(p.depth_bits), "significand": unsigned(p.precision)}
        inputs = {
            "t": signed(p.width),
            "least": unsigned(p.margin_bits),
            "drop": unsigned(1),
            "there": unsigned(1),
            **{f"old_{name}": shape for name, shape in term.items()},
        }
        part = signed(p.limb + 1)
        outputs = {**term, "limb": signed(p.limb_bits), "high": part, "low": part}
        super().__init__(p, inputs, outputs)

    def elaborate(self, platform):
        m = Module()
        p, cut = self.parameters, self.registers(m)
        m.submodules.exp2 = exp2 = Exp2Fixed(p.exp2)
        minus = Signal(signed(p.width + 1))
        m.d.comb += minus.eq(self.least - self.t)
        minus, new, there, old_depth, old_significand = cut(
            "depth",
            minus=minus,
            new=~self.drop,
            there=self.there,
            old_depth=self.old_depth,
            old_significand=self.old_significand,
        )
        depth = Signal(signed(p.depth_bits), name="new_depth")
        m.d.comb += [exp2.x.eq(minus[: p.fraction]), depth.eq(minus >> p.fraction)]
        significand, depth, new, there, old_depth, old_significand = cut(
            "significand",
            significand=exp2.y,
            depth=depth,
            new=new,
            there=there,
            old_depth=old_depth,
            old_significand=old_significand,
        )
        limb, parts = self._placed(m, "new", depth, significand)
        old_limb, old_parts = self._placed(m, "old", old_depth, old_significand)
        ahead = Signal(signed(p.limb_bits + 1))  # limbs by which the new term is above the old
        new_on = Signal(2)
        old_on = Signal(2)  # the difference's limb is: the term's, the next
        m.d.comb += ahead.eq(limb - old_limb)
        both = new & there
        m.d.comb += [
            new_on.eq(_where(new, both, ahead >= 0, ahead == -1)),
            old_on.eq(_where(there, both, ahead <= 0, ahead == 1)),
        ]
        high, low = (Signal(signed(p.limb + 1), name=f"difference_{n}") for n in ("high", "low"))
        m.d.comb += [
            high.eq(_part(parts[1], new_on[0]) - _part(old_parts[1], old_on[0])),
            low.eq(
                (_part(parts[0], new_on[0]) | _part(parts[1], new_on[1]))
                - (_part(old_parts[0], old_on[0]) | _part(old_parts[1], old_on[1]))
            ),
        ]
        higher = Mux(new_on[0], limb, old_limb)
        results = cut(
            "result",
            depth=depth,
            significand=significand,
            limb=higher,
            high=high,
            low=low,
        )
        m.d.comb += [
            getattr(self, name).eq(result)
            for name, result in zip(self.results, results, strict=True)
        ]
        return m

    def _placed(self, m: Module, name: str, depth: Value, significand: Value):
        """Number of a term's upper limb, and its lower and upper limb."""
        p = self.parameters
        # The first bit's weight is 2^-(depth + 1), and -(x + 1) is ~x.
        first = Signal(signed(p.depth_bits), name=f"first_{name}")
        placed = Signal(2 * p.limb, name=f"placed_{name}")
        number = Signal(signed(p.limb_bits), name=f"limb_{name}")
        m.d.comb += [
            first.eq(~depth),
            number.eq(first >> p.place_bits),
            placed.eq(significand << (p.limb + 1 - p.precision) << first[: p.place_bits]),
        ]
        return number, (placed[: p.limb], placed[p.limb :])


def _where(here: Value, both: Value, upper: Value, next_lower: Value) -> Value:
    """Two bits: a term's upper limb is the difference's high one; its low one."""
    return Cat(here & (~both | upper), both & next_lower)


def _part(limb: Value, there: Value) -> Value:
    return limb & there.replicate(len(limb))
