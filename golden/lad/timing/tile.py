"""Cycles of a tile: all of its stages, cycle by cycle, on the fastest memory."""

from collections import deque
from collections.abc import Iterable

from golden.lad.timing.extras import Linear, Prefetch
from golden.lad.timing.outputs import CacheReads, Factors, Output
from golden.lad.timing.parts import WRITE, Turns, bits_of
from golden.lad.timing.positions import Fetch, Stores
from golden.lad.timing.scores import DONE, IDLE, Scores
from golden.lad.timing.work import HELD, HeadWork, JobWork, TimingSizes

CACHES, SCORES, ROWS, AHEAD = range(4)
"""The readers of the port; linear layers have it for themselves."""


class TileTiming:
    """A tile, cycle by cycle.

    jobs
        That are offered.
    request
        In the port's register: of which reader, and the kind of its row.
    o, report
        An output or report is offered.
    still
        Cycles in which nothing will happen but what did in the last one: a row of the caches was
        requested and another one came, or time went by.
    """

    def __init__(self, timing: TimingSizes):
        size = timing.sizes
        self._d = size.d
        self.cycle = 0
        self.scores, self.stores, self.fetch = Scores(timing), Stores(timing), Fetch(timing)
        self.factors, self.output = Factors(timing), Output(timing)
        self.reads = CacheReads(size.cache_rows)
        self.prefetch, self.linear = Prefetch(timing, self.fetch.ahead), Linear(timing)
        self._readers = 3 + bool(size.prefetch) + bool(size.weights)
        self._turns = Turns(self._readers + 3)
        self.request: tuple[int, int] | None = None
        # The sequence of jobs and heads.
        self.jobs: deque[JobWork] = deque()
        self._job = JobWork()
        self._state = "idle"
        self._count = self._head = self._used = 0
        # From scores to the report.
        self._scored: deque[HeadWork] = deque()
        self._attending = "idle"
        self._row = self._rows = 0
        self._reported = self.report = self._error = False
        self.still = 0
        self.last = 0  # cycle of the last job accepted, or linear layer finished

    @property
    def idle(self) -> bool:
        """Whether a job is accepted."""
        return self._state == "idle"

    @property
    def o(self) -> bool:
        return self.output.o

    @property
    def wants_q(self) -> bool:
        """Whether a query is accepted."""
        waits = self._head < len(self._job.heads) and self._used != HELD
        return self._state == "head" and waits

    @property
    def multiplies_until(self) -> int:
        """The cycle of a linear layer's last sums, or this one."""
        return self.linear.finished if self.linear.active else self.cycle

    def accepts(self, answer: tuple[int, int]) -> bool:
        """Whether an answer, to a reader and of a kind, is accepted."""
        reader, kind = answer
        if reader == CACHES:
            return self.output.accepts(self.cycle)
        return reader != SCORES or self.scores.accepts(kind)

    def tick(
        self,
        answer: tuple[int, int] | None,
        requested: bool = True,
        q: bool = True,
        kv: bool = True,
        o: bool = True,
        report: bool = True,
    ) -> bool:
        """A cycle, in which an answer is accepted; whether a row of K or V is.

        requested, o, report
            The request, output or report that is offered is accepted.
        q, kv
            A query, or a row of K or V, is offered.
        """
        grant = None
        if self.request is None or requested:
            self.request = self._granted(kv)
            grant = self.request and self.request[0]
        stores = grant == SCORES and self.scores.stores
        self._stages(grant, answer or (None, None), q, o, report)
        self.cycle += 1
        return stores

    def _granted(self, kv: bool) -> tuple[int, int] | None:
        """As :class:`hw.lad.tile_port.TilePort`: whose request is granted, and its row's kind.

        Readers, then caches, counters and words of G. Readers but the first wait for writes and for
        that one.
        """
        caches, readers = self.output.caches, self._readers
        writes = self._writes
        wants = (not self.reads.idle and self.reads.wants(caches.free)) | writes << readers
        if wants:
            grant = self._turns.grant(wants)
            return None if grant is None else (grant, 0 if grant == CACHES else WRITE)
        kinds = [
            None,
            self.scores.wants(kv) if self.scores.state != IDLE else None,
            self.fetch.wants(),
            self.prefetch.wants() if self.prefetch.busy else None,
        ]
        grant = self._turns.grant(bits_of(kind is not None for kind in kinds))
        kind = None if grant is None else kinds[grant]
        return None if grant is None or kind is None else (grant, kind)

    @property
    def _writes(self) -> int:
        """Which of the writers want the port, as bits."""
        written = self.output.caches.written
        return written | self.factors.writes << 1 | (self._attending == "write") << 2

    def _stages(self, grant: int | None, answer, q: bool, o: bool, report: bool) -> None:
        """What all stages do in a cycle, from what they show before it."""
        reader, kind = answer
        cycle, readers = self.cycle, self._readers
        scores, stores, fetch = self.scores, self.stores, self.fetch
        factors, output = self.factors, self.output
        identified = scores.work if scores.state == DONE else None
        begins = (
            self._attending == "idle"
            and bool(self._scored)
            and self.reads.idle
            and factors.idle
            and output.ready
        )
        before = self._stages_now
        settled, idle, factored = output.settled, output.idle, factors.idle
        # Active positions.
        counters = grant == readers + 1
        stalls = factors.stalls(fetch.counters, counters)
        offered = factors.offers(stalls)
        joined = offered if output.attends and fetch.rows else None
        advance = not stalls and (offered is None or joined is not None)
        key = fetch.key if factors.takes(fetch.key) else None
        takes_counters = factors.takes_counters(advance)
        of_fetch = kind if reader == ROWS else None
        entry = stores.output
        if entry is not None and not fetch.takes(grant == ROWS, of_fetch):
            entry = None
        word = factors.word
        taken = key is not None, takes_counters, joined is not None
        events = grant == ROWS or of_fetch is not None or entry is not None or any(taken)
        still = not events and fetch.still and stores.still and not (word or grant)
        if events or not fetch.still:
            fetch.tick(grant == ROWS, of_fetch, entry, *taken)
        if entry is not None or word or not stores.still:
            stores.tick(entry is not None, word)
        if key is not None or counters or not factors.still(advance):
            factors.tick(cycle, key, advance, counters, joined is not None)
            still = False
        output.tick(cycle, reader == CACHES, joined, grant == readers, o)
        self.reads.tick(grant == CACHES)
        of_scores = kind if reader == SCORES else None
        if grant == SCORES or of_scores is not None or not (scores.still or scores.state == IDLE):
            scores.tick(cycle, grant == SCORES, of_scores)
        prefetching = self.prefetch.busy
        if prefetching:
            self.prefetch.tick(grant == AHEAD, kind if reader == AHEAD else None)
        self._sequence(identified, idle and factored, prefetching, q)
        self.linear.tick(cycle)
        written = grant == readers + 2
        released = self._attend(begins, factored, settled, written, report)
        self._used -= released
        if identified is not None:
            self._scored.append(identified)
            stores.add(identified)
            fetch.begin()
        still = still and not prefetching and before == self._stages_now
        self.still = min(self.still_for(grant, reader), scores.waits) if still else 0

    @property
    def _stages_now(self) -> tuple:
        """The states of all stages that pass a head on."""
        flags = self._reported, self.report, self._error
        return (
            self.scores.stage,
            self._state,
            self._attending,
            self._count,
            self._used,
            self.output.state,
            flags,
        )

    def still_for(self, grant: int | None, reader: int | None) -> int:
        """Cycles, after one in which nothing else changed than a row of the caches that was granted
        and one that came."""
        output, caches = self.output, self.output.caches
        if self._writes:
            return 0
        if grant == CACHES and reader == CACHES and output.loads:
            return min(self.reads.left(caches.free), caches.rows - caches.loaded) - 1
        waits = grant is None and reader is None and self.request is None and not output.o
        return output.waits(self.cycle) if waits else 0

    def skip(self, cycles: int) -> None:
        """Let some of the `still` cycles go by."""
        self.cycle += cycles
        self.scores.skip(cycles)
        if self.request is not None:
            self.reads.skip(cycles)
            self.output.caches.loaded += cycles

    def _attend(
        self, begins: bool, factored: bool, settled: bool, written: bool, accepted: bool
    ) -> bool:
        """From a head's scores to its report; whether its store is free again."""
        released = False
        reported, report = self._reported, self.report
        if accepted:
            self.report = False
        if reported and settled:
            self.report, self._reported = True, False
        if self._error:
            self.report, self._error = True, False
        if self._attending == "idle":
            if begins:
                work = self._scored[0]
                self._row, self._rows = 0, -(-work.n // self._d)
                self.factors.begin()
                self.output.begin(work)
                if not work.restart:
                    self.reads.begin()
                self._attending = "attend"
        elif self._attending == "attend":
            if factored:
                self._attending = "read"
        elif self._attending == "write":
            if written:
                self._row += 1
                self._attending = "read"
        elif self._row != self._rows:
            self._attending = "write"
        elif not reported and not report:
            self._scored.popleft()
            self.stores.release()
            released = self._reported = True
            self._attending = "idle"
        return released

    def _sequence(
        self, identified: HeadWork | None, settled: bool, prefetching: bool, q: bool
    ) -> None:
        """Jobs, and the heads of a job, one after the other."""
        state, job, scores = self._state, self._job, self.scores
        quiet = self._attending == "idle" and not self._reported and not self.report
        if state == "idle":
            if self.jobs:
                self._accept(self.jobs.popleft())
        elif state == "refused":
            self._error, self._state = True, "report"
        elif state == "report":
            if settled and quiet:
                self._state = "idle"
        elif state == "count":
            self._count -= 1
            if not self._count:
                self._state = "prefetch" if job.ahead else "head"
        elif state == "head":
            if self._head == len(job.heads):
                self._state = "finish"
            elif self._used != HELD and q:
                scores.begin(job.heads[self._head])
                self._used += 1
                self._state = "scores"
        elif state == "scores":
            if identified is not None:
                self._head += 1
                self._state = "head"
        elif state == "finish":
            if not self._used and settled and quiet:
                self.fetch.ahead.empty()
                self._state = "idle"
        elif state == "prefetch":
            if prefetching:
                return
            if self._head != len(job.ahead):
                self.prefetch.begin(self._head, job.ahead[self._head], job)
                self._head += 1
            else:
                self._state = "idle"
        elif state == "linear":
            self._state = "refused" if job.refused else "products"
            if not job.refused:
                self.linear.begin(self.cycle, job)
        elif not self.linear.active:
            self.last = self.linear.finished
            self._state = "idle"

    def _accept(self, job: JobWork) -> None:
        self._job, self._head, self._count, self.last = job, 0, job.count, self.cycle
        self._state = "linear" if job.pieces else "refused" if job.refused else "count"
        if job.ahead or job.restart:
            self.fetch.ahead.empty()


class TileCycles:
    """Cycles of a tile that jobs keep busy, whose memory answers in the next cycle."""

    def __init__(self, timing: TimingSizes):
        self._tile = TileTiming(timing)
        self._answers: deque[tuple[int, tuple[int, int]]] = deque()  # the first cycle of each

    def run(self, jobs: Iterable[JobWork]) -> int:
        """Cycles of further jobs, from the first one offered to the last beat."""
        tile, answers = self._tile, self._answers
        tile.jobs.extend(jobs)
        begin = last = tile.cycle
        while tile.jobs or not tile.idle:
            if tile.o or tile.report:
                last = tile.cycle
            if tile.still > 0 and len(answers) == (tile.request is not None):
                if answers:
                    answers[0] = answers[0][0] + tile.still, answers[0][1]
                tile.skip(tile.still)
            answer = None
            if answers and answers[0][0] <= tile.cycle and tile.accepts(answers[0][1]):
                answer = answers.popleft()[1]
            if tile.request is not None and tile.request[1] != WRITE:
                answers.append((tile.cycle + 1, tile.request))
            # Nothing else happens while a linear layer has the port for itself.
            tile.cycle = tile.multiplies_until
            tile.tick(answer)
        return max(last, tile.last) + 1 - begin
