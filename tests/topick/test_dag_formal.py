"""The denominator is never above the exact one; unbounded proof with two lanes and three tokens.

A token's term is what the lane knows of 2^(c s), where s is its score: at most that, and more with
every chunk. Tokens get, replace and lose their terms in any order, both lanes at once, and the
head ends at any time. The real :class:`hw.topick.pec.Pec` makes the differences. The denominator,
`latency` cycles later, is then

    S = sum over the tokens that have a term of (the term without its bits below the lower limb)

where the upper limb is that of the largest term since the head began. It is known exactly when S is
not 0, and its logarithm is at most log2 S. As S leaves bits of positive terms out, it is at most
the sum of the latest terms.

The core's guarantee, that no token of an exact probability above the threshold is pruned, follows
in three steps:

1. Here: the logarithm that lanes get is at most that of the sum of the terms that tokens had some
   cycles before.
2. :mod:`tests.topick.test_pe_lane_formal`: a token's term is at most 2^(c s), at every chunk. With
   the scoreboard's proof a token's earlier term comes back with its next chunk, so a token has one
   term at a time. The sum is therefore at most the exact denominator, the sum of 2^(c s) over all
   tokens of the head, however old it is; a token without a term counts as 0.
3. The same proof: with a denominator that is at most the exact one, a token is pruned only if its
   exact probability is below the threshold.

More tokens than three make the limbs' sums larger, and nothing else: each limb of a term is below
2^limb, and a sum has 14 bits more, for at most 2^13 tokens. More lanes add levels to the tree,
which has no state between heads.
"""

import math

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cat,
    Cover,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    Value,
    signed,
)

from hw.topick import dag, pec
from hw.topick.dag import Dag, DagParameters
from hw.topick.pec import Pec, PecParameters
from sim.checks.formal.specs import Internals, reset_first
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

TERM = PecParameters(width=6, margin_bits=4, fraction=1, precision=2, limb=2)
SIZE = DagParameters(
    lanes=2, width=6, fraction=1, precision=2, limb=2, limb_bits=TERM.limb_bits, tokens=4
)
LANES_OF_TOKENS = {"two": (0, 1), "three": (0, 0, 1)}
AFTER_TOTAL = 4  # cycles from the accumulator to the output


class _Term:
    """A token's term at some time."""

    def __init__(self, name: str):
        self.valid = Signal(name=f"{name}_valid")
        self.shift = Signal(signed(TERM.shift_bits), name=f"{name}_shift")
        self.significand = Signal(TERM.precision, name=f"{name}_significand")

    @property
    def number(self) -> Value:
        """Of its upper limb."""
        return ~self.shift >> TERM.offset_bits

    @property
    def bits(self) -> Value:
        return Cat(self.valid, self.shift, self.significand)

    def cut(self, m: Module, number: Value, label: str) -> Signal:
        """Its bits in limbs `number` and `number` - 1, in units of the lower limb; its own upper
        limb is not above. A term is significand 2^-(shift + precision)."""
        left = Signal(signed(TERM.shift_bits + 4), name=f"left_{label}")
        found = Signal(2 * TERM.limb, name=f"cut_{label}")
        kept = Signal(2 * TERM.limb + 1, name=f"kept_{label}")
        m.d.comb += [
            left.eq(-self.shift - TERM.precision - TERM.limb * (number - 1)),
            kept.eq(Mux(left >= 0, self.significand << left[:3], self.significand >> (-left)[:2])),
            found.eq(Mux(self.valid & (left > -TERM.precision), kept, 0)),
        ]
        return found


class _Terms:
    """All tokens' terms at some time, and the upper limb's number of the largest one so far."""

    def __init__(self, name: str, count: int):
        self.tokens = [_Term(f"{name}_{n}") for n in range(count)]
        self.any = Signal(name=f"{name}_any")
        self.top = Signal(signed(TERM.limb_bits), name=f"{name}_top")


class DenominatorSpec(Elaboratable):
    """Any sequence of terms, of scores between the limits; see the module's text.

    Parameters
    ----------
    tokens : str
        How many; each belongs to a lane.
    """

    def __init__(
        self, dut: Dag, tokens: str = "three", terms: type[Pec] = Pec, inductive: bool = True
    ):
        self.dut, self._pec, self._inductive = dut, terms, inductive
        self._lanes = LANES_OF_TOKENS[tokens]

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        live = ~first
        m.d.comb += dut.clear.eq(AnySeq(1))
        # Terms after all differences accepted so far, and one cycle before.
        latest, before = (_Terms(name, len(self._lanes)) for name in ("latest", "before"))
        arrives, in_tree = Signal(), Signal()  # a difference
        m.d.comb += arrives.eq(Cat(port.valid for port in dut.difference).any())
        m.d.sync += in_tree.eq(arrives)
        m.d.comb += Assume(~dut.clear | ~(arrives | in_tree))
        # 1, 2, ... cycles ago; a reset leaves any sum, and any sum of limbs.
        cleared = Signal(AFTER_TOTAL + 1, init=0b11)
        m.d.sync += cleared.eq(Cat(dut.clear, cleared))
        tops = [(latest.any, latest.top)]
        for lane, port in enumerate(dut.difference):
            tops.append(self._send(m, lane, port, latest, live, *tops[-1]))
        m.d.sync += [latest.any.eq(tops[-1][0]), latest.top.eq(tops[-1][1])]
        for old, new in zip(before.tokens, latest.tokens, strict=True):
            m.d.sync += old.bits.eq(new.bits)
        m.d.sync += [before.any.eq(latest.any), before.top.eq(latest.top)]
        with m.If(dut.clear):
            for terms in (latest, before):
                m.d.sync += [terms.any.eq(0), *(t.valid.eq(0) for t in terms.tokens)]

        # The sum, as far as it has passed to the output.
        cuts = [t.cut(m, before.top, f"before_{n}") for n, t in enumerate(before.tokens)]
        known, total, top = Signal(name="known_0"), Signal(6), before.top
        m.d.comb += [total.eq(sum(cuts)), known.eq(before.any & (total != 0))]
        held = sum(t.valid for t in before.tokens)
        several = Signal(name="several_0")
        m.d.comb += several.eq((held == len(cuts)) & (cuts[0] != 0) & (cuts[0] != cuts[1]))
        aged = []
        for age in range(1, AFTER_TOTAL + 1):
            rows = []
            for of, name in ((known, "known"), (total, "total"), (top, "top"), (several, "more")):
                row = Signal(of.shape(), name=f"{name}_{age}")
                m.d.sync += row.eq(of)
                rows.append(row)
            known, total, top, several = rows
            aged.append((known, total, top))

        found = Signal(signed(SIZE.width + 3))  # log2 of the sum in units of the lower limb
        lower = (top - 1) << SIZE.fraction + TERM.offset_bits
        m.d.comb += found.eq(dut.denominator.log2 - lower)
        # The least sum of each logarithm, whose units are halves: the next integer to 2^(n / 2).
        least = Array(math.isqrt((1 << n) - 1) + 1 for n in range(14))
        with m.If(live):
            # The sum that is cleared is there for a cycle more.
            stale = cleared[-1]
            m.d.comb += Assert((dut.denominator.known == known) | stale, "known at a wrong time")
            with m.If(dut.denominator.known & ~stale):
                m.d.comb += [
                    Assert((found >= 0) & (found < 12), "far from the sum"),
                    Assert(least[found[:4]] <= total, "above the sum"),
                    Assert(total < least[found[:4] + 2], "far below the sum"),
                ]
        m.d.comb += [
            Cover(dut.denominator.known & several, "all terms"),
            Cover(dut.denominator.known & (total == 1) & (top == 3), "little is left"),
        ]
        if self._inductive:
            with m.If(live):
                self._tie(m, Internals(fragment), latest, before, cuts, aged[0], cleared)
        return m

    def _send(self, m: Module, lane: int, port, latest: _Terms, live, known, top):
        """A lane's difference, if any; returns whether there has been one, and the top limb."""
        m.submodules[f"pec_{lane}"] = unit = self._pec(TERM)
        mine = [n for n, of in enumerate(self._lanes) if of == lane]
        sends = Signal(name=f"sends_{lane}")
        picked = Signal(range(len(self._lanes)), name=f"picked_{lane}")
        limit = 1 << TERM.width - 2
        m.d.comb += [
            picked.eq(AnySeq(len(picked))),
            Assume((picked >= mine[0]) & (picked <= mine[-1])),
            sends.eq(AnySeq(1) & live),
            unit.t.eq(AnySeq(TERM.width)),
            unit.least.eq(AnySeq(TERM.margin_bits)),
            unit.drop.eq(AnySeq(1)),
            # A lane sends nothing for a token that is pruned at its first chunk.
            Assume(unit.old_valid | ~unit.drop),
            Assume((unit.t <= limit) & (unit.t - unit.least >= -limit)),
        ]
        for n in mine:
            token = latest.tokens[n]
            with m.If(picked == n):
                m.d.comb += [
                    unit.old_valid.eq(token.valid),
                    unit.old_shift.eq(token.shift),
                    unit.old_significand.eq(token.significand),
                ]
                with m.If(sends):
                    m.d.sync += [
                        token.valid.eq(~unit.drop),
                        token.shift.eq(unit.shift),
                        token.significand.eq(unit.significand),
                    ]
        m.d.comb += [
            port.valid.eq(sends),
            port.payload.limb.eq(unit.limb),
            port.payload.high.eq(unit.high),
            port.payload.low.eq(unit.low),
            Assert(port.ready, "a difference is refused"),
        ]
        number = ~unit.shift >> TERM.offset_bits
        is_term = sends & ~unit.drop
        higher = is_term & (~known | (number > top))
        next_top = Signal(signed(TERM.limb_bits), name=f"top_after_{lane}")
        m.d.comb += next_top.eq(Mux(higher, number, top))
        return known | is_term, next_top

    def _tie(self, m: Module, internals: Internals, latest, before, cuts, aged, cleared) -> None:
        """The accumulator is the terms one cycle before; the tree's register, what has changed."""
        limb = TERM.limb
        total, change = (
            {name: internals.signal(f"{of}_{name}") for name in ("valid", "number", "high", "low")}
            for of in ("total", "sum_0_0")
        )
        # Scores are between the limits, and so are terms.
        limit = 1 << TERM.width - 2 - TERM.fraction
        least, most = ~limit >> TERM.offset_bits, limit - 1 >> TERM.offset_bits
        for terms in (latest, before):
            m.d.comb += Assert(~terms.any | ((terms.top >= least) & (terms.top <= most)))
            for token in terms.tokens:
                inside = (token.shift >= -limit) & (token.shift <= limit)
                m.d.comb += Assert(~token.valid | inside)
                m.d.comb += Assert(~token.valid | (terms.any & (token.number <= terms.top)))
        m.d.comb += Assert(total["valid"] == before.any)
        with m.If(before.any):
            m.d.comb += [
                Assert(total["number"] == before.top),
                Assert(total["high"] == sum(cut[limb:] for cut in cuts)),
                Assert(total["low"] == sum(cut[:limb] for cut in cuts)),
            ]
        known, value, top = aged
        units = internals.signal("units")
        m.d.comb += Assert(((units != 0) == known) | cleared[1])
        with m.If(~before.any & ~cleared[0]):
            m.d.comb += [Assert(total["high"] == 0), Assert(total["low"] == 0)]
        with m.If(known):
            m.d.comb += [Assert(units == value), Assert(internals.signal("base") == top - 1)]
        high = low = 0
        for n, (new, old) in enumerate(zip(latest.tokens, before.tokens, strict=True)):
            changed = Signal(name=f"changed_{n}")
            m.d.comb += changed.eq((new.valid != old.valid) | (new.valid & (new.bits != old.bits)))
            m.d.comb += Assert(~changed | change["valid"])
            for sign, label, term in ((1, "new", new), (-1, "old", old)):
                cut = term.cut(m, change["number"], f"{label}_{n}")
                high = high + sign * Mux(changed, cut[limb:], 0)
                low = low + sign * Mux(changed, cut[:limb], 0)
                m.d.comb += Assert(~(changed & term.valid) | (term.number <= change["number"]))
        higher = ~before.any | (change["number"] > before.top)
        with m.If(change["valid"]):
            m.d.comb += [
                Assert(change["high"] == high),
                Assert(change["low"] == low),
                Assert(latest.any),
                Assert(latest.top == Mux(higher, change["number"], before.top)),
            ]
        with m.Else():
            m.d.comb += Assert(latest.any == before.any)
            m.d.comb += Assert(~latest.any | (latest.top == before.top))


@pytest.mark.parametrize("tokens", ["two", pytest.param("three", marks=pytest.mark.campaign)])
def test_proof(tokens):
    spec = DenominatorSpec(Dag(SIZE), tokens)
    prove_block(spec, f"dag_{tokens}", depth=4, seconds=560)


def test_cover():
    spec = DenominatorSpec(Dag(SIZE), inductive=False)
    prove_block(spec, "dag", "cover", depth=12, seconds=560)


FAULTS = {
    "no_upper_limb": (dag, "made.high.eq(a_high + b_high)", "made.high.eq(a_high)"),
    "no_lower_limb": (dag, "made.low.eq(a_low + b_low)", "made.low.eq(a_low)"),
    "nothing_moves_down": (dag, "Mux(lower, of.high, 0)", "0"),
    "two_limbs_apart": (dag, "of.valid & (above == -1)", "of.valid & (above <= -1)"),
    "lower_number": (dag, "Mux(a_same, a.number, b.number)", "Mux(a_same, b.number, a.number)"),
    "limb_number": (dag, "base.eq(total.number - 1)", "base.eq(total.number)"),
    "sum_stays": (dag, "total.valid.eq(new.valid & ~self.clear)", "total.valid.eq(new.valid)"),
    "zero_is_known": (dag, "else units != 0", "else 1"),
    "always_known": (dag, "known[stage].eq(before)", "known[stage].eq(1)"),
    "other_bits_cut": (pec, "old_lower.eq(both & (ahead == 1))", "old_lower.eq(0)"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    module, line, instead = FAULTS[fault]
    faulty = with_fault(module, line, instead)
    dut, terms = (faulty.Dag(SIZE), Pec) if module is dag else (Dag(SIZE), faulty.Pec)
    spec = DenominatorSpec(dut, terms=terms, inductive=False)
    find_fault(spec, f"dag_{fault}", "known at|the sum", depth=12, seconds=560)
