"""The order of a lane's rows: rules of streams, and each row exactly once; unbounded proof."""

from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Signal

from hw.topick import token_order
from hw.topick.token_order import Next, TokenOrder
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

ROW_BITS = 4


class OrderSpec(Elaboratable):
    """Heads of any length and flags: their rows in order, one after another without a gap.

    The rows given are a set, so that none comes twice. The next one is row `tokens` - 1 if
    ``newest`` and nothing was given; row 0 if ``first`` and it was not given; or else the highest
    of those not given. After `tokens` rows the head is complete, and the next may start.

    Attributes
    ----------
    given : Signal
        A bit for each row of the head.
    tokens, newest, first : Signal
        The head's start.
    number : Signal
        Rows given.
    """

    def __init__(self, dut: TokenOrder, row_bits: int, inductive: bool = True):
        self.dut, self._row_bits, self._inductive = dut, row_bits, inductive
        self.given = Signal(1 << row_bits)
        self.tokens, self.number = Signal(row_bits + 1), Signal(row_bits + 1)
        self.newest, self.first = Signal(), Signal()

    def elaborate(self, platform):
        m = Module()
        dut, rows = self.dut, 1 << self._row_bits
        first, internals = surround(m, dut)
        live = ~first
        start, row = dut.start.payload, dut.token.payload
        starts, gives = Signal(), Signal()
        m.d.comb += [
            Assume(~dut.start.valid | (start.tokens <= rows)),
            starts.eq(dut.start.valid & dut.start.ready & live),
            gives.eq(dut.token.valid & dut.token.ready & live),
        ]
        with m.If(gives):
            m.d.sync += [
                self.number.eq(self.number + 1),
                self.given.eq(self.given | (1 << row)),
            ]
        with m.If(starts):
            m.d.sync += [
                self.number.eq(0),
                self.given.eq(0),
                self.tokens.eq(start.tokens),
                self.newest.eq(start.newest),
                self.first.eq(start.first),
            ]
        expected = Signal(self._row_bits)
        highest = Signal(self._row_bits)  # of those not given
        for number in range(rows):
            with m.If((number < self.tokens) & ~self.given[number]):
                m.d.comb += highest.eq(number)
        with m.If(self.newest & (self.number == 0)):
            m.d.comb += expected.eq(self.tokens - 1)
        with m.Elif(self.first & ~self.given[0]):
            m.d.comb += expected.eq(0)
        with m.Else():
            m.d.comb += expected.eq(highest)
        with m.If(live):
            m.d.comb += [
                Assert(dut.token.valid == (self.number != self.tokens), "rows left out or added"),
                Assert(~dut.token.valid | (row == expected), "wrong row"),
                Assert(~dut.token.valid | (row < self.tokens), "a row out of range"),
                Assert(~dut.token.valid | ~self.given.bit_select(row, 1), "a row twice"),
                Assert(
                    dut.start.ready == (self.number + dut.token.ready >= self.tokens),
                    "a gap between heads",
                ),
            ]
            if self._inductive:
                self._tie(m, internals)
        last = gives & (self.number + 1 == self.tokens)
        m.d.comb += [
            Cover(last & (self.tokens == 5) & self.newest & self.first, "five rows"),
            Cover(last & (self.tokens == rows) & ~self.newest & self.first, "all rows"),
            Cover(last & (self.tokens == 1) & self.newest & self.first & starts, "one row"),
        ]
        return m

    def _tie(self, m, internals):
        left, highest = internals.signal("left"), internals.signal("highest")
        first, which = internals.signal("first"), internals.signal("which")
        gave_first = self.first & self.given[0] & (self.tokens > 1)
        # Rows in descending order that were given: without row 0 out of its turn.
        descended = Signal(self._row_bits + 1)
        early = Signal()  # row 0 came before its turn
        m.d.comb += [
            early.eq(gave_first),
            descended.eq(self.number - early),
            Assert(left == self.tokens - self.number),
            Assert(self.number <= self.tokens),
            Assert(self.tokens <= 1 << self._row_bits),
            Assert((left == 0) | (highest == (self.tokens - 1 - descended)[: self._row_bits])),
            Assert((which != Next.NEWEST) | (self.newest & (self.number == 0)) | (left == 0)),
            Assert((which != Next.NEWEST) | (first == self.first) | (left == 0)),
        ]
        with m.If(left != 0):
            is_first = self.first & ~self.given[0] & ~(self.newest & (self.number == 0))
            is_newest = self.newest & (self.number == 0)
            m.d.comb += [
                Assert((which == Next.NEWEST) == is_newest),
                Assert((which == Next.FIRST) == is_first),
            ]
        for number in range(1 << self._row_bits):
            is_given = number + descended >= self.tokens
            is_first = (number == 0) & early
            with m.If(number < self.tokens):
                m.d.comb += Assert(self.given[number] == (is_given | is_first))
            with m.Else():
                m.d.comb += Assert(~self.given[number])


def test_proof():
    prove_block(OrderSpec(TokenOrder(ROW_BITS), ROW_BITS), "token_order", depth=2)


def test_cover():
    spec = OrderSpec(TokenOrder(ROW_BITS), ROW_BITS, inductive=False)
    prove_block(spec, "token_order", "cover", depth=20)


FAULTS = {
    "never_first": ("(which == Next.NEWEST) & first", "0", "wrong row"),
    "first_always": ("m.Elif(start.first)", "m.Elif(1)", "wrong row"),
    "ignores_newest": ("with m.If(start.newest)", "with m.If(0)", "wrong row"),
    "first_counts_down": (
        """                m.d.sync += which.eq(Next.DESCENDING)
            with m.If(which != Next.FIRST):""",
        """                m.d.sync += which.eq(Next.DESCENDING)
            with m.If(1):""",
        "a row out of range|wrong row",
    ),
    "row_missing": ("left.eq(start.tokens)", "left.eq(start.tokens - 1)", "left out"),
    "gap": ("| ((left == 1) & self.token.ready)", "", "a gap"),
    "too_early": ("(left == 1) & self.token.ready", "left == 1", "a gap|left out"),
}


test_injected_fault_is_found = fault_test(
    token_order,
    FAULTS,
    lambda m: OrderSpec(m.TokenOrder(ROW_BITS), ROW_BITS, inductive=False),
    depth=10,
)
