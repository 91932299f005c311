"""UniCAIM, Fig. 13 and Fig. 9: quality against cache size, selection under threshold spread."""

import numpy as np

from golden.algorithms.attention import attention_scores
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import SPREAD, recall_against_spread, spread_in_levels
from golden.evaluation.plots import curves
from golden.evaluation.section import Claim, Opened, Results, Run, Section, Table, Verdict
from golden.unicaim.cells import key_levels, key_step, query_levels

PROMPT, GENERATED, WINDOWS = 512, 64, 5
"""Windows of a prompt and some generated tokens, as many as the paper reserves rows for."""
SIZES = (96, 160, 224, 320, 448)
"""Rows, those for generated tokens among them."""
METHODS = {
    "UniCAIM, all rows": "unicaim:heavy={heavy},reserved=64,top_k={size},key_bits=0",
    "UniCAIM, top 64": "unicaim:heavy={heavy},reserved=64,top_k=64,key_bits=0",
    "UniCAIM, top 64 on 3 bits": "unicaim:heavy={heavy},reserved=64,top_k=64,key_bits=3",
    "SnapKV-style": "snapkv:capacity={heavy}",
    "StreamingLLM": "streaming:capacity={size}",
}
OURS = [name for name in METHODS if name.startswith("UniCAIM")]
SPREADS = (0, 0.018, 0.036, 0.054, 0.072, 0.108)
"""Volts."""
ROWS, TOP = 576, 64


def _run(policy: str) -> Run:
    window = PROMPT + GENERATED
    return Run(policy, WINDOWS * window, PROMPT, window)


def _policy(name: str, size: int) -> str:
    return METHODS[name].format(size=size, heavy=size - GENERATED)


def runs(tokens: int) -> list[Run]:
    policies = ["dense", *(_policy(name, size) for name in METHODS for size in SIZES)]
    return [_run(policy) for policy in policies]


def extras(opened: Opened) -> dict:
    """Recall of the top 64 of 576 rows against the spread, over three layers and all heads."""
    model, tokens = opened.model, opened.tokens
    layers = [model.config.layers * part // 10 for part in (1, 5, 9)]
    seen = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in layers and name in "qk":
            seen[layer, name] = array

    model.hidden(tokens, observer=observer)
    rows = min(ROWS, len(tokens) - 8)
    of_levels, of_exact = [], []
    spreads = tuple(spread_in_levels(volts) for volts in SPREADS)
    for layer in layers:
        q, k = seen[layer, "q"][:, rows : rows + 8], seen[layer, "k"][:, :rows]
        levels = key_levels(k, key_step(k, 3), 3)
        group = len(q) // len(k)
        for head in range(len(q)):
            queries = query_levels(q[head], 3)
            exact = attention_scores(q[head], k[None, head // group], 1.0)
            for found, reference in ((of_levels, None), (of_exact, top_k(exact, TOP))):
                found.append(
                    recall_against_spread(
                        levels[head // group], queries, 3, TOP, spreads, 4, 0, reference
                    ).tolist()
                )
    return {
        "rows": rows,
        "volts": list(SPREADS),
        "recall_of_levels": np.mean(of_levels, axis=0).tolist(),
        "recall_of_exact": np.mean(of_exact, axis=0).tolist(),
    }


def section(tokens: int, results: Results, extras: dict) -> Section:
    def measured(name: str, size: int):
        return results[_run(_policy(name, size))]

    dense = results[_run("dense")].perplexity
    scores = {name: [measured(name, size).perplexity for size in SIZES] for name in METHODS}
    best = OURS[0]
    above_snapkv = [a < b for a, b in zip(scores[best], scores["SnapKV-style"], strict=True)]
    above_streaming = [a < b for a, b in zip(scores[best], scores["StreamingLLM"], strict=True)]
    largest = SIZES[-1]
    at_spread = SPREADS.index(SPREAD)
    recall = extras["recall_of_levels"][at_spread]
    claims = [
        Claim(
            "comparable with the full cache even at low ratios",
            f"{scores[best][-1] / dense - 1:+.1%} perplexity with {largest} rows after a prompt of"
            f" {PROMPT}, {scores[best][0] / dense - 1:+.1%} with {SIZES[0]}",
            Verdict.of(scores[best][-1] < 1.05 * dense, scores[best][0] < 1.05 * dense),
            "it is the static pruning that loses: sums over all of the prompt's queries favour old"
            " tokens, so the prompt's last ones go, which the next tokens need most; selecting 64"
            " rows, even on 3 bits, adds little",
        ),
        Claim(
            "better than SnapKV at every cache ratio",
            f"at {sum(above_snapkv)} of {len(SIZES)} sizes",
            Verdict.of(*above_snapkv),
            "SnapKV-style selection keeps the prompt's last 32 tokens; with little more than these,"
            " and no attention sink, it fails",
        ),
        Claim(
            "better than StreamingLLM at every cache ratio",
            f"at {sum(above_streaming)} of {len(SIZES)} sizes",
            Verdict.of(*above_streaming),
            "StreamingLLM keeps the latest tokens; after a longer generation (512 tokens) it was"
            " behind at every size",
        ),
        Claim(
            "linear, hence usable, under a threshold spread of 54 mV (Fig. 9)",
            f"the top {TOP} of {extras['rows']} rows are {recall:.1%} those without spread;"
            f" of those by exact scores, 3-bit levels find {extras['recall_of_exact'][0]:.1%} and"
            f" {extras['recall_of_exact'][at_spread]:.1%} with the spread",
            Verdict.of(recall > 0.9),
            "a memory window of 1.2 V is assumed, the paper's text gives none",
        ),
    ]
    rows = [
        [
            str(size),
            *(
                f"{measured(n, size).perplexity:.2f} ({measured(n, size).rows:.0f})"
                for n in METHODS
            ),
        ]
        for size in SIZES
    ]
    quality = curves(
        SIZES, scores, f"rows, after a prompt of {PROMPT}", "perplexity", line=("dense", dense)
    )
    recalls = curves(
        [1000 * volts for volts in SPREADS],
        {
            "of the same levels without spread": extras["recall_of_levels"],
            "of exact scores": extras["recall_of_exact"],
        },
        "standard deviation of the threshold voltage, mV",
        f"recall of the top {TOP}",
    )
    return Section(
        "UniCAIM: static and dynamic pruning in one array (Fig. 13, Fig. 9)",
        "Paper: LongChat-7B on HotpotQA and NarrativeQA, prompts of 1.5 and 2.5 thousand tokens."
        f" Here: perplexity of {GENERATED} tokens after a prompt of {PROMPT}, {WINDOWS} times;"
        f" dense {dense:.2f}.",
        claims,
        [Table("Perplexity (rows held at the end)", ["rows", *METHODS], rows)],
        [
            ("unicaim", "perplexity against cache size", quality),
            ("unicaim_spread", "recall of the selection against threshold spread", recalls),
        ],
    )
