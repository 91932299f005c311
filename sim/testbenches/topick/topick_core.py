"""Testbench of the core: tokens' queries and cache in, sums over the kept tokens out.

A transaction is a head. Which tokens are pruned depends on timing, so no output but the number of
beats is known beforehand. The core reports each token's last decision; from these the bit-exact
model computes what the sums must be, and that no token was pruned wrongly. So any stalls, latency
and order of the memories may be used.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.pe_lane import Head, LaneSizes, PeLane, chunk_of
from golden.topick.topick_core import attend, must_keep, replay
from golden.trace import Trace
from hw.topick.core_parameters import TopickCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Mismatch, Stimulus
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import sometimes
from sim.testbenches.topick.pe_lane import codable, coded_head, sizes_of

LONGEST = 40  # tokens of most random sequences


@dataclasses.dataclass(frozen=True, eq=False)
class HeadWork:
    """A head of a job: its codes, and those of the kv head's rows, ``[tokens, d]``."""

    number: int
    kv_head: int
    head: Head
    k: np.ndarray
    v: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class HeadDecisions:
    """The core's decisions on a head's tokens: chunks of K read of each, and whether it is kept."""

    read: np.ndarray
    kept: np.ndarray


class Jobs:
    """Jobs for the core, one after the other, and what their outputs must be.

    cached
        ``k, v`` codes ``[kv heads, tokens, d]`` that are in the memories from the beginning.
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
        self._fields: dict[str, list[int]] = {"tokens": [], "heads": [], "group": []}
        self._fields["threshold"] = []
        self._kv: list[np.ndarray] = []
        self._q: list[Head] = []
        self.work: list[list[HeadWork]] = []

    def add(
        self, heads: Sequence[Head], k: np.ndarray, v: np.ndarray, group: int | None = None
    ) -> list[HeadWork]:
        """A job: its heads, of as many tokens each; codes of the new token's K and V [kv heads, d].

        The heads' thresholds are that of the first. With another `group` than len(heads) / len(k)
        the last group is smaller.
        """
        p, first = self.parameters, heads[0]
        tokens, group = first.tokens, group or len(heads) // len(k)
        # Codes of another sequence must stay as the heads of earlier jobs saw them.
        self._cache = self._cache.copy() if tokens == 1 else self._cache
        self._cache[:, : len(k), tokens - 1] = k, v
        for name, value in zip(
            self._fields, (tokens, len(heads), group, first.threshold), strict=True
        ):
            self._fields[name].append(value)
        self._kv.append(np.stack([k, v], axis=1).reshape(-1, p.d))
        self._q += heads
        self.work.append([])
        for number, head in enumerate(heads):
            rows = self._cache[:, number // group, :tokens]
            coded = dataclasses.replace(head, threshold=first.threshold, exempt=True)
            self.work[-1].append(HeadWork(number, number // group, coded, *rows))
        return self.work[-1]

    def rows_of(self, lane: int, tokens: int) -> int:
        """Tokens of a head of that many in a lane."""
        shared = self.parameters.lanes_per_head
        return (tokens + shared - 1 - lane % shared) // shared

    def heads_of(self, lane: int, job: list[HeadWork]) -> list[HeadWork]:
        """The heads of a job that the lane takes part in, in its order."""
        p = self.parameters
        return [h for h in job if h.kv_head % p.groups == lane // p.lanes_per_head]

    def stimulus(self, notes: list[str], since: int = 0) -> "CoreStimulus":
        """All jobs, or those from number `since` on, for a core that has done the others."""
        p, work = self.parameters, self.work[since:]
        counts = [len(job) for job in work]
        q = self._q[sum(len(job) for job in self.work[:since]) :]
        transaction = np.concatenate([[0], np.cumsum(counts)])
        outputs, owners, room = {}, {}, {}
        for lane in range(p.lanes):
            beats = [
                (transaction[number] + head.number, self.rows_of(lane, head.head.tokens))
                for number, job in enumerate(work)
                for head in self.heads_of(lane, job)
            ]
            owner = np.repeat(*np.array(beats or [(0, 0)], np.int64).T)
            outputs[f"decided__{lane}"] = np.zeros(
                (len(owner), payload.words(p.decided_layout)), np.uint32
            )
            owners[f"decided__{lane}"] = owner
            if p.observe:
                name = f"observed__{lane}"
                outputs[name] = np.zeros((0, payload.words(p.lane.observed_layout)), np.uint32)
                owners[name] = owner[:0]
                room[name] = len(owner) * self.sizes.chunks
        outputs["o"] = np.zeros((sum(counts), payload.words(p.output_layout)), np.uint32)
        owners["o"] = np.arange(sum(counts))
        return CoreStimulus(
            inputs={
                "job": payload.pack(
                    p.job_layout, {n: np.array(v[since:]) for n, v in self._fields.items()}
                ),
                "kv": payload.pack(p.row_layout, {"": np.concatenate(self._kv[since:])}),
                "q": payload.pack(
                    p.query_layout,
                    {
                        "q": np.array([head.q for head in q]),
                        "mantissa": np.array([head.mantissa for head in q]),
                        "shift": np.array([head.shift for head in q]),
                    },
                ),
            },
            outputs=outputs,
            transaction_of=owners,
            transactions=sum(counts),
            cycles=sum(p.cycles(job[0].head.tokens, len(job), job[-1].kv_head + 1) for job in work),
            cycles_exact=False,
            notes=notes,
            memories=self.memories(),
            room=room,
            jobs=self,
            work=list(work),
        )

    def memories(self) -> dict[str, Memory]:
        """Each lane's memory before the first job."""
        p = self.parameters
        found = {}
        for lane in range(p.lanes):
            group, share = divmod(lane, p.lanes_per_head)
            heads = self._first[:, group :: p.groups, share :: p.lanes_per_head]
            # kv head, K or V, chunk, row.
            contents = np.zeros((p.planes * p.rows, payload.words(p.lane.chunk_layout)), np.uint32)
            if heads.any():
                chunks = [chunk_of(heads, chunk, self.sizes) for chunk in range(self.sizes.chunks)]
                rows = np.stack(chunks, axis=2).transpose(1, 0, 2, 3, 4).reshape(-1, p.d)
                contents[: len(rows)] = payload.pack(p.lane.chunk_layout, {"": rows})
            streams = f"request__{lane}", f"response__{lane}"
            found[f"lane_{lane}"] = Memory(
                contents,
                *streams,
                write="write",
                write_data="data",
                in_order=not p.pruning,
            )
        return found


@dataclasses.dataclass
class CoreStimulus(Stimulus):
    """With the jobs whose outputs are checked.

    jobs
        :class:`Jobs`.
    work
        Those of this stimulus.
    """

    jobs: Any = None
    work: list[list[HeadWork]] = dataclasses.field(default_factory=list)


class TopickCoreTestbench:
    def default_vectors(self, parameters: TopickCoreParameters) -> int:
        return 30 if parameters.d <= 8 else 9

    def stimulus(
        self, parameters: TopickCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return random_jobs(parameters, vectors, rng).stimulus([])
        jobs, notes = real_jobs(parameters, trace, vectors, rng)
        return jobs.stimulus(notes)

    def compare(
        self, stimulus: CoreStimulus, got: dict, layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """Sums against those of the core's own decisions, and no token pruned wrongly."""
        found, decisions = decisions_of(stimulus, got, layouts, cycles_of)
        found = found or mismatches(stimulus, decisions, got, layouts, cycles_of)
        if not found and stimulus.jobs.parameters.observe:
            for lane in range(stimulus.jobs.parameters.lanes):
                name = f"observed__{lane}"
                beats = payload.unpack(layouts[name], got[name])
                found += _replayed(stimulus, decisions, lane, beats, cycles_of[name])
        return found


testbench = TopickCoreTestbench()


def decisions_of(
    stimulus: CoreStimulus, got: dict, layouts: dict, cycles_of: dict
) -> tuple[list[Mismatch], list[list[HeadDecisions]]]:
    """The core's decisions on each job's heads, and every way in which their beats are wrong."""
    jobs = stimulus.jobs
    work = stimulus.work
    decisions = [
        [HeadDecisions(*np.zeros((2, h.head.tokens), np.int64)) for h in job] for job in work
    ]
    found = _counts(stimulus, got, cycles_of)
    if found:
        return found, decisions
    for lane in range(jobs.parameters.lanes):
        name = f"decided__{lane}"
        beats = payload.unpack(layouts[name], got[name])
        at = 0
        for number, job in enumerate(work):
            for head in jobs.heads_of(lane, job):
                rows = jobs.rows_of(lane, head.head.tokens)
                part = {key: column[at : at + rows] for key, column in beats.items()}
                found += _decided(jobs, lane, head, part, at, decisions[number][head.number])
                at += rows
    return found, decisions


def _counts(stimulus: Stimulus, got: dict, cycles_of: dict) -> list[Mismatch]:
    """Missing and extra beats."""
    found = []
    for name, owners in stimulus.transaction_of.items():
        if name in stimulus.room:
            continue
        expected, received = len(owners), len(got[name])
        if received < expected:
            owner = int(owners[received])
            found.append(Mismatch(name, owner, received, "beat", "a beat", "nothing"))
        elif received > expected:
            cycle = int(cycles_of[name][expected])
            number = stimulus.transactions
            found.append(Mismatch(name, number, expected, "beat", "nothing", "a beat", cycle))
    return found


def _decided(
    jobs: Jobs, lane: int, head: HeadWork, beats: dict, at: int, decisions: HeadDecisions
) -> list[Mismatch]:
    """Each of the lane's tokens once, its head and the flag of the last; fills `decisions`."""
    p = jobs.parameters
    rows, tokens = len(beats["token"]), beats["token"].astype(np.int64)
    expected = lane % p.lanes_per_head + p.lanes_per_head * np.arange(rows)

    def wrong(field: str, want, have) -> list[Mismatch]:
        return [Mismatch(f"decided__{lane}", head.number, at, field, want, have)]

    if (beats["head"] != head.number).any():
        return wrong("head", head.number, str(beats["head"].tolist()))
    if (np.sort(tokens) != expected).any():
        return wrong("token", "each token once", str(np.sort(tokens).tolist()))
    if (beats["last"] != (np.arange(rows) == rows - 1)).any():
        return wrong("last", rows - 1, str(np.flatnonzero(beats["last"]).tolist()))
    decisions.read[tokens] = beats["chunk"] + 1
    decisions.kept[tokens] = beats["kept"]
    return []


def mismatches(
    stimulus: CoreStimulus,
    decisions: list[list[HeadDecisions]],
    got: dict,
    layouts: dict,
    cycles_of: dict,
) -> list[Mismatch]:
    """Tokens pruned wrongly, and sums that are not those of the core's decisions."""
    jobs = stimulus.jobs
    work = stimulus.work
    beats, cycles = payload.unpack(layouts["o"], got["o"]), cycles_of["o"]
    p = jobs.parameters
    found: list[Mismatch] = []
    sums = np.stack([beats[f"o[{n}]"] for n in range(p.d)], axis=1)
    width = 2 * p.bits + p.share_bits
    sums = (sums.astype(np.int64) ^ (1 << width - 1)) - (1 << width - 1)
    at = 0
    for job, decided in zip(work, decisions, strict=True):
        numbers = beats["head"][at : at + len(job)].astype(int)
        last = beats["last"][at : at + len(job)]
        if sorted(numbers) != list(range(len(job))):
            found.append(Mismatch("o", at, at, "head", "each head once", str(numbers.tolist())))
            return found
        if (last != (np.arange(len(job)) == len(job) - 1)).any():
            found.append(Mismatch("o", at, at, "last", len(job) - 1, str(np.flatnonzero(last))))
        for beat, number in enumerate(numbers, at):
            head, made = job[number], decided[number]
            found += _head(jobs, head, made, sums[beat], at + number, beat, int(cycles[beat]))
        at += len(job)
    return found


def _head(
    jobs: Jobs, work: HeadWork, decided: HeadDecisions, o, transaction: int, beat: int, cycle: int
) -> list[Mismatch]:
    head, kept, sizes = work.head, decided.kept != 0, jobs.sizes
    if not jobs.parameters.pruning:
        head = dataclasses.replace(head, threshold=(1 << sizes.threshold_bits) - 1)
    found = []
    what: tuple[Any, Any]
    unfinished = np.flatnonzero(kept & (decided.read < sizes.chunks))
    if len(unfinished):
        what = f"token {unfinished[0]} of all chunks", int(decided.read[unfinished[0]])
        found.append(Mismatch("decided", transaction, beat, "chunk", *what, cycle))
    pruned = np.flatnonzero(must_keep(head, work.k, sizes) & ~kept)
    if len(pruned):
        what = f"token {pruned[0]} kept", "pruned"
        found.append(Mismatch("decided", transaction, beat, "kept", *what, cycle))
    lanes = jobs.parameters.lanes_per_head
    want = attend(head, work.k, work.v, decided.read, kept, sizes, lanes=lanes).o
    differs = np.flatnonzero(want != o)
    if len(differs):
        n = differs[0]
        found.append(Mismatch("o", transaction, beat, f"o[{n}]", int(want[n]), int(o[n]), cycle))
    return found


def _replayed(
    stimulus: CoreStimulus, decisions: list[list[HeadDecisions]], lane: int, beats: dict, cycles
) -> list[Mismatch]:
    """Decisions of a lane that its bit-exact model, with the denominators that it saw, does not
    make; the model goes on from one head to the next, as its slots do."""
    jobs, name = stimulus.jobs, f"observed__{lane}"
    shared = jobs.parameters.lanes_per_head
    share, width = lane % shared, jobs.parameters.width
    log2 = beats["denominator.log2"].astype(np.int64)
    columns = [beats[f"tag.{field}"].astype(int) for field in ("token", "chunk", "slot")]
    columns += [beats["denominator.known"] != 0, (log2 ^ 1 << width - 1) - (1 << width - 1)]
    seen = list(zip(*(column.tolist() for column in columns), strict=True))
    model, at, transaction = PeLane(jobs.sizes), 0, 0
    for job, decided in zip(stimulus.work, decisions, strict=True):
        for work in jobs.heads_of(lane, job):
            rows, part = jobs.rows_of(lane, work.head.tokens), slice(share, None, shared)
            if rows == 0:
                continue
            number, made = transaction + work.number, decided[work.number]
            is_newest = (work.head.tokens - 1) % shared == share
            head = dataclasses.replace(work.head, tokens=rows, exempt=is_newest)
            count = int(made.read[part].sum())
            observed = seen[at : at + count]
            cycle = int(cycles[min(at, len(cycles) - 1)]) if len(cycles) else None
            flags = {"newest": is_newest, "first": share == 0}
            try:
                replayed = replay(model, head, work.k[part], observed, jobs.sizes, **flags)
            except ValueError as error:
                return [Mismatch(name, number, at, "tag", "the model's order", str(error), cycle)]
            kept = sorted(decision.token for decision in replayed if decision.kept)
            have = np.flatnonzero(made.kept[part]).tolist()
            if kept != have:
                return [Mismatch(name, number, at, "kept", str(kept), str(have), cycle)]
            at += count
        transaction += len(job)
    if at != len(seen):
        return [Mismatch(name, transaction, at, "beat", "nothing", "a beat", int(cycles[at]))]
    return []


# --- jobs ---


def random_jobs(p: TopickCoreParameters, heads: int, rng: np.random.Generator) -> Jobs:
    """Sequences of any length, heads, groups, codes, scales and thresholds."""
    jobs = Jobs(p)
    left, tokens, longest = heads, 0, 0
    low, high = -(1 << p.bits - 1), (1 << p.bits - 1) - 1
    while left > 0:
        if tokens == longest:
            tokens = 0
            longest = min(p.tokens, int(rng.choice([1, 2, 5, 12, LONGEST, p.tokens])))
            count = int(rng.integers(1, p.heads + 1))
            group = int(rng.integers(-(-count // p.kv_heads), count + 1))
            kind = ("extreme", "any scale", "equal", "any", "any", "any")[int(rng.integers(0, 6))]
        tokens += 1
        kv_heads = -(-count // group)
        k, v = rng.integers(low, high + 1, (2, kv_heads, p.d))
        if kind == "extreme":
            k, v = (rng.choice([low, high, 0, -1], k.shape) for _ in range(2))
        elif kind == "equal":
            k[:] = 1
        threshold = float(rng.choice([0.3, 0.1, 0.03, codable(p.lane, 1e-3), 0.0, 0.9]))
        spread = (high / 2) ** 2 * p.d**0.5
        made = []
        for _ in range(min(count, left)):
            q = rng.integers(low, high + 1, p.d) >> rng.integers(0, p.bits)
            if kind == "extreme":
                q = rng.choice([low, high, 0, -1], p.d)
            c = float(rng.choice([0.3, 2.0, 8.0, 64.0])) / spread
            head = coded_head(p.lane, q, c, threshold, tokens)
            if kind == "any scale":
                codes = rng.integers(0, 1 << p.scale_bits), rng.integers(0, 1 << p.shift_bits)
                head = dataclasses.replace(head, mantissa=int(codes[0]), shift=int(codes[1]))
            made.append(head)
        kv_heads = -(-len(made) // group)
        jobs.add(made, k[:kv_heads], v[:kv_heads], group)
        left -= count
        if sometimes(rng, 0.02):
            tokens = longest
    return jobs


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
    left = heads
    for job in range(count):
        n = first + job % (tokens - first + 1)
        made = []
        for number in range(min(len(q), left)):
            row = q[number, n - 1]
            part = scale_for(np.abs(row).max(), p.bits)
            c = float(part * parts[0][number // group] * scale)
            codes = quantise(row, part, p.bits)
            made.append(coded_head(p.lane, codes, c, threshold, n))
        rows = slice(-(-len(made) // group)), n - 1
        jobs.add(made, k[rows], v[rows], group)
        left -= len(made)
    again = ", repeated" if count > tokens - first + 1 else ""
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
