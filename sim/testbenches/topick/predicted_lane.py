"""A lane of ToPick's core, register by register, for the prediction of the whole core."""

from collections import deque

from hw.topick.core_parameters import TopickCoreParameters
from sim.testbenches.topick.predicted_parts import (
    BufferControl,
    HeadNumbers,
    LateDenominator,
    MemorySchedule,
    RowControl,
)

Decided = tuple[int, int, int, bool]
"""Number of the head, token, number of the last chunk read, whether the token is kept."""
Seen = tuple[int, int, bool, int]
"""Row in the lane and chunk of a decision; whether the denominator is known, its logarithm or 0."""
TO_DECISION, TO_RESULT = 5, 8
"""Cycles from a response to its decision, and to the decision's outputs."""


class LaneControl:
    """A lane with its order of tokens, generator and memory port.

    decided
        Its last decisions.
    seen
        What each of its decisions was made with.
    whole
        It takes whole rows from its buffer, for a block of a prompt.
    writing
        A new row's chunk is written in this cycle.
    """

    def __init__(self, p: TopickCoreParameters, memory: MemorySchedule):
        self.whole = self.writing = False
        self.rows = RowControl(memory, p.lane.chunks)
        self._memory = memory
        self.decided: list[Decided] = []
        self.seen: list[Seen] = []
        self._shared = p.lanes_per_head
        rows = p.buffer_tokens // p.lanes_per_head
        self._buffer = BufferControl(memory, rows, p.lanes_per_head) if rows else None
        self._chunks, self._entries, self._pruning = p.lane.chunks, p.entries, p.pruning
        # Requests.
        self._waiting: deque[int] = deque()  # tokens
        self._chunk = 0  # of the baseline's next request
        self._later: deque[tuple[int, int, int]] = deque()  # cycle from which, token, chunk
        self._returned: deque[int] = deque()  # cycles from which slots are free
        self._slots = p.entries
        self._asked: tuple | None = None  # the lane's output register
        self._sent: tuple | None = None  # the port's
        # The pipeline; `_time` counts the cycles in which it advances.
        self._offered: tuple | None = None
        self._time = 0
        self._deciding: deque[tuple] = deque()
        self._results: deque[tuple] = deque()
        self.undecided = 0
        # The weighted sums.
        self._taken = self._ends = False
        self.has_sums = False
        # The probability generator.
        self.busy = False
        self._left = 0
        self._ring: deque[tuple] = deque()
        self.level = 0
        self._entry: tuple | None = None
        self._minus: tuple | None = None
        self._power: tuple | None = None
        self._value: tuple | None = None
        self._value_chunk = self._pending = 0
        self.kept = 0
        self.kept_waiting = 0

    @property
    def _last(self) -> int:
        """Number of the last chunk of a key or value."""
        return 0 if self.whole else self._chunks - 1

    def start(self, order: list[int]) -> None:
        self._waiting.extend(order)
        self.undecided = len(order)

    def hand_over(self) -> None:
        self.busy, self._left = True, self.kept_waiting

    def step(
        self,
        cycle: int,
        head: HeadNumbers,
        denominator: LateDenominator,
        taken: bool,
        clears: tuple,
    ) -> bool:
        """A cycle; whether it has the head's last decision in this lane.

        head
            In step 0, with its `denominator`.
        taken
            The sums leave if there are any.
        clears
            The buffer forgets the chunks of K, of V.
        """
        self.rows.step(cycle)
        if self._buffer is None and self._offered is None and not self.whole:
            self._offered = self._memory.response(cycle)
        stored, ended = self._report(cycle, head, denominator)
        passed, ends = self._take(head, denominator, taken)
        room, sent = True, self._sent
        if self.writing:
            self._memory.number += 1
            room = sent is None
        elif self.whole:
            room = sent is None or self._offered is None
            if self._offered is None:
                self._offered = sent
        elif self._buffer is not None:
            room, self._offered = self._buffer.step(cycle, self._offered, sent, clears)
        elif sent is not None:
            self._memory.request(cycle, sent)
        # The port prefers keys to values.
        asked = self._request(cycle, room)
        if room:
            self._sent = asked
        self._generate(room and asked is None, passed, stored, ends)
        return ended

    def _take(
        self, head: HeadNumbers, denominator: LateDenominator, taken: bool
    ) -> tuple[bool, bool]:
        """The pipelines: whether a value is taken, and the end of the sums."""
        advance = not (self._taken and self.has_sums and not taken)
        offered = self._offered
        is_end = (
            self.busy
            and not self._left
            and not self._pending
            and self._entry is self._minus is self._power is self._value is None
        )
        passed = ends = False
        if advance:
            if self._deciding and self._deciding[0][0] == self._time:
                self._decide(head, denominator)
            if offered is not None and not offered[0]:
                self._deciding.append((self._time + TO_DECISION, offered[1], offered[2]))
                self._offered = None
            elif offered is not None:
                self._offered, passed = None, True
            elif is_end:
                ends = True
        if taken:
            self.has_sums = False
        if advance:
            if self._taken:
                self.has_sums = self._ends
            self._taken, self._ends = passed or ends, ends
            self._time += 1
        return passed, ends

    def _report(self, cycle: int, head: HeadNumbers, denominator: LateDenominator) -> tuple:
        """The outputs of a decision: the token if it is kept, and whether it is the last one."""
        if not self._results or self._results[0][0] != self._time:
            return None, False
        _, token, chunk, pruned, last = self._results.popleft()
        keeps = not pruned and chunk == self._last
        if self._pruning:
            known = -1 if self.whole else chunk  # the last chunk known
            new = None if pruned else (head.limb[known][token], head.units[known][token])
            old = (head.limb[chunk - 1][token], head.units[chunk - 1][token]) if chunk else None
            if new or old:
                denominator.change(cycle, new, old)
            if not (pruned or keeps):
                self._later.append((cycle + 1, token, chunk + 1))
                return None, False
            self._returned.append(cycle + 1)
        else:
            new = head.limb[chunk][token], head.units[chunk][token]
            denominator.change(cycle, new, None)
        if not self.whole:
            self.decided.append((head.number, token, chunk, keeps))
        if keeps:
            self.kept += 1
        return ((head, token) if keeps else None), last

    def _request(self, cycle: int, room: bool) -> tuple | None:
        """The lane's request at the port, which takes it if there is `room`."""
        asked = self._asked
        if not self._pruning:
            if self._waiting and room:
                asked = (0, self._waiting[0], self._chunk)
                self._chunk = (self._chunk + 1) % self._chunks
                if not self._chunk:
                    self._waiting.popleft()
        elif room or asked is None:
            self._asked = self._next_request(cycle)
        return asked

    def _next_request(self, cycle: int) -> tuple | None:
        """The request of a next chunk, else of a first one."""
        while self._returned and self._returned[0] <= cycle:
            self._returned.popleft()
            self._slots += 1
        if self._later and self._later[0][0] <= cycle:
            return (0, *self._later.popleft()[1:])
        if self._waiting and self._slots:
            self._slots -= 1
            return (0, self._waiting.popleft(), 0)
        return None

    def _decide(self, head: HeadNumbers, denominator: LateDenominator) -> None:
        _, token, chunk = self._deciding.popleft()
        self.seen.append((token // self._shared, chunk, denominator.known, denominator.log2))
        if not self._pruning and chunk < self._last:
            return
        pruned = (
            head.prunes
            and denominator.known
            and token != head.tokens - 1
            and head.upper[chunk][token] < denominator.log2
        )
        if pruned or chunk == self._last:
            self.undecided -= 1
        due = self._time + TO_RESULT - TO_DECISION
        self._results.append((due, token, chunk, pruned, not self.undecided))

    def _generate(self, port_is_free: bool, passed: bool, stored: tuple | None, ends: bool) -> None:
        """Requests of values, and the end of the sums."""
        requested = self._value is not None and port_is_free
        last = self._value_chunk == self._last
        value_free = self._value is None or (port_is_free and last)
        none = self._pruning and not self.whole
        none = none and self._power is not None and self._power[0].skipped[self._power[1]]
        power_free = self._power is None or value_free or none
        minus_free = self._minus is None or power_free
        entry_free = self._entry is None or minus_free
        reading = self._left != 0 and self.level != 0 and entry_free
        if requested and self._value is not None:
            self._sent = (1, self._value[1], self._value_chunk)
        self._pending += requested - passed
        if value_free:
            self._value, self._value_chunk = (None if none else self._power), 0
        elif port_is_free:
            self._value_chunk += 1
        if power_free:
            self._power = self._minus
        if minus_free:
            self._minus = self._entry
        if entry_free:
            self._entry = self._ring.popleft() if reading else None
        self._left -= reading
        self.level += (stored is not None) - reading
        if stored is not None:
            self._ring.append(stored)
        if ends:
            self.busy = False
