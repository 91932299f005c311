"""Page and picture of Token-Picker's speed, from measurements."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from golden.evaluation.plots import curves
from golden.studies.study import CLOSE, Claim, Picture, Study, Table, Verdict
from sim.studies.topick.energy import energy_claims, energy_table, kept_parts
from sim.studies.topick.measured import BITS, Measured, Pair, Results, text
from sim.studies.topick.paper import paper_claims
from sim.studies.topick.together import Together, lines, together_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "topick_speed"
PAPER_SPEEDUP = {3e-4: 2.28, 1e-3: 2.48}
"""Speedup in the paper's two settings, by the threshold that gives up as much perplexity here."""
ESTIMATION, OUT_OF_ORDER = 1.73, 1.32
"""The first of these settings, in steps (Fig. 10 b)."""
FEWER = 32
"""Slots of the paper's scoreboard."""


@dataclasses.dataclass(frozen=True)
class SpeedStudy(Study):
    """The study, whose JSON has a measurement in each line."""

    measured: Sequence[Measured] = ()
    together: Sequence[Together] = ()

    def json(self) -> str:
        content = json.dumps(self.content())[:-1]
        rows = f'"measured": {text(self.measured).rstrip()}, "together": {lines(self.together)}'
        return f"{content}, {rows}}}\n"


def study(measured: Sequence[Measured], together: Sequence[Together] = ()) -> SpeedStudy:
    """The study of measurements, and of several texts at once."""
    r = Results(measured)
    first = measured[0]
    pairs = {threshold: ends(r, threshold) for threshold in PAPER_SPEEDUP}
    parts = kept_parts()
    return SpeedStudy(
        NAME,
        "ToPick: speed and energy (Fig. 10), traffic (Figs. 2 and 9)",
        f"Cycles of the compiled RTL of `topick.topick_core`, every output checked. A job is one"
        f" token of a layer: {first.heads} query heads, in groups that share {first.kv_heads} kv"
        f" heads. {sources(r)} Queries, keys and values are quantised to {BITS} bits, for each head"
        " alone. With one lane a head, kv heads run side by side, and the query heads of each one"
        " after another; otherwise all heads follow one another."
        + " For twice the d, each head is joined to the next one, so that a score is the sum of"
        " two heads' scores divided by the square root of two."
        * (len(r.ds) > 1)
        + " A lane has a separate memory port, which takes a request for a chunk of d elements"
        f" of 4 bits in each cycle and answers {first.memory} cycles later. The *baseline* is the"
        " core with `pruning=False`, which reads every chunk of K and V in order. Each speed-up is"
        " the baseline's cycles, of as many lanes, divided by the core's, summed over the"
        " layers. `python -m sim pruning -o FOLDER --longer FILE` writes this page; the longer"
        " trace is written by `python -m golden trace --tokens 1024 -o FILE`, traces of other"
        " texts for `--beside FILE …` by `python -m golden trace --text NAME -o FILE`.",
        [*claims(r), *energy_claims(pairs, parts), *paper_claims()],
        [
            speed_table(r),
            *([together_table(together)] if together else []),
            steps_table(r),
            slots_table(r),
            traffic_table(r),
            energy_table(pairs, parts),
        ],
        [Picture(NAME, "speed-up against the number of tokens", lambda: picture(r))],
        measured=measured,
        together=together,
    )


def sources(r: Results) -> str:
    """Which numbers of tokens are of which text."""
    named = {m.tokens: m.source for m in r.measured}
    parts = []
    for source in dict.fromkeys(named.values()):
        tokens = [n for n in sorted(named) if named[n] == source]
        parts.append(f"Up to {tokens[-1]} tokens: {source}.")
    return " ".join(parts)


def reaches(ours: float, paper: float) -> bool:
    """Reaches the paper's figure, or misses it by a tenth at most."""
    return ours > (1 - CLOSE) * paper


def listed(pairs: Sequence[Pair], value) -> str:
    return ", ".join(
        f"{value(pair):.2f}× at {pair.core.tokens} tokens, d = {pair.core.d}" for pair in pairs
    )


def claims(r: Results) -> list[Claim]:
    """At the longest contexts, with the fewest lanes a head, and d as in the trace and doubled."""
    fewest = r.lanes_per_head[0]
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
                Verdict.of(*(reaches(pair.speedup, paper) for pair in pairs)),
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
                    Verdict.of(*(reaches(pair.estimation(), ESTIMATION) for pair in pairs)),
                    "all of K is read in order, of V what is kept: the baseline's cycles, less one"
                    " for each chunk of V that the core does not read",
                ),
                Claim(
                    f"another {OUT_OF_ORDER}× by keys out of order",
                    ", ".join(f"{step:.2f}×" for step in steps),
                    Verdict.of(*(reaches(step, OUT_OF_ORDER) for step in steps)),
                    "the same jobs in the core",
                ),
                *waiting_claims(pairs),
            ]
    return [*made, slots_claim(r), lanes_claim(r)]


def waiting_claims(pairs: Sequence[Pair]) -> list[Claim]:
    """With one lane a head, for which it is calculated; else nothing."""
    if any(pair.core.lanes_per_head > 1 for pair in pairs):
        return []
    return [
        Claim(
            "waiting for each further chunk leaves lanes idle (3.2)",
            ", ".join(f"{pair.waiting:.2f}×" for pair in pairs),
            Verdict.of(*(pair.waiting < min(1, pair.speedup) for pair in pairs)),
            "keys in order with such a wait, beside reading all of K and V: calculated from the"
            " algorithm's reads",
        )
    ]


def slots_claim(r: Results) -> Claim:
    """At the longest context that the first trace has, or the longest of all."""
    fewest = r.lanes_per_head[0]
    default = ends(r, r.threshold)[0].core
    fewer = [
        pair.core
        for pair in r.pairs(lanes_per_head=fewest, entries=FEWER)
        if pair.core.tokens == default.tokens
    ]
    uses = {m.entries: m.own_use for m in (*fewer, default)}
    return Claim(
        f"out of order hides the memory's latency, with a scoreboard of {FEWER} entries (Table 1)",
        f"at {default.tokens} tokens a lane reads "
        + ", ".join(f"{use:.2f} chunks a cycle with {n} entries" for n, use in uses.items()),
        Verdict.of(*(use >= 1 - CLOSE for use in uses.values())),
        "a token keeps its entry for the memory's latency and 10 cycles of the lane. The paper"
        " does not state its memory's latency in cycles",
    )


def lanes_claim(r: Results) -> Claim:
    most = r.lanes_per_head[-1]
    pairs = r.pairs(lanes_per_head=most)
    uses = [f"{p.core.use:.2f} at {p.core.tokens} tokens ({p.speedup:.2f}×)" for p in pairs]
    return Claim(
        "16 lanes fully utilise the memory's bandwidth (5.1.2); keys and values are spread over"
        " the lanes (section 4)",
        f"with all of a head's tokens over {most} lanes: {', '.join(uses)}",
        Verdict.of(*(p.core.use > 1 - CLOSE for p in pairs)),
        "step 0 of a head takes three round trips to the memory one after the other, however few"
        f" tokens a lane has: {pairs[0].core.head_cycles:.0f} cycles with {pairs[0].core.tokens}"
        f" tokens. {most} lanes also decide on most first chunks before the denominator is known,"
        " and so read more of K. Heads that run side by side, with a lane each, need neither",
    )


def ends(r: Results, threshold: float) -> list[Pair]:
    """The two longest contexts, and the longest one of the doubled d."""
    fewest = r.lanes_per_head[0]
    own = r.pairs(lanes_per_head=fewest, threshold=threshold)[-2:]
    doubled = r.pairs(lanes_per_head=fewest, threshold=threshold, d=r.ds[-1])[-1:]
    return own + (doubled if len(r.ds) > 1 else [])


def speed_table(r: Results) -> Table:
    return Table.of(
        f"Cycles of a job, threshold {r.threshold:g}, {r.default} slots. A job ends with its"
        " slowest lane: heads are pruned to different degrees. *Beside shared rows*: speed-up over"
        " a machine on the same ports that reads each row once for its group, with multipliers for"
        " each of its query heads: by the baseline's formula, with one query head. *Own*: speed-up"
        " and use (chunks read in a cycle) with each lane counted until its own last chunk only."
        " *Without waiting*: speed-up over lanes that read all of K and V, a chunk in every cycle"
        " of the job. *Step 0*: cycles from one head to the next, until all its tokens are decided,"
        " of the chunks of K that it has in a lane",
        [
            pair
            for d in r.ds
            for lanes in r.lanes_per_head
            for pair in r.pairs(lanes_per_head=lanes, d=d)
        ],
        ("lanes a head", "{0.core.lanes_per_head}, of {0.core.lanes}"),
        ("d", "{.core.d}"),
        ("tokens", "{.core.tokens}"),
        ("baseline, cycles", "{.base.jobs[0].cycles}"),
        (
            "core, cycles by layer",
            lambda pair: ", ".join(str(job.cycles) for job in pair.core.jobs),
        ),
        ("speed-up", "{.speedup:.2f}"),
        ("beside shared rows", "{.beside_shared:.2f}"),
        ("own", "{.own:.2f}"),
        ("without waiting", "{.bound:.2f}"),
        ("use", "{.core.use:.2f}"),
        ("own use", "{.core.own_use:.2f}"),
        ("step 0", "{0.core.head_cycles:.0f} of {0.core.keys_of_a_lane:.0f}"),
    )


def steps_table(r: Results) -> Table:
    fewest = r.lanes_per_head[0]
    return Table.of(
        f"Steps of Fig. 10 (b), {fewest} lane a head, {r.default} slots. *Estimation*: all of K in"
        " order, of V what is kept; the RTL's baseline less a cycle for each chunk of V not read."
        " *Out of order*: what the core in RTL adds; *both* is the core. *Waiting*: keys in order,"
        " with a wait for each further chunk, calculated from the algorithm's reads",
        [
            pair
            for d in r.ds
            for threshold in r.thresholds
            for pair in r.pairs(lanes_per_head=fewest, d=d, threshold=threshold)
        ],
        ("threshold", "{.core.threshold:g}"),
        ("d", "{.core.d}"),
        ("tokens", "{.core.tokens}"),
        ("estimation", lambda pair: f"{pair.estimation():.2f}"),
        ("own", lambda pair: f"{pair.estimation(own=True):.2f}"),
        ("out of order", lambda pair: f"{pair.speedup / pair.estimation():.2f}"),
        ("own", lambda pair: f"{pair.own / pair.estimation(own=True):.2f}"),
        ("both", "{.speedup:.2f}"),
        ("own", "{.own:.2f}"),
        ("waiting", lambda pair: f"{pair.waiting:.2f}" if fewest == 1 else ""),
    )


def slots_table(r: Results) -> Table:
    fewer = {
        (lanes, pair.core.tokens): pair
        for lanes in r.lanes_per_head
        for pair in r.pairs(lanes_per_head=lanes, entries=FEWER)
    }
    pairs = [pair for lanes in r.lanes_per_head for pair in r.pairs(lanes_per_head=lanes)]
    both = [(fewer.get((p.core.lanes_per_head, p.core.tokens)), p) for p in pairs]
    return Table.of(
        f"Slots of a lane's scoreboard (the paper: {FEWER}), d = {r.ds[0]}, threshold"
        f" {r.threshold:g}. A token keeps its slot for the memory's latency and 10 cycles",
        [(small, pair) for small, pair in both if small],
        ("lanes a head", "{0[1].core.lanes_per_head}"),
        ("tokens", "{0[1].core.tokens}"),
        (f"speed-up, {FEWER}", "{0[0].speedup:.2f}"),
        (f"{r.default}", "{0[1].speedup:.2f}"),
        (f"own use, {FEWER}", "{0[0].core.own_use:.2f}"),
        (f"{r.default}", "{0[1].core.own_use:.2f}"),
    )


def traffic_table(r: Results) -> Table:
    group = r.measured[0].heads // r.measured[0].kv_heads
    sizes = sorted({m.buffer_tokens for m in r.measured})
    return Table.of(
        "Chunks that the memories have read, and the chunks of the algorithm in the core's"
        " arithmetic, with a memory of fixed latency and a denominator without delay; then, how"
        " many times fewer than K, V and both of every query head. With the fewest lanes a head"
        f" both agree within {bound(r):.1%}. *Buffered*: tokens whose chunks are kept for the"
        f" other query heads of their group, of {group} heads. A machine that reads every row once"
        f" for a group reads {group} times fewer chunks. A chunk from the buffer takes a cycle of"
        f" the lane as well, so it saves traffic and no time. d = {r.ds[0]}, threshold"
        f" {r.threshold:g}",
        [
            pair
            for lanes in r.lanes_per_head
            for kept in sizes
            for pair in r.pairs(lanes_per_head=lanes, buffer_tokens=kept)
        ],
        ("lanes a head", "{.core.lanes_per_head}"),
        ("buffered", lambda pair: str(pair.core.buffer_tokens or "")),
        ("tokens", "{.core.tokens}"),
        ("K", "{.core.keys}"),
        ("algorithm", "{.core.model[0]}"),
        ("V", "{.core.values}"),
        ("algorithm", "{.core.model[1]}"),
        ("difference", lambda pair: f"{difference(pair.core):+.1%}"),
        ("K, times fewer", lambda pair: f"{pair.core.everything / pair.core.keys:.2f}"),
        ("V", lambda pair: f"{pair.core.everything / pair.core.values:.2f}"),
        ("both", lambda pair: f"{2 * pair.core.everything / pair.core.chunks:.2f}"),
        ("speed-up", "{.speedup:.2f}"),
    )


def difference(m: Measured) -> float:
    """Chunks read, compared with the algorithm's."""
    return m.chunks / sum(m.model) - 1


def bound(r: Results) -> float:
    """The largest difference with the fewest lanes a head."""
    fewest = r.lanes_per_head[0]
    return max(abs(difference(m)) for m in r.measured if m.pruning and m.lanes_per_head == fewest)


def picture(r: Results) -> "Figure":
    """Speed-up against tokens: a curve for each number of lanes a head."""
    lines: dict[str, Sequence[float]] = {}
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
