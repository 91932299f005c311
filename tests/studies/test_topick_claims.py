"""Token-Picker's claims from the trace, from prices of energy, and from the paper's own figures."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from golden.algorithms.topick.reads import Job
from golden.studies import topick, topick_trace
from golden.studies.study import Verdict
from sim.studies.lad.machine import Model
from sim.studies.topick import energy, paper
from sim.studies.topick.energy import Energies, Parts
from sim.studies.topick.measured import JobRun, Measured, Pair, Results, read
from sim.studies.topick.page import ends, waiting_claims

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HOLDS, PARTLY, NOT = Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT


def test_kept_figures_are_the_traces(shipped_trace):
    kept = json.loads((RESULTS / "topick.json").read_text())["extras"]["trace"]
    assert topick_trace.layer_figures(shipped_trace, 0) == kept[0] and len(kept) == 3


def test_weights_by_place():
    """A first token of 0.5, ten recent ones of 0.03, two between of 0.1: the newest is recent."""
    p = np.array([[0.5, 0.1, 0.1, *[0.03] * 10]])
    assert topick_trace.places(p) == pytest.approx(np.array([[0.5], [0.03], [0.1]]))


def test_pruning_by_hand():
    """The newest token has a score of 1 << 14, the others none: the first chunk tells."""
    q, k = np.full((1, 4), 4), np.zeros((1, 5, 4), np.int64)
    k[0, 4] = 1024
    job = Job(q, k, k, np.array([1e-2]))
    assert topick_trace.order_of(5).tolist() == [4, 0, 3, 2, 1]
    assert topick_trace.probabilities(job)[0, 4] == pytest.approx(1)
    found = topick_trace.pruned(job, topick_trace.order_of(5), 1e-3)
    assert (found["k"], found["v"]) == (3 + 4, 3) and found["largest"] < 1e-60
    # Unordered, nothing is known but the token's own term when each first chunk arrives.
    late = topick_trace.pruned(job, np.arange(5), 1e-3)
    assert late["k"] > 3 + 4 and late["v"] == 3


def layer(first=3.0, recent=3.0, better=1, largest=0.9) -> dict:
    runs = [
        {"threshold": threshold, "order": order, "k": read, "v": read, "largest": largest}
        for threshold in topick_trace.THRESHOLDS
        for order, read in (("from new to old", 100 - better), ("from old to new", 100))
    ]
    return {"first": [first], "recent": [recent], "everything": 300, "orders": runs}


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        ({}, (HOLDS, HOLDS, HOLDS)),
        ({"recent": 1.9}, (PARTLY, HOLDS, HOLDS)),
        ({"first": 1.9, "recent": 1.9, "better": 0}, (NOT, NOT, HOLDS)),
        ({"largest": 1.001}, (HOLDS, HOLDS, NOT)),
    ],
)
def test_claims_of_the_trace(changed, verdicts):
    claims = topick_trace.trace_claims([layer(**changed)])
    assert tuple(claim.verdict for claim in claims) == verdicts
    assert changed or "V 3.03× in place of 3.00×" in claims[1].ours


def test_reductions_of_the_paper(monkeypatch):
    """K read whole and half of V: two thirds of the bytes' inverse."""
    assert topick.estimation_alone(2) == pytest.approx(4 / 3)
    assert topick._agreement().verdict is Verdict.HOLDS
    monkeypatch.setattr(topick, "FURTHER", 1.43)
    assert topick._agreement().verdict is Verdict.CONTRADICTS


def rows() -> tuple:
    """SpAtten's row of a KL of 0.045, and ToPick's three."""
    return paper.kept_spatten()


@pytest.mark.parametrize(("both", "verdict"), [(2.6, HOLDS), (2.2, NOT), (2.3, Verdict.OPEN)])
def test_what_scores_out_of_order_add(both, verdict):
    """The limit is nine tenths of 1.39 × 1.83, for V 11 times fewer."""
    row = rows()[1][0]
    v, total = (dataclasses.replace(row.times_fewer, mean=x, error=0.03) for x in (11, both))
    row = dataclasses.replace(row, v_times_fewer=v, times_fewer=total)
    claim = topick._further({"a": row})
    assert claim.verdict is verdict and f"{both * (1 + 1 / 11) / 2:.2f} ±" in claim.ours


def pair() -> Pair:
    """Two heads of ten tokens: 60 chunks of K and of V, of which 40 and 10 are read."""
    sizes = {"lanes": 2, "lanes_per_head": 1, "entries": 64, "d": 64, "buffer_tokens": 0}
    sizes |= {"heads": 2, "kv_heads": 2, "tokens": 10, "threshold": 1e-3, "memory": 50}
    base = JobRun(100, [66, 66], [38, 38], [60, 60], [30, 30])
    job = JobRun(50, [30, 38], [20, 30], [25, 25], [20, 20], 41, 12, [100, 200])
    base, core = (
        Measured(source="text", pruning=pruning, **sizes, jobs=[run])
        for pruning, run in ((False, base), (True, job))
    )
    return Pair(base, core)


def test_energies_by_hand():
    """120 chunks of 50, twice the cycles; estimation reads 70, in 75 of 100 cycles."""
    made = energy.energies(pair(), Parts(30, 10, 40, 20))
    assert made.base == Parts(30 * 2.4, 10 * 2, 40 * 2.4, 20 * 2) and made.core.all == 100
    assert made.estimation.all == pytest.approx(70 * 1.4 + 30 * 1.5)
    assert made.saving == pytest.approx(2.28)
    assert made.by_estimation * made.out_of_order == pytest.approx(made.saving)
    assert made.base.dram == pytest.approx(92)


def test_parts_of_a_step():
    """Wires are 24 % of toggles, glitches too, and 8 % of the clock."""
    dram = {"dram_read": 5, "dram_activation": 2, "dram_background": 3, "dram_refresh": 1}
    chip = {"arithmetic": 10, "arithmetic_glitches": 20, "clock": 50, "leakage": 3, "memories": 4}
    least, most = energy.parts_of({"energy_pj": dram, "chip_pj": chip | {"wires": 0}})
    assert least == Parts(7, 4, 10, 57)
    assert (most.chip_chunks, most.chip_time) == pytest.approx((1.24 * 30, 1.08 * 50 + 7))
    assert most.dram == 11


def test_wires_of_the_rows_that_are_kept():
    rows = json.loads(energy.TERMS.read_text())["rows"]
    row = next(row for row in rows if row["design"] == energy.DESIGN)
    least, most = energy.parts_of(row)
    chip = row["chip_pj"]
    assert most.chip_chunks + most.chip_time == pytest.approx(sum(chip.values()), rel=1e-5)
    assert least.chip_chunks == chip["arithmetic"]


def test_verdicts_on_energy():
    """A figure is reached from nine tenths on, by the lower bound of every job."""
    for bounds, verdict in (([2.17, 3], HOLDS), ([2.16, 3], NOT)):
        assert energy._claim("", [bounds], 2.41, "").verdict is verdict
    assert energy._claim("", [[2.17, 3], [1, 3]], 2.41, "").verdict is PARTLY
    parts = [Parts(30, 30, 20, 20), Parts(20, 20, 40, 20)]
    both = [Energies(of, of, of) for of in parts]
    assert energy._memory_claim([both]).verdict is PARTLY
    assert energy._memory_claim([both[:1]]).verdict is HOLDS


def test_waiting():
    found = ends(Results(read(RESULTS / "topick_speed.json")), 3e-4)
    [claim] = waiting_claims(found)
    assert claim.verdict is HOLDS and claim.ours.startswith("0.07×")
    [slow] = waiting_claims([pair()])  # 100 of 200 cycles, slower than all of K and V
    assert slow.verdict is HOLDS and slow.ours == "0.50×"
    quick = dataclasses.replace(pair().core.jobs[0], waiting=[90, 90])
    core = dataclasses.replace(pair().core, jobs=[quick])
    assert waiting_claims([Pair(pair().base, core)])[0].verdict is NOT
    four = dataclasses.replace(pair().core, lanes_per_head=4)
    assert waiting_claims([Pair(pair().base, four)]) == []


def test_traffic_of_a_model():
    """One layer of 2 elements, 4 · 4 + 2 · 8 + 3 · 2 weights; K and V of a token are 4."""
    model = Model(1, 2, 1, 4, 2, 3, 100)
    assert model.products == 38
    assert paper.share(model, 1, 19) == pytest.approx(100 * 76 / 114)
    assert paper.share(model, 2, 19) == pytest.approx(80)
    assert len(paper.MODELS) == 8 and paper.MODELS["OPT 2.7B"].d == 80


@pytest.mark.parametrize(
    ("agree", "mean", "near", "verdict"),
    [
        (True, 8.5, 8, Verdict.COUNTS),
        (True, 8.7, 8.5, Verdict.ASSUMED),
        (True, 8.7, 8.7, Verdict.NOT),
        (False, 7.8, 7.8, Verdict.CONTRADICTS),
    ],
)
def test_verdict_on_traffic(agree, mean, near, verdict):
    assert paper.traffic_verdict(agree, mean, near) is verdict


def test_what_the_papers_figures_imply():
    """Of a memory's 60 %, at 3 times fewer bytes, and a chip of 1.1 times the power in half."""
    energy_of = 1 / (0.6 / 3 + 0.4 * 1.1 / 2)
    step = paper.Step("", 3, 2, energy_of, 1.1)
    assert step.memory == pytest.approx(0.6)
    assert paper.memory_claim([step]).verdict is Verdict.HOLDS
    for wrong in (dataclasses.replace(step, time=3.1), dataclasses.replace(step, energy=2.2)):
        assert paper.memory_claim([wrong]).verdict is Verdict.CONTRADICTS


@pytest.mark.parametrize(
    ("name", "value", "claim", "verdict"),
    [
        ("LANES", 8, paper.lanes_claim, Verdict.CONTRADICTS),
        ("BUFFER_BYTES", 384 * 1024, paper.buffer_claim, HOLDS),
        ("SCOREBOARD", 5, paper.power_claim, Verdict.CONTRADICTS),
        ("FURTHER", {"speed": (1.73, 1.32, 2.31)}, paper.steps_claim, Verdict.CONTRADICTS),
    ],
)
def test_other_figures_give_other_verdicts(monkeypatch, name, value, claim, verdict):
    assert claim().verdict is not verdict
    monkeypatch.setattr(paper, name, value)
    assert claim().verdict is verdict


def test_spatten_at_equal_loss():
    """ToPick's 2 and 4 times at KLs of 0.01 and 0.04 are 3 at 0.02."""
    spatten, topick_rows = rows()
    assert spatten.kl.mean == pytest.approx(0.045, abs=0.001) and len(topick_rows) == 3

    def at(kl: float, times: float):
        figures = {"kl": kl, "times_fewer": times}
        return dataclasses.replace(
            spatten, **{n: dataclasses.replace(spatten.kl, mean=x) for n, x in figures.items()}
        )

    ours = [at(0.04, 4), at(0.01, 2)]
    for theirs, verdict in ((2, HOLDS), (2.1, PARTLY), (3.1, NOT)):
        claim = paper.spatten_claim(at(0.02, theirs), ours)
        assert claim.verdict is verdict and claim.ours.startswith(f"{3 / theirs:.2f}×: 3.00×")
