"""Parameters of a device behind AXI, and what it must know of the block within."""

import dataclasses
from typing import Any

from hw.bus.axi import AxiSizes
from hw.bus.axi_memory_parameters import AxiMemoryParameters
from hw.bus.bursts import EngineParameters
from hw.parameters import Parameters, require, require_one_of

MASTERS = ("one", "each")


@dataclasses.dataclass(frozen=True)
class BusParameters(Parameters):
    """
    data
        Data bits of the AXI4 bus: 32 to 1024.
    address
        Address bits of the AXI4 bus, 32 to 64.
    masters
        ``one`` AXI4 master for all streams and memories, or one for ``each``.
    burst
        Transfers of a stream's burst at most, a power of two; 4 KiB at most.
    bursts
        Bursts of a stream under way at most, a power of two.
    reads, writes
        Reads and writes of a memory's rows under way at most, powers of two.
    """

    data: int = 64
    address: int = 32
    masters: str = "one"
    burst: int = 16
    bursts: int = 4
    reads: int = 16
    writes: int = 4

    def __post_init__(self):
        require_one_of("masters", self.masters, [*MASTERS])
        require(32 <= self.address <= 64, "address must be from 32 to 64 bits", self.address)
        AxiSizes(self.data, self.address)
        EngineParameters(32, self.data, self.address, self.burst, self.bursts)
        AxiMemoryParameters(32, 1, 1, self.reads, self.writes, False, self.data, self.address)

    @property
    def id(self) -> int:
        """Bits of each master's IDs."""
        return (self.reads - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class BlockPorts:
    """What a device must know of the block within, beside its :class:`Device`.

    module
        Name of its Verilog module.
    clocks
        Its clock and reset: ``clk``, ``rst``, both or none.
    payloads
        Shape of each stream's payload by the stream's name.
    memories
        As :func:`hw.emit.contracts.memories` has them, in the order of the device's.
    wires
        Shape of each output that is no stream, by name; the device leaves it unused.
    """

    module: str
    clocks: tuple[str, ...]
    payloads: dict[str, Any]
    memories: list[dict]
    wires: dict[str, Any]
