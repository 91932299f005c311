"""Runs of a device: descriptors, checks, start, end and errors."""

import contextlib
import dataclasses
from collections.abc import Iterator

from amaranth.hdl import Array, Cat, Const, Module, Signal, Value
from amaranth.lib import data

from hw.bus.axi import word_at
from hw.bus.bursts import BEAT_BITS
from hw.bus.device_map import DESCRIPTOR_INTERRUPT, Device, DeviceStream
from hw.bus.errors import ErrorCode
from hw.component import Component
from hw.ports import Ports, stream_in, wire_in, wire_out

DESCRIPTOR = data.StructLayout({"base": 64, "beats": 32, "unused": 32})
"""Sixteen bytes of a descriptor: of a stream or memory; or the next descriptor and the flags."""

RESET_CYCLES = 2
"""Cycles of the block's reset."""


@dataclasses.dataclass(frozen=True)
class ControlParameters:
    """
    device
        Streams and memories, the channels.
    bus_address
        Bits of the bus's addresses.
    """

    device: Device
    bus_address: int

    @property
    def masters(self) -> int:
        """Channels, and the reader of descriptors."""
        return len(self.device.channels) + 1


class RunControl(Component[ControlParameters]):
    """From a start to the interrupt.

    ::

        IDLE → LOAD ─────────────────→ CHECK → START → RUN → NEXT → IDLE
                 └→ FETCH (descriptor) ─┘ ↑                   │
                      ↑                   └ error ─→ IDLE     │
                      └───────────── next descriptor ─────────┘
        any state ─ bus error, reset ─→ DRAIN → RESET → IDLE

    CHECK takes a cycle for each channel. RUN ends when every master is idle: all beats of the
    inputs have been accepted by the block, all beats of the outputs and all rows are in memory. A
    bus error or a reset lets the bus complete all accesses under way (DRAIN); then it resets the
    block.
    """

    def ports(self) -> Ports:
        p = self.parameters
        channels, a = p.masters - 1, p.bus_address
        return {
            "start": wire_in(1, "Software starts a run."),
            "reset": wire_in(1, "Software ends a run and resets the block."),
            "next": wire_in(64, "Address of the first descriptor; 0: none."),
            "base": wire_in(64, "Address in the register.").array(channels),
            "beats": wire_in(BEAT_BITS, "Number in the register; 0 for a memory.").array(channels),
            "entry": stream_in(DESCRIPTOR, "The descriptor under way."),
            "idle_masters": wire_in(p.masters, "Masters with nothing under way."),
            "failed": wire_in(p.masters, "Masters whose access was answered with an error."),
            "failed_write": wire_in(p.masters, "With `failed`: it was a write."),
            "failed_decode": wire_in(p.masters, "With `failed`: DECERR, not SLVERR."),
            "failed_address": wire_in(a, "With `failed`: its address.").array(p.masters),
            "fetch": wire_out(1, "Read the descriptor at `current`."),
            "begin": wire_out(1, "Start the engines with `run_base` and `run_beats`."),
            "run_base": wire_out(a, "Address of each channel's first beat or row.").array(channels),
            "run_beats": wire_out(BEAT_BITS, "Beats of each stream.").array(channels),
            "running": wire_out(1, "Streams and memories move."),
            "stop": wire_out(1, "Masters complete what is under way and drop the rest."),
            "block_reset": wire_out(1, "Reset of the block."),
            "done": wire_out(1, "A run has ended."),
            "idle": wire_out(1, "No run is under way.", init=1),
            "done_set": wire_out(1, "A run, or a descriptor with the interrupt flag, ends well."),
            "ready_set": wire_out(1, "The device becomes ready."),
            "error_set": wire_out(1, "An error occurs."),
            "code": wire_out(ErrorCode, "The first error."),
            "channel": wire_out(8, "The error's channel."),
            "address": wire_out(64, "The error's address."),
            "current": wire_out(64, "Address of the descriptor under way."),
            "count": wire_out(32, "Descriptors done."),
            "cycles": wire_out(64, "Cycles of the run."),
        }

    def elaborate(self, platform):
        m = Module()
        self.number = Signal(range(len(self.run_base) + 2))  # of the entry or channel
        self.far = Signal(len(self.run_base))  # bases with bits beyond the bus
        self.following = Signal(64)  # the next descriptor
        self.asks = Signal()  # the descriptor has the interrupt flag
        self.quiet = Signal()
        self.abort = Signal()
        m.d.comb += [
            self.quiet.eq(self.idle_masters.all()),
            self.abort.eq(self.reset | self.failed.any()),
        ]
        with m.If(~self.idle):
            m.d.sync += self.cycles.eq(self.cycles + 1)
        with m.If(self.start & ~self.idle):
            self._fail(m, ErrorCode.STARTED_WHILE_RUNNING, Const(0), Const(0))
        with m.FSM(name="run"):
            self._idle(m)
            self._fetch(m)
            self._check(m)
            self._run(m)
            self._drain(m)
        self._failures(m)
        return m

    @contextlib.contextmanager
    def _state(self, m: Module, name: str) -> Iterator[None]:
        """A state that a bus error or a reset ends."""
        with m.State(name):
            yield
            with m.If(self.abort):
                m.d.comb += self.ready_set.eq(0)
                m.d.sync += [self.idle.eq(0), self.done.eq(0)]
                m.next = "DRAIN"

    def _fail(self, m: Module, code: Value | ErrorCode, channel: Value, address: Value) -> None:
        """Keep the run's first error."""
        m.d.comb += self.error_set.eq(1)
        with m.If(self.code == ErrorCode.NONE):
            m.d.sync += [
                Value.cast(self.code).eq(code),
                self.channel.eq(channel),
                self.address.eq(address),
            ]

    def _end(self, m: Module) -> None:
        """A run is over; the device is ready."""
        m.d.comb += self.ready_set.eq(1)
        m.d.sync += [self.done.eq(1), self.idle.eq(1)]
        m.next = "IDLE"

    def _idle(self, m: Module) -> None:
        """Wait for a start; then for what the block does behind the last run."""
        with self._state(m, "IDLE"):
            with m.If(self.start):
                m.d.sync += [
                    self.idle.eq(0),
                    self.done.eq(0),
                    self.count.eq(0),
                    self.cycles.eq(0),
                    Value.cast(self.code).eq(ErrorCode.NONE),
                    self.channel.eq(0),
                    self.address.eq(0),
                ]
                m.next = "LOAD"
        with self._state(m, "LOAD"):
            m.d.sync += [self.number.eq(0), self.current.eq(self.next), self.following.eq(0)]
            m.d.sync += self.asks.eq(1)
            for n, base in enumerate(self.base):
                self._load(m, n, base, self.beats[n])
            with m.If(self.quiet):
                m.next = "CHECK"
                with m.If(self.next != 0):
                    m.next = "DESCRIPTOR"

    def _load(self, m: Module, n: int, base: Value, beats: Value) -> None:
        """A channel's base and beats into the run's."""
        a = self.parameters.bus_address
        far = base[a:].any() if a < 64 else Const(0)
        m.d.sync += [
            self.run_base[n].eq(base),
            self.run_beats[n].eq(beats),
            self.far[n].eq(far),
        ]

    def _fetch(self, m: Module) -> None:
        """Read a descriptor into the run's bases and beats."""
        a, channels = self.parameters.bus_address, len(self.run_base)
        size = 16 * (channels + 1)
        with self._state(m, "DESCRIPTOR"):
            m.d.sync += self.number.eq(0)
            m.next = "FETCH"
            reach = Signal(65)
            m.d.comb += reach.eq(self.current + (size - 1))
            with m.If(self.current[:4] != 0):
                self._fail(m, ErrorCode.MISALIGNED_DESCRIPTOR, Const(channels), self.current)
                self._end(m)
            with m.Elif(reach[a:] != 0):
                self._fail(m, ErrorCode.ADDRESS_TOO_LARGE, Const(channels), self.current)
                self._end(m)
            with m.Else():
                m.d.comb += self.fetch.eq(1)
        with self._state(m, "FETCH"):
            entry = self.entry.payload
            m.d.comb += self.entry.ready.eq(1)
            with m.If(self.entry.valid):
                m.d.sync += self.number.eq(self.number + 1)
                with m.If(self.number == 0):
                    m.d.sync += self.following.eq(entry.base)
                    flag = entry.beats & DESCRIPTOR_INTERRUPT
                    m.d.sync += self.asks.eq(flag.any() | (entry.base == 0))
                for n, channel in enumerate(self.parameters.device.channels):
                    beats = entry.beats if isinstance(channel, DeviceStream) else Const(0)
                    with m.If(self.number == n + 1):
                        self._load(m, n, entry.base, beats)
                with m.If(self.number == channels):
                    m.d.sync += self.number.eq(0)
                    m.next = "CHECK"

    def _check(self, m: Module) -> None:
        """Base and end of a channel in each cycle."""
        a, channels = self.parameters.bus_address, self.parameters.device.channels
        streams = [isinstance(channel, DeviceStream) for channel in channels]
        lows = [(channel.bytes - 1).bit_length() for channel in channels]
        sizes: list[Value] = []
        for n, channel in enumerate(channels):
            if isinstance(channel, DeviceStream):
                sizes.append(self.run_beats[n] << lows[n])
            else:
                sizes.append(Const(1 << (channel.address_bits + lows[n])))
        at = Signal(range(len(channels)))
        base = Signal(a)
        size = Signal(max(len(size) for size in sizes))
        low = Signal(16)
        last = Signal(max(a, len(size)) + 1)
        m.d.comb += [
            at.eq(self.number),
            base.eq(Array(self.run_base)[at]),
            size.eq(Array(sizes)[at]),
            low.eq(Array(Const(channel.bytes - 1, 16) for channel in channels)[at]),
            last.eq(base + size - 1),
        ]
        far = word_at(self.far, at, 1)
        whole = Cat(base, far << (63 - a)) if a < 64 else base
        used = Cat(*(self.run_beats[n] != 0 if s else Const(1) for n, s in enumerate(streams)))
        wrong = Signal(ErrorCode)
        with self._state(m, "CHECK"):
            with m.If(~used[: sum(streams)].any()):
                m.d.comb += wrong.eq(ErrorCode.NO_BEATS)
            with m.Elif(word_at(used, at, 1)):
                with m.If((base == 0) & ~far):
                    m.d.comb += wrong.eq(ErrorCode.ZERO_BASE)
                with m.Elif((base & low) != 0):
                    m.d.comb += wrong.eq(ErrorCode.MISALIGNED_BASE)
                with m.Elif(far | (last[a:] != 0)):
                    m.d.comb += wrong.eq(ErrorCode.ADDRESS_TOO_LARGE)
            m.d.sync += self.number.eq(self.number + 1)
            with m.If(wrong != ErrorCode.NONE):
                self._fail(m, Value.cast(wrong), at, whole)
                self._end(m)
            with m.Elif(self.number == len(channels) - 1):
                m.next = "START"

    def _run(self, m: Module) -> None:
        """Start the engines, wait for the end, and go on to the next descriptor."""
        with self._state(m, "START"):
            with m.If(self.quiet):
                m.d.comb += self.begin.eq(1)
                m.next = "RUN"
        with self._state(m, "RUN"):
            m.d.comb += self.running.eq(1)
            with m.If(self.quiet):
                m.next = "NEXT"
        with self._state(m, "NEXT"):
            m.d.comb += self.done_set.eq(self.asks)
            m.d.sync += self.count.eq(self.count + (self.current != 0))
            with m.If(self.following == 0):
                self._end(m)
            with m.Else():
                m.d.sync += self.current.eq(self.following)
                m.next = "DESCRIPTOR"

    def _drain(self, m: Module) -> None:
        """Let the bus complete, then reset the block."""
        left = Signal(range(RESET_CYCLES + 1))
        with m.State("DRAIN"):
            m.d.comb += self.stop.eq(1)
            m.d.sync += left.eq(RESET_CYCLES)
            with m.If(self.quiet):
                m.next = "RESET"
        with m.State("RESET"):
            m.d.comb += [self.stop.eq(1), self.block_reset.eq(1)]
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                self._end(m)

    def _failures(self, m: Module) -> None:
        """The errors that end a run in any state: a reset, then the bus' errors."""
        with m.If(self.reset & ~self.idle & ~self.stop):
            self._fail(m, ErrorCode.RESET_WHILE_RUNNING, Const(0), Const(0))
        for n in reversed(range(self.parameters.masters)):
            kind = Cat(self.failed_decode[n], self.failed_write[n])
            with m.If(self.failed[n]):
                code = ErrorCode.READ_SLAVE_ERROR.value + kind
                self._fail(m, code, Const(n), self.failed_address[n])
