"""What the Python driver of every device does; a package's driver is this text and tables.

Imports and what is below the tables are copied into each package, so they need Python alone.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

MODULE = ""
BUILD = 0
REGISTERS: dict[str, tuple[int, int]] = {}
FIELDS: dict[str, dict[str, tuple[int, int]]] = {}
ERRORS: dict[int, str] = {}
CHANNELS: dict[str, tuple[int, dict[str, tuple]]] = {}

# Copied into packages from here on, and the imports.

IDENTIFICATION = 0x53454E42
"""What the register `identification` reads."""


class DeviceError(RuntimeError):
    """A device that is not there, is another one, or ended a run with an error."""


class Bus(Protocol):
    """How a driver reaches registers and memory: a transport.

    Addresses are bus addresses. Accesses to registers are aligned words of 4 bytes.
    """

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


class PhysicalMemory:
    """The bus of the processor that runs this program, by ``/dev/mem``, as root under Linux.

    span
        First address and number of bytes that the program needs.
    """

    def __init__(self, span: tuple[int, int], path: str = "/dev/mem"):
        self._start, size = span
        file = os.open(path, os.O_RDWR | os.O_SYNC)
        try:
            self._map = mmap.mmap(file, size, offset=self._start)
        finally:
            os.close(file)
        self._words = memoryview(self._map).cast("I")

    def read(self, address: int, size: int) -> bytes:
        first = address - self._start
        if first % 4 == 0 and size == 4:
            return struct.pack("<I", self._words[first // 4])
        return self._map[first : first + size]

    def write(self, address: int, data: bytes) -> None:
        first = address - self._start
        if first % 4 == 0 and len(data) == 4:
            (self._words[first // 4],) = struct.unpack("<I", data)
        else:
            self._map[first : first + len(data)] = data


class Device:
    """One device.

    bus
        How to reach it.
    base
        Address of its registers.

    :raises DeviceError: if another device is at this address, or none.
    """

    def __init__(self, bus: Bus, base: int):
        self.bus, self._base = bus, base
        found = self.read("identification")
        if found != IDENTIFICATION:
            raise DeviceError(f"no device at {base:#x}: its identification is {found:#010x}")
        build = self.read("build")
        if build != BUILD:
            raise DeviceError(f"the device at {base:#x} has build {build:016x}, not {BUILD:016x}")

    def read(self, register: str) -> int:
        """A register; from one of 64 bits the low word first, which keeps a counter's high word."""
        offset, bits = REGISTERS[register]
        words = [self._word(offset + 4 * n) for n in range(bits // 32)]
        return sum(word << 32 * n for n, word in enumerate(words))

    def write(self, register: str, value: int) -> None:
        """:raises KeyError: for a register that is not there."""
        offset, bits = REGISTERS[register]
        for n in range(bits // 32):
            word = value >> 32 * n & 0xFFFFFFFF
            self.bus.write(self._base + offset + 4 * n, word.to_bytes(4, "little"))

    def field(self, register: str, field: str) -> int:
        low, width = FIELDS[register][field]
        return self.read(register) >> low & (1 << width) - 1

    def _word(self, offset: int) -> int:
        return int.from_bytes(self.bus.read(self._base + offset, 4), "little")

    def start(self, **buffers: tuple[int, int] | int) -> None:
        """Start a run.

        buffers
            By channel: address and number of beats of a stream, address of a memory. A stream that
            is left out is unused.

        :raises KeyError: for a channel that is not there.
        """
        for name in buffers:
            if name not in CHANNELS:
                raise KeyError(f"{MODULE} has no channel {name}, only {', '.join(CHANNELS)}")
        for name in CHANNELS:
            buffer = buffers.get(name, (0, 0))
            base, beats = buffer if isinstance(buffer, tuple) else (buffer, 0)
            self.write(f"{name}_base", base)
            if f"{name}_beats" in REGISTERS:
                self.write(f"{name}_beats", beats)
        self.write("descriptor_next", 0)
        self.write("interrupt_status", 0b111)
        self.write("control", 1)

    def wait(self, timeout: float = 10.0, idle: Callable[[], Any] = lambda: None) -> int:
        """Wait for the end of the run; returns its clock cycles.

        idle
            Called between two looks, such as the wait for an interrupt.

        :raises DeviceError: for a run that ended with an error, or not in `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while not self.field("control", "done"):
            if time.monotonic() > end:
                raise DeviceError(f"{MODULE} has not ended its run in {timeout:g} s")
            idle()
        code = self.field("error", "code")
        if code:
            words = ERRORS.get(code, f"error {code}")
            address = self.read("error_address")
            raise DeviceError(f"{MODULE}: {words} (address {address:#x})")
        return self.read("cycles")


def pack(channel: str, **values: Any) -> bytes:
    """A beat as it is in memory.

    values
        Integers by field; of an array nested lists. Fields that are left out are 0.

    :raises ValueError: for a value that does not fit its field.
    """
    size, fields = CHANNELS[channel]
    beat = 0
    for name, value in values.items():
        offset, width, _, arrays = fields[name]
        for place, element in _elements(value, offset, arrays):
            number = int(element)
            if not -(1 << width >> 1) <= number < 1 << width:
                raise ValueError(f"{channel}.{name} must fit in {width} bits, not be {number}")
            beat |= (number & (1 << width) - 1) << place
    return beat.to_bytes(size, "little")


def unpack(channel: str, data: bytes) -> dict[str, Any]:
    """The fields of a beat: integers, of an array nested lists."""
    _, fields = CHANNELS[channel]
    beat = int.from_bytes(data, "little")

    def get(place: int, width: int, signed: bool, arrays: list) -> Any:
        if arrays:
            (count, stride), *rest = arrays
            return [get(place + stride * n, width, signed, rest) for n in range(count)]
        value = beat >> place & (1 << width) - 1
        return value - (1 << width) if signed and value >> (width - 1) else value

    return {name: get(*field) for name, field in fields.items()}


def _elements(value: Any, place: int, arrays: list) -> list[tuple[int, Any]]:
    """Bit and value of each element."""
    if not arrays:
        return [(place, value)]
    (count, stride), *rest = arrays
    if len(value) != count:
        raise ValueError(f"an array must have {count} elements, not {len(value)}")
    found = []
    for n, element in enumerate(value):
        found += _elements(element, place + stride * n, rest)
    return found
