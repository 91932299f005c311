"""VEDA, Fig. 8 left and section III: loss against cache size, and what votes do."""

import math
from collections.abc import Mapping, Sequence

from golden.evaluation.estimate import Decision
from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.lm.texts import HELD_OUT
from golden.studies.study import Claim, Picture, Study, Table, Verdict
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of
from golden.studies.veda_votes import votes_claims, votes_figures

MODELS = ("smollm2", "qwen0.5b")
TEXTS = HELD_OUT
CONTEXT, QUERIES, WINDOWS = 2048, 64, 10
SIZES = (205, 410, 819)
"""Tokens kept, from 10 to 40 % of the context."""
LONG, LONG_WINDOWS = 4096, 10
"""The paper's longest context, for the first model."""
TENTH = 10
METHODS = {
    "voting": "voting:capacity={},prefill=evict",
    "H2O": "h2o:capacity={},prompt_by=step",
    "StreamingLLM": "streaming:capacity={}",
}
"""As a language model is measured: each evicts from the first token on."""
PROMPT = {
    "voting": "voting:capacity={}",
    "voting, first 32 kept": "voting:capacity={},protect_reserved=true",
    "H2O": "h2o:capacity={}",
    "H2O, by layer": "h2o:capacity={},per=layer",
}
"""After a dense prompt, which decides what is kept at its end."""
MORE = {"StreamingLLM, positions of the cache": "streaming:capacity={},positions=cache"}
ALL = (*METHODS.values(), *PROMPT.values(), *MORE.values())
NEGLIGIBLE = math.log(1.02)
"""Nats a token: two per cent of perplexity."""


def place(model: str) -> Place:
    return Place(model, CONTEXT, QUERIES, WINDOWS, TEXTS)


def long() -> Place:
    return Place(MODELS[0], LONG, QUERIES, LONG_WINDOWS, TEXTS)


def choices() -> list[Choice]:
    return []


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    found = [
        Trial(form.format(size), place(model)) for model in MODELS for form in ALL for size in SIZES
    ]
    return found + [Trial(form.format(LONG // TENTH), long()) for form in METHODS.values()]


def extras() -> dict:
    return {"texts": texts_of(place(MODELS[0])), "votes": votes_figures()}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    return Study(
        "veda",
        "VEDA: voting-based eviction (Fig. 8, left, and section III)",
        "Paper: Llama-2 7B, 1000 samples of PG-19, up to 4096 tokens. Here:"
        f" {', '.join(MODELS)}; {WINDOWS} windows of {CONTEXT} tokens, and {LONG_WINDOWS} of"
        f" {LONG}, of the held-out texts {', '.join(extras['texts'])}. The last {QUERIES} queries"
        " are counted; the tokens before them reach the caches with dense attention's states. As"
        " the paper measures language models, the caches are full from early on and evict token"
        " by token. In its prefilling phase a prompt only votes, and is evicted down to the"
        " cache's size at its end: a table apart. Voting evicts a token from all heads of a layer,"
        " H2O from a kv head, or by layer from all. Losses are against dense attention, in nats a"
        " token, ± the standard error over the windows. Speedup (Fig. 8, centre and"
        " right), GOPS, tokens/s and power: [speed](veda_speed.md). Shares of area (Table I):"
        " [area](veda_area.md).",
        [
            *(_lowest(rows, other) for other in ("H2O", "StreamingLLM")),
            _tenth(rows),
            _sinks(rows),
            *votes_claims(extras["votes"]),
        ],
        [
            *(_table(rows, model, METHODS | MORE, "evicting token by token") for model in MODELS),
            *(_table(rows, model, PROMPT, "after a dense prompt") for model in MODELS),
            _long_table(rows),
        ],
        [
            Picture(
                "veda",
                "loss against cache size",
                lambda: curves(
                    SIZES,
                    {
                        f"{name}, {model}": [
                            _row(rows, METHODS[name], size, model).delta.mean for size in SIZES
                        ]
                        for model in MODELS
                        for name in METHODS
                    },
                    f"tokens kept of {CONTEXT}",
                    "loss over dense attention, nats a token",
                    log_x=True,
                ),
            )
        ],
    )


def _row(rows: Mapping[Trial, Row], form: str, size: int, model: str) -> Row:
    return rows[Trial(form.format(size), place(model))]


def _lowest(rows: Mapping[Trial, Row], other: str) -> Claim:
    decided = {
        model: [
            _row(rows, METHODS["voting"], size, model)
            .over(_row(rows, METHODS[other], size, model))
            .against(0)
            for size in SIZES
        ]
        for model in MODELS
    }
    return Claim(
        f"voting has a lower perplexity than {other} at every cache size",
        "; ".join(
            f"{model}: lower at {found.count(Decision.WITHIN)}, higher at"
            f" {found.count(Decision.ABOVE)} of {len(SIZES)} sizes"
            for model, found in decided.items()
        ),
        Verdict.measured(*(decision for found in decided.values() for decision in found)),
        "by the 95 % interval of the difference, paired by window",
    )


def _tenth(rows: Mapping[Trial, Row]) -> Claim:
    kept = LONG // TENTH
    delta = rows[Trial(METHODS["voting"].format(kept), long())].delta
    return Claim(
        f"with a tenth of the length ({LONG}) the loss is negligible",
        f"{MODELS[0]}: {delta:+.3f} nats with {kept} tokens",
        Verdict.measured(delta.against(NEGLIGIBLE)),
        "negligible is below 2 % of perplexity, 0.02 nats a token",
    )


def _sinks(rows: Mapping[Trial, Row]) -> Claim:
    plain, kept = PROMPT["voting"], PROMPT["voting, first 32 kept"]
    worse = {
        (model, size): _row(rows, plain, size, model).over(_row(rows, kept, size, model))
        for model in MODELS
        for size in SIZES
    }
    middle = SIZES[len(SIZES) // 2]
    return Claim(
        "the first 32 tokens cast no votes, which keeps attention sinks",
        f"after a dense prompt with {middle} tokens kept, against never evicting the first 32: "
        + "; ".join(f"{model} {worse[model, middle]:+.3f} nats" for model in MODELS),
        Verdict.measured(*(found.against(NEGLIGIBLE) for found in worse.values())),
        "a token whose threshold is below 0 casts a single vote, so that many tokens have none when"
        " the prompt ends, and ties then evict the oldest: the sink. The option `protect_reserved`"
        " prevents it",
    )


def _table(rows: Mapping[Trial, Row], model: str, methods: Mapping[str, str], how: str) -> Table:
    dense = _row(rows, METHODS["voting"], SIZES[0], model).dense
    return Table(
        f"{model}, {how}: loss at {CONTEXT} tokens by tokens kept (dense perplexity {dense:.2f})",
        ["policy", *map(str, SIZES)],
        [
            [name, *(f"{_row(rows, form, size, model).delta:+.3f}" for size in SIZES)]
            for name, form in methods.items()
        ],
    )


def _long_table(rows: Mapping[Trial, Row]) -> Table:
    kept = LONG // TENTH
    return Table(
        f"{MODELS[0]}: loss at {LONG} tokens with {kept} kept",
        list(METHODS),
        [[f"{rows[Trial(form.format(kept), long())].delta:+.3f}" for form in METHODS.values()]],
    )
