"""Rows of policies at a fixed context, for a terminal."""

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from golden.evaluation.row import Row

Columns = dict[str, Callable[[Row], str]]

_LIKELIHOOD: Columns = {
    "Δ": lambda row: _number(row.delta.mean, "+.4f") + _error(row.delta.error),
    "KL": lambda row: _number(row.kl.mean, ".4f") + _error(row.kl.error),
}
_PROSE = {
    "perplexity": lambda row: _number(row.perplexity, ".3f"),
    **_LIKELIHOOD,
    "same": lambda row: _number(row.same, ".1%"),
}
QUALITY: dict[str, Columns] = {
    "prose": _PROSE,
    "echo": _PROSE,
    "retrieval": {"right": lambda row: f"{row.right.mean:.0%}", **_LIKELIHOOD},
    "agreement": {
        "leading": lambda row: f"{row.leading.mean:.1f}",
        "equal": lambda row: f"{row.equal.mean:.1%}",
        "ROUGE-L": lambda row: f"{row.rouge_l.mean:.3f}",
    },
}
"""Columns of each task."""
READS: Columns = {
    "K": lambda row: f"{row.k_times_fewer.mean:.2f}",
    "V": lambda row: f"{row.v_times_fewer.mean:.2f}",
    "both": lambda row: f"{row.times_fewer.mean:.2f}",
    "shared": lambda row: f"{row.times_fewer_shared.mean:.2f}",
    "kept": lambda row: f"{row.kept:.0f}",
    "s": lambda row: f"{row.seconds:.0f}",
}
_WORDS = {
    "perplexity": "",
    "Δ": "loss against dense attention, nats a token",
    "KL": "of the next token, dense || policy, in nats; ±: standard error",
    "same": "likeliest tokens that are dense attention's",
    "right": "answers that greedy decoding gives",
    "leading": "tokens before the first that differs",
    "equal": "tokens at the same place",
    "ROUGE-L": "",
}


def table(rows: Sequence[Row], title: str, task: str) -> Table:
    """The rows with a task's columns."""
    first, columns = rows[0], QUALITY[task] | READS
    words = [f"{name}: {_WORDS[name]}" for name in QUALITY[task] if _WORDS[name]]
    made = Table(
        title=f"{title}: {first.windows} windows of {first.context} tokens, the last"
        f" {first.queries} counted",
        caption="; ".join(words) + "; K, V, both: times fewer bytes where each head reads for"
        " itself; shared: both, where the heads of a group share rows; kept: tokens in the cache",
        box=box.SIMPLE_HEAD,
    )
    made.add_column("policy", overflow="fold", min_width=24)
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(row.policy, *(cell(row) for cell in columns.values()))
    return made


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _error(value: float) -> str:
    return "" if math.isnan(value) else f" ± {value:.4f}"
