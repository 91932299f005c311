"""Parts of the prediction of ToPick's core: memories, a head's numbers, denominator, buffer."""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from golden.arith.log2_fixed import logarithms
from golden.topick.pe_lane import Head, LaneSizes
from golden.topick.pec import limbs, term
from golden.topick.probability_generator import probability
from golden.topick.topick_core import scores
from hw.topick.core_parameters import TopickCoreParameters
from sim.core.memory import MemoryTiming


@dataclass(frozen=True, eq=False)
class HeadWork:
    """A head of a job: its codes, and the codes of the kv head's rows, ``[tokens, d]``.

    whole
        It is a query of a block of a prompt, of the last token that it sees.
    """

    number: int
    kv_head: int
    head: Head
    k: np.ndarray
    v: np.ndarray
    whole: bool = False
    context: int = 0


class MemorySchedule:
    """The schedule of :class:`sim.core.memory.MemoryModel`."""

    def __init__(self, timing: MemoryTiming):
        self._timing = timing
        self.number = 0  # of the next request
        self._waiting: list[tuple] = []
        self._ready: list[tuple] = []
        self._latest = self._next = 0

    def request(self, cycle: int, what: tuple) -> None:
        timing, number = self._timing, self.number
        self.number += 1
        due = cycle + timing.draw(number)
        if not timing.reorder:
            due = self._latest = max(due, self._latest)
        heapq.heappush(self._waiting, (due, number, what))

    def response(self, cycle: int) -> tuple | None:
        waiting, ready = self._waiting, self._ready
        while waiting and waiting[0][0] <= cycle:
            heapq.heappush(ready, heapq.heappop(waiting)[1:])
        if not ready or cycle < self._next:
            return None
        self._next = cycle + self._timing.interval
        return heapq.heappop(ready)[1]


class HeadNumbers:
    """A head's numbers after each chunk, as lists by chunk and token."""

    def __init__(self, work: HeadWork, sizes: LaneSizes, p: TopickCoreParameters):
        self.work, self.number, head = work, work.number, work.head
        most, least = head.margins(sizes)
        self.t = scores(head, work.k, sizes)
        every = (1 << sizes.threshold_bits) - 1
        self.prunes = p.pruning and head.threshold != every
        # A token is pruned if this is below the denominator's logarithm.
        self.upper = (self.t + (most + head.threshold)[:, None]).tolist()
        terms = term(self.t, least[:, None], fraction=sizes.fraction, precision=sizes.precision)
        number, high, low = limbs(*terms, precision=sizes.precision, limb=sizes.limb)
        self.limb, self.units = number.tolist(), ((high << sizes.limb) + low).tolist()
        self.tokens = head.tokens
        self.skipped: list[bool] = []

    def find_skipped(self, log2: int, sizes: LaneSizes) -> None:
        """Tokens whose probability is 0."""
        places = sizes.probability_bits
        p = probability(self.t[-1], np.asarray(log2), fraction=sizes.fraction, places=places)
        self.skipped = (p == 0).tolist()


class LateDenominator:
    """As :class:`golden.topick.dag.Denominator`; a change counts `latency` cycles later."""

    def __init__(self, sizes: LaneSizes, latency: int):
        self._latency = latency
        self._limb, self._fraction = sizes.limb, sizes.fraction
        self._table = logarithms(sizes.fraction, sizes.fraction, "down", True).tolist()
        self._changes: deque[tuple] = deque()
        self.clear()

    def clear(self) -> None:
        self._number, self._units, self._upper = -(1 << 40), 0, 0
        self.known, self.log2 = False, 0

    def change(self, cycle: int, new: tuple | None, old: tuple | None) -> None:
        """A new term replaces an old one: limb number and units of each."""
        self._changes.append((cycle + self._latency, new, old))

    def advance(self, cycle: int) -> None:
        """Make the changes that count in `cycle`."""
        if not self._changes or self._changes[0][0] > cycle:
            return
        limb = self._limb
        while self._changes and self._changes[0][0] <= cycle:
            _, new, old = self._changes.popleft()
            if new is not None and new[0] > self._number:
                self._units = self._upper if new[0] == self._number + 1 else 0
                self._number, self._upper = new[0], 0
            for part, sign in ((new, 1), (old, -1)):
                if part is not None:
                    units = part[1] >> min(self._number - part[0], 2) * limb
                    self._units += sign * units
                    self._upper += sign * (units >> limb)
        self.known, self.log2 = self._units > 0, 0
        if self.known:
            exponent, fraction = self._units.bit_length() - 1, self._fraction
            index = (self._units << fraction >> exponent) - (1 << fraction)
            exponent += (self._number - 1) * limb
            self.log2 = (exponent << fraction) + self._table[index]


class RowControl:
    """The loads of :class:`hw.topick.row_buffer.RowBuffer`."""

    def __init__(self, memory: MemorySchedule, chunks: int):
        self._memory, self._chunks = memory, chunks
        self._asking = self._pending = 0

    @property
    def ready(self) -> bool:
        """All has been loaded."""
        return not (self._asking or self._pending)

    def load(self, rows: int) -> None:
        self._asking = 2 * self._chunks * rows

    def step(self, cycle: int) -> None:
        """A cycle before that in which a load is accepted, or of a load."""
        if self._pending and self._memory.response(cycle) is not None:
            self._pending -= 1
        if self._asking:
            self._memory.request(cycle, ())
            self._asking -= 1
            self._pending += 1


class BufferControl:
    """The control of :class:`hw.topick.chunk_buffer.ChunkBuffer`, between a lane and its memory."""

    def __init__(self, memory: MemorySchedule, rows: int, shared: int):
        self._memory, self._rows, self._shared = memory, rows, shared
        self._kept: set[tuple] = set()
        self._missed: tuple | None = None  # the register of the memory's requests
        self._hit: tuple | None = None
        self._arrived: tuple | None = None
        self._hit_first = False

    def step(
        self, cycle: int, offered: tuple | None, sent: tuple | None, clears: tuple[bool, bool]
    ) -> tuple[bool, tuple | None]:
        """A cycle: whether the request `sent` is taken, and what the lane is offered next.

        offered
            To the lane, and not taken by it.
        clears
            The chunks of K, of V, are forgotten.
        """
        if self._arrived is None:
            self._arrived = self._memory.response(cycle)
        arrived, free = self._arrived, offered is None
        hit_passes = self._hit is not None and free and (self._hit_first or arrived is None)
        arrival_passes = arrived is not None and free and not hit_passes
        if arrival_passes and self._hit is not None and self._hit_first:
            arrival_passes = False
        hit_free = self._hit is None or hit_passes
        if free:
            offered = self._hit if hit_passes else arrived if arrival_passes else None
        missed, self._missed = self._missed, None
        if missed is not None:
            self._memory.request(cycle, missed)
        is_kept = sent is not None and sent in self._kept and not clears[sent[0]]
        if hit_free:
            self._hit = sent if is_kept else None
        if sent is not None and not is_kept:
            self._missed = sent
        if arrival_passes and arrived is not None:
            if arrived[1] // self._shared < self._rows:
                self._kept.add(arrived)
            self._arrived, self._hit_first = None, True
        elif hit_passes:
            self._hit_first = False
        if any(clears):
            self._kept = {it for it in self._kept if not clears[it[0]]}
        return not is_kept or hit_free, offered
