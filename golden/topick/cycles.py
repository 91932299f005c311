"""Cycles of ToPick's blocks in which nothing stalls: their control, cycle by cycle."""

from collections import deque
from collections.abc import Sequence

from golden.topick.pe_lane import Decision


def lane_cycles(
    tokens: Sequence[int],
    decisions: Sequence[Decision],
    last_values: Sequence[bool],
    *,
    entries: int,
    latency: int,
    decision_latency: int,
) -> int:
    """Cycles of a lane from the first beat offered to the last one taken.

    All inputs are offered from the first cycle on, and outputs are taken at once; so a response
    waits only for its own request, or for its token's entry in the scoreboard.

    tokens
        Number of tokens of each head.
    decisions
        Decisions of all heads, in the order of the responses.
    last_values
        For each chunk of a value, whether it is the head's last.
    entries, latency, decision_latency
        Parameters of the lane.
    """
    heads, responses, values = deque(tokens), deque(decisions), deque(last_values)
    free = deque([0] * entries)  # cycle from which each free slot may be issued
    later: deque[int] = deque()  # cycle from which a next chunk may be requested
    parked: dict[int, int] = {}  # cycle from which each slot's entry may be read
    decided: deque[int] = deque()  # cycle in which a token is decided
    arriving: deque[int] = deque()  # cycle in which a first chunk is requested
    undecided = unrequested = pending = cycle = last = 0
    while heads or responses or values or unrequested:
        while decided and decided[0] < cycle:
            undecided -= 1
            decided.popleft()
        while arriving and arriving[0] < cycle:
            pending += 1
            arriving.popleft()
        starts = heads and undecided == 0

        # A request: of a next chunk, else of a first one.
        if later and later[0] <= cycle:
            later.popleft()
            last = max(last, cycle + 1)
        elif unrequested and free and free[0] <= cycle:
            free.popleft()
            unrequested -= 1
            arriving.append(cycle)
            last = max(last, cycle + 1)

        # A response, else a value.
        taken = False
        if responses:
            d = responses[0]
            taken = pending > 0 if d.chunk == 0 else parked.get(d.slot, cycle + 1) <= cycle
        if taken:
            responses.popleft()
            out = cycle + latency
            has_output = d.difference or not d.requests
            last = max(last, out if has_output else cycle + decision_latency)
            if d.chunk == 0:
                pending -= 1
            else:
                del parked[d.slot]
            if d.requests:
                parked[d.slot] = out + 1
                later.append(out + 1)
            else:
                decided.append(cycle + decision_latency)
                free.append(out + 1)
        elif values:
            last = max(last, cycle + (2 if values.popleft() else 0))
        if starts:
            undecided = unrequested = heads.popleft()
            last = max(last, cycle)
        cycle += 1
    while later:
        last = max(last, later.popleft() + 1)
    return last + 1


def scoreboard_cycles(
    writes: Sequence[tuple[int, int]], reads: Sequence[int], slots: int, *, entries: int
) -> int:
    """Cycles of a scoreboard: reads, writes and free slots each in their order, one per cycle.

    writes
        Slot, and whether an entry is parked in it (else the slot is returned).
    reads
        Slots.
    slots
        Number of slots taken from ``free``.
    entries
        Number of entries of the scoreboard.
    """
    full = [False] * entries
    issued = returned = write = read = cycle = entry = 0
    while issued < slots or read < len(reads) or write < len(writes):
        before = list(full)
        waiting = returned - max(0, issued - entries)  # slots in the queue of returned ones
        issued += issued < entries or waiting > 0
        if read < len(reads) and before[reads[read]]:
            full[reads[read]] = False
            read += 1
            entry = cycle + 1
        if write < len(writes):
            slot, parks = writes[write]
            if parks and not before[slot]:
                full[slot] = True
                write += 1
            elif not parks and waiting < entries:
                returned += 1
                write += 1
        cycle += 1
    return max(cycle, entry + 1)
