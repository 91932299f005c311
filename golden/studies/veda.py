"""VEDA, Fig. 8 left: perplexity against cache size for voting, H2O and StreamingLLM."""

from golden.evaluation.measure import measure
from golden.evaluation.plots import curves
from golden.evaluation.policies import parse
from golden.lm.text import shipped_prose
from golden.studies.runs import Opened, Results, Run
from golden.studies.study import Claim, Picture, Study, Table, Verdict

SIZES = (64, 96, 128, 192, 256, 384, 512)
METHODS = {"voting": "voting", "h2o": "H2O", "streaming": "StreamingLLM"}
OTHER_SIZES = (64, 128, 256)
"""On the second text, and after a prompt."""
PROMPT = 512
PROTECTED = {"voting": "", "voting, first 32 kept": ",protect_reserved=true"}


def runs(tokens: int) -> list[Run]:
    return [
        Run("dense", tokens),
        *(Run(f"{name}:capacity={size}", tokens) for name in METHODS for size in SIZES),
        Run("dense", tokens, PROMPT),
        *(
            Run(f"voting:capacity={size}{protected}", tokens, PROMPT)
            for protected in PROTECTED.values()
            for size in OTHER_SIZES
        ),
    ]


def extras(opened: Opened) -> dict:
    """The same on another text, the prose about cranes that comes with the package."""
    tokens = opened.tokenizer.encode(shipped_prose(), len(opened.tokens))

    def score(policy: str) -> float:
        return measure(parse(policy), opened.model, tokens).quality

    by_method = {
        name: [score(f"{name}:capacity={size}") for size in OTHER_SIZES] for name in METHODS
    }
    return {"tokens": len(tokens), "dense": score("dense")} | by_method


def study(tokens: int, results: Results, extras: dict) -> Study:
    dense = results[Run("dense", tokens)].quality
    scores = {
        name: [results[Run(f"{name}:capacity={size}", tokens)].quality for size in SIZES]
        for name in METHODS
    }
    lowest, other_lowest = _voting_is_lowest(scores), _voting_is_lowest(extras)
    tenth = min(SIZES, key=lambda size: abs(size - tokens / 10))
    at_tenth = scores["voting"][SIZES.index(tenth)]
    dense_after = results[Run("dense", tokens, PROMPT)].quality
    after = {
        name: [
            results[Run(f"voting:capacity={size}{protected}", tokens, PROMPT)].quality
            for size in OTHER_SIZES
        ]
        for name, protected in PROTECTED.items()
    }
    plain, kept = after.values()
    claims = [
        Claim(
            "voting has the lowest perplexity at every cache size",
            f"at {sum(lowest)} of {len(lowest)} sizes on this text, at {sum(other_lowest)} of"
            f" {len(other_lowest)} on the other",
            Verdict.of(*lowest, *other_lowest),
            "the three are close together, and their order depends on the text",
        ),
        Claim(
            "with a tenth of the length (4096) the loss is negligible",
            f"{at_tenth / dense - 1:+.1%} at {tenth} of {tokens} tokens",
            Verdict.of(at_tenth < 1.02 * dense),
            "a tenth of a short context is few tokens, and a small model spreads its attention",
        ),
        Claim(
            "the first 32 tokens cast no votes, which keeps attention sinks",
            f"after a prompt of {PROMPT}: {plain[1]:.2f} with {OTHER_SIZES[1]} tokens,"
            f" {kept[1]:.2f} if the first 32 are never evicted (dense {dense_after:.2f})",
            Verdict.of(plain[1] < 1.02 * kept[1]),
            "a token whose threshold is below 0 casts a single vote, so that many tokens have none"
            " when the prompt ends, and ties then evict the oldest: the sink. The option"
            " `protect_reserved` prevents it",
        ),
    ]
    columns = ["tokens kept", *METHODS.values()]
    return Study(
        "veda",
        "VEDA: voting-based eviction (Fig. 8, left)",
        f"Paper: Llama-2 7B, 1000 samples of PG-19, up to 4096 tokens. Here: {tokens} tokens,"
        f" one window; dense {dense:.2f}. Speedup by eviction (Fig. 8, right), GOPS and tokens/s"
        " (Table II): [speed](veda_speed.md).",
        claims,
        [
            Table("Perplexity", columns, _rows(SIZES, scores)),
            Table(
                f"Perplexity on {extras['tokens']} tokens of prose about cranes, dense"
                f" {extras['dense']:.2f}",
                columns,
                _rows(OTHER_SIZES, {name: extras[name] for name in METHODS}),
            ),
            Table(
                f"Perplexity of {tokens - PROMPT} tokens after a prompt of {PROMPT} that only"
                f" votes, dense {dense_after:.2f}",
                ["tokens kept", *PROTECTED],
                _rows(OTHER_SIZES, after),
            ),
        ],
        [
            Picture(
                "veda",
                "perplexity against cache size",
                lambda: curves(
                    SIZES,
                    {label: scores[name] for name, label in METHODS.items()},
                    "tokens kept in the cache",
                    "perplexity",
                    line=("dense", dense),
                    log_x=True,
                ),
            )
        ],
    )


def _voting_is_lowest(scores: dict) -> list[bool]:
    compared = zip(*(scores[name] for name in METHODS), strict=True)
    return [voting < min(others) for voting, *others in compared]


def _rows(sizes: tuple[int, ...], scores: dict[str, list[float]]) -> list[list[str]]:
    return [
        [str(size), *(f"{values[number]:.2f}" for values in scores.values())]
        for number, size in enumerate(sizes)
    ]
