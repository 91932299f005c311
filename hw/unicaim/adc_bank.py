"""Several converters that take samples in turn (UniCAIM, sections III-B5 and IV-A3)."""

import dataclasses
import functools

from amaranth.hdl import Array, Module, Mux, Signal, signed

from hw.component import Component
from hw.layout import FixedPoint, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.unicaim.sar_adc import SarAdc, SarAdcParameters


@dataclasses.dataclass(frozen=True)
class AdcBankParameters(Parameters):
    """
    converters
        1 to 256.
    bits, fraction
        Width of each converter's code, and fraction bits of its sample, see
        :class:`hw.unicaim.sar_adc.SarAdcParameters`.
    """

    converters: int = 10
    bits: int = 10
    fraction: int = 4

    def __post_init__(self):
        number = self.converters
        require(1 <= number <= 256, "converters must be between 1 and 256", number)
        _ = self.converter  # checks its own

    @classmethod
    def presets(cls) -> dict[str, "AdcBankParameters"]:
        return {
            "small": cls(converters=3, bits=4, fraction=2),
            "default": cls(),
            "paper": cls(converters=64),
        }

    @functools.cached_property
    def converter(self) -> SarAdcParameters:
        return SarAdcParameters(self.bits, self.fraction)

    @property
    def sample(self) -> FixedPoint:
        return self.converter.sample

    @property
    def latency(self) -> int:
        """Cycles from a sample to its code."""
        return self.converter.latency

    def cycles(self, samples: int) -> int:
        """Cycles from the first sample offered to the last code taken, without stalls."""
        if self.converters >= self.bits:
            return samples + self.latency
        rounds, others = divmod(samples - 1, self.converters)
        return rounds * self.bits + others + self.latency + 1


class AdcBank(Component[AdcBankParameters]):
    """Codes of samples, in their order, from `converters` converters in turn.

    A conversion takes a cycle for each bit, so `bits` converters keep up with a sample a cycle.

    Latency: bits + 1 cycles. Throughput: a sample a cycle with `bits` converters or more, else
    `converters` of them in `bits` cycles. `i.ready` depends on `o.ready`, all else on registers
    only.

    Examples
    --------
    >>> from hw.unicaim.adc_bank import AdcBankParameters
    >>> [AdcBankParameters(converters=n).cycles(samples=64) for n in (1, 10, 64)]
    [642, 75, 75]
    """

    summary = "Converters that take samples in turn"
    source = "UniCAIM, sections III-B5 and IV-A3"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.sample, "Samples, one for each converter."),
            "o": stream_out(integer(signed(p.bits)), "Codes, in the order of the samples."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        taken, given = (  # the converters whose turn it is
            Signal(range(max(2, p.converters)), name=name) for name in ("taken", "given")
        )
        # Conversions all take the same time, so turns in a circle keep the order of the samples; no
        # tag is needed, and a converter is free again when its turn comes, if there are `bits` of
        # them.
        converters = [SarAdc(p.converter) for _ in range(p.converters)]
        for number, converter in enumerate(converters):
            m.submodules[f"converter_{number}"] = converter
            m.d.comb += [
                converter.i.payload.eq(self.i.payload),
                converter.i.valid.eq(self.i.valid & (taken == number)),
                converter.o.ready.eq(self.o.ready & (given == number)),
            ]
        m.d.comb += [
            self.i.ready.eq(Array(c.i.ready for c in converters)[taken]),
            self.o.valid.eq(Array(c.o.valid for c in converters)[given]),
            self.o.payload.eq(Array(c.o.payload for c in converters)[given]),
        ]
        last = p.converters - 1
        for turn, port in ((taken, self.i), (given, self.o)):
            with m.If(port.valid & port.ready):
                m.d.sync += turn.eq(Mux(turn == last, 0, turn + 1))
        return m
