"""The command ``results``: every experiment end to end on a tiny model, pages, index, refusals."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from golden import __main__ as cli
from golden.lm.text import default_text
from golden.studies import kllm, lad, topick, unicaim, veda
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
    monkeypatch.setattr(lad, "BOUNDS", {n: lad.BOUNDS[n] for n in (5, 8)})
    monkeypatch.setattr(lad, "DRIFT_TEXT", "text.txt")
    monkeypatch.setattr(lad, "DRIFT_STEPS", 160)
    monkeypatch.setattr(lad, "LENGTHS", (80, 160))
    monkeypatch.setattr(topick, "THRESHOLDS", (1e-2, 1e-1))
    monkeypatch.setattr(topick, "OPEN", "topick:threshold=1e-5..0.5")
    for study in (topick, veda, lad):
        monkeypatch.setattr(study, "MODELS", (str(model),))
        monkeypatch.setattr(study, "TEXTS", "text.txt")
        for name, value in {"CONTEXT": 120, "QUERIES": 6, "WINDOWS": WINDOWS}.items():
            monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(topick, "CHOICE_TEXTS", "text.txt")
    monkeypatch.setattr(topick, "CHOICE_WINDOWS", 2)
    for name, value in {"SIZES": (40, 80), "LONG": 200, "LONG_WINDOWS": WINDOWS}.items():
        monkeypatch.setattr(veda, name, value)
    monkeypatch.setattr(unicaim, "SIZES", (96, 320))
    monkeypatch.setattr(unicaim, "WINDOWS", 2)
    monkeypatch.setattr(unicaim, "OTHER_WINDOWS", 1)
    monkeypatch.setattr(kllm, "SHARES", (0.01, 0.1))
    monkeypatch.setattr(kllm, "SEEDS", range(1, 3))

    def run(options):
        common = f"results --text text.txt --gguf {model} "
        return call(cli.main, common + options)

    return run


def test_every_experiment(run):
    status, out, err = run(f"-o out --tokens {TOKENS}")
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
        assert len(content["claims"]) >= 3
        for claim in content["claims"]:
            paper = claim["paper"].replace("|", r"\|")
            assert f"| {paper} | {claim['ours']} | {claim['verdict']} |" in page
        for trial in content.get("trials", ()):
            assert trial["row"]["perplexity"] > 1 and trial["row"]["windows"] == WINDOWS
        for measured in content.get("runs", ()):
            assert measured["perplexity"] > 1 and measured["traffic"]["dense_rows"] > 0
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
        status, out, err = run(f"topick -o out --tokens {TOKENS} --kept")
        assert (status, out) == (2, "")
        assert err.startswith(f"error: out/topick.json: it has no run of {policy}, ")
        assert err.endswith("/tiny.gguf, 120 tokens\n")


@pytest.mark.parametrize("name", ["kllm", "topick"])
def test_one_experiment_leaves_the_others(run, name):
    """And the same data, measured again or kept, make the same files."""
    names, found = (f"{name}.svg", f"{name}.md", f"{name}.json"), []
    for options in ("", "", "--kept"):
        status, _, err = run(f"{name} -o out --tokens {TOKENS} {options}")
        assert status == 0, err
        found.append([Path("out", name).read_bytes() for name in names])
    assert found[0][:2] == found[1][:2] and found[1] == found[2]
    assert sorted(os.listdir("out")) == ["README.md", *sorted(names)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("vedo -o out", "there is no experiment vedo; known: veda, topick, lad, unicaim, kllm"),
        ("-o out --tokens 500", "--tokens: the experiments need 600 tokens, not 500"),
        ("-o out --tokens 641", "--tokens: the model sees 640 tokens, not 641"),
        ("-o text.txt", "output text.txt: it is not a folder"),
        ("veda -o out --kept", "out/veda.json: No such file or directory"),
    ],
)
def test_refusals(run, options, sentence):
    status, out, err = run(options)
    assert status == 2 and out == ""
    assert err == f"error: {sentence}\n"
    assert not os.path.exists("out/README.md")
