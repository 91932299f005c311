"""One channel of a DRAM: banks, buses, refresh, and the controller that orders its commands.

The page policy is open, the order first-ready, first-come: a burst whose row is open goes before
older ones that need another row. ``dram.h`` of the compiled harness has the same schedule.
"""

import collections
import dataclasses

from sim.core.dram.standards import Standard

NEVER = 1 << 62
"""A time that does not come."""

READS, WRITES = 64, 32
"""Bursts that wait in a channel's queue for reads and in its queue for writes."""
WRITES_HIGH, WRITES_LOW = 32, 8
"""Writes go first from the one number of waiting writes on, down to the other."""
HITS = 4
"""Bursts of an open row after which an older burst of its bank may close it."""


@dataclasses.dataclass
class Counts:
    """What one channel, or a device of several, did.

    open_clocks
        Clocks of ranks with an open row.
    """

    reads: int = 0
    writes: int = 0
    row_hits: int = 0
    activations: int = 0
    refreshes: int = 0
    open_clocks: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(a + b for a, b in pairs))


class Burst:
    """A line on its way: bank, row, whether it is written, and its number, which is its age."""

    __slots__ = ("bank", "line", "number", "row", "write")

    def __init__(self, number: int, line: int, bank: int, row: int, write: bool):
        self.number, self.line, self.bank, self.row, self.write = number, line, bank, row, write


class Channel:
    """Banks of one channel and its queues.

    trace
        Commands in order, as (clock, command, bank, row), if it is a list. A command is ``ACT``,
        ``PRE``, ``RD``, ``WR``; ``PREA`` and ``REF`` name a rank in place of a bank.
    """

    def __init__(self, standard: Standard, trace: list | None = None):
        s = self._s = standard
        self.trace = trace
        self.counts = Counts()
        banks, groups = s.banks_of_channel, s.ranks * s.groups
        self._group = [bank // s.banks for bank in range(banks)]
        self._rank = [bank // (s.banks * s.groups) for bank in range(banks)]
        of_rank = s.groups * s.banks
        self._of_rank = [range(r * of_rank, (r + 1) * of_rank) for r in range(s.ranks)]
        # The earliest clock of each command: by bank, and by bank group.
        self._row = [-1] * banks
        self._hits = [0] * banks
        self._activate_at, self._column_at = [0] * banks, [0] * banks
        self._precharge_at = [0] * banks
        self._activate_in, self._read_in, self._write_in = [0] * groups, [0] * groups, [0] * groups
        self._activated = [[-NEVER] * 4 for _ in range(s.ranks)]
        self._due = [s.refresh_interval * (r + 1) // s.ranks for r in range(s.ranks)]
        self._soonest = min(self._due)
        self._open = [0] * s.ranks
        self._opened = [0] * s.ranks
        # Waiting bursts by bank, oldest first: of reads, of writes.
        self._waiting: list[dict[int, collections.deque[Burst]]] = [{}, {}]
        self._candidate: list[Burst | None] = [None] * banks  # of the direction; None if unknown
        self._count = [0, 0]
        self._writing = False
        self.next = min(self._due)
        """The earliest clock at which a command may go."""

    def has_room(self, write: bool) -> bool:
        return self._count[write] < (WRITES if write else READS)

    @property
    def idle(self) -> bool:
        return not any(self._count)

    def add(self, clock: int, burst: Burst) -> None:
        """Put a burst into its queue; it may go from `clock` on."""
        self._waiting[burst.write].setdefault(burst.bank, collections.deque()).append(burst)
        self._count[burst.write] += 1
        self._candidate[burst.bank] = None
        self.next = min(self.next, clock)

    def step(self, clock: int) -> Burst | None:
        """Issue what may go in this clock; return the burst whose column went, if one did."""
        was = self._writing
        self._choose_direction()
        if self._writing != was:
            self._candidate = [None] * len(self._candidate)
        earliest, row_bus = NEVER, True
        if clock >= self._soonest:
            earliest, row_bus = self._refresh(clock)
        column_bus = row_bus or self._s.split_commands
        column, row = None, None  # the oldest burst whose command may go
        column_in = self._write_in if self._writing else self._read_in
        for bank, bursts in self._waiting[self._writing].items():
            burst = self._candidate[bank]
            if burst is None:
                burst = self._candidate[bank] = self._candidate_of(bank, bursts)
            rank, opened = self._rank[bank], self._row[bank]
            if clock >= self._due[rank]:
                continue
            if opened == burst.row:
                at = max(self._column_at[bank], column_in[self._group[bank]])
                if at <= clock and (column is None or burst.number < column.number):
                    column = burst
            else:
                if opened >= 0:
                    at = self._precharge_at[bank]
                else:
                    window = self._activated[rank][0] + self._s.four_activates
                    at = max(self._activate_at[bank], self._activate_in[self._group[bank]], window)
                if at <= clock and (row is None or burst.number < row.number):
                    row = burst
            if clock < at < earliest:
                earliest = at
        moved = not row_bus
        if column is not None and column_bus:
            self._issue_column(clock, column)
            row_bus, moved = row_bus and self._s.split_commands, True
        else:
            column = None
        if row is not None and row_bus:
            self._issue_row(clock, row)
            moved = True
        self.next = clock + 1 if moved else min([earliest, *(d for d in self._due if d > clock)])
        return column

    def _candidate_of(self, bank: int, bursts: collections.deque[Burst]) -> Burst:
        """The bank's next burst: the oldest of its open row, or the oldest of all."""
        opened = self._row[bank]
        if opened >= 0 and self._hits[bank] < HITS:
            for burst in bursts:
                if burst.row == opened:
                    return burst
        return bursts[0]

    def _choose_direction(self) -> None:
        reads, writes = self._count
        if self._writing:
            self._writing = writes > (WRITES_LOW if reads else 0)
        else:
            self._writing = writes >= WRITES_HIGH or (writes > 0 and not reads)

    def _refresh(self, clock: int) -> tuple[int, bool]:
        """Refresh the ranks that are due. The next clock for it, and whether the bus is free."""
        earliest = NEVER
        for rank, due in enumerate(self._due):
            if clock < due:
                continue
            banks = self._of_rank[rank]
            opened = [bank for bank in banks if self._row[bank] >= 0]
            next_at = self._precharge_at if opened else self._activate_at
            at = max(next_at[bank] for bank in opened or banks)
            if at > clock:
                earliest = min(earliest, at)
                continue
            if opened:
                self._note(clock, "PREA", rank)
                for bank in opened:
                    self._close(clock, bank)
            else:
                self._note(clock, "REF", rank)
                self.counts.refreshes += 1
                for bank in banks:
                    self._activate_at[bank] = clock + self._s.refresh
                self._due[rank] += self._s.refresh_interval
                self._soonest = min(self._due)
            return earliest, False
        return earliest, True

    def _close(self, clock: int, bank: int) -> None:
        rank = self._rank[bank]
        self._row[bank], self._candidate[bank] = -1, None
        self._activate_at[bank] = max(self._activate_at[bank], clock + self._s.precharge)
        self._open[rank] -= 1
        if not self._open[rank]:
            self.counts.open_clocks += clock - self._opened[rank]

    def _issue_row(self, clock: int, burst: Burst) -> None:
        """Close the bank's row, or open the burst's."""
        s, bank = self._s, burst.bank
        if self._row[bank] >= 0:
            self._note(clock, "PRE", bank)
            self._close(clock, bank)
            return
        rank, group = self._rank[bank], self._group[bank]
        self._note(clock, "ACT", bank, burst.row)
        self.counts.activations += 1
        self._row[bank], self._hits[bank], self._candidate[bank] = burst.row, 0, None
        self._activate_at[bank] = clock + s.row_cycle
        self._column_at[bank] = clock + s.activate_to_column
        self._precharge_at[bank] = clock + s.row_active
        for other in range(rank * s.groups, (rank + 1) * s.groups):
            apart = s.activate_long if other == group else s.activate_short
            self._activate_in[other] = max(self._activate_in[other], clock + apart)
        self._activated[rank] = [*self._activated[rank][1:], clock]
        if not self._open[rank]:
            self._opened[rank] = clock
        self._open[rank] += 1

    def _issue_column(self, clock: int, burst: Burst) -> None:
        s, bank, write = self._s, burst.bank, burst.write
        self._note(clock, "WR" if write else "RD", bank, burst.row)
        bursts = self._waiting[write][bank]
        bursts.remove(burst)
        if not bursts:
            del self._waiting[write][bank]
        self._count[write] -= 1
        self.counts.row_hits += self._hits[bank] > 0
        self._hits[bank] += 1
        self._candidate[bank] = None
        data = clock + (s.write_latency if write else s.read_latency) + s.burst  # its end
        if write:
            self.counts.writes += 1
            recovered = data + s.write_recovery
        else:
            self.counts.reads += 1
            recovered = clock + s.read_to_precharge
        self._precharge_at[bank] = max(self._precharge_at[bank], recovered)
        group, rank = self._group[bank], self._rank[bank]
        same, other = (self._write_in, self._read_in) if write else (self._read_in, self._write_in)
        back = s.read_latency if write else s.write_latency
        for g in range(s.ranks * s.groups):
            mine = g // s.groups == rank
            apart = s.column_long if g == group else s.column_short
            gap = max(s.burst, apart) if mine else s.burst + s.turnaround
            same[g] = max(same[g], clock + gap)
            if write and mine:
                wait = s.write_to_read_long if g == group else s.write_to_read_short
                turned = data + wait
            else:
                turned = data + s.turnaround - back
            other[g] = max(other[g], turned, clock + 1)

    def _note(self, clock: int, command: str, bank: int, row: int = -1) -> None:
        if self.trace is not None:
            self.trace.append((clock, command, bank, row))

    def settle(self, clock: int) -> Counts:
        """The counts as of a clock, with the rows still open."""
        since = sum(clock - at for at, n in zip(self._opened, self._open, strict=True) if n)
        return dataclasses.replace(self.counts, open_clocks=self.counts.open_clocks + since)
