"""UniCAIM, Fig. 13 and Fig. 9: quality against cache size, and under a spread of thresholds."""

import dataclasses

import numpy as np

from golden.algorithms.attention import attention_scores
from golden.algorithms.unicaim.selection import top_k
from golden.algorithms.unicaim.spread import SPREAD, recall_against_spread, spread_in_levels
from golden.evaluation.after_prompt import Scores, cut, score
from golden.evaluation.plots import curves
from golden.lm.text import shipped_prose
from golden.studies.runs import Opened, Results, Run
from golden.studies.study import OURS, PAPER, Claim, Picture, Study, Table, Verdict
from golden.unicaim.cells import KEY_SPAN, key_levels, key_step, query_levels, rotated_key_span
from golden.unicaim.rotation import rotated

PROMPT, GENERATED = 512, 64
"""Tokens of a window; as many are generated as the paper reserves rows for."""
WINDOWS, OTHER_WINDOWS = 5, 6
"""Windows of the default text, one after another, and of the prose about cranes.

The prose is short, so its prompts overlap and only the tokens that are predicted do not.
"""
TOKENS_NEEDED = WINDOWS * (PROMPT + GENERATED)
ROWS, TOP = PROMPT + GENERATED, 64

PLAIN = "rotate=false,centre=false"
"""The paper writes keys as they are."""
SIZES = (96, 160, 224, 320, 448)
"""Rows, those for generated tokens among them."""
METHODS = {
    "UniCAIM, paper": f"unicaim:heavy={{heavy}},observe=0,{PLAIN}",
    "UniCAIM": "unicaim:heavy={heavy}",
    "SnapKV-style": "snapkv:capacity={heavy}",
    "StreamingLLM": "streaming:capacity={size}",
}
SPREADS = (0, 18, 36, 54, 72, 108)
"""Millivolts."""
AT_PAPER = SPREADS.index(round(1000 * SPREAD))
CURVES = {
    "keys as they are": f"unicaim:{PLAIN},spread_mv={{}}",
    "rotated and centred": "unicaim:spread_mv={}",
}
_CELLS = "unicaim:exact=cells"
_SMALL = "unicaim:heavy=96"
_CONVERTED = (
    f"Attention from the converted scores of the cells, {TOP} of {ROWS} rows (bits of key / query)"
)
OPTIONS = {
    f"Selection of {TOP} of {ROWS} rows by 3-bit cells, 3-bit queries; attention on exact rows": {
        "exact selection": "unicaim:key_bits=0",
        "keys as they are (paper)": CURVES["keys as they are"].format(0),
        "rotated and centred": CURVES["rotated and centred"].format(0),
        "rotated and centred, 1-bit query": "unicaim:query_bits=1",
        "54 mV, keys as they are (paper)": CURVES["keys as they are"].format(54),
        "54 mV, keys as they are, span 2.5": f"unicaim:{PLAIN},span=2.5,spread_mv=54",
        "54 mV, centred, span 2.5": "unicaim:rotate=false,span=2.5,spread_mv=54",
        "54 mV, rotated": "unicaim:centre=false,spread_mv=54",
        "54 mV, rotated and centred": CURVES["rotated and centred"].format(54),
        "54 mV, rotated and centred, 1-bit query": "unicaim:query_bits=1,spread_mv=54",
    },
    _CONVERTED: {
        "3/3, keys as they are (paper)": f"{_CELLS},{PLAIN}",
        "3/3, centred": f"{_CELLS},rotate=false",
        "3/3, rotated": f"{_CELLS},centre=false",
        "3/3, rotated and centred": _CELLS,
        "3/3, rotated and centred, span 3": f"{_CELLS},span=3",
        "3/3, rotated and centred, 10-bit converters": f"{_CELLS},converter_bits=10",
        "3/3, rotated and centred, 54 mV": f"{_CELLS},spread_mv=54",
        "4/5, rotated and centred": f"{_CELLS},key_bits=4,query_bits=5",
        "6/6, rotated and centred": f"{_CELLS},key_bits=6,query_bits=6",
    },
    f"Static pruning to 96 + {GENERATED} rows": {
        "sums of all queries (paper), all rows attended": (
            f"{_SMALL},top_k=160,key_bits=0,observe=0"
        ),
        "sums of the last 32 queries, all rows attended": f"{_SMALL},top_k=160,key_bits=0",
        f"sums of all queries, top {TOP} on 3 bits, keys as they are (paper)": (
            f"{_SMALL},observe=0,{PLAIN}"
        ),
        f"sums of the last 32 queries, top {TOP} on 3 bits, rotated and centred": _SMALL,
        "the same, 54 mV": f"{_SMALL},spread_mv=54",
    },
}


def runs(tokens: int) -> list[Run]:
    return []


def _by_size(name: str, size: int) -> str:
    return METHODS[name].format(size=size, heavy=size - GENERATED)


def extras(opened: Opened) -> dict:
    """Scores on both texts, and recall of the selection against the spread."""
    options = ["dense", *(policy for group in OPTIONS.values() for policy in group.values())]
    more = [_by_size(name, size) for name in METHODS for size in SIZES]
    more += [policy.format(mv) for policy in CURVES.values() for mv in SPREADS]
    prose = opened.tokenizer.encode(shipped_prose(), opened.model.config.context)
    texts = {
        "default": (cut(opened.all_tokens, PROMPT, GENERATED, ROWS, WINDOWS), options + more),
        "cranes": (cut(prose, PROMPT, GENERATED, GENERATED, OTHER_WINDOWS), options),
    }
    found = {}
    for name, (windows, policies) in texts.items():
        scores = score(opened.model, windows, PROMPT, dict.fromkeys(policies), f"unicaim, {name}")
        found[name] = {
            policy: dataclasses.asdict(of) | {"perplexity": of.perplexity}
            for policy, of in scores.items()
        }
    return {"scores": found, "recall": _recalls(opened)}


def _recalls(opened: Opened) -> dict:
    """Recall of the top 64 of 576 rows against the spread, over three layers and all heads."""
    model, tokens = opened.model, opened.tokens
    layers = [model.config.layers * part // 10 for part in (1, 5, 9)]
    seen = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in layers and name in "qk":
            seen[layer, name] = array

    model.hidden(tokens, observer=observer)
    rows = min(ROWS, len(tokens) - 8)
    spreads = [spread_in_levels(mv / 1000) for mv in SPREADS]
    found: dict[str, dict[str, list]] = {name: {"levels": [], "exact": []} for name in CURVES}
    for layer in layers:
        q, k = seen[layer, "q"][:, rows : rows + 8], seen[layer, "k"][:, :rows]
        exact = attention_scores(q.reshape(-1, q.shape[-1]), k, 1.0)
        near = top_k(exact.reshape(*q.shape[:2], rows), TOP)
        for name, of_variant in found.items():
            keys, queries, span = k, q, KEY_SPAN
            if name != "keys as they are":
                keys = rotated(k - k.mean(axis=1, keepdims=True), 0)
                queries, span = rotated(q, 0), rotated_key_span(3)
            levels = key_levels(keys, key_step(keys, 3, span), 3)
            for head, some in enumerate(query_levels(queries, 3)):
                for kind, reference in (("levels", None), ("exact", near[head])):
                    of_variant[kind].append(
                        recall_against_spread(
                            levels[head * len(k) // len(q)], some, 3, TOP, spreads, 4, 0, reference
                        )
                    )
    return {"rows": rows} | {
        name: {kind: np.mean(curve, axis=0).tolist() for kind, curve in kinds.items()}
        for name, kinds in found.items()
    }


def study(tokens: int, results: Results, extras: dict) -> Study:
    texts = {
        name: {policy: Scores(tuple(of["losses"]), of["rows"]) for policy, of in policies.items()}
        for name, policies in extras["scores"].items()
    }
    default, cranes = texts.values()
    sizes = {name: [default[_by_size(name, size)].perplexity for size in SIZES] for name in METHODS}
    spread = {
        name: [default[policy.format(mv)].perplexity for mv in SPREADS]
        for name, policy in CURVES.items()
    }
    claims = [*_pruning_claims(default, sizes), *_spread_claims(texts, extras["recall"])]
    claims.append(_cells_claim(texts))
    dense = default["dense"].perplexity
    volts = "standard deviation of the threshold voltage, mV"
    recalls = {
        f"{name}, of {'exact scores' if kind == 'exact' else 'the same levels without spread'}": y
        for name in CURVES
        for kind, y in extras["recall"][name].items()
    }
    return Study(
        "unicaim",
        "UniCAIM: static and dynamic pruning in one array (Fig. 13, Fig. 9)",
        "Paper: LongChat-7B on HotpotQA and NarrativeQA, prompts of 1.5 and 2.5 thousand tokens."
        f" Here: perplexity of {GENERATED} tokens after a prompt of {PROMPT} with dense attention:"
        f" {WINDOWS} windows of the text named in the index, dense {dense:.2f}, and"
        f" {len(cranes['dense'].losses)} of the prose about cranes, whose prompts overlap, dense"
        f" {cranes['dense'].perplexity:.2f}. Percentages are against dense attention, ± the"
        " standard error over the windows, paired. Every window and layer has its own devices and"
        " rotation. *UniCAIM, paper* sums the probabilities of all of the prompt's"
        " queries and writes keys as they are; *UniCAIM*, the default, sums them over the last 32"
        " queries, takes the prompt's mean key off the keys and rotates keys and queries"
        " (Hadamard, random signs) before they become levels. Rotation and centring change neither"
        " a softmax nor an order of exact scores; they are made where levels are made, outside the"
        " array.",
        claims,
        [
            Table(
                "Perplexity by rows (top 64 on 3 bits for UniCAIM)",
                ["rows", *METHODS],
                [
                    [str(size), *(_cell(default, _by_size(name, size)) for name in METHODS)]
                    for size in SIZES
                ],
            ),
            *(
                Table(
                    title,
                    ["", "default text", "cranes"],
                    [
                        [label, *(_cell(text, policy) for text in texts.values())]
                        for label, policy in options.items()
                    ],
                )
                for title, options in OPTIONS.items()
            ),
        ],
        [
            Picture(
                "unicaim",
                "perplexity against cache size",
                lambda: curves(SIZES, sizes, "rows", "perplexity", line=("dense", dense)),
            ),
            Picture(
                "unicaim_spread",
                "recall of the selection against threshold spread",
                lambda: curves(SPREADS, recalls, volts, f"recall of the top {TOP}"),
            ),
            Picture(
                "unicaim_perplexity",
                "perplexity against threshold spread",
                lambda: curves(
                    SPREADS, spread, volts, "perplexity", line=("dense", dense), log_y=True
                ),
            ),
        ],
    )


def _pruning_claims(scores: dict[str, Scores], sizes: dict[str, list[float]]) -> list[Claim]:
    """Fig. 13, on the default text."""
    ours = sizes["UniCAIM"]
    over = {
        name: [scores[_by_size(name, size)].over(scores["dense"])[0] - 1 for size in SIZES]
        for name in METHODS
    }

    def ends(name: str) -> str:
        return (
            f"{over[name][-1]:+.1%} with {SIZES[-1]} rows after a prompt of {PROMPT},"
            f" {over[name][0]:+.1%} with {SIZES[0]}"
        )

    claims = [
        Claim(
            "comparable with the full cache even at low ratios",
            f"perplexity {ends('UniCAIM')}; as the paper sums, {ends('UniCAIM, paper')}",
            Verdict.of(over["UniCAIM"][-1] < 0.05, over["UniCAIM"][0] < 0.05),
            "sums over all of the prompt's queries favour old tokens, so the prompt's last ones go,"
            " which the next tokens need most; sums of the last 32 queries keep them. 32 rows of"
            " the prompt are too few for either",
        )
    ]
    for name in ("SnapKV-style", "StreamingLLM"):
        lower = [a < b for a, b in zip(ours, sizes[name], strict=True)]
        claims.append(
            Claim(
                f"better than {name.removesuffix('-style')} at every cache ratio",
                f"at {sum(lower)} of {len(SIZES)} sizes; as the paper sums, at"
                f" {sum(a < b for a, b in zip(sizes['UniCAIM, paper'], sizes[name], strict=True))}",
                Verdict.of(*lower),
                WHY[name],
            )
        )
    return claims


WHY = {
    "SnapKV-style": "SnapKV-style selection keeps the prompt's last 32 tokens; with little more"
    " than these, and no attention sink, it fails. With more rows it attends to all of them,"
    " UniCAIM to 64",
    "StreamingLLM": "StreamingLLM keeps the latest tokens, which is what 64 tokens of prose need"
    " most; it forgets everything else",
}


def _spread_claims(texts: dict[str, dict[str, Scores]], recall: dict) -> list[Claim]:
    """Fig. 9 on both texts: with the keys as they are, and rotated and centred."""
    claims = []
    for name, policy in CURVES.items():
        ratios = [
            scores[policy.format(SPREADS[AT_PAPER])].over(scores[policy.format(0)])
            for scores in texts.values()
        ]
        of_levels, of_exact = (recall[name][kind] for kind in ("levels", "exact"))
        claims.append(
            Claim(
                "linear, hence usable, under a threshold spread of 54 mV (Fig. 9): "
                + ("as in the paper, " if name == "keys as they are" else "")
                + name,
                "perplexity "
                + " and ".join(f"{r - 1:+.1%} ± {100 * e:.1f}" for r, e in ratios)
                + f" by the spread on the two texts; of the top {TOP} of {recall['rows']} rows"
                f" {of_levels[AT_PAPER]:.0%} are those without spread, and"
                f" {of_exact[AT_PAPER]:.0%} (without spread {of_exact[0]:.0%}) those by exact"
                " scores",
                Verdict.of(*(r < 1.03 for r, _ in ratios)),
                "a memory window of 1.2 V is assumed, the paper's text gives none. "
                + (
                    "A few elements of a key are much larger than the rest, so most levels stay"
                    " near 0 and the spread is as large as their differences"
                    if name == "keys as they are"
                    else "The rotation costs nothing in the array. The rows that are missed are"
                    " near the last of the 64 and count little in the softmax"
                ),
                PAPER if name == "keys as they are" else OURS,
            )
        )
    return claims


def _cells_claim(texts: dict[str, dict[str, Scores]]) -> Claim:
    """Section III-B5, on both texts."""
    by_label = OPTIONS[_CONVERTED]

    def over(label: str) -> list[float]:
        return [scores[by_label[label]].over(scores["dense"])[0] - 1 for scores in texts.values()]

    def told(label: str) -> str:
        return " and ".join(f"{value:+.0%}" for value in over(label))

    bits, more = "3/3, rotated and centred", "6/6, rotated and centred"
    noisy = "3/3, rotated and centred, 54 mV"
    return Claim(
        "exact attention by the cells of the selected rows (current-domain mode)",
        f"perplexity with 3-bit cells and queries {told(bits)} on the two texts (keys as they are"
        f" {told('3/3, keys as they are (paper)')}), with a spread of 54 mV {told(noisy)}; with 6"
        f" bits each and no spread {told(more)}",
        Verdict.of(all(x < 0.1 for x in over(bits)), all(x < 0.1 for x in over(more))),
        "the levels round keys and queries, and the spread moves each row's score by a"
        " different error, which a selection forgives and a softmax does not; converters of 10"
        " bits add little. The default therefore selects rows by the cells and attends to the"
        " exact keys",
    )


def _cell(scores: dict[str, Scores], policy: str) -> str:
    """Perplexity, and how much it is above dense attention's with its standard error."""
    ratio, error = scores[policy].over(scores["dense"])
    return f"{scores[policy].perplexity:.2f} ({ratio - 1:+.1%} ± {100 * error:.1f})"
