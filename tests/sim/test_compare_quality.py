"""``sim compare --quality``: settings at which all designs lose as much."""

import dataclasses
import json

import pytest

from golden import InputError
from golden.studies import equal_quality
from sim.studies.compare.cases import case_of
from sim.studies.compare.data import Shape
from sim.studies.compare.designs import ALGORITHMS, DESIGNS
from sim.studies.compare.quality import FIXED, POLICIES, qualities
from sim.studies.compare.rows import Setting

SHAPE = Shape(d=64, n=512, heads=9, kv_heads=3)
FOUND = {
    "H2O": "h2o:capacity=300",
    "VEDA": "voting:capacity=800",
    "VEDA, first 32 kept": "voting:capacity=501,protect_reserved=true",
    "ToPick": "topick:threshold=0.00123",
    "LAD": "lad:bounds=-3/-1,identification=codes,slack=0.00099",
    "UniCAIM, 64 rows selected": "unicaim:heavy=960,reserved=64",
    "UniCAIM, no token evicted": "unicaim:heavy=960,reserved=64,top_k=111",
    "StreamingLLM": "streaming:capacity=700",
    "SpAtten, all values": "spatten:keep=0.71,values=1",
    "sixth design": "tsuru:threshold=0.00042,search=rotated,levels=float",
}

EVERY = [*DESIGNS, *ALGORITHMS]

KLLM = "kllm:weight_bits=none,activation_bits=none,attention=quantised"
"""A policy without a setting; the loss that it has below is 0.11."""


@pytest.fixture
def folder(tmp_path):
    """Settings as the study writes them; at the first loss UniCAIM has none."""
    losses = equal_quality.LOSSES
    choices = []
    for choice, (name, policy) in zip(equal_quality.choices(), FOUND.items(), strict=True):
        missed = name.startswith("UniCAIM")
        chosen = [
            {"policy": policy, "loss": 0.0041 if missed and n == 0 else 0.9 * loss}
            for n, loss in enumerate(losses)
        ]
        choices.append(dataclasses.asdict(choice) | {"chosen": chosen})
    place = dataclasses.asdict(equal_quality.place())
    trials = [
        {"policy": policy, "place": place, "row": {"windows": 10, "kl": kl / 100, "kl_se": 0.001}}
        for kl, policy in enumerate([*FOUND.values(), KLLM], 1)
    ]
    content = {"choices": choices, "trials": trials}
    (tmp_path / f"{equal_quality.NAME}.json").write_text(json.dumps(content))
    return tmp_path


def test_every_design_but_the_exact_one_has_a_policy():
    assert POLICIES.keys() | FIXED.keys() == {*EVERY} - {"baseline.dense_core"}
    assert not POLICIES.keys() & FIXED.keys()
    assert {policy.name for policy in POLICIES.values()} <= equal_quality.KNOBS.keys()


def test_settings_are_shares_of_the_context(folder):
    """But for thresholds; LAD's slack is in steps of 2^-16."""
    (quality,) = qualities([0.018], folder)
    assert [quality.settings(name, SHAPE) for name in EVERY] == [
        [],
        ["baseline.h2o_core.kept=150"],
        ["veda.veda_core.kept=250"],
        ["tsuru.tsuru_core.threshold=0.00042"],
        ["topick.topick_core.threshold=0.00123"],
        ["unicaim.unicaim_core.rows=511", "unicaim.unicaim_core.top_k=56"],
        ["lad.lad_tile.slack=64"],
        ["lad.lad_system.slack=64"],
        [],
        ["spatten.keep=0.71", "spatten.values=1"],
    ]
    assert quality.loss("veda.veda_core").mean == 0.03
    assert quality.loss("baseline.dense_core").mean == 0
    assert quality.loss("kllm.kllm_core").mean == 0.11


def test_a_design_that_cannot_reach_a_loss_is_left_out(folder):
    near, far = qualities([0.003, 0.018], folder)
    settings = (Setting(SHAPE, "hbm2", "1000"),)
    cases = [case_of(SHAPE, quality, settings, [], []) for quality in (near, far)]
    kllm = {"kllm.kllm_core": "it has no setting, and loses 0.1100 ± 0.0010 nats"}
    assert cases[0].left == kllm | {
        "unicaim.unicaim_core": "no setting reaches a KL of 0.003 nats; the least is 0.0041"
    }
    every = {*EVERY} - {"lad.lad_system"}  # compared only if it is named
    assert cases[0].sets.keys() == every - cases[0].left.keys()
    assert cases[1].left == kllm and cases[1].sets.keys() == every - kllm.keys()
    reached = dataclasses.replace(cases[1].quality, allowed=0.11)
    assert not case_of(SHAPE, reached, settings, [], []).left


def test_a_users_settings_come_last(folder):
    (quality,) = qualities([0.018], folder)
    sets = ["veda.veda_core.kept=99", "veda.veda_core.depth=32"]
    case = case_of(SHAPE, quality, (Setting(SHAPE, "hbm2", "1000"),), ["veda.veda_core"], sets)
    assert case.sets == {"veda.veda_core": ("veda.veda_core.kept=250", *sets)}


def test_without_a_checkout(tmp_path):
    with pytest.raises(InputError, match="--quality needs a checkout"):
        qualities([0.018], tmp_path)
    assert qualities([], tmp_path) == []
