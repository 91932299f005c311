"""What all files of a package are made of: the design, its registers, buses and beats."""

import dataclasses
import functools
import re
from typing import Any

from hw.bus.axi import AxiSizes
from hw.bus.device import DeviceDesign
from hw.bus.device_map import DeviceMemory, DeviceStream, device_map
from hw.bus.register_map import RegisterMap
from hw.layout import Field, fields, layout_of

KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        auto break case catch char class const continue default delete do double else enum explicit
        export extern float for friend goto if inline int long mutable namespace new operator
        private protected public register restrict return short signed sizeof static struct switch
        template this throw try typedef typename union unsigned using virtual void volatile while
        and as assert async await def del elif except finally from global import in is lambda None
        nonlocal not or pass raise True False with yield
        """,
    )
)
"""Words of C, C++ and Python that no member may be named."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A field of a beat as a variable of software.

    name
        A plain name: ``max_value`` of ``max.value``.
    """

    name: str
    field: Field

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of each dimension of an array."""
        return tuple(array.count for array in self.field.arrays)


@dataclasses.dataclass(frozen=True)
class Beat:
    """A beat of a stream, or a row of a memory.

    members
        Fields of 1 bit or more, lowest first.
    """

    channel: DeviceStream | DeviceMemory
    members: tuple[Member, ...]

    @property
    def words(self) -> int:
        """Words of 32 bits in memory."""
        return self.channel.bytes // 4

    @property
    def width(self) -> int:
        """Bits that mean something."""
        channel = self.channel
        return channel.width if isinstance(channel, DeviceStream) else channel.row_bits


@dataclasses.dataclass(frozen=True)
class Description:
    """A device and all that its package says of it."""

    design: DeviceDesign

    @property
    def module(self) -> str:
        """The top module, from which all files are named."""
        return self.design.module

    @property
    def name(self) -> str:
        """The block's name, with which the names of software begin: ``veda_core``."""
        return self.design.block.module

    @property
    def summary(self) -> str:
        return f"{self.design.block.name} behind AXI: {self.design.block.summary}"

    @functools.cached_property
    def registers(self) -> RegisterMap:
        return device_map(self.design.device)

    @functools.cached_property
    def ports(self) -> tuple[tuple[str, str, int], ...]:
        """Name, direction and width of each port of the top module, as in its Verilog."""
        top = re.search(rf"^module {self.module}\((.*?)^\);", self.design.verilog, re.M | re.S)
        assert top is not None
        found = re.findall(r"^ *(input|output) (?:reg )?(?:\[(\d+):0\] )?(\w+)", top[1], re.M)
        return tuple((name, direction, int(high or 0) + 1) for direction, high, name in found)

    @functools.cached_property
    def masters(self) -> dict[str, AxiSizes]:
        """Sizes of the AXI4 masters by the prefix of their ports."""
        widths = {name: width for name, _, width in self.ports}
        prefixes = [name.removesuffix("_arvalid") for name in widths if name.endswith("_arvalid")]
        return {
            prefix: AxiSizes(
                *(widths[f"{prefix}_{field}"] for field in ("rdata", "araddr", "arid"))
            )
            for prefix in prefixes
            if prefix.startswith("m")
        }

    @functools.cached_property
    def beats(self) -> tuple[Beat, ...]:
        """A beat of each stream and a row of each memory, in the order of the channels."""
        return tuple(
            Beat(channel, _members(self._shape(channel))) for channel in self.design.device.channels
        )

    def _shape(self, channel: DeviceStream | DeviceMemory) -> Any:
        if isinstance(channel, DeviceStream):
            return self.design.payloads[channel.name]
        response = layout_of(self.design.payloads[channel.response])
        assert response is not None
        return response["data"].shape


def _members(shape: Any) -> tuple[Member, ...]:
    found: dict[str, Field] = {}
    for field in fields(shape):
        if not field.width:
            continue
        name = re.sub(r"\W+", "_", field.name.replace("[]", "")).strip("_") or "value"
        name += "_" * (name in KEYWORDS or name in found)
        found[name] = field
    return tuple(Member(name, field) for name, field in found.items())
