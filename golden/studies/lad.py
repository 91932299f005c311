"""LAD, Table II, Fig. 2 and Fig. 8: loss, locality of scores, reads, drift of the caches."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from golden.algorithms.lad.drift import Drift, measure_drift
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PAPER_BOUNDS, THIRTEEN_BOUNDS
from golden.algorithms.lad.rows import average, measure_rows
from golden.evaluation.estimate import Decision, Estimate
from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.lm.texts import HELD_OUT
from golden.studies import lad_claims, lad_rows, lad_trace
from golden.studies.recall import SIZES, free
from golden.studies.study import CLOSE, Claim, Picture, Study, Table, Verdict, exceeds, reaches
from golden.studies.trials import Choice, Chosen, Place, Trial, hidden_inputs, texts_of
from golden.trace import load, shipped

MODELS = ("smollm2", "qwen0.5b")
TEXTS = HELD_OUT
CONTEXT, QUERIES, WINDOWS = 2048, 64, 10
BOUNDS = {5: PAPER_BOUNDS, 8: EIGHT_BOUNDS, 13: THIRTEEN_BOUNDS}
"""By number of intervals; the paper shows five and does not say how many its figures have."""
TILE = "codes,slack=0.0002"
"""Identification and slack that the accelerator has by default."""
WAYS = {
    "centres": "centres",
    "bounds": "bounds",
    "codes, 6 bits, slack 2e-4": TILE,
}
DRIFT_STEPS = 2048
DRIFTS: dict[str, dict[str, Any]] = {
    "FP32": {"storage": "float32"},
    "FP16": {"storage": "float16"},
    "FP16, recomputed every 64 steps": {"storage": "float16", "refresh": 64},
    "FP32, products in FP16, differences": {"arithmetic": "fp16"},
    "FP32, products in FP16, pairs": {"arithmetic": "fp16", "terms": "pairs"},
}
WRITERS = {
    "LAD": "lad",
    "4 bits": "kv:bits=4,keys=token,residual=0",
    "H2O": f"h2o:capacity={SIZES[1]}",
}
"""Policies under which a model goes on from a prompt: 4 bits as QServe's cache has, and H2O with a
fifth of the tokens, as in the paper."""
ROUGE = 0.946
"""The least ROUGE-L of LAD in Table I."""
LENGTHS = (512, 1024, 2048, 4096)
"""Positions at which the rows of a step are counted."""
LAYERS = 3
"""Layers of a window in which rows are counted; drift is measured in the middle one."""
ROWS: dict[str, dict[str, Any]] = {
    "centres": {"identification": "centres"},
    "codes, 6 bits, slack 2e-4": {"identification": "codes", "slack": 2e-4},
}


def place(model: str) -> Place:
    return Place(model, CONTEXT, QUERIES, WINDOWS, TEXTS)


def long() -> Place:
    """Windows of the longest length at which rows are counted."""
    return Place(MODELS[0], max(DRIFT_STEPS, *LENGTHS), 1, WINDOWS, TEXTS)


def policy(intervals: int, way: str) -> str:
    bounds = "/".join(f"{bound:g}" for bound in BOUNDS[intervals])
    return f"lad:bounds={bounds},identification={WAYS[way]}"


def fifth() -> str:
    """H2O with a fifth of the tokens, as in the paper."""
    return f"h2o:capacity={math.ceil(CONTEXT / 5)}"


def _tried() -> dict[tuple[int, str], str]:
    """Policies by number of intervals and identification."""
    pairs = [(intervals, "centres") for intervals in BOUNDS]
    pairs += [(8, way) for way in WAYS if way != "centres"]
    return {pair: policy(*pair) for pair in pairs}


def choices() -> list[Choice]:
    return []


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    found = [Trial(text, place(model)) for model in MODELS for text in _tried().values()]
    found += [Trial(fifth(), place(model)) for model in MODELS]
    return found + [Trial(text, free(model)) for model in MODELS for text in WRITERS.values()]


def extras() -> dict:
    """Drift of the caches and rows of a step, on some layers of each window of the first model."""
    drifts: dict[str, list[Drift]] = {name: [] for name in DRIFTS}
    rows: dict[str, list[list[dict]]] = {name: [] for name in ROWS}
    for number in range(WINDOWS):
        layers = _some_layers(long(), number)
        q, k, v = (x[:, :DRIFT_STEPS] for x in layers[len(layers) // 2])
        for name, options in DRIFTS.items():
            drifts[name].append(measure_drift(q, k, v, 32, **options))
        for name, options in ROWS.items():
            counted = [measure_rows(q, k, v, LENGTHS, **options) for q, k, v in layers]
            means = map(average, zip(*counted, strict=True))
            rows[name].append([dataclasses.asdict(mean) for mean in means])
    return {
        "texts": texts_of(place(MODELS[0])),
        "steps": drifts["FP32"][0].steps.tolist(),
        "drift": {name: _largest(some).tolist() for name, some in drifts.items()},
        "output": {name: list(map(_late_output, some)) for name, some in drifts.items()},
        "rows": rows,
        "trace": lad_trace.measure(load(shipped()[0]), BOUNDS),
        "query heads of a kv head": len(layers[0][0]) // len(layers[0][1]),
    }


def _some_layers(place: Place, number: int) -> list[list[np.ndarray]]:
    """Queries, keys and values of some layers of a window, of others in each window."""
    inputs = hidden_inputs(place, number)
    apart = math.ceil(len(inputs) / LAYERS)
    return [[layer[name] for name in "qkv"] for layer in inputs[number % apart :: apart]]


def _largest(drifts: list[Drift]) -> np.ndarray:
    """Largest error of the caches A to F over windows and heads, step by step."""
    return np.max(
        [error.max(axis=1) for drift in drifts for error in drift.caches.values()], axis=0
    )


def _late_output(drift: Drift) -> float:
    """Error of the output that comes from the caches: the median over the last quarter of steps."""
    return float(np.median(drift.output[len(drift.steps) * 3 // 4 :]))


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    drifts = extras["drift"]
    output = {name: Estimate.of(windows) for name, windows in extras["output"].items()}
    drift_title = (
        f"Error of the caches A to F over {extras['steps'][-1]} steps against float64 recomputed"
        " from their definition, the largest of all windows, and of the output by it (a window's"
        f" median over the last quarter of the steps); {MODELS[0]}, {WINDOWS} windows, each with"
        " another layer"
    )
    drift_rows = [
        [name, f"{max(y):.2e}", f"{y[-1]:.2e}", f"{output[name]:.2e}"] for name, y in drifts.items()
    ]
    return Study(
        "lad",
        "LAD: locality aware decoding (Table II, Fig. 2, Fig. 8)",
        f"Paper: OPT 2.7B to LLaMA2 13B, lengths of 512 to 4096. Here: {', '.join(MODELS)};"
        f" {WINDOWS} windows of {CONTEXT} tokens of the held-out texts"
        f" {', '.join(extras['texts'])}. Each prompt is attended to densely, and its scores are"
        f" counted; LAD serves the last {QUERIES} queries in every layer. Losses are against dense"
        " attention, in nats a token, ± the standard error over the windows. `bounds` and `codes`"
        " are this project's own identifications: `bounds` misses no active position, `codes`"
        " takes scores from a copy of K in 6 bits. Slack lets a mode's line be used where it is"
        " still within 2e-4 of exp.",
        [
            *_claims(rows),
            *_text_claims(rows),
            _drift_claim(drifts, output),
            *lad_rows.claims(extras["rows"]),
            *lad_trace.claims(extras["trace"]),
            *lad_claims.measured_claims(_compared(rows)),
            *lad_claims.printed_claims(),
        ],
        [
            *(_table(rows, model) for model in MODELS),
            lad_rows.table(
                extras["rows"],
                extras["query heads of a kv head"],
                f"the heads of {LAYERS} layers, and {WINDOWS} windows of {long().context} tokens,"
                f" {MODELS[0]}, each with other layers",
            ),
            Table(drift_title, ["caches", "largest", "at the end", "output"], drift_rows),
        ],
        [
            Picture(
                "lad_drift",
                "error of the caches against the number of steps",
                lambda: curves(
                    extras["steps"], drifts, "step", "relative error of the caches", log_y=True
                ),
            )
        ],
    )


def _claims(rows: Mapping[Trial, Row]) -> list[Claim]:
    """The paper's identification, on each model."""

    def told(text: Callable[[Row], str], intervals: Sequence[int] = tuple(BOUNDS)) -> str:
        return "; ".join(
            f"{model}: "
            + ", ".join(
                f"{text(rows[Trial(policy(i, 'centres'), place(model))])} with {i}"
                for i in intervals
            )
            + " intervals"
            for model in MODELS
        )

    def each(intervals: Sequence[int] = tuple(BOUNDS)) -> list[Row]:
        return [rows[Trial(policy(i, "centres"), place(m))] for m in MODELS for i in intervals]

    def figures(name: str, intervals: Sequence[int] = tuple(BOUNDS)) -> list[Estimate]:
        return [row.figures[name] for row in each(intervals)]

    return [
        Claim(
            "perplexity equal to dense to the second decimal (Table II)",
            told(lambda row: f"{row.delta:+.4f} nats"),
            Verdict.measured(*(row.kl.against(EQUAL) for row in each())),
            f"equal is a KL of {EQUAL} nats a token, 0.005 of a perplexity of 16, by its 95 %"
            " interval, which is narrower than the difference's (KL in the tables). Qwen's keys"
            " have large biases, so that scores reach a thousand: a centre's angle of 11 degrees"
            " then misses them by tens, and 1 % of wrong intervals costs most",
        ),
        Claim(
            "a score lies in its likeliest interval with more than 74 %, in the two likeliest"
            " with more than 95 % (Fig. 2)",
            told(lambda row: f"{row.figures['top 1']:.1%} and {row.figures['top 2']:.1%}"),
            Verdict.measured(
                *(exceeds(top, 0.74) for top in figures("top 1", [5])),
                *(exceeds(top, 0.95) for top in figures("top 2", [5])),
            ),
            "judged with the five intervals that the figure shows; the narrower the intervals, the"
            " less a score remains in one. The paper states bounds, so that a figure close to one"
            " but below it does not hold",
        ),
        Claim(
            "keys fall into few directional centres (|cos| > 0.98)",
            told(lambda row: f"{row.figures['centre share']:.1%} of the keys are centres", [8]),
            Verdict.measured(*(share.against(0.5) for share in figures("centre share", [8]))),
            "few are at most half of the keys. Rotary positions turn every key by another angle;"
            " where keys have large biases, as in Qwen2's, some heads' keys still have one"
            " direction. The paper's OPT models have no rotation, its LLaMA2 models have",
        ),
        Claim(
            "about 1 % of the positions get a wrong interval",
            told(lambda row: f"{row.figures['false negatives']:.2%}"),
            Verdict.measured(
                *(share.against((1 + CLOSE) * 0.01) for share in figures("false negatives"))
            ),
            "about 1 % is at most a tenth more. Where nearly every key is its own centre, as in"
            " SmolLM2, this says little: such centres give exact scores",
        ),
        Claim(
            "more than 80 % of the active positions were active in the step before",
            told(lambda row: f"{row.figures['hit ratio']:.0%}"),
            Verdict.measured(*(exceeds(share, 0.8) for share in figures("hit ratio"))),
            f"in each of the {QUERIES} steps; before the first one those are active that the"
            " prompt's last query leaves outside their mode's interval",
        ),
    ]


def _text_claims(rows: Mapping[Trial, Row]) -> list[Claim]:
    """Table I, by ROUGE-L."""
    found = {
        (model, name): rows[Trial(text, free(model))].rouge_l
        for model in MODELS
        for name, text in WRITERS.items()
    }

    def told(name: str) -> str:
        return ", ".join(f"{model} {found[model, name]:.1%}" for model in MODELS)

    def closer(model: str, other: str) -> Decision:
        """Whether LAD's text is; the windows' pairs are not used, which makes it less certain."""
        ours, theirs = found[model, "LAD"], found[model, other]
        error = math.hypot(ours.error, theirs.error)
        return Estimate(theirs.mean - ours.mean, error, ours.number).against(0)

    first, *others = WRITERS
    return [
        Claim(
            "text is written as by the dense model: ROUGE-L of 94.6 to 98.2 % (Table I)",
            told(first),
            Verdict.measured(*(reaches(found[model, first], ROUGE) for model in MODELS)),
            f"{free(MODELS[0]).queries} tokens after prompts of {free(MODELS[0]).context} in"
            " held-out texts, each the likeliest; a text that differs once goes its own way",
        ),
        Claim(
            "closer than with a cache of 4 bits (52 to 76 %) and H2O (19 to 55 %, Table I)",
            "; ".join(f"{name}: {told(name)}" for name in WRITERS),
            Verdict.measured(*(closer(model, name) for model in MODELS for name in others)),
            "by the 95 % interval of the difference",
        ),
    ]


EQUAL = 0.0003
"""Nats a token: half of the second decimal of a perplexity of 16."""


def _table(rows: Mapping[Trial, Row], model: str) -> Table:
    here = {pair: rows[Trial(text, place(model))] for pair, text in _tried().items()}
    dense = next(iter(here.values())).dense
    return Table.of(
        f"{model}, dense perplexity {dense:.2f} (rows of each query head alone; codes count"
        " besides, so that more than K may be read; G, counters and caches do not; -: errors of"
        " codes where scores exceed a thousand leave a head without any weight above 0, and so"
        " without an output)",
        here.items(),
        ("intervals", "{0[0][0]}"),
        ("identification", "{0[0][1]}"),
        ("Δ nats", lambda entry: _finite(entry[1].delta, "{0:+.4f}")),
        ("KL", lambda entry: _finite(entry[1].kl, "{0:.5f}")),
        ("active share", "{0[1].figures[active share]:.1%}"),
        ("false negatives", "{0[1].figures[false negatives]:.2%}"),
        ("updates a step and head", "{0[1].figures[updates].mean:.1f}"),
        ("K fewer", "{0[1].k_times_fewer.mean:.2f}"),
        ("V fewer", "{0[1].v_times_fewer.mean:.2f}"),
        ("both", "{0[1].times_fewer.mean:.2f}"),
        ("both, shared", "{0[1].times_fewer_shared.mean:.2f}"),
    )


def _compared(rows: Mapping[Trial, Row]) -> dict[str, lad_claims.Compared]:
    """Rows of each model with eight intervals, and with H2O."""
    texts = policy(8, "centres"), policy(8, "bounds"), fifth()
    return {
        model: lad_claims.Compared(*(rows[Trial(text, place(model))] for text in texts))
        for model in MODELS
    }


def _finite(estimate: Estimate, form: str) -> str:
    return form.format(estimate) if math.isfinite(estimate.mean) else "-"


def _drift_claim(drifts: dict[str, list[float]], output: dict[str, Estimate]) -> Claim:
    return Claim(
        "caches updated step by step in FP16 serve the decoding",
        "largest relative error of a cache, and of the output: "
        + "; ".join(f"{max(y):.1e}, {output[name]:.1e} with {name}" for name, y in drifts.items()),
        Verdict.measured(
            *(output[name].against(0.01) for name in DRIFTS if name.startswith("FP16"))
        ),
        "the output may err by 1 %. qA − mB + C is a small difference of large terms, which"
        " amplifies the caches' errors about fivefold; FP32 caches, the default here, do not have"
        " the problem. With products in FP16 eq. 6's differences drift even then; old terms taken"
        " out exactly do not",
    )
