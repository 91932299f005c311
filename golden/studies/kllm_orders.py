"""Orders of methods and of steps in Tables II to IV and Fig. 11, as they are measured."""

import math
from collections.abc import Mapping

import numpy as np

from golden.algorithms.kllm.kmeans import nearest
from golden.evaluation.estimate import Decision, Estimate
from golden.evaluation.row import Row
from golden.studies import kllm_tables as paper
from golden.studies.study import CLOSE, Claim, Verdict

Tried = Mapping[str, Mapping[str, Mapping[str, Row]]]
"""Rows by precision, model and name of the method."""
ROTATED = "RTN rotated, as QuaRot"
WORSE = 10
"""Times KLLM's perplexity: what RTN must have at least."""
STEPS = {"fitted": "weights fitted with error feedback", "paper's fit": "plain K-Means"}
"""Fits of the weights with which fused norms were tried."""


def more(first: tuple[Row, Row], second: tuple[Row, Row]) -> Estimate:
    """Loss of one row over another, less a second pair's, nats a token, by window."""
    (a, b), (c, d) = first, second
    over = np.subtract(a.deltas, b.deltas) - np.subtract(c.deltas, d.deltas)
    return Estimate.of(over.tolist())


def order_claims(tried: Tried) -> list[Claim]:
    """Orders of Table II between the methods that run here."""
    return [_baselines(tried), _static(tried), _bits(tried), _dynamic(tried), _accuracy(tried)]


def _baselines(tried: Tried) -> Claim:
    found: dict[str, Estimate] = {}
    for precision, models in tried.items():
        for model, of in models.items():
            found[f"{precision} {model}: QuaRot over SmoothQuant"] = of[ROTATED].over(
                of["SmoothQuant"]
            )
            if precision == "W4A4":
                found[f"{precision} {model}: SmoothQuant over RTN"] = of["SmoothQuant"].over(
                    of["RTN"]
                )
    return Claim(
        "QuaRot has lower perplexity than SmoothQuant at both precisions, SmoothQuant lower than"
        " RTN at W4A4, in all seven models (Table II)",
        ", ".join(f"{name} {of:+.3f}" for name, of in found.items()),
        Verdict.measured(*(of.against(0) for of in found.values())),
        "loss of one over the other. Smoothing is for channels of outliers, of which larger models"
        " likely have more; of W4A3 the table itself has SmoothQuant above RTN in LLaMA-7B and 30B",
    )


def _static(tried: Tried) -> Claim:
    found = {
        f"{precision} {model} {name}": of["KLLM-S"].over(of[name])
        for precision, models in tried.items()
        for model, of in models.items()
        for name in ("RTN", "SmoothQuant", ROTATED)
    }
    return Claim(
        "KLLM-S too has lower perplexity than RTN, SmoothQuant and QuaRot (but for QuaRot at W4A4"
        " on Mistral-7B; Table II)",
        ", ".join(f"{name} {of:+.3f}" for name, of in found.items()),
        Verdict.measured(*(of.against(0) for of in found.values())),
        "loss of KLLM-S over each",
    )


def _bits(tried: Tried) -> Claim:
    found = {}
    for name in ("RTN", "SmoothQuant", ROTATED, "KLLM-S", "KLLM"):
        for model, of in tried["W4A3"].items():
            found[f"{model} {name}"] = tried["W4A4"][model][name].over(of[name])
    return Claim(
        "activations of four bits have lower perplexity than of three, by each method in each"
        " model but RTN in LLaMA-30B (Table II)",
        ", ".join(f"{name} {of:+.3f}" for name, of in found.items()),
        Verdict.measured(*(of.against(0) for of in found.values())),
        "loss at W4A4 over that at W4A3",
    )


def _dynamic(tried: Tried) -> Claim:
    three, four = tried["W4A3"], tried["W4A4"]
    found = {
        model: more((of["KLLM"], of["KLLM-S"]), (four[model]["KLLM"], four[model]["KLLM-S"]))
        for model, of in three.items()
    }
    gains = ", ".join(
        f"{precision} {model} {of['KLLM'].over(of['KLLM-S']):+.3f}"
        for precision, models in tried.items()
        for model, of in models.items()
    )
    return Claim(
        f"finding outliers for each token gains more at W4A3 ({paper.GAIN['W4A3']} of perplexity)"
        f" than at W4A4 ({paper.GAIN['W4A4']}; section V-B)",
        f"{gains}; W4A3 over W4A4 " + ", ".join(f"{m} {of:+.3f}" for m, of in found.items()),
        Verdict.measured(*(of.against(0) for of in found.values())),
        "loss of KLLM over KLLM-S, and its difference between the precisions by window. The paper's"
        f" in nats, mean over its models: {paper.table_gain('W4A4'):+.3f} and"
        f" {paper.table_gain('W4A3'):+.3f}",
    )


def _accuracy(tried: Tried) -> Claim:
    def ahead(other: str) -> int:
        rows = [of for models in tried.values() for of in models.values()]
        return sum(of["KLLM"].same > of[other].same for of in rows)

    shares = [
        f"{precision} {model}: "
        + ", ".join(f"{name} {100 * of[name].same:.0f} %" for name in ("KLLM", "KLLM-S", ROTATED))
        for precision, models in tried.items()
        for model, of in models.items()
    ]
    return Claim(
        "zero-shot accuracies on PIQA, ARC, HellaSwag and WinoGrande (Table III)",
        "the next token is the float model's in " + "; ".join(shares),
        Verdict.UNKNOWN,
        "neither a model of 7 billion parameters nor the five data sets are here. The share of"
        f" tokens is another measure: KLLM's is higher than QuaRot's in {ahead(ROTATED)} of"
        f" {len(shares)} and than KLLM-S's in {ahead('KLLM-S')}",
    )


def share_claim(rows: Mapping[tuple[str, str, float], Row], low: float, high: float) -> Claim:
    """What a larger share of outliers gains at each precision (Table IV).

    rows
        By method, precision and share.
    """

    def pair(name: str, precision: str) -> tuple[Row, Row]:
        return rows[name, precision, high], rows[name, precision, low]

    found = {name: more(pair(name, "W4A3"), pair(name, "W4A4")) for name in ("KLLM-S", "KLLM")}
    theirs = {
        name: [paper.share_gain(name, precision, low, high) for precision in ("W4A4", "W4A3")]
        for name in found
    }
    return Claim(
        f"from {100 * low:g} to {100 * high:g} % of outliers perplexity falls more at W4A3 than at"
        " W4A4 (Table IV)",
        ", ".join(f"{name} {of:+.3f}" for name, of in found.items()),
        Verdict.measured(*(of.against(0) for of in found.values())),
        "change of loss at W4A3 less that at W4A4, by window. The paper's changes in nats at W4A4"
        " and W4A3: "
        + ", ".join(
            f"{name} {four:+.3f} and {three:+.3f}" for name, (four, three) in theirs.items()
        ),
    )


def norm_claim(fused: Mapping[str, tuple[Row, Row]]) -> Claim:
    """What norms on indices lose (Fig. 4).

    fused
        By the weights' fit, with norms fused and without.
    """
    over = {fit: with_norms.over(without) for fit, (with_norms, without) in fused.items()}
    same = delay_keeps_indices()
    return Claim(
        "delaying RMSNorm's division behind the product does not affect correctness (Fig. 4)",
        f"{'the same' if same else 'other'} indices ahead of the division; norms on indices"
        " lose " + ", ".join(f"{of:+.3f} ({STEPS[fit]})" for fit, of in over.items()),
        Verdict.measured(
            Decision.WITHIN if same else Decision.ABOVE, *(of.against(0) for of in over.values())
        ),
        "the division is a factor of the token, as its scale is. The loss, W4A4 over norms in"
        " floats, is not the delay's: the vector is quantised ahead of the gains, which"
        " equation 2 leaves out and the weights take, so that both fit their codebooks worse",
    )


def delay_keeps_indices() -> bool:
    """Whether random vectors have the same indices before RMSNorm's division as after it."""
    x = np.random.default_rng(0).standard_t(5, (16, 256))
    codebook = np.sort(np.random.default_rng(1).uniform(-1, 1, 16))
    divided = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True))
    first, second = (
        nearest(of / np.abs(of).max(axis=1, keepdims=True), codebook) for of in (x, divided)
    )
    return np.array_equal(first, second)


def all_claim(row: Row, model: str) -> Claim:
    """Loss with all activations quantised, of which Table II is by section III-A."""
    four = paper.of_model(paper.SECOND, "W4A4")["KLLM"]
    times = four / paper.FP16[paper.SECOND]
    return Claim(
        "all activations but the softmax's inputs at four bits, norms, keys, values and scores too:"
        f" {times:.2f} times dense perplexity (section III-A, W4A4, {paper.SECOND}, {four})",
        f"{math.exp(row.delta.mean):.2f} times, {model}",
        Verdict.measured(row.delta.against(math.log((1 + CLOSE) * times))),
        f"at most a tenth above {times:.2f}, with 1 % of outliers; the rows of Table II have"
        " norms and attention in floats. A small model has less to spare",
    )


def step_claims(
    rows: Mapping[str, Row] | None,
    perplexities: tuple[float, ...],
    table: tuple[float, ...],
    model: str,
) -> list[Claim]:
    """Fig. 11's steps beside the same steps measured, W4A3.

    rows
        One of the model by method; None where the data are not kept.
    perplexities, table
        The figure's: RTN, K-Means, weighted, dynamic; and Table II's without the second.
    """
    rtn, kmeans, weighted, dynamic = perplexities
    agree = (rtn, weighted, dynamic) == table
    texts = (
        f"K-Means instead of integers: perplexity from above {rtn:,.0f} to {kmeans} (W4A3)",
        f"sample weights in K-Means: {kmeans} to {weighted}",
        f"outliers found online: {weighted} to {dynamic}",
        "non-uniform K-Means is the most effective contributor",
    )
    logs = [math.log(b / a) for a, b in zip(perplexities, perplexities[1:], strict=False)]
    if rows is None:
        return [
            Claim(
                text, "not measured", Verdict.UNKNOWN, "no data of KLLM's algorithm are kept here"
            )
            for text in texts
        ]
    found = rows["KLLM"]
    pairs = (
        (rows["KLLM-S"], rows["RTN"]),
        (rows["KLLM, Fisher"], found),
        (found, rows["KLLM-S"]),
    )
    first, second, third = (a.over(b) for a, b in pairs)
    first_over = [more(pairs[0], pair) for pair in pairs[1:]]
    source = f"{model}, {found.windows} windows: [KLLM's algorithm](kllm.md)"
    tables = f"the first and the last two of the figure are{'' if agree else ' not'} Table II's"
    return [
        Claim(
            texts[0],
            f"{first:+.3f} nats, {math.exp(-first.mean):,.0f} times less",
            Verdict.measured(first.against(-math.log(WORSE))) if agree else Verdict.CONTRADICTS,
            f"at least {WORSE} times less, KLLM-S over RTN; the paper's {logs[0]:+.1f} nats."
            f" {tables[0].upper()}{tables[1:]}. {source}",
        ),
        Claim(
            texts[1],
            f"{second:+.3f} nats",
            Verdict.measured(second.against(0)),
            f"the paper's {logs[1]:+.3f}. Fisher weights over none, outliers found online in both."
            f" {source}",
        ),
        Claim(
            texts[2],
            f"{third:+.3f} nats",
            Verdict.measured(third.against(0)),
            f"the paper's {logs[2]:+.3f}. KLLM over KLLM-S, both without sample weights. {source}",
        ),
        Claim(
            texts[3],
            f"over the others' gains {first_over[0]:+.3f} and {first_over[1]:+.3f} nats",
            Verdict.measured(*(of.against(0) for of in first_over)),
            "the first step's gain less each other's, by window. KLLM-S keeps 1 % of outliers, as"
            " Table II's 7.91 does, so that the step is not K-Means alone:"
            f" [what each does to the error](kllm_counting.md). {source}",
        ),
    ]
