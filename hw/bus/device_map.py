"""The register map of a block behind AXI, and its descriptors in memory.

    >>> a = DeviceStream("a", "input", 40, "Operands.")
    >>> registers = device_map(Device(streams=(a,), memories=(), build=0))
    >>> [(hex(r.offset), r.name) for r in registers.registers[:4]]
    [('0x0', 'control'), ('0x4', 'interrupt_enable'), ('0x8', 'interrupt_mask'), \
('0xc', 'interrupt_status')]
    >>> hex(registers.find("input_a_base").offset), registers.find("input_a_base").bits
    ('0x100', 64)
"""

import dataclasses
import re

from hw.bus.errors import ErrorCode
from hw.bus.register_map import (
    CLEAR,
    CONSTANT,
    PULSE,
    READ_ONLY,
    READ_WRITE,
    Register,
    RegisterField,
    RegisterMap,
)
from hw.emit import contracts
from hw.parameters import Parameters
from hw.ports import stream_of

IDENTIFICATION = 0x53454E42
"""What the register at 0x10 reads: ``SENB``."""
VERSION = (1, 0)
"""Major and minor number of the map below; the major one changes if a driver must."""
FIRST_CHANNEL = 0x100
CHANNEL_BYTES = 0x20
"""Offset of the first stream's or memory's registers, and from each to the next."""


@dataclasses.dataclass(frozen=True)
class DeviceStream:
    """A stream between the block and a buffer in memory.

    direction
        ``input`` or ``output``, of the block.
    width
        Bits of a beat.
    """

    name: str
    direction: str
    width: int
    words: str = ""

    @property
    def channel(self) -> str:
        """The name that its registers start with."""
        return f"{self.direction}_{self.name}".replace("__", "_")

    @property
    def bytes(self) -> int:
        return bytes_in_memory(self.width)


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """A memory port of the block, whose rows are at a base address in memory.

    name
        The stream of requests' without that word; empty if nothing else is left.
    request, response
        Names of the block's streams.
    row_bits, address_bits
        Widths of a row and of its number.
    """

    name: str
    request: str
    response: str
    row_bits: int
    address_bits: int
    words: str = ""

    @property
    def channel(self) -> str:
        """The name that its registers start with."""
        return "_".join(filter(None, ["memory", self.name]))

    @property
    def bytes(self) -> int:
        return bytes_in_memory(self.row_bits)


@dataclasses.dataclass(frozen=True)
class Device:
    """A block behind AXI, as its registers show it.

    streams
        Inputs, then outputs, without the streams of memories.
    build
        Number of 64 bits that tells this hardware from other hardware.
    """

    streams: tuple[DeviceStream, ...]
    memories: tuple[DeviceMemory, ...]
    build: int

    @property
    def channels(self) -> tuple[DeviceStream | DeviceMemory, ...]:
        """Streams and memories in the order of their registers and in a descriptor."""
        return (*self.streams, *self.memories)


def bytes_in_memory(width: int) -> int:
    """Bytes from one beat or row of `width` bits to the next in memory.

    A power of two, 4 at least, so that no beat crosses 4 KiB. Bit 0 of the beat is bit 0 of the
    first byte; the bits above the beat's are 0 where the device writes, and ignored where it reads.
    """
    return max(4, 1 << (-(-width // 8) - 1).bit_length())


def device_of(ports: list[dict], parameters: Parameters, build: int) -> Device:
    """The device of a block.

    ports
        As :func:`hw.ports.list_ports` has them.
    """
    found = contracts.memories(ports, parameters)
    taken = {memory[part] for memory in found for part in ("request", "response")}
    payloads = {
        stream_of(port["name"]): port for port in ports if port["name"].endswith("__payload")
    }
    streams = [
        DeviceStream(name, port["direction"], port["width"], port.get("description", ""))
        for name, port in payloads.items()
        if name not in taken
    ]
    streams.sort(key=lambda stream: stream.direction == "output")
    memories = []
    for memory in found:
        asked, answered = payloads[memory["request"]], payloads[memory["response"]]
        name = re.sub("_*request_*", "_", memory["request"]).strip("_")
        memories.append(
            DeviceMemory(
                name,
                memory["request"],
                memory["response"],
                _bits_of(answered, memory["data"]),
                _bits_of(asked, memory["address"]),
                asked.get("description", ""),
            )
        )
    return Device(tuple(streams), tuple(memories), build)


def _bits_of(port: dict, name: str) -> int:
    """Width of a field of a payload, with all that is in it."""
    parts = [
        field
        for field in port["fields"]
        if field["name"].partition(".")[0].partition("[")[0] == name
    ]
    ends = [
        field["offset"]
        + field["width"]
        + sum((array["count"] - 1) * array["stride"] for array in field.get("arrays", ()))
        for field in parts
    ]
    return max(ends) - min(field["offset"] for field in parts)


def device_map(device: Device) -> RegisterMap:
    """The registers of a device: control and interrupts as of HLS, identification, errors,
    counters, descriptors, then each stream and each memory."""
    registers = [*_control(), *_identification(device), *_errors(), *_counters(), *_descriptors()]
    for number, channel in enumerate(device.channels):
        offset = FIRST_CHANNEL + CHANNEL_BYTES * number
        registers += _stream(channel, offset) if isinstance(channel, DeviceStream) else ()
        registers += _memory(channel, offset) if isinstance(channel, DeviceMemory) else ()
    return RegisterMap(tuple(registers))


INTERRUPTS = (
    ("done", "A run, or a descriptor with the flag, has ended without error."),
    ("ready", "The device accepts the next start."),
    ("error", "A run has ended with an error, or a start was refused."),
)
"""Causes of an interrupt, bit 0 first."""


def _interrupts(access: str) -> tuple[RegisterField, ...]:
    return tuple(
        RegisterField(name, bit, 1, access, words) for bit, (name, words) in enumerate(INTERRUPTS)
    )


def _control() -> list[Register]:
    control = (
        RegisterField("start", 0, 1, PULSE, "Starts a run with the registers as they are."),
        RegisterField("done", 1, 1, READ_ONLY, "A run has ended; 0 again from the next start on."),
        RegisterField("idle", 2, 1, READ_ONLY, "No run is under way.", 1),
        RegisterField("ready", 3, 1, READ_ONLY, "A start is accepted.", 1),
        RegisterField("reset", 4, 1, PULSE, "Ends a run: drains the bus, then resets the block."),
    )
    enable = (RegisterField("", 0, 1, READ_WRITE, "The interrupt line may rise."),)
    return [
        Register("control", 0x00, control, "Start and state of a run."),
        Register("interrupt_enable", 0x04, enable, "Enables the interrupt line."),
        Register(
            *("interrupt_mask", 0x08, _interrupts(READ_WRITE)),
            "Causes that raise the line: those whose bit is 1.",
        ),
        Register(
            *("interrupt_status", 0x0C, _interrupts(CLEAR)),
            "Causes since they were cleared, masked or not; the line is high while one is.",
        ),
    ]


def _identification(device: Device) -> list[Register]:
    def constant(name: str, low: int, width: int, value: int, words: str) -> RegisterField:
        return RegisterField(name, low, width, CONSTANT, words, value)

    kinds = [stream.direction for stream in device.streams]
    version = (
        constant("minor", 0, 16, VERSION[1], "Number of compatible changes."),
        constant("major", 16, 16, VERSION[0], "Number of changes that a driver must know."),
    )
    channels = (
        constant("inputs", 0, 8, kinds.count("input"), "Number of input streams."),
        constant("outputs", 8, 8, kinds.count("output"), "Number of output streams."),
        constant("memories", 16, 8, len(device.memories), "Number of memory ports."),
    )
    return [
        Register(
            *("identification", 0x10),
            (constant("", 0, 32, IDENTIFICATION, "The letters SENB, S highest."),),
            "Tells that this is such a device.",
        ),
        Register("version", 0x14, version, "Version of this register map."),
        Register(
            *("build", 0x18, (constant("", 0, 64, device.build, "A hash."),)),
            *("Tells this hardware from other hardware.", 64),
        ),
        Register("channels", 0x20, channels, "Streams and memories, whose registers follow."),
    ]


def _whole(access: str, words: str, bits: int = 32) -> tuple[RegisterField, ...]:
    return (RegisterField("", 0, bits, access, words),)


def _errors() -> list[Register]:
    error = (
        RegisterField("code", 0, 8, READ_ONLY, "Kind of error.", 0, ErrorCode),
        RegisterField("channel", 8, 8, READ_ONLY, "Number of the stream or memory, from 0."),
    )
    words = "The run's first error; 0 again from the next start on."
    address = _whole(READ_ONLY, "A byte's address.", 64)
    return [
        Register("error", 0x24, error, words),
        Register("error_address", 0x28, address, "Address at which the error occurred.", 64),
    ]


COUNTERS = (
    ("cycles", "Clock cycles from the start to the end of the run."),
    ("input_stalls", "Cycles in which the block waited for a beat of an input."),
    ("output_stalls", "Cycles in which the block waited with a beat of an output."),
    ("memory_stalls", "Cycles in which the block waited with a request to a memory."),
)
"""Counters of a run, 64 bits each: reading the low word keeps the high word for its next read."""


def _counters() -> list[Register]:
    return [
        Register(
            *(name, 0x30 + 8 * number, _whole(READ_ONLY, "A count.", 64)),
            f"{words} Read the low word first: it keeps the high word for the next read of it.",
            64,
        )
        for number, (name, words) in enumerate(COUNTERS)
    ]


def _descriptors() -> list[Register]:
    first = _whole(READ_WRITE, "A byte's address, a multiple of 16, or 0.", 64)
    current = _whole(READ_ONLY, "A byte's address.", 64)
    return [
        Register(
            *("descriptor_next", 0x50, first),
            *("Address of a start's first descriptor; 0: runs with the registers below.", 64),
        ),
        Register(
            *("descriptor_current", 0x58, current, "Address of the descriptor under way.", 64)
        ),
        Register(
            *("descriptor_count", 0x60, _whole(READ_ONLY, "A count.")),
            "Number of descriptors that are done since the start.",
        ),
    ]


def _stream(stream: DeviceStream, offset: int) -> list[Register]:
    does = "reads from" if stream.direction == "input" else "writes to"
    base = f"Address of the first beat, which the device {does}, a multiple of {stream.bytes}."
    return [
        Register(
            *(f"{stream.channel}_base", offset, _whole(READ_WRITE, "A byte's address.", 64)),
            *(base, 64),
        ),
        Register(
            *(f"{stream.channel}_beats", offset + 0x08, _whole(READ_WRITE, "A count.")),
            f"Number of beats of a run, {stream.bytes} bytes each; 0: the stream is unused.",
        ),
        Register(
            *(f"{stream.channel}_moved", offset + 0x0C, _whole(READ_ONLY, "A count.")),
            "Number of beats that have moved since the start.",
        ),
    ]


def _memory(memory: DeviceMemory, offset: int) -> list[Register]:
    base = f"Address of row 0, a multiple of {memory.bytes}; a row takes {memory.bytes} bytes."
    return [
        Register(
            *(f"{memory.channel}_base", offset, _whole(READ_WRITE, "A byte's address.", 64)),
            *(base, 64),
        ),
        Register(
            *(f"{memory.channel}_reads", offset + 0x08, _whole(READ_ONLY, "A count.")),
            "Number of rows read since the start.",
        ),
        Register(
            *(f"{memory.channel}_writes", offset + 0x0C, _whole(READ_ONLY, "A count.")),
            "Number of rows written since the start.",
        ),
    ]


@dataclasses.dataclass(frozen=True)
class DescriptorEntry:
    """Bytes of a descriptor in memory, least significant byte first.

    size
        In bytes: 4 or 8.
    """

    name: str
    offset: int
    size: int
    words: str


DESCRIPTOR_INTERRUPT = 1
"""Bit of a descriptor's ``flags``: raise ``done`` behind it, as behind the last one."""


def descriptor(device: Device) -> tuple[DescriptorEntry, ...]:
    """What a descriptor holds, 16 bytes and 16 for each stream and memory."""
    entries = [
        DescriptorEntry("next", 0, 8, "Address of the next one, a multiple of 16; 0: the last."),
        DescriptorEntry("flags", 8, 4, "Bit 0: set the interrupt done behind this one too."),
    ]
    for number, channel in enumerate(device.channels, 1):
        words = f"As the register {channel.channel}_base."
        entries.append(DescriptorEntry(f"{channel.channel}_base", 16 * number, 8, words))
        if isinstance(channel, DeviceStream):
            words = f"As the register {channel.channel}_beats."
            entries.append(DescriptorEntry(f"{channel.channel}_beats", 16 * number + 8, 4, words))
    return tuple(entries)


def descriptor_bytes(device: Device) -> int:
    return 16 * (1 + len(device.channels))
