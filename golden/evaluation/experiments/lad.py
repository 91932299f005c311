"""LAD, Table II and Fig. 2: perplexity, locality of scores, what is read, drift of the caches."""

import numpy as np

from golden.algorithms.lad.drift import measure_drift
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PAPER_BOUNDS, THIRTEEN_BOUNDS
from golden.evaluation.plots import curves
from golden.evaluation.section import Claim, Opened, Results, Run, Section, Table, Verdict

BOUNDS = {5: PAPER_BOUNDS, 8: EIGHT_BOUNDS, 13: THIRTEEN_BOUNDS}
"""By number of intervals; the paper shows five and does not say how many its figures have."""
DRIFT_STEPS = 2048
DRIFTS = {
    "FP32": {"storage": "float32"},
    "FP16": {"storage": "float16"},
    "FP16, recomputed every 64 steps": {"storage": "float16", "refresh": 64},
}
STORAGES = {
    "FP16 caches": ",storage=float16",
    "FP16, recomputed every 64 steps": ",storage=float16,refresh=64",
}
WAYS = ("centres", "bounds")


def _policy(intervals: int, way: str) -> str:
    bounds = "/".join(f"{bound:g}" for bound in BOUNDS[intervals])
    return f"lad:bounds={bounds},identification={way}"


def runs(tokens: int) -> list[Run]:
    policies = ["dense", *(_policy(intervals, way) for intervals in BOUNDS for way in WAYS)]
    policies += [_policy(8, "centres") + storage for storage in STORAGES.values()]
    return [Run(policy, tokens) for policy in policies]


def extras(opened: Opened) -> dict:
    """Largest error of the caches A to F over three layers and all heads, step by step."""
    layers = [opened.model.config.layers * part // 10 for part in (1, 5, 9)]
    length = min(DRIFT_STEPS, opened.model.config.context)
    seen = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in layers and name in "qkv":
            seen[layer, name] = array

    opened.model.hidden(opened.all_tokens[:length], observer=observer)
    worst, steps = {}, []
    for title, options in DRIFTS.items():
        errors = []
        for layer in layers:
            drift = measure_drift(*(seen[layer, name] for name in "qkv"), every=32, **options)
            errors += [error.max(axis=1) for error in drift.caches.values()]
            steps = drift.steps.tolist()
        worst[title] = np.max(errors, axis=0).tolist()
    return {"steps": steps, "drift": worst}


def section(tokens: int, results: Results, extras: dict) -> Section:
    measured = {
        (intervals, way): results[Run(_policy(intervals, way), tokens)]
        for intervals in BOUNDS
        for way in WAYS
    }
    dense = results[Run("dense", tokens)]
    paper = {intervals: measured[intervals, "centres"] for intervals in BOUNDS}
    off = {intervals: m.perplexity - dense.perplexity for intervals, m in paper.items()}
    top = {intervals: m.figures for intervals, m in paper.items()}

    def by_intervals(text) -> str:
        listed = (f"{text(intervals)} with {intervals}" for intervals in BOUNDS)
        return ", ".join(listed) + " intervals"

    claims = [
        Claim(
            "perplexity equal to dense to the second decimal (Table II)",
            by_intervals(lambda i: f"{off[i]:+.3f}") + f" (dense {dense.perplexity:.3f})",
            Verdict.of(*(abs(difference) < 0.005 for difference in off.values())),
        ),
        Claim(
            "a score lies in its likeliest interval with more than 74 %, in the two likeliest"
            " with more than 95 % (Fig. 2)",
            by_intervals(lambda i: f"{top[i]['top 1']:.0%} and {top[i]['top 2']:.0%}"),
            Verdict.of(
                *(t["top 1"] > 0.74 and t["top 2"] > 0.95 for t in top.values()),
            ),
            "the narrower the intervals, the less a score stays in one",
        ),
        Claim(
            "keys fall into few directional centres (|cos| > 0.98)",
            f"{top[8]['centre share']:.0%} of the keys in view are centres",
            Verdict.of(top[8]["centre share"] < 0.5),
            "rotary positions turn every key by another angle; with them almost every key is its"
            " own centre, so that identification reads nearly all of K. The paper's OPT models have"
            " no rotation, its LLaMA2 models have",
        ),
        Claim(
            "about 1 % of the positions get a wrong interval",
            by_intervals(lambda i: f"{top[i]['false negatives']:.2%}"),
            Verdict.of(*(t["false negatives"] <= 0.01 for t in top.values())),
            "few, since centres that are the keys themselves give exact scores",
        ),
        Claim(
            "more than 80 % of the active positions were active in the step before",
            by_intervals(lambda i: f"{top[i]['hit ratio']:.0%}"),
            Verdict.of(*(t["hit ratio"] > 0.8 for t in top.values())),
        ),
    ]
    stored = {
        (8, f"centres, {name}"): results[Run(_policy(8, "centres") + storage, tokens)]
        for name, storage in STORAGES.items()
    }
    rows = []
    for (intervals, way), m in (measured | stored).items():
        f = m.figures
        half = m.traffic.dense_bytes / 2
        rows.append(
            [
                str(intervals),
                way,
                f"{m.perplexity:.3f}",
                f"{m.error:.2%}",
                f"{f['active share']:.1%}",
                f"{f['updates']:.1f}",
                f"{m.traffic.k_bytes / half:.1%}",
                f"{m.traffic.v_bytes / half:.1%}",
                f"{f['side bytes']:.1%}",
            ]
        )
    columns = [
        "intervals",
        "identification",
        "perplexity",
        "output error",
        "active share",
        "updates a step and head",
        "K read",
        "V read",
        "beside, of dense K and V",
    ]
    drifts = extras["drift"]
    largest = {name: max(y) for name, y in drifts.items()}
    claims.append(
        Claim(
            "caches updated step by step in FP16 serve the decoding",
            "largest relative error of a cache "
            + ", ".join(f"{value:.1e} with {name}" for name, value in largest.items())
            + "; perplexity with eight intervals "
            + ", ".join(f"{m.perplexity:.2f} with {name[1][9:]}" for name, m in stored.items()),
            Verdict.of(*(abs(m.perplexity - dense.perplexity) < 0.1 for m in stored.values())),
            "qA − mB + C is a small difference of large terms, which amplifies the caches' errors"
            " about tenfold; FP32 caches, the default here, do not have the problem",
        )
    )
    picture = curves(
        extras["steps"],
        drifts,
        "step",
        "relative error of the caches",
        log_y=True,
    )
    drift_title = (
        f"Error of the caches A to F over {extras['steps'][-1]} steps against float64 recomputed"
        " from their definition"
    )
    drift_rows = [[name, f"{max(y):.2e}", f"{y[-1]:.2e}"] for name, y in drifts.items()]
    return Section(
        "LAD: locality aware decoding (Table II, Fig. 2)",
        "Paper: OPT 2.7B to LLaMA2 13B, lengths of 512 to 4096. Here:"
        f" {tokens} tokens, one window; dense {dense.perplexity:.3f}. `bounds` is this project's"
        " own identification, which misses no active position.",
        claims,
        [
            Table("What is read", columns, rows),
            Table(drift_title, ["caches", "largest", "at the end"], drift_rows),
        ],
        [("lad_drift", "error of the caches against the number of steps", picture)],
    )
