"""Cases of a parametrized test of which the suite takes some and ``make campaign`` the others."""

from collections.abc import Collection, Iterable

import pytest


def suite_takes(chosen: Collection, cases: Iterable) -> list:
    """The cases, those marked for the campaign that are not `chosen`: by value, or first value."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in chosen or values[0] in chosen else pytest.mark.campaign
        marked.append(pytest.param(*values, marks=marks))
    return marked
