"""The order of a lane's rows: each row exactly once; unbounded proof."""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Fragment, Module, Signal

from hw.topick import token_order
from hw.topick.token_order import TokenOrder
from sim.checks.formal.specs import Internals, reset_first
from tests.support.formal import fault_test, prove_block

ROW_BITS = 4


class OrderSpec(Elaboratable):
    """Heads of any length and flags, each after any time, in the middle of another too: the rows.

    The rows taken are a set, so that none comes twice. The next one is row `tokens` - 1 if
    ``newest`` and nothing was taken; row 0 if the lane holds it and it was not taken; or else the
    highest of those not taken. At most `tokens` rows are taken.

    Attributes
    ----------
    given : Signal
        A bit for each row of the head that was taken.
    tokens, newest : Signal
        The head's start.
    number : Signal
        Rows taken.
    """

    def __init__(self, dut: TokenOrder, row_bits: int, holds: bool, inductive: bool = True):
        self.dut, self._row_bits, self._inductive = dut, row_bits, inductive
        self.first = holds
        self.given = Signal(1 << row_bits)
        self.tokens, self.number = Signal(row_bits + 1), Signal(row_bits + 1)
        self.newest = Signal()

    def elaborate(self, platform):
        m = Module()
        dut, rows = self.dut, 1 << self._row_bits
        m.submodules.dut = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        internals, live, row = Internals(fragment), ~first, dut.row
        left = self.number != self.tokens
        m.d.comb += [
            dut.start.eq(AnySeq(1)),
            dut.take.eq(AnySeq(1)),
            dut.tokens.eq(AnySeq(len(dut.tokens))),
            dut.newest.eq(AnySeq(1)),
            Assume(dut.tokens <= rows),
            Assume(~dut.take | left),
        ]
        with m.If(dut.take & live):
            m.d.sync += [
                self.number.eq(self.number + 1),
                self.given.eq(self.given | (1 << row)),
            ]
        with m.If(dut.start & live):
            m.d.sync += [
                self.number.eq(0),
                self.given.eq(0),
                self.tokens.eq(dut.tokens),
                self.newest.eq(dut.newest),
            ]
        expected = Signal(self._row_bits)
        highest = Signal(self._row_bits)  # of those not given
        for number in range(rows):
            with m.If((number < self.tokens) & ~self.given[number]):
                m.d.comb += highest.eq(number)
        with m.If(self.newest & (self.number == 0)):
            m.d.comb += expected.eq(self.tokens - 1)
        with m.Elif(~self.given[0] & self.first):
            m.d.comb += expected.eq(0)
        with m.Else():
            m.d.comb += expected.eq(highest)
        with m.If(live & left):
            m.d.comb += [
                Assert(row == expected, "wrong row"),
                Assert(row < self.tokens, "a row out of range"),
                Assert(~self.given.bit_select(row, 1), "a row twice"),
            ]
        if self._inductive:
            with m.If(live):
                self._tie(m, internals, left)
        last = dut.take & (self.number + 1 == self.tokens)
        m.d.comb += [
            Cover(last & (self.tokens == 5) & self.newest, "five rows"),
            Cover(last & (self.tokens == rows) & ~self.newest, "all rows"),
            Cover(last & (self.tokens == 1) & self.newest & dut.start, "one row"),
        ]
        return m

    def _tie(self, m, internals, left):
        highest = internals.signal("highest")
        gave_first = self.given[0] & (self.tokens > 1) & self.first
        # Rows in descending order that were given: without row 0 out of its turn.
        descended = Signal(self._row_bits + 1)
        early = Signal()  # row 0 came before its turn
        m.d.comb += [
            early.eq(gave_first),
            descended.eq(self.number - early),
            Assert(self.number <= self.tokens),
            Assert(self.tokens <= 1 << self._row_bits),
            Assert(~left | (highest == (self.tokens - 1 - descended)[: self._row_bits])),
        ]
        if self.first:
            is_first = ~self.given[0] & ~(self.newest & (self.number == 0))
            is_newest = self.newest & (self.number == 0)
            with m.If(left):
                m.d.comb += [
                    Assert(internals.signal("then_zero") == is_newest),
                    Assert(internals.signal("zero") == is_first),
                ]
        for number in range(1 << self._row_bits):
            is_given = number + descended >= self.tokens
            is_first = (number == 0) & early
            with m.If(number < self.tokens):
                m.d.comb += Assert(self.given[number] == (is_given | is_first))
            with m.Else():
                m.d.comb += Assert(~self.given[number])


@pytest.mark.parametrize("holds", [True, False])
def test_proof(holds):
    prove_block(OrderSpec(TokenOrder(ROW_BITS, holds), ROW_BITS, holds), "token_order", depth=2)


def test_cover():
    spec = OrderSpec(TokenOrder(ROW_BITS, True), ROW_BITS, True, inductive=False)
    prove_block(spec, "token_order", "cover", depth=20)


FAULTS = {
    "never_first": ("[zero.eq(then_zero), ", "[zero.eq(0), ", "wrong row"),
    "first_twice": (", then_zero.eq(0)]", ", then_zero.eq(then_zero)]", "a row out of range|wrong"),
    "ignores_newest": ("zero.eq(~self.newest)", "zero.eq(1)", "wrong row"),
    "first_counts_down": ("self.take & ~zero", "self.take", "a row out of range|wrong row"),
    "stays": ("highest.eq(highest - 1)", "highest.eq(highest)", "a row twice|wrong row"),
    "a_row_early": ("highest.eq(self.tokens - 1)", "highest.eq(self.tokens)", "wrong row"),
}


test_injected_fault_is_found = fault_test(
    token_order,
    FAULTS,
    lambda m: OrderSpec(m.TokenOrder(ROW_BITS, True), ROW_BITS, True, inductive=False),
    depth=10,
)
