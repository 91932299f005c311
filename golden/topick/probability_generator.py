"""Bit-exact model of the probability generator, and its control cycle by cycle."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from golden.arith.exp2_fixed import exp2_fixed


def probability(t: ArrayLike, log2: ArrayLike, *, fraction: int, places: int) -> np.ndarray:
    """2^(t - log2) in units of 2^-places, to nearest, at most 2^places - 1.

    t, log2
        Binary logarithms of a token's score and of the denominator, in units of 2^-fraction.

    >>> probability(np.array([0, -1024, -1536, -20000]), 0, fraction=10, places=11)
    array([2047, 1024,  724,    0])
    """
    most = (1 << places) - 1
    minus = np.asarray(log2, np.int64) - np.asarray(t, np.int64)
    below = np.maximum(minus, 0)
    precision = places + 3
    significand = exp2_fixed(
        below & ((1 << fraction) - 1),
        fraction=fraction,
        precision=precision,
        output=precision,
        rounding="down",
    )
    # significand 2^-(places + 3) 2^-n in units of 2^-places: n + 3 bits go.
    right = np.minimum(below >> fraction, places + 1) + 3
    nearest = (significand + (1 << right - 1)) >> right
    return np.where(minus <= 0, most, np.minimum(nearest, most))


def generator_cycles(
    heads: Sequence[Sequence[int]], *, chunks: int, rows: int, skip: bool = True
) -> int:
    """Cycles of a probability generator in which nothing stalls.

    From the first beat offered to the last one taken. All inputs are offered from the first cycle
    on, responses too, so that each waits only for a request.

    heads
        p of each head's entries.
    chunks, rows, skip
        Parameters of the generator.

    >>> generator_cycles([[]], chunks=3, rows=16), generator_cycles([[5]], chunks=3, rows=16)
    (2, 10)
    """
    entries, counts = deque(p for head in heads for p in head), deque(map(len, heads))
    requests = sum(chunks for p in entries if p or not skip)
    level = left = pending = cycle = 0
    ring: deque[int] = deque()
    busy = False
    # A stage's p, if it has an entry, and the chunk at the request's register.
    entry = minus = power = request = None
    chunk = 0
    while counts or busy:
        # Which stages can take an entry, from the last to the first.
        last = chunk == chunks - 1
        none = power == 0 and skip
        request_free = request is None or last
        power_free = power is None or request_free or none
        minus_free = minus is None or power_free
        entry_free = entry is None or minus_free
        reading = left != 0 and level != 0 and entry_free
        storing = bool(entries) and level != rows
        starting = bool(counts) and not busy
        idle = entry is minus is power is request is None
        ending = busy and left == 0 and idle and pending == 0
        passed = requests > 0 and pending > 0
        requests -= passed
        pending += (request is not None) - passed
        if request_free:
            request, chunk = (None if none else power), 0
        else:
            chunk += 1
        if power_free:
            power = minus
        if minus_free:
            minus = entry
        if entry_free:
            entry = ring.popleft() if reading else None
        if storing:
            ring.append(entries.popleft())
        level += storing - reading
        left = counts.popleft() if starting else left - reading
        busy = starting or (busy and not ending)
        cycle += 1
    return cycle
