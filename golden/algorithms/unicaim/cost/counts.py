"""Counts of a decode step: from the core's report, or from a formula to compare it with."""

import dataclasses

import numpy as np

from golden.unicaim.cells import score_limit

Count = int | np.ndarray
"""One count, or one for each of several steps: integers [steps]."""


@dataclasses.dataclass(frozen=True)
class Pruning:
    """What leaves tokens out of a step.

    static
        The array holds a fixed number of rows: the prompt's heaviest and the generated ones.
    dynamic
        A search selects the rows whose scores are converted. Otherwise all rows are.
    """

    static: bool
    dynamic: bool


PRUNINGS = {
    "dense": Pruning(static=False, dynamic=False),
    "static": Pruning(static=True, dynamic=False),
    "dynamic": Pruning(static=False, dynamic=True),
    "both": Pruning(static=True, dynamic=True),
}


@dataclasses.dataclass(frozen=True)
class StepCounts:
    """Counts of one decode step of one kv head, or of several steps as arrays [steps].

    rows
        Rows in use, the new token's among them: the sense lines that take part in each search.
    heads
        Query heads of the group.
    search_steps
        Steps of the searches for the top k, summed over the query heads: the report's steps. 0
        without a search. The search for the row to evict runs in the same cycle (section III-B4)
        and is not counted.
    conversions
        Selected rows, summed over the query heads.
    written, evicted
        Number of rows written, and of rows that replaced another: 0 or 1.
    """

    rows: Count
    heads: Count
    search_steps: Count
    conversions: Count
    written: Count = 1
    evicted: Count = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = np.asarray(getattr(self, field.name))
            if value.dtype.kind not in "iu" or np.any(value < 0):
                raise ValueError(f"{field.name} must be whole numbers from 0")
        if np.any(np.asarray(self.heads) < 1):
            raise ValueError("heads must be at least 1")
        if np.any(self.conversions > self.rows * self.heads):
            raise ValueError("conversions must be at most rows times heads")
        if np.any(np.asarray(self.written) > 1) or np.any(self.evicted > self.written):
            raise ValueError("a step writes at most one row, and evicts only where it writes")


def digital_search_steps(d: int = 128, key_bits: int = 3, query_bits: int = 1) -> int:
    """Steps of the digital array's search: one for each bit of a score, 11 for the paper's.

    The paper's array takes one discharge instead, whatever the number of rows (section III-B3).
    """
    return score_limit(d, key_bits, query_bits).bit_length() + 1


def step_counts(
    rows: Count,
    k: Count | None,
    heads: Count = 1,
    search_steps: Count = 1,
    written: Count = 1,
    evicted: Count = 0,
) -> StepCounts:
    """Counts of a step with ``rows`` in use in which each head selects ``k``.

    With ``k`` above ``rows`` all are selected; with None there is no search and all are converted.
    ``search_steps`` are the steps of one head's search.
    """
    selected = rows if k is None else np.minimum(k, rows)
    return StepCounts(
        rows=rows,
        heads=heads,
        search_steps=0 if k is None else heads * search_steps,
        conversions=heads * selected,
        written=written,
        evicted=evicted,
    )


def selected_rows(rows: Count, kept: int) -> Count:
    """``kept`` percent of ``rows``, rounded up."""
    if not 0 <= kept <= 100:
        raise ValueError(f"the rows kept must be 0 to 100 percent, not {kept}")
    return -(-rows * kept // 100)


def sequence_counts(
    pruning: Pruning,
    prompt: int,
    generated: int,
    *,
    heavy: int = 512,
    reserved: int = 64,
    kept: int = 20,
    heads: int = 1,
    search_steps: int = 1,
) -> StepCounts:
    """Counts of each of ``generated`` steps after a prompt, arrays [generated].

    With static pruning the array has ``heavy + reserved`` rows, of which the prompt takes ``heavy``
    at most; once all are in use, each step evicts one. Otherwise no row ever leaves. With dynamic
    pruning ``kept`` percent of the rows in use are selected.
    """
    if prompt < 0 or generated < 1:
        raise ValueError("the prompt must have at least 0 tokens and the output at least 1")
    if heavy < 0 or heavy + reserved < 1:
        raise ValueError("the array must have at least 1 row")
    held = min(prompt, heavy) if pruning.static else prompt
    rows = held + np.arange(1, generated + 1)
    evicted = np.zeros_like(rows)
    if pruning.static:
        evicted = (rows > heavy + reserved).astype(rows.dtype)
        rows = np.minimum(rows, heavy + reserved)
    k = selected_rows(rows, kept) if pruning.dynamic else None
    return step_counts(rows, k, heads, search_steps, evicted=evicted)
