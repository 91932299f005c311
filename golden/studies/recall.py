"""What every policy still recalls: answers, echoes and free-running text at several cache sizes."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.evaluation.tasks import DEPTHS
from golden.evaluation.windows import ECHO_QUERIES
from golden.lm.texts import HELD_OUT
from golden.studies import unicaim
from golden.studies.study import Picture, Study, Table
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL, LARGE = "smollm2", "qwen0.5b"
TEXTS = HELD_OUT
CONTEXT, WRITTEN, WINDOWS = 1024, 64, 10
SIZES = unicaim.ASKED_SIZES
"""Tokens kept."""
RESERVED = {"retrieval": unicaim.ANSWERED, "echo": WRITTEN, "agreement": WRITTEN}
"""Rows of UniCAIM and SnapKV that are for tokens after the prompt, of each task."""
SIZED = unicaim.METHODS | {
    "H2O": "h2o:capacity={size}",
    "VEDA, voting": "voting:capacity={size}",
    "VEDA, first 32 kept": "voting:capacity={size},protect_reserved=true",
}
"""Policies that evict tokens."""
OTHERS = {
    "ToPick, threshold 1e-3": "topick:threshold=0.001",
    "LAD, centres": "lad",
    "LAD, bounds": "lad:identification=bounds",
    "SpAtten": "spatten",
    "KIVI, 4 bits": "kv:bits=4",
    "KIVI, 2 bits": "kv:bits=2",
}
"""Policies that keep every token."""
QUANTISED = {
    "KLLM, W4A4": "kllm",
    "round to nearest, rotated, W4A4": "rtn:activation_bits=4,rotate=true",
}
"""Policies of the products; tried with the small model alone, as they take longest."""


def places() -> dict[str, Place]:
    """Where the policies are tried, by what is counted there."""
    return {
        "answers": unicaim.asked(),
        "echo": Place(SMALL, CONTEXT, ECHO_QUERIES, WINDOWS, TEXTS, task="echo"),
        "text": free(SMALL),
    }


def free(model: str) -> Place:
    """Text that a model writes."""
    return Place(model, CONTEXT, WRITTEN, WINDOWS, TEXTS, task="agreement")


FIGURES: dict[str, tuple[str, Callable[[Row], str]]] = {
    "retrieval": ("right answers", lambda row: f"{row.right:.0%}"),
    "echo": ("loss", lambda row: f"{row.delta:+.3f}"),
    "agreement": ("ROUGE-L", lambda row: f"{row.rouge_l:.2f}"),
}
"""What the tables have of each task: its name and the cell."""


def choices() -> list[Choice]:
    return []


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    return [
        Trial(text, place)
        for place in places().values()
        for text in (
            *("dense", *_kept_all(place).values()),
            *(_sized(form, size, place) for form in SIZED.values() for size in SIZES),
        )
    ]


def _sized(form: str, size: int, place: Place) -> str:
    reserved = RESERVED[place.task]
    return form.format(size=size, heavy=size - reserved, reserved=reserved)


def _kept_all(place: Place) -> dict[str, str]:
    return OTHERS | (QUANTISED if place.model == SMALL else {})


def extras() -> dict:
    return {"texts": texts_of(places()["echo"])}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    tables = [
        table(rows, place) for place in places().values() for table in (_sizes_table, _others_table)
    ]
    return Study(
        "recall",
        "Recall and agreement of all policies",
        f"Contexts of {CONTEXT} tokens, {WINDOWS} windows of the held-out texts"
        f" {', '.join(extras['texts'])}; a prompt with dense attention's states, then the policy in"
        f" every layer. *Answers*: {len(DEPTHS)} numbers hidden in a filler, and a question at the"
        f" prompt's end about one of them, to {LARGE}; {SMALL} is too small to answer. *Echo*: the"
        f" last {ECHO_QUERIES} tokens repeat earlier ones; loss against dense attention, in nats a"
        " token. *Text*:"
        f" {WRITTEN} tokens, each the likeliest, and ROUGE-L of their words with what dense"
        " attention writes. ± is the standard error over windows or fillers. Sizes are tokens kept;"
        " a prompt is dense before any is dropped. Bytes are times fewer than dense FP16 attention"
        " reads, rows shared by the heads of a group.",
        [],
        tables,
        [Picture("recall", "answers against cache size", lambda: _picture(rows))],
    )


def _picture(rows: Mapping[Trial, Row]) -> "Figure":
    place = places()["answers"]

    def right(policy: str) -> float:
        return 100 * rows[Trial(policy, place)].right.mean

    return curves(
        [100 * size / CONTEXT for size in SIZES],
        {
            name: [right(_sized(form, size, place)) for size in SIZES]
            for name, form in SIZED.items()
        },
        f"tokens kept, % of {CONTEXT}",
        f"right answers of {place.model}, %",
        line=("dense", right("dense")),
    )


TITLES = {
    "retrieval": "Answers of {} that are right (dense {:.0%})",
    "echo": "Echo, {}: loss in nats a token (dense perplexity {:.2f})",
    "agreement": "Text of {}: ROUGE-L with dense attention's",
}


def _title(rows: Mapping[Trial, Row], place: Place) -> str:
    dense = rows[Trial("dense", place)]
    figure = dense.right.mean if place.task == "retrieval" else dense.dense
    return TITLES[place.task].format(place.model, figure)


def _sizes_table(rows: Mapping[Trial, Row], place: Place) -> Table:
    _, figure = FIGURES[place.task]
    return Table(
        f"{_title(rows, place)}, by tokens kept",
        ["policy", *(f"{size} ({size / CONTEXT:.0%})" for size in SIZES)],
        [
            [name, *(figure(rows[Trial(_sized(form, size, place), place)]) for size in SIZES)]
            for name, form in SIZED.items()
        ],
    )


def _others_table(rows: Mapping[Trial, Row], place: Place) -> Table:
    name_of_figure, figure = FIGURES[place.task]
    found = {name: rows[Trial(text, place)] for name, text in _kept_all(place).items()}
    return Table(
        f"The same, policies that keep every token ({place.model})",
        ["policy", name_of_figure, "bytes, times fewer"],
        [
            [name, figure(row), f"{row.of_fp16(row.times_fewer_shared).mean:.2f}"]
            for name, row in found.items()
        ],
    )
