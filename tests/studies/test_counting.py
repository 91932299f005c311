"""What counting costs: the designs, the page."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from golden.studies.study import Verdict
from golden.trace import Trace, TraceError
from sim.__main__ import parser
from sim.studies import kllm
from sim.studies.kllm import noise, page
from sim.studies.kllm.designs import STEPS, data_of
from sim.studies.kllm.errors import errors_of
from sim.studies.kllm.measured import Measured
from sim.studies.kllm.noise_claims import noise_claims
from sim.studies.kllm.page import together
from sim.synth.activity import RUNS

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def columns(shipped_trace):
    return data_of(shipped_trace, STEPS * 16, 2)


def test_the_trace_s_columns(columns):
    """Real indices, no two runs alike; steps in the order of the column's positions."""
    assert columns.weight.shape == (RUNS, 2, 128) and 0.97 < columns.keep.mean() < 1
    assert len(np.unique(columns.weight.reshape(RUNS, -1), axis=0)) > RUNS // 2
    steps = columns.steps(columns.weight, 16)
    assert steps.shape == (16, RUNS, 16)
    assert np.array_equal(steps[9, 3], columns.weight[3, 1, 16:32])


def test_errors_of_the_trace(shipped_trace):
    """8 bits hardly change a product, 12 bits less."""
    few = Trace(
        x={name: x[:4] for name, x in shipped_trace.x.items() if "attn" in name},
        w={name: w for name, w in shipped_trace.w.items() if "attn" in name},
    )
    found = errors_of(few, 4, (8, 12))
    assert len(found) == 3
    for e in found:
        assert e.apart[12] < e.apart[8] / 5 < 0.02
        assert all(abs(error - e.counting) < 0.01 for error in e.centroids.values())
    with pytest.raises(TraceError, match="no matrices"):
        errors_of(Trace(x=few.x), 4, (8,))


def test_parts_of_a_design_are_added():
    parts = [Measured("x", 80, 1.0, d, 2.0, e, 3, 4.0, 5.0, 6.0, 7.0) for d, e in ((5, 8), (7, 2))]
    added = together(parts)
    assert added == Measured("counting", 80, 2.0, 7, 4.0, 8, 6, 8.0, 10.0, 12.0, 14.0)
    assert (added.quiet, added.energy) == (34, 44)


def test_noise_of_levels_by_hand():
    """Two bits around 0 are -1, 0, 1; from least to largest 4 levels, which fit this better."""
    x = np.array([0.0, 1.0, 2.0, 3.0])
    assert not noise.uniform_error(x, 2, 0).any()
    x = np.array([[-3.0, 0.0, 0.0, 3.0]])
    assert not noise.uniform_error(x, 2, 1).any()
    assert noise.size(np.array([3.0, -4.0, 0.0, 0.0])) == 2.5


def test_noise_of_the_trace(shipped_trace):
    """A layer, and the page's figures of it."""
    name = "layer15.attn"
    kept = page.read(RESULTS / "kllm_counting.json").noise
    assert [(of.layer, of.bits) for of in kept.layers[:2]] == [
        ("layer15.attn", 4),
        ("layer15.down", 4),
    ]
    found = noise.layer_noise(shipped_trace, name, 4)
    assert found.inputs < found.uniform < found.plain
    pairs = (
        (found, kept.layers[0]),
        (noise.layer_outliers(shipped_trace, name), kept.outliers[0]),
    )
    for made, old in pairs:
        assert dataclasses.astuple(made)[1:] == pytest.approx(dataclasses.astuple(old)[1:])
    with pytest.raises(TraceError, match="no matrices"):
        noise.noise_of(Trace(x=shipped_trace.x))


def test_noise_of_scores_that_are_levels():
    """Equal scores of two tokens are one level: no errors, whatever the values."""
    q = np.ones((1, 2, 8, 4))
    k, v = np.zeros((1, 1, 8, 4)), np.random.default_rng(0).standard_normal((1, 1, 8, 4))
    trace = Trace(q=q, k=k, v=v, scale=np.float64(0.5))
    found = noise.score_noise(trace, 0, 0)
    assert found.integers < 1e-12 and found.kmeans < 1e-6


def test_verdicts_on_noise():
    layer = noise.LayerNoise("attn", 3, 2.0, 1.0, 9.0, 3.0, 1.0)
    four = dataclasses.replace(layer, bits=4, uniform=2.0, uniform_weights=1.5)
    outliers = noise.LayerOutliers("attn", 0.68, 0.7, 5.0, 0.14, 0.01, 0.3)
    good = noise.Noise([four, layer], [outliers], [noise.ScoreNoise(0, 0, 0.1, 0.1)])

    def verdicts(**changes):
        changed = dataclasses.replace(good, **changes)
        return [claim.verdict for claim in noise_claims(changed)]

    reproduced, refuted = Verdict.REPRODUCED, Verdict.NOT
    usual = [reproduced, reproduced, refuted, reproduced, Verdict.ASSUMED, reproduced]
    assert verdicts() == usual
    levels = dataclasses.replace(layer, plain=6.0)
    assert verdicts(layers=[four, levels])[2] is reproduced
    assert verdicts(layers=[dataclasses.replace(four, uniform=3.0), layer])[1] is Verdict.PARTLY
    assert verdicts(layers=[four, dataclasses.replace(layer, weights=2.5)])[1] is refuted
    wide = dataclasses.replace(outliers, inputs_within=0.8, inlier_centroids=0.1, threshold=0.2)
    assert verdicts(outliers=[wide]) == [
        *(Verdict.PARTLY, reproduced, refuted, Verdict.PARTLY, refuted, reproduced)
    ]
    far = dataclasses.replace(outliers, inlier_centroids=0.2)
    assert verdicts(outliers=[far])[3] is refuted
    assert verdicts(scores=[noise.ScoreNoise(0, 0, 0.2, 0.1)])[5] is Verdict.UNKNOWN


def test_options():
    arguments = parser().parse_args(["counting", "--counters", "1", "2"])
    assert arguments.counters == [1, 2] and arguments.liberty == "nangate45"
    with pytest.raises(SystemExit):
        parser().parse_args(["counting", "--counters", "0"])


def test_the_command_writes_what_was_measured(tmp_path, monkeypatch, capsys):
    kept = page.read(RESULTS / "kllm_counting.json")
    monkeypatch.setattr(kllm, "data_of", lambda *_: None)
    library = SimpleNamespace(name=kept.library)
    monkeypatch.setattr(kllm.libraries, "find", lambda _: library)
    monkeypatch.setattr(kllm, "errors_of", lambda *_: kept.errors)
    monkeypatch.setattr(kllm, "noise_of", lambda _: kept.noise)
    monkeypatch.setattr(kllm, "designs", lambda *_: kept.measured)
    monkeypatch.setattr(kllm, "measure", lambda design, *_: design)
    arguments = parser().parse_args(["counting", "-o", str(tmp_path)])
    assert arguments.run(arguments) == 0
    for name in ("kllm_counting.md", "kllm_counting.json"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
    assert len(capsys.readouterr().out.splitlines()) == len(kept.measured)
