"""Claims on LAD's rows, on a trace's scores, and from the paper's own figures."""

import dataclasses
import math

import numpy as np
import pytest

from golden.algorithms.attention import Traffic
from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS, PAPER_BOUNDS
from golden.algorithms.lad.rows import Rows
from golden.evaluation.in_context import Score
from golden.evaluation.row import row_of
from golden.studies import lad_claims, lad_rows, lad_trace
from golden.studies.lad_claims import Compared
from golden.studies.study import Verdict
from golden.trace import Trace

HOLDS, PARTLY, NOT = Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT
CONTRADICTS = Verdict.CONTRADICTS
READ = Traffic(k_bytes=1, v_bytes=1, dense_bytes=4)
SCORE = Score(1.0, 1.0, 0.0, 1.0, 1.0, None, READ, READ, 16, 7.0, {}, 1.0)


def windows(first, last):
    """Ten windows that differ little, of rows at 512 and 4096 positions."""
    zero = dataclasses.asdict(Rows(512, *[0.0] * 9))

    def rows(n, given, at):
        return zero | {name: x * (1 + at / 1e4) for name, x in given.items()} | {"n": n}

    return [[rows(512, first, at), rows(4096, last, at)] for at in range(10)]


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        ((300, 300), (1500, 1500), HOLDS),
        ((300, 300), (2000, 2300), PARTLY),  # 4288 of 8192 rows
        ((300, 300), (2500, 1500), PARTLY),  # centres are a larger share at the end
        ((100, 100), (2500, 2500), NOT),
    ],
)
def test_parts_of_the_reads(first, last, verdict):
    """Keys of centres and rows of active positions; norm, dnorm and cid are scalars."""
    of = [dict(zip(("identification", "active"), pair, strict=True)) for pair in (first, last)]
    of = [one | {"g": 4, "identification": one["identification"] + 12} for one in of]
    claim = lad_rows.parts_claim(windows(*of))
    assert claim.verdict is verdict
    assert f"centres {first[0] / 1024:.1%} ± 0.0% to {last[0] / 8192:.1%} ±" in claim.ours


@pytest.mark.parametrize(
    ("last", "verdict"),
    [(780, HOLDS), (880, PARTLY), (3300, NOT)],  # of 8192 rows
)
def test_other_reads(last, verdict):
    """Three words of G in four are counted as identification; a fifth part is caches."""
    first = {"g": 20, "written": 320}  # 400 of 1024 rows
    parts = {"g": last / 10, "exact": last / 10, "counters": last / 10}
    claim = lad_rows.others_claim(windows(first, parts | {"caches": last / 5, "written": last / 5}))
    assert claim.verdict is verdict and "39.1% ± " in claim.ours


@pytest.mark.parametrize(("last", "verdict"), [(6 * 400, HOLDS), (9 * 400, NOT)])
def test_active_positions(last, verdict):
    """Eight times as many positions."""
    claim = lad_rows.sublinear_claim(windows({"active": 400}, {"active": last}))
    power = math.log(last / 400) / math.log(8)
    assert claim.verdict is verdict and f"power of {power:.2f}" in claim.ours


@pytest.mark.parametrize(
    ("first", "last", "verdict"), [(400, 90, HOLDS), (400, 200, PARTLY), (40, 600, NOT)]
)
def test_reads_beside_active_positions(first, last, verdict):
    claim = lad_rows.share_claim(
        windows({"active": 400, "g": first}, {"active": 1000, "g": last, "written": 500})
    )
    assert claim.verdict is verdict and f"{1 + last / 1000:.2f}" in claim.ours


@pytest.mark.parametrize(
    ("first", "last", "verdict"), [(200, 400, HOLDS), (200, 500, PARTLY), (20, 1000, NOT)]
)
def test_positions_in_their_mode(first, last, verdict):
    """The newest 16 are active in any case."""
    active = [{"active": 2 * (n + 16)} for n in (first, last)]
    claim = lad_rows.locality_claim(windows(*active))
    assert claim.verdict is verdict and f"to {1 - last / 4080:.1%} ±" in claim.ours


@pytest.mark.parametrize(
    ("share", "exact", "verdict"), [(0.09, 90, HOLDS), (0.2, 90, PARTLY), (0.2, 200, NOT)]
)
def test_large_modes(share, exact, verdict):
    """Of 1000 rows moved."""
    row = {"large_share": share, "exact": exact, "active": 1000 - exact}
    claim = lad_rows.large_claim(windows(row, row))
    assert claim.verdict is verdict and f"{exact / 1000:.1%}" in claim.ours


def compared(centres, bounds, updates=4.0, losses=(1.0, 1.0), h2o=(1.0, 1.0)):
    def row(kl, losses):
        figures = {"active share": 0.25, "updates": updates}
        scores = [dataclasses.replace(SCORE, kl=kl, figures=figures, loss=x) for x in losses]
        return row_of("lad", "m", 2048, 2, scores)

    return Compared(row(centres, losses), row(bounds, losses), row(0, h2o))


@pytest.mark.parametrize(
    ("h2o", "verdict"),
    [((1.1, 1.6), HOLDS), ((0.9, 1.4), NOT), ((1.001, 1.6), Verdict.OPEN)],
)
def test_loss_beside_h2o(h2o, verdict):
    """Windows are paired: losses that differ by 0.5 are no error of the difference."""
    pair = compared(0, 0, losses=(1.0, 1.5), h2o=h2o)
    claim = lad_claims.loss_claim({"a": pair})
    assert claim.verdict is verdict and f"a: {2.5 / 2 - sum(h2o) / 2:+.4f} ±" in claim.ours
    assert lad_claims.loss_claim({"a": pair, "b": compared(0, 0, h2o=(0.9, 0.9))}).verdict in (
        Verdict.PARTLY,
        NOT,
    )


def test_source_of_the_error():
    wrong, lines = compared(0.003, 0.001), compared(0.003, 0.002)
    assert lad_claims.source_claim({"a": wrong}).verdict is HOLDS
    claim = lad_claims.source_claim({"a": wrong, "b": lines})
    assert claim.verdict is PARTLY and "0.00200 nats by wrong intervals, 0.00100" in claim.ours
    assert lad_claims.source_claim({"b": lines}).verdict is NOT


def test_computations_of_an_update():
    """Three terms of A, each d², beside q A, |J| scores and three products for each v."""
    assert lad_claims.update_share(10, 3, 8) == 3 * 64 / (64 + 10 * 8 + 3 * 10 * 8)
    few, many = compared(0, 0, updates=3.2), compared(0, 0, updates=3.5)
    assert lad_claims.update_claim({"a": few}).verdict is HOLDS
    claim = lad_claims.update_claim({"a": few, "b": many})
    assert claim.verdict is PARTLY and f"{3.5 * 64 / 2112:.1%} of equation 4's" in claim.ours


def test_averages_of_the_text():
    assert lad_claims.rouge_claim().verdict is Verdict.HOLDS
    assert "96.62, 97.03, 95.88, 95.53 %; of its ROUGE-1: 96.68 %" in lad_claims.rouge_claim().ours
    wrong = (96.7, *lad_claims.AVERAGES[1:])
    assert lad_claims.rouge_claim(averages=wrong).verdict is CONTRADICTS
    low = {name: [values[0] - 5, *values[1:]] for name, values in lad_claims.ROUGE.items()}
    means = [float(np.mean(values)) for values in low.values()]
    assert lad_claims.rouge_claim(low, means).verdict is CONTRADICTS


def test_sizes_of_the_caches():
    """A [2, 2], B, C and D [2], E and F."""
    assert lad_claims.cache_numbers(2) == 4 + 2 + 2 + 2 + 1 + 1
    claim = lad_claims.size_claim()
    assert claim.verdict is Verdict.COUNTS and "n = 66" in claim.ours
    assert lad_claims.size_claim(64).verdict is NOT


def test_the_example_and_the_words_of_a_position():
    assert lad_claims.example_claim().verdict is Verdict.HOLDS
    assert lad_claims.example_claim({-5.34: 1}).verdict is CONTRADICTS
    assert lad_claims.words_claim().verdict is CONTRADICTS
    assert lad_claims.words_claim(1).verdict is Verdict.HOLDS
    assert "112 bits" in lad_claims.words_claim().ours


def one_head(scores):
    """A trace of one head whose queries and keys have these scores [token, position]."""
    q = np.asarray(scores, np.float32)
    eye = np.eye(len(q), dtype=np.float32)
    return Trace(q[None, None], eye[None, None], eye[None, None], 0.5)


def test_differences_of_a_trace():
    """The scale, the maximum of what a token sees, and nothing behind it."""
    [x] = lad_trace.differences(one_head([[2, 9, 9], [4, 8, 9], [2, 6, 4]]))
    np.testing.assert_array_equal(x, [[0, -np.inf, -np.inf], [-2, 0, -np.inf], [-2, 0, -1]])


def test_query_heads_read_their_kv_head():
    q, k = np.ones((1, 4, 2, 1), np.float32), np.array([1, 2], np.float32).reshape(1, 2, 1, 1)
    k = np.concatenate([0 * k, k], axis=2)
    found = lad_trace.differences(Trace(q, k, k, 1.0))
    assert [x[1, 0] for x in found] == [-1, -1, -2, -2]


def test_exponentials():
    """The tile's line in FP16, and a table of four words between -2 and 0."""
    x = np.array([[0.0, -0.5, -1.0, -1.5, -20.0, -np.inf]])
    exact = lad_trace.PiecewiseExp(EIGHT_BOUNDS)(x[:, :-1])
    found = lad_trace.tile_exp(x, EIGHT_BOUNDS)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found[:, :-1], exact, atol=2**-10)
    assert (found[:, :-1] != exact).any() and found[0, -1] == 0
    ends = np.exp([-2, -1.5, -1, -0.5, 0])
    words = np.diff(ends) / 0.5
    given = np.array([0.0, -0.4, -0.5, -0.6, -1.9, -2.0, -9.0])
    expected = [words[3], words[3], words[2], words[2], words[0], 0, 0]
    np.testing.assert_allclose(lad_trace.table_exp(given, (-2.0,)), expected)


def test_errors_of_a_softmax():
    """Two positions at the maximum and one far below: every exponential is exact."""
    x = np.array([[0.0, 0.0, -50.0, -np.inf]])
    assert max(lad_trace.softmax_errors(x, PAPER_BOUNDS).values()) < 1e-12
    x = np.array([[0.0, -1.5, -np.inf]])
    lines = lad_trace.PiecewiseExp(PAPER_BOUNDS)(x[0, :2])
    exact = math.exp(-1.5) / (1 + math.exp(-1.5))
    expected = (lines[1] / lines.sum() - exact) ** 2  # of both, in view of two
    assert lad_trace.softmax_errors(x, PAPER_BOUNDS)["float"] == pytest.approx(expected)


def test_neighbouring_intervals():
    """Positions in intervals 4 and 3, 4 and 1, and 4 only; the newest do not count."""
    x = np.full((19, 19), -np.inf)
    x[:, :3] = -0.5
    x[:5, 0], x[:5, 1] = -2.0, -7.0
    assert lad_trace.neighbours(x, PAPER_BOUNDS) == 0.5
    assert np.isnan(lad_trace.neighbours(x[:16], PAPER_BOUNDS))
    x[:5, 1] = -2.0
    assert lad_trace.neighbours(x, PAPER_BOUNDS) == 1


@pytest.mark.parametrize(
    ("error", "table", "share", "verdicts"),
    [
        (9e-7, 2e-6, 0.6, (HOLDS, HOLDS, HOLDS)),
        (2e-6, 1e-6, 0.4, (PARTLY, PARTLY, PARTLY)),
    ],
)
def test_claims_on_a_trace(error, table, share, verdicts):
    one = {"float": error, "bits": error, "table": table, "neighbours": share}
    good = {"float": 1e-8, "bits": 1e-8, "table": 1e-7, "neighbours": 0.9}
    measured = {"tokens": 512, "heads": 27, "uniform": 1e-3, "intervals": {"5": one, "8": good}}
    claims = lad_trace.claims(measured)
    assert tuple(claim.verdict for claim in claims) == verdicts
    assert "481 to 512 positions" in claims[0].why


def test_a_measured_trace():
    """Means over heads, of each number of intervals in the request."""
    rng = np.random.default_rng(4)
    q, k = (rng.standard_normal((1, 2, 40, 8)).astype(np.float32) for _ in range(2))
    found = lad_trace.measure(Trace(q, k, k, 1.0), {5: PAPER_BOUNDS})
    assert (found["tokens"], found["heads"]) == (40, 2)
    assert set(found["intervals"]["5"]) == {*lad_trace.WAYS, "neighbours"}
    heads = list(lad_trace.differences(Trace(q, k, k, 1.0)))
    errors = [lad_trace.softmax_errors(x[-32:], PAPER_BOUNDS)["float"] for x in heads]
    assert found["intervals"]["5"]["float"] == pytest.approx(np.mean(errors))
    assert found["uniform"] > found["intervals"]["5"]["float"] > 0
