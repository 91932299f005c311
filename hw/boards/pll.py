"""A board's clock by the PLL of its device: settings for a frequency, and the clock's domain.

The ranges are from the data sheets FPGA-DS-02012 (ECP5) and FPGA-DS-02029 (iCE40), as the open
flows' own ecppll and icepll keep to them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from amaranth.hdl import (
    ClockDomain,
    ClockSignal,
    Const,
    Elaboratable,
    Instance,
    Module,
    ResetSignal,
    Signal,
)
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer

from hw.parameters import ParameterError

SETTLING_S = 15e-6
"""Seconds from the lock to the end of reset: an iCE40's block memories read zeros for 3 us."""
FURTHEST = 0.05
"""Share by which the nearest clock that a PLL makes may miss the requested one."""


@dataclass(frozen=True)
class Range:
    """Frequencies in MHz."""

    low: float
    high: float

    def __contains__(self, mhz: float) -> bool:
        # A third of a clock is not exact.
        return self.low * (1 - 1e-9) <= mhz <= self.high * (1 + 1e-9)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g} MHz"


@dataclass(frozen=True)
class Pll(ABC):
    """Settings of a PLL.

    input_mhz
        Frequency of the board's oscillator.
    divide
        Divider of the input, before the phase detector.
    multiply
        Multiplier of the phase detector's clock: on an ECP5 the output, on an iCE40 the
        oscillator's clock.
    output
        On an ECP5 the oscillator's clock in units of the output, on an iCE40 the binary logarithm
        of the same.
    """

    input_mhz: float
    divide: int
    multiply: int
    output: int

    family: ClassVar[str]
    inputs: ClassVar[Range]
    detectors: ClassVar[Range]
    oscillators: ClassVar[Range]
    outputs: ClassVar[Range]

    @property
    def detector_mhz(self) -> float:
        return self.input_mhz / self.divide

    @property
    @abstractmethod
    def oscillator_mhz(self) -> float: ...

    @property
    @abstractmethod
    def output_mhz(self) -> float: ...

    @property
    def works(self) -> bool:
        """Whether each clock is within its range."""
        return (
            self.input_mhz in self.inputs
            and self.detector_mhz in self.detectors
            and self.oscillator_mhz in self.oscillators
            and self.output_mhz in self.outputs
        )

    @classmethod
    @abstractmethod
    def near(cls, input_mhz: float, output_mhz: float) -> Iterator["Pll"]:
        """Settings whose output is about that; some may not work."""

    @abstractmethod
    def instance(self, clock: Any, made: Signal, lock: Signal, port: Any = None) -> Instance:
        """The device's cell.

        clock
            The input from inside the device.
        made, lock
            The output, and whether it is right.
        port
            The pin in place of `clock`, for a PLL that is fed by its pin alone.
        """


def around(value: float) -> range:
    """The whole numbers from 1 to 128 beside a value."""
    least = min(max(int(value), 1), 127)
    return range(least, least + 2)


class Ecp5Pll(Pll):
    """EHXPLLL with its first output fed back."""

    family = "ECP5"
    inputs, detectors = Range(8, 400), Range(3.125, 400)
    oscillators, outputs = Range(400, 800), Range(3.125, 400)

    @property
    def oscillator_mhz(self) -> float:
        return self.output_mhz * self.output

    @property
    def output_mhz(self) -> float:
        return self.detector_mhz * self.multiply

    @classmethod
    def near(cls, input_mhz: float, output_mhz: float) -> Iterator[Pll]:
        middle = (cls.oscillators.low + cls.oscillators.high) / 2
        for divide in range(1, 129):
            for multiply in around(output_mhz * divide / input_mhz):
                output = min(max(round(middle * divide / (input_mhz * multiply)), 1), 128)
                yield cls(input_mhz, divide, multiply, output)

    def instance(self, clock: Any, made: Signal, lock: Signal, port: Any = None) -> Instance:
        return Instance(
            "EHXPLLL",
            a_FREQUENCY_PIN_CLKI=f"{self.input_mhz:.6f}",
            a_FREQUENCY_PIN_CLKOP=f"{self.output_mhz:.6f}",
            a_ICP_CURRENT="12",
            a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            p_PLLRST_ENA="DISABLED",
            p_INTFB_WAKE="DISABLED",
            p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED",
            p_OUTDIVIDER_MUXA="DIVA",
            p_CLKI_DIV=self.divide,
            p_CLKFB_DIV=self.multiply,
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_DIV=self.output,
            p_CLKOP_CPHASE=self.output - 1,
            p_CLKOP_FPHASE=0,
            p_FEEDBK_PATH="CLKOP",
            i_CLKI=clock,
            i_CLKFB=made,
            i_RST=Const(0),
            i_STDBY=Const(0),
            i_PHASESEL0=Const(0),
            i_PHASESEL1=Const(0),
            i_PHASEDIR=Const(0),
            i_PHASESTEP=Const(0),
            i_PHASELOADREG=Const(0),
            i_PLLWAKESYNC=Const(0),
            i_ENCLKOP=Const(0),
            o_CLKOP=made,
            o_LOCK=lock,
        )


class Ice40Pll(Pll):
    """SB_PLL40_CORE or SB_PLL40_PAD, with the simple feedback."""

    family = "iCE40"
    inputs, detectors = Range(10, 133), Range(10, 133)
    oscillators, outputs = Range(533, 1066), Range(16, 275)
    # Phase detector clocks from which each setting of the loop's filter is for.
    filters = (10, 17, 26, 44, 66, 101)

    @property
    def oscillator_mhz(self) -> float:
        return self.detector_mhz * self.multiply

    @property
    def output_mhz(self) -> float:
        return self.oscillator_mhz / (1 << self.output)

    @classmethod
    def near(cls, input_mhz: float, output_mhz: float) -> Iterator[Pll]:
        for divide in range(1, 17):
            for output in range(1, 7):
                for multiply in around(output_mhz * (1 << output) * divide / input_mhz):
                    yield cls(input_mhz, divide, multiply, output)

    def instance(self, clock: Any, made: Signal, lock: Signal, port: Any = None) -> Instance:
        source = ("i", "REFERENCECLK", clock) if port is None else ("io", "PACKAGEPIN", port)
        return Instance(
            "SB_PLL40_CORE" if port is None else "SB_PLL40_PAD",
            source,
            p_FEEDBACK_PATH="SIMPLE",
            p_DIVR=Const(self.divide - 1, 4),
            p_DIVF=Const(self.multiply - 1, 7),
            p_DIVQ=Const(self.output, 3),
            p_FILTER_RANGE=Const(sum(self.detector_mhz >= low for low in self.filters), 3),
            i_RESETB=Const(1),
            i_BYPASS=Const(0),
            o_PLLOUTGLOBAL=made,
            o_LOCK=lock,
        )


FAMILIES: dict[str, type[Pll]] = {"ecp5": Ecp5Pll, "ice40": Ice40Pll}


def settings(family: str, input_mhz: float, output_mhz: float) -> Pll:
    """The settings whose output is nearest to that, with the fastest phase detector.

    :raises ParameterError: if no settings make a clock near it.
    """
    kind = FAMILIES[family]
    device = f"the PLL of an {kind.family}"
    if input_mhz not in kind.inputs:
        raise ParameterError(f"{device} takes {kind.inputs}, and the board has {input_mhz:g}")
    if output_mhz not in kind.outputs:
        raise ParameterError(f"{device} makes {kind.outputs}, not {output_mhz:g}")
    working = [pll for pll in kind.near(input_mhz, output_mhz) if pll.works]
    missed = {pll: abs(pll.output_mhz - output_mhz) / output_mhz for pll in working}
    # Equal clocks may differ in their last bit.
    best = min(working, key=lambda pll: (round(missed[pll], 9), pll.divide), default=None)
    if best is None or missed[best] > FURTHEST:
        nearest = "" if best is None else f"; the nearest is {best.output_mhz:g}"
        raise ParameterError(
            f"{device} makes no clock near {output_mhz:g} MHz of the board's {input_mhz:g}{nearest}"
        )
    return best


class PllClock(Elaboratable):
    """Drives the domain ``sync``, which is around it, by a PLL from the board's default clock.

    Its reset is held until the PLL locks, for :data:`SETTLING_S` after that, and while the board's
    reset button is pressed, where its platform names one.

    :param at_pin: whether the clock's pin is an iCE40 PLL's own, which has no other way in.
    """

    def __init__(self, pll: Pll, at_pin: bool = False):
        self._pll, self._at_pin = pll, at_pin

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pin = platform.request(platform.default_clk, 0, dir="-")
        made = Signal()
        lock = Signal()
        if self._at_pin:
            m.submodules.pll = self._pll.instance(None, made, lock, pin.io)
        else:
            m.submodules.pin = buffer = io.Buffer(io.Direction.Input, pin)
            m.submodules.pll = self._pll.instance(buffer.i, made, lock)
        lost = Signal()
        m.d.comb += lost.eq(~lock)
        if platform.default_rst is not None:
            button = platform.request(platform.default_rst, 0, dir="-")
            m.submodules.button = pressed = io.Buffer(io.Direction.Input, button)
            m.d.comb += lost.eq(~lock | pressed.i)
        m.domains.waiting = ClockDomain(local=True, async_reset=True)
        m.d.comb += [ClockSignal("waiting").eq(made), ClockSignal("sync").eq(made)]
        m.submodules.lost = ResetSynchronizer(lost, domain="waiting")
        cycles = ceil(SETTLING_S * self._pll.output_mhz * 1e6)
        left = Signal(range(cycles + 1), init=cycles)
        # A register, so that nothing glitches on the way to every flip-flop.
        held = Signal(init=1)
        m.d.waiting += [left.eq(left - left.any()), held.eq(left.any())]
        m.d.comb += ResetSignal("sync").eq(held)
        return m
