"""Stall patterns: duty cycle and burst length of valid and ready, or long stalls in turns."""

import dataclasses
import random
import zlib


@dataclasses.dataclass(frozen=True)
class Stall:
    """A two-state Markov chain for each stream.

    valid, ready
        Fraction of cycles in which sources offer and sinks accept.
    burst
        Mean length in cycles of a run of stalled or of active cycles, relative to independent
        choices; 1 is an independent choice in each cycle. Otherwise the runs of some streams are
        three times as long and of others a third, so that one may starve as others flow.
    late
        Whether a sink raises ready only for a beat it has already seen for a cycle. The stream
        rules allow it, and a component that waits for ready before it raises valid then hangs.
    long
        Whether one stream at a time, sources and sinks alike, stalls for longer than the queues
        behind it can take (:class:`Turns`) as all others flow: of two streams that should wait for
        each other, one runs ahead until everything behind it is full.
    """

    valid: float
    ready: float
    burst: float = 1.0
    late: bool = False
    long: bool = False

    def chances(self, duty: float, stream: str) -> tuple[float, float]:
        """Probability to stop when active, and to start when stopped.

        stream
            Seed and name of the stream, which decide how long its runs are.
        """
        factor = (1 / 3, 1, 3)[zlib.crc32(stream.encode()) % 3]
        burst = 1 if self.burst == 1 else factor * self.burst
        return min(1.0, (1 - duty) / burst), min(1.0, duty / burst)


PATTERNS = {
    "none": Stall(valid=1, ready=1),
    "random": Stall(valid=0.7, ready=0.6),
    "bursts": Stall(valid=0.8, ready=0.5, burst=12, late=True),
    "long": Stall(valid=1, ready=1, long=True),
}

# Cycles of a long stall and of the time between two, at least.
SHORTEST_STALL, SHORTEST_GAP = 64, 4


def longest_stall(timeout: int) -> int:
    """Most cycles of a long stall.

    timeout
        Cycles without any transfer after which a run counts as hung: it grows with the longest time
        for which a block is silent by itself, and so do the stalls, which never look like a hang.
    """
    return timeout // 4


class Throttle:
    """Stalls of one stream: ``step()``, called once a cycle, returns whether it may transfer."""

    def __init__(self, chances: tuple[float, float], seed: str):
        self._stop, self._start = chances
        self._random = random.Random(seed)
        self._open = True

    def step(self) -> bool:
        draw = self._random.random()
        self._open = draw >= self._stop if self._open else draw < self._start
        return self._open


class Turns:
    """Which of some streams stalls in a cycle, in the ``long`` pattern: at most one.

    A stall lasts between :data:`SHORTEST_STALL` and `longest` cycles, the time until the next
    between :data:`SHORTEST_GAP` and half of `longest`, before the first at most
    :data:`SHORTEST_STALL`; every octave is as likely. The harness (``Turns`` in harness.cpp) draws
    from the same distributions, but other numbers.

    longest
        Cycles of a stall, at most.
    """

    def __init__(self, longest: int, seed: str):
        self._longest = longest
        self._random = random.Random(seed)
        self._streams = 0
        self._stalled: int | None = None
        self._end = self._draw(SHORTEST_GAP, SHORTEST_STALL)

    def join(self) -> int:
        """A further stream's number."""
        self._streams += 1
        return self._streams - 1

    def stalls(self, stream: int, cycle: int) -> bool:
        """Whether a stream stalls in a cycle; no call may be of a cycle before the last call's."""
        while cycle >= self._end:
            if self._stalled is None:
                self._stalled = self._random.randrange(self._streams)
                self._end += self._draw(SHORTEST_STALL, self._longest)
            else:
                self._stalled = None
                self._end += self._draw(SHORTEST_GAP, self._longest // 2)
        return stream == self._stalled

    def _draw(self, shortest: int, longest: int) -> int:
        return int(shortest * (longest / shortest) ** self._random.random())
