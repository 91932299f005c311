"""Two-entry buffer that cuts every combinational path between two stream components."""

import dataclasses

from amaranth.hdl import Module, Signal, unsigned

from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class SkidBufferParameters(Parameters):
    """
    width
        Payload bits, where the instantiating block gives no shape.
    """

    width: int = 32

    def __post_init__(self):
        require(self.width >= 1, "width must be at least 1", self.width)
        require(self.width <= 1 << 15, "width must be at most 32768", self.width)

    @classmethod
    def presets(cls) -> dict[str, "SkidBufferParameters"]:
        return {"small": cls(8), "default": cls(), "large": cls(1024)}

    @property
    def latency(self) -> int:
        return 1

    def cycles(self, beats: int) -> int:
        """Cycles from the first beat offered to the last beat taken, when nothing stalls."""
        return beats + self.latency


class SkidBuffer(Component[SkidBufferParameters]):
    """Register slice: registers in both directions of a stream.

    ::

        i ──┬─────────────→ mux ─→ output register ─→ o
            └─→ skid register ─↑

    Latency: 1 cycle. Throughput: one beat per cycle.

    Handshake: ``i.ready``, ``o.valid`` and ``o.payload`` are registers. When ``o.ready`` goes low,
    ``i.ready`` follows one cycle later; the beat accepted in that cycle goes to the skid register.
    Overflow: none, ``i.ready`` is low exactly while both registers hold a beat.

    Parameters
    ----------
    parameters : :class:`SkidBufferParameters`
    shape : shape-like
        Payload shape; by default ``unsigned(width)``.

    Examples
    --------
    Two skid buffers in a row add two cycles and cut the ready path twice.

    >>> from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters
    >>> parameters = SkidBufferParameters(width=64)
    >>> 2 * parameters.latency
    2
    >>> SkidBuffer(parameters).i.payload.shape()
    unsigned(64)
    """

    summary = "Two-entry buffer that cuts the ready path at full throughput"
    source = "library"

    def __init__(self, parameters: SkidBufferParameters, shape=None):
        self._shape = unsigned(parameters.width) if shape is None else shape
        super().__init__(parameters)

    def ports(self) -> Ports:
        return {
            "i": stream_in(self._shape, "Beats in."),
            "o": stream_out(self._shape, "The same beats, in order."),
        }

    def elaborate(self, platform):
        m = Module()
        # A separate register, because i.ready would reset to 0 and an empty buffer must accept.
        ready = Signal(init=1)
        skid = Signal(self.i.payload.shape(), reset_less=True)
        m.d.comb += self.i.ready.eq(ready)

        with m.If(ready):
            # The skid register is empty. It is written in any case: what it holds matters only
            # once `ready` is low.
            m.d.sync += skid.eq(self.i.payload)
            with m.If(~self.o.valid | self.o.ready):
                # Output register empty or being read: the beat goes there.
                m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
            with m.Else():
                # Output stalled: the skid register holds a beat accepted now.
                m.d.sync += ready.eq(~self.i.valid)
        with m.Elif(self.o.ready):
            # Both registers full and the output read: the skid register moves up.
            m.d.sync += [self.o.payload.eq(skid), ready.eq(1)]
        return m
