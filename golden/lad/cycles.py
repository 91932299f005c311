"""Cycles of LAD's blocks in which nothing stalls."""

from collections.abc import Sequence

from golden.lad.vpu import DP, EM, S


def apid_cycles(
    active: Sequence[Sequence[int]], *, latency: int, outputs: int, room_limit: int
) -> int:
    """Cycles of the active position identification, from the first command to the last output.

    Commands and beats are always offered in time.

    active
        For each step, the number of active positions of each beat.
    latency
        From a beat to its counters.
    outputs
        Active positions per output beat.
    room_limit
        Entries used in the queue up to which a beat is accepted.
    """
    used, cycle, last_output = 0, latency, 0
    for step in active:
        for number, count in enumerate(step):
            cycle += 1
            while used > room_limit:  # the beat waits, and a group leaves per cycle
                used -= outputs
                cycle += 1
            if used >= outputs:
                used -= outputs
            used += count
            if number == len(step) - 1:  # the last group of a step is closed
                used += -used % outputs
        last_output = cycle + 1 + used // outputs
    return max(cycle, last_output) + 1


def vpu_cycles(modes: Sequence[int], *, latency: int, dot_latency: int) -> int:
    """Cycles of the vector processing unit, from the first operation to the last result.

    latency, dot_latency
        From an operation to its vector and to its dot product.
    """
    last = [len(modes)]
    for mode, cycles in ((DP, dot_latency), (EM, latency), (S, latency)):
        last += [number + cycles + 1 for number, m in enumerate(modes) if m == mode][-1:]
    return max(last)
