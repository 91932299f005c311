"""LAD, Table II, Fig. 2 and Fig. 8: perplexity, locality of scores, reads, drift of the caches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from golden.algorithms.lad.drift import Drift, measure_drift
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PAPER_BOUNDS, THIRTEEN_BOUNDS
from golden.algorithms.lad.rows import Rows, average, measure_rows
from golden.evaluation.measure import Measurement, measure
from golden.evaluation.plots import curves
from golden.evaluation.policies import parse
from golden.lm.text import shipped_prose
from golden.studies.runs import Opened, Results, Run
from golden.studies.study import Claim, Picture, Study, Table, Verdict

BOUNDS = {5: PAPER_BOUNDS, 8: EIGHT_BOUNDS, 13: THIRTEEN_BOUNDS}
"""By number of intervals; the paper shows five and does not say how many its figures have."""
DRIFT_STEPS = 2048
DRIFTS: dict[str, dict[str, Any]] = {
    "FP32": {"storage": "float32"},
    "FP16": {"storage": "float16"},
    "FP16, recomputed every 64 steps": {"storage": "float16", "refresh": 64},
    "FP32, products in FP16, differences": {"arithmetic": "fp16"},
    "FP32, products in FP16, pairs": {"arithmetic": "fp16", "terms": "pairs"},
}
STORAGES = {
    "FP16 caches": ",storage=float16",
    "FP16, recomputed every 64 steps": ",storage=float16,refresh=64",
}
WAYS = ("centres", "bounds")
TILE = "codes,slack=0.0002"
"""Identification and slack that the accelerator has by default."""
CODES = {
    "codes, 6 bits": "codes",
    "codes, 6 bits, slack 2e-4": TILE,
    "codes, 4 bits": "codes,code_bits=4",
    "codes, 6 bits, slack 2e-4, pairs in FP16": f"{TILE},terms=pairs,arithmetic=fp16",
}
OTHER = {
    "centres": (8, "centres"),
    "codes, 6 bits": (8, "codes"),
    "codes, 6 bits, slack 2e-4": (8, TILE),
    "codes, 4 bits": (8, "codes,code_bits=4"),
    "codes, 6 bits, slack 2e-4, 13 intervals": (13, TILE),
}
"""Number of intervals and identification on the second text."""
LENGTHS = (512, 1024, 2048, 4096)
"""Positions at which the rows of a step are counted."""
ROWS: dict[str, dict[str, Any]] = {
    "centres": {"identification": "centres"},
    "codes, 6 bits, slack 2e-4": {"identification": "codes", "slack": 2e-4},
}
TOKENS_NEEDED = max(DRIFT_STEPS, *LENGTHS)


def _policy(intervals: int, way: str) -> str:
    bounds = "/".join(f"{bound:g}" for bound in BOUNDS[intervals])
    return f"lad:bounds={bounds},identification={way}"


def runs(tokens: int) -> list[Run]:
    policies = ["dense", *(_policy(intervals, way) for intervals in BOUNDS for way in WAYS)]
    policies += [_policy(8, "centres") + storage for storage in STORAGES.values()]
    policies += [_policy(8, way) for way in CODES.values()]
    return [Run(policy, tokens) for policy in policies]


def extras(opened: Opened) -> dict:
    """Drift of the caches and rows of a step on three layers; scores on another text."""
    layers = [opened.model.config.layers * part // 10 for part in (1, 5, 9)]
    context = opened.model.config.context
    steps = min(DRIFT_STEPS, context)
    lengths = [n for n in LENGTHS if n <= context]
    seen: dict[tuple[int, str], np.ndarray] = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in layers and name in "qkv":
            seen[layer, name] = array

    opened.model.hidden(opened.all_tokens[: max(steps, *lengths)], observer=observer)
    inputs = [[seen[layer, name] for name in "qkv"] for layer in layers]
    drifts = {
        name: [
            measure_drift(q[:, :steps], k[:, :steps], v[:, :steps], 32, **options)
            for q, k, v in inputs
        ]
        for name, options in DRIFTS.items()
    }
    rows = {
        name: [
            dataclasses.asdict(average(same_length))
            for same_length in zip(
                *(measure_rows(q, k, v, lengths, **options) for q, k, v in inputs), strict=True
            )
        ]
        for name, options in ROWS.items()
    }
    return {
        "steps": drifts["FP32"][0].steps.tolist(),
        "drift": {name: _largest(some).tolist() for name, some in drifts.items()},
        "output": {name: _late_output(some) for name, some in drifts.items()},
        "rows": rows,
        "query heads of a kv head": opened.model.config.heads // opened.model.config.kv_heads,
        "other text": _other_text(opened),
    }


def _largest(drifts: list[Drift]) -> np.ndarray:
    """Largest error of the caches A to F over layers and heads, step by step."""
    return np.max(
        [error.max(axis=1) for drift in drifts for error in drift.caches.values()], axis=0
    )


def _late_output(drifts: list[Drift]) -> float:
    """Error of the output that comes from the caches: the median over the last quarter of steps."""
    late = len(drifts[0].steps) * 3 // 4
    return float(np.median([drift.output[late:] for drift in drifts]))


def _other_text(opened: Opened) -> dict:
    """Dense attention and the identifications on the prose about cranes, which is shorter."""
    tokens = opened.tokenizer.encode(shipped_prose(), len(opened.tokens))
    policies = {"dense": "dense"} | {name: _policy(*of) for name, of in OTHER.items()}
    found = {
        name: measure(parse(policy), opened.model, tokens).as_json()
        for name, policy in policies.items()
    }
    return {"tokens": len(tokens), "policies": found}


def study(tokens: int, results: Results, extras: dict) -> Study:
    measured = {
        (intervals, way): results[Run(_policy(intervals, way), tokens)]
        for intervals in BOUNDS
        for way in WAYS
    }
    dense = results[Run("dense", tokens)]
    paper = {intervals: measured[intervals, "centres"] for intervals in BOUNDS}
    off = {intervals: m.quality - dense.quality for intervals, m in paper.items()}
    top = {intervals: m.figures for intervals, m in paper.items()}
    scores = extras["other text"]["policies"]
    other = scores["centres"]["perplexity"] - scores["dense"]["perplexity"]
    group = extras["query heads of a kv head"]

    def by_intervals(text) -> str:
        listed = (f"{text(intervals)} with {intervals}" for intervals in BOUNDS)
        return ", ".join(listed) + " intervals"

    claims = [
        Claim(
            "perplexity equal to dense to the second decimal (Table II)",
            by_intervals(lambda i: f"{off[i]:+.3f}")
            + f" (dense {dense.quality:.3f}); on another text {other:+.3f} with 8",
            Verdict.of(*(abs(difference) < 0.005 for difference in (*off.values(), other))),
        ),
        Claim(
            "a score lies in its likeliest interval with more than 74 %, in the two likeliest"
            " with more than 95 % (Fig. 2)",
            by_intervals(lambda i: f"{top[i]['top 1']:.0%} and {top[i]['top 2']:.0%}"),
            Verdict.of(
                *(t["top 1"] > 0.74 and t["top 2"] > 0.95 for t in top.values()),
            ),
            "the narrower the intervals, the less a score remains in one",
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
    codes = {(8, name): results[Run(_policy(8, way), tokens)] for name, way in CODES.items()}
    reads = [(m, way, intervals) for (intervals, way), m in (measured | stored | codes).items()]
    reads_title = (
        f"What is read (a row counts once for the {group} query heads of a kv head, if one of them"
        " needs it; codes count besides, so K may exceed 100 %)"
    )
    drifts = extras["drift"]
    largest = {name: max(y) for name, y in drifts.items()}
    claims += [
        _drift_claim(largest, stored, dense),
        _rows_claim(extras["rows"]),
    ]
    drift_title = (
        f"Error of the caches A to F over {extras['steps'][-1]} steps against float64 recomputed"
        " from their definition, and of the output by it (median of the last quarter of the steps)"
    )
    drift_rows = [
        [name, f"{max(y):.2e}", f"{y[-1]:.2e}", f"{extras['output'][name]:.2e}"]
        for name, y in drifts.items()
    ]
    return Study(
        "lad",
        "LAD: locality aware decoding (Table II, Fig. 2, Fig. 8)",
        "Paper: OPT 2.7B to LLaMA2 13B, lengths of 512 to 4096. Here:"
        f" {tokens} tokens, one window; dense {dense.quality:.3f}. `bounds` and"
        " `codes` are this project's own identifications: `bounds` misses no active position,"
        " `codes` takes scores from a copy of K in 6 bits or 4. Slack lets a mode's line be used"
        " where it is still within 2e-4 of exp.",
        claims,
        [
            Table.of(reads_title, reads, ("intervals", "{0[2]}"), *READS),
            _other_table(extras["other text"]),
            _rows_table(extras["rows"], group),
            Table(drift_title, ["caches", "largest", "at the end", "output"], drift_rows),
        ],
        [
            Picture(
                "lad_drift",
                "error of the caches against the number of steps",
                lambda: curves(
                    extras["steps"],
                    drifts,
                    "step",
                    "relative error of the caches",
                    log_y=True,
                ),
            )
        ],
    )


def _share_read(name: str) -> Callable[[tuple], str]:
    """Bytes of K or V that a measurement has read, of dense attention's."""
    return lambda row: f"{getattr(row[0].traffic, name) / (row[0].traffic.dense_bytes / 2):.1%}"


READS = (
    ("identification", "{0[1]}"),
    ("perplexity", "{0[0].quality:.3f}"),
    ("output error", "{0[0].error:.2%}"),
    ("active share", "{0[0].figures[active share]:.1%}"),
    ("false negatives", "{0[0].figures[false negatives]:.2%}"),
    ("updates a step and head", "{0[0].figures[updates]:.1f}"),
    ("K read", _share_read("k_bytes")),
    ("V read", _share_read("v_bytes")),
    ("beside, of dense K and V", "{0[0].figures[side bytes]:.1%}"),
)
"""Columns of a measurement and its name."""


def _other_table(other: dict) -> Table:
    """The same columns on the second text."""
    found = {name: Measurement.from_json(of) for name, of in other["policies"].items()}
    dense = ["dense", f"{found.pop('dense').quality:.3f}", *["-"] * (len(READS) - 2)]
    title = (
        "Eight intervals (thirteen in the last row) on another text, the prose about cranes that"
        f" comes with the package ({other['tokens']} tokens)"
    )
    table = Table.of(title, [(m, name) for name, m in found.items()], *READS)
    return dataclasses.replace(table, rows=[dense, *table.rows])


def _drift_claim(largest: dict, stored: dict, dense: Measurement) -> Claim:
    return Claim(
        "caches updated step by step in FP16 serve the decoding",
        "largest relative error of a cache "
        + "; ".join(f"{value:.1e} with {name}" for name, value in largest.items())
        + "; perplexity with eight intervals "
        + ", ".join(f"{m.quality:.2f} with {name[1][9:]}" for name, m in stored.items()),
        Verdict.of(*(abs(m.quality - dense.quality) < 0.1 for m in stored.values())),
        "qA − mB + C is a small difference of large terms, which amplifies the caches' errors"
        " about tenfold; FP32 caches, the default here, do not have the problem. With products in"
        " FP16 eq. 6's differences drift even then; old terms taken out exactly do not",
    )


def _rows_claim(rows: dict) -> Claim:
    shares = {name: [_moved(row) / (2 * row["n"]) for row in some] for name, some in rows.items()}
    lengths = [row["n"] for row in next(iter(rows.values()))]
    return Claim(
        "far fewer reads than dense attention, and a smaller share the longer the context (Fig. 8)",
        f"rows a head moves at {lengths[0]:g} to {lengths[-1]:g} positions, of dense: "
        + "; ".join(f"{x[0]:.0%} to {x[-1]:.0%} with {name}" for name, x in shares.items()),
        Verdict.of(
            *(some[-1] < 0.5 for some in shares.values()),
            *(some[-1] < some[0] for some in shares.values()),
        ),
        "the caches are a fixed cost, which counts less with more positions; but a small model's"
        " scores move more, so more positions are active, and centres are nearly all keys",
    )


def _rows_table(rows: dict, group: int) -> Table:
    """Rows of a step of one query head, beside dense attention alone and shared by a group."""
    title = (
        "Rows of d numbers that a step of one query head moves, averaged over the heads of three"
        " layers and the last 32 steps; `written` are G, counters and caches; the last column is"
        f" dense attention whose rows are read once for the {group} query heads of a kv head. LAD"
        " reads for each head on its own, since the heads' active positions differ: grouped queries"
        " cost it what they save others"
    )
    parts = {
        "G": "g",
        "codes or centres": "identification",
        "M and window": "exact",
        "J (K and V)": "active",
        "counters": "counters",
        "caches": "caches",
        "written": "written",
    }
    return Table.of(
        title,
        [(name, rows[name][at]) for at in range(len(next(iter(rows.values())))) for name in rows],
        ("n", "{0[1][n]:.0f}"),
        ("identification", "{0[0]}"),
        ("J / n", "{0[1][active_share]:.1%}"),
        ("M / n", "{0[1][large_share]:.1%}"),
        *((name, f"{{0[1][{part}]:.0f}}") for name, part in parts.items()),
        ("sum", lambda pair: f"{_moved(pair[1]):.0f}"),
        ("dense", lambda pair: f"{2 * pair[1]['n']:.0f}"),
        (f"dense, shared by {group}", lambda pair: f"{2 * pair[1]['n'] / group:.0f}"),
    )


def _moved(row: dict) -> float:
    return Rows(**row).moved
