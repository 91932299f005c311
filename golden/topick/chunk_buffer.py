"""Model of the chunk buffer: which chunks it keeps, and when it answers where nothing stalls."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Chunk = tuple[int, int, int]
"""Whether of V, number of the chunk, row."""


class ChunkBuffer:
    """The chunks that are kept, of the rows below `rows`."""

    def __init__(self, rows: int):
        self._rows = rows
        self._kept: set[Chunk] = set()

    def hits(self, chunk: Chunk) -> bool:
        """Whether a request for the chunk is answered without the memory."""
        return chunk in self._kept

    def arrive(self, chunk: Chunk) -> None:
        """The memory's response passes."""
        if chunk[2] < self._rows:
            self._kept.add(chunk)

    def clear(self, keys: bool, values: bool) -> None:
        """Forget the chunks of K, of V."""
        self._kept = {it for it in self._kept if not (values if it[0] else keys)}


@dataclass(frozen=True)
class Timeline:
    """What happens to requests, the first of which is offered in cycle 0.

    hit
        For each request, whether it hits.
    order, cycles
        Requests in the order of their responses, and the cycle in which each response is accepted.
    """

    hit: list[bool]
    order: list[int]
    cycles: list[int]


def timeline(
    requests: Sequence[Chunk],
    clears: Sequence[tuple[bool, bool]],
    rows: int,
    memory_latency: int = 1,
) -> Timeline:
    """Requests that are offered without a gap; responses are accepted at once.

    clears
        From cycle 0 on, in each cycle whether the keys and the values are forgotten.
    memory_latency
        Cycles from every request to the memory to its response.
    """
    buffer = ChunkBuffer(rows)
    done = Timeline([], [], [])
    memory: deque[tuple[int, int]] = deque()  # cycle of the response, request
    missed = hit = response = None  # requests in the three registers
    hit_first = False
    cycle = 0
    while len(done.order) < len(requests):
        if response is not None:
            done.order.append(response)
            done.cycles.append(cycle)
        keys, values = clears[cycle] if cycle < len(clears) else (False, False)
        arrives = bool(memory) and memory[0][0] <= cycle
        # The output register takes the hit or the memory's response; a hit that waits holds up the
        # next one.
        hit_passes = hit is not None and (hit_first or not arrives)
        arrived = memory.popleft()[1] if arrives and not hit_passes else None
        response = hit if hit_passes else arrived
        if missed is not None:
            memory.append((cycle + memory_latency, missed))
        missed = None
        number = len(done.hit)
        # A clear counts in its own cycle, for the request and for the chunk that arrives.
        buffer.clear(keys, values)
        if hit_passes:
            hit = None
        if number < len(requests):
            if not buffer.hits(requests[number]):
                missed = number
                done.hit.append(False)
            elif hit is None:
                hit = number
                done.hit.append(True)
        if arrived is not None:
            hit_first = True
            buffer.arrive(requests[arrived])
            buffer.clear(keys, values)
        elif hit_passes:
            hit_first = False
        cycle += 1
    return done
