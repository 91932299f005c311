"""Jobs of ToPick's core, random or real: queries, new rows of K and V, and the cached ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.pe_lane import Head, LaneSizes, chunk_of
from golden.trace import Trace
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.core_work import TokenWork, queries_in_order
from sim.core import payload
from sim.core.memory import FASTEST, Memory, MemoryTiming
from sim.core.stimulus import Outcome, Stimulus
from sim.core.streams import Streams
from sim.testbenches.decode import random_heads, random_misfit, rows_in_turn
from sim.testbenches.memory import NAME, memory_of
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import sometimes
from sim.testbenches.topick.pe_lane import codable, coded_head, sizes_of
from sim.testbenches.topick.predicted_parts import HeadWork
from sim.testbenches.topick.prediction import CorePrediction, Prediction

QUERY = "q", "mantissa", "shift"
"""Fields of a head that the core takes."""
LONGEST = 40  # tokens of most random sequences


class Jobs:
    """Jobs for the core, one after the other, and what their outputs must be.

    cached
        ``k, v`` codes ``[kv heads, tokens, d]`` that are in the memories from the beginning.
    work
        Heads of each job; none of a job that is refused.
    """

    def __init__(
        self, parameters: TopickCoreParameters, cached: tuple[np.ndarray, np.ndarray] | None = None
    ):
        self.parameters = p = parameters
        self.sizes: LaneSizes = sizes_of(p.lane)
        self._cache = np.zeros((2, p.kv_heads, p.tokens, p.d), np.int16)  # K, V
        if cached is not None:
            kv_heads, tokens, _ = cached[0].shape
            self._cache[:, :kv_heads, :tokens] = cached
        self._first = self._cache.copy()
        self._inputs = Streams(
            {"command": p.command_layout, "kv": p.row_layout, "q": p.query_layout}
        )
        self.work: list[list[HeadWork]] = []

    def add(
        self, heads: Sequence[Head], k: np.ndarray, v: np.ndarray, group: int | None = None
    ) -> list[HeadWork]:
        """A job: its heads, of as many tokens each; codes of the new token's K and V [kv heads, d].

        All heads have the first one's threshold. With another `group` than len(heads) / len(k)
        the last group is smaller.
        """
        return self._add([heads], np.asarray(k)[:, None], np.asarray(v)[:, None], group)

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
        self, heads: Sequence[Sequence[Head]], k: np.ndarray, v: np.ndarray, group: int | None
    ) -> list[HeadWork]:
        p, first, new, count = self.parameters, heads[0][0], len(heads), len(heads[0])
        begin, group = first.tokens - 1, group or count // len(k)
        # Codes of another sequence must not change after the heads of earlier jobs saw them.
        self._cache = self._cache.copy() if begin == 0 else self._cache
        self._cache[:, : len(k), begin : begin + new] = k, v
        number = len(self.work)
        numbers = {"tokens": begin + new, "heads": count, "group": group}
        numbers |= {"threshold": first.threshold} | self._block(new)
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
            seen = self._cache[:, number // group, : begin + token + 1]
            coded = dataclasses.replace(head, threshold=threshold, exempt=True)
            work = HeadWork(number, number // group, coded, seen[0], seen[1], new > 1)
            self.work[-1].append(work)
        return self.work[-1]

    def _block(self, new: int) -> dict[str, int]:
        """The command's field for the number of new tokens, if it has one."""
        return {"block": new} if self.parameters.block > 1 else {}

    def add_refused(self, tokens: int, heads: int, group: int, block: int = 1) -> None:
        """A job that does not fit, which has no rows."""
        numbers = {"tokens": tokens, "heads": heads, "group": group, "threshold": 0}
        numbers |= self._block(block)
        self._inputs.add("command", len(self.work), numbers)
        self.work.append([])

    def rewrite(self, k: np.ndarray, v: np.ndarray) -> None:
        """The host changes all rows so far, codes [kv heads, tokens, d], in the memories too."""
        self._cache = self._cache.copy()
        for part, codes in zip(self._cache, (k, v), strict=True):
            kv_heads, tokens, _ = codes.shape
            part[:kv_heads, :tokens] = codes

    def rows_of(self, lane: int, tokens: int) -> int:
        """Tokens of a head of that many in a lane."""
        shared = self.parameters.lanes_per_head
        return (tokens + shared - 1 - lane % shared) // shared

    def heads_of(self, lane: int, job: list[HeadWork]) -> list[HeadWork]:
        """The heads of a job, or queries of a block, that the lane takes part in, in its order."""
        p = self.parameters
        return [h for h in job if h.kv_head % p.groups == lane // p.lanes_per_head]

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
            jobs=self,
            work=list(work),
        )

    def contents(self) -> dict[str, np.ndarray]:
        """Rows of each lane's memory after the jobs so far."""
        lanes = range(self.parameters.lanes)
        return {memory_name(lane): self._contents(self._cache, lane) for lane in lanes}

    def _contents(self, cache: np.ndarray, lane: int) -> np.ndarray:
        p = self.parameters
        group, share = divmod(lane, p.lanes_per_head)
        heads = cache[:, group :: p.groups, share :: p.lanes_per_head]
        # kv head, K or V, chunk, row.
        contents = np.zeros((p.planes * p.rows, payload.words(p.lane.chunk_layout)), np.uint32)
        if heads.any():
            chunks = [chunk_of(heads, chunk, self.sizes) for chunk in range(self.sizes.chunks)]
            rows = np.stack(chunks, axis=2).transpose(1, 0, 2, 3, 4).reshape(-1, p.d)
            contents[: len(rows)] = payload.pack(p.lane.chunk_layout, {"": rows})
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

    def predicted(self, timing: MemoryTiming) -> Prediction:
        """What a core does from reset, if nothing stalls, with memories of this timing."""
        return CorePrediction(self.jobs.parameters, timing).run(self.work)

    def cycle_range(self, outcome: Outcome) -> tuple[int, int]:
        """Exactly the predicted cycles, with pruning and without."""
        cycles = self.predicted(FASTEST).cycles
        return cycles, cycles


def random_jobs(p: TopickCoreParameters, heads: int, rng: np.random.Generator) -> Jobs:
    """Sequences of any length, heads, groups, codes, scales and thresholds; refused jobs between.

    If they are few, the first job has tokens that may be pruned, most of them cached.
    """
    low, high = -(1 << p.bits - 1), (1 << p.bits - 1) - 1
    spread = (high / 2) ** 2 * p.d**0.5
    jobs, left = Jobs(p), heads
    if p.kv_heads < heads <= LONGEST:
        n = min(LONGEST, p.tokens)
        k, v = rng.integers(low, high + 1, (2, p.kv_heads, n, p.d))
        q = rng.integers(low, high + 1, (p.kv_heads, p.d))
        jobs = Jobs(p, (k[:, :-1], v[:, :-1]))
        jobs.add([coded_head(p.lane, row, 8 / spread, 0.03, n) for row in q], k[:, -1], v[:, -1])
        left -= p.kv_heads
    tokens = longest = 0
    while left > 0:
        if sometimes(rng, 0.1):
            jobs.add_refused(*random_refused(p, rng))
            left -= 1
            continue
        if tokens == longest:
            tokens = 0
            longest = min(p.tokens, int(rng.choice([1, 2, 5, 12, LONGEST, p.tokens])))
            count = int(rng.integers(1, p.heads + 1))
            group = int(rng.integers(-(-count // p.kv_heads), count + 1))
            kind = ("extreme", "any scale", "equal", "any", "any", "any")[int(rng.integers(0, 6))]
        new = 1
        most = min(p.block, longest - tokens, left // count)
        if most > 1 and sometimes(rng, 0.6):
            new = int(rng.integers(2, most + 1))
        tokens += new
        kv_heads = -(-count // group)
        k, v = rng.integers(low, high + 1, (2, kv_heads, new, p.d))
        if kind == "extreme":
            k, v = (rng.choice([low, high, 0, -1], k.shape) for _ in range(2))
        elif kind == "equal":
            k[:] = 1
        threshold = float(rng.choice([0.3, 0.1, 0.03, codable(p.lane, 1e-3), 0.0, 0.9]))
        made: list[list[Head]] = [[] for _ in range(new)]
        for number in range(min(count * new, left)):
            q = rng.integers(low, high + 1, p.d) >> rng.integers(0, p.bits)
            if kind == "extreme":
                q = rng.choice([low, high, 0, -1], p.d)
            c = float(rng.choice([0.3, 2.0, 8.0, 64.0])) / spread
            head = coded_head(p.lane, q, c, threshold, tokens - new + 1 + number % new)
            if kind == "any scale":
                codes = rng.integers(0, 1 << p.scale_bits), rng.integers(0, 1 << p.shift_bits)
                head = dataclasses.replace(head, mantissa=int(codes[0]), shift=int(codes[1]))
            made[number % new].append(head)
        kv_heads = -(-len(made[0]) // group)
        k, v = k[:kv_heads], v[:kv_heads]
        if new > 1:
            jobs.add_block(made, k, v, group)
        else:
            jobs.add(made[0], k[:, 0], v[:, 0], group)
        left -= count * new
        if sometimes(rng, 0.02):
            tokens = longest
    return jobs


def random_refused(p: TopickCoreParameters, rng: np.random.Generator) -> tuple[int, ...]:
    """Numbers of a job that does not fit, see :meth:`Jobs.add_refused`."""
    if p.block == 1 or sometimes(rng, 0.5):
        return random_misfit(p, p.tokens, rng)
    heads, group = random_heads(p, rng)
    if sometimes(rng, 0.3):  # more new tokens than there are
        tokens = int(rng.integers(1, p.block))
        return tokens, heads, group, int(rng.integers(tokens + 1, p.block + 1))
    tokens = int(rng.integers(1, p.tokens + 1))
    beyond = range(p.block + 1, 1 << p.block.bit_length())
    return tokens, heads, group, int(rng.choice([0, *beyond]))


def real_jobs(
    p: TopickCoreParameters,
    trace: Trace,
    heads: int,
    rng: np.random.Generator,
    tokens: int | None = None,
    threshold: float = 1e-3,
    layer: int = 0,
) -> tuple[Jobs, list[str]]:
    """Jobs of `heads` heads in all on a layer of the trace: its last tokens, the others cached."""
    rows, notes = rows_of(p, trace, layer)
    q, k, v, scale = rows
    length = k.shape[1]
    kv_heads = len(k)
    group = len(q) // kv_heads
    count = -(-heads // len(q))
    tokens = min(length, p.tokens, tokens or (LONGEST if p.d <= 8 else 200))
    first = max(1, tokens - count + 1)
    begin = length - tokens
    k, v = k[:, begin:], v[:, begin:]
    q = q[:, begin:]
    parts = [scale_for(np.abs(x).max(axis=(1, 2)), p.bits) for x in (k, v)]
    k, v = (
        quantise(x, part[:, None, None], p.bits).astype(np.int64)
        for x, part in zip((k, v), parts, strict=True)
    )
    jobs = Jobs(p, (k[:, : first - 1], v[:, : first - 1]))
    threshold = codable(p.lane, threshold)
    left, done, length = heads, 0, tokens - first + 1

    def head_of(number: int, n: int) -> Head:
        row = q[number, n - 1]
        part = scale_for(np.abs(row).max(), p.bits)
        c = float(part * parts[0][number // group] * scale)
        return coded_head(p.lane, quantise(row, part, p.bits), c, threshold, n)

    while done < count:
        n, some = first + done % length, range(min(len(q), left))
        # Blocks of a prompt and tokens in turn, if the core has blocks.
        new = 1
        if p.block > 1 and len(jobs.work) % 2 == 0:
            new = max(1, min(p.block, length - done % length, left // len(q)))
        made = [[head_of(number, n + token) for number in some] for token in range(new)]
        rows = slice(-(-len(some) // group)), slice(n - 1, n - 1 + new)
        if new > 1:
            jobs.add_block(made, k[rows], v[rows], group)
        else:
            jobs.add(made[0], k[rows][:, 0], v[rows][:, 0], group)
        done, left = done + new, left - new * len(some)
    again = ", repeated" if count > length else ""
    notes.append(
        f"Heads of {first} to {tokens} tokens{again}, quantised to {p.bits} bits; threshold"
        f" {threshold:.2g}."
    )
    return jobs, notes


def rows_of(p: TopickCoreParameters, trace: Trace, layer: int):
    """``q, k, v [head, token, d]`` as float64, as many heads as fit, and the scale of scores."""
    if trace.q is None or trace.k is None or trace.v is None or trace.scale is None:
        name, rows = next(iter(vectors_by_name(trace).items()))
        rows = _fit(np.asarray(rows, np.float64), p.d)[None]
        return (rows, rows, rows, 1 / np.sqrt(p.d)), [f"Heads are rows of {name} with each other."]
    layer %= len(trace.q)
    kv_heads = min(p.kv_heads, trace.k.shape[1])
    group = min(trace.group, p.heads // kv_heads)
    heads = (np.arange(kv_heads)[:, None] * trace.group + np.arange(group)).ravel()
    q = _fit(trace.q[layer, heads].astype(np.float64), p.d)
    k, v = (_fit(x[layer, :kv_heads].astype(np.float64), p.d) for x in (trace.k, trace.v))
    note = f"q, k and v of {len(heads)} query heads of {kv_heads} kv heads"
    return (q, k, v, trace.scale), [f"{note}, cut or filled up to {p.d} elements."]


def _fit(x: np.ndarray, d: int) -> np.ndarray:
    x = x[..., :d]
    return np.concatenate([x, np.zeros((*x.shape[:-1], d - x.shape[-1]))], axis=-1)
