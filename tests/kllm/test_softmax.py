"""Softmax: its model against float64, bounds of its steps, every length and kind of row."""

import numpy as np
import pytest

from golden.arith.wide_exponent import FRACTION, inverse, powers
from golden.kllm.softmax import softmax
from hw.catalogue import find
from hw.kllm.softmax_parameters import SoftmaxParameters
from sim.testbenches.kllm.softmax import build, real_rows, testbench
from tests.support.arith.functions import ulp_errors
from tests.support.campaign import suite_takes
from tests.support.kllm.compiled import Compiled

BLOCK = find("kllm.softmax")
# Of the sizes in the campaign each takes ten seconds to compile.
SIZES = suite_takes(
    [SoftmaxParameters.preset("small")],
    [
        SoftmaxParameters.preset("small"),
        SoftmaxParameters(lanes=3, length=30),
        SoftmaxParameters(lanes=4, length=4),
    ],
)
INVALID = 1


def reference(score: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        wide = score.astype(np.float64)
        e = np.exp(wide - wide.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)


def all_of(score: np.ndarray, length: int = 4096):
    return softmax(score, np.ones(score.shape, bool), length)


def test_bounds_of_the_steps(capsys):
    """Terms of the stated bound, in units of 2^-11 of the value: half a unit at least."""
    argument = np.arange(18 << FRACTION)  # further away, a probability rounds to zero
    significand, shift = powers(argument)
    exact = np.exp(-argument / 2.0**FRACTION)
    term = significand / 2.0**15 / 2.0**shift / exact - 1
    cells = np.arange(4096)
    table = inverse(cells) / 2.0**14
    ends = [table * (1 + (cells + end) / 4096) / 2 - 1 for end in (0, 1)]
    spread = (term.max() - term.min()) * 2**11  # a term and all the others
    argument = 2 * 2**11 * np.expm1(2.0**-15)
    cut = 2**11 * 2.0**-15
    reciprocal = np.abs(ends).max() * 2**11
    bound = 0.5 + spread + argument + cut + reciprocal
    with capsys.disabled():
        parts = f"{spread:.3f} + {argument:.3f} + {cut:.3f} + {reciprocal:.3f}"
        print(f"\n0.5 + {parts} = {bound:.3f} ulp")
    assert bound < 1.7


@pytest.mark.parametrize(
    ("n", "spread"), [(1, 1), (8, 1), (64, 4), (512, 0.01), (512, 3), (4096, 2), (100, 1000)]
)
def test_close_to_softmax(n, spread, capsys):
    rng = np.random.default_rng(n)
    score = rng.normal(scale=spread, size=(max(50, 200_000 // n), n)).astype(np.float16)
    got, invalid = all_of(score)
    errors = ulp_errors(got, reference(score))
    with capsys.disabled():
        print(f"\n{n} scores, spread {spread}: at most {errors.max():.3f} ulp")
    assert errors.max() < 1.1
    assert not invalid.any()
    assert np.abs(got.astype(np.float64).sum(axis=1) - 1).max() < 2.0**-10


def test_close_to_softmax_on_real_scores(shipped_trace, capsys):
    p = SoftmaxParameters()
    rows, _ = real_rows(shipped_trace, p, 27, np.random.default_rng(1))
    worst, count = 0, 0
    for row in rows:
        got, invalid = all_of(row[None], p.length)
        worst = max(worst, ulp_errors(got, reference(row[None])).max())
        count += row.size
        assert not invalid.any()
    with capsys.disabled():
        print(f"\n{count} real probabilities: at most {worst:.3f} ulp")
    assert worst < 1.1 and count > 5000


def test_rows_that_are_flagged():
    inf, nan = np.inf, np.nan
    score = np.array(
        [
            [1, -inf, 1, -inf],
            [1, nan, 2, 3],
            [inf, 0, 0, -inf],
            [-inf, -inf, -inf, -inf],
            [nan, -inf, -inf, -inf],
            [65504, 65472, -65504, -inf],
            [-65504, -65504, -inf, -inf],
        ],
        np.float16,
    )
    got, invalid = all_of(score)
    assert invalid.tolist() == [False, True, True, True, True, False, False]
    assert got[0].tolist() == [0.5, 0, 0.5, 0]
    assert (got.view(np.uint16)[[1, 2, 4]] == 0x7E00).all()
    assert (got[3] == 0).all()
    assert got[5].tolist() == [1, 0, 0, 0]
    assert got[6].tolist() == [0.5, 0.5, 0, 0]


def test_scores_not_kept_do_not_count():
    rng = np.random.default_rng(5)
    score = rng.normal(size=(200, 40)).astype(np.float16)
    keep = rng.random(score.shape) < 0.5
    odd = np.where(keep, score, rng.choice(np.array([np.nan, np.inf, 100], np.float16), keep.shape))
    got, invalid = softmax(odd, keep, 64)
    for row in range(200):
        alone, _ = all_of(score[row, keep[row]][None], 64)
        assert np.array_equal(got[row, keep[row]], alone[0])
    assert (got[~keep] == 0).all() and not invalid.any()
    assert softmax(odd, np.zeros_like(keep), 64)[1].all()


@pytest.mark.parametrize("parameters", SIZES, ids=lambda p: p.slug())
def test_every_size(parameters, shipped_trace):
    compiled = Compiled(BLOCK, parameters)
    for data, vectors in ((None, 400), (shipped_trace, 30)):
        stimulus = testbench.stimulus(parameters, data, vectors, seed=7)
        assert stimulus.transactions == vectors
        compiled.check_all(stimulus)


def test_rate_and_rows_too_long():
    """Rows of four beats or more follow without a gap; too long ones are cut and flagged."""
    p = SoftmaxParameters.preset("small")
    rng = np.random.default_rng(6)
    compiled = Compiled(BLOCK, p)
    for beats in (1, 2, 4, p.beats, p.beats + 1, 3 * p.beats):
        rows = [rng.normal(size=beats * p.lanes).astype(np.float16) for _ in range(12)]
        stimulus = build(p, rows, [np.ones(len(row), bool) for row in rows], [])
        outcome = compiled.check(stimulus)
        taken = outcome.cycles_of["o"]
        given = min(beats, p.beats)
        assert len(taken) == 12 * given
        assert taken[0] == given - 1 + p.latency + given - 1
        if 4 <= beats <= p.beats:
            assert set(np.diff(taken)) == {1}
        flags = stimulus.outputs["o"][:, -1] >> (p.output_layout["invalid"].offset % 32) & INVALID
        assert flags.all() if beats > p.beats else not flags.any()


def test_formula_for_mixed_rows():
    """Long and short rows in any order, with every reason to wait for room."""
    p = SoftmaxParameters.preset("small")
    compiled = Compiled(BLOCK, p)
    rng = np.random.default_rng(8)
    for _ in range(40):
        beats = rng.choice([1, 1, 2, p.beats - 1, p.beats, p.beats + 3], rng.integers(1, 40))
        rows = [rng.normal(size=b * p.lanes).astype(np.float16) for b in beats]
        stimulus = build(p, rows, [np.ones(len(row), bool) for row in rows], [])
        compiled.check(stimulus)
