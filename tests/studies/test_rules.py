"""What the studies at fixed contexts call reproduced."""

import dataclasses

import pytest

from golden.algorithms.lad.rows import Rows
from golden.studies import lad
from golden.studies.study import Verdict


@pytest.mark.parametrize(
    ("centres", "verdict"),
    [
        ((300, 400), Verdict.REPRODUCED),
        ((300, 1100), Verdict.NOT),
        ((700, 1200), Verdict.PARTLY),
    ],
)
@pytest.mark.parametrize("codes", [(1, 1), (500, 2000)])
def test_reads_are_judged_by_the_paper_s_identification(centres, codes, verdict):
    """Of 1000 rows of a step at n = 500, and of 2000 at n = 1000."""
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(Rows)), 0.0)

    def rows(moved):
        return [nothing | {"n": n, "active": x} for n, x in zip((500, 1000), moved, strict=True)]

    claim = lad._rows_claim({"centres": rows(centres), "codes, 6 bits": rows(codes)})
    assert claim.verdict is verdict
