"""Cycles of a lane in which nothing stalls: its control, cycle by cycle."""

from collections import deque

from hw.topick.pe_lane import PeLaneParameters


def cycles(p: PeLaneParameters, replay) -> int:
    """Cycles from the first beat offered to the last one taken.

    Inputs are offered from the first cycle on, and all outputs are taken at once; so a response
    waits only for its own request, or for its token's entry in the scoreboard.

    replay
        :class:`sim.testbenches.topick.pe_lane.Replay`, with all its heads.
    """
    heads = deque(data.head.tokens for data in replay.heads)
    responses = deque(replay.decisions)
    values = deque(
        last for data in replay.heads for last in [False] * (len(data.p) * p.chunks - 1) + [True]
    )
    free = deque([0] * p.entries)  # cycle from which a slot may be given out
    later: deque[int] = deque()  # cycle from which a next chunk may be asked for
    parked: dict[int, int] = {}  # slot, and cycle from which it may be read
    decided = deque()  # cycle in which a token is decided
    undecided = unrequested = awaited = cycle = last = 0
    arriving: deque[int] = deque()
    while heads or responses or values or unrequested:
        while decided and decided[0] < cycle:
            undecided -= 1
            decided.popleft()
        while arriving and arriving[0] < cycle:
            awaited += 1
            arriving.popleft()
        starts = heads and undecided == 0

        if later and later[0] <= cycle:
            later.popleft()
            last = max(last, cycle + 1)
        elif unrequested and free and free[0] <= cycle:
            free.popleft()
            unrequested -= 1
            arriving.append(cycle)
            last = max(last, cycle + 1)

        taken = False
        if responses:
            d = responses[0]
            taken = awaited > 0 if d.chunk == 0 else parked.get(d.slot, cycle + 1) <= cycle
        if taken:
            responses.popleft()
            out = cycle + p.latency
            last = max(last, out if d.difference or d.kept or d.ended else cycle + p.DECIDING)
            if d.chunk == 0:
                awaited -= 1
            else:
                del parked[d.slot]
            if d.asks:
                parked[d.slot] = out + 1
                later.append(out + 1)
            else:
                decided.append(cycle + p.DECIDING)
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
