"""The command ``kllm-cost``: verdicts, tables, page, refusals."""

import dataclasses
import json

import pytest

from golden import __main__ as cli
from golden.algorithms.kllm.cost import models as paper_models
from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.claims import claims, kept_methods
from golden.studies.kllm_cost.energy_claims import saving
from golden.studies.kllm_cost.rates import Setting, bandwidth_of_growth, growth
from golden.studies.kllm_cost.scheme_claims import (
    function_claims,
    index_macs,
    lookup_claims,
    plain_macs,
    scheme_claims,
    size_claims,
)
from golden.studies.kllm_cost.speed_claims import lost, shared_claims, token_joules
from golden.studies.kllm_cost.unit_claims import (
    Search,
    counted_comparisons,
    lane_claims,
    merge_sort_comparisons,
    orizuru_claims,
    softmax_claims,
)
from golden.studies.study import Verdict

PICTURES = "context", "energy", "speed"


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    """Runs the command in an empty folder; returns status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    return lambda options="": call(cli.main, f"kllm-cost {options}")


def verdict(setting: Setting, where: str, text: str) -> Verdict:
    """Of the only claim at `where` whose figure has `text`."""
    (found,) = [c for c in claims(setting) if c.where == where and text in c.paper]
    return found.verdict


def judged(make, setting: Setting, text: str) -> Verdict:
    """Of the only one of these claims whose figure has `text`."""
    (found,) = [c for c in make(setting) if text in c.paper]
    return found.verdict


def test_the_table_s_totals():
    assert verdict(Setting(), "Table I", "16.87 mm²") is Verdict.HOLDS
    assert verdict(Setting(), "Table I", "8.96 W") is Verdict.CONTRADICTS
    rows = paper.LANE_POWER + sum(part.power for part in paper.PARTS if not part.in_lane)
    out = next(part.power for part in paper.PARTS if part.name == "Out Buffer")
    assert rows + out == pytest.approx(paper.TOTAL_POWER, abs=0.005)


@pytest.mark.parametrize("cumulative", [False, True])
def test_the_steps_of_the_energy_exclude_each_other(cumulative):
    found = saving(Setting(), cumulative)
    _, b, c, d = found.steps
    # What the HBM has, by the step to (B), and that (B) then is what it is.
    assert 1 - 0.75 * found.hbm == pytest.approx(b)
    assert b / c == pytest.approx(paper.SAVED_C / (paper.SAVED_B if cumulative else 1))
    assert found.floor > c > d
    # With the largest share that (D) allows, its weights are all of (D).
    assert found.most * found.floor / found.hbm == pytest.approx(d)
    assert not cumulative or found.most > saving(Setting()).most


def test_a_batch_gains_by_a_slow_memory_only():
    assert growth(Setting()) == pytest.approx(1)
    slow = Setting().at(bandwidth=256e9)
    assert growth(slow) > 4
    found = bandwidth_of_growth(Setting(), 1.29)
    assert growth(Setting().at(bandwidth=found)) == pytest.approx(1.29, abs=0.02)
    assert verdict(Setting(), "Fig. 9", "with the batch") is Verdict.NOT
    assert verdict(slow, "Fig. 9", "with the batch") is Verdict.HOLDS


def test_rates_and_verdicts_follow_the_core():
    plain = Setting()
    assert plain.rate() < plain.at(integer_queries=True).rate()
    assert plain.at(entries=1).rate() < plain.rate() / 2
    assert lost(plain.at(entries=1).core) > 0.8 > lost(plain.at(entries=8).core) > 0.03
    # A core of eight times the lanes is 8.66 times faster than an A100 at its best.
    fast = plain.at(lanes=128)
    assert verdict(plain, "Fig. 8a", "8.66×") is Verdict.ASSUMED
    assert verdict(fast, "Fig. 8a", "8.66×") is not Verdict.ASSUMED
    assert fast.rate() > 8.66 * plain.bound()


def test_macs_of_a_token():
    """By hand: Mistral-7B's layers, W4A4, a context of one token and no outliers."""
    one = Setting(model="mistral-7b", tokens=1).at(share=0)
    plain, index = plain_macs(one), index_macs(one)
    layer = 4096 * (4096 + 1024 + 1024 + 4096 + 2 * 14336 + 14336)
    assert plain.layers == 32 * layer + 4096 * 32000
    # Columns of each matrix; columns of 14336 rows have four tiles.
    columns = 32 * (4096 + 1024 + 1024 + 4096 + 2 * 14336 + 4 * 4096) + 32000
    assert index.layers == 256 * columns
    assert (plain.keys, index.keys, index.values) == (32 * 32 * 128, 32 * 32 * 256, 2**17 * 16)
    kept = index_macs(one.at(share=0.01)).layers - index.layers
    columns = 32 * (4096 + 1024 + 1024 + 4096 + 2 * 14336) + 32000
    assert kept == 2 * (21 * columns + 72 * 32 * 4096)


def test_a_head_of_many_rows_has_fewer_macs_too():
    assert judged(scheme_claims, Setting(), "MACs of a column") is Verdict.PARTLY
    shape = dataclasses.replace(paper_models.MODELS["llama-7b"], name="wide", heads=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(paper_models.MODELS, "llama-2-7b", shape)
        assert judged(scheme_claims, Setting(), "MACs of a column") is Verdict.REPRODUCED


def test_integers_take_fewer_bins():
    """Columns of more words than a reduction has steps gain no time."""
    text = "with one factor integers"
    assert judged(scheme_claims, Setting(), text) is Verdict.COUNTS
    assert judged(scheme_claims, Setting(tokens=8191), text) is Verdict.NOT


def test_functions_on_indices():
    """16 centroids and 42 outliers are squared; a gate has 256 products."""
    gate, norm = function_claims(Setting())
    assert "58 squares and MACs, 17 divisions" in norm.ours and norm.verdict is Verdict.COUNTS
    assert "256 of SiLU" in gate.ours and gate.verdict is Verdict.PARTLY
    assert "16 squares" in function_claims(Setting().at(share=0))[1].ours
    assert function_claims(Setting().at(share=1))[1].verdict is Verdict.NOT
    (looked,) = lookup_claims(Setting())
    assert looked.ours.startswith("524,288 look-ups of 16,781,312")


def test_comparisons_and_cycles_of_the_search():
    """By hand for N = 16 in one unit: 8 + 7 and 7 to set up, 4 a pop; sorts of 4 take up to 5."""
    search = Search(16, 3)
    assert (search.set_up, search.replayed) == (22, 24)
    assert (search.set_up_cycles, search.replay_cycles) == (22, 12)
    assert counted_comparisons(16, 3) == 46
    assert merge_sort_comparisons(4) == 5
    assert Search(256, 1).set_up_cycles == 22 + 30
    bottleneck = "set-up of the trees is the bottleneck"
    assert judged(orizuru_claims, Setting(), bottleneck) is Verdict.PARTLY


def test_the_softmax_beside_the_products():
    bottleneck = "SoftMax becomes the bottleneck"
    assert judged(softmax_claims, Setting(), bottleneck) is Verdict.PARTLY
    assert judged(softmax_claims, Setting().at(lanes=256), bottleneck) is Verdict.REPRODUCED
    assert judged(softmax_claims, Setting().at(lanes=1), bottleneck) is Verdict.NOT
    runs = "softmax of a head runs"
    assert judged(softmax_claims, Setting(), runs) is Verdict.REPRODUCED
    assert judged(softmax_claims, Setting().at(lanes=4096), runs) is Verdict.NOT


def test_energy_of_a_token_by_hand():
    four = Setting().at(activation_bits=4)
    token = four.token(8)
    chip = 8.96 * token.cycles / 500e6
    assert token_joules(four, 8) == pytest.approx((chip + token.bytes * 8 * 3.9e-12) / 8)
    assert judged(shared_claims, four, "lowers the energy") is Verdict.ASSUMED
    # Counters of 16 positions take so long that the memory's energy is little.
    slow = Setting().at(counters=1, lanes=1)
    assert judged(shared_claims, slow, "lowers the energy") is Verdict.NOT


def test_a_clock_that_units_miss():
    for make, text in ((lane_claims, "meets the timing"), (orizuru_claims, "a pop takes")):
        assert judged(make, Setting(), text) is Verdict.REPRODUCED
        assert judged(make, Setting().at(clock=1e9), text) is Verdict.NOT


def test_compression_with_words_too_long():
    assert judged(size_claims, Setting(), "less than FP16") is Verdict.REPRODUCED
    assert judged(size_claims, Setting().at(counters=200), "less than FP16") is Verdict.NOT


def test_fig_11_is_of_the_data_of_the_algorithm(tmp_path):
    """The page's figure is the difference of two rows; without data nothing is judged."""
    rows = kept_methods()
    over = rows["KLLM"].over(rows["KLLM-S"])
    (found,) = [c for c in claims(Setting()) if "outliers found online" in c.paper]
    assert found.ours == f"{over:+.3f} nats"
    assert kept_methods(tmp_path) is None


def test_the_table(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert "contradicts" in out and "LLaMA-2-7B" in out and "349.4" in out


def test_json_and_page_are_of_the_same_figures(run, tmp_path):
    status, out, _ = run("--json --model mistral-7b --entries 2 --bandwidth 460 -o made")
    made = json.loads(out)
    assert status == 0 and json.loads((tmp_path / "made/kllm_cost.json").read_text()) == made
    assert made["setting"]["model"] == "mistral-7b"
    assert made["setting"]["core"]["entries"] == 2
    assert made["setting"]["core"]["bandwidth"] == 460e9
    page = (tmp_path / "made/kllm_cost.md").read_text()
    assert all(claim["why"] in page for claim in made["claims"])
    assert "a memory of 460 GB/s; of one model, Mistral-7B" in page
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {"kllm_cost.json", "kllm_cost.md", *(f"kllm_cost_{x}.svg" for x in PICTURES)}


@pytest.mark.parametrize(
    "options", ["--tokens 1", "--outliers 0", "--outliers 100 --macs 16384 --lanes 1"]
)
def test_settings_at_their_edges(run, options):
    status, _, err = run(options)
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--lanes 16385", "--lanes: it must be at most 16384"),
        ("--activation-bits 7", "--activation-bits: it must be 2 to 6, not 7"),
        ("--outliers 101", "--outliers: it must be 0 to 100 percent, not 101"),
        ("--outliers nan", "--outliers: it must be 0 to 100 percent, not nan"),
        ("--bandwidth 0", "--bandwidth: it must be 1 to 1e6 GB/s, not 0"),
        ("--bandwidth=-inf", "--bandwidth: it must be 1 to 1e6 GB/s, not -inf"),
    ],
)
def test_options_that_are_refused(run, options, sentence):
    status, out, err = run(options)
    assert (status, out, err) == (2, "", f"error: {sentence}\n")


@pytest.mark.parametrize("options", ["--model gpt-2", "--tile 127", "--entries x"])
def test_options_that_the_parser_refuses(run, options):
    status, out, err = run(options)
    assert (status, out) == (2, "") and err.startswith("error: argument --")
