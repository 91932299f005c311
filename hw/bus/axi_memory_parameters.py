"""Parameters of a memory port behind AXI4."""

import dataclasses
import functools

from hw.bus.axi import BOUNDARY, MOST_BURST, AxiSizes
from hw.bus.device_map import bytes_in_memory
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class AxiMemoryParameters(Parameters):
    """
    row
        Bits of a row.
    address
        Bits of a row's number.
    tag
        Bits of a tag, 1 or more.
    outstanding
        Reads under way at most; a power of two.
    writes
        Writes under way at most; a power of two.
    in_order
        Whether responses must have the order of their requests: all reads then have one ID.
    data, bus_address
        Bits of the bus's data and address.
    """

    row: int = 512
    address: int = 16
    tag: int = 4
    outstanding: int = 16
    writes: int = 4
    in_order: bool = False
    data: int = 64
    bus_address: int = 32

    def __post_init__(self):
        require(self.row >= 1, "row must be at least 1 bit", self.row)
        _ = self.sizes  # refuses what the bus does not have
        rule = f"a row must fit one burst: 4096 bytes, and 256 transfers of {self.data} bits"
        fits = self.row_bytes <= BOUNDARY and self.transfers <= MOST_BURST
        require(fits, rule, f"{self.row_bytes} bytes")
        require(1 <= self.tag <= 64, "tag must be from 1 to 64 bits", self.tag)
        reach = self.bus_address - self.row_bytes.bit_length() + 1
        rows = f"rows of {self.row_bytes} bytes on a bus of {self.bus_address} address bits"
        rule = f"address must be from 1 to {reach}, for {rows}"
        require(1 <= self.address <= reach, rule, self.address)
        for name in ("outstanding", "writes"):
            value = getattr(self, name)
            power = 2 <= value <= 256 and value & (value - 1) == 0
            require(power, f"{name} must be a power of two from 2 to 256", value)

    @classmethod
    def presets(cls) -> dict[str, "AxiMemoryParameters"]:
        return {
            "small": cls(64, 8, 3, 4, 2, data=32),
            "default": cls(),
            "wide": cls(4096, 20, 8, data=512, bus_address=40),
            "narrow": cls(24, 10, 2, 4, 2),
        }

    @functools.cached_property
    def sizes(self) -> AxiSizes:
        return AxiSizes(self.data, self.bus_address, (self.outstanding - 1).bit_length())

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next."""
        return bytes_in_memory(self.row)

    @property
    def transfers(self) -> int:
        """Transfers of a row."""
        return max(1, 8 * self.row_bytes // self.data)

    @property
    def lanes(self) -> int:
        """Rows in a word of the bus: 1 unless rows are narrower than the bus."""
        return max(1, self.data // (8 * self.row_bytes))

    @property
    def word(self) -> int:
        """Bits of a row's part in a transfer."""
        return self.data // self.lanes

    @property
    def latency(self) -> int:
        """Cycles from a read's request to its response beyond the bus's own, without stalls."""
        return 2 + self.transfers

    def rate(self, bus_latency: int) -> float:
        """Rows per cycle of reads that nothing stalls.

        bus_latency
            Cycles from a read's address on the bus to its first data.
        """
        return min(1 / self.transfers, self.outstanding / (bus_latency + self.transfers + 2))
