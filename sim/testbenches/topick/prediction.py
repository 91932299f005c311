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
from sim.testbenches.topick.predicted_lane import Decided, LaneControl, Seen
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
    seen
        What all decisions of each lane were made with, in their order.
    heads
        Numbers of the heads in the order of their sums.
    cycles
        Up to the last head's sums, these included.
    """

    decided: list[list[Decided]]
    seen: list[list[Seen]]
    heads: list[int] = field(default_factory=list)
    cycles: int = 0


class CorePrediction:
    """Continued from one call of :meth:`run` to the next, as a core in a session is."""

    def __init__(self, parameters: TopickCoreParameters, timing: MemoryTiming):
        self._p = p = parameters
        self._lanes = [LaneControl(p, MemorySchedule(timing)) for _ in range(p.lanes)]
        size = p.lanes_per_head
        self._groups = [GroupControl(p, self._lanes[n : n + size]) for n in range(0, p.lanes, size)]
        self._cycle = 0
        self._granted = p.groups - 1  # group of the last sums
        self._leaving: HeadNumbers | None = None  # whose sums are in the arbiter's register
        self._left = [0] * p.contexts  # heads whose sums have not left
        self._commands = CommandControl(p)

    def run(self, jobs: Sequence[Sequence[HeadWork]]) -> Prediction:
        """Jobs that are offered from the present cycle on."""
        found = Prediction([[] for _ in self._lanes], [[] for _ in self._lanes])
        for lane, decided, seen in zip(self._lanes, found.decided, found.seen, strict=True):
            lane.decided, lane.seen = decided, seen
        offered = deque(jobs)
        left = sum(map(len, jobs)) + sum(not job for job in jobs)  # outputs
        begin = last = self._cycle
        while left:
            done = self._step(offered, found)
            left -= done
            if done:
                last = self._cycle - 1
        found.cycles = last + 1 - begin
        return found

    def wait(self, cycles: int) -> None:
        """Pass cycles in which nothing is offered."""
        for _ in range(cycles):
            self._step(deque(), Prediction([], []))

    def _step(self, offered: deque, found: Prediction) -> int:
        """A cycle; how many heads' sums are taken, or refused jobs reported."""
        cycle, groups, commands, done = self._cycle, self._groups, self._commands, 0
        # One of the groups' sums is taken, the next one's after the last, and leaves a cycle later.
        offers = [n for n, group in enumerate(groups) if group.offers()]
        leaves, chosen, self._leaving = self._leaving, -1, None
        if offers:
            chosen = min(offers, key=lambda n: (n <= self._granted, n))
            self._granted, self._leaving = chosen, groups[chosen].leaving[0]
        sent = commands.send(cycle, groups)
        for number in commands.writes(cycle):
            self._lanes[number].writing = True
        for number, group in enumerate(groups):
            group.step(cycle, number == chosen, commands.waits(cycle))
        for lane in self._lanes:
            lane.writing = False
        if sent is not None:
            head, to = sent
            to.queries.append(head)
        if commands.step(cycle, offered, self._left, groups):
            self._lanes[0].decided.append((0, 0, 0, False))
            done += 1
        if leaves is not None:
            found.heads.append(leaves.number)
            self._left[leaves.work.context] -= 1
            done += 1
        self._cycle += 1
        return done


class CommandControl:
    """One command after another: its kv heads are counted, its rows stored, its queries sent."""

    def __init__(self, p: TopickCoreParameters):
        self._p, self._sizes = p, sizes_of(p.lane)
        self._job: Sequence[HeadWork] | None = None  # none: idle; without heads: refused
        self._counted = 0  # cycle from which its number of kv heads is known
        self._known: int | None = None  # cycle from which its queries are taken
        self._queries: deque[HeadNumbers] = deque()
        self._sending = 0  # cycle in which the next query has its margins
        self._stored = 0  # cycle from which its rows are in memory
        self._wait = 1  # cycles from a query to its margins

    def writes(self, cycle: int) -> list[int]:
        """The lane, if any, in whose memory the store writes."""
        p, job = self._p, self._job
        if not job or self._known is None:
            return []
        each = 2 * (job[-1].kv_head + 1) * p.lane.chunks
        token, number = divmod(cycle - self._known, each + 3)
        number -= 2
        token += job[0].head.tokens - 1
        if not 0 <= number < each or token >= job[-1].head.tokens:
            return []
        group = p.group_of(number // (2 * p.lane.chunks), job[0].context)
        return [group * p.lanes_per_head + token % p.lanes_per_head]

    def waits(self, cycle: int) -> int | None:
        """The context whose heads may not begin, because its new rows are being stored."""
        storing = self._job and self._known is not None and cycle < self._stored
        return self._job[0].context if storing and self._job else None

    def send(
        self, cycle: int, groups: "list[GroupControl]"
    ) -> "tuple[HeadNumbers, GroupControl] | None":
        """A query, and the group whose queue takes it."""
        p = self._p
        if self._known is None or not self._queries or cycle < self._sending:
            return None
        work = self._queries[0].work
        to = groups[p.group_of(work.kv_head, work.context)]
        if len(to.queries) >= p.queries:
            return None
        self._sending = cycle + 1 + self._wait
        return self._queries.popleft(), to

    def step(
        self, cycle: int, offered: deque, left: list[int], groups: "list[GroupControl]"
    ) -> bool:
        """A cycle; whether a refused command is reported."""
        p, job = self._p, self._job
        if job is None:
            if offered:
                self._accept(cycle, offered.popleft(), groups)
            return False
        if not job:
            if any(left):
                return False
            self._job = None
            return True
        context = job[0].context
        if self._known is None:
            if cycle >= self._counted and not left[context]:
                left[context] = len(job)
                new = job[-1].head.tokens - job[0].head.tokens + 1
                self._known = cycle + 1
                self._sending = self._known + self._wait
                writes = 2 * (job[-1].kv_head + 1) * p.lane.chunks
                self._stored = self._known + (writes + 3) * new
        elif cycle >= self._stored:
            # A query that is sent in this cycle counts from the next one on.
            sent = not self._queries and self._sending <= cycle + self._wait
            if sent if p.contexts > 1 else not left[context]:
                self._job = None
        return False

    def _accept(self, cycle: int, job: Sequence[HeadWork], groups: "list[GroupControl]") -> None:
        self._job, self._known = job, None
        if not job:
            return
        p, whole = self._p, job[0].whole
        self._counted = cycle + 1 + job[-1].kv_head + 1
        self._queries = deque(HeadNumbers(work, self._sizes, p) for work in job)
        self._wait = MARGIN_STAGES + 1 if p.pruning and not whole else 1
        if p.contexts == 1:
            for group in groups:
                group.begin(job)


class GroupControl:
    """The lanes of a head."""

    def __init__(self, p: TopickCoreParameters, lanes: Sequence[LaneControl]):
        self._p, self._sizes = p, sizes_of(p.lane)
        self._whole, self._tokens = False, 0
        self._filled = -1  # the kv head whose rows are in the buffers
        self._lanes = lanes
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

    def begin(self, job: Sequence[HeadWork]) -> None:
        """A job of a core of one context, after all others: no row is buffered."""
        self._whole, self._tokens = job[0].whole, job[-1].head.tokens
        self._filled = self._key_head = self._value_head = -1
        for lane in self._lanes:
            lane.whole = self._whole

    def offers(self) -> bool:
        return self._joined and bool(self.leaving)

    def step(self, cycle: int, granted: bool, waits: int | None) -> None:
        """A cycle.

        granted
            The head's sums leave.
        waits
            Context whose heads may not begin.
        """
        p, lanes = self._p, self._lanes
        stored = bool(self.queries) and self.queries[0].work.context != waits
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
