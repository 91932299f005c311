"""Cycles of the core's parts by their control, cycle by cycle; see :mod:`hw.tsuru.core_cycles`."""

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

from hw.tsuru.row_search import CYCLES as INTEGER_CYCLES
from hw.tsuru.row_search import STAGES

WAITING = 2
"""Batches whose rows are on their way, at most."""


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

    def tick(self, core: Any, port_free: bool) -> None:
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

    def tick(self, core: Any) -> None:
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

    def _choose(self, core: Any) -> None:
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
        self._state = "idle"
        self._batch: Any = None
        self._sink = self._chosen = self._again = 0
        self._there = False

    def tick(self, core: Any, words: Words) -> bool:
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

    def tick(self, core: Any, row_taken: bool) -> None:
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

    def _pass(self, core: Any, state: str, word: Any) -> None:
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
