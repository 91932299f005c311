"""Jobs of ToPick's core: queries, new rows of K and V, and the cached ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.topick.pe_lane import Head, LaneSizes, chunk_of
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.core_work import TokenWork, queries_in_order
from sim.core import payload
from sim.core.memory import FASTEST, Memory, MemoryTiming
from sim.core.stimulus import Outcome, Stimulus
from sim.core.streams import Streams
from sim.testbenches.decode import rows_in_turn
from sim.testbenches.memory import NAME, memory_of
from sim.testbenches.topick.pe_lane import sizes_of
from sim.testbenches.topick.predicted_parts import HeadWork
from sim.testbenches.topick.prediction import CorePrediction, Prediction

QUERY = "q", "mantissa", "shift"
"""Fields of a head that the core takes."""


class Jobs:
    """Jobs for the core, one after the other, and what their outputs must be.

    cached
        ``k, v`` codes ``[kv heads, tokens, d]`` that are in the memories from the beginning, of
        each context from number 0 on.
    work
        Heads of each job; none of a job that is refused.
    """

    def __init__(
        self, parameters: TopickCoreParameters, *cached: tuple[np.ndarray, np.ndarray] | None
    ):
        self.parameters = p = parameters
        self.sizes: LaneSizes = sizes_of(p.lane)
        # K and V of each context.
        self._cache = [
            np.zeros((2, p.kv_heads, p.tokens, p.d), np.int16) for _ in range(p.contexts)
        ]
        for cache, rows in zip(self._cache, cached, strict=False):
            if rows is not None:
                kv_heads, tokens, _ = rows[0].shape
                cache[:, :kv_heads, :tokens] = rows
        self._first = [cache.copy() for cache in self._cache]
        self._ends = [0] * p.contexts  # tokens after each context's job before
        self._inputs = Streams(
            {"command": p.command_layout, "kv": p.row_layout, "q": p.query_layout}
        )
        self.work: list[list[HeadWork]] = []

    def add(
        self,
        heads: Sequence[Head],
        k: np.ndarray,
        v: np.ndarray,
        group: int | None = None,
        context: int = 0,
    ) -> list[HeadWork]:
        """A job: its heads, of as many tokens each; codes of the new token's K and V [kv heads, d].

        All heads have the first one's threshold. With another `group` than len(heads) / len(k)
        the last group is smaller.
        """
        return self._add([heads], np.asarray(k)[:, None], np.asarray(v)[:, None], group, context)

    def add_block(
        self,
        heads: Sequence[Sequence[Head]],
        k: np.ndarray,
        v: np.ndarray,
        group: int | None = None,
    ) -> list[HeadWork]:
        """A job of several new tokens, a block of a prompt: the heads of each, ``k`` and ``v [kv
        heads, new tokens, d]``. Its work is in the order of the queries."""
        return self._add(heads, k, v, group)

    def _add(
        self,
        heads: Sequence[Sequence[Head]],
        k: np.ndarray,
        v: np.ndarray,
        group: int | None,
        context: int = 0,
    ) -> list[HeadWork]:
        p, first, new, count = self.parameters, heads[0][0], len(heads), len(heads[0])
        begin, group = first.tokens - 1, group or count // len(k)
        # Rows that are written again must not change after the heads of earlier jobs saw them.
        if begin < self._ends[context]:
            self._cache[context] = self._cache[context].copy()
        self._ends[context] = begin + new
        cache = self._cache[context]
        cache[:, : len(k), begin : begin + new] = k, v
        number = len(self.work)
        numbers = {"tokens": begin + new, "heads": count, "group": group}
        numbers |= {"threshold": first.threshold} | self._varying(new, context)
        self._inputs.add("command", number, numbers)
        rows = rows_in_turn(np.swapaxes(k, 0, 1), np.swapaxes(v, 0, 1))  # token by token
        self._inputs.add("kv", number, {"": rows})
        order = queries_in_order(p.groups, count, group, new)
        made = [heads[token][number] for token, number in order]
        q = {name: np.array([getattr(head, name) for head in made]) for name in QUERY}
        self._inputs.add("q", number, q)
        # A block prunes nothing, whatever the threshold is.
        threshold = (1 << p.threshold_bits) - 1 if new > 1 else first.threshold
        self.work.append([])
        for (token, number), head in zip(order, made, strict=True):
            seen = cache[:, number // group, : begin + token + 1]
            coded = dataclasses.replace(head, threshold=threshold, exempt=True)
            work = HeadWork(number, number // group, coded, seen[0], seen[1], new > 1, context)
            self.work[-1].append(work)
        return self.work[-1]

    def _varying(self, new: int, context: int) -> dict[str, int]:
        """The command's fields for the number of new tokens and the context, if it has them."""
        p = self.parameters
        fields = {"block": new} if p.block > 1 else {}
        return fields | ({"context": context} if p.contexts > 1 else {})

    def add_refused(
        self, tokens: int, heads: int, group: int, block: int = 1, context: int = 0
    ) -> None:
        """A job that does not fit, which has no rows."""
        numbers = {"tokens": tokens, "heads": heads, "group": group, "threshold": 0}
        numbers |= self._varying(block, context)
        self._inputs.add("command", len(self.work), numbers)
        self.work.append([])

    def rewrite(self, k: np.ndarray, v: np.ndarray, context: int = 0) -> None:
        """The host changes all rows so far, codes [kv heads, tokens, d], in the memories too."""
        self._cache[context] = self._cache[context].copy()
        for part, codes in zip(self._cache[context], (k, v), strict=True):
            kv_heads, tokens, _ = codes.shape
            part[:kv_heads, :tokens] = codes

    def rows_of(self, lane: int, tokens: int) -> int:
        """Tokens of a head of that many in a lane."""
        shared = self.parameters.lanes_per_head
        return (tokens + shared - 1 - lane % shared) // shared

    def heads_of(self, lane: int, job: list[HeadWork]) -> list[HeadWork]:
        """The heads of a job, or queries of a block, that the lane takes part in, in its order."""
        p = self.parameters
        return [h for h in job if p.group_of(h.kv_head, h.context) == lane // p.lanes_per_head]

    def stimulus(self, notes: list[str], since: int = 0) -> "CoreStimulus":
        """All jobs, or those from number `since` on, for a core that has done the others."""
        p, work = self.parameters, self.work[since:]
        first = first_transactions(work)
        outputs, owners, room = {}, {}, {}
        for lane in range(p.lanes):
            beats, whole = [], 0
            for transaction, job in zip(first, work, strict=False):
                if not job and lane == 0:
                    beats.append((transaction, 1))
                for head in self.heads_of(lane, job):
                    tokens = self.rows_of(lane, head.head.tokens)
                    if head.whole:  # nothing is decided
                        whole += tokens
                        continue
                    beats.append((transaction + head.number, tokens))
            owner = np.repeat(*np.array(beats or [(0, 0)], np.int64).T)
            outputs[f"report__{lane}"] = np.zeros(
                (len(owner), payload.words(p.report_layout)), np.uint32
            )
            owners[f"report__{lane}"] = owner
            if p.observe:
                name = f"observed__{lane}"
                outputs[name] = np.zeros((0, payload.words(p.lane.observed_layout)), np.uint32)
                owners[name] = owner[:0]
                room[name] = len(owner) * self.sizes.chunks + whole
        owners["o"] = np.array(
            [of + n for of, job in zip(first, work, strict=False) for n in range(len(job))],
            np.int64,
        )
        outputs["o"] = np.zeros((len(owners["o"]), payload.words(p.output_layout)), np.uint32)
        return CoreStimulus(
            inputs=self._inputs.packed(since),
            outputs=outputs,
            transaction_of=owners,
            transactions=first[-1],
            cycles=p.cycles([work_of(job) for job in work]),
            notes=notes,
            memories=self.memories(),
            room=room,
            strays=self._strays(),
            serves=True,
            jobs=self,
            work=list(work),
        )

    def _strays(self) -> dict[str, np.ndarray]:
        """Responses of each lane's memory that it did not request: a value's, a key's first chunk,
        and the next chunk of each slot. A core that buffers chunks may take any."""
        p = self.parameters
        if not p.pruning or p.buffer_tokens:
            return {}
        label = np.array([0, 0, *range(p.entries)])
        tag = {"value": np.arange(len(label)) == 0, "chunk": np.arange(len(label)) > 1}
        fields = {f"tag.{name}": column.astype(np.int64) for name, column in tag.items()}
        beats = payload.pack(p.memory.response_layout, fields | {"tag.label": label})
        return {f"response__{lane}": beats for lane in range(p.lanes)}

    def contents(self) -> dict[str, np.ndarray]:
        """Rows of each lane's memory after the jobs so far."""
        lanes = range(self.parameters.lanes)
        return {memory_name(lane): self._contents(self._cache, lane) for lane in lanes}

    def _contents(self, caches: Sequence[np.ndarray], lane: int) -> np.ndarray:
        p = self.parameters
        group, share = divmod(lane, p.lanes_per_head)
        size = p.planes * p.rows
        contents = np.zeros((size, payload.words(p.lane.chunk_layout)), np.uint32)
        for context, cache in enumerate(caches):
            first = (group - context) % p.groups  # kv head
            heads = cache[:, first :: p.groups, share :: p.lanes_per_head]
            # kv head, K or V, chunk, row.
            if heads.any():
                chunks = [chunk_of(heads, chunk, self.sizes) for chunk in range(self.sizes.chunks)]
                rows = np.stack(chunks, axis=2).transpose(1, 0, 2, 3, 4).reshape(-1, p.d)
                begin = context * (size // p.contexts)
                part = contents[begin : begin + len(rows)]
                part[:] = payload.pack(p.lane.chunk_layout, {"": rows})
        return contents

    def memories(self) -> dict[str, Memory]:
        """Each lane's memory before the first job."""
        p = self.parameters
        return {
            memory_name(lane): memory_of(
                self._contents(self._first, lane), number=lane, in_order=p.responses_in_order
            )
            for lane in range(p.lanes)
        }


def work_of(job: Sequence[HeadWork]) -> TokenWork | None:
    """A job's work, for the formula of cycles."""
    if not job:
        return None
    first, last = job[0], job[-1]
    new = last.head.tokens - first.head.tokens + 1
    return TokenWork(last.head.tokens, len(job) // new, last.kv_head + 1, new)


def first_transactions(work: Sequence[Sequence[HeadWork]]) -> list[int]:
    """The first transaction of each job, and the number of all; a refused job is one, too."""
    return [0, *np.cumsum([max(1, len(job)) for job in work]).tolist()]


def memory_name(lane: int) -> str:
    """Name of a lane's memory."""
    return f"{NAME}__{lane}"


@dataclasses.dataclass
class CoreStimulus(Stimulus):
    """With the jobs whose outputs are checked; its `cycles` are those without pruning.

    jobs
        :class:`Jobs`.
    work
        Work of this stimulus.
    """

    jobs: Any = None
    work: list[list[HeadWork]] = dataclasses.field(default_factory=list)
    _predicted: dict[MemoryTiming, Prediction] = dataclasses.field(default_factory=dict)

    def predicted(self, timing: MemoryTiming) -> Prediction:
        """What a core does from reset, if nothing stalls, with memories of this timing."""
        if timing not in self._predicted:
            core = CorePrediction(self.jobs.parameters, timing)
            self._predicted[timing] = core.run(self.work)
        return self._predicted[timing]

    def wrong_cycles(self, outcome: Outcome) -> str | None:
        """Also what is wrong with the order in which a value's chunks are read: 0, 1, ..."""
        p = self.jobs.parameters
        alone = not p.buffer_tokens and p.block == 1  # one row after another
        for name, use in outcome.memories.items() if alone else ():
            read = np.zeros(0, np.int64) if use.rows is None else use.rows[use.rows >= 0]
            plane, row = np.divmod(read, p.rows)
            is_value = plane // p.lane.chunks % 2 == 1
            chunk, row = plane[is_value] % p.lane.chunks, row[is_value]
            order = np.arange(len(chunk)) % p.lane.chunks
            if (chunk != order).any() or (row != row[np.arange(len(row)) - order]).any():
                return f"{name}: a value's chunks are not read one after another in their order"
        return super().wrong_cycles(outcome)

    def cycle_range(self, outcome: Outcome) -> tuple[int, int]:
        """Exactly the predicted cycles, with pruning and without."""
        cycles = self.predicted(FASTEST).cycles
        return cycles, cycles
