"""Asynchronous serial line: a start bit (0), eight data bits, lowest first, a stop bit (1)."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib.cdc import FFSynchronizer

from hw.component import Component
from hw.parameters import ParameterError
from hw.ports import Ports, stream_in, wire_in, wire_out

FEWEST, MOST = 4, (1 << 16) - 1
"""Clock cycles a bit."""
TOLERANCE = 0.02
"""Share by which the rate of a line may be off; the other end's clock takes as much again."""


def divisor_of(clock_mhz: float, baud: int) -> int:
    """Clock cycles a bit of the line.

    :raises ParameterError: if the clock makes no such rate.
    """
    if not 0 < clock_mhz < float("inf"):
        raise ParameterError(f"a clock must have a number of MHz above 0, not {clock_mhz:g}")
    divisor = round(clock_mhz * 1e6 / baud)
    least, most = (int(clock_mhz * 1e6 / bound) for bound in (MOST, FEWEST))
    if not FEWEST <= divisor <= MOST:
        raise ParameterError(
            f"a clock of {clock_mhz:g} MHz makes {least} to {most} baud, not {baud}"
        )
    rate = clock_mhz * 1e6 / divisor
    if abs(rate / baud - 1) > TOLERANCE:
        raise ParameterError(
            f"a clock of {clock_mhz:g} MHz makes {rate:.0f} baud, too far from {baud}: choose "
            "another --baud or --clock"
        )
    return divisor


class UartReceiver(Component[None]):
    """Bytes from a line that may begin at any time.

    A start bit is sampled in its middle, and ignored if the line is high there; the other bits are
    sampled a bit's time apart. After a stop bit that is low the line must go high first.

    Latency: 2 + divisor // 2 + 9 * divisor cycles, from the cycle in which the line falls to
    `valid`. Throughput: a byte every 10 * divisor cycles, at a rate up to 4 % off. Handshake: none,
    `valid` and `framing_error` are high for a cycle.

    Parameters
    ----------
    divisor : int
        Clock cycles a bit, at least 4.
    """

    def __init__(self, divisor: int):
        self._divisor = divisor
        super().__init__()

    def ports(self) -> Ports:
        return {
            "rx": wire_in(1, "The line, of no clock."),
            "data": wire_out(8, "Valid only if `valid` is high."),
            "valid": wire_out(1, "A byte, or a stop bit that was low."),
            "framing_error": wire_out(1, "The stop bit was low; high with `valid`."),
        }

    def elaborate(self, platform):
        m = Module()
        line = Signal(init=1)
        # The line changes at any time; two registers keep a metastable level from the logic.
        m.submodules.synchroniser = FFSynchronizer(self.rx, line, init=1)
        timer = Signal(range(self._divisor))
        bits_left = Signal(range(11))  # the start bit is the tenth
        waits_for_high = Signal()
        m.d.comb += self.data.eq(self._shifted(m, line, (bits_left > 1) & (timer == 0)))
        # After a stop bit that was low, the low line is no start bit.
        with m.If(line):
            m.d.sync += waits_for_high.eq(0)
        with m.If(bits_left == 0):
            # Half a bit from the edge is the middle of the start bit.
            with m.If(~line & ~waits_for_high):
                m.d.sync += [timer.eq(self._divisor // 2 - 1), bits_left.eq(10)]
        with m.Elif(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Else():
            # The middle of a bit: it is sampled, and the next one is a bit's time later.
            m.d.sync += [timer.eq(self._divisor - 1), bits_left.eq(bits_left - 1)]
            with m.If((bits_left == 10) & line):
                m.d.sync += bits_left.eq(0)  # a glitch, too short for a start bit
            with m.If(bits_left == 1):
                m.d.comb += [self.valid.eq(line), self.framing_error.eq(~line)]
                m.d.sync += waits_for_high.eq(~line)
        return m

    @staticmethod
    def _shifted(m: Module, line, enable) -> Signal:
        """The last eight bits sampled."""
        bits = Signal(8)
        with m.If(enable):
            m.d.sync += bits.eq(Cat(bits[1:], line))
        return bits


class UartTransmitter(Component[None]):
    """A stream of bytes onto a line.

    Latency: the start bit is on the line in the cycle after the transfer. Throughput: a byte every
    10 * divisor cycles. Handshake: ``i.ready`` depends on registers only.

    Parameters
    ----------
    divisor : int
        Clock cycles a bit.
    """

    def __init__(self, divisor: int):
        self._divisor = divisor
        super().__init__()

    def ports(self) -> Ports:
        return {"i": stream_in(8), "tx": wire_out(1, "The line; high while idle and after reset.")}

    def elaborate(self, platform):
        m = Module()
        timer = Signal(range(self._divisor))
        bits = Signal(10, init=0x3FF)  # what is on the line is the lowest
        bits_left = Signal(range(11))
        # The line is a register's output, so it has no glitches.
        m.d.comb += [self.tx.eq(bits[0]), self.i.ready.eq(bits_left == 0)]
        # A new byte waits until the stop bit has had its whole time: `bits_left` reaches 0 only
        # then.
        with m.If(self.i.valid & self.i.ready):
            # Start bit, byte, stop bit, the lowest first.
            m.d.sync += [
                bits.eq(Cat(Const(0, 1), self.i.payload, Const(1, 1))),
                bits_left.eq(10),
                timer.eq(self._divisor - 1),
            ]
        with m.Elif(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Elif(bits_left != 0):
            # Ones follow the stop bit, so the line is high while idle.
            m.d.sync += [
                bits.eq(Cat(bits[1:], Const(1, 1))),
                bits_left.eq(bits_left - 1),
                timer.eq(self._divisor - 1),
            ]
        return m
