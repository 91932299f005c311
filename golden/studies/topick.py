"""ToPick, Fig. 8 and Fig. 3: traffic against threshold, and how much queries differ."""

import numpy as np

from golden.algorithms.attention import attention_scores, softmax
from golden.evaluation.measure import Measurement
from golden.evaluation.plots import curves
from golden.studies.runs import Opened, Results, Run
from golden.studies.study import Claim, Picture, Study, Table, Verdict

THRESHOLDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
BIT_EXACT = (1e-4, 3e-4, 1e-3)
"""Thresholds that are also run in the core's arithmetic."""
PAPER = {0.05: (12.1, 1.45, 2.57), 0.3: (22.2, 1.51, 2.79)}
"""Perplexity given up, and how many times fewer bytes of V, of K and of both (Fig. 8)."""
PARTS = ("V", "K", "both")
BITS, CHUNKS = 12, 3
DOMINANT = 1e-3
"""Probability above which Fig. 3 calls a token dominant."""
INSTANCES = 64


def runs(tokens: int) -> list[Run]:
    return [
        Run("dense", tokens),
        *(_run(threshold, tokens) for threshold in (0, *THRESHOLDS)),
        *(_run(threshold, tokens, bit_exact=True) for threshold in BIT_EXACT),
    ]


def _run(threshold: float, tokens: int, *, bit_exact: bool = False) -> Run:
    return Run(f"topick:threshold={threshold:g}" + ",bit_exact=true" * bit_exact, tokens)


def extras(opened: Opened) -> dict:
    """Share of dominant tokens of the last queries, by layer and head (Fig. 3)."""
    model, tokens = opened.model, opened.tokens
    shares = np.zeros((model.config.layers, model.config.heads, INSTANCES))
    keys = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if name in "qk":
            keys[name] = array
        if name == "v":
            for number in range(INSTANCES):
                token = len(tokens) - INSTANCES + number
                scores = attention_scores(keys["q"][:, token], keys["k"][:, : token + 1])
                shares[layer, :, number] = np.mean(softmax(scores) > DOMINANT, axis=-1)

    model.hidden(tokens, observer=observer)
    spread = shares.max(axis=-1) / np.maximum(shares.min(axis=-1), 1 / len(tokens))
    low, middle, high = np.quantile(shares, (0.05, 0.5, 0.95))
    layer, head = np.unravel_index(spread.argmax(), spread.shape)
    return {
        "dominant_share": {"5 %": low, "median": middle, "95 %": high},
        "largest_to_smallest_in_a_head": {
            "median": float(np.median(spread)),
            "most": float(spread.max()),
            "layer": int(layer),
            "head": int(head),
        },
    }


def study(tokens: int, results: Results, extras: dict) -> Study:
    exact = results[_run(0, tokens)]
    dense = results[Run("dense", tokens)].quality
    measured = [results[_run(x, tokens)] for x in THRESHOLDS]
    bits = [results[_run(x, tokens, bit_exact=True)] for x in BIT_EXACT]
    claims = []
    for given_up, (v, k, both) in PAPER.items():
        allowed = [m for m in measured if m.quality <= exact.quality + given_up]
        best = max(allowed, key=lambda m: _by_head(m)["both"], default=exact)
        ours = _by_head(best)
        claims.append(
            Claim(
                f"at +{given_up} perplexity {v}× fewer bytes of V, {k}× of K, {both}× of both",
                f"{ours['V']:.1f}×, {ours['K']:.2f}×, {ours['both']:.2f}× for each query head, at"
                f" {best.quality - exact.quality:+.3f} ({best.policy})",
                Verdict.of(ours["V"] >= v, ours["K"] >= k, ours["both"] >= both),
                "the sharper a model's attention and the longer its context, the more is pruned;"
                " short contexts are averaged in. Perplexity is compared with 12-bit attention that"
                " prunes nothing",
            )
        )
    shares, heads = extras["dominant_share"], extras["largest_to_smallest_in_a_head"]
    claims.append(
        Claim(
            "instances differ: 4.6 % and 23.5 % dominant tokens in one head, layer and length",
            f"in the median head the largest share is {heads['median']:.1f} times the smallest;"
            f" 5 % of all queries are below {shares['5 %']:.1%}, 5 % above {shares['95 %']:.1%}",
            Verdict.of(heads["most"] >= 23.5 / 4.6),
        )
    )
    columns = ["policy", "perplexity", "V", "K", "both", "V, group", "K, group", "both, group"]
    columns.append("output error")
    return Study(
        "topick",
        "ToPick: pruning by estimated probability (Fig. 8, Fig. 3)",
        "Paper: GPT2-Large to LLaMa-2 13B, Wikitext-2, contexts of 1024 and 2048. Here:"
        f" {tokens} tokens, one window; dense {dense:.3f}, at 12 bits {exact.quality:.3f}."
        " Bytes are compared with reading every row at 12 bits, as in the paper. The three query"
        " heads of a group share their keys and values, so that a row which one of them needs is"
        " read; the paper's models have no groups, hence figures for each query head alone too."
        " With `bit_exact` the arithmetic is the core's: scores as binary logarithms with 10"
        " fraction bits, terms of 12 bits, probabilities of 17 fraction bits, divided by their sum."
        " The value of a token whose probability rounds to 0 is not read, and the newest token is"
        " never pruned.",
        claims,
        [
            Table("Traffic and perplexity", columns, _rows([exact, *measured])),
            Table("The same in the core's arithmetic", columns, _rows(bits)),
        ],
        [
            Picture(
                "topick",
                "bytes of K and V against the threshold",
                lambda: curves(
                    THRESHOLDS,
                    {
                        f"{part}, query heads alone": [_by_head(m)[part] for m in measured]
                        for part in PARTS
                    }
                    | {
                        f"{part}, shared by a group": [_by_group(m)[part] for m in measured]
                        for part in PARTS
                    },
                    "threshold",
                    "times fewer bytes than all rows at 12 bits",
                    log_x=True,
                    log_y=True,
                ),
            ),
            Picture(
                "topick_perplexity",
                "perplexity against the threshold",
                lambda: curves(
                    THRESHOLDS,
                    {"perplexity": [m.quality for m in measured]},
                    "threshold",
                    "perplexity",
                    line=("12 bits, nothing pruned", exact.quality),
                    log_x=True,
                ),
            ),
        ],
    )


def _rows(measured: list[Measurement]) -> list[list[str]]:
    return [
        [m.policy, f"{m.quality:.3f}"]
        + [f"{ratio(m)[part]:.2f}" for ratio in (_by_head, _by_group) for part in PARTS]
        + [f"{m.error:.2%}"]
        for m in measured
    ]


def _by_head(measured: Measurement) -> dict[str, float]:
    """How many times fewer bytes each query head needs, all heads together."""
    counts = measured.figures
    view, asked, kept = (
        counts[name] for name in ("tokens in view", "chunks requested", "tokens kept")
    )
    k, v = asked / (CHUNKS * view), kept / view
    return {"V": 1 / v, "K": 1 / k, "both": 2 / (k + v)}


def _by_group(measured: Measurement) -> dict[str, float]:
    """How many times fewer bytes are read when the heads of a group share what they read."""
    traffic = measured.traffic
    half = traffic.dense_bytes / 2 * BITS / 16
    return {
        "V": half / traffic.v_bytes,
        "K": half / traffic.k_bytes,
        "both": 2 * half / traffic.bytes,
    }
