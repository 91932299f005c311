"""Page and picture of Token-Picker's speed, from measurements."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from golden.evaluation.plots import curves
from golden.evaluation.section import Claim, Section, Table, Verdict

NAME = "topick_speed"
PAPER_SPEEDUP = {3e-4: 2.28, 1e-3: 2.48}
"""Of the paper's two settings, by the threshold that gives up as much perplexity here."""
ESTIMATION, OUT_OF_ORDER = 1.73, 1.32
"""The first of these settings, in steps (Fig. 10 b)."""
CHUNKS, BITS = 3, 12
CLOSE = 0.1


@dataclasses.dataclass(frozen=True)
class JobRun:
    """A job in the RTL.

    cycles
        From the job's offer to its last o.
    lane_cycles
        Of each lane: from the job's offer to the memory's last response.
    decided_cycles
        Of each lane: from the job's offer to its last decision, the end of step 0.
    chunks, keys
        That each lane's memory reads: all, and those of K.
    model_keys, model_values
        Chunks that the algorithm reads in the same order of arrivals; 0 without pruning.
    waiting
        Cycles of each lane if it waited for every further chunk of a key: calculated, with one lane
        a head.
    """

    cycles: int
    lane_cycles: list[int]
    decided_cycles: list[int]
    chunks: list[int]
    keys: list[int]
    model_keys: int = 0
    model_values: int = 0
    waiting: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Jobs of one length on a core, one for each layer of the trace.

    source
        Model, layers and text of the trace.
    heads, kv_heads
        Of a job.
    tokens
        Of the sequence, the new one included.
    memory
        Cycles from a request to its response.
    """

    source: str
    lanes: int
    lanes_per_head: int
    entries: int
    d: int
    buffer_tokens: int
    pruning: bool
    heads: int
    kv_heads: int
    tokens: int
    threshold: float
    memory: int
    jobs: list[JobRun]

    @property
    def cycles(self) -> int:
        return sum(job.cycles for job in self.jobs)

    @property
    def lane_cycles(self) -> int:
        """Sum of the lanes' own cycles."""
        return sum(sum(job.lane_cycles) for job in self.jobs)

    @property
    def chunks(self) -> int:
        return sum(sum(job.chunks) for job in self.jobs)

    @property
    def keys(self) -> int:
        return sum(sum(job.keys) for job in self.jobs)

    @property
    def model(self) -> tuple[int, int]:
        """Chunks of K and of V that the algorithm reads."""
        return tuple(
            sum(getattr(job, f"model_{x}") for job in self.jobs) for x in ("keys", "values")
        )

    @property
    def everything(self) -> int:
        """Chunks of K, and as many of V."""
        return CHUNKS * self.tokens * self.heads * len(self.jobs)

    @property
    def use(self) -> float:
        """Chunks read in each cycle of a lane, until the slowest lane has ended."""
        return self.chunks / self.cycles / self.lanes

    @property
    def own_use(self) -> float:
        """Chunks read in each cycle of a lane, until it has ended."""
        return self.chunks / self.lane_cycles

    @property
    def head_cycles(self) -> float:
        """Mean cycles of step 0 of a head in its lanes."""
        groups = self.lanes // self.lanes_per_head
        last = sum(
            max(job.decided_cycles[g * self.lanes_per_head :][: self.lanes_per_head])
            for job in self.jobs
            for g in range(groups)
        )
        return last / self.heads / len(self.jobs)


def read(path: Path) -> list[Measured]:
    """Measurements as :func:`text` wrote them."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Measured(**row | {"jobs": [JobRun(**job) for job in row["jobs"]]}) for row in rows]


def text(measured: Sequence[Measured]) -> str:
    """JSON with a measurement in each line."""
    return "[\n" + ",\n".join(json.dumps(dataclasses.asdict(m)) for m in measured) + "\n]\n"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A core with pruning, and the one that reads everything, of as many lanes."""

    base: Measured
    core: Measured

    @property
    def speedup(self) -> float:
        return self.base.cycles / self.core.cycles

    @property
    def own(self) -> float:
        """By the lanes' own cycles."""
        return self.base.lane_cycles / self.core.lane_cycles

    @property
    def bound(self) -> float:
        """How much faster than lanes that read everything without waiting once."""
        return 2 * self.core.everything / self.core.lanes / self.core.cycles

    def estimation(self, own: bool = False) -> float:
        """With all of K read, and of V what the core reads.

        The RTL's cycles without pruning, less one for each chunk of V that is not read.
        """
        cycles = 0
        for base, core in zip(self.base.jobs, self.core.jobs, strict=True):
            values = np.subtract(core.chunks, core.keys)
            saved = np.subtract(base.chunks, base.keys) - values
            cycles += (
                np.subtract(base.lane_cycles, saved).sum() if own else base.cycles - saved.min()
            )
        return float((self.base.lane_cycles if own else self.base.cycles) / cycles)

    @property
    def waiting(self) -> float:
        """In order, and waiting for each further chunk: calculated."""
        return self.base.cycles / sum(max(job.waiting) for job in self.core.jobs)


class Results:
    """Measurements, by what was measured."""

    def __init__(self, measured: Sequence[Measured]):
        self.measured = list(measured)
        pruned = [m for m in self.measured if m.pruning]
        self.default = max(m.entries for m in pruned)
        self.threshold = max(m.threshold for m in pruned)
        self.thresholds = sorted({m.threshold for m in pruned}, reverse=True)
        self.tokens = sorted({m.tokens for m in pruned})
        self.lanes_per_head = sorted({m.lanes_per_head for m in pruned})
        self.ds = sorted({m.d for m in pruned})

    def pairs(self, **fields) -> list[Pair]:
        """Of the default slots and threshold and without buffers, if `fields` do not say else."""
        wanted = {"entries": self.default, "threshold": self.threshold, "buffer_tokens": 0}
        wanted |= {"pruning": True, "d": self.ds[0]} | fields
        found = []
        for m in self.measured:
            if all(getattr(m, name) == value for name, value in wanted.items()):
                same = "lanes", "lanes_per_head", "d", "tokens"
                found += [
                    Pair(base, m)
                    for base in self.measured
                    if not base.pruning and all(getattr(base, n) == getattr(m, n) for n in same)
                ]
        return found


def summary(m: Measured) -> str:
    """A line for the terminal."""
    cycles = ", ".join(str(job.cycles) for job in m.jobs)
    what = f"threshold {m.threshold:g}, " if m.pruning else ""
    return f"  {m.tokens} tokens, {what}cycles {cycles}; {m.own_use:.2f} chunks a lane and cycle"


def section(measured: Sequence[Measured]) -> Section:
    """The page; its pictures lie beside it."""
    r = Results(measured)
    first = measured[0]
    return Section(
        "ToPick: speed (Fig. 10 b)",
        f"Cycles of the compiled RTL of `topick.topick_core`, every output checked. A job is one"
        f" token of a layer: {first.heads} query heads, in groups that share {first.kv_heads} kv"
        f" heads. {sources(r)} Queries, keys and values are quantised to {BITS} bits, for each head"
        " alone."
        + " For twice the d, each head is joined to the next one, so that a score is the sum of"
        " two heads' scores divided by the square root of two."
        * (len(r.ds) > 1)
        + " A lane has a memory port of its own, which takes a request for a chunk of d elements"
        f" of 4 bits in each cycle and answers {first.memory} cycles later. The *baseline* is the"
        " core with `pruning=False`, which reads every chunk of K and V in order. Each speed-up is"
        " the baseline's cycles, of as many lanes, divided by those of the core, summed over the"
        " layers. `python -m sim pruning -o FOLDER --longer FILE` writes this page; the longer"
        " trace is written by `python -m golden trace --tokens 1024 -o FILE`.",
        claims(r),
        [speed_table(r), steps_table(r), slots_table(r), traffic_table(r)],
        [(NAME, "speed-up against the number of tokens", picture(r))],
    )


def sources(r: Results) -> str:
    """Which numbers of tokens are of which text."""
    named = {m.tokens: m.source for m in r.measured}
    parts = []
    for source in dict.fromkeys(named.values()):
        tokens = [n for n in sorted(named) if named[n] == source]
        parts.append(f"Up to {tokens[-1]} tokens: {source}.")
    return " ".join(parts)


def close(ours: float, paper: float) -> bool:
    """Reaches the paper's figure, or misses it by a tenth at most."""
    return ours > (1 - CLOSE) * paper


def listed(pairs: Sequence[Pair], value) -> str:
    return ", ".join(
        f"{value(pair):.2f}× at {pair.core.tokens} tokens, d = {pair.core.d}" for pair in pairs
    )


def claims(r: Results) -> list[Claim]:
    """At the longest contexts, with the fewest lanes a head, and d as in the trace and doubled."""
    fewest, most = r.lanes_per_head[0], r.lanes_per_head[-1]
    made = []
    for threshold, paper in PAPER_SPEEDUP.items():
        pairs = ends(r, threshold)
        if not pairs:
            continue
        milder = threshold == min(PAPER_SPEEDUP)
        made.append(
            Claim(
                f"{paper}× as fast as reading all of K and V"
                + (" (ToPick)" if milder else " (ToPick-0.3)"),
                f"{listed(pairs, lambda pair: pair.speedup)}; by the lanes' own cycles "
                + ", ".join(f"{pair.own:.2f}×" for pair in pairs),
                Verdict.of(*(close(pair.speedup, paper) for pair in pairs)),
                f"threshold {threshold:g}, {fewest} lane a head; the paper has 1024 and 2048"
                " tokens. A job ends with its slowest lane, whose kv head is pruned least",
            )
        )
        if milder:
            steps = [pair.speedup / pair.estimation() for pair in pairs]
            made += [
                Claim(
                    f"{ESTIMATION}× by estimation alone",
                    listed(pairs, Pair.estimation),
                    Verdict.of(*(close(pair.estimation(), ESTIMATION) for pair in pairs)),
                    "all of K is read in order, of V what is kept: the baseline's cycles, less one"
                    " for each chunk of V that the core does not read",
                ),
                Claim(
                    f"another {OUT_OF_ORDER}× by keys out of order",
                    ", ".join(f"{step:.2f}×" for step in steps),
                    Verdict.of(*(close(step, OUT_OF_ORDER) for step in steps)),
                    "the same jobs in the core. With a scoreboard of 32 entries it is less, see"
                    " below",
                ),
            ]
    shared = r.pairs(lanes_per_head=most)
    made.append(
        Claim(
            "16 lanes fully utilise the memory's bandwidth (5.1.2)",
            f"with {most} lanes on one head: "
            + ", ".join(
                f"{p.core.use:.2f} at {p.core.tokens} tokens ({p.speedup:.2f}×)" for p in shared
            ),
            Verdict.of(*(p.core.use > 1 - CLOSE for p in shared)),
            f"a lane of {most} has 1/{most} of the tokens: it has requested all first chunks before"
            " the first decision, and then waits for the memory twice, for a few tokens. The"
            f" {most} decisions a cycle also use an older denominator. Lanes that have a head each"
            " do not wait",
        )
    )
    return made


def ends(r: Results, threshold: float) -> list[Pair]:
    """The two longest contexts, and the longest one of the doubled d."""
    fewest = r.lanes_per_head[0]
    own = r.pairs(lanes_per_head=fewest, threshold=threshold)[-2:]
    doubled = r.pairs(lanes_per_head=fewest, threshold=threshold, d=r.ds[-1])[-1:]
    return own + (doubled if len(r.ds) > 1 else [])


def speed_table(r: Results) -> Table:
    rows = []
    for d in r.ds:
        for lanes in r.lanes_per_head:
            for pair in r.pairs(lanes_per_head=lanes, d=d):
                base, core = pair.base, pair.core
                rows.append(
                    [
                        f"{lanes}, of {core.lanes}",
                        f"{d}",
                        f"{core.tokens}",
                        f"{base.jobs[0].cycles}",
                        ", ".join(str(job.cycles) for job in core.jobs),
                        f"{pair.speedup:.2f}",
                        f"{pair.own:.2f}",
                        f"{pair.bound:.2f}",
                        f"{core.use:.2f}",
                        f"{core.own_use:.2f}",
                        f"{core.head_cycles:.0f} of {CHUNKS * core.tokens / lanes:.0f}",
                    ]
                )
    return Table(
        f"Threshold {r.threshold:g}, {r.default} slots. A job ends with its slowest lane. *Own*:"
        " speed-up and use (chunks read a cycle) with each lane counted until its own last chunk,"
        " so the mean over heads that follow each other without end. *Without waiting*: compared"
        " with lanes that read all of K and V at a chunk a cycle. *Step 0*: cycles a head until all"
        " tokens are decided, of the chunks of K in a lane",
        [
            "lanes a head",
            "d",
            "tokens",
            "baseline, cycles",
            "core, cycles by layer",
            "speed-up",
            "own",
            "without waiting",
            "use",
            "own use",
            "step 0",
        ],
        rows,
    )


def steps_table(r: Results) -> Table:
    rows = []
    fewest = r.lanes_per_head[0]
    for d in r.ds:
        for threshold in r.thresholds:
            for pair in r.pairs(lanes_per_head=fewest, d=d, threshold=threshold):
                core, estimation, own = pair.core, pair.estimation(), pair.estimation(own=True)
                waiting = f"{pair.waiting:.2f}" if fewest == 1 else ""
                speeds = [f"{pair.speedup:.2f}", f"{pair.own:.2f}"]
                steps = [f"{pair.speedup / estimation:.2f}", f"{pair.own / own:.2f}"]
                cells = [f"{estimation:.2f}", f"{own:.2f}", *steps, *speeds, waiting]
                rows.append([f"{threshold:g}", f"{d}", f"{core.tokens}", *cells])
    return Table(
        f"Steps of Fig. 10 (b), {fewest} lane a head, {r.default} slots. *Estimation*: all of K in"
        " order, of V what is kept; the RTL's baseline less a cycle for each chunk of V not read."
        " *Out of order*: what the core in RTL adds; *both* is the core. *Waiting*: keys in order,"
        " with a wait for each further chunk, calculated from the algorithm's reads",
        [
            "threshold",
            "d",
            "tokens",
            "estimation",
            "own",
            "out of order",
            "own",
            "both",
            "own",
            "waiting",
        ],
        rows,
    )


def slots_table(r: Results) -> Table:
    rows = []
    for lanes in r.lanes_per_head:
        fewer = {p.core.tokens: p for p in r.pairs(lanes_per_head=lanes, entries=32)}
        for pair in r.pairs(lanes_per_head=lanes):
            if small := fewer.get(pair.core.tokens):
                cells = [small.speedup, pair.speedup, small.core.own_use, pair.core.own_use]
                rows.append([f"{lanes}", f"{pair.core.tokens}", *(f"{x:.2f}" for x in cells)])
    columns = ["speed-up, 32", f"{r.default}", "own use, 32", f"{r.default}"]
    return Table(
        f"Slots of a lane's scoreboard (the paper: 32), d = {r.ds[0]}, threshold {r.threshold:g}. A"
        " token keeps its slot for the memory's latency and 10 cycles",
        ["lanes a head", "tokens", *columns],
        rows,
    )


def traffic_table(r: Results) -> Table:
    rows = []
    sizes = sorted({m.buffer_tokens for m in r.measured})
    for lanes in r.lanes_per_head:
        for kept in sizes:
            for pair in r.pairs(lanes_per_head=lanes, buffer_tokens=kept):
                core = pair.core
                keys, values = core.keys, core.chunks - core.keys
                model_keys, model_values = core.model
                off = core.chunks / (model_keys + model_values) - 1
                fewer = [core.everything / x for x in (keys, values)]
                rows.append(
                    [
                        f"{lanes}",
                        f"{kept}" if kept else "",
                        f"{core.tokens}",
                        f"{keys}",
                        f"{model_keys}",
                        f"{values}",
                        f"{model_values}",
                        f"{off:+.1%}",
                        *(f"{x:.2f}" for x in fewer),
                        f"{2 * core.everything / core.chunks:.2f}",
                        f"{pair.speedup:.2f}",
                    ]
                )
    return Table(
        f"Chunks that the memories have read, and those of the algorithm in the core's arithmetic,"
        " with a memory of fixed latency and a denominator without delay; how many times fewer than"
        " all query heads' K, V and both. *Buffered*: tokens whose chunks are kept for the other"
        f" query heads of the kv head. d = {r.ds[0]}, threshold {r.threshold:g}",
        [
            "lanes a head",
            "buffered",
            "tokens",
            "K",
            "algorithm",
            "V",
            "algorithm",
            "difference",
            "K, times fewer",
            "V",
            "both",
            "speed-up",
        ],
        rows,
    )


def picture(r: Results):
    """Speed-up against tokens: a curve for each number of lanes a head."""
    lines = {}
    for lanes in r.lanes_per_head:
        name = f"{lanes} lane{'s' * (lanes > 1)} a head"
        lines[name] = [pair.speedup for pair in r.pairs(lanes_per_head=lanes)]
        if lanes == r.lanes_per_head[0]:
            lines[f"{name}, mean of its lanes"] = [p.own for p in r.pairs(lanes_per_head=lanes)]
            lines[f"{name}, d = {r.ds[-1]}"] = [
                pair.speedup for pair in r.pairs(lanes_per_head=lanes, d=r.ds[-1])
            ]
    return curves(
        r.tokens,
        lines,
        "tokens",
        "times as fast as reading all of K and V",
        line=("break-even", 1),
        log_x=True,
    )
