"""Verdicts on LAD's and ToPick's counts follow from intervals over windows."""

import dataclasses

import numpy as np
import pytest

from golden.algorithms.attention import Traffic
from golden.algorithms.lad.rows import Rows
from golden.evaluation.estimate import Estimate
from golden.evaluation.in_context import Score
from golden.evaluation.row import row_of
from golden.studies import lad, lad_rows, topick, trials
from golden.studies.study import Verdict
from golden.studies.trials import Place
from tests.support.lm.tiny_llama import SIZES, write_gguf

HOLDS, OPEN, PARTLY, NOT = Verdict.REPRODUCED, Verdict.OPEN, Verdict.PARTLY, Verdict.NOT
READ = Traffic(k_bytes=1, v_bytes=1, dense_bytes=4)
SCORE = Score(1.0, 1.0, 0.0, 1.0, 1.0, None, READ, READ, 16, 7.0, {}, 1.0)
FIGURES = {"top 1": 0.5, "top 2": 0.5, "centre share": 0.9}
FIGURES |= {"false negatives": 0.5, "hit ratio": 0.5, "active share": 0.5, "updates": 1.0}


def near(mean, half):
    """Values of ten windows whose 95 % interval reaches about `half` to either side."""
    return [mean + sign * 1.33 * half for sign in (-1, 1) for _ in range(5)]


def claim_of(text, **figures):
    """LAD's claim that starts with a text, with the figures' values in each window."""
    scores = [
        dataclasses.replace(SCORE, figures={name: values[at] for name, values in figures.items()})
        for at in range(10)
    ]
    prose = [trial for trial in lad.trials({}) if trial.place.task == "prose"]
    rows = {trial: row_of(trial.policy, "m", 9, 2, scores) for trial in prose}
    [claim] = [claim for claim in lad._claims(rows) if claim.paper.startswith(text)]
    return claim


@pytest.mark.parametrize(
    ("text", "figures", "verdict", "told"),
    [
        ("a score", {"top 1": (0.76, 0.01), "top 2": (0.97, 0.01)}, HOLDS, "76.0% ± 0.4% and 97.0"),
        ("a score", {"top 1": (0.76, 0.01), "top 2": (0.93, 0.01)}, PARTLY, ""),
        ("a score", {"top 1": (0.76, 0.03), "top 2": (0.97, 0.03)}, OPEN, ""),
        ("a score", {"top 1": (0.73, 0.005), "top 2": (0.94, 0.03)}, NOT, ""),
        ("keys fall", {"centre share": (0.4, 0.05)}, HOLDS, "40.0% ± 2.2% of the keys"),
        ("keys fall", {"centre share": (0.4, 0.2)}, OPEN, ""),
        ("keys fall", {"centre share": (0.6, 0.05)}, NOT, ""),
        ("about 1 %", {"false negatives": (0.0105, 0.0004)}, HOLDS, "1.05% ± 0.02% with 5"),
        ("about 1 %", {"false negatives": (0.0105, 0.0009)}, OPEN, ""),
        ("about 1 %", {"false negatives": (0.0115, 0.0004)}, NOT, ""),
        ("more than 80 %", {"hit ratio": (0.83, 0.02)}, HOLDS, "83% ± 1% with 5"),
        ("more than 80 %", {"hit ratio": (0.83, 0.04)}, OPEN, ""),
        ("more than 80 %", {"hit ratio": (0.77, 0.02)}, NOT, ""),
    ],
)
def test_counts_of_lad(text, figures, verdict, told):
    given = {name: [value] * 10 for name, value in FIGURES.items()}
    claim = claim_of(text, **given | {name: near(*pair) for name, pair in figures.items()})
    assert claim.verdict is verdict and told in claim.ours


@pytest.mark.parametrize(
    ("half", "refreshed", "verdict"),
    [
        ((0.005, 0.002), (0.004, 0.001), HOLDS),
        ((0.05, 0.02), (0.004, 0.001), PARTLY),
        ((0.05, 0.02), (0.009, 0.005), NOT),
        ((0.011, 0.005), (0.009, 0.005), OPEN),
    ],
)
def test_drift_of_caches(half, refreshed, verdict):
    output = {name: Estimate.of(near(1e-5, 1e-6)) for name in lad.DRIFTS}
    output |= {"FP16": Estimate.of(near(*half))}
    output |= {"FP16, recomputed every 64 steps": Estimate.of(near(*refreshed))}
    claim = lad._drift_claim({name: [0.1, 0.2] for name in lad.DRIFTS}, output)
    assert claim.verdict is verdict and "2.0e-01" in claim.ours


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        (near(0.8, 0.1), near(0.4, 0.05), HOLDS),
        (near(0.8, 0.1), near(0.6, 0.05), PARTLY),
        # Each falls in every window, though less than windows differ.
        (near(0.8, 0.3), near(0.7, 0.3), PARTLY),
        (near(0.6, 0.05), near(0.7, 0.05), NOT),
        (near(0.5, 0.1), near(0.5, 0.1)[::-1], OPEN),
    ],
)
def test_rows_of_a_step(first, last, verdict):
    """Dense attention moves 2 n rows; the windows' shares are paired."""

    def rows(n, share):
        return dataclasses.asdict(Rows(n, 0, 0, 0, 0, 0, 2 * n * share, 0, 0, 0))

    windows = [[rows(512, a), rows(4096, b)] for a, b in zip(first, last, strict=True)]
    claim = lad_rows.moved_claim(dict.fromkeys(lad.ROWS, windows))
    assert claim.verdict is verdict
    assert f"{np.mean(first):.0%} ± " in claim.ours and "at 512 to 4096 positions" in claim.ours


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [((6.0, 0.5), HOLDS), ((5.5, 0.6), OPEN), ((4.5, 0.5), NOT)],
)
def test_instances_of_a_head(ratios, verdict):
    """The paper's instances are 23.5 / 4.6 = 5.1 times apart."""
    of = {"share": dict.fromkeys(topick.PARTS, 0.1), "median head": near(*ratios)}
    claim = topick._figure_3(dict.fromkeys(topick.MODELS, of))
    assert claim.verdict is verdict and f"{ratios[0]:.1f} ± " in claim.ours


def test_the_median_head_of_each_window(monkeypatch):
    """Heads' largest shares are 2, 3 and 5 times the least; a share of none counts as one token."""
    monkeypatch.setattr(topick, "CONTEXT", 100)
    first = np.array([[0.1, 0.2], [0.3, 0.1], [0.1, 0.5]])
    second = np.array([[0.0, 0.2], [0.3, 0.3], [0.1, 0.9]])
    found = topick._spread([first, second])
    assert found["median head"] == pytest.approx([3, 9])
    assert found["share"]["50 %"] == np.median([first, second])


def test_shares_of_dominant_tokens(tensors, tmp_path, monkeypatch):
    """By the definition, head by head and query by query."""
    tiny = write_gguf(tmp_path / "tiny.gguf", tensors, sizes=SIZES | {"context": 500})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("The theory of the thing is that the other thinks. " * 9)
    monkeypatch.setattr(topick, "QUERIES", 7)
    monkeypatch.setattr(topick, "DOMINANT", 0.04)
    place = Place(str(tiny), 24, 7, 2, "one.txt")
    layers, shares = trials.hidden_inputs(place, 1), topick._shares(place, 1)
    expected = []
    for layer in layers:
        heads, _, d = layer["q"].shape
        group = heads // len(layer["k"])
        for head in range(heads):
            for token in range(17, 24):
                scores = layer["k"][head // group, : token + 1] @ layer["q"][head, token] / d**0.5
                p = np.exp(scores - scores.max())
                expected.append(np.mean(p / p.sum() > 0.04))
    assert shares == pytest.approx(np.reshape(expected, (-1, 7))) and 0 < shares.mean() < 1
    trials.cut.cache_clear()
    trials._opened.cache_clear()
