"""Denominator aggregation: the sum of the lanes' differences, and its logarithm
(Token-Picker, section 4 (3))."""

import dataclasses
import functools

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data

from hw.arith.log2_fixed import Log2Fixed, Log2FixedParameters
from hw.component import Component
from hw.layout import FLAG, FixedPoint, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, wire_in, wire_out

HEADROOM = 14
"""Bits of sums above two limbs, at most."""


@dataclasses.dataclass(frozen=True)
class DagParameters(Parameters):
    """
    lanes
        Number of lanes whose differences are added.
    width, fraction
        Width of a binary logarithm, signed, and its fraction bits.
    precision, limb, limb_bits
        Widths of a term's significand, of a limb, and of a limb's number; see
        :class:`hw.topick.pec.Pec`.
    tokens
        Most tokens of a head: terms that are added up.
    """

    lanes: int = 1
    width: int = 32
    fraction: int = 10
    precision: int = 12
    limb: int = 16
    limb_bits: int = 19
    tokens: int = 1024

    def __post_init__(self):
        require(1 <= self.lanes <= 64, "lanes must be between 1 and 64", self.lanes)
        power = self.limb > 1 and self.limb & (self.limb - 1) == 0
        # log2 of a sum takes 62 bits.
        rule = f"limb must be a power of two between {self.precision} (precision) and 16"
        require(power and self.precision <= self.limb <= 16, rule, self.limb)
        rule = f"tokens must be between 1 and 2^{HEADROOM - 1}"
        require(1 <= self.tokens <= 1 << HEADROOM - 1, rule, self.tokens)
        # Scores are between -2^(width - 2) and 2^(width - 2), see hw.topick.scores. A sum is at
        # most `tokens` times the largest, and at least one unit of the limb below the smallest's.
        above = (self.tokens - 1).bit_length() + 2
        room = max(above, 2 * self.limb + 2) << self.fraction
        rule = f"width must leave room for log2 of a sum of {self.tokens} terms"
        require(1 << self.width - 2 > room, rule, self.width)

    @classmethod
    def presets(cls) -> dict[str, "DagParameters"]:
        return {
            "small": cls(2, width=14, fraction=4, precision=6, limb=8, limb_bits=8, tokens=64),
            "default": cls(),
            "paper": cls(lanes=16, tokens=2048),
        }

    @property
    def levels(self) -> int:
        """Number of levels of the tree of lanes."""
        return (self.lanes - 1).bit_length()

    @property
    def headroom(self) -> int:
        """Bits of sums above two limbs: each limb of a sum is below 2^limb `tokens`."""
        return (self.tokens - 1).bit_length() + 1

    @property
    def latency(self) -> int:
        """Cycles from a difference to the logarithm that has it."""
        return self.levels + 5

    @functools.cached_property
    def log2(self) -> Log2FixedParameters:
        # A term is below 2^(2 limb) units of the lower limb.
        width = max(2 * self.limb + self.headroom - 1, self.fraction + 1)
        return Log2FixedParameters(width, self.fraction, self.fraction, stages=2)

    @functools.cached_property
    def difference_layout(self) -> data.StructLayout:
        """The output of :class:`hw.topick.pec.Pec`."""
        part = integer(signed(self.limb + 1))
        return data.StructLayout(
            {"limb": integer(signed(self.limb_bits)), "high": part, "low": part}
        )

    @functools.cached_property
    def denominator_layout(self) -> data.StructLayout:
        """``log2``: of the denominator, rounded down, if it is ``known``."""
        logarithm = FixedPoint(signed(self.width), self.fraction)
        return data.StructLayout({"log2": logarithm, "known": FLAG})


@dataclasses.dataclass
class _Sum:
    """(high 2^limb + low) 2^(limb (number - 1)); nothing has been added unless `valid`."""

    valid: Signal
    number: Signal
    high: Signal
    low: Signal


class Dag(Component[DagParameters]):
    """log2 of the sum of all terms, from the lanes' differences.

    A difference, and the sum, are two signed limbs, of which the upper one has a number; limb
    `number` has the weight 2^(limb number). Two of them are added in the limbs of the one with the
    higher number. What the other one has below these is left out::

        a            |     high      |      low      |                |
        b                            |     high      |      low       |
        a + b        |     high      |  low + high   |   (left out)

    Nothing is carried from low to high. So bits below the lower limb are left out of all terms
    alike, in any order of additions, and a sum at any time is exactly the sum of the latest terms
    of all tokens that are not pruned, each without its bits below the lower limb. As these are
    positive, the denominator is never above the exact one. This has an unbounded proof; as a term
    is never too large either, see :class:`hw.topick.pec.Pec`, no token is pruned wrongly.

    Pipeline: a tree of lanes, one level per cycle; the accumulator; the limbs' sum; its logarithm,
    in two stages, rounded down; the result.

    Latency: ⌈log2 lanes⌉ + 5 cycles from a difference to the logarithm that has it. Throughput: a
    difference of each lane per cycle. Overflow: none.

    ``clear`` forgets the sum, and so all differences, if none arrives in its cycle and in the ⌈log2
    lanes⌉ ones before. It shows after 6 cycles, as a reset does: the logarithm is not ``known``
    until one has later differences.

    Examples
    --------
    >>> from hw.topick.dag import DagParameters
    >>> DagParameters(lanes=16).latency
    9
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "clear": wire_in(1, "No difference may be in the tree of lanes."),
            "difference": stream_in(p.difference_layout, "Always ready.").array(p.lanes),
            "denominator": wire_out(p.denominator_layout, "A standing value."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # The tree never stalls, so a lane's difference is in the denominator after a fixed time,
        # and a stalled lane cannot hold back the others' differences.
        sums = []
        for port in self.difference:
            m.d.comb += port.ready.eq(1)
            d = port.payload
            # Differences are always taken; a lane without one adds an invalid sum.
            sums.append(_Sum(port.valid, d.limb, d.high, d.low))
        # A tree with a register at each level adds the lanes' differences.
        for level in range(p.levels):
            pairs = [sums[n : n + 2] for n in range(0, len(sums), 2)]
            sums = [
                self._register(m, f"{level}_{n}", self._add(m, f"{level}_{n}", *pair))
                for n, pair in enumerate(pairs)
            ]
        [arriving] = sums
        # The accumulator. Its limbs are sums of at most `tokens` terms' limbs, and 0 from a cycle
        # after `clear` on.
        # The sum moves up with the largest limb so far: what is below two limbs is dropped.
        # A plain floating-point accumulator would lose low bits that an earlier term brought and a
        # later difference takes off; limbs drop them for all terms alike.
        total = self._signals("total", p.limb + p.headroom)
        new = self._add(m, "new", total, arriving)
        m.d.sync += [
            total.valid.eq(new.valid & ~self.clear),
            total.number.eq(new.number),
            total.high.eq(new.high),
            total.low.eq(new.low),
        ]
        # The limbs' sum, with the weight of the lower limb.
        units = Signal(p.log2.width, reset_less=True)
        base = Signal(signed(p.limb_bits + 1), reset_less=True)  # the lower limb's number
        m.d.sync += [
            units.eq(Cat(total.low[: p.limb], total.high + (total.low >> p.limb))),
            base.eq(total.number - 1),
        ]
        # log2, rounded down.
        m.submodules.log2 = log2 = Log2Fixed(p.log2)
        m.d.comb += [log2.enable.eq(1), log2.x.eq(units)]
        # Sum 0 has no logarithm; then, and after `clear` until a new difference has passed, it is
        # unknown. Logarithms that are in the pipeline at `clear` are of the head before. No token
        # is decided on with them, because the next head's first chunks are read meanwhile.
        known = Signal(p.log2.stages)
        bases = [base]
        for stage in range(p.log2.stages):
            before = known[stage - 1] if stage else units != 0
            m.d.sync += known[stage].eq(before)
            bases.append(Signal.like(base, name=f"base_{stage}", reset_less=True))
            m.d.sync += bases[-1].eq(bases[-2])
        m.d.sync += [
            self.denominator.known.eq(known[-1]),
            self.denominator.log2.eq((bases[-1] << p.fraction + p.limb.bit_length() - 1) + log2.y),
        ]
        return m

    def _signals(self, name: str, width: int) -> _Sum:
        return _Sum(
            Signal(name=f"{name}_valid"),
            Signal(signed(self.parameters.limb_bits), name=f"{name}_number", reset_less=True),
            Signal(signed(width), name=f"{name}_high", reset_less=True),
            Signal(signed(width), name=f"{name}_low", reset_less=True),
        )

    def _register(self, m: Module, name: str, of: _Sum) -> _Sum:
        made = self._signals(f"sum_{name}", len(of.high))
        m.d.sync += [
            made.valid.eq(of.valid),
            made.number.eq(of.number),
            made.high.eq(of.high),
            made.low.eq(of.low),
        ]
        return made

    def _add(self, m: Module, name: str, a: _Sum, b: _Sum | None = None) -> _Sum:
        """The sum in the limbs of the higher number."""
        if b is None:
            return a
        p = self.parameters
        # Sums grow by a bit a level, but never beyond what `tokens` terms need.
        width = min(max(len(a.high), len(b.high)) + 1, p.limb + p.headroom)
        made = self._signals(f"add_{name}", width)
        ahead = Signal(signed(p.limb_bits + 1), name=f"ahead_{name}")  # limbs of a above b
        m.d.comb += ahead.eq(a.number - b.number)
        # Each operand's limbs go to the result's limbs, one limb lower, or are left out.
        parts = []
        for label, of, other, above in (("a", a, b, ahead), ("b", b, a, -ahead)):
            same = Signal(name=f"{label}_same_{name}")
            lower = Signal(name=f"{label}_lower_{name}")
            m.d.comb += [
                same.eq(of.valid & (~other.valid | (above >= 0))),
                lower.eq(of.valid & (above == -1)),  # only looked at unless `same`
            ]
            high = Mux(same, of.high, 0)
            low = Mux(same, of.low, Mux(lower, of.high, 0))
            parts.append((same, high, low))
        (a_same, a_high, a_low), (_, b_high, b_low) = parts
        m.d.comb += [
            made.valid.eq(a.valid | b.valid),
            made.number.eq(Mux(a_same, a.number, b.number)),
            made.high.eq(a_high + b_high),
            made.low.eq(a_low + b_low),
        ]
        return made
