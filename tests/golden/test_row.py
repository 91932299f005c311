"""A row of scores by hand: means, pairs of windows, bytes, and what JSON leaves out."""

import dataclasses
import json
import math

import pytest

from golden.algorithms.attention import Traffic
from golden.evaluation.estimate import Estimate
from golden.evaluation.in_context import Score
from golden.evaluation.row import Row, row_of
from golden.evaluation.tasks import Agreement

NAN = math.nan


def score(loss=NAN, dense=NAN, kl=NAN, k=100, v=50, shared=(150, 100), agreement=None):
    """Dense attention at 16 bits reads 400 bytes for all heads, 200 where they share."""
    alone, together = Traffic(dense_bytes=400), Traffic(dense_bytes=200)
    alone.k_bytes, alone.v_bytes = k, v
    together.k_bytes, together.v_bytes = shared
    return Score(loss, dense, kl, 0.5, 1.0, agreement, together, alone, 12, 7.0, {"n": k / 2}, 2.0)


def test_by_hand():
    row = row_of("p", "m", 9, 2, [score(2.0, 1.0, 0.1), score(3.0, 1.5, 0.3, k=50, v=25)])
    assert (row.windows, row.deltas, row.delta.mean) == (2, (1.0, 1.5), 1.25)
    assert row.delta.error == pytest.approx(0.25) and row.kl.error == pytest.approx(0.1)
    assert row.perplexity == pytest.approx(math.exp(2.5))
    assert row.dense == pytest.approx(math.exp(1.25)) and row.seconds == 4
    # Dense rows of 12 bits: 150 bytes of K and of V in a window.
    assert row.k_times_fewer.mean == 2 and row.v_times_fewer.mean == 4
    assert row.times_fewer.mean == pytest.approx(600 / 225)
    assert row.times_fewer_shared.mean == pytest.approx(150 / 250)
    assert row.k_times_fewer.error == pytest.approx((150 / 50 - 150 / 100) / 2)
    fp16 = row.of_fp16(row.k_times_fewer)
    assert fp16.mean == pytest.approx(400 / 150)
    assert fp16.error == pytest.approx((200 / 50 - 200 / 100) / 2)
    assert row.figures == {"n": Estimate.of([50.0, 25.0])} and math.isnan(row.rouge_l.mean)


def test_questions_on_a_filler_count_as_one_window():
    """Half of the first filler's answers are right, and all of the second's."""
    wrong = dataclasses.replace(score(2.0, 1.0, 0.1), right=0.0)
    scores = [wrong, score(4.0, 1.0, 0.3, k=50), score(3.0, 1.0, 0.2), score(3.0, 1.0, 0.2)]
    row = row_of("p", "m", 9, 2, scores, together=2)
    assert row.windows == 2 and row.deltas == (2.0, 2.0) and row.seconds == 8
    assert (row.right.mean, row.right.error) == (0.75, pytest.approx(0.25))
    assert row.k_times_fewer.mean == pytest.approx(600 / 350)
    assert row.k_times_fewer.error == pytest.approx((300 / 150 - 300 / 200) / 2)
    assert row.figures == {"n": Estimate.of([37.5, 50.0])}


def test_figures_have_the_errors_of_their_windows():
    """In JSON too; a figure that is not known, or of one window, has none."""
    scores = [dataclasses.replace(score(), figures={"n": n, "m": NAN}) for n in (1.0, 2.0, 6.0)]
    row = row_of("p", "m", 9, 2, scores)
    assert (row.figures["n"].mean, row.figures["n"].number) == (3, 3)
    assert row.figures["n"].error == pytest.approx(math.sqrt(14 / 2 / 3))
    content = row.as_json()
    assert content["figures"] == {"n": 3.0}
    assert content["figures_se"] == {"n": row.figures["n"].error}
    assert Row.from_json(content).figures == {"n": row.figures["n"]}
    one = row_of("p", "m", 9, 2, scores[:1]).as_json()
    assert one["figures"] == {"n": 1.0} and "figures_se" not in one
    assert Row.from_json(one).figures["n"].against(2) == "cannot tell"


def test_policies_are_compared_window_by_window():
    easy, hard = score(1.0, 0.9, 0.1), score(5.0, 4.0, 0.1)
    row = row_of("p", "m", 9, 2, [easy, hard])
    better = row_of("q", "m", 9, 2, [score(0.9, 0.9, 0.1), score(4.9, 4.0, 0.1)])
    assert row.over(better).mean == pytest.approx(0.1)
    assert row.over(better).error == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError):
        row.over(row_of("q", "m", 9, 2, [easy, easy, hard]))


@pytest.mark.parametrize(
    ("scores", "missing"),
    [
        ([score(2.0, 1.0, 0.1), score(3.0, 1.0, 0.1)], {"leading", "equal", "rouge_l"}),
        ([score(2.0, 1.0, 0.1)], {"delta_se", "kl_se", "leading", "equal", "rouge_l"}),
        (
            [score(), score()],
            {"delta", "delta_se", "deltas", "kl", "kl_se", "dense", "perplexity", "leading"},
        ),
        ([score(agreement=Agreement(3, 0.5, 0.4))] * 2, {"delta", "deltas", "kl", "perplexity"}),
    ],
    ids=["loss", "one window", "reads", "agreement"],
)
def test_json_has_the_figures_that_there_are(scores, missing):
    row = row_of("p", "m", 9, 2, scores)
    content = json.loads(json.dumps(row.as_json(), allow_nan=False))
    assert not missing & set(content) and {"times_fewer", "kept", "figures"} <= set(content)
    assert Row.from_json(content).as_json() == row.as_json()


def test_nothing_read_is_infinitely_less():
    """Also in one window of two; neither is a warning, and nothing is certain then."""
    none, some = score(k=0, v=0), score(k=0, v=50)
    row = row_of("p", "m", 9, 2, [none, some])
    assert row.k_times_fewer.mean == math.inf and row.v_times_fewer.mean == 6
    assert row.v_times_fewer.against(100) == "cannot tell"
