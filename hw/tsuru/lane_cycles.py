"""Cycles of the lanes by their control, cycle by cycle; see :mod:`hw.tsuru.core_cycles`."""

from typing import Any

from hw.attention.softmax_reduction import LAST_TILE_CYCLES
from hw.attention.special_function_unit import LATENCY as SOFTMAX_LATENCY
from hw.attention.streamed_rows import TILE


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


class Group:
    """Lanes on the same rows: :class:`hw.attention.grouped_rows.GroupedRows`."""

    def __init__(self, p):
        self._lanes = [Lane(p.rows.lane.array) for _ in range(p.parallel)]
        self._delivered = [False] * p.parallel
        self._value = False
        self._loading = self._leaving = 0
        self.ended = False  # a step's last row has been taken
        self.left: int | None = None  # cycle of the last result

    def tick(self, core: Any, row: bool | None) -> bool:
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
