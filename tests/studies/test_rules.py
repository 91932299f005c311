"""What the studies at fixed contexts call reproduced."""

import dataclasses
import math

import pytest

from golden.algorithms.lad.rows import Rows
from golden.evaluation.estimate import Estimate
from golden.evaluation.row import Row
from golden.studies import kllm, lad_rows
from golden.studies.study import OURS, Verdict
from golden.studies.trials import tasks_of


@pytest.mark.parametrize(
    ("centres", "spread", "verdict"),
    [
        ((300, 400), 10, Verdict.REPRODUCED),
        ((300, 1100), 10, Verdict.NOT),
        ((700, 1200), 10, Verdict.PARTLY),
        ((300, 400), 2000, Verdict.OPEN),
    ],
)
@pytest.mark.parametrize("codes", [(1, 1), (500, 2000)])
def test_reads_are_judged_by_the_paper_s_identification(centres, spread, verdict, codes):
    """Of 1000 rows of a step at n = 500, and of 2000 at n = 1000, in windows that differ."""
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(Rows)), 0.0)

    def rows(moved):
        return [
            [nothing | {"n": n, "active": x + off} for n, x in zip((500, 1000), moved, strict=True)]
            for off in (-spread, 0, spread)
        ]

    claim = lad_rows.moved_claim({"centres": rows(centres), "codes, 6 bits": rows(codes)})
    assert claim.verdict is verdict


def kllm_row(trial, mean, spread=0.0):
    """Losses of windows that differ by as much under every policy, and by `spread` besides."""
    windows = trial.place.windows
    deltas = [mean + 0.01 * (n % 3 - 1) + spread * (-1) ** n for n in range(windows)]
    delta = Estimate.of(deltas)
    content = {"windows": windows, "deltas": deltas, "delta": delta.mean, "delta_se": delta.error}
    return Row.from_json(content | {"policy": trial.policy, "dense": 20.0, "kl": 0.1, "kl_se": 0.0})


def kllm_loss(policy):
    """As the paper's claims and this project's have it."""
    loss = {"rtn": 3.0, "smoothquant": 2.5, "kllm": 0.05}[policy.partition(":")[0]]
    three = "activation_bits=3" in policy
    parts = {
        "thresholds=static": 0.03 if three else 0.02,
        "outlier_share=0.1": -0.03 if three else -0.02,
        "head": 0.02,
        "=paper": 0.4,
        "rotate=true": -1.0,
        "activation_bits=3": 0.05,
    }
    return loss + sum(more for part, more in parts.items() if part in policy)


KLLM_CLAIMS = (
    *("W4A4", "W4A3", "lowest"),
    *("baselines", "static", "bits", "more at W4A3", "zero-shot"),
    *("share", "dynamic", "share at W4A3", "norms", "all activations"),
    *("degradation", "table", "gain", "generations", "accuracy", "table IV"),
    *("target", "with the head"),
)
KLLM_USUAL = {
    "zero-shot": Verdict.UNKNOWN,
    "degradation": Verdict.HOLDS,
    "table": Verdict.HOLDS,
    "gain": Verdict.ASSUMED,
    "generations": Verdict.CONTRADICTS,
    "accuracy": Verdict.HOLDS,
    "table IV": Verdict.HOLDS,
}
"""What is not by the rows' losses, or not reproduced by the claims of :func:`kllm_loss`."""


@pytest.mark.parametrize(
    ("part", "more", "spread", "changed"),
    [
        ("none at all", 0.0, 0.0, {}),
        # KLLM-S as good as KLLM, as far as can be told; and better.
        (
            "thresholds=static",
            -0.025,
            0.1,
            {
                "W4A4": Verdict.PARTLY,
                "W4A3": Verdict.PARTLY,
                "dynamic": Verdict.OPEN,
            },
        ),
        (
            "thresholds=static",
            -0.04,
            0.0,
            {"W4A4": Verdict.PARTLY, "W4A3": Verdict.PARTLY, "dynamic": Verdict.NOT},
        ),
        # As good at three bits as at four.
        ("activation_bits=3,thresholds=static", -0.015, 0.0, {"more at W4A3": Verdict.NOT}),
        ("activation_bits=3,outlier_share=0.1", 0.02, 0.0, {"share at W4A3": Verdict.PARTLY}),
        (
            "rotate=true",
            1.4,
            0.0,
            {"baselines": Verdict.PARTLY},
        ),
        (
            "rotate=true",
            -1.95,
            0.0,
            {"lowest": Verdict.PARTLY, "static": Verdict.PARTLY},
        ),
        ("rtn:activation_bits=4", -0.8, 0.0, {"W4A4": Verdict.PARTLY, "baselines": Verdict.PARTLY}),
        ("rtn:activation_bits=4", 0.1, 0.0, {"bits": Verdict.PARTLY}),
        ("outlier_share=0.1", 0.05, 0.0, {"share": Verdict.NOT}),
        ("norms=fused,fit=paper", 0.1, 0.0, {"norms": Verdict.PARTLY}),
        (
            "attention=quantised",
            0.2,
            0.0,
            dict.fromkeys(("all activations", "target", "with the head"), Verdict.NOT),
        ),
        ("head=true", 0.15, 0.0, {"with the head": Verdict.NOT}),
        ("tuned=true", 0.13, 0.3, {"target": Verdict.OPEN, "with the head": Verdict.OPEN}),
    ],
)
def test_verdicts_of_kllm(part, more, spread, changed):
    """Losses of all policies that have the part are larger by `more`."""
    rows = {
        trial: kllm_row(trial, kllm_loss(trial.policy) + more, spread)
        if part in trial.policy
        else kllm_row(trial, kllm_loss(trial.policy))
        for trial in kllm.trials({})
    }
    study = kllm.study(rows, {}, {"texts": ["voyage-out", "nikola"]})
    found = dict(zip(KLLM_CLAIMS, [claim.verdict for claim in study.claims], strict=True))
    wanted = dict.fromkeys(KLLM_CLAIMS, Verdict.REPRODUCED) | KLLM_USUAL
    assert found == wanted | changed
    ours = ["target", "with the head"]
    assert [claim.whose == OURS for claim in study.claims] == [name in ours for name in KLLM_CLAIMS]
    assert f"{math.exp(kllm_loss('kllm:')):.3g}" in study.markdown() or not part


def test_kllm_fits_weights_two_tasks_before_another_reads_them():
    """Two tasks that run at a time then do not both fit them."""
    kinds = "fit=paper", "norms=fused", "tuned=true"
    before, seen = set(), set()
    for task in tasks_of(kllm.trials({})):
        needed = {
            (task.place.model, *(kind in policy for kind in kinds))
            for policy in task.policies
            if policy.startswith("kllm:") and "weight_bits=none" not in policy
        }
        assert not before & needed, task
        before, seen = needed - seen, seen | needed
    assert len(seen) == 6
