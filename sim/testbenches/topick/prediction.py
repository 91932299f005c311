"""ToPick's core cycle by cycle, where inputs are always offered and outputs always taken.

The control of the RTL, register by register, with the bit-exact model's decisions: what a token's
chunk is decided on depends on the cycle in which it arrives, so decisions and cycles are predicted
together, from the operands and the memories' timing alone. Requests of a memory are always taken.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from golden.topick.topick_core import token_order
from hw.topick.core_parameters import MARGIN_STAGES, TopickCoreParameters
from hw.topick.lane_group import HEADS_LEAVING
from sim.core.memory import MemoryTiming
from sim.testbenches.topick.pe_lane import sizes_of
from sim.testbenches.topick.predicted_lane import Decided, LaneControl
from sim.testbenches.topick.predicted_parts import (
    HeadNumbers,
    HeadWork,
    LateDenominator,
    MemorySchedule,
)


@dataclass
class Prediction:
    """Of some jobs.

    decided
        Last decisions of each lane, in their order; a refused job counts as one of lane 0, of 0s.
    heads
        Numbers of the heads in the order of their sums.
    cycles
        Up to the last head's sums, these included.
    """

    decided: list[list[Decided]]
    heads: list[int] = field(default_factory=list)
    cycles: int = 0


class CorePrediction:
    """Continued from one call of :meth:`run` to the next, as a core in a session is."""

    def __init__(self, parameters: TopickCoreParameters, timing: MemoryTiming):
        self._p, self._sizes = parameters, sizes_of(parameters.lane)
        self._memories = [MemorySchedule(timing) for _ in range(parameters.lanes)]
        self._cycle = 0
        self._ready = 0  # cycle in which the core takes the next job
        self._granted = parameters.groups - 1  # group of the last sums

    def run(self, jobs: Sequence[Sequence[HeadWork]]) -> Prediction:
        """Jobs that are offered from the present cycle on."""
        found = Prediction([[] for _ in range(self._p.lanes)])
        begin = last = self._cycle
        for job in jobs:
            cycle = max(begin, self._ready)
            if job:
                last = self._job(job, cycle, found)
                self._ready = last + 2
            else:  # refused
                last = cycle + 1
                self._ready = last + 1
                found.decided[0].append((0, 0, 0, False))
        found.cycles = last + 1 - begin
        self._cycle = last + 1
        return found

    def wait(self, cycles: int) -> None:
        """Pass cycles in which nothing is offered."""
        self._cycle += cycles

    def _job(self, job: Sequence[HeadWork], cycle: int, found: Prediction) -> int:
        """From the cycle in which a job is accepted to the cycle of its last sums."""
        p = self._p
        kv_heads, whole = job[-1].kv_head + 1, job[0].whole
        # The kv heads are counted; the store writes a chunk a cycle, one new token after another.
        cycle += 2 + kv_heads
        new = range(job[0].head.tokens - 1, job[-1].head.tokens)
        writes = 2 * kv_heads * p.lane.chunks
        for head in range(kv_heads):
            for token in new:
                lane = head % p.groups * p.lanes_per_head + token % p.lanes_per_head
                self._memories[lane].number += 2 * p.lane.chunks
        stored = cycle + (writes + 3) * len(new)
        heads = [HeadNumbers(work, self._sizes, p) for work in job]
        size = p.lanes_per_head
        groups = [
            GroupControl(p, self._memories[n : n + size], found.decided[n : n + size], job)
            for n in range(0, p.lanes, size)
        ]
        queries = deque(heads)
        wait = (
            MARGIN_STAGES + 1 if p.pruning and not whole else 1
        )  # cycles from a query to its margins
        sending = cycle + wait
        left, leaving = len(job), -1
        while True:
            if leaving >= 0:
                found.heads.append(leaving)
                left -= 1
                if not left:
                    return cycle
            # One of the groups' sums is taken, the next one's after the last.
            offers = [n for n, group in enumerate(groups) if group.offers()]
            chosen, leaving = -1, -1
            if offers:
                chosen = min(offers, key=lambda n: (n <= self._granted, n))
                self._granted, leaving = chosen, groups[chosen].leaving[0].number
            sent = None
            if queries and cycle >= sending:
                to = groups[queries[0].work.kv_head % p.groups]
                if len(to.queries) < p.queries:
                    sent, sending = to, cycle + 1 + wait
            for number, group in enumerate(groups):
                group.step(cycle, number == chosen, cycle >= stored)
            if sent is not None:
                sent.queries.append(queries.popleft())
            cycle += 1


class GroupControl:
    """The lanes of a head."""

    def __init__(
        self,
        p: TopickCoreParameters,
        memories: list[MemorySchedule],
        decided: list,
        job: Sequence[HeadWork],
    ):
        self._p, self._sizes = p, sizes_of(p.lane)
        self._whole, self._tokens = job[0].whole, job[-1].head.tokens
        self._filled = -1  # the kv head whose rows are in the buffers
        pairs = zip(memories, decided, strict=True)
        self._lanes = [LaneControl(p, *of, self._whole) for of in pairs]
        self._denominator = LateDenominator(self._sizes, p.dag.latency)
        self.queries: deque[HeadNumbers] = deque()
        self.leaving: deque[HeadNumbers] = deque()  # heads whose sums have not left
        self._scored: Any = None  # the head in step 0
        self._waiting: HeadNumbers | None = None  # between the steps
        self._open: set[int] = set()  # lanes with undecided tokens
        self._settling = -1
        self._buffered = bool(p.buffer_tokens)
        self._key_head = self._value_head = -1  # kv heads of which chunks are buffered
        self._turn, self._joined = 0, False  # the lane whose sums are added next; all are added

    def offers(self) -> bool:
        return self._joined and bool(self.leaving)

    def step(self, cycle: int, granted: bool, stored: bool) -> None:
        """A cycle.

        granted
            The head's sums leave.
        stored
            Heads may begin.
        """
        p, lanes = self._p, self._lanes
        loading = stored and self._whole and self._can_load()
        starting = stored and self._scored is None and self._can_start()
        handing = (
            self._waiting is not None
            and not any(lane.busy for lane in lanes)
            and len(self.leaving) < HEADS_LEAVING
        )
        scoring_ends = self._settling == 0 and self._waiting is None
        self._denominator.advance(cycle)

        clears = False, False
        if self._buffered:
            clears = self._forgets(starting, handing)
        turn, takes = self._turn, not self._joined
        added = takes and lanes[turn].has_sums
        for number, lane in enumerate(lanes):
            sums_leave = takes and number == turn
            if lane.step(cycle, self._scored, self._denominator, sums_leave, clears):
                self._open.discard(number)
        if granted:
            self.leaving.popleft()
            self._joined = False
        if added:
            self._turn = (turn + 1) % len(lanes)
            self._joined = self._turn == 0

        if loading:
            self._load()
        if scoring_ends:
            self._finish_scores()
        elif handing:
            self._hand_over()
        if starting:
            self._start()
        elif self._scored is not None and not scoring_ends:
            if self._settling > 0:
                self._settling -= 1
            elif self._settling < 0 and not self._open:
                self._settling = p.dag.latency

    def _forgets(self, starting: bool, handing: bool) -> tuple[bool, bool]:
        """Whether the chunks of K, of V, are another kv head's."""
        keys = values = False
        if starting:
            kv_head = self.queries[0].work.kv_head
            keys, self._key_head = kv_head != self._key_head, kv_head
        if handing and self._waiting is not None:
            kv_head = self._waiting.work.kv_head
            values, self._value_head = kv_head != self._value_head, kv_head
        return keys, values

    def _can_load(self) -> bool:
        """The next query's rows are in none of the buffers, and no other rows are in use."""
        free = self._scored is None and self._waiting is None
        free = free and not any(lane.busy for lane in self._lanes)
        return bool(self.queries) and self.queries[0].work.kv_head != self._filled and free

    def _load(self) -> None:
        self._filled = self.queries[0].work.kv_head
        for lane, rows in zip(self._lanes, self._rows(self._tokens), strict=True):
            lane.rows.load(rows)

    def _rows(self, tokens: int) -> list[int]:
        size = len(self._lanes)
        return [len(range(lane, tokens, size)) for lane in range(size)]

    def _can_start(self) -> bool:
        if not self.queries:
            return False
        here = self.queries[0].work.kv_head == self._filled
        if self._whole and not (here and all(lane.rows.ready for lane in self._lanes)):
            return False
        return all(
            not rows or (not lane.undecided and lane.level + rows <= self._p.rows)
            for lane, rows in zip(self._lanes, self._rows(self.queries[0].tokens), strict=True)
        )

    def _start(self) -> None:
        head = self._scored = self.queries.popleft()
        size, newest = len(self._lanes), head.tokens - 1
        self._settling = -1
        for number, (lane, rows) in enumerate(
            zip(self._lanes, self._rows(head.tokens), strict=True)
        ):
            if rows:
                self._open.add(number)
                order = token_order(rows, newest % size == number, number == 0)
                lane.start([row * size + number for row in order])

    def _finish_scores(self) -> None:
        head = self._scored
        assert head is not None
        log2 = self._denominator.log2 if self._denominator.known else 0
        head.find_skipped(log2, self._sizes)
        self._denominator.clear()
        self._waiting, self._scored, self._settling = head, None, -1
        for lane in self._lanes:
            lane.kept_waiting, lane.kept = lane.kept, 0

    def _hand_over(self) -> None:
        head = self._waiting
        assert head is not None
        self.leaving.append(head)
        self._waiting = None
        for lane in self._lanes:
            lane.hand_over()
