"""AXI4, AXI4-Lite and AXI4-Stream as signatures, each channel one stream.

Inside the hardware a channel is a stream, so the parts of :mod:`hw.stream` connect it. At the ports
of a device each field of a channel is a port with the name that FPGA tools know::

    aclk, aresetn                  clock, and synchronous reset, active low
    s_axi_awaddr, s_axi_awvalid…   AXI4-Lite of the registers
    m_axi_araddr, m_axi_arvalid…   AXI4 master; m0_axi_*, m1_axi_*… if there are several
    m_axis_tdata, s_axis_tdata…    AXI4-Stream; with a name, m_axis_NAME_tdata…
    interrupt                      level, active high

:func:`flat_ports` declares these ports, :func:`connect_flat` connects them.
"""

import dataclasses
from typing import Any

from amaranth.hdl import Array, ClockDomain, Module, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.parameters import require
from hw.ports import Port, Ports, wire_in

BOUNDARY = 4096
"""Bytes: no burst crosses a multiple of them (AXI4, A3.4.1)."""

MOST_BURST = 256
"""Transfers of an INCR burst at most."""

WIDTHS = (32, 64, 128, 256, 512, 1024)
"""Data bits of a bus."""

CACHE = 0b0011
"""AxCACHE: normal memory, not cacheable, bufferable, as FPGA masters drive it."""

INTERRUPT = "interrupt"
CLOCK, RESET = "aclk", "aresetn"


class Response(enum.Enum, shape=2):
    """RRESP and BRESP."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Burst(enum.Enum, shape=2):
    """AxBURST."""

    FIXED = 0
    INCR = 1
    WRAP = 2


@dataclasses.dataclass(frozen=True)
class AxiSizes:
    """Widths of an AXI4 port.

    data
        Data bits of the bus, one of :data:`WIDTHS`.
    address
        Address bits, 13 to 64.
    id
        Bits of the IDs, 1 or more.
    """

    data: int = 64
    address: int = 32
    id: int = 4

    def __post_init__(self):
        rule = f"the bus's data must be one of {', '.join(map(str, WIDTHS))} bits"
        require(self.data in WIDTHS, rule, self.data)
        rule = "the bus's address must be from 13 to 64 bits"
        require(13 <= self.address <= 64, rule, self.address)
        require(1 <= self.id <= 16, "the bus's id must be from 1 to 16 bits", self.id)

    @property
    def bytes(self) -> int:
        """Bytes of a transfer."""
        return self.data // 8

    @property
    def size(self) -> int:
        """AxSIZE of a transfer as wide as the bus."""
        return self.bytes.bit_length() - 1


class AXI4(wiring.Signature):
    """AXI4 from the master's side: streams aw, w, ar to the slave, b and r from it.

    Every burst is INCR and as wide as the bus; AxLOCK, AxQOS and AxREGION are left at 0.
    """

    def __init__(self, sizes: AxiSizes):
        self.sizes = sizes
        command = {
            "id": sizes.id,
            "addr": sizes.address,
            "len": 8,
            "size": 3,
            "burst": Burst,
            "cache": 4,
            "prot": 3,
        }
        write = {"data": sizes.data, "strb": sizes.bytes, "last": 1}
        read = {"id": sizes.id, "data": sizes.data, "resp": Response, "last": 1}
        super().__init__(
            {
                "aw": Out(stream.Signature(data.StructLayout(command))),
                "w": Out(stream.Signature(data.StructLayout(write))),
                "b": In(stream.Signature(data.StructLayout({"id": sizes.id, "resp": Response}))),
                "ar": Out(stream.Signature(data.StructLayout(command))),
                "r": In(stream.Signature(data.StructLayout(read))),
            }
        )


class AXI4Lite(wiring.Signature):
    """AXI4-Lite from the master's side: streams aw, w, ar to the slave, b and r from it.

    data
        32 or 64 bits.
    """

    def __init__(self, address: int, data_width: int = 32):
        require(data_width in (32, 64), "AXI4-Lite data must be 32 or 64 bits", data_width)
        require(1 <= address <= 64, "AXI4-Lite's address must be from 1 to 64 bits", address)
        command = data.StructLayout({"addr": address, "prot": 3})
        write = data.StructLayout({"data": data_width, "strb": data_width // 8})
        read = data.StructLayout({"data": data_width, "resp": Response})
        super().__init__(
            {
                "aw": Out(stream.Signature(command)),
                "w": Out(stream.Signature(write)),
                "b": In(stream.Signature(data.StructLayout({"resp": Response}))),
                "ar": Out(stream.Signature(command)),
                "r": In(stream.Signature(read)),
            }
        )


class AXI4Stream(wiring.Signature):
    """AXI4-Stream from the master's side: one stream t of data and last; every byte is kept.

    width
        Data bits, a multiple of 8.
    """

    def __init__(self, width: int):
        require(width >= 8 and width % 8 == 0, "AXI4-Stream's data must be whole bytes", width)
        layout = data.StructLayout({"data": width, "last": 1})
        super().__init__({"t": Out(stream.Signature(layout))})


def word_at(value: Any, number: Value, width: int) -> Any:
    """Bits ``[number * width : (number + 1) * width]`` of a value."""
    value = Value.cast(value)
    count = -(-len(value) // width)
    return Array(value[n * width : (n + 1) * width] for n in range(count))[number]


def flat_ports(prefix: str, signature: wiring.Signature, words: str = "") -> Ports:
    """The ports of a bus by the names that FPGA tools know: ``m_axi_awvalid``.

    prefix
        ``m_axi``, ``m0_axi``, ``s_axi``, ``m_axis``, ``s_axis``; one that begins with ``s`` is a
        slave's.
    words
        Meaning of the bus, for the first port.
    """
    ports: Ports = {}
    for channel, member in signature.members.items():
        forward: Any = member.flow if prefix[0] == "m" else member.flow.flip()
        layout = member.signature.members["payload"].shape
        ports[f"{prefix}_{channel}valid"] = Port(forward(1), words)
        ports[f"{prefix}_{channel}ready"] = Port(forward.flip()(1))
        for name, field in layout:
            ports[f"{prefix}_{channel}{name}"] = Port(forward(field.width))
        words = ""
    return ports


def connect_flat(m: Module, component: Any, prefix: str, bus: Any) -> None:
    """Connect a bus inside to the ports of :func:`flat_ports`.

    bus
        Interface seen from the other side: for a master's ports, an object whose streams aw, w, ar
        are driven inside (a master's own port); for a slave's, one whose b and r are.
    """
    for channel in ("aw", "w", "b", "ar", "r", "t"):
        inner = getattr(bus, channel, None)
        if inner is None:
            continue
        name = f"{prefix}_{channel}"
        outward = (channel not in ("b", "r")) == (prefix[0] == "m")
        valid, ready = getattr(component, f"{name}valid"), getattr(component, f"{name}ready")
        pairs = [(valid, inner.valid), (inner.ready, ready)]
        for field, _ in inner.payload.shape():
            pairs.append((getattr(component, f"{name}{field}"), inner.payload[field]))
        for outer, within in pairs:
            to, of = (outer, within) if outward else (within, outer)
            m.d.comb += Value.cast(to).eq(Value.cast(of))


def clock_ports() -> Ports:
    """The clock and the reset of a device."""
    return {
        CLOCK: wire_in(1, "Clock."),
        RESET: wire_in(1, "Synchronous reset, active low."),
    }


def clock_domain(m: Module, component: Any) -> None:
    """The domain ``sync`` of a device with :func:`clock_ports`, which has no registers itself."""
    domain: Any = ClockDomain("sync", local=True)  # stubs lack its signals
    m.domains.sync = domain
    domain.clk = getattr(component, CLOCK)
    m.d.comb += domain.rst.eq(~getattr(component, RESET))
