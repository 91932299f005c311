"""The command ``results``: every experiment end to end on a tiny model, pages, index, refusals."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from golden import __main__ as cli
from golden.lm.text import default_text
from golden.studies import (
    blocks,
    equal_quality,
    kllm,
    lad,
    recall,
    results,
    topick,
    trials,
    tsuru,
    unicaim,
    veda,
)
from golden.studies.results import EXPERIMENTS
from tests.support.lm import tiny_llama

TOKENS = 600
WINDOWS = 3


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    """Runs ``results`` with fewer settings in an empty folder; gives status, stdout, stderr."""
    monkeypatch.setitem(tiny_llama.SIZES, "context", TOKENS + 40)
    monkeypatch.setitem(tiny_llama.SIZES, "layers", 1)
    model = tiny_llama.write_gguf(tmp_path / "tiny.gguf", tiny_llama.random_tensors())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(default_text()[:12000])
    few = {"MODELS": (str(model),), "TEXTS": "text.txt", "CONTEXT": 120, "QUERIES": 6}
    steps = ("weights and activations", *kllm.PARTS)
    changed = {
        veda: few | {"SIZES": (40, 80), "LONG": 200, "LONG_WINDOWS": WINDOWS},
        topick: few
        | {"THRESHOLDS": (1e-2, 1e-1), "OPEN": "topick:threshold=1e-5..0.5"}
        | {"CHOICE_TEXTS": "text.txt", "CHOICE_WINDOWS": 2},
        lad: few
        | {"BOUNDS": {n: lad.BOUNDS[n] for n in (5, 8)}}
        | {"DRIFT_STEPS": 160, "LENGTHS": (80, 160)},
        unicaim: few
        | {"ROWS": 100, "TOP": 20, "SIZES": (60, 90), "RECALL_WINDOWS": 1}
        | {"ASKED": 400, "ANSWERED": 6, "ASKED_SIZES": (60, 90)},
        recall: {"SMALL": str(model), "LARGE": str(model), "TEXTS": "text.txt", "CONTEXT": 120}
        | {"WRITTEN": 6, "SIZES": (60, 90), "ECHO_QUERIES": 20}
        | {"RESERVED": dict.fromkeys(recall.RESERVED, 6)},
        equal_quality: {"MODEL": str(model), "TEXTS": "text.txt", "CHOICE_TEXTS": "text.txt"}
        | {"CONTEXT": 120, "QUERIES": 6, "CHOICE_WINDOWS": 2, "LOSSES": (1e-9, 1e-4)}
        | {"KNOBS": {"H2O": "h2o:capacity=4..120", "StreamingLLM": "streaming:capacity=5..6"}},
        blocks: {"MODEL": str(model), "TEXTS": "text.txt", "CONTEXT": 200, "QUERIES": 32}
        | {"SIZES": (96, 128)},
        tsuru: few
        | {"SMALL": str(model), "LARGE": str(model), "OTHERS": (), "CHOICE_TEXTS": "text.txt"}
        | {"WINDOWS": {120: WINDOWS}, "LONG_CHOICE_WINDOWS": {}, "OTHER_WINDOWS": WINDOWS}
        | {"ABLATION_WINDOWS": WINDOWS, "ECHO_QUERIES": 20, "ASKED": 400, "ASKED_FILLERS": WINDOWS}
        | {"WRITTEN": 6, "LOSSES": (1e-4, 1e-3)}
        | {"_BITS": dict.fromkeys((1e-4, 1e-3), "key_bits=7"), "ABLATED_AT": 1e-4},
        kllm: {"MODEL": str(model), "OTHERS": (), "TEXTS": "text.txt"}
        | {"CONTEXT": 120, "QUERIES": 6, "OTHER_WINDOWS": WINDOWS, "EXACT_WINDOWS": WINDOWS}
        | {"PRECISIONS": {"W4A4": 4}, "PAPER_STEPS": steps[:1]}
        | {"STEPS": {name: kllm.STEPS[name] for name in steps}},
    }
    monkeypatch.setattr(trials, "AT_ONCE", {str(model): 5})
    for study, values in changed.items():
        for name, value in ({"WINDOWS": WINDOWS} | values).items():
            monkeypatch.setattr(study, name, value)

    def run(options):
        return call(cli.main, f"results {options}")

    return run


def test_every_experiment(run):
    status, out, err = run("-o out")
    assert status == 0, err
    made = set(os.listdir("out"))
    for name in EXPERIMENTS:
        assert {f"{name}.md", f"{name}.json"} <= made
        page = Path("out", f"{name}.md").read_text()
        pictures = re.findall(r"!\[.+\]\((.+)\)", page)
        assert pictures and set(pictures) <= made
        content = json.loads(Path("out", f"{name}.json").read_text())
        assert page.count("\n# ") == 0 and page.startswith(f"# {content['title']}\n")
        assert content["model"].endswith("tiny.gguf") and "text.txt" in content["text"]
        assert len(content["claims"]) >= 3 or name in ("recall", "equal_quality", "blocks")
        for claim in content["claims"]:
            paper = claim["paper"].replace("|", r"\|")
            assert f"| {paper} | {claim['ours']} | {claim['verdict']} |" in page
        for trial in content["trials"]:
            row = trial["row"]
            assert row["windows"] == WINDOWS
            free = trial["place"]["task"] == "agreement"
            assert 0 <= row["rouge_l"] <= 1 if free else row["perplexity"] > 1
    index = Path("out/README.md").read_text()
    assert all(f"]({name}.md)" in index for name in EXPERIMENTS)
    assert index.count("\n- **") == index.count("Here: ")
    assert out.count("wrote ") == len(EXPERIMENTS) + 1


def test_kept_data_without_a_run(run):
    """As another version has them."""
    (choice,) = topick.choices()
    chosen = [{"policy": "topick:threshold=0.2", "loss": 0.1}] * len(choice.allowed)
    of_choice = dataclasses.asdict(choice) | {"chosen": chosen}
    Path("out").mkdir()
    for content, policy in (
        ({"runs": []}, "topick:threshold=1e-5..0.5"),
        ({"trials": [], "choices": [of_choice]}, "topick:threshold=0"),
    ):
        Path("out/topick.json").write_text(json.dumps(content))
        status, out, err = run("topick -o out --kept")
        assert (status, out) == (2, "")
        assert err.startswith(f"error: out/topick.json: it has no run of {policy}, ")
        assert err.endswith("/tiny.gguf, 120 tokens\n")


@pytest.mark.parametrize("name", ["kllm", "topick"])
def test_one_experiment_leaves_the_others(run, name):
    """And the same data, measured again or kept, make the same files."""
    names, found = (f"{name}.svg", f"{name}.md", f"{name}.json"), []
    for options in ("", "", "--kept"):
        status, _, err = run(f"{name} -o out {options}")
        assert status == 0, err
        found.append([Path("out", name).read_bytes() for name in names])
    assert found[0][:2] == found[1][:2] and found[1] == found[2]
    assert sorted(os.listdir("out")) == ["README.md", *sorted(names)]


def test_only_what_is_missing_is_run(run, monkeypatch):
    """Of data without one threshold's rows; what there is is not measured again."""
    assert run("topick -o out")[0] == 0
    page, performed = Path("out/topick.md").read_text(), []
    content = json.loads(Path("out/topick.json").read_text())
    trials, policy = content["trials"], content["trials"][0]["policy"]
    content["trials"] = [of for of in trials if of["policy"] != policy]
    assert 0 < len(content["trials"]) < len(trials)
    Path("out/topick.json").write_text(json.dumps(content))

    def run_task(task):
        performed.append(task)
        return trials_run(task)

    trials_run = results.run_task
    monkeypatch.setattr(results, "run_task", run_task)
    assert run("topick -o out --missing")[0] == 0
    assert Path("out/topick.md").read_text() == page
    assert {name for task in performed for name in task.policies} == {policy}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("vedo -o out", f"there is no page vedo; known: {', '.join(EXPERIMENTS)}"),
        ("-o text.txt", "output text.txt: it is not a folder"),
        ("veda -o out --kept", "out/veda.json: No such file or directory"),
        ("veda -o out --missing", "out/veda.json: No such file or directory"),
    ],
)
def test_refusals(run, options, sentence):
    status, out, err = run(options)
    assert status == 2 and out == ""
    assert err == f"error: {sentence}\n"
    assert not os.path.exists("out/README.md")
