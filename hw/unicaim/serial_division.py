"""Quotient of a sum and a number of its terms, a digit a cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class SerialDivision(Component[None]):
    """floor(dividend / divisor), below 2^bits: restoring, the highest digit first.

    A dividend is taken with `start`. The digits come in the `bits` cycles that follow, `last` in
    the last of them, and `quotient` is complete a cycle later. A divisor of 0 gives any quotient.

    Example: 44 / 7 with bits = 3 is 5 / 7 with the digits 1 0 0 to come: 11 / 7 = 1, 8 / 7 = 1,
    2 / 7 = 0; so 6.
    """

    def __init__(self, terms: int, bits: int):
        self._terms, self._bits = terms, bits
        super().__init__()

    def ports(self) -> Ports:
        most = self._terms * ((1 << self._bits) - 1)
        return {
            "start": wire_in(1),
            "dividend": wire_in(range(most + 1), "At most `divisor` times 2^bits - 1."),
            "divisor": wire_in(range(self._terms + 1), "Remains until the last digit."),
            "last": wire_out(1),
            "quotient": wire_out(unsigned(self._bits)),
        }

    def elaborate(self, platform):
        m = Module()
        bits = self._bits
        remainder = Signal(range(self._terms), reset_less=True)
        # Digits to come leave the register above as the quotient's enter below.
        digits = Signal(bits, reset_less=True)
        left = Signal(range(bits + 1))
        dividend = Signal(range(2 * self._terms))
        fits = Signal()
        m.d.comb += [
            dividend.eq(Cat(digits[-1], remainder)),
            fits.eq(dividend >= self.divisor),
            self.last.eq(left == 1),
            self.quotient.eq(digits),
        ]
        with m.If(left.any()):
            m.d.sync += [
                left.eq(left - 1),
                remainder.eq(Mux(fits, dividend - self.divisor, dividend)),
                digits.eq(Cat(fits, digits)),
            ]
        with m.If(self.start):
            m.d.sync += [
                left.eq(bits),
                remainder.eq(self.dividend[bits:]),
                digits.eq(self.dividend),
            ]
        return m
