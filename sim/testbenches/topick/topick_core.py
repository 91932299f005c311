"""Testbench of the core: tokens' queries and cache in, sums over the kept tokens out.

A transaction is a head, or a command that is refused. Which tokens are pruned depends on timing,
so no output but the number of beats is known beforehand. The core reports each token's last
decision; from these the bit-exact model computes what the sums must be, and that no token was
pruned wrongly. So any stalls, latency and order of the memories may be used. Where nothing stalls,
the decisions, their order and the cycles are predicted by
:mod:`sim.testbenches.topick.prediction`.
"""

import dataclasses
from typing import Any

import numpy as np

from golden.topick.pe_lane import PeLane
from golden.topick.topick_core import attend, must_keep, read_on, replay, replay_whole
from hw.topick.core_parameters import TopickCoreParameters
from sim.core import payload
from sim.core.stimulus import Mismatch, Stimulus
from sim.testbenches.jobs import JobsTestbench
from sim.testbenches.topick.core_jobs import CoreStimulus, Jobs, first_transactions
from sim.testbenches.topick.core_random import random_jobs, real_jobs
from sim.testbenches.topick.predicted_parts import HeadWork
from sim.testbenches.topick.prediction import Prediction


@dataclasses.dataclass(frozen=True, eq=False)
class HeadDecisions:
    """The core's last decisions on a head's tokens.

    read
        Number of chunks of K read of each.
    kept
        Whether it is kept.
    rank
        Its place in the order of its lane's decisions, from 0 on.
    """

    read: np.ndarray
    kept: np.ndarray
    rank: np.ndarray


class TopickCoreTestbench(JobsTestbench):
    random, real = staticmethod(random_jobs), staticmethod(real_jobs)

    def default_vectors(self, parameters: TopickCoreParameters) -> int:
        return 6 if parameters.d <= 8 else 9

    def mutant_vectors(self, parameters: TopickCoreParameters) -> int:
        return 120 if parameters.d <= 8 else 36

    def compare(
        self, stimulus: CoreStimulus, got: dict, layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """Sums against the sums of the core's own decisions, and no token pruned wrongly."""
        found, decisions = decisions_of(stimulus, got, layouts, cycles_of)
        found = found or mismatches(stimulus, decisions, got, layouts, cycles_of)
        if not found and stimulus.stall == "none" and _drawn(stimulus):
            predicted = stimulus.predicted(stimulus.timings["memory__0"])
            found = unexpected(stimulus, predicted, got, layouts, cycles_of)
            found = found or _seen_wrongly(stimulus, predicted, got, layouts, cycles_of)
        elif not found:
            found = pruned_late(stimulus, decisions)
        if not found and stimulus.jobs.parameters.observe:
            for lane in range(stimulus.jobs.parameters.lanes):
                name = f"observed__{lane}"
                beats = payload.unpack(layouts[name], got[name])
                found += _replayed(stimulus, decisions, lane, beats, cycles_of[name])
        return found


testbench = TopickCoreTestbench()


def _drawn(stimulus: CoreStimulus) -> bool:
    """Whether the memories' latencies can be predicted."""
    timings = stimulus.timings.values()
    return bool(timings) and all(timing.is_drawn for timing in timings)


def decisions_of(
    stimulus: CoreStimulus, got: dict, layouts: dict, cycles_of: dict
) -> tuple[list[Mismatch], list[list[HeadDecisions]]]:
    """The core's decisions on each job's heads, and every way in which their beats are wrong.

    A block of a prompt has no beats: all of its tokens are kept.
    """
    jobs = stimulus.jobs
    work = stimulus.work
    decisions = [
        [HeadDecisions(*np.zeros((3, h.head.tokens), np.int64)) for h in job] for job in work
    ]
    for job, made in zip(work, decisions, strict=True):
        for head, decided in zip(job, made, strict=True):
            if head.whole:
                decided.read[:], decided.kept[:] = jobs.sizes.chunks, 1
    found = _counts(stimulus, got, cycles_of)
    if found:
        return found, decisions
    for lane in range(jobs.parameters.lanes):
        name = f"report__{lane}"
        beats = payload.unpack(layouts[name], got[name])
        at = 0
        first = first_transactions(work)
        for number, job in enumerate(work):
            if not job and lane == 0:
                found += _refused(beats, at, first[number])
                at += 1
            for head in jobs.heads_of(lane, job):
                if head.whole:
                    break
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


def _refused(beats: dict, at: int, transaction: int) -> list[Mismatch]:
    """The report of a refused command: its error, and nothing else."""
    have = {name: int(column[at]) for name, column in beats.items()}
    want = dict.fromkeys(have, 0) | {"error": 1}
    return [
        Mismatch("report__0", transaction, at, name, want[name], have[name])
        for name in have
        if want[name] != have[name]
    ]


def _decided(
    jobs: Jobs, lane: int, head: HeadWork, beats: dict, at: int, decisions: HeadDecisions
) -> list[Mismatch]:
    """Each of the lane's tokens once, its head and the flag of the last; fills `decisions`."""
    p = jobs.parameters
    rows, tokens = len(beats["token"]), beats["token"].astype(np.int64)
    expected = lane % p.lanes_per_head + p.lanes_per_head * np.arange(rows)

    def wrong(field: str, want, have) -> list[Mismatch]:
        return [Mismatch(f"report__{lane}", head.number, at, field, want, have)]

    if (beats["head"] != head.number).any():
        return wrong("head", head.number, str(beats["head"].tolist()))
    if (np.sort(tokens) != expected).any():
        return wrong("token", "each token once", str(np.sort(tokens).tolist()))
    if beats["error"].any():
        return wrong("error", 0, 1)
    if "context" in beats and (beats["context"] != head.context).any():
        return wrong("context", head.context, str(beats["context"].tolist()))
    if (beats["last"] != (np.arange(rows) == rows - 1)).any():
        return wrong("last", rows - 1, str(np.flatnonzero(beats["last"]).tolist()))
    if (beats["chunk"] >= jobs.sizes.chunks).any():
        return wrong("chunk", f"at most {jobs.sizes.chunks - 1}", str(beats["chunk"].tolist()))
    decisions.read[tokens] = beats["chunk"] + 1
    decisions.kept[tokens] = beats["kept"]
    decisions.rank[tokens] = np.arange(rows)
    return []


def sums_of(p: TopickCoreParameters, beats: dict[str, np.ndarray]) -> np.ndarray:
    """Signed sums of unpacked outputs ``o``, and at last ``total``: int64[beats, d + 1]."""
    sums = np.stack([beats[f"o[{n}]"] for n in range(p.d)], axis=1).astype(np.int64)
    sign = 1 << p.probability_bits + p.bits + p.share_bits
    return np.column_stack([(sums ^ sign) - sign, beats["total"].astype(np.int64)])


def mismatches(
    stimulus: CoreStimulus,
    decisions: list[list[HeadDecisions]],
    got: dict,
    layouts: dict,
    cycles_of: dict,
) -> list[Mismatch]:
    """Tokens pruned wrongly, and sums that do not follow from the core's decisions.

    The sums of a context's jobs come in their order; between them may be other contexts' sums.
    """
    jobs = stimulus.jobs
    work = stimulus.work
    beats, cycles = payload.unpack(layouts["o"], got["o"]), cycles_of["o"]
    p = jobs.parameters
    found: list[Mismatch] = []
    sums = sums_of(p, beats)
    context = beats["context"].astype(int) if p.contexts > 1 else np.zeros(len(sums), int)
    at = [np.flatnonzero(context == number).tolist()[::-1] for number in range(p.contexts)]
    for first, job, decided in zip(first_transactions(work), work, decisions, strict=False):
        left = at[job[0].context] if job else []
        mine = [left.pop() for _ in job[: len(left)]]
        numbers, last = beats["head"][mine].astype(int), beats["last"][mine]
        place = {_label(p, work): number for number, work in enumerate(job)}
        tokens = beats["token"][mine].astype(int) if p.block > 1 else 0 * numbers
        labels = list(zip(tokens.tolist(), numbers.tolist(), strict=True))
        if sorted(labels) != sorted(place):
            beat = mine[0] if mine else len(sums)
            found.append(Mismatch("o", first, beat, "head", "each head once", str(labels)))
            return found
        if (last != (np.arange(len(job)) == len(job) - 1)).any():
            what = len(job) - 1, str(np.flatnonzero(last))
            found.append(Mismatch("o", first, mine[0], "last", *what))
        for beat, label in zip(mine, labels, strict=True):
            number = place[label]
            head, made = job[number], decided[number]
            found += _head(jobs, head, made, sums[beat], first + number, beat, int(cycles[beat]))
    return found


def _label(p: TopickCoreParameters, work: HeadWork) -> tuple[int, int]:
    """What an output says whose it is: token and head; 0 and the head of a core without blocks."""
    return (work.head.tokens - 1 if p.block > 1 else 0), work.number


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
        return [Mismatch("report", transaction, beat, "chunk", *what, cycle)]
    pruned = np.flatnonzero(must_keep(head, work.k, sizes) & ~kept)
    if len(pruned):
        what = f"token {pruned[0]} kept", "pruned"
        found.append(Mismatch("report", transaction, beat, "kept", *what, cycle))
    lanes = jobs.parameters.lanes_per_head
    made = attend(head, work.k, work.v, decided.read, kept, sizes, lanes=lanes)
    want = np.append(made.o, made.total)
    differs = np.flatnonzero(want != o)
    if len(differs):
        n = differs[0]
        field = f"o[{n}]" if n < len(made.o) else "total"
        found.append(Mismatch("o", transaction, beat, field, int(want[n]), int(o[n]), cycle))
    return found


def pruned_late(stimulus: CoreStimulus, decisions: list[list[HeadDecisions]]) -> list[Mismatch]:
    """The first token of each head that under any timing is pruned earlier."""
    p, sizes, found = stimulus.jobs.parameters, stimulus.jobs.sizes, []
    options = {"lanes": p.lanes_per_head, "delay": p.decision_delay}
    heads = [
        (first + work.number, work, made)
        for first, *of in zip(
            first_transactions(stimulus.work), stimulus.work, decisions, strict=False
        )
        for work, made in zip(*of, strict=True)
    ]
    for transaction, work, made in heads if p.pruning else []:
        late = read_on(work.head, work.k, made.read, made.kept, made.rank, sizes, **options)
        for token in np.flatnonzero(late)[:1]:
            what = f"token {token} pruned", f"{made.read[token]} chunks read"
            found.append(Mismatch("report", transaction, int(token), "chunk", *what))
    return found


def unexpected(
    stimulus: CoreStimulus, predicted: Prediction, got: dict, layouts: dict, cycles_of: dict
) -> list[Mismatch]:
    """The first decision of each lane that is another than the predicted one, or at another place:
    a token pruned too late or too early; and sums in another order than the predicted one."""
    found = []
    heads = payload.unpack(layouts["o"], got["o"])["head"].astype(int)
    for beat in np.flatnonzero(heads != predicted.heads)[:1]:
        what, cycle = (predicted.heads[beat], int(heads[beat])), int(cycles_of["o"][beat])
        owner = int(stimulus.transaction_of["o"][beat])
        found.append(Mismatch("o", owner, int(beat), "head", *what, cycle))
    for lane, expected in enumerate(predicted.decided):
        name = f"report__{lane}"
        beats = payload.unpack(layouts[name], got[name])
        fields = "head", "token", "chunk", "kept"
        columns = [beats[field].astype(np.int64) for field in fields]
        want = np.array(expected, np.int64).reshape(-1, len(fields)).T
        for beat in np.flatnonzero((want != columns).any(axis=0))[:1]:
            which = int(np.argmax(want[:, beat] != [column[beat] for column in columns]))
            what = int(want[which, beat]), int(columns[which][beat])
            owner, cycle = (int(of[name][beat]) for of in (stimulus.transaction_of, cycles_of))
            found.append(Mismatch(name, owner, int(beat), fields[which], *what, cycle))
    return found


def _seen_wrongly(
    stimulus: CoreStimulus, predicted: Prediction, got: dict, layouts: dict, cycles_of: dict
) -> list[Mismatch]:
    """The first decision of each lane with another denominator than the predicted one."""
    found = []
    for lane, expected in enumerate(predicted.seen if stimulus.jobs.parameters.observe else []):
        name = f"observed__{lane}"
        beats, width = payload.unpack(layouts[name], got[name]), stimulus.jobs.parameters.width
        fields = "tag.token", "tag.chunk", "denominator.known", "denominator.log2"
        *columns, log2 = (beats[field].astype(np.int64) for field in fields)
        columns.append(columns[-1] * ((log2 ^ 1 << width - 1) - (1 << width - 1)))
        want = np.array(expected, np.int64).reshape(-1, len(fields)).T
        common = min(len(log2), want.shape[1])
        for beat in np.flatnonzero((want[:, :common] != np.array(columns)[:, :common]).any(0))[:1]:
            which = int(np.argmax(want[:, beat] != [column[beat] for column in columns]))
            what = int(want[which, beat]), int(columns[which][beat])
            cycle = int(cycles_of[name][beat])
            owner = stimulus.transactions
            found.append(Mismatch(name, owner, int(beat), fields[which], *what, cycle))
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
    model, at, first = PeLane(jobs.sizes), 0, first_transactions(stimulus.work)
    for transaction, job, decided in zip(first, stimulus.work, decisions, strict=False):
        for work in jobs.heads_of(lane, job):
            rows, part = jobs.rows_of(lane, work.head.tokens), slice(share, None, shared)
            if rows == 0:
                continue
            is_newest = (work.head.tokens - 1) % shared == share
            flags = {"newest": is_newest, "first": share == 0}
            if work.whole:
                observed, at = seen[at : at + rows], at + rows
                try:
                    replay_whole(model, rows, observed, **flags)
                except ValueError as error:
                    what = "tag", "the order of requests", str(error)
                    return [Mismatch(name, transaction, at, *what)]
                continue
            number, made = transaction + work.number, decided[work.number]
            head = dataclasses.replace(work.head, tokens=rows, exempt=is_newest)
            count = int(made.read[part].sum())
            observed = seen[at : at + count]
            cycle = int(cycles[min(at, len(cycles) - 1)]) if len(cycles) else None
            try:
                replayed = replay(model, head, work.k[part], observed, jobs.sizes, **flags)
            except ValueError as error:
                return [Mismatch(name, number, at, "tag", "the model's order", str(error), cycle)]
            kept = sorted(decision.token for decision in replayed if decision.kept)
            have = np.flatnonzero(made.kept[part]).tolist()
            if kept != have:
                return [Mismatch(name, number, at, "kept", str(kept), str(have), cycle)]
            at += count
    if at != len(seen):
        return [Mismatch(name, first[-1], at, "beat", "nothing", "a beat", int(cycles[at]))]
    return []
