"""ToPick, section 3.1, on the trace that ships: weights by place, the order of keys, the bound."""

from collections.abc import Mapping, Sequence

import numpy as np

from golden.algorithms.attention import softmax
from golden.algorithms.topick.decide import (
    arrival_order,
    decide,
    leading_bits,
    margins,
    request_order,
)
from golden.algorithms.topick.reads import Job, job_of
from golden.studies.study import Claim, Verdict
from golden.trace import Trace, load, shipped

BITS, CHUNK_BITS = 12, 4
CHUNKS = BITS // CHUNK_BITS
RECENT = 10
"""Newest tokens that Fig. 4 (a) shows one by one."""
QUERIES = 16
"""Last queries of the trace whose weights are averaged."""
LATENCY = 60
"""Chunks that a lane takes until a token's next one: 50 cycles of memory, 10 of the lane."""
THRESHOLDS = (1e-3, 3e-4)


def trace_figures() -> list[dict]:
    """Figures of each layer of the trace that ships."""
    trace = load(shipped()[0])
    return [layer_figures(trace, layer) for layer in range(len(trace.attention.q))]


def layer_figures(trace: Trace, layer: int) -> dict:
    """Weights of a layer's heads by place, and what its last query prunes in two orders.

    ``orders`` has chunks of K and rows of V read by all heads, and the largest exact probability
    of a token that was pruned, divided by the threshold.
    """
    tokens = trace.attention.q.shape[2]
    queries = [job_of(trace, layer, n) for n in range(tokens - QUERIES + 1, tokens + 1)]
    parts = np.mean([places(probabilities(job)) for job in queries], axis=0)
    job = queries[-1]
    wanted = {"from new to old": order_of(tokens), "from old to new": np.arange(tokens)}
    return {
        "first": (parts[0] / parts[2]).tolist(),
        "recent": (parts[1] / parts[2]).tolist(),
        "everything": CHUNKS * tokens * len(job.q),
        "orders": [
            {"threshold": threshold, "order": name, **pruned(job, order, threshold)}
            for threshold in THRESHOLDS
            for name, order in wanted.items()
        ],
    }


def order_of(tokens: int) -> np.ndarray:
    """The paper's order of keys: the newest, the first, then from new to old."""
    return request_order(np.array([tokens - 1]), tokens)[:, 0]


def _keys(job: Job) -> np.ndarray:
    """Codes of K of each query head, [heads, tokens, d]."""
    return np.repeat(job.k, len(job.q) // len(job.k), axis=0)


def probabilities(job: Job) -> np.ndarray:
    """Exact probabilities on the job's codes, [heads, tokens]."""
    return softmax(np.einsum("hnd,hd->hn", _keys(job), job.q) * job.c[:, None])


def places(p: np.ndarray) -> np.ndarray:
    """Mean weight of the first token, a recent one and one between, [3, heads]."""
    middle = p[:, 1:-RECENT]
    return np.stack([p[:, 0], p[:, -RECENT:].mean(axis=1), middle.mean(axis=1)])


def pruned(job: Job, order: np.ndarray, threshold: float) -> dict:
    """Chunks of K and of V read, keys in an order, and the largest probability pruned.

    order
        Numbers of tokens, int[tokens].
    """
    k = _keys(job)[:, order]
    partial = np.stack(
        [
            np.einsum("hnd,hd->nh", leading_bits(k, b, BITS, CHUNK_BITS).astype(float), job.q)
            for b in range(1, CHUNKS + 1)
        ]
    )
    events = arrival_order(len(order), CHUNKS, LATENCY)
    made = decide(events, partial, *margins(job.q, BITS, CHUNK_BITS), job.c, threshold)
    exact = probabilities(job)[:, order].T
    return {
        "k": int(made.read.sum()),
        "v": CHUNKS * int(made.kept.sum()),
        "largest": float(exact[~made.kept].max(initial=0) / threshold),
    }


def trace_claims(layers: Sequence[Mapping]) -> list[Claim]:
    """Section 3.1's claims, from each layer's figures."""
    return [_weights(layers), _order(layers), _bound(layers)]


def _weights(layers: Sequence[Mapping]) -> Claim:
    """Often: in more than half of the heads, by more than twice."""
    ratios = {name: np.concatenate([of[name] for of in layers]) for name in ("first", "recent")}
    more = {name: float(np.mean(of > 2)) for name, of in ratios.items()}
    first, recent = (float(np.median(of)) for of in ratios.values())
    return Claim(
        "recent tokens and the first one often carry more weight than others (3.1, Fig. 4 a)",
        f"in the median head the first token has {first:.0f} times and each of the last {RECENT}"
        f" {recent:.0f} times the mean weight of one between; more than twice in"
        f" {more['first']:.0%} and {more['recent']:.0%} of the heads",
        Verdict.of(*(share > 0.5 for share in more.values())),
        f"the last {QUERIES} queries of the trace that ships, {len(ratios['first'])} heads of"
        f" {len(layers)} layers; often is in more than half of the heads",
    )


def _order(layers: Sequence[Mapping]) -> Claim:
    told, better = [], []
    everything = sum(of["everything"] for of in layers)
    for threshold in THRESHOLDS:
        by_order: dict[str, list[float]] = {}
        for part in ("v", "k"):
            for name in ("from new to old", "from old to new"):
                read = sum(
                    run[part]
                    for of in layers
                    for run in of["orders"]
                    if (run["threshold"], run["order"]) == (threshold, name)
                )
                by_order.setdefault(part, []).append(everything / read)
        (v, v_old), (k, k_old) = by_order["v"], by_order["k"]
        told.append(
            f"threshold {threshold:g}: V {v:.2f}× in place of {v_old:.2f}×, K {k:.2f}× in place of"
            f" {k_old:.2f}×"
        )
        better += [v > v_old, k > k_old]
    return Claim(
        "beginning with these and going back in time enhances the pruning ratio (3.1)",
        "; ".join(told),
        Verdict.of(*better),
        "times fewer bytes than all, of the last query of each layer of the trace, in the order of"
        f" the paper and from the oldest on; a token's next chunk comes {LATENCY} chunks later",
    )


def _bound(layers: Sequence[Mapping]) -> Claim:
    largest = [run["largest"] for of in layers for run in of["orders"]]
    return Claim(
        "no token whose probability is above the threshold is pruned, whatever has arrived"
        " (3.1, Eq. 5)",
        f"the likeliest token pruned has {max(largest):.3f} of the threshold",
        Verdict.of(max(largest) <= 1),
        "the same runs, thresholds and orders; in RTL it is [proved](../topick.md#verification)",
    )
