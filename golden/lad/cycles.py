"""Cycles of LAD's blocks in which nothing stalls."""

from collections.abc import Iterable, Sequence

from golden.lad.vpu import DP, EM, S


def apid_cycles(
    entries: Sequence[Sequence[int]], *, latency: int, outputs: int, room_limit: int
) -> int:
    """Cycles of the active position identification, from the first command to the last output.

    Commands and beats are always offered in time.

    entries
        For each step, the number of entries that each beat adds to the queue: active positions and
        those whose counters must be halved.
    latency
        From a beat to its counters.
    outputs
        Entries per output beat.
    room_limit
        Entries used in the queue up to which a beat is accepted.
    """
    used, cycle, last_output = 0, latency, 0
    for step in entries:
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


def md_cycles(entries: Sequence[int], *, latency: int) -> int:
    """Cycles of the mode discrepancy module, from the first command to the last correction.

    A head's command is accepted after the last correction of the head before it.

    entries
        Entries of each head: active positions, and positions whose counters are only halved.
    latency
        From a key to its correction.
    """
    return sum(1 + number + latency for number in entries)


def fetch_cycles(heads: Sequence[Sequence[tuple[bool, bool]]], *, depth: int) -> int:
    """Cycles of the fetch of active positions, from the first command to the last row.

    The memory answers in the next cycle, and consumers accept everything at once.

    heads
        Each head's entries: active; first of its row of counters.
    depth
        Slots.
    """
    command, last = 0, 0
    key = counter = row = -1  # when each reader reads its last slot
    freed: list[int] = []
    for entries in heads:
        allocated = command + 1
        request = allocated  # when the last one is accepted
        for active, has_counters in entries:
            # An entry is accepted with the last request of the one before it.
            if len(freed) >= depth:
                allocated = max(allocated, freed[-depth] + 1)
            request = allocated + has_counters
            counter = max(counter, allocated, request + 1 if has_counters else 0) + 1
            key = max(key, allocated, request + 2 if active else 0) + 1
            row = max(row, key, counter, request + 3 if active else 0) + 1
            freed.append(row)
            last = max(
                last,
                key + 1,
                counter + 1 if has_counters else 0,
                row + 1 if active else 0,
            )
            request += 2 * active
            allocated = max(request, allocated + 1)
        last = max(last, request + 1)  # how many rows were read
        command = request + 2
    return last + 1


def ac_cycles(
    heads: Sequence[tuple[int, int, bool]],
    orders: Iterable[Sequence[int]],
    *,
    d: int,
    latency: int,
    dot_latency: int,
) -> int:
    """Cycles of the attention computation, from the first command to the last row or output.

    Commands, rows and corrections are always offered in time, and rows written are accepted at
    once.

    heads
        Numbers of each head: active positions |J|, terms T, and whether its caches are clear.
    orders
        Numbers of the rows of the caches, of each head that is not clear, as they are offered.
    latency, dot_latency
        Cycles of a VPU from an operation to its vector and to its dot product.
    """
    columns = -(-d // 3)  # of A in a lane
    offered = iter(orders)
    command, last = 0, 0
    settled = 1  # the first cycle in which a head may begin
    passed: dict[int, int] = {}  # when the last head's row has been read to be written
    stores: set[int] = set()  # cycles in which columns are stored
    for active, terms, clear in heads:
        loaded = command
        if not clear:
            for row in next(offered):
                loaded = max(loaded + 1, passed.get(row, 0))
                while loaded in stores:
                    loaded += 1
        attend = max(loaded + 1, settled) + 1 + columns + dot_latency + 5
        output = attend + active + 2 * latency + 9
        last, command = output, output + 1
        settled, passed, stores = output + 1, {}, set()
        if terms:
            begin = output + terms + latency + 4  # B to F have all terms
            bases = {begin + 2 + latency + terms * column for column in range(columns)}
            complete = [begin + 5 + latency + terms * (column + 1) for column in range(columns)]
            stores = {cycle - 1 for cycle in complete}
        elif clear:
            begin, bases, complete = output, set(), [0] * columns
        if terms or clear:
            last, passed = _write_caches(d, begin, complete, bases)
            settled = last + 1
    return last + 1


def _write_caches(
    d: int, begin: int, complete: Sequence[int], bases: set[int]
) -> tuple[int, dict[int, int]]:
    """When the last row is written, and from when on each row's place is free.

    E and F are written first; a vector or a column is read every other cycle.

    begin
        The cycle before the row of E and F.
    complete
        The first cycle in which a column of all three lanes may be read.
    bases
        Cycles in which the banks are read for the sums.
    """
    columns = len(complete)
    lanes_of_last = d - 2 * columns  # columns of the last lane
    free = {2 * d + 6: begin + 2}
    read = begin + 1
    parts = [(d + vector, read) for vector in range(3)]  # B, C, D, then columns
    for number, ready in enumerate(complete):
        lanes = 3 if number < lanes_of_last else 2
        parts += [(lane * columns + number, ready) for lane in range(lanes)]
    for part, ready in parts:
        begun = max(read, ready)
        while begun in bases:
            begun += 1
        free[2 * part] = free[2 * part + 1] = begun + 3
        read = begun + 2
    return begun + 3, free
