"""Counts of decode steps from a file: those that the core's report gave."""

import json
from pathlib import Path

import numpy as np

from golden import InputError
from golden.algorithms.unicaim.cost import StepCounts, step_counts

REQUIRED = ("rows", "heads", "search_steps", "conversions")
OPTIONAL = {"written": 1, "evicted": 0}
MOST = 1 << 20
"""Bound of every count."""


def read_counts(path: Path) -> tuple[StepCounts, np.ndarray | None]:
    """Counts of every step, and the k of each if the file has it.

    The file is a JSON list with one object for each step and kv head, with the fields of
    ``StepCounts`` and, if wanted, ``k``. Raises ``InputError`` or ``OSError``.
    """
    try:
        steps = json.loads(path.read_text())
    except (ValueError, RecursionError):  # no JSON, no text, a number too long; nested too deep
        raise InputError(f"{path}: it is not JSON") from None
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise InputError(f"{path}: it must be a list of objects, one for each step")
    if not steps:
        raise InputError(f"{path}: it has no steps")
    with_k = "k" in steps[0]
    names = (*REQUIRED, *(("k",) if with_k else ()))
    for number, step in enumerate(steps):
        missing = [name for name in names if name not in step]
        unknown = set(step) - {*names, *OPTIONAL}
        if missing or unknown:
            what = f"lacks {missing[0]}" if missing else f"has an unknown field {min(unknown)}"
            raise InputError(f"{path}: step {number} {what}")
        for name, value in step.items():
            if type(value) is not int or not 0 <= value <= MOST:
                raise InputError(
                    f"{path}: step {number}: {name} must be a whole number from 0 to {MOST}"
                )
    fields = {name: np.array([step[name] for step in steps]) for name in REQUIRED}
    fields |= {
        name: np.array([step.get(name, default) for step in steps])
        for name, default in OPTIONAL.items()
    }
    try:
        counts = StepCounts(**fields)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return counts, np.array([step["k"] for step in steps]) if with_k else None


def difference(counts: StepCounts, k: np.ndarray, search_steps: int) -> str | None:
    """The first count that is not the formula's, in words; None if all are."""
    derived = step_counts(counts.rows, k, counts.heads, search_steps)
    for name in ("conversions", "search_steps"):
        found, expected = getattr(counts, name), getattr(derived, name)
        if wrong := np.flatnonzero(found != expected).tolist():
            step = wrong[0]
            return f"{name} of step {step}: {found[step]}, by formula {expected[step]}"
    return None
