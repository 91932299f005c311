"""Who gets a vote: mean and deviation of the scores, exactly (VEDA, figure 3 and section V)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from hw.arith.partial_products import Bit, reduce_columns, rows
from hw.component import Component
from hw.parameters import Parameters

WEIGHT_BITS = 15
"""Of a and b: unsigned, below 8."""

WEIGHT_FRACTION = 12
LARGEST_WEIGHT = (1 << WEIGHT_BITS) - 1


@dataclasses.dataclass(frozen=True)
class VoteThresholdParameters(Parameters):
    """
    slots
        Most scores.
    number_bits
        Of what scores are sums of.
    largest
        The largest score.
    """

    slots: int
    number_bits: int
    largest: int

    @property
    def score_bits(self) -> int:
        return self.largest.bit_length()

    @property
    def sum_bits(self) -> int:
        """Of S1."""
        return (self.slots * self.largest).bit_length()

    @property
    def square_bits(self) -> int:
        """Of S2."""
        return (self.slots * self.largest**2).bit_length()

    @property
    def product_bits(self) -> int:
        """n, of A S1. A deviation is at most half of the largest, so its square has 2 n - 2."""
        return (LARGEST_WEIGHT * self.slots * self.largest).bit_length()

    @property
    def limit_bits(self) -> int:
        return (LARGEST_WEIGHT * self.largest >> WEIGHT_FRACTION).bit_length()

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``: 2 n for the radicand, n for its root and for A S1,
        1 for their difference, n - 12 for the quotient."""
        return 4 * self.product_bits + 1 - WEIGHT_FRACTION


class VoteThreshold(Component):
    """The largest score below a mean(s) - b std(s), without rounding.

    With S1 and S2 the sums of s and s^2 over l slots, a = A / 2^12, b = B / 2^12:

        r = isqrt(B^2 (l S2 - S1^2))
        negative = A S1 < sqrt(B^2 (l S2 - S1^2)),  nobody = A S1 <= r
        limit = floor((A S1 - r - 1) / (2^12 l))

    so that s < a mean(s) - b std(s) if and only if s <= limit and not nobody. ::

        s ─→ s^2 ─→ + ─→ S2 ┄→ × l ┐
        p ────────→ + ─→ S1 ┄→ × S1┴ - ┄→ × B ┄→ × B ─→ radicand ─→ root ┐
                      └┄┄┄┄┄→ × A ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄→ - ┴→ / l ─→ limit

    Sums are made as numbers come, S2 in carry-save form. The rest is bit by bit: along dotted lines
    one bit a cycle, the lowest first; the root and the quotient have one digit a cycle, the highest
    first. So no adder is longer than the root.

    Latency: `latency` cycles from ``start`` to ``done``; what it found stands until the next start.

    Members
    -------
    clear : :py:`In(1)`
        Begin new sums.
    add, number : :py:`In`
        Add a number to S1.
    square, score : :py:`In`
        Add a score's square to S2; it takes two cycles.
    start : :py:`In(1)`
        All are there.
    length : :py:`In(range(slots + 1))`
        l. Steady from `start` to `done`, like `a` and `b`, which are A and B.
    done : :py:`Out(1)`
        In the cycle before the results are there.
    negative, nobody, limit : :py:`Out`
        As above; `limit` is 0 or more if not `nobody`, and without meaning else.
    """

    def __init__(self, parameters: VoteThresholdParameters):
        p = self._parameters = parameters
        super().__init__(
            {
                "clear": In(1),
                "add": In(1),
                "number": In(p.number_bits),
                "square": In(1),
                "score": In(p.score_bits),
                "start": In(1),
                "length": In(range(p.slots + 1)),
                "a": In(WEIGHT_BITS),
                "b": In(WEIGHT_BITS),
                "done": Out(1),
                "negative": Out(1),
                "nobody": Out(1),
                "limit": Out(p.limit_bits),
            }
        )

    @property
    def parameters(self) -> VoteThresholdParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        n = p.product_bits
        total = Signal(p.sum_bits, reset_less=True)
        with m.If(self.clear):
            m.d.sync += total.eq(0)
        with m.Elif(self.add):
            m.d.sync += total.eq(total + self.number)

        left = Signal(range(2 * n))
        radicand = Signal(2 * n, reset_less=True)
        product = Signal(n, reset_less=True)  # A S1, less the root, what is not divided yet
        digits = Signal(n - 1, reset_less=True)  # of the root, of the quotient
        rest = Signal(n, reset_less=True)  # at most twice the root
        serial = Signal(p.sum_bits, reset_less=True)  # S1, bit by bit
        multiplying, rooting = Signal(), Signal()
        square_bit = self._squares(m, multiplying)
        bit = self._multiply(m, serial[0], self.a, LARGEST_WEIGHT, "mean", rooting)
        radicand_bit = self._radicand(m, square_bit, serial[0], total, multiplying)

        # The radicand's next two bits join the rest; then the root's next digit is tried.
        root_rest = Signal(n + 2)
        root_less = Signal(n + 3)
        m.d.comb += [
            root_rest.eq(Cat(radicand[-2:], rest)),
            root_less.eq(root_rest - Cat(Const(1, 2), digits)),
        ]
        # Likewise the quotient's, where the rest is below the divisor.
        short = len(self.length)
        quotient_rest = Signal(short + 1)
        quotient_less = Signal(short + 2)
        m.d.comb += [
            quotient_rest.eq(Cat(product[-1], rest[:short])),
            quotient_less.eq(quotient_rest - self.length),
        ]
        difference = Signal(n + 1)
        # The carry tells whether the root is less.
        m.d.comb += difference.eq(product + Cat(~digits, Const(1, 1)))

        m.d.sync += left.eq(left - 1)
        last = Signal()
        m.d.comb += last.eq(left == 0)
        m.d.comb += self.limit.eq(digits)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [serial.eq(total), left.eq(2 * n - 1)]
                with m.If(self.start):
                    m.next = "RADICAND"
            with m.State("RADICAND"):
                m.d.comb += multiplying.eq(1)
                m.d.sync += [
                    serial.eq(serial >> 1),
                    radicand.eq(Cat(radicand[1:], radicand_bit)),
                    digits.eq(0),
                    rest.eq(0),
                ]
                with m.If(last):
                    m.d.sync += [serial.eq(total), left.eq(n - 1)]
                    m.next = "ROOT"
            with m.State("ROOT"):
                m.d.comb += rooting.eq(1)
                m.d.sync += [
                    serial.eq(serial >> 1),
                    product.eq(Cat(product[1:], bit)),
                    radicand.eq(radicand << 2),
                    rest.eq(Mux(root_less[-1], root_rest, root_less)),
                    digits.eq(Cat(~root_less[-1], digits)),
                ]
                with m.If(last):
                    m.next = "DIFFERENCE"
            with m.State("DIFFERENCE"):
                exact = ~rest.any() & difference[:n].all()  # the root is A S1 itself
                m.d.sync += [
                    product.eq(difference),
                    self.nobody.eq(~difference[n]),
                    self.negative.eq(~difference[n] & ~exact),
                    digits.eq(0),
                    rest.eq(0),
                    left.eq(n - WEIGHT_FRACTION - 1),
                ]
                m.next = "QUOTIENT"
            with m.State("QUOTIENT"):
                m.d.comb += self.done.eq(last)
                m.d.sync += [
                    product.eq(product << 1),
                    rest.eq(Mux(quotient_less[-1], quotient_rest, quotient_less)[:short]),
                    digits.eq(Cat(~quotient_less[-1], digits)),
                ]
                with m.If(last):
                    m.next = "IDLE"
        return m

    def _squares(self, m: Module, shift: Signal) -> Value:
        """S2 in two rows; while they shift, the lowest bit of their sum, and a carry kept."""
        p = self._parameters
        product = Cat(*rows(reduce_columns(m, square_columns(self.score), 2)))
        waiting = Signal()
        square = Signal(len(product), reset_less=True)
        sums, carries = (Signal(p.square_bits, name=name, reset_less=True) for name in ("s", "c"))
        carry = Signal()
        m.d.sync += [waiting.eq(self.square), square.eq(product)]
        half = len(product) // 2
        four = [square[:half], square[half:], sums, carries]
        columns = [
            [Bit(0.0, row[weight]) for row in four if weight < len(row)]
            for weight in range(p.square_bits)
        ]
        new = rows(reduce_columns(m, columns, 2))
        with m.If(self.clear):
            m.d.sync += [sums.eq(0), carries.eq(0), carry.eq(0)]
        with m.Elif(waiting):
            m.d.sync += [sums.eq(new[0]), carries.eq(new[1])]
        with m.Elif(shift):
            x, y = sums[0], carries[0]
            m.d.sync += [
                sums.eq(sums >> 1),
                carries.eq(carries >> 1),
                carry.eq((x & y) | (carry & (x ^ y))),
            ]
        return sums[0] ^ carries[0] ^ carry

    def _radicand(self, m: Module, square_bit, sum_bit, total: Signal, shift: Signal) -> Value:
        """The next bit of B^2 (l S2 - S1^2)."""
        p = self._parameters
        minuend = self._multiply(m, square_bit, self.length, p.slots, "squares", shift)
        most = p.slots * p.largest
        subtrahend = self._multiply(m, sum_bit, total, most, "sum", shift)
        borrow = Signal()
        variance = Signal()
        m.d.comb += variance.eq(minuend ^ subtrahend ^ borrow)
        with m.If(shift):
            m.d.sync += borrow.eq(Mux(minuend ^ subtrahend, subtrahend, borrow))
        scaled = self._multiply(m, variance, self.b, LARGEST_WEIGHT, "variance", shift)
        return self._multiply(m, scaled, self.b, LARGEST_WEIGHT, "scaled", shift)

    def _multiply(
        self, m: Module, bit: Value, factor: Value, most: int, name: str, shift: Signal
    ) -> Value:
        """The next bit of the product of `factor`, at most `most`, and a number given bit by bit.

        What has not come out yet is less than the factor, and in the end 0: a product has as many
        bits as its factors.
        """
        pending = Signal(range(most), name=f"pending_{name}")
        added = Signal(range(2 * most), name=f"added_{name}")
        m.d.comb += added.eq(pending + Mux(bit, factor, 0))
        with m.If(shift):
            m.d.sync += pending.eq(added[1:])
        return added[0]


def square_columns(x: Value) -> list[list[Bit]]:
    """Bits that add up to x^2, by weight: x_i and x_j of different weights only once, doubled."""
    columns = [[] for _ in range(2 * len(x))]
    for i, low in enumerate(x):
        columns[2 * i].append(Bit(0.0, low))
        for j in range(i + 1, len(x)):
            columns[i + j + 1].append(Bit(0.5, low & x[j]))
    return columns
