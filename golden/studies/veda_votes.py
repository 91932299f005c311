"""VEDA, section III, on the trace that ships: scores, thresholds, and which rows votes evict."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from golden.algorithms.attention import attention_scores, softmax
from golden.algorithms.veda import cast_votes, count_votes, slot_to_evict
from golden.studies.study import Claim, Verdict
from golden.trace import Trace, load, shipped

CAPACITY = 128
"""Rows kept in the trace's 512 tokens."""
RESERVED = 32
"""First tokens, which cast no vote."""
SMALL, SPARSE = 0.01, 0.95
"""Share of a row's largest probability below which one counts as zero, and the paper's sparsity."""
QUERIES = 64
"""Last queries, whose probabilities are counted; also steps between two rankings of rows."""
TOP = 0.1
RARE = 0.05
"""Share of steps that is rare."""
METHODS = ("votes", "sums")


def votes_figures() -> list[dict]:
    """Figures of each layer of the trace that ships."""
    trace = load(shipped()[0])
    return [layer_figures(trace, layer) for layer in range(len(trace.attention.q))]


def layer_figures(trace: Trace, layer: int) -> dict:
    """Sparsity, lasting rows and thresholds of dense attention, and ages of evicted rows."""
    p = probabilities(trace, layer)
    return {
        "sparsity": sparsity(p[:, -QUERIES:]),
        "lasting": lasting(p.mean(axis=0)),
        "negative": negative(p.mean(axis=0)),
    } | {name: ages(p, CAPACITY, name) for name in METHODS}


def probabilities(trace: Trace, layer: int) -> np.ndarray:
    """Dense causal attention, [heads, query, token]; 0 after the query."""
    q, k, _, _ = trace.attention
    n = q.shape[2]
    found = np.zeros((q.shape[1], n, n))
    for token in range(n):
        seen = k[layer, :, : token + 1].astype(np.float64)
        scores = attention_scores(q[layer, :, token].astype(np.float64), seen)
        found[:, token, : token + 1] = softmax(scores)
    return found


def sparsity(p: np.ndarray) -> float:
    """Share of the last queries' probabilities that are below `SMALL` of their row's largest."""
    n, queries = p.shape[2], p.shape[1]
    seen = np.tril(np.ones((queries, n), bool), n - queries)
    return float(np.mean((p < SMALL * p.max(axis=-1, keepdims=True))[:, seen]))


def lasting(s: np.ndarray) -> float:
    """Share of a query's likeliest rows, `TOP` of all, that are so again QUERIES tokens later.

    s
        Probabilities averaged over heads, [query, token]; the first half of the queries are left
        out, and rows that came later.
    """
    kept = []
    for token in range(len(s) // 2, len(s) - QUERIES):
        rows = token + 1
        number = max(int(TOP * rows), 1)
        now, later = (set(np.argsort(-s[t, :rows])[:number]) for t in (token, token + QUERIES))
        kept.append(len(now & later) / number)
    return float(np.mean(kept))


def negative(s: np.ndarray, reserved: int = RESERVED) -> float:
    """Share of the voters whose threshold is below zero, of dense attention."""
    return float(
        np.mean(
            [
                cast_votes(s[token, : token + 1], np.arange(token + 1))[1] < 0
                for token in range(reserved, len(s))
            ]
        )
    )


def ages(p: np.ndarray, capacity: int, method: str, reserved: int = RESERVED) -> float:
    """Mean place of evicted rows among those in the cache, from 0, the oldest, to 1, the newest.

    p
        Dense attention's probabilities, [heads, query, token]; of kept rows, divided by their
        sum.
    method
        "votes" as the paper's, or "sums": the row with the least sum of probabilities leaves.
    """
    positions, found = np.zeros(0, np.int64), []
    counts, sums = np.zeros(0, np.uint16), np.zeros(0)
    for token in range(p.shape[1]):
        positions = np.append(positions, token)
        counts, sums = np.append(counts, np.uint16(0)), np.append(sums, 0.0)
        seen = p[:, token, positions]
        s = (seen / seen.sum(axis=1, keepdims=True)).mean(axis=0)
        sums += s
        if token >= reserved:
            counts = count_votes(counts, cast_votes(s, positions)[0])
        if len(positions) > capacity:
            slot = slot_to_evict(counts, positions) if method == "votes" else int(sums.argmin())
            found.append(slot / capacity)
            rest = np.arange(len(positions)) != slot
            positions, counts, sums = positions[rest], counts[rest], sums[rest]
    return float(np.mean(found))


def votes_claims(layers: Sequence[Mapping[str, float]]) -> list[Claim]:
    """Claims of section III and of section I on attention, from each layer's figures."""

    def listed(name: str, form: str = "{:.0%}") -> str:
        return ", ".join(form.format(layer[name]) for layer in layers)

    def holds(condition: Callable[[Mapping[str, float]], bool]) -> Verdict:
        return Verdict.of(*map(condition, layers))

    trace = f"{len(layers)} layers of the trace that ships"
    return [
        Claim(
            f"attention is sparse, approaching {SPARSE:.0%} (section I)",
            f"{listed('sparsity')} of the probabilities",
            holds(lambda of: of["sparsity"] >= SPARSE - 0.05),
            f"{trace}, the last {QUERIES} of 512 queries; judged at {SPARSE - 0.05:.0%}. The text"
            f" does not define sparsity: here a probability below {SMALL:.0%} of its row's largest",
        ),
        Claim(
            "pivotal rows are likely to remain pivotal (III)",
            f"{listed('lasting')} of the likeliest tenth are so again {QUERIES} tokens later",
            holds(lambda of: of["lasting"] > 0.5),
            f"{trace}, averaged over heads; likely is more than half, chance would be {TOP:.0%}",
        ),
        Claim(
            "the threshold may theoretically drop below zero (III)",
            f"it does in {listed('negative')} of the votes",
            holds(lambda of: of["negative"] < RARE),
            f"{trace}, dense attention, a = 1, b = 0.2: whenever the standard deviation is above"
            f" five times the mean. Theoretically is in less than {RARE:.0%}; such a token casts"
            " one vote",
        ),
        Claim(
            "sums of attention evict recent rows, votes tend to preserve them (III, Fig. 2)",
            f"mean place of an evicted row, 0 the oldest and 1 the newest: sums"
            f" {listed('sums', '{:.2f}')}, votes {listed('votes', '{:.2f}')}",
            holds(lambda of: of["sums"] > 0.5 > of["votes"]),
            f"{trace}, {CAPACITY} rows kept; sums as in Fig. 2 (a), where H2O itself"
            " keeps the newest half as well",
        ),
    ]
