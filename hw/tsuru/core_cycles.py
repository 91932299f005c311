"""Cycles of the core, by its control alone, cycle by cycle; see :class:`TsuruCoreParameters`."""

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

from hw.attention.softmax_reduction import LAST_TILE_CYCLES
from hw.attention.special_function_unit import LATENCY as SOFTMAX_LATENCY
from hw.attention.streamed_rows import TILE
from hw.tsuru.row_search import CYCLES as INTEGER_CYCLES
from hw.tsuru.row_search import STAGES
from hw.tsuru.row_supply import WAITING

BATCHES = 4
"""Batches that may wait for a part."""
ROWS = 16
"""Chosen rows that may wait for their requests."""
RESTS = 2


class Fifo:
    """A queue whose beats are there a cycle after they entered."""

    def __init__(self, depth: int):
        self.items: deque = deque()
        self._depth = depth
        self._new: list = []
        self.ready = True

    def push(self, item: Any) -> None:
        self._new.append(item)

    def pop(self) -> Any:
        return self.items.popleft()

    def clock(self) -> None:
        self.items.extend(self._new)
        self._new.clear()
        self.ready = len(self.items) < self._depth


class Words:
    """A reorder buffer and its memory: words come `latency` cycles after their requests."""

    def __init__(self, depth: int, latency: int):
        self._depth, self._latency = depth, latency
        self._kept: deque = deque()  # (cycle from which a word may be read, last)
        self.room = True
        self.word: Any = None  # at the output

    def request(self, cycle: int, last: bool) -> None:
        self._kept.append((cycle + self._latency + 1, last))

    def clock(self, cycle: int, taken: bool) -> None:
        """The end of a cycle, in which the word at the output was `taken`."""
        if taken:
            self.word = None
        if self.word is None and self._kept and self._kept[0][0] <= cycle:
            self.word = self._kept.popleft()[1:]
        # A slot is free in the cycle after its word was read.
        self.room = len(self._kept) < self._depth


class Lane:
    """A head's array and softmax: :class:`hw.attention.pe_array.PeArray`'s control."""

    def __init__(self, array):
        self._array = array
        # Rows (is V, last): at the multipliers' outputs, in the tree, captured and rounded.
        self._stage: Any = None
        self._flight: list = [None] * array.tree_cycles
        self._rounded: Any = None
        self._output: Any = None
        self._fold = 0
        self.loaded = self._summed = self.o = False
        self._tile = self._drained = 0
        self._first: int | None = None  # cycle of the first probability
        self._used = 0  # probabilities that have been used

    def begin(self, o_ready: bool) -> None:
        """What the state and the consumer of results say of this cycle."""
        self.advance = not self.o or o_ready
        self._issue = False
        if self._stage is not None:
            idle, folded = self._fold == 0, self._fold == self._array.outer_end_cycles
            drained = not any(self._flight[:-1])  # tuples are true
            inner = idle or self._fold > self._array.fold_cycles
            self._issue = (idle or folded) and drained if self._stage[0] else inner
        self.front = self.advance and (self._stage is None or self._issue)

    def accepts(self, cycle: int, is_value: bool) -> bool:
        """Whether it takes a row that is offered."""
        if not is_value:
            return self.front and self.loaded
        first = self._first
        return self.front and first is not None and cycle >= first + self._used

    def clock(self, cycle: int, row: Any, loading: bool) -> None:
        """The end of a cycle in which `row`, (is V, last), was taken, or a query."""
        if self.advance:
            self._score(cycle)
            added = self._stage if self._issue else None
            folded = self._fold == self._array.outer_end_cycles
            self.o, self._summed = self._summed, folded
            if added is not None and added[0] and added[1]:
                self._fold = 1
            elif folded:
                self._fold = 0
            elif self._fold:
                self._fold += 1
            inner = added is not None and not added[0]
            self._flight = [added if inner else None, *self._flight[:-1]]
        if self.front:
            self._stage = row
        if loading:
            self.loaded = True
        elif row is not None and not row[0] and row[1]:
            self.loaded = False
        if row is not None and row[0]:
            self._used += 1
            if row[1]:
                self._first, self._used = None, 0

    def _score(self, cycle: int) -> None:
        """The score at the output enters the softmax, whose tiles are drained one by one."""
        if self._output is not None:
            self._tile += 1
            last = self._output[1]
            if last or self._tile == TILE:
                self._drained = max(self._drained, cycle) + self._tile
                self._tile = 0
            if last:
                self._first = self._drained + LAST_TILE_CYCLES + SOFTMAX_LATENCY + 1
        self._output, self._rounded = self._rounded, self._flight[-1]


@dataclasses.dataclass
class Batch:
    """A batch of heads: of how many, on which tiles, of which chosen rows.

    tiles
        Chosen slots of each tile, sinks among them.
    """

    heads: int
    words: int
    tiles: Sequence[int]
    sinks: int
    last: bool = False

    @property
    def rows(self) -> int:
        """Chosen rows but for the sinks."""
        return sum(self.tiles) - self.sinks


class Search:
    """Words of the search to estimates: the sequential reader and :class:`RowSearch`."""

    def __init__(self, p, latency: int):
        self._block = p.format.search_words
        self._words = Words(p.depth, latency)
        self._left = 0  # words to request
        self._busy = self._searching = False
        self._waiting = 0  # queries to accept
        self._entering = [False] * INTEGER_CYCLES
        self._place = 0
        self._pipeline: list = [None] * STAGES  # whether a tile is the batch's last
        self._delivered = [False, False]  # the batch offered, to the reader and to the search
        self._query = [False, False]  # the query offered, to the search and to the lanes

    def tick(self, core: "CoreCycles", port_free: bool) -> None:
        waiting, busy = self._waiting, self._busy
        # Requests; the next batch's may follow the last of them.
        issue = self._left > 0 and self._words.room and port_free
        reader_ready = self._left == 0 or (self._left == 1 and issue)
        if issue:
            self._left -= 1
            self._words.request(core.cycle, self._left == 0)
        # A word, and what moves on.
        output, word = self._pipeline[-1], self._words.word
        advance = output is None or core.choice.ready
        if output is not None and advance:
            core.choice.take(output[0])
        taken = word is not None and self._searching and advance
        codes = word if taken and self._place else None
        if taken:
            ends = word[0] or self._place == self._block - 1
            self._place = 0 if ends else self._place + 1
        # A query, to the search and to the lanes' queue.
        accepted = False
        if core.queries_left:
            ready = [waiting > 0, core.queries.ready]
            takes = [r and not had for r, had in zip(ready, self._query, strict=True)]
            accepted = takes[0]
            self._waiting -= accepted
            if takes[1]:
                core.queries.push(None)
            self._query = [a or b for a, b in zip(takes, self._query, strict=True)]
            if all(self._query):
                self._query = [False, False]
                core.queries_left -= 1
        if self._entering[-1] and waiting == 0 and not any(self._entering[:-1]):
            self._searching = True
        self._entering = [accepted, *self._entering[:-1]]
        # The next batch.
        if core.batches[0].items:
            batch = core.batches[0].items[0]
            ready = [reader_ready, not busy]
            takes = [r and not had for r, had in zip(ready, self._delivered, strict=True)]
            if takes[0]:
                self._left = batch.words
            if takes[1]:
                self._busy, self._waiting = True, batch.heads
            self._delivered = [a or b for a, b in zip(takes, self._delivered, strict=True)]
            if all(self._delivered):
                self._delivered = [False, False]
                core.batches[0].pop()
        if taken and word[0]:
            self._searching = self._busy = False
        if advance:
            self._pipeline = [codes, *self._pipeline[:-1]]
        self._words.clock(core.cycle, taken)


class Choice:
    """The sum of estimates, then the choice: :class:`RowChoice`."""

    def __init__(self, p):
        self._p = p
        self.ready = True  # for a tile
        self._taken: bool | None = None
        self._step = 0
        self._batch: Any = None  # of which rows are chosen
        self._tile = self._left = self._look = 0
        self._read = False
        self._rest: int | None = None  # cycles of its score

    def take(self, last: bool) -> None:
        self._taken = last

    def tick(self, core: "CoreCycles") -> None:
        p, batches = self._p, core.batches[1]
        idle = self._batch is None
        start = not self.ready and self._step == p.sum_steps and idle and batches.items
        if not self.ready and batches.items and self._step != p.sum_steps:
            self._step += 1
        if self._taken:
            self.ready = False
        self._taken = None
        if self._batch is not None:
            self._choose(core)
        if start:
            self.ready, self._step = True, 0
            self._batch = batches.pop()
            self._tile = self._look = self._left = 0
            self._read, self._rest = False, None

    def _choose(self, core: "CoreCycles") -> None:
        """Tiles are read a cycle before they are looked at, and a row goes in a cycle."""
        tiles = self._batch.tiles
        if self._rest is not None:
            if self._rest < self._p.rest_cycles - 1:
                self._rest += 1
            elif core.rests.ready:
                core.rests.push(None)
                self._batch = None
            return
        # The tile in the register has rows left, of the first tile sinks before.
        of_tile = self._tile - 1
        goes = False
        if self._left:
            gone = tiles[of_tile] - self._left
            is_sink = of_tile == 0 and gone < self._batch.sinks
            last = of_tile == len(tiles) - 1 and self._left == 1
            goes = is_sink or core.chosen.ready
            if goes and not is_sink:
                core.chosen.push(last)
            if goes and last:
                self._rest = 0
        moves = self._read and (self._left == 0 or (goes and self._left == 1))
        fetch = self._look < len(tiles) and (not self._read or moves)
        if goes:
            self._left -= 1
        if moves:
            self._left = tiles[self._tile]
            self._tile += 1
        if fetch:
            self._look += 1
        self._read = fetch or (self._read and not moves)


class Requests:
    """Addresses of a batch's words: :class:`RowRequests`."""

    def __init__(self, p):
        self._p = p
        self._state, self._batch = "idle", None
        self._sink = self._chosen = self._again = 0
        self._there = False

    def tick(self, core: "CoreCycles", words: Words) -> bool:
        """Returns whether a request goes to the memory."""
        state, batch = self._state, self._batch
        if state == "idle":
            if core.batches[2].items and core.feeds.ready:
                self._batch = core.batches[2].pop()
                core.feeds.push(self._batch)
                self._sink = self._chosen = self._again = 0
                self._there = False
                self._state = "sink_k" if self._batch.sinks else "rows"
            return False
        if state == "listed":
            self._state = "sink_v" if batch.sinks else self._values()
            return False
        valid = self._there if state == "again" else bool(core.chosen.items or state != "rows")
        passed = valid and words.room
        last = state == "mean"
        if passed and state == "sink_k":
            self._sink += 1
            last = self._sink == batch.sinks and not batch.rows
            if self._sink == batch.sinks:
                self._sink, self._state = 0, "rows" if batch.rows else "sink_v"
        elif passed and state == "rows":
            last = core.chosen.pop()
            self._chosen += 1
            self._state = "listed" if last else state
        elif passed and state == "sink_v":
            self._sink += 1
            if self._sink == batch.sinks:
                self._state = self._values()
        elif passed and state == "mean":
            self._state = "idle"
        elif state == "again":
            if self._again != self._beyond and (not self._there or words.room):
                self._again, self._there = self._again + 1, True
            elif words.room:
                self._there, self._state = False, "mean"
        if passed:
            words.request(core.cycle, last)
        return passed

    @property
    def _beyond(self) -> int:
        return max(0, self._chosen - self._p.kept)

    def _values(self) -> str:
        return "again" if self._beyond else "mean"


class Feed:
    """Words to rows for the lanes: :class:`RowSupply`."""

    def __init__(self, p, latency: int):
        self._p = p
        self.words = Words(p.depth, latency)
        self.row: bool | None = None  # whether the row offered to the lanes is the last
        self._state = "idle"
        self._sink = self._chosen = self._given = self._read = 0
        self._there = False

    def tick(self, core: "CoreCycles", row_taken: bool) -> None:
        state = self._state
        if state == "idle":
            self._sink = self._chosen = self._given = self._read = 0
            if core.feeds.items:
                self._state = "exact_k" if core.feeds.items[0].sinks else "fine_k"
        word = self.words.word
        advance = self.row is None or row_taken
        of_word = state not in ("idle", "rest", "kept_v")
        offered = word is not None if of_word else self._there if state == "kept_v" else False
        if state == "rest":
            offered = bool(core.rests.items)
        passed = offered and advance
        # V that was kept is read a cycle ahead.
        kept = min(self._chosen, self._p.kept)
        values = state in ("rest", "exact_v", "kept_v", "again_v", "mean")
        fetch = values and self._read != kept
        fetch = fetch and (not self._there or (passed and state == "kept_v"))
        if passed:
            self._pass(core, state, word)
        if fetch:
            self._read, self._there = self._read + 1, True
        elif passed and state == "kept_v":
            self._there = False
        if advance:
            self.row = state in ("rest", "mean") if offered else None
        self.words.clock(core.cycle, passed and of_word)

    def _pass(self, core: "CoreCycles", state: str, word: Any) -> None:
        """The state after a row."""
        sinks = core.feeds.items[0].sinks
        values = "kept_v" if self._chosen else "mean"
        last_sink = self._sink + 1 == sinks
        if state == "exact_k":
            self._sink = 0 if last_sink else self._sink + 1
            self._state = "rest" if word[0] else "fine_k" if last_sink else state
        elif state == "fine_k":
            self._chosen += 1
            self._state = "rest" if word[0] else state
        elif state == "rest":
            core.rests.pop()
            self._state = "exact_v" if sinks else values
        elif state == "exact_v":
            self._sink = 0 if last_sink else self._sink + 1
            self._state = values if last_sink else state
        elif state == "mean":
            core.feeds.pop()
            self._state = "idle"
        else:
            self._given += 1
            if self._given == self._chosen:
                self._state = "mean"
            elif self._given == self._p.kept:
                self._state = "again_v"


class Group:
    """Lanes on the same rows: :class:`hw.attention.grouped_rows.GroupedRows`."""

    def __init__(self, p):
        self._lanes = [Lane(p.rows.lane.array) for _ in range(p.parallel)]
        self._delivered = [False] * p.parallel
        self._value = False
        self._loading = self._leaving = 0
        self.ended = False  # a step's last row has been taken
        self.left: int | None = None  # cycle of the last result

    def tick(self, core: "CoreCycles", row: bool | None) -> bool:
        """Returns whether the row offered, if there is one, is taken."""
        cycle, batches, results = core.cycle, core.batches[3], core.results
        leaves = bool(results.items) and self._lanes[self._leaving].o
        for n, lane in enumerate(self._lanes):
            lane.begin(leaves and n == self._leaving)
        last = bool(row)
        ends = self._value and last
        given = row is not None and bool(batches.items) and (not ends or results.ready)
        heads = batches.items[0].heads if given else 0
        taken = given
        loading = self._loading
        for n, lane in enumerate(self._lanes):
            wanted = n < heads and not self._delivered[n]
            takes = wanted and lane.accepts(cycle, self._value)
            loads = (
                wanted
                and n == loading
                and not self._value
                and lane.front
                and not lane.loaded
                and bool(core.queries.items)
            )
            if loads:
                core.queries.pop()
                self._loading += 1
            lane.clock(cycle, (self._value, last) if takes else None, loads)
            self._delivered[n] = takes or self._delivered[n]
            taken = taken and (n >= heads or self._delivered[n])
        if taken:
            self._delivered = [False] * len(self._lanes)
            if last:
                self._value = not self._value
            if ends:
                batch = batches.pop()
                results.push(heads)
                self._loading = 0
                self.ended = batch.last
        if leaves:
            self._leaving += 1
            self.left = cycle
            if self._leaving == results.items[0]:
                self._leaving = 0
                results.pop()
        return taken


class CoreCycles:
    """The core from one cycle to the next; inputs are valid in time, and nothing stalls."""

    def __init__(self, p, memory_latency: int):
        self._p = p
        self.cycle = 0
        self.queries, self.queries_left = Fifo(2 * p.parallel), 0
        self.chosen, self.rests = Fifo(ROWS), Fifo(RESTS)
        self.batches = [Fifo(BATCHES) for _ in range(4)]
        self.feeds, self.results = Fifo(WAITING), Fifo(2)
        self._fifos = [self.queries, self.chosen, self.rests, *self.batches]
        self._fifos += [self.feeds, self.results]
        self._search = Search(p, memory_latency)
        self.choice = Choice(p.choice)
        self._requests = Requests(p.supply)
        self._feed = Feed(p.supply, memory_latency)
        self._group = Group(p)

    def run(self, steps: Sequence["Step | None"], pause: int) -> int:
        """Cycles from the first command offered to the last result or report.

        steps
            None for a command that is refused.
        pause
            Cycles from a step's last beat to the next command; 0 if commands are valid in time.
        """
        waiting, end, state, offer = deque(steps), 0, "idle", 0
        runs: deque[Batch] = deque()
        delivered = [False] * len(self.batches)
        left = 0  # results of the steps so far that have not left
        store = 0
        if not pause:
            self.queries_left = sum(step.heads for step in steps if step is not None)
        while waiting or state != "idle" or left:
            if state == "idle" and waiting and self.cycle >= offer and not (pause and left):
                step = waiting.popleft()
                state = "refused" if step is None else "store"
                if step is not None:
                    store, left = step.store_cycles, left + step.heads
                    runs.extend(batch for batch in step.batches for _ in range(2))
                    if pause:
                        self.queries_left += step.heads
            elif state == "store":
                store -= 1
                state = "store" if store else "read"
            elif state == "read":
                self._run(runs, delivered)
                state = "read" if runs else "report"
            elif state == "refused" or (state == "report" and self._group.ended):
                state, end = "idle", max(end, self.cycle)
                self._group.ended = False
                offer = end + pause if pause else self.cycle + 1
            gone = self._tick()
            if gone:
                left, end = left - 1, max(end, self.cycle)
                offer = max(offer, end + pause) if pause else offer
            self.cycle += 1
        return end + 1

    def _run(self, runs: deque, delivered: list) -> None:
        """A batch enters all queues with its run of K; its run of V only takes a cycle."""
        if len(runs) % 2:
            runs.popleft()
            return
        for n, queue in enumerate(self.batches):
            if queue.ready and not delivered[n]:
                queue.push(runs[0])
                delivered[n] = True
        if all(delivered):
            delivered[:] = [False] * len(delivered)
            runs.popleft()

    def _tick(self) -> bool:
        """A cycle of all parts, each after those whose readiness it needs.

        Returns whether a result left.
        """
        taken = self._group.tick(self, self._feed.row)
        requested = self._requests.tick(self, self._feed.words)
        self._feed.tick(self, taken)
        self._search.tick(self, not requested)
        self.choice.tick(self)
        for fifo in self._fifos:
            fifo.clock()
        return self._group.left == self.cycle


@dataclasses.dataclass
class Step:
    """Cycles of its new rows' words, and its batches."""

    store_cycles: int
    batches: list[Batch]

    @property
    def heads(self) -> int:
        return sum(batch.heads for batch in self.batches)
