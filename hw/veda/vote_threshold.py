"""The threshold below which a score gets a vote, exactly (VEDA, figure 3 and section V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.bits.partial_products import Bit, Columns, reduce_columns, rows
from hw.component import Component
from hw.parameters import Parameters
from hw.ports import Ports, wire_in, wire_out

WEIGHT_BITS = 15
"""Of A and B, the weights a and b times 2^12: a and b are below 8."""

WEIGHT_FRACTION = 12
LARGEST_WEIGHT = (1 << WEIGHT_BITS) - 1


@dataclasses.dataclass(frozen=True)
class VoteThresholdParameters(Parameters):
    """
    slots
        Scores, at most.
    probability_bits
        Width of a probability; scores are sums of these.
    largest
        The largest score.
    """

    slots: int
    probability_bits: int
    largest: int

    @cached_property
    def score_bits(self) -> int:
        return self.largest.bit_length()

    @cached_property
    def sum_bits(self) -> int:
        """Of S1."""
        return (self.slots * self.largest).bit_length()

    @cached_property
    def square_bits(self) -> int:
        """Of S2."""
        return (self.slots * self.largest**2).bit_length()

    @cached_property
    def product_bits(self) -> int:
        """n, of A S1.

        The radicand has 2 n - 2 bits, because a deviation is at most half of the largest score.
        """
        return (LARGEST_WEIGHT * self.slots * self.largest).bit_length()

    @cached_property
    def limit_bits(self) -> int:
        return (LARGEST_WEIGHT * self.largest >> WEIGHT_FRACTION).bit_length()

    @property
    def latency(self) -> int:
        """Cycles from ``start`` to ``done``: 2 n for the radicand, n for its root and for A S1,
        1 for their difference, n - 12 for the quotient."""
        return 4 * self.product_bits + 1 - WEIGHT_FRACTION


class VoteThreshold(Component[VoteThresholdParameters]):
    """The largest score s below the threshold a mean(s) - b std(s), without rounding.

    With S1 and S2 the sums of s and s^2 over l slots, a = A / 2^12, b = B / 2^12:

        r = isqrt(B^2 (l S2 - S1^2))
        negative = A S1 < sqrt(B^2 (l S2 - S1^2)),  no_votes = A S1 <= r
        limit = floor((A S1 - r - 1) / (2^12 l))

    so that s < a mean(s) - b std(s) if and only if s <= limit and not no_votes. ::

        s ─→ s^2 ─→ + ─→ S2 ┄→ × l ┐
        p ────────→ + ─→ S1 ┄→ × S1┴ - ┄→ × B ┄→ × B ─→ radicand ─→ root ┐
                      └┄┄┄┄┄→ × A ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄→ - ┴→ / l ─→ limit

    The sums are accumulated as probabilities and scores arrive, S2 in carry-save form. The rest is
    bit-serial: along dotted lines one bit a cycle, the lowest first; the root and the quotient are
    digit recurrences of one bit a cycle, the highest first. So no adder is longer than the root.

    Latency: `latency` cycles from ``start`` to ``done``; results are held until the next start.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "clear": wire_in(1, "Begin new sums."),
            "add": wire_in(1, "Add a probability to S1."),
            "probability": wire_in(p.probability_bits, "Addend of S1, valid with `add`."),
            "add_square": wire_in(1, "Add a score's square to S2."),
            "score": wire_in(p.score_bits, "It takes two cycles."),
            "start": wire_in(1, "The sums are complete."),
            "length": wire_in(
                range(p.slots + 1),
                "l. Constant from `start` to `done`, like `a` and `b`, which are A and B.",
            ),
            "a": wire_in(WEIGHT_BITS),
            "b": wire_in(WEIGHT_BITS),
            "done": wire_out(1, "In the cycle before the results are valid."),
            "negative": wire_out(1, "The threshold is below 0."),
            "no_votes": wire_out(1, "No score is below the threshold: `limit` is invalid."),
            "limit": wire_out(
                p.limit_bits,
                "Largest score that is below the threshold; valid while `no_votes` is low.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        n = p.product_bits
        total = self._total(m)
        # One set of registers serves the states in turn.
        cycles_left = Signal(range(2 * n))  # of the state
        radicand = Signal(2 * n, reset_less=True)
        # Bit-serial, since the result is needed once a step, beside thousands of cycles of
        # attention: a multiplier by one bit a cycle is an adder as wide as one factor.
        product = Signal(n, reset_less=True)  # A S1; less the root; the dividend not used yet
        digits = Signal(n - 1, reset_less=True)  # of the root, then of the quotient
        # The root's remainder, at most twice the root; then the quotient's.
        remainder = Signal(n, reset_less=True)
        serial = Signal(p.sum_bits, reset_less=True)  # S1, shifted out bit by bit
        multiplying = Signal()
        rooting = Signal()
        square_bit = self._squares(m, multiplying)
        bit = self._multiply(m, serial[0], self.a, LARGEST_WEIGHT, "mean", rooting)
        radicand_bit = self._radicand(m, square_bit, serial[0], total, multiplying)
        root, root_digit = self._root_step(m, radicand, remainder, digits)
        quotient, quotient_digit = self._quotient_step(m, product, remainder)
        difference = self._difference(m, product, digits)
        last = Signal()
        m.d.sync += cycles_left.eq(cycles_left - 1)
        m.d.comb += [last.eq(cycles_left == 0), self.limit.eq(digits)]
        with m.FSM():
            with m.State("IDLE"):
                # The sums are complete with `start`.
                m.d.sync += [serial.eq(total), cycles_left.eq(2 * n - 1)]
                with m.If(self.start):
                    m.next = "RADICAND"
            with m.State("RADICAND"):
                # 2 n cycles: the radicand's bits, the lowest first.
                m.d.comb += multiplying.eq(1)
                m.d.sync += [
                    serial.eq(serial >> 1),
                    radicand.eq(Cat(radicand[1:], radicand_bit)),
                    digits.eq(0),
                    remainder.eq(0),
                ]
                with m.If(last):
                    m.d.sync += [serial.eq(total), cycles_left.eq(n - 1)]
                    m.next = "ROOT"
            with m.State("ROOT"):
                # n cycles: bits of A S1, the lowest first; of the root, the highest first.
                m.d.comb += rooting.eq(1)
                m.d.sync += [
                    serial.eq(serial >> 1),
                    product.eq(Cat(product[1:], bit)),
                    radicand.eq(radicand << 2),
                    remainder.eq(root),
                    digits.eq(Cat(root_digit, digits)),
                ]
                with m.If(last):
                    m.next = "DIFFERENCE"
            with m.State("DIFFERENCE"):
                # The root is exact, and equals A S1: then the threshold is 0 and not negative.
                exact = ~remainder.any() & difference[:n].all()
                m.d.sync += [
                    product.eq(difference),
                    self.no_votes.eq(~difference[n]),
                    self.negative.eq(~difference[n] & ~exact),
                    digits.eq(0),
                    remainder.eq(0),
                    cycles_left.eq(n - WEIGHT_FRACTION - 1),
                ]
                m.next = "QUOTIENT"
            with m.State("QUOTIENT"):
                # n - 12 cycles: the limit's bits, the highest first.
                m.d.comb += self.done.eq(last)
                m.d.sync += [
                    product.eq(product << 1),
                    remainder.eq(quotient),
                    digits.eq(Cat(quotient_digit, digits)),
                ]
                with m.If(last):
                    m.next = "IDLE"
        return m

    def _difference(self, m: Module, product: Signal, root: Signal) -> Signal:
        """A S1 - root - 1, by adding the root's one's complement; a carry out if root < A S1.

        s < T if and only if s <= floor((A S1 - root - 1) / 2^12 l): integers, so nothing is
        rounded.
        """
        difference = Signal(self.parameters.product_bits + 1)
        m.d.comb += difference.eq(product + Cat(~root, Const(1, 1)))
        return difference

    def _total(self, m: Module) -> Signal:
        """S1: the sum of the probabilities since `clear`."""
        total = Signal(self.parameters.sum_bits, reset_less=True)
        with m.If(self.clear):
            m.d.sync += total.eq(0)
        with m.Elif(self.add):
            m.d.sync += total.eq(total + self.probability)
        return total

    def _root_step(
        self, m: Module, radicand: Signal, remainder: Signal, digits: Signal
    ) -> tuple[Value, Value]:
        """The next remainder and digit of the root.

        Append the radicand's next two bits to the remainder, and try digit 1::

            root_remainder   | remainder      | two bits |
            - trial          | root's digits  | 0 1 |
        """
        n = self.parameters.product_bits
        root_remainder = Signal(n + 2)
        root_trial = Signal(n + 3)
        m.d.comb += [
            root_remainder.eq(Cat(radicand[-2:], remainder)),
            root_trial.eq(root_remainder - Cat(Const(1, 2), digits)),
        ]
        return Mux(root_trial[-1], root_remainder, root_trial), ~root_trial[-1]

    def _quotient_step(self, m: Module, product: Signal, remainder: Signal) -> tuple[Value, Value]:
        """The next remainder and digit of the quotient.

        Append the dividend's next bit, and try to subtract the divisor.
        """
        width = len(self.length)
        quotient_remainder = Signal(width + 1)
        quotient_trial = Signal(width + 2)
        m.d.comb += [
            quotient_remainder.eq(Cat(product[-1], remainder[:width])),
            quotient_trial.eq(quotient_remainder - self.length),
        ]
        kept = Mux(quotient_trial[-1], quotient_remainder, quotient_trial)[:width]
        return kept, ~quotient_trial[-1]

    def _squares(self, m: Module, shift: Signal) -> Value:
        """S2 in carry-save form; with `shift`, returns the next bit of the sum of its two rows."""
        p = self.parameters
        # Cycle 1: the square as two rows. Cycle 2: added to S2's two rows, four rows to two.
        product = Cat(*rows(reduce_columns(m, square_columns(self.score), 2)))
        square_valid = Signal()
        square = Signal(len(product), reset_less=True)
        # No carry propagates while scores arrive, one a cycle; the one full adder below makes up
        # for it, bit by bit, as the product with l needs the bits anyway.
        sums, carries = (Signal(p.square_bits, name=name, reset_less=True) for name in ("s", "c"))
        carry = Signal()
        m.d.sync += [square_valid.eq(self.add_square), square.eq(product)]
        half = len(product) // 2
        four = [square[:half], square[half:], sums, carries]
        columns = [
            [Bit(0.0, row[weight]) for row in four if weight < len(row)]
            for weight in range(p.square_bits)
        ]
        new_sums, new_carries = rows(reduce_columns(m, columns, 2))
        with m.If(self.clear):
            m.d.sync += [sums.eq(0), carries.eq(0), carry.eq(0)]
        with m.Elif(square_valid):
            m.d.sync += [sums.eq(new_sums), carries.eq(new_carries)]
        with m.Elif(shift):  # a full adder for the lowest bits
            x, y = sums[0], carries[0]
            m.d.sync += [
                sums.eq(sums >> 1),
                carries.eq(carries >> 1),
                carry.eq((x & y) | (carry & (x ^ y))),
            ]
        return sums[0] ^ carries[0] ^ carry

    def _radicand(self, m: Module, square_bit, sum_bit, total: Signal, shift: Signal) -> Value:
        """The next bit of B^2 (l S2 - S1^2)."""
        p = self.parameters
        minuend = self._multiply(m, square_bit, self.length, p.slots, "squares", shift)
        largest_sum = p.slots * p.largest
        subtrahend = self._multiply(m, sum_bit, total, largest_sum, "sum", shift)
        # A full subtractor: the difference's bit, and the borrow for the next one.
        borrow = Signal()
        variance = Signal()
        m.d.comb += variance.eq(minuend ^ subtrahend ^ borrow)
        with m.If(shift):
            m.d.sync += borrow.eq(Mux(minuend ^ subtrahend, subtrahend, borrow))
        scaled = self._multiply(m, variance, self.b, LARGEST_WEIGHT, "variance", shift)
        return self._multiply(m, scaled, self.b, LARGEST_WEIGHT, "scaled", shift)

    def _multiply(
        self, m: Module, bit: Value, factor: Value, largest: int, name: str, shift: Signal
    ) -> Value:
        """The next bit of the product of `factor`, at most `largest`, and a number's next bit.

        Both are lowest bit first. `pending` is the part of the product above the bits that were
        output. It is less than the factor, and 0 in the end: a product has as many bits as its
        factors together, and `bit` is 0 after the number's last one.
        """
        # Widths, because a range of 2^31 has no length in Python of 32 bits, as in browsers.
        pending = Signal((largest - 1).bit_length(), name=f"pending_{name}")
        added = Signal((2 * largest - 1).bit_length(), name=f"added_{name}")
        m.d.comb += added.eq(pending + Mux(bit, factor, 0))
        with m.If(shift):
            m.d.sync += pending.eq(added[1:])
        return added[0]


def square_columns(x: Value) -> Columns:
    """Bits that add up to x^2, by weight. x_i x_j and x_j x_i are one bit of twice the weight."""
    columns: Columns = [[] for _ in range(2 * len(x))]
    for i, low in enumerate(x):
        columns[2 * i].append(Bit(0.0, low))
        for j in range(i + 1, len(x)):
            columns[i + j + 1].append(Bit(0.5, low & x[j]))
    return columns
