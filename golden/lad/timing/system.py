"""Cycles of several tiles on one memory port."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import HeadStep
from golden.lad.timing.parts import WRITE, Turns
from golden.lad.timing.tile import TileTiming
from golden.lad.timing.work import JobWork, TimingSizes, ahead_work, token_work


@dataclass(frozen=True)
class SystemWork:
    """A job of all tiles.

    count
        Cycles in which its kv heads are counted.
    heads, group, kv_heads
        As the tiles accept them; no heads for a prefetch job, which has no rows.
    tiles
        Each tile's job, if it has one.
    """

    count: int
    heads: int
    group: int
    kv_heads: int
    tiles: list[JobWork | None]


def system_token_work(
    system: LadSystem, steps: list[HeadStep], heads: int, group: int, restart: bool
) -> SystemWork:
    """A token of these heads, in the order of the job; `heads` and `group` as in its job."""
    shares, size = system.shares(heads, group)
    tiles = [
        token_work(system.tile_sizes, [steps[head] for head in share], len(share), size, restart)
        if share
        else None
        for share in shares
    ]
    count = system_count_cycles(system, heads, group)
    return SystemWork(count, len(steps), size, -(-len(steps) // size), tiles)


def system_ahead_work(system: LadSystem, n: int, heads: int, group: int, most: int) -> SystemWork:
    """A prefetch job, which has no rows."""
    shares, size = system.shares(heads, group)
    tiles = [
        ahead_work(tile, n, len(share), size, most) if share else None
        for tile, share in zip(system.tiles, shares, strict=True)
    ]
    return SystemWork(system_count_cycles(system, heads, group), 0, size, 0, tiles)


def system_count_cycles(system: LadSystem, heads: int, group: int) -> int:
    """Cycles in which a job's kv heads are dealt to the tiles, one a cycle."""
    size, most = system.sizes, system.tile_sizes.heads
    group = group if 1 <= group <= most else 1
    heads = heads if 1 <= heads <= size.heads else 1
    shares = [0] * len(system.tiles)
    covered = kv_heads = 0
    cycles = 1
    while covered < heads:
        cycles += 1
        turn, part = kv_heads % len(shares), min(group, heads - covered)
        if kv_heads == size.kv_heads or shares[turn] + part > most:
            break  # too many: the job has one head
        shares[turn] += part
        covered, kv_heads = covered + part, kv_heads + 1
    return cycles


class Rows:
    """Rows of an input, dealt to the tiles' queues in turn."""

    def __init__(self, tiles: int, most: int):
        self.waiting = [0] * tiles
        self._most = most
        self._left = self._size = self._place = self._turn = 0

    def tick(self, taken: list[bool]) -> None:
        """A cycle, in which some queues' first rows are taken."""
        turn = self._turn
        dealt = self._left > 0 and self.waiting[turn] < self._most
        for tile, row in enumerate(taken):
            self.waiting[tile] -= row
        if dealt:
            self.waiting[turn] += 1
            self._left -= 1
            self._place += 1
            if self._place == self._size:
                self._place, self._turn = 0, (turn + 1) % len(self.waiting)

    def begin(self, count: int, size: int) -> None:
        """Deal further rows, `size` to a tile at a time."""
        self._left, self._size, self._place, self._turn = count, size, 0, 0


class SystemCycles:
    """Cycles of tiles that jobs keep busy, whose memory answers in the next cycle.

    As :class:`hw.lad.lad_system.LadSystem`: each tile as if alone, but that its requests, outputs
    and reports wait for their turn, and its rows for those dealt before.
    """

    def __init__(self, timing: TimingSizes, tiles: int):
        """`timing` is a tile's."""
        size = timing.sizes
        self._tiles = [TileTiming(timing) for _ in range(tiles)]
        self._requests, self._o, self._reports = (Turns(tiles) for _ in range(3))
        self._kv, self._q = Rows(tiles, 2 * size.kv_heads), Rows(tiles, size.heads)
        self._answers: deque[tuple[int, int, tuple[int, int]]] = deque()  # first cycle, tile
        self._state = "idle"
        self._count = self._left = 0
        self._offered = self._beat = False  # o, and any output, in the arbiters' registers
        self.cycle = 0

    def run(self, jobs: Iterable[SystemWork]) -> int:
        """Cycles of further jobs, from the first one offered to the last beat."""
        waiting = deque(jobs)
        begin = last = self.cycle
        job: SystemWork | None = None
        while waiting or self._state != "idle":
            if self._beat:
                last = self.cycle
            if self._state == "idle":
                job, last = waiting.popleft(), self.cycle
                self._count, following = job.count, "count"
            else:
                assert job is not None
                following = self._sequence(job)
            self._tick(job)
            self._state = following
            self.cycle += 1
        return last + 1 - begin

    def _sequence(self, job: SystemWork) -> str:
        """The next state."""
        if self._state == "count":
            self._count -= 1
            return "count" if self._count else "deal"
        if self._state == "deal":
            return "deal" if any(tile.jobs for tile in self._tiles) else "attend"
        done = self._left == 0 and all(tile.idle for tile in self._tiles)
        return "idle" if done else "attend"

    def _tick(self, job: SystemWork) -> None:
        tiles = self._tiles
        answer = None
        if self._answers and self._answers[0][0] <= self.cycle:
            _, number, row = self._answers[0]
            if tiles[number].accepts(row):
                self._answers.popleft()
                answer = number, row
        requested = self._requests.grant([tile.request is not None for tile in tiles])
        if requested is not None:
            request = tiles[requested].request
            assert request is not None, "a tile that requests is granted"
            if request[1] != WRITE:
                self._answers.append((self.cycle + 2, requested, request))
        o = self._o.grant([tile.o for tile in tiles])
        report = self._reports.grant([tile.report for tile in tiles])
        q = [tile.wants_q and rows > 0 for tile, rows in zip(tiles, self._q.waiting, strict=True)]
        kv = []
        for number, tile in enumerate(tiles):
            stores = tile.tick(
                answer[1] if answer is not None and answer[0] == number else None,
                requested == number,
                self._q.waiting[number] > 0,
                self._kv.waiting[number] > 0,
                o == number,
                report == number,
            )
            kv.append(stores)
        self._left -= self._offered
        self._offered, self._beat = o is not None, o is not None or report is not None
        self._q.tick(q)
        self._kv.tick(kv)
        if self._state == "count" and not self._count:
            self._left = job.heads
            if job.heads:
                self._q.begin(job.heads, job.group)
                self._kv.begin(2 * job.kv_heads, 2)
            for tile, work in zip(tiles, job.tiles, strict=True):
                if work is not None:
                    tile.jobs.append(work)
