"""Claims on UniCAIM's dynamic pruning, of losses that are made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from golden.evaluation.estimate import Estimate
from golden.studies.study import Verdict
from golden.studies.unicaim_selection import CURVES, EXACT, TOP_K, selection_claims

PLAIN, ROTATED = (form.format(0) for form in CURVES.values())
WINDOWS = np.array([0.0, 0.1, 0.2, 0.3])


class Made(SimpleNamespace):
    """A row with losses of windows only."""

    def over(self, other: "Made") -> Estimate:
        return Estimate.of(np.subtract(self.deltas, other.deltas).tolist())


def verdicts(losses):
    """By the text of a policy: its loss beyond the base, in all windows alike or one for each."""
    rows = {text: Made(deltas=WINDOWS + loss) for text, loss in losses.items()}
    return selection_claims(rows.__getitem__, "made", 576, 0.02)


@pytest.mark.parametrize(
    ("plain", "rotated", "expected"),
    [
        (0.019, 0.0, Verdict.REPRODUCED),
        (0.021, 0.0, Verdict.PARTLY),
        (0.021, 0.03, Verdict.NOT),
        (np.array([-0.1, 0.1, -0.1, 0.1]), np.array([-0.1, 0.1, -0.1, 0.1]), Verdict.OPEN),
    ],
)
def test_approximate_scores(plain, rotated, expected):
    losses = {EXACT: 0.5, PLAIN: 0.5 + plain, ROTATED: 0.5 + rotated}
    found, _ = verdicts(losses | {TOP_K.format(k): 0.0 for k in (115, 288, 576)})
    assert found.verdict == expected


@pytest.mark.parametrize(
    ("half", "fifth", "expected"),
    [
        (0.01, 0.019, Verdict.REPRODUCED),
        (0.01, 0.021, Verdict.PARTLY),
        (0.021, 0.04, Verdict.NOT),
    ],
)
def test_fewer_rows(half, fifth, expected):
    """Beside all rows, not beside dense attention."""
    of = {576: 0.3, 288: 0.3 + half, 115: 0.3 + fifth}
    _, found = verdicts({EXACT: 0, PLAIN: 0, ROTATED: 0} | {TOP_K.format(k): of[k] for k in of})
    assert (
        found.verdict == expected and f"{half:+.3f}" in found.ours and "288 of them" in found.ours
    )
