"""The command ``unicaim-cost``: tables, page, counts of reports, refusals."""

import json

import pytest

from golden import __main__ as cli
from golden.algorithms.unicaim.cost import ArrayShape, Constants, StepCounts, energy_pj
from golden.algorithms.unicaim.cost.published import AEDP, Rounded
from golden.studies.study import Verdict
from golden.studies.unicaim_cost import claims as of_cost
from golden.studies.unicaim_cost.sweeps import Setting


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    """Runs the command in an empty folder; returns status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    return lambda options="": call(cli.main, f"unicaim-cost {options}")


def test_the_table(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert "3-bit cells, both" in out and "301248" in out and "reproduced by counts alone" in out


def test_json_and_page_are_of_the_same_figures(run, tmp_path):
    status, out, _ = run("--json --kept 50 --set adc_pj=5 -o made")
    made = json.loads(out)
    assert status == 0 and json.loads((tmp_path / "made/unicaim_cost.json").read_text()) == made
    assert made["setting"]["kept"] == 50 and made["setting"]["constants"]["adc_pj"] == 5
    assert made["costs"]["both"]["devices"] == 576 * 523
    page = (tmp_path / "made/unicaim_cost.md").read_text()
    assert all(claim["why"] in page for claim in made["claims"])
    assert "| adc_pj | 5 pJ | given |" in page
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {"unicaim_cost.json", "unicaim_cost.md"} | {
        f"unicaim_cost_{name}.svg" for name in ("delay", "devices", "energy")
    }


@pytest.mark.parametrize(
    "options",
    ["--d 1", "--prompt 0 --generated 1", "--heavy 0", "--kept 100", "--set approximate_bits=10"],
)
def test_settings_at_their_edges(run, options):
    status, _, err = run(options)
    assert (status, err) == (0, "")


STEP = {"rows": 576, "heads": 3, "search_steps": 36, "conversions": 192, "evicted": 1}


def test_counts_of_a_report(run, tmp_path):
    (tmp_path / "counts.json").write_text(json.dumps([STEP | {"k": 64}, STEP | {"k": 64}]))
    status, out, _ = run("--counts counts.json --search-steps 12 --json")
    result = json.loads(out)
    counts = StepCounts(**STEP)
    assert status == 0 and result["difference"] is None
    assert result["energy_pj"] == pytest.approx(float(energy_pj(counts, ArrayShape())))
    assert result["delay_ns"] == 3 * (10 + 12) + 1
    assert (result["steps"], result["conversions"], result["evicted"]) == (2, 384, 2)
    status, out, _ = run("--counts counts.json --search-steps 12")
    assert out.endswith("conversions and search steps are those of the formula\n")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"conversions": 191}, "conversions of step 1: 191, by formula 192"),
        ({"search_steps": 37}, "search_steps of step 1: 37, by formula 36"),
    ],
)
def test_a_report_that_differs_from_the_formula(run, tmp_path, changed, sentence):
    steps = [STEP | {"k": 64}, STEP | {"k": 64} | changed]
    (tmp_path / "counts.json").write_text(json.dumps(steps))
    status, out, _ = run("--counts counts.json --search-steps 12")
    assert status == 0 and out.splitlines()[-1] == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "it is not JSON"),
        ("{}", "it must be a list of objects, one for each step"),
        ("[1]", "it must be a list of objects, one for each step"),
        ("[]", "it has no steps"),
        ('[{"rows": 1}]', "step 0 lacks heads"),
        (json.dumps([STEP, STEP | {"x": 1}]), "step 1 has an unknown field x"),
        (json.dumps([STEP, STEP | {"k": 1}]), "step 1 has an unknown field k"),
        (json.dumps([STEP | {"k": 1}, STEP]), "step 1 lacks k"),
        (
            json.dumps([STEP | {"rows": 1.5}]),
            "step 0: rows must be a whole number from 0 to 1048576",
        ),
        (json.dumps([STEP | {"heads": True}]), "step 0: heads must be a whole number"),
        (json.dumps([STEP | {"heads": 0}]), "heads must be at least 1"),
        (json.dumps([STEP | {"conversions": 1729}]), "conversions must be at most rows times"),
    ],
)
def test_files_of_counts_that_are_refused(run, tmp_path, text, sentence):
    (tmp_path / "counts.json").write_text(text)
    status, out, err = run("--counts counts.json")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"error: counts.json: {sentence}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--set adc", "--set: give NAME=VALUE, not adc"),
        ("--set adc=1", "--set: there is no constant adc; known: adc_pj, cycle_ns,"),
        ("--set adc_pj=x", "--set: adc_pj must be a number, not x"),
        ("--set converters=1.5", "--set: converters must be a whole number, not 1.5"),
        ("--set write_fj=nan", "--set: write_fj must be 0 to 1e9, not nan"),
        ("--kept 0", "--kept: it must be 1 to 100 percent, not 0"),
        ("--kept 101", "--kept: it must be 1 to 100 percent, not 101"),
        ("--heavy 0 --reserved 0", "heavy and reserved must be at least 0, and their sum"),
        ("--generated 131073", "--generated: it must be at most 131072"),
        ("--counts none.json", "none.json: No such file or directory"),
        ("--counts x -o made", "--counts: it writes no page; give --counts or --output"),
    ],
)
def test_options_that_are_refused(run, options, sentence):
    status, out, err = run(options)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"error: {sentence}")


def test_an_output_that_is_a_file(run, tmp_path):
    (tmp_path / "made").write_text("")
    status, out, err = run("-o made")
    assert (status, out) == (2, "") and err == "error: made: File exists\n"


def claim(start: str, setting: Setting | None = None):
    """The claim whose paper's text begins so."""
    found = of_cost.claims(setting or Setting())
    return next(one for one in found if one.paper.startswith(start))


def test_the_cache_has_a_fixed_size():
    said = claim("the KV cache has a fixed size")
    assert said.verdict == Verdict.COUNTS
    assert said.ours == "576 rows after 64 tokens and 576 after 512; 1024 without static pruning"


def test_the_cache_of_a_model_by_hand(monkeypatch):
    """32 layers of 4096 numbers, keys and values; 6.738 thousand million parameters."""
    said = claim("the KV cache of LLaMA-2-7B")
    assert said.verdict == Verdict.ASSUMED and "262,144 numbers a token" in said.why
    assert f"from {6_738_149_376 / 262_144:,.0f} tokens on" in said.ours
    monkeypatch.setattr(of_cost, "CONTEXT", 25_703)
    assert claim("the KV cache of LLaMA-2-7B").verdict == Verdict.ASSUMED
    monkeypatch.setattr(of_cost, "CONTEXT", 25_704)
    assert claim("the KV cache of LLaMA-2-7B").verdict == Verdict.HOLDS


def test_the_range_of_the_abstract(monkeypatch):
    said = claim("AEDP 8.2 to 831 times")
    assert said.verdict == Verdict.HOLDS and "Sprint) to 831 (3-bit cells, 80 %" in said.ours
    changed = {**AEDP, (1, 50): (Rounded("8.1"), *AEDP[1, 50][1:])}
    monkeypatch.setattr(of_cost, "AEDP", changed)
    assert claim("AEDP 8.2 to 831 times").verdict == Verdict.CONTRADICTS


def test_a_search_for_both_longest_figures():
    """A search of the cycles that are told makes both figures meet at one length."""
    said = claim("16.7× shorter delay")
    assert "2280 tokens here, a search takes 9.2 cycles" in said.why
    slow = Setting(constants=Constants(search_cycles=9.19))
    assert of_cost.ratio(slow, "delay_ns", "both", 2048, 2280) == pytest.approx(16.7, abs=0.01)
