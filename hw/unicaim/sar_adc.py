"""Conversion of a row's score by successive approximation (UniCAIM, section III-B5)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Shape, Signal, signed

from hw.component import Component
from hw.layout import FixedPoint, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.sar_controller import SarController


@dataclasses.dataclass(frozen=True)
class SarAdcParameters(Parameters):
    """
    bits
        Width of the result, 1 to 24.
    fraction
        Fraction bits of the input, in steps of the result, 1 to 8.
    """

    bits: int = 10
    fraction: int = 2

    def __post_init__(self):
        require(1 <= self.bits <= 24, "bits must be between 1 and 24", self.bits)
        rule = "fraction must be between 1 and 8"
        require(1 <= self.fraction <= 8, rule, self.fraction)

    @classmethod
    def presets(cls) -> dict[str, "SarAdcParameters"]:
        return {"small": cls(bits=4), "default": cls(), "paper": cls(fraction=6)}

    @property
    def latency(self) -> int:
        """Cycles from a sample to its code: one more than the conversion takes."""
        return self.bits + 1

    def cycles(self, samples: int) -> int:
        """Cycles from the first sample offered to the last code taken, without stalls."""
        return samples * self.bits + 2

    @property
    def sample(self) -> FixedPoint:
        """Shape of a sample: twice the range of codes, in steps of 2^-fraction."""
        return FixedPoint(signed(self.bits + 1 + self.fraction), self.fraction)


class SarAdc(Component[SarAdcParameters]):
    """The code nearest to a sample, in `bits` cycles.

        code = clip(floor(sample 2^-fraction + 1/2), -2^(bits - 1), 2^(bits - 1) - 1)

    The sample models an analog value, in fixed point. :class:`SarController` is what a chip
    has; the comparison with its trial models the converter's DAC and comparator. Trials are half a
    step below their codes, so the error is at most half a step from -2^(bits - 1) - 1/2 to 2^(bits
    - 1) - 1/2. Samples beyond that range saturate.

    10 bits have codes for -512 to 511, while the paper's scores are -512 to 512: the highest of
    these 1025 reads as 511.

    Latency: bits + 1 cycles. Throughput: one conversion in `bits` cycles; a sample is taken in the
    cycle in which the conversion before it ends. With the output stalled, one code waits and one
    conversion is held in its last cycle. All outputs but `i.ready` depend on registers only;
    `i.ready` follows `o.ready`.

    Examples
    --------
    >>> from hw.unicaim.sar_adc import SarAdcParameters
    >>> parameters = SarAdcParameters(bits=10, fraction=2)
    >>> parameters.sample.width, parameters.latency, parameters.cycles(samples=64)
    (13, 11, 642)
    """

    summary = "Successive approximation of a score, one bit per cycle"
    source = "UniCAIM, section III-B5"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.sample, "Samples."),
            "o": stream_out(integer(signed(p.bits)), "Codes."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.controller = controller = SarController(p.bits)
        held = Signal(Shape.cast(p.sample), reset_less=True)
        trial = Signal(Shape.cast(p.sample))
        half = 1 << (p.fraction - 1)
        code = controller.code
        stuck = Signal()  # a conversion ends, but the code before it has not been taken
        m.d.comb += [
            # The trial in the sample's format, half a step lower. The controller counts codes from
            # 0, so the lowest code, -2^(bits - 1) steps, is added:
            #   | trial | 0 … 0 |  -  2^(bits - 1 + fraction)  -  2^(fraction - 1)
            trial.eq(Cat(Const(0, p.fraction), controller.trial) - (half + (half << p.bits))),
            controller.above.eq(held >= trial),
            # Conversions follow each other without a gap, and the code of the one before may still
            # wait: then the last step is repeated until it leaves.
            stuck.eq(controller.done & self.o.valid & ~self.o.ready),
            controller.enable.eq(~stuck),
            self.i.ready.eq(~controller.busy | (controller.done & ~stuck)),
            controller.start.eq(self.i.valid & self.i.ready),
        ]
        with m.If(controller.start):
            m.d.sync += held.eq(self.i.payload)
        with m.If(~stuck):
            m.d.sync += self.o.valid.eq(controller.done | (self.o.valid & ~self.o.ready))
        with m.If(controller.done & ~stuck):
            # From offset binary to two's complement: invert the sign bit.
            m.d.sync += self.o.payload.eq(Cat(code[:-1], ~code[-1]))
        return m
