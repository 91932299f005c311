"""Stall patterns: duty cycle and burst length of valid and ready."""

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
        three times as long and those of others a third, so that one may starve as others flow.
    late
        Whether a sink raises ready only for a beat it has already seen for a cycle. The stream
        rules allow it, and a component that waits for ready before it raises valid then hangs.
    """

    valid: float
    ready: float
    burst: float = 1.0
    late: bool = False

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
}


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
