"""UniCAIM, Fig. 13 and Fig. 9: quality against cache size, and under a spread of thresholds."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from golden.algorithms.unicaim.spread import SPREAD
from golden.evaluation.estimate import Decision, Estimate
from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.lm.texts import HELD_OUT
from golden.studies.spread_recall import recall_of_levels
from golden.studies.study import OURS, PAPER, Claim, Picture, Study, Table, Verdict
from golden.studies.trials import Choice, Chosen, Place, Trial, hidden_inputs, texts_of
from golden.studies.unicaim_selection import (
    CURVES,
    EXACT,
    FIFTH,
    HALF,
    PLAIN,
    TOP_K,
    selection_claims,
)

MODELS = ("smollm2", "qwen0.5b")
TEXTS = HELD_OUT
CONTEXT, QUERIES, WINDOWS = 2048, 64, 10
ROWS, TOP = 576, 64
"""The paper's array, and the rows that a query attends to."""
SIZES = (205, 410, ROWS, 819, 1229)
"""Rows, 64 for generated tokens among them: from 10 to 60 % of the context."""
ASKED, ANSWERED = 1024, 16
"""Context of the questions, and rows for the tokens of an answer."""
ASKED_SIZES = (102, 205, 288, 410, 614)
"""The same shares of that context."""

METHODS = {
    "UniCAIM, paper": f"unicaim:heavy={{heavy}},reserved={{reserved}},observe=0,{PLAIN}",
    "UniCAIM": "unicaim:heavy={heavy},reserved={reserved}",
    "SnapKV-style": "snapkv:capacity={heavy}",
    "StreamingLLM": "streaming:capacity={size}",
}
SPREADS = (0, 18, 36, 54, 72, 108)
"""Millivolts."""
RECALL_WINDOWS = 3
AT_PAPER = SPREADS.index(round(1000 * SPREAD))
_CELLS = "unicaim:exact=cells"
_CONVERTED = (
    f"attention from the converted scores of the cells, {TOP} of {ROWS} rows (bits of key / query)"
)
OPTIONS = {
    f"selection of {TOP} of {ROWS} rows by 3-bit cells, 3-bit queries; attention on exact rows": {
        "exact selection": EXACT,
        "keys as they are (paper)": CURVES["keys as they are"].format(0),
        "rotated and centred": CURVES["rotated and centred"].format(0),
        "rotated and centred, 1-bit query": "unicaim:query_bits=1",
        "54 mV, keys as they are (paper)": CURVES["keys as they are"].format(54),
        "54 mV, keys as they are, span 2.5": f"unicaim:{PLAIN},span=2.5,spread_mv=54",
        "54 mV, rotated": "unicaim:centre=false,spread_mv=54",
        "54 mV, rotated and centred": CURVES["rotated and centred"].format(54),
        "54 mV, rotated and centred, 1-bit query": "unicaim:query_bits=1,spread_mv=54",
    },
    _CONVERTED: {
        "3/3, keys as they are (paper)": f"{_CELLS},{PLAIN}",
        "3/3, rotated": f"{_CELLS},centre=false",
        "3/3, rotated and centred": _CELLS,
        "3/3, rotated and centred, 10-bit converters": f"{_CELLS},converter_bits=10",
        "3/3, rotated and centred, 54 mV": f"{_CELLS},spread_mv=54",
        "4/5, rotated and centred": f"{_CELLS},key_bits=4,query_bits=5",
        "6/6, rotated and centred": f"{_CELLS},key_bits=6,query_bits=6",
    },
    f"rows of {ROWS} that a query attends to": {
        f"{top}, 3 bits": TOP_K.format(top) for top in (FIFTH, HALF, ROWS)
    },
}
BITS = ("3/3, rotated and centred", "6/6, rotated and centred")
PLAIN_BITS, NOISY_BITS = "3/3, keys as they are (paper)", "3/3, rotated and centred, 54 mV"
"""Labels of options by which the attention on cells is judged, and others that are told."""
NEGLIGIBLE, USABLE, CLOSE = math.log(1.02), math.log(1.03), math.log(1.1)
"""Nats a token, as a rise of the perplexity: of pruning, of the spread, and of converted scores."""
ANSWERS = 0.1
"""Share of the answers that a comparable cache may lose."""


def place(model: str) -> Place:
    return Place(model, CONTEXT, QUERIES, WINDOWS, TEXTS)


def asked() -> Place:
    """Questions on a text, for the second model: the first is too small to answer any."""
    return Place(MODELS[-1], ASKED, QUERIES, WINDOWS, TEXTS, task="retrieval")


def policy(name: str, size: int, reserved: int) -> str:
    """A method of METHODS with that many rows, of which some are for generated tokens."""
    return METHODS[name].format(size=size, heavy=size - reserved, reserved=reserved)


def choices() -> list[Choice]:
    return []


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    found = [
        Trial(policy(name, size, QUERIES), place(model))
        for model in MODELS
        for name in METHODS
        for size in SIZES
    ]
    found += [Trial(text, place(MODELS[0])) for form in CURVES.values() for text in _all_mv(form)]
    found += [Trial(text, place(MODELS[0])) for of in OPTIONS.values() for text in of.values()]
    found += [Trial(text, place(model)) for model in MODELS[1:] for text in _judged()]
    found += [
        Trial(policy(name, size, ANSWERED), asked()) for name in METHODS for size in ASKED_SIZES
    ]
    return [*dict.fromkeys([*found, Trial("dense", asked())])]


def _all_mv(form: str) -> list[str]:
    return [form.format(mv) for mv in SPREADS]


def _judged() -> list[str]:
    """The options that claims are judged by, and so are tried with every model."""
    spread = [form.format(SPREADS[at]) for form in CURVES.values() for at in (0, AT_PAPER)]
    return spread + [OPTIONS[_CONVERTED][label] for label in (*BITS, PLAIN_BITS, NOISY_BITS)]


def extras() -> dict:
    """The texts, and recall of the selection against the spread in some windows."""
    windows = [hidden_inputs(place(MODELS[0]), number) for number in range(RECALL_WINDOWS)]
    recall = recall_of_levels(windows, ROWS, TOP, SPREADS)
    return {
        "texts": texts_of(place(MODELS[0])),
        "recall": {
            name: recall[rotate] for name, rotate in zip(CURVES, (False, True), strict=True)
        },
    }


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    claims = [
        _comparable(rows),
        *(_better(rows, other) for other in ("SnapKV-style", "StreamingLLM")),
        *selection_claims(_first_model(rows), MODELS[0], ROWS, NEGLIGIBLE),
        *(_spread(rows, extras["recall"], name) for name in CURVES),
        _cells(rows),
    ]
    return Study(
        "unicaim",
        "UniCAIM: static and dynamic pruning in one array (Fig. 13, Fig. 9)",
        "Paper: LongChat-7B on HotpotQA and NarrativeQA, prompts of 1.5 and 2.5 thousand tokens."
        f" Here: {', '.join(MODELS)}; {WINDOWS} windows of {CONTEXT} tokens of the held-out texts"
        f" {', '.join(extras['texts'])}, whose last {QUERIES} tokens follow a prompt with dense"
        f" attention; and {MODELS[-1]} on questions: five numbers hidden in each of {WINDOWS}"
        f" fillers of {ASKED} tokens, {rows[Trial('dense', asked())].right.mean:.0%} of which"
        " dense attention finds. Losses are against dense attention, in nats a token, ± the"
        " standard error over windows or fillers. Every window and layer has its own devices and"
        " rotation. *UniCAIM, paper* sums the probabilities of all of the prompt's queries and"
        " writes keys as they are; *UniCAIM*, the default, sums them over the last 32 queries,"
        " takes the prompt's mean key off the keys and rotates keys and queries (Hadamard, random"
        " signs) before they become levels. It was chosen on other texts. Rotation and centring"
        " change neither a softmax nor an order of exact scores; they are made where levels are"
        " made, outside the array.",
        claims,
        [*(_sizes_table(rows, model) for model in MODELS), _asked_table(rows), *_options_of(rows)],
        _pictures(rows, extras["recall"]),
    )


def _first_model(rows: Mapping[Trial, Row]) -> Callable[[str], Row]:
    return lambda text: rows[Trial(text, place(MODELS[0]))]


def _row(rows: Mapping[Trial, Row], name: str, size: int, model: str) -> Row:
    return rows[Trial(policy(name, size, QUERIES), place(model))]


def _answers(rows: Mapping[Trial, Row], name: str, size: int) -> Row:
    return rows[Trial(policy(name, size, ANSWERED), asked())]


def _lost(rows: Mapping[Trial, Row], name: str, size: int) -> Estimate:
    """Share of the answers that dense attention gives and the method does not."""
    right, dense = _answers(rows, name, size).right, rows[Trial("dense", asked())].right
    return dataclasses.replace(right, mean=dense.mean - right.mean)


def _comparable(rows: Mapping[Trial, Row]) -> Claim:
    decided = [
        _row(rows, "UniCAIM", size, model).delta.against(NEGLIGIBLE)
        for model in MODELS
        for size in SIZES
    ] + [_lost(rows, "UniCAIM", size).against(ANSWERS) for size in ASKED_SIZES]

    def told(name: str) -> str:
        prose = "; ".join(
            f"{model} {_row(rows, name, SIZES[0], model).delta:+.3f} nats with {SIZES[0]}"
            f" rows, {_row(rows, name, SIZES[-1], model).delta:+.3f} with {SIZES[-1]}"
            for model in MODELS
        )
        few, many = (_answers(rows, name, size).right for size in (ASKED_SIZES[0], ASKED_SIZES[-1]))
        return (
            f"{prose}; {few:.0%} of the answers with {ASKED_SIZES[0]} rows, {many:.0%} with"
            f" {ASKED_SIZES[-1]}"
        )

    return Claim(
        "comparable with the full cache even at low ratios",
        f"{told('UniCAIM')}. As the paper sums: {told('UniCAIM, paper')}",
        Verdict.measured(*decided),
        "comparable is 2 % of perplexity, and a tenth of the answers. Sums over all of the prompt's"
        " queries favour old tokens, so the prompt's last ones go, a question among them. And"
        f" {TOP} rows of {ROWS} are too few for a softmax over prose, see the last table",
    )


def _better(rows: Mapping[Trial, Row], other: str) -> Claim:
    found = {
        f"{model}, prose": [
            _row(rows, "UniCAIM", size, model).over(_row(rows, other, size, model)).against(0)
            for size in SIZES
        ]
        for model in MODELS
    }
    found[f"{MODELS[-1]}, answers"] = [
        _answers(rows, "UniCAIM", size).over(_answers(rows, other, size)).against(0)
        for size in ASKED_SIZES
    ]
    return Claim(
        f"better than {other.removesuffix('-style')} at every cache ratio",
        "; ".join(
            f"{where}: better at {some.count(Decision.WITHIN)}, worse at"
            f" {some.count(Decision.ABOVE)} of {len(some)} sizes"
            for where, some in found.items()
        ),
        Verdict.measured(*(decision for some in found.values() for decision in some)),
        "by the 95 % interval of the difference of losses, paired. " + WHY[other],
    )


WHY = {
    "SnapKV-style": "SnapKV-style selection attends to all of its rows, UniCAIM to 64 of as many",
    "StreamingLLM": "StreamingLLM keeps the latest tokens, which is what prose needs most, and"
    " forgets everything else",
}


def _spread(rows: Mapping[Trial, Row], recall: dict, name: str) -> Claim:
    by_model = {
        model: rows[Trial(CURVES[name].format(SPREADS[AT_PAPER]), place(model))].over(
            rows[Trial(CURVES[name].format(0), place(model))]
        )
        for model in MODELS
    }
    of_levels, of_exact = (recall[name][kind] for kind in ("levels", "exact"))
    plain = name == "keys as they are"
    return Claim(
        "linear, hence usable, under a threshold spread of 54 mV (Fig. 9): "
        + ("as in the paper, " if plain else "")
        + name,
        "the spread costs "
        + ", ".join(f"{model} {of:+.3f}" for model, of in by_model.items())
        + f" nats; of the top {TOP} of {ROWS} rows {of_levels[AT_PAPER]:.0%} are those without"
        f" spread, and {of_exact[AT_PAPER]:.0%} (without spread {of_exact[0]:.0%}) those by exact"
        " scores",
        Verdict.measured(*(of.against(USABLE) for of in by_model.values())),
        "usable is 3 % of perplexity; a memory window of 1.2 V is assumed, the paper's text gives"
        " none, and cells that are linear in their threshold, as [the circuit](unicaim_circuit.md)"
        " is with V_R above V_DD. "
        + (
            "A few elements of a key are much larger than the rest, so most levels are near 0 and"
            " the spread is as large as their differences"
            if plain
            else "The rotation costs nothing in the array. The rows that are missed are near the"
            " last of the 64 and count little in the softmax"
        ),
        PAPER if plain else OURS,
    )


def _cells(rows: Mapping[Trial, Row]) -> Claim:
    """Section III-B5."""
    by_label = OPTIONS[_CONVERTED]

    def over(label: str) -> list[Estimate]:
        return [rows[Trial(by_label[label], place(model))].delta for model in MODELS]

    def told(label: str) -> str:
        return " and ".join(f"{of:+.3f}" for of in over(label))

    return Claim(
        "exact attention by the cells of the selected rows (current-domain mode)",
        f"{' and '.join(MODELS)} lose {told(BITS[0])} nats with 3-bit cells and queries (keys as"
        f" they are {told(PLAIN_BITS)}), {told(NOISY_BITS)} with a spread of 54 mV; {told(BITS[1])}"
        " with 6 bits each and no spread",
        Verdict.measured(*(of.against(CLOSE) for label in BITS for of in over(label))),
        "close is 10 % of perplexity. The levels round keys and queries, and the spread moves each"
        " row's score by a different error, which a selection forgives and a softmax does not;"
        " converters of 10 bits add little. The default therefore selects rows by the cells and"
        " attends to the exact keys",
    )


def _sizes_table(rows: Mapping[Trial, Row], model: str) -> Table:
    dense = _row(rows, "UniCAIM", SIZES[0], model).dense
    return Table(
        f"{model}, prose: loss by rows ({TOP} of them attended to by UniCAIM; dense perplexity"
        f" {dense:.2f})",
        ["rows", *METHODS],
        [
            [
                f"{size} ({size / CONTEXT:.0%})",
                *(f"{_row(rows, name, size, model).delta:+.3f}" for name in METHODS),
            ]
            for size in SIZES
        ],
    )


def _asked_table(rows: Mapping[Trial, Row]) -> Table:
    return Table(
        f"{MODELS[-1]}, questions: answers that are right",
        ["rows", *METHODS],
        [
            [
                f"{size} ({size / ASKED:.0%})",
                *(f"{_answers(rows, name, size).right:.0%}" for name in METHODS),
            ]
            for size in ASKED_SIZES
        ],
    )


def _options_of(rows: Mapping[Trial, Row]) -> list[Table]:
    def told(text: str, model: str) -> str:
        row = rows.get(Trial(text, place(model)))
        return "" if row is None else f"{row.delta:+.3f}"

    return [
        Table(
            f"Loss by {title}",
            ["", *MODELS],
            [[label, *(told(text, model) for model in MODELS)] for label, text in options.items()],
        )
        for title, options in OPTIONS.items()
    ]


def _pictures(rows: Mapping[Trial, Row], recall: dict) -> list[Picture]:
    first, second = MODELS[0], MODELS[-1]
    volts, loss = (
        "standard deviation of the threshold voltage, mV",
        "loss over dense attention, nats a token",
    )
    recalls = {
        f"{name}, of {'exact scores' if kind == 'exact' else 'the same levels without spread'}": y
        for name in CURVES
        for kind, y in recall[name].items()
    }
    sizes = {name: [_row(rows, name, size, first).delta.mean for size in SIZES] for name in METHODS}
    answers = {
        name: [100 * _answers(rows, name, size).right.mean for size in ASKED_SIZES]
        for name in METHODS
    }
    spread = {
        name: [rows[Trial(text, place(first))].delta.mean for text in _all_mv(form)]
        for name, form in CURVES.items()
    }
    of = f"rows for {CONTEXT} tokens, {first}"
    return [
        Picture("unicaim", "loss against cache size", lambda: curves(SIZES, sizes, of, loss)),
        Picture(
            "unicaim_questions",
            "answers against cache size",
            lambda: curves(
                ASKED_SIZES,
                answers,
                f"rows for {ASKED} tokens, {second}",
                "right answers, %",
                line=("dense", 100 * rows[Trial("dense", asked())].right.mean),
            ),
        ),
        Picture(
            "unicaim_spread",
            "recall of the selection against threshold spread",
            lambda: curves(SPREADS, recalls, volts, f"recall of the top {TOP}"),
        ),
        Picture(
            "unicaim_perplexity",
            "loss against threshold spread",
            lambda: curves(SPREADS, spread, volts, loss),
        ),
    ]
