"""The bursts of a buffer in memory, one after the other."""

import dataclasses

from amaranth.hdl import Module, Mux, Signal

from hw.bus.axi import BOUNDARY, MOST_BURST, AxiSizes
from hw.bus.device_map import bytes_in_memory
from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, wire_in, wire_out

BEAT_BITS = 32
"""Bits of a number of beats."""


@dataclasses.dataclass(frozen=True)
class EngineParameters(Parameters):
    """
    width
        Bits of a beat.
    data, bus_address
        Bits of the bus's data and address.
    burst
        Transfers of a burst at most, a power of two.
    outstanding
        Bursts under way at most.
    """

    width: int = 64
    data: int = 64
    bus_address: int = 32
    burst: int = 16
    outstanding: int = 4

    def __post_init__(self):
        require(self.width >= 1, "width must be at least 1 bit", self.width)
        require(self.width <= 1 << 15, "width must be at most 32768", self.width)
        most = min(MOST_BURST, BOUNDARY * 8 // self.data)
        power = 1 <= self.burst <= most and self.burst & (self.burst - 1) == 0
        require(power, f"burst must be a power of two up to {most}", self.burst)
        rule = "outstanding must be a power of two from 1 to 64"
        power = 1 <= self.outstanding <= 64 and self.outstanding & (self.outstanding - 1) == 0
        require(power, rule, self.outstanding)

    @property
    def sizes(self) -> AxiSizes:
        return AxiSizes(self.data, self.bus_address, 1)

    @property
    def beat_bytes(self) -> int:
        """Bytes from one beat to the next."""
        return bytes_in_memory(self.width)

    @property
    def transfers(self) -> int:
        """Transfers of a beat that is as wide as the bus or wider."""
        return max(1, 8 * self.beat_bytes // self.data)

    @property
    def lanes(self) -> int:
        """Beats in a transfer: 1 unless beats are narrower than the bus."""
        return max(1, self.data // (8 * self.beat_bytes))

    @property
    def part(self) -> int:
        """Bits of a beat in a transfer."""
        return self.data // self.lanes

    @property
    def low(self) -> int:
        """Bits of an address within a beat."""
        return (self.beat_bytes - 1).bit_length()

    @property
    def depth(self) -> int:
        """Transfers that an engine stores."""
        return max(2, self.burst * self.outstanding)


class Bursts(Component[EngineParameters]):
    """Address and length of the next burst of a buffer.

    Bursts end at multiples of `burst` transfers, which divide 4 KiB: so none crosses 4 KiB.
    Latency: from the cycle behind `start` and behind each `take`.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "start": wire_in(1, "Begin with `base` and `beats`."),
            "base": wire_in(p.bus_address, "Address of the first beat."),
            "beats": wire_in(BEAT_BITS, "Number of beats."),
            "cancel": wire_in(1, "Forget the bursts that are left."),
            "take": wire_in(1, "Go on to the next burst."),
            "address": wire_out(p.bus_address, "Address of the next burst."),
            "length": wire_out(range(p.burst + 1), "Its transfers; 0 behind the last burst."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        size, low = p.sizes.size, (p.burst - 1).bit_length()
        left = Signal(BEAT_BITS + p.transfers.bit_length())
        word = Signal(p.bus_address - size)
        # Transfers up to the next multiple of `burst`.
        room = Signal(range(p.burst + 1))
        lane = self.base[p.low : max(p.low, size)]
        m.d.comb += [
            # Bursts end at multiples of their length, so none crosses 4 KiB, which AXI4 forbids.
            room.eq(p.burst - word[:low]),
            self.length.eq(Mux(left < room, left, room)),
            self.address[size:].eq(word),
        ]
        with m.If(self.start):
            m.d.sync += word.eq(self.base[size:])
            if p.lanes > 1:
                # A buffer may begin and end inside a word of the bus: the words it touches are
                # counted.
                m.d.sync += left.eq((lane + self.beats + (p.lanes - 1)) >> len(lane))
            else:
                m.d.sync += left.eq(self.beats << (p.transfers - 1).bit_length())
        with m.Elif(self.cancel):
            m.d.sync += left.eq(0)
        with m.Elif(self.take):
            m.d.sync += [word.eq(word + self.length), left.eq(left - self.length)]
        return m
