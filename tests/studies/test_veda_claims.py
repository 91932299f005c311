"""VEDA's claims from the trace, from the cycle formula, and from the paper's own figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from golden.studies import veda_votes
from golden.studies.study import Verdict
from sim.studies import veda_paper
from sim.studies.veda_cycles import tokens_per_second

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HOLDS, PARTLY, NOT = Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT


def test_kept_figures_are_the_traces(shipped_trace):
    kept = json.loads((RESULTS / "veda.json").read_text())["extras"]["votes"]
    assert veda_votes.layer_figures(shipped_trace, 0) == pytest.approx(kept[0]) and len(kept) == 3


def causal(*rows: list[float]) -> np.ndarray:
    n = len(rows)
    return np.array([row + [0.0] * (n - len(row)) for row in rows])


def test_sparsity_of_what_is_seen():
    """Of the two last queries' 2 + 3 probabilities two are below a hundredth of the largest."""
    p = causal([1], [0.995, 0.005], [0.004, 0.006, 0.99])[None, 1:]
    assert veda_votes.sparsity(p) == 3 / 5
    assert veda_votes.sparsity(causal([1], [0.98, 0.02], [0.1, 0.4, 0.5])[None, 1:]) == 0


def test_thresholds_below_zero():
    """A row of one 1 and l - 1 zeros deviates by sqrt(l - 1) means: 5 at l = 26."""
    s = np.eye(40)
    assert veda_votes.negative(s, 0) == 14 / 40
    assert veda_votes.negative(np.tril(np.ones((40, 40))) / 40, 0) == 0


def test_rows_that_last(monkeypatch):
    """Of queries 10 to 18 the first row is the likeliest, and two later so up to 16 of them."""
    monkeypatch.setattr(veda_votes, "QUERIES", 2)
    s = np.zeros((20, 20))
    s[:, 0], s[18:, 0], s[:, 1] = 1, 0.1, 0.5
    # Queries 10 to 17, one row in ten; the first row leads until 17, so for 10 to 15.
    assert veda_votes.lasting(s) == 6 / 8


def test_places_of_evicted_rows():
    """Three tokens, two kept. All vote against the least row but themselves; sums are least last.

    Token 1 votes for the row below 0.5 - 0.2 · 0.4, token 2 for those below 0.33 less 0.2 · 0.25.
    """
    p = causal([1], [0.1, 0.9], [0.2, 0.68, 0.12])[None]
    assert veda_votes.ages(p, 2, "votes", 0) == 0  # two votes for the oldest
    assert veda_votes.ages(p, 2, "sums", 0) == 1  # 0.12, the newest
    # Where the first two cast no vote, both rows have one, and the older one leaves.
    assert veda_votes.ages(p, 2, "votes", 2) == 0
    # A row that all but the new token's attention goes to stays, one of 0.03 of it leaves.
    late = causal([1], [0.97, 0.03], [0.4, 0.3, 0.3])[None]
    assert veda_votes.ages(late, 2, "votes", 0) == 1 / 2


def figures(**changed: float) -> dict[str, float]:
    right = {"sparsity": 0.9, "lasting": 0.51, "negative": 0.04, "sums": 0.6, "votes": 0.4}
    return right | changed


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (0, {"sparsity": 0.89}),
        (1, {"lasting": 0.5}),
        (2, {"negative": 0.05}),
        (3, {"votes": 0.5}),
        (3, {"sums": 0.5}),
    ],
)
def test_claims_of_section_iii(number, changed):
    """One layer that is wrong makes one claim hold in part, and alone not at all."""
    for layers, wrong in (([{}], HOLDS), ([{}, changed], PARTLY), ([changed], NOT)):
        verdicts = [c.verdict for c in veda_votes.votes_claims([figures(**of) for of in layers])]
        assert verdicts == [wrong if n == number else HOLDS for n in range(4)]


def test_speed_by_eviction_of_whole_tokens():
    """18.5 tokens a second, of 19.26 without attention; with 103 rows nearly these."""
    paper = veda_paper.paper_core()
    bare, whole = tokens_per_second(paper)
    kept = tokens_per_second(paper, (103,) * 10, 1)[1]
    # Attention of 32 layers and heads: 2 · 103 rows and the rest of a head, then a step's votes.
    step = 32 * (2 * 103 + 10.5) + 320
    assert 1e9 / kept - 1e9 / bare == pytest.approx(32 * step, rel=0.02)
    claim = veda_paper.generation_claim()
    assert claim.verdict is PARTLY and claim.ours.startswith(f"{kept / whole:.2f}×")


def test_claims_of_the_formula():
    tile, reduction = veda_paper.tile_claim(), veda_paper.reduction_claim()
    assert tile.verdict is HOLDS and tile.ours.startswith("133 cycles") and "2 in" in tile.ours
    assert reduction.verdict is PARTLY and "14 %" in reduction.ours
    votes, causal_part = veda_paper.votes_claim(), veda_paper.causal_claim()
    assert votes.verdict is PARTLY and "4.6 % at 103 rows" in votes.ours
    # 256.5 rows on average and 46 cycles, of 512 rows.
    assert causal_part.ours.startswith("50.1 %")
    assert f"{100 * (2 * 256.5 + 46) / (2 * 512 + 46):.1f} %" in causal_part.ours
    assert veda_paper.dimensions_claim().verdict is Verdict.COUNTS


def test_use_of_the_port():
    good = {"cycles": 100, "cycles_ideal_port": 91, "share_of_peak": 0.91}
    poor = {"cycles": 100, "cycles_ideal_port": 89, "share_of_peak": 0.89}
    for hbm, lpddr, verdict in (
        (good, good, HOLDS),
        (good, poor, PARTLY),
        (poor, poor, NOT),
    ):
        assert veda_paper.port_claim({"hbm2": hbm, "lpddr4": lpddr}).verdict is verdict


def test_shares_of_power():
    """Table I: 3.5 and 7.0 % where the text has 3 and 6.5 %, of the area."""
    claim = veda_paper.power_claim(veda_paper.POWER)
    assert claim.verdict is PARTLY and "46.8 and 39.7 %, 3.5 %, 7.0 %" in claim.ours
    assert sum(veda_paper.POWER.values()) == pytest.approx(375.26)
    power = veda_paper.POWER | {"special function unit": 11.0, "voting engine": 24.5}
    assert veda_paper.power_claim(power).verdict is HOLDS


def test_power_of_units():
    """20, 4 and 1 pJ of heads of 64; 28 / 45 · (0.9 / 1.1)² of them at the paper's size."""
    units = {}
    for name, stream, settled in (("array", "i", 2e6), ("score", "i", 1e5)):
        units[name] = {"beats": {stream: 100.0}, "settled_fj": settled, "glitches_fj": settled}
    claim = veda_paper.units_claim(units)
    scale = 28 / 45 * (0.9 / 1.1) ** 2
    assert claim.ours.startswith(f"{40 * scale:.0f} to {80 * scale:.0f}, 199 and 0 to 0 mW")
    assert claim.verdict is PARTLY


def test_figures_of_table_ii(monkeypatch):
    assert veda_paper.figures_claim().verdict is Verdict.HOLDS
    monkeypatch.setattr(veda_paper, "TOKENS", 18.9)
    assert veda_paper.figures_claim().verdict is Verdict.CONTRADICTS


def test_other_accelerators():
    """At 56 nm energies are halved or an eighth in 28 nm, and areas a quarter."""
    assumed, smallest = veda_paper.others_claims({"other": (56, 4.4, 1, 300)})
    assert "other 600 to 2400" in assumed.ours and assumed.verdict is Verdict.ASSUMED
    assert "other 1.10" in smallest.ours and smallest.verdict is HOLDS
    ahead, equal = veda_paper.others_claims({"other": (28, 1.06, 1, 600)})
    assert ahead.verdict is Verdict.HOLDS and equal.verdict is NOT
    assert veda_paper.others_claims({"other": (56, 1, 1, 330)})[0].verdict is Verdict.CONTRADICTS


def test_energy_beside_a_gpu(monkeypatch):
    """12 pJ a byte read, and 2 W beside; a fiftieth of the GPU's energy a token is too little."""
    core = {"bytes": {"k_read": 60, "v_read": 40}, "seconds": 1e-9}
    core["energy_pj"] = {"dram_read": 1100, "dram_activation": 100}
    core["energy_pj"] |= {"dram_background": 1500, "dram_refresh": 500}
    assert veda_paper.hbm_watts(core) == pytest.approx(12 * 0.256 + 2)
    tokens = 8 * 18.6 / 2.86
    assert veda_paper.gpu_tokens() == pytest.approx(tokens)
    ratio = 18.6 / (veda_paper.TOTAL_W + 12 * 0.256 + 2) / (tokens / 450)
    claim = veda_paper.gpu_energy_claim(core)
    assert claim.ours.startswith(f"{ratio:.1f} times") and claim.verdict is Verdict.UNKNOWN
    monkeypatch.setattr(veda_paper, "GPU_ENERGY", ratio * 1.05)
    assert veda_paper.gpu_energy_claim(core).verdict is Verdict.ASSUMED


def test_speed_beside_a_gpu(monkeypatch):
    """A GPU of 1008 GB/s reads 13.2 GB of weights 76 times a second at most."""
    claim = veda_paper.gpu_speed_claim()
    assert claim.verdict is Verdict.UNKNOWN and "68%" in claim.ours
    monkeypatch.setattr(veda_paper, "GPU_SPEED", 1.9)
    assert veda_paper.gpu_speed_claim().verdict is Verdict.CONTRADICTS
