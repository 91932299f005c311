"""Tables II to IV of the paper's text, and what its sentences on them are worth by the tables."""

import math
from collections.abc import Mapping, Sequence

from golden.studies.study import Claim, Verdict

MODELS = (
    *("LLaMA-7B", "LLaMA-13B", "LLaMA-30B", "LLaMA-2-7B", "LLaMA-2-13B", "LLaMA-2-70B"),
    "Mistral-7B",
)
FP16 = dict(zip(MODELS, (5.68, 5.09, 4.10, 5.47, 4.88, 3.32, 5.25), strict=True))
PERPLEXITY = {
    "W4A4": {
        "RTN": (8e3, 1e4, 3e5, 2e3, 7e3, 2e5, 6e3),
        "SmoothQuant": (4e2, 67.2, 32.5, 7e2, 56.6, 10.5, 5e2),
        "QuaRot": (6.34, 5.58, 4.64, 6.19, 5.45, 3.83, 5.77),
        "Atom": (6.25, 5.52, 4.61, 6.12, 5.31, 3.73, 5.76),
        "KLLM-S": (6.08, 5.38, 4.40, 6.00, 5.21, 3.60, 5.84),
        "KLLM": (6.04, 5.37, 4.38, 5.90, 5.19, 3.55, 5.75),
    },
    "W4A3": {
        "RTN": (2e4, 2e4, 1e4, 6e5, 5e5, 6e5, 1e4),
        "SmoothQuant": (5e4, 2e4, 2e4, 8e3, 1e4, 1e4, 9e3),
        "QuaRot": (29.75, 19.02, 13.50, 2e2, 2e2, 85.28, 2e2),
        "Atom": (9.62, 7.36, 6.18, 11.40, 8.00, 5.05, 10.83),
        "KLLM-S": (7.60, 6.28, 5.31, 7.91, 6.99, 4.13, 7.42),
        "KLLM": (7.17, 6.21, 5.10, 7.49, 6.43, 4.05, 7.27),
    },
}
"""Table II, WikiText-2, by precision, method and model."""
ACCURACY = {
    "FP16": {"FP16": (78.67, 74.58, 46.16, 75.95, 68.98, 68.87)},
    "W4A4": {
        "QuaRot": (76.77, 69.87, 40.87, 72.16, 63.77, 64.69),
        "Atom": (75.14, 52.99, 38.40, 69.37, 62.75, 59.73),
        "KLLM-S": (77.31, 71.46, 42.92, 72.57, 64.80, 65.81),
        "KLLM": (77.97, 73.06, 43.60, 74.32, 65.51, 66.89),
    },
    "W4A3": {
        "QuaRot": (72.17, 60.26, 35.37, 63.61, 60.48, 58.38),
        "Atom": (71.01, 48.63, 33.49, 62.54, 59.50, 55.03),
        "KLLM-S": (75.14, 63.93, 37.37, 67.58, 63.93, 61.59),
        "KLLM": (75.84, 65.99, 39.59, 68.28, 64.17, 62.77),
    },
}
"""Table III, percent: five tasks and their mean, LLaMA-2-7B."""
BY_SHARE = {
    "W4A4": {"KLLM-S": (6.62, 6.00, 5.95, 5.80, 5.69), "KLLM": (6.11, 5.90, 5.87, 5.66, 5.58)},
    "W4A3": {"KLLM-S": (11.14, 7.91, 7.11, 6.40, 6.12), "KLLM": (9.66, 7.49, 6.62, 6.22, 5.98)},
}
"""Table IV: perplexity of LLaMA-2-7B by `SHARES` of outliers."""
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)
SECOND = "LLaMA-2-7B"
"""The model of Tables III and IV and of section V-B's first figures."""
SMOOTHQUANT, SMOOTHQUANT_TIMES = 702.3, 127
"""Section I: perplexity of SmoothQuant at W4A4, and how many times higher than FP16's."""
ATOM_LESS = 0.34
"""Section V-B: how much lower KLLM's degradation is than Atom's."""
GAIN = {"W4A4": 0.05, "W4A3": 0.27}
"""Section V-B: perplexity by which KLLM is below KLLM-S."""
DROPS = {"W4A4": 1.98, "W4A3": 6.1}
OVER = {
    "W4A4": {"Atom": 7.16, "QuaRot": 2.2},
    "W4A3": {"Atom": 7.74, "QuaRot": 4.39},
}
"""Section V-B, percentage points of Table III's mean: below FP16, and over the others."""
PRINTED = 0.0051
"""Most that figures of two digits may be off by their rounding."""


def of_model(model: str, precision: str) -> dict[str, float]:
    """Perplexity of each method on a model."""
    at = MODELS.index(model)
    return {name: values[at] for name, values in PERPLEXITY[precision].items()}


def table_gain(precision: str) -> float:
    """KLLM over KLLM-S in nats: mean over the models of Table II."""
    rows = PERPLEXITY[precision]
    pairs = zip(rows["KLLM"], rows["KLLM-S"], strict=True)
    return sum(math.log(own / fixed) for own, fixed in pairs) / len(MODELS)


def share_gain(method: str, precision: str, low: float, high: float) -> float:
    """Perplexity with a share `high` of outliers over that with `low`, in nats (Table IV)."""
    values = BY_SHARE[precision][method]
    return math.log(values[SHARES.index(high)] / values[SHARES.index(low)])


def agrees(*holds: bool) -> Verdict:
    """Whether the paper's figures agree with one another."""
    return Verdict.HOLDS if all(holds) else Verdict.CONTRADICTS


def table_claims() -> list[Claim]:
    """What the text says of Fig. 1a and of Tables II to IV, by the tables' own figures."""
    return [
        _degradation(),
        _lowest(),
        _dynamic(),
        _generations(PERPLEXITY["W4A3"]),
        _accuracy(),
        *_shares(BY_SHARE),
    ]


def _degradation() -> Claim:
    four = of_model(SECOND, "W4A4")
    fp16 = FP16[SECOND]
    times = SMOOTHQUANT / fp16
    own, atom = four["KLLM"] - fp16, four["Atom"] - fp16
    less = 1 - own / atom
    return Claim(
        f"W4A4 on {SECOND}: SmoothQuant's perplexity {SMOOTHQUANT} is {SMOOTHQUANT_TIMES} times"
        f" higher than FP16's; KLLM's is {four['KLLM']:.2f}, 0.43 above FP16,"
        f" {100 * ATOM_LESS:.0f} % less than Atom (sections I and V-B)",
        f"{times:.1f} times {fp16}, so {times - 1:.1f} times higher; +{own:.2f} beside Atom's"
        f" +{atom:.2f}, {100 * less:.0f} % less",
        agrees(
            round(times - 1) == SMOOTHQUANT_TIMES,
            abs(own - 0.43) < PRINTED,
            round(less, 2) == ATOM_LESS,
        ),
        "by Table II; Atom is not among the methods here",
    )


def lowest_count(precision: str, method: str) -> int:
    """In how many models of Table II no method of another name is as low.

    KLLM and KLLM-S are not compared with each other.
    """
    rows = PERPLEXITY[precision]
    others = [values for name, values in rows.items() if not name.startswith("KLLM")]
    return sum(
        own < min(of) for own, of in zip(rows[method], zip(*others, strict=True), strict=True)
    )


def _lowest() -> Claim:
    counts = {
        f"{precision} {name}": lowest_count(precision, name)
        for precision in PERPLEXITY
        for name in ("KLLM", "KLLM-S")
    }
    own = [number for name, number in counts.items() if name.endswith("KLLM")]
    margin = of_model("Mistral-7B", "W4A4")
    return Claim(
        "KLLM has the lowest perplexity of all methods in all seven models (Table II)",
        ", ".join(f"{name} {number} of {len(MODELS)}" for name, number in counts.items()),
        agrees(*(number == len(MODELS) for number in own)),
        "models where it is below RTN, SmoothQuant, QuaRot and Atom. Closest: Mistral-7B at W4A4,"
        f" KLLM {margin['KLLM']}, Atom {margin['Atom']}, QuaRot {margin['QuaRot']}, where KLLM-S"
        f" has {margin['KLLM-S']}. No model of 7 billion parameters runs here, so that the figures"
        " themselves cannot be checked; the orders are, above",
    )


def _dynamic() -> Claim:
    means, second = {}, {}
    for precision, rows in PERPLEXITY.items():
        differences = [s - d for s, d in zip(rows["KLLM-S"], rows["KLLM"], strict=True)]
        means[precision] = sum(differences) / len(differences)
        second[precision] = differences[MODELS.index(SECOND)]
    return Claim(
        "KLLM's perplexity is "
        + " and ".join(f"{value} lower at {name}" for name, value in GAIN.items())
        + " than KLLM-S's (section V-B)",
        ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        + ", mean over the seven models of Table II",
        gain_verdict(second, means),
        f"the text does not say of which model; of {SECOND}, which the sentence before is about, "
        + " and ".join(f"{value:.2f}" for value in second.values()),
    )


def gain_verdict(second: Mapping[str, float], means: Mapping[str, float]) -> Verdict:
    """Of `GAIN`, by the model that the text speaks of, or if it is a mean over all models."""
    for verdict, found in ((Verdict.HOLDS, second), (Verdict.ASSUMED, means)):
        if all(abs(found[name] - GAIN[name]) < PRINTED for name in GAIN):
            return verdict
    return Verdict.CONTRADICTS


def _generations(rows: Mapping[str, Sequence[float]]) -> Claim:
    methods = ("SmoothQuant", "QuaRot", "Atom", "KLLM")
    pairs = [("LLaMA-7B", "LLaMA-2-7B"), ("LLaMA-13B", "LLaMA-2-13B")]
    lower = [
        f"{name} {a:g} and {b:g} ({second})"
        for name in methods
        for first, second in pairs
        if (b := rows[name][MODELS.index(second)]) <= (a := rows[name][MODELS.index(first)])
    ]
    number = len(methods) * len(pairs)
    return Claim(
        "at W4A3 SmoothQuant, QuaRot, Atom and KLLM have higher perplexity on LLaMA-2 7B and 13B"
        " than on LLaMA 7B and 13B (section V-B)",
        f"{number - len(lower)} of {number} pairs",
        agrees(not lower),
        f"by Table II; not so: {', '.join(lower)}" if lower else "by Table II",
    )


def _accuracy() -> Claim:
    rows = [row for of in ACCURACY.values() for row in of.values()]
    averages = [abs(sum(row[:-1]) / len(row[:-1]) - row[-1]) < PRINTED for row in rows]
    dense = ACCURACY["FP16"]["FP16"][-1]
    mean = {p: {name: row[-1] for name, row in of.items()} for p, of in ACCURACY.items()}
    drops = {p: dense - mean[p]["KLLM"] for p in DROPS}
    over = {p: {name: mean[p]["KLLM"] - mean[p][name] for name in OVER[p]} for p in OVER}
    said = [abs(drops[p] - DROPS[p]) < 2 * PRINTED for p in DROPS]
    said += [abs(over[p][name] - OVER[p][name]) < 2 * PRINTED for p in OVER for name in OVER[p]]
    first = [
        own > other
        for p in DROPS
        for name, row in ACCURACY[p].items()
        if name != "KLLM"
        for own, other in zip(ACCURACY[p]["KLLM"], row, strict=True)
    ]
    three, quality = of_model(SECOND, "W4A3"), mean["W4A3"]
    return Claim(
        f"zero-shot accuracy on {SECOND}, mean of five tasks: KLLM loses 1.98 and 6.1 (W4A4, W4A3);"
        " it is 7.16 and 7.74 above Atom, 2.2 and 4.39 above QuaRot, the best in each task"
        " (Table III)",
        f"-{drops['W4A4']:.2f}, -{drops['W4A3']:.2f}; Atom +{over['W4A4']['Atom']:.2f},"
        f" +{over['W4A3']['Atom']:.2f}; QuaRot +{over['W4A4']['QuaRot']:.2f},"
        f" +{over['W4A3']['QuaRot']:.2f}; best in {sum(first)} of {len(first)} comparisons",
        agrees(*averages, *said, *first),
        "sums of Table III; the text's percents are points. The two tables order the others"
        f" differently: at W4A3 QuaRot's perplexity is {three['QuaRot']:.0f} and Atom's"
        f" {three['Atom']:.1f}, but QuaRot's accuracy {quality['QuaRot']} and Atom's"
        f" {quality['Atom']}",
    )


def _shares(table: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Claim]:
    rows = {f"{p} {name}": row for p, of in table.items() for name, row in of.items()}
    falling = [all(b < a for a, b in zip(row, row[1:], strict=False)) for row in rows.values()]
    lower = [
        own < fixed
        for of in table.values()
        for own, fixed in zip(of["KLLM"], of["KLLM-S"], strict=True)
    ]
    one = SHARES.index(0.01)
    same = [
        row[one] == of_model(SECOND, precision)[name]
        for precision, of in table.items()
        for name, row in of.items()
    ]
    return [
        Claim(
            "a larger share of outliers lowers perplexity in each configuration, five shares from"
            " 0.5 to 10 %; 1 % costs 0.43 at W4A4 (Table IV)",
            f"falls throughout in {sum(falling)} of {len(falling)} rows, KLLM below KLLM-S in"
            f" {sum(lower)} of {len(lower)} cells; 1 % costs"
            f" {table['W4A4']['KLLM'][one] - FP16[SECOND]:.2f}, as in Table II in {sum(same)} of"
            f" {len(same)} cells",
            agrees(
                *falling,
                *lower,
                *same,
                abs(table["W4A4"]["KLLM"][one] - FP16[SECOND] - 0.43) < 0.01,
            ),
            "by Table IV; measured for 1 and 10 %, above",
        )
    ]
