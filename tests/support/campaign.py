"""Cases of a parametrized test: some run in the suite, all in ``make campaign``."""

from collections.abc import Collection, Iterable

import pytest


def suite_takes(chosen: Collection, cases: Iterable) -> list:
    """The cases; those not in `chosen`, by value or first value, get the mark `campaign`."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in chosen or values[0] in chosen else pytest.mark.campaign
        marked.append(pytest.param(*values, marks=marks))
    return marked
