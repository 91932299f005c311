"""The work of ToPick's core, and its formula of cycles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hw.topick.core_parameters import TopickCoreParameters


class TokenWork(NamedTuple):
    """The work of a command, for :meth:`TopickCoreParameters.cycles`.

    tokens
        Number of tokens, the new one included.
    heads, kv_heads
        Number of query heads and of kv heads, spread evenly over the groups.
    block
        Number of new tokens.
    """

    tokens: int
    heads: int
    kv_heads: int
    block: int = 1


def queries_in_order(groups: int, heads: int, group: int, block: int) -> list[tuple[int, int]]:
    """New token, from 0 on, and head of each query of a command, in the order of the stream ``q``.

    The heads of as many kv heads as there are groups of lanes, for each token; then the next ones'.

    >>> queries_in_order(groups=2, heads=3, group=1, block=2)
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    """
    together = groups * group
    return [
        (token, head)
        for first in range(0, heads, together)
        for token in range(block)
        for head in range(first, min(first + together, heads))
    ]


def cycles_of(
    p: "TopickCoreParameters", work: Sequence[TokenWork | None], memory_latency: int
) -> int:
    """See :meth:`TopickCoreParameters.cycles`."""
    total = 0
    for number, command in enumerate(work):
        if command is None:
            total += 2
            continue
        if command.block > 1:
            # A cycle passes from its last o to the next command.
            total += _block_cycles(p, command, memory_latency) + (number + 1 < len(work))
            continue
        tokens, heads, kv_heads, _ = command
        turns = -(-kv_heads // p.groups) * -(-heads // kv_heads)  # heads of a group
        rows = -(-tokens // p.lanes_per_head)
        start = 33 + 8 * kv_heads + p.share_bits + p.lanes_per_head - 1
        waits = (turns + 1) * (memory_latency - 1) + 8 * (turns - 1)
        total += start + waits + 2 * p.lane.chunks * rows * turns
    return total


def _block_cycles(p: "TopickCoreParameters", work: TokenWork, memory_latency: int) -> int:
    """Cycles of a block of a prompt.

    The first lane of the first group has as many rows and queries as any other, and so decides.
    """
    chunks = p.lane.chunks
    # The command is taken, its kv heads are counted, and its rows stored.
    free = 2 + work.kv_heads + work.block * (2 * work.kv_heads * chunks + 3)
    first = work.tokens - work.block + 1
    rows = [-(-n // p.lanes_per_head) for n in range(first, work.tokens + 1)]
    group = -(-work.heads // work.kv_heads)
    for _ in range(-(-work.kv_heads // p.groups)):
        # A kv head's rows are loaded; then its queries run.
        begin = free + 2 * chunks * rows[-1] + memory_latency + 1
        free = _Queries(p, begin).end([n for n in rows for _ in range(group)]) + 1
    together = (work.kv_heads - 1) % p.groups + 1  # groups that end in the same cycle
    return free + p.lanes_per_head + together + 2


class _Queries:
    """Queries of a block, one after the other in a lane, from cycle `begin` on.

    The lane's port takes a row a cycle, keys before values. Step 0 of a query is beside step 1 of
    those before it, as far as there is room for all their scores.
    """

    TO_PORT = 2  # from a query's start to its first key at the port
    TO_VALUE = 5  # from step 1 to the first value there
    TO_LANE = 2  # from the port to the lane
    TO_TERM = 12  # from a query's start to its first key's term

    def __init__(self, p: "TopickCoreParameters", begin: int):
        self._room, self._start = p.rows, begin
        self._scored = self.TO_TERM + p.dag.latency
        self._keys: list[tuple[int, int]] = []  # cycles in which the port takes keys

    def end(self, rows: Sequence[int]) -> int:
        """The cycle in which the lane has the last query's last value."""
        handed: list[int] = []  # cycle in which each query's step 1 begins
        between = -1  # cycle in which the last query's step 0 has ended
        for number, count in enumerate(rows):
            start = self._start
            self._keys = [*self._keys[-3:], (start + self.TO_PORT, start + self.TO_PORT + count)]
            scored = start + count + self._scored
            if number:
                handed.append(self._hand_over(between, handed, rows))
                scored = max(scored, handed[-1] + 1)
            between = scored
            self._start = between + 1
            if number + 1 < len(rows):
                self._start = max(self._start, self._room_for(number + 1, between, handed, rows))
        handed.append(self._hand_over(between, handed, rows))
        return self._ended(handed[-1], rows[-1])

    def _hand_over(self, scored: int, handed: list[int], rows: Sequence[int]) -> int:
        """When step 1 of a query begins whose step 0 has ended: after that of the one before it."""
        if not handed:
            return scored + 1
        return max(scored, self._ended(handed[-1], rows[len(handed) - 1])) + 1

    def _ended(self, handed: int, rows: int) -> int:
        """When a query's sums end: after the last value, in a cycle without a key."""
        cycle = self._port(handed + self.TO_VALUE, rows - 1) + self.TO_LANE + 1
        for begin, end in self._keys:
            if begin + self.TO_LANE <= cycle < end + self.TO_LANE:
                cycle = end + self.TO_LANE
        return cycle

    def _port(self, first: int, number: int) -> int:
        """The cycle with that `number`, from `first` on, in which the port takes no key."""
        cycle = first + number
        for begin, end in self._keys:
            if end > first and begin <= cycle:
                cycle += end - max(begin, first)
        return cycle

    def _room_for(self, query: int, between: int, handed: list[int], rows: Sequence[int]) -> int:
        """When there is room for the scores of a query: enough of earlier ones have been read."""
        before = list(rows[max(0, query - 2) : query])
        missing = sum(before) + rows[query] - self._room
        if missing <= 0:
            return 0
        steps = [*handed, self._hand_over(between, handed, rows)][-len(before) :]
        for step, count in zip(steps, before, strict=True):
            if missing <= count:
                # Four scores are in the generator's stages.
                waits = missing - self.TO_VALUE
                last = self._port(step + self.TO_VALUE, waits) if waits >= 0 else step + missing
                return last + 1
            missing -= count
        raise AssertionError("a query has more rows than there is room for")
