"""What a testbench does to a device: buffers in RAM and accesses of registers."""

import dataclasses

import numpy as np

from hw.bus.device import DeviceDesign
from hw.bus.device_map import DeviceStream, descriptor, device_map
from sim.core import payload
from sim.core.memory import MemoryUse
from sim.core.stimulus import Outcome, Stimulus

CONTROL_START, CONTROL_RESET = 1, 16
FIRST_BUFFER = 0x1_0000
SPACING = 0x1000

Action = tuple
"""``("write", offset, value)``, ``("read", name, offset)``, ``("interrupt", cycles)``,
``("wait", cycles)`` or ``("bus", cycles)``, which waits for a request under way."""


@dataclasses.dataclass
class Program:
    """Accesses in order, and the RAM before and after.

    ram
        Bytes by their address before the first access.
    failing
        Addresses of words that are answered with SLVERR.
    pause
        Chance of a pause in each cycle, on each channel.
    dump
        Address and bytes of what is read back at the end.
    """

    actions: list[Action] = dataclasses.field(default_factory=list)
    ram: dict[int, bytes] = dataclasses.field(default_factory=dict)
    failing: list[range] = dataclasses.field(default_factory=list)
    pause: float = 0.0
    dump: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class ProgramResult:
    """What a program returned.

    values
        What was read, by name and in order.
    buffers
        Bytes of `dump`.
    failure
        Why it ended early; None if it did not.
    """

    values: dict[str, list[int]]
    buffers: dict[str, bytes]
    failure: str | None = None


class Session:
    """Writes a program of a device by its register map, as its driver would.

    >>> session = Session(design)  # doctest: +SKIP
    >>> session.load(stimulus)  # doctest: +SKIP
    >>> session.start()  # doctest: +SKIP
    """

    def __init__(self, design: DeviceDesign, pause: float = 0.0):
        self.design = design
        self.map = device_map(design.device)
        self.program = Program(pause=pause)
        self._free = FIRST_BUFFER
        self.write("interrupt_enable", 1)
        self.write("interrupt_mask", 0b101)

    def write(self, name: str, value: int) -> None:
        """Write a register of 32 or 64 bits."""
        register = self.map.find(name)
        for word in range(register.bits // 32):
            part = value >> 32 * word & 0xFFFF_FFFF
            self.program.actions.append(("write", register.offset + 4 * word, part))

    def read(self, *names: str) -> None:
        """Read the low words of registers into the results."""
        for name in names:
            self.program.actions.append(("read", name, self.map.find(name).offset))

    def allocate(self, size: int) -> int:
        """Address of a free buffer."""
        address = self._free
        self._free += -(-size // SPACING) * SPACING + SPACING
        return address

    def buffers(self, stimulus: Stimulus, tag: str = "") -> dict[str, int]:
        """Place a stimulus' beats and rows; returns base and beats by register name."""
        values: dict[str, int] = {}
        memories = {memory.request: memory for memory in stimulus.memories.values()}
        for channel in self.design.device.channels:
            name, step = channel.channel, channel.bytes
            if not isinstance(channel, DeviceStream):
                memory = memories.get(channel.request)
                rows = memory.contents if memory else np.zeros((1, 1), np.uint32)
                base = self.allocate(len(rows) * step)
                self.program.ram[base] = _to_bytes(rows, step)
                self.program.dump[f"{tag}{channel.request}"] = (base, len(rows) * step)
                values[f"{name}_base"] = base
                continue
            inputs = channel.direction == "input"
            beats = (stimulus.inputs if inputs else stimulus.outputs).get(channel.name)
            count = 0 if beats is None else len(beats)
            base = self.allocate(count * step)
            if inputs and beats is not None:
                self.program.ram[base] = _to_bytes(beats, step)
            elif not inputs:
                # Other bytes than the device writes, before and behind the buffer too.
                self.program.ram[base - 64] = b"\xa5" * (count * step + 128)
                self.program.dump[f"{tag}{channel.name}"] = (base - 64, count * step + 128)
            values[f"{name}_base"], values[f"{name}_beats"] = base, count
        return values

    def descriptor(self, values: dict[str, int], following: int, flags: int = 0) -> bytes:
        """The bytes of a descriptor."""
        values = values | {"next": following, "flags": flags}
        entries = descriptor(self.design.device)
        raw = bytearray(16 * (1 + len(self.design.device.channels)))
        for entry in entries:
            at = slice(entry.offset, entry.offset + entry.size)
            raw[at] = values[entry.name].to_bytes(entry.size, "little")
        return bytes(raw)

    def start(self, cycles: int = 200_000) -> None:
        """Start, wait for the interrupt, read the state, and clear the interrupt."""
        self.write("control", CONTROL_START)
        self.finish(cycles)

    def finish(self, cycles: int = 200_000) -> None:
        """Wait for the interrupt, read the state, and clear the interrupt."""
        self.program.actions.append(("interrupt", cycles))
        self.read("control", "error", "error_address", "interrupt_status")
        self.write("interrupt_status", 7)

    def outcome(self, stimulus: Stimulus, result: ProgramResult, tag: str = "") -> Outcome:
        """The buffers as a simulation's outputs, for the comparison of the block's testbench."""
        channels = {c.name: c for c in self.design.device.streams}
        outputs, memories = {}, {}
        for name, expected in stimulus.outputs.items():
            step = channels[name].bytes
            raw = result.buffers[f"{tag}{name}"]
            assert set(raw[:64] + raw[64 + len(expected) * step :]) == {0xA5}, f"{name} overflows"
            outputs[name] = _from_bytes(raw[64:-64], step, np.shape(expected)[1])
        steps = {memory.request: memory.bytes for memory in self.design.device.memories}
        for name, memory in stimulus.memories.items():
            step, words = steps[memory.request], np.shape(memory.contents)[1]
            rows = _from_bytes(result.buffers[f"{tag}{memory.request}"], step, words)
            none = np.zeros(0, np.int64)
            memories[name] = MemoryUse(rows, 32 * words, 0, 0, none, none)
        cycles = {name: np.zeros(len(beats), np.int64) for name, beats in outputs.items()}
        return Outcome(outputs, cycles, 0, 0, result.failure, memories)


def _to_bytes(beats: np.ndarray, step: int) -> bytes:
    return b"".join(beat.to_bytes(step, "little") for beat in payload.to_ints(beats))


def _from_bytes(raw: bytes, step: int, words: int) -> np.ndarray:
    rows = np.frombuffer(raw, np.uint8).reshape(-1, step)
    size = 4 * words
    if size > step:
        rows = np.pad(rows, ((0, 0), (0, size - step)))
    assert not rows[:, size:].any(), "bits above a beat's must be 0"
    return np.ascontiguousarray(rows[:, :size]).view("<u4").astype(np.uint32)
