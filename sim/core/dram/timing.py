"""A memory's timing as a DRAM: settings, the schedule of its responses, and what it did."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import ClassVar

import numpy as np

from hw.parameters import require
from sim.core.dram.address import AddressMap
from sim.core.dram.channel import HITS, READS, WRITES, WRITES_HIGH, WRITES_LOW, Counts
from sim.core.dram.device import WINDOW, Device
from sim.core.dram.standards import STANDARDS, Standard, find_standard
from sim.core.memory import LONGEST, MemoryTiming, MemoryUse

CLOCK = 1_000_000
"""Core clock in kHz unless told otherwise."""
CHANNELS, WINDOWS = 64, 4096
"""Channels and waiting bursts at most."""
BURSTS = 288
"""Bursts, each in another row of one bank, within whose time a response is expected."""


@dataclasses.dataclass
class DramUse:
    """What a DRAM did in one run.

    clocks
        Clocks of the memory from the first request to the last data.
    elapsed
        Clocks of the memory up to the last cycle in which it was looked at.
    counts
        Sums over the channels, up to then.
    requested
        Bursts requested, of which equal ones may have been joined; None if unknown.
    """

    standard: Standard
    clocks: int
    elapsed: int
    counts: Counts
    requested: int | None = None

    @classmethod
    def of_figures(cls, standard: Standard, figures: list[int]) -> "DramUse":
        """From clocks, elapsed and the counts, as ``dram.h`` of the compiled harness has them."""
        clocks, elapsed, *counts = figures
        return cls(standard, clocks, elapsed, Counts(*counts))

    def __add__(self, other: "DramUse") -> "DramUse":
        """One run after another."""
        clocks, elapsed = self.clocks + other.clocks, self.elapsed + other.elapsed
        return DramUse(self.standard, clocks, elapsed, self.counts + other.counts)

    @property
    def bytes_moved(self) -> int:
        """Bytes of whole bursts on the data buses, or of the bursts requested."""
        bursts = (
            self.counts.reads + self.counts.writes if self.requested is None else self.requested
        )
        return bursts * self.standard.line

    @property
    def achieved(self) -> float:
        """Share of the peak, from the first request to the last data."""
        peak = self.standard.channels * self.standard.line / self.standard.burst
        return self.bytes_moved / max(1, self.clocks) / peak

    def energy(self) -> dict[str, float]:
        """Nanojoules by kind."""
        s, counts, of = self.standard, self.counts, self.standard.energies()
        closed = self.elapsed * s.channels * s.ranks - counts.open_clocks
        background = counts.open_clocks * of["standby_open"] + closed * of["standby"]
        picojoules = {
            "activation": counts.activations * of["activation"],
            "read": counts.reads * of["read"],
            "write": counts.writes * of["write"],
            "refresh": counts.refreshes * of["refresh"],
            "background": background,
        }
        return {kind: round(energy / 1000, 3) for kind, energy in picojoules.items()}

    def as_json(self) -> dict:
        """Figures of a report."""
        counts = self.counts
        return {
            "standard": self.standard.name,
            "channels": self.standard.channels,
            "cycles": self.clocks,
            "tck_ns": self.standard.tck_ps / 1000,
            "bytes": self.bytes_moved,
            "achieved": round(self.achieved, 4),
            "reads": counts.reads,
            "writes": counts.writes,
            "row_hits": counts.row_hits,
            "activations": counts.activations,
            "refreshes": counts.refreshes,
            "energy_nj": self.energy(),
        }


def drams_of(uses: Mapping[str, MemoryUse]) -> list[DramUse]:
    """The memories of a run that are DRAMs."""
    return [use.dram for use in uses.values() if use.dram is not None]


@dataclasses.dataclass(frozen=True)
class DramTiming(MemoryTiming):
    """A DRAM behind a memory's port; each memory of a block is a device with channels for itself.

    Row r of W bits lies at byte r * ceil(W / 8). It is split into the bursts that it touches, and
    answered when the last of them has arrived. A request reaches the controller at the first clock
    of the memory that begins after its cycle; data are offered in the first cycle that begins when
    they have arrived.

    standard
        With the channels of the run.
    clock
        Clock of the core, in kHz.
    address_map
        As :meth:`sim.core.dram.address.AddressMap.from_text` has it.
    hashed
        Whether banks and channels are hashed.
    window
        Bursts that wait before the channels' queues.
    """

    reorder: bool = True
    standard: Standard = STANDARDS["hbm2"]
    clock: int = CLOCK
    address_map: str = ""
    hashed: bool = False
    window: int = WINDOW
    is_drawn: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        rule = f"channels must be a power of two up to {CHANNELS}"
        channels = self.standard.channels
        require(1 <= channels <= CHANNELS and channels.bit_count() == 1, rule, channels)
        require(1 <= self.window <= WINDOWS, f"window must be from 1 to {WINDOWS}", self.window)
        require(1 <= self.clock <= 10**7, "clock must be from 0.001 to 10000 MHz", self.clock)
        self.locate()

    @classmethod
    def of(cls, standard: Standard, clock: int = CLOCK, **settings) -> "DramTiming":
        """A DRAM whose responses are expected within the time of a refresh and BURSTS bursts."""
        clocks = standard.refresh + BURSTS * standard.row_cycle
        cycles = math.ceil(clocks * clock * standard.tck_ps / 10**9)
        return cls(
            latency=(1, max(1, min(LONGEST, cycles))), standard=standard, clock=clock, **settings
        )

    def __str__(self) -> str:
        standard = f"{self.standard.name},channels={self.standard.channels}"
        clock = f"{Decimal(self.clock) / 1000:f}"
        fields = self.address_map or self.standard.address_map
        settings = f"clock={clock},map={fields},hash={'on' if self.hashed else 'off'}"
        return f"{standard},{settings},window={self.window},order={'any' if self.reorder else 'in'}"

    @property
    def ratio(self) -> tuple[int, int]:
        """Clocks of the memory in a cycle of the core, as a fraction."""
        memory, core = 10**9, self.clock * self.standard.tck_ps
        common = math.gcd(memory, core)
        return memory // common, core // common

    def locate(self) -> AddressMap:
        """The map of addresses."""
        fields = self.address_map or self.standard.address_map
        return AddressMap.from_text(fields, self.standard, self.hashed)

    def schedule(self, row_bits: int) -> "DramSchedule":
        return DramSchedule(self, row_bits)

    def dram_numbers(self, row_bits: int) -> np.ndarray:
        s = dataclasses.asdict(self.standard)
        timing = [int(value) for value in s.values() if isinstance(value, int)]
        policy = [READS, WRITES, WRITES_HIGH, WRITES_LOW, HITS, self.window]
        row = -(-row_bits // 8)
        return np.array([*timing, *policy, *self.ratio, row, *self.locate().numbers()], np.int64)


class DramSchedule:
    """The schedule of a DRAM's responses; see :class:`sim.core.schedules.Schedule`."""

    def __init__(self, timing: DramTiming, row_bits: int):
        self._timing, self._row = timing, -(-row_bits // 8)
        self._per_cycle, self._per_clock = timing.ratio
        self.device = Device(timing.standard, timing.locate(), timing.window)
        self._bursts = 0
        self._read_of: dict[int, int] = {}  # burst to the number of its read
        self._missing: dict[int, int] = {}  # bursts of a read that have not arrived
        self._arriving: list[tuple[int, int]] = []
        self._ready: list[int] = []
        self._order: collections.deque[int] = collections.deque()  # reads not answered yet
        self._first: int | None = None
        self._last = 0

    def read(self, cycle: int, number: int, address: int) -> None:
        first = self._bursts
        self._push(cycle, address, False)
        self._missing[number] = self._bursts - first
        self._read_of.update(dict.fromkeys(range(first, self._bursts), number))
        if not self._timing.reorder:
            self._order.append(number)

    def write(self, cycle: int, number: int, address: int) -> None:
        self._push(cycle, address, True)

    def ready(self, cycle: int) -> bool:
        self.device.advance(cycle * self._per_cycle // self._per_clock)
        return self.device.has_room

    def _push(self, cycle: int, address: int, write: bool) -> None:
        device, line = self.device, self._timing.standard.line
        device.advance(-(-(cycle + 1) * self._per_cycle // self._per_clock))
        if self._first is None:
            self._first = device.clock
        start = address * self._row
        for place in range(start // line, (start + self._row - 1) // line + 1):
            device.push(self._bursts, place, write)
            self._bursts += 1

    def answer(self, cycle: int) -> int | None:
        clock = cycle * self._per_cycle // self._per_clock
        device = self.device
        if clock > device.next:
            device.advance(clock)
        for done in device.done:
            heapq.heappush(self._arriving, done)
        device.done.clear()
        while self._arriving and self._arriving[0][0] <= clock:
            self._last, burst = heapq.heappop(self._arriving)
            number = self._read_of.pop(burst, None)
            if number is None:
                continue
            self._missing[number] -= 1
            if not self._missing[number]:
                del self._missing[number]
                heapq.heappush(self._ready, number)
        if not self._ready or not self._timing.reorder and self._ready[0] != self._order[0]:
            return None
        number = heapq.heappop(self._ready)
        if not self._timing.reorder:
            self._order.popleft()
        return number

    def use(self) -> DramUse:
        device = self.device
        clocks = 0 if self._first is None else max(0, self._last - self._first)
        return DramUse(self._timing.standard, clocks, device.clock, device.counts())


def parse_timing(text: str, seed: int = 0) -> MemoryTiming:
    """A memory's timing as typed: of a DRAM if a standard's name comes first, else of latencies.

    ``hbm2,channels=4,clock=1000,map=row:bank:column:channel,hash=on,window=32,order=in``, or
    ``latency=1..80,order=any,interval=2,seed=3``, or a part of either. The core's clock is in MHz.

    :raises ParameterError: for an unknown name or setting, or a value out of range.
    """
    name, *settings = text.split(",")
    if "=" in name or name in ("latency", "order", "interval", "seed"):
        return MemoryTiming.from_text(text, seed)
    standard = find_standard(name)
    values = {"channels": str(standard.channels), "clock": "1000", "map": standard.address_map}
    values |= {"hash": "off", "window": str(WINDOW), "order": "any"}
    for setting in settings:
        key, _, value = setting.partition("=")
        known = f"a DRAM's setting must be one of {', '.join(values)}, each as NAME=VALUE"
        require(key in values and bool(value), known, setting)
        values[key] = value
    for key, words in (("hash", ("off", "on")), ("order", ("in", "any"))):
        require(values[key] in words, f"{key} must be {words[0]} or {words[1]}", values[key])
    for key in ("channels", "window"):
        require(values[key].isdecimal(), f"{key} must be a whole number", values[key])
    try:
        clock = Decimal(values["clock"]) * 1000
    except InvalidOperation:
        clock = Decimal("nan")
    whole = clock.is_finite() and clock == clock.to_integral_value()
    require(whole, "clock must be a number of MHz, with three decimals at most", values["clock"])
    return DramTiming.of(
        dataclasses.replace(standard, channels=int(values["channels"])),
        int(clock),
        address_map=values["map"],
        hashed=values["hash"] == "on",
        window=int(values["window"]),
        reorder=values["order"] == "any",
    )
