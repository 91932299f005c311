"""What eviction by blocks costs, as paged caches have it, beside the cores' eviction row by row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.lm.texts import HELD_OUT
from golden.studies.study import Picture, Study, Table
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL, CONTEXT, QUERIES, WINDOWS = "smollm2", 1024, 128, 6
TEXTS = HELD_OUT
SIZES = (256, 512)
"""Rows kept, of CONTEXT."""
SCORES = {
    "probabilities since the row came (H2O)": "by=sum",
    "probabilities of a prompt's last 32 queries, and after it": "by=sum,observe=32",
    "charge (UniCAIM, without selection and cells)": "by=charge,observe=32,heavy={heavy}",
    "votes (VEDA)": "by=votes",
}
UNITS = {
    "1 row, each kv head": "block=1,per=head",
    "1 row, all heads": "block=1,per=layer",
    "16 rows, each kv head": "block=16,per=head",
    "16 rows, all heads": "block=16,per=layer",
    "32 rows, all heads": "block=32,per=layer",
}
"""What leaves at a time, and from where."""


def places() -> dict[str, Place]:
    """Where the policies are tried, by what is counted there."""
    return {
        "prose": Place(MODEL, CONTEXT, QUERIES, WINDOWS, TEXTS),
        "echo": Place(MODEL, CONTEXT, QUERIES, WINDOWS, TEXTS, task="echo"),
    }


def policy(score: str, unit: str, size: int) -> str:
    """A policy's text; charge leaves room for the tokens after the prompt, as its core does."""
    chosen = SCORES[score].format(heavy=size - QUERIES)
    return f"blocks:capacity={size},{UNITS[unit]},{chosen}"


def choices() -> list[Choice]:
    return []


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    return [
        Trial(policy(score, unit, size), place)
        for place in places().values()
        for score in SCORES
        for unit in UNITS
        for size in SIZES
    ]


def extras() -> dict:
    return {"texts": texts_of(places()["prose"])}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    tables = [_table(rows, task, size) for task in places() for size in SIZES]
    return Study(
        "blocks",
        "Eviction by blocks of tokens",
        f"{MODEL}, {WINDOWS} windows of {CONTEXT} tokens of {', '.join(extras['texts'])}: a dense"
        f" prompt, pruned at its end to the rows kept, then {QUERIES} tokens with the policy in"
        " every layer. A cache that serving engines page has blocks of 16 or 32 tokens, one table"
        " for all heads of a layer; the cores that evict keep a list of rows, for a kv head or a"
        " layer. A block's score is the mean of its rows', and a new block is not full, so with 16"
        " rows a block 8 fewer are held on average. *Prose*: KL from dense attention, in nats a"
        " token. *Echo*: the last tokens repeat earlier ones; loss against dense attention. ± is"
        " the standard error over windows.",
        [],
        tables,
        [Picture("blocks", "KL on prose against rows that leave at once", lambda: _picture(rows))],
    )


def _picture(rows: Mapping[Trial, Row]) -> "Figure":
    place, size = places()["prose"], SIZES[0]
    units = {unit: int(unit.split()[0]) for unit in UNITS if "all" in unit}
    return curves(
        list(units.values()),
        {
            score: [rows[Trial(policy(score, unit, size), place)].kl.mean for unit in units]
            for score in SCORES
        },
        "rows that leave at once, from all heads",
        f"KL on prose, nats a token, {size} rows kept",
    )


def _table(rows: Mapping[Trial, Row], task: str, size: int) -> Table:
    place = places()[task]

    def cell(score: str, unit: str) -> str:
        row = rows[Trial(policy(score, unit, size), place)]
        return f"{row.kl:.3f}" if task == "prose" else f"{row.delta:+.3f}"

    what = "KL on prose" if task == "prose" else "Loss on echoes"
    return Table(
        f"{what}, {size} of {CONTEXT} rows kept ({size / CONTEXT:.0%})",
        ["score", *UNITS],
        [[score, *(cell(score, unit) for unit in UNITS)] for score in SCORES],
    )
