"""Cycles of several tiles on one memory port, or a port each."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from golden.lad.lad_system import LadSystem
from golden.lad.lad_tile import HeadStep
from golden.lad.timing.parts import WRITE, Turns, bits_of
from golden.lad.timing.tile import TileTiming
from golden.lad.timing.work import JobWork, TimingSizes, ahead_work, token_work


@dataclass(frozen=True)
class SystemWork:
    """A job of all tiles.

    count
        Cycles in which its kv heads are counted.
    heads, group, kv_heads
        Of its rows; no heads for a prefetch job, which has no rows.
    tiles
        Each tile's job, if it has one.
    refused
        It does not fit.
    """

    count: int
    heads: int
    group: int
    kv_heads: int
    tiles: list[JobWork | None]
    refused: bool = False


def system_token_work(
    system: LadSystem, steps: list[HeadStep], n: int, heads: int, group: int, restart: bool
) -> SystemWork:
    """A token of these heads, in the order of the job, of which a refused job has none."""
    count = system_count_cycles(system, 1 if restart else n, heads, group)
    if not steps:
        return SystemWork(count, 0, group, 0, [], refused=True)
    tiles = [
        token_work([steps[head] for head in share], len(share), group, restart) if share else None
        for share in system.shares(heads, group)
    ]
    return SystemWork(count, heads, group, -(-heads // group), tiles)


def system_ahead_work(system: LadSystem, n: int, heads: int, group: int, most: int) -> SystemWork:
    """A prefetch job, which has no rows."""
    count = system_count_cycles(system, n, heads, group)
    if not system.fits(n, heads, group):
        return SystemWork(count, 0, group, 0, [], refused=True)
    shares = system.shares(heads, group)
    tiles = [
        ahead_work(tile, n, len(share), group, most) if share else None
        for tile, share in zip(system.tiles, shares, strict=True)
    ]
    return SystemWork(count, 0, group, 0, tiles)


def system_count_cycles(system: LadSystem, n: int, heads: int, group: int) -> int:
    """Cycles in which a job's kv heads are dealt to the tiles, one a cycle; 0 if it is refused
    before."""
    if not system.numbers_fit(n, heads, group):
        return 0
    shares = [0] * len(system.tiles)
    covered = kv_heads = 0
    while covered < heads:
        turn, part = kv_heads % len(shares), min(group, heads - covered)
        if shares[turn] + part > system.tile_sizes.heads:
            break  # too many: the job is refused
        shares[turn] += part
        covered, kv_heads = covered + part, kv_heads + 1
    return kv_heads + 1


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

    As :class:`hw.lad.lad_system.LadSystem`: each tile as if alone, but that its outputs and reports
    wait for their turn, its requests too where tiles share a port, and its rows for those dealt
    before.
    """

    def __init__(self, timing: TimingSizes, tiles: int, separate: bool = False):
        """`timing` is a tile's; `separate`: each tile has a separate port."""
        size = timing.sizes
        self._tiles = [TileTiming(timing) for _ in range(tiles)]
        self._requests, self._o = Turns(tiles), Turns(tiles)
        self._reports = Turns(tiles + 1)  # the last input is of refused jobs
        self._kv, self._q = Rows(tiles, 2 * size.kv_heads), Rows(tiles, size.heads)
        ports = tiles if separate else 1
        # Of each port: first cycle, tile, row.
        self._answers: list[deque[tuple[int, int, tuple[int, int]]]] = [
            deque() for _ in range(ports)
        ]
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
                self._count, following = job.count, "count" if job.count else "refused"
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
            return "count" if self._count else "refused" if job.refused else "deal"
        if self._state == "refused":
            return "attend"
        if self._state == "deal":
            return "deal" if any(tile.jobs for tile in self._tiles) else "attend"
        done = self._left == 0 and all(tile.idle for tile in self._tiles)
        return "idle" if done else "attend"

    def _request(self, wanted: list[bool]) -> set[int]:
        """Tiles of those that request whose request is taken in this cycle."""
        shared = len(self._answers) == 1
        granted = self._requests.grant(bits_of(wanted)) if shared else None
        taken = {number for number, wants in enumerate(wanted) if wants and not shared}
        taken |= {granted} if granted is not None else set()
        for number in taken:
            request = self._tiles[number].request
            assert request is not None, "a tile that requests is granted"
            if request[1] != WRITE:
                # A shared port's arbiter has a register.
                first = self.cycle + (2 if shared else 1)
                self._answers[0 if shared else number].append((first, number, request))
        return taken

    def _tick(self, job: SystemWork) -> None:
        tiles = self._tiles
        answers: dict[int, tuple[int, int]] = {}
        for waiting in self._answers:
            if (
                waiting
                and waiting[0][0] <= self.cycle
                and tiles[waiting[0][1]].accepts(waiting[0][2])
            ):
                _, number, row = waiting.popleft()
                answers[number] = row
        requested = self._request([tile.request is not None for tile in tiles])
        o = self._o.grant(bits_of(tile.o for tile in tiles))
        refused = self._state == "refused"
        report = self._reports.grant(bits_of([*(tile.report for tile in tiles), refused]))
        q = [tile.wants_q and rows > 0 for tile, rows in zip(tiles, self._q.waiting, strict=True)]
        kv = []
        for number, tile in enumerate(tiles):
            stores = tile.tick(
                answers.get(number),
                number in requested,
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
        if self._state == "count" and not self._count and job is not None and not job.refused:
            self._left = job.heads
            if job.heads:
                self._q.begin(job.heads, job.group)
                self._kv.begin(2 * job.kv_heads, 2)
            for tile, work in zip(tiles, job.tiles, strict=True):
                if work is not None:
                    tile.jobs.append(work)
