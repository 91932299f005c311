"""Channels of an AXI4 master as it drives them: behind a skid buffer, with INCR bursts."""

from typing import Any

from amaranth.hdl import Module

from hw.bus.axi import CACHE, Burst
from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters


def buffered(m: Module, name: str, channel: Any) -> Any:
    """The input of a skid buffer before `channel`, so that the bus sees registers alone.

    name
        Prefix of the channel: ar, aw or w. The submodule is ``<name>_skid``.
    """
    skid = SkidBuffer(SkidBufferParameters(), shape=channel.payload.shape())
    m.submodules[f"{name}_skid"] = skid
    m.d.comb += [
        channel.valid.eq(skid.o.valid),
        channel.payload.eq(skid.o.payload),
        skid.o.ready.eq(channel.ready),
    ]
    return skid.i


def incremental(payload: Any, transfers: Any, size: int) -> list:
    """Assignments that make an address' payload an INCR burst of `transfers` whole words.

    size
        log2 of the bytes of a word of the bus.
    """
    return [
        payload.len.eq(transfers - 1),
        payload.size.eq(size),
        payload.burst.eq(Burst.INCR),
        payload.cache.eq(CACHE),
    ]
