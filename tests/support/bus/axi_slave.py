"""An AXI4 slave in Amaranth's simulator: a memory with latency, pauses and any order of IDs.

Called once in each cycle, first :meth:`AxiSlave.drive`, then :meth:`AxiSlave.sample`. It checks the
rules of a master: valid and payload are held until ready, no burst crosses 4 KiB, WLAST ends each
burst, and no ID is used again before its response.
"""

import dataclasses
import random
from collections import deque

from amaranth.hdl import Value


@dataclasses.dataclass
class Burst:
    """A burst under way.

    due
        First cycle in which it may be answered.
    words
        Data of a read, if it was read as its address was accepted; otherwise it is read as late as
        possible.
    stored
        Bytes of a write, which memory holds from the last transfer or from the response on.
    """

    identity: int
    address: int
    length: int
    due: int
    moved: int = 0
    words: list[int] | None = None
    stored: dict[int, int] = dataclasses.field(default_factory=dict)


class AxiSlave:
    """The other side of a master's ``bus``.

    latency
        Cycles from an address to its first data, or to the response behind the last data.
    pause
        Chance of a cycle in which a channel does not move.
    shuffle
        Whether bursts of different IDs are answered in any order, their transfers interleaved.
    failing
        Byte addresses of words answered with DECERR, as ``range``.
    late
        Whether a channel is ready only for a beat that it has seen valid for a cycle.
    unique
        Whether each ID may have one read under way only.
    """

    def __init__(
        self,
        bus,
        *,
        latency=1,
        pause=0.0,
        shuffle=False,
        late=False,
        seed=0,
        failing=range(0),
    ):
        self.bus, self.latency, self.pause, self.shuffle = bus, latency, pause, shuffle
        self.late = late
        self.failing = failing
        self.unique = shuffle
        self.random = random.Random(seed)
        self.memory: dict[int, int] = {}
        self.bytes = len(bus.w.payload.strb)
        self.reads: list[Burst] = []
        self.writes: deque[Burst] = deque()
        self.done: deque[Burst] = deque()
        self.data: deque[tuple[int, int, int]] = deque()
        self.cycle = 0
        self.offered: dict[str, int | None] = {}
        self.r: Burst | None = None
        self.bursts = 0

    def word(self, address: int) -> int:
        """The word of the bus at an address."""
        return sum(self.memory.get(address + n, 0) << 8 * n for n in range(self.bytes))

    def _runs(self) -> bool:
        return self.random.random() >= self.pause

    def drive(self, ctx) -> None:
        """Set what the slave drives in this cycle."""
        bus = self.bus
        for name in ("ar", "aw", "w"):
            seen = not self.late or self.offered.get(name) is not None
            ctx.set(getattr(bus, name).ready, seen and self._runs())
        if self.r is None and self._runs():
            first: dict[int, Burst] = {}
            for burst in self.reads:
                if burst.due <= self.cycle:
                    first.setdefault(burst.identity, burst)
            if first:
                self.r = self.random.choice([*first.values()]) if self.shuffle else self.reads[0]
                if self.r.due > self.cycle:
                    self.r = None
        ctx.set(bus.r.valid, self.r is not None)
        if self.r is not None:
            address = self.r.address + self.r.moved * self.bytes
            ctx.set(bus.r.payload.id, self.r.identity)
            words = self.r.words
            word = self.word(address) if words is None else words[self.r.moved]
            ctx.set(bus.r.payload.data, word)
            ctx.set(Value.cast(bus.r.payload.resp), 3 if address in self.failing else 0)
            ctx.set(bus.r.payload.last, self.r.moved == self.r.length - 1)
        answers = bool(self.done) and self.done[0].due <= self.cycle
        if not self.offered.get("b"):
            self.offered["b"] = answers and self._runs()
        ctx.set(bus.b.valid, self.offered["b"])
        if self.done:
            ctx.set(bus.b.payload.id, self.done[0].identity)
            wrong = self.done[0].address in self.failing
            ctx.set(Value.cast(bus.b.payload.resp), 3 if wrong else 0)

    def sample(self, ctx) -> None:
        """Take what moves in this cycle."""
        bus = self.bus
        for name in ("ar", "aw", "w"):
            channel = getattr(bus, name)
            valid, beat = ctx.get(channel.valid), ctx.get(Value.cast(channel.payload))
            ready = ctx.get(channel.ready)
            ctx.set(channel.ready, not ready)
            assert ctx.get(channel.valid) == valid, f"{name}'s valid depends on its ready"
            ctx.set(channel.ready, ready)
            held = self.offered.get(name)
            assert held is None or (valid and held == beat), f"{name} was not held"
            self.offered[name] = beat if valid and not ctx.get(channel.ready) else None
            if valid and ctx.get(channel.ready):
                getattr(self, f"_{name}")(ctx, channel.payload)
        if self.r is not None and ctx.get(bus.r.ready):
            self.r.moved += 1
            if self.r.moved == self.r.length:
                self.reads.remove(self.r)
            self.r = None
        if self.offered["b"] and ctx.get(bus.b.ready):
            self.memory |= self.done.popleft().stored
            self.offered["b"] = False
        self._complete()
        self.cycle += 1

    def _burst(self, ctx, command) -> Burst:
        address, length = ctx.get(command.addr), ctx.get(command.len) + 1
        end = address + length * self.bytes
        assert address % self.bytes == 0, hex(address)
        assert address // 4096 == (end - 1) // 4096, "a burst crosses 4 KiB"
        assert ctx.get(Value.cast(command.burst)) == 1
        assert 1 << ctx.get(command.size) == self.bytes
        self.bursts += 1
        return Burst(ctx.get(command.id), address, length, self.cycle + self.latency)

    def _ar(self, ctx, command) -> None:
        burst = self._burst(ctx, command)
        used = [other.identity for other in self.reads]
        assert not self.unique or burst.identity not in used, "an ID is used again"
        if self.random.random() < 0.5:
            places = range(burst.address, burst.address + burst.length * self.bytes, self.bytes)
            burst.words = [self.word(place) for place in places]
        self.reads.append(burst)

    def _aw(self, ctx, command) -> None:
        self.writes.append(self._burst(ctx, command))

    def _w(self, ctx, beat) -> None:
        self.data.append((ctx.get(beat.data), ctx.get(beat.strb), ctx.get(beat.last)))

    def _complete(self) -> None:
        """Store the data of a burst whose address is known."""
        while self.writes and self.data:
            burst, (word, strobes, last) = self.writes[0], self.data.popleft()
            assert last == (burst.moved == burst.length - 1), "WLAST at the wrong transfer"
            for n in range(self.bytes):
                if strobes >> n & 1:
                    address = burst.address + burst.moved * self.bytes + n
                    burst.stored[address] = word >> 8 * n & 255
            burst.moved += 1
            if last:
                burst.due = self.cycle + self.latency
                if self.random.random() < 0.5:
                    self.memory |= burst.stored
                self.done.append(self.writes.popleft())

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self.reads or self.writes or self.done or self.data)
