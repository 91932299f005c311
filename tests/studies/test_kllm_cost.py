"""The command ``kllm-cost``: verdicts, tables, page, refusals."""

import json

import pytest

from golden import __main__ as cli
from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.claims import claims
from golden.studies.kllm_cost.energy_claims import saving
from golden.studies.kllm_cost.rates import Setting, bandwidth_of_growth, growth
from golden.studies.kllm_cost.speed_claims import lost
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
