"""The command ``eval``: policies from text, measurements, tables, plots, refusals."""

import dataclasses
import json
import os

import numpy as np
import pytest

from golden import __main__ as cli
from golden.algorithms.attention import DenseAttention
from golden.algorithms.kllm import tune
from golden.algorithms.kllm.model import QuantizedLlama
from golden.evaluation import commands
from golden.evaluation.measure import Differences, measure, measure_trace
from golden.evaluation.policies import POLICIES, parse
from golden.lm.commands import open_model
from golden.lm.perplexity import perplexity
from golden.trace import Trace, save
from tests.support.lm.tiny_llama import SIZES

TOKENS = 40
TEXT = "The theory of the thing is that the other thinks, and then the rest follows. " * 3


@pytest.fixture(scope="module")
def model(tiny):
    return open_model(tiny)[0]


@pytest.fixture(scope="module")
def tokens(tiny):
    return open_model(tiny)[1].encode(TEXT, TOKENS)


@pytest.fixture
def run(tmp_path, tiny, monkeypatch, call):
    """Runs a command in a folder with ``text.txt``; gives status, stdout, stderr, new files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    save("t.npz", random_trace())
    before = set(os.listdir())

    def run(command):
        done = call(cli.main, command.replace("TINY", str(tiny)))
        return *done, sorted(set(os.listdir()) - before)

    return run


def random_trace() -> Trace:
    rng = np.random.default_rng(5)
    q = rng.standard_normal((2, 4, 30, 8), np.float32)
    k, v = rng.standard_normal((2, 2, 2, 30, 8), np.float32)
    return Trace(q, k, v, scale=0.5)


def test_dense_attention_measures_as_itself(model, tokens):
    measured = measure(parse("dense"), model, tokens)
    # The two sum matrix products in different orders.
    assert measured.perplexity == pytest.approx(perplexity(model, tokens).perplexity, rel=1e-6)
    assert measured.error == 0 and measured.traffic.ratio == 1
    assert measured.rows == TOKENS
    layers, kv_heads, d = SIZES["layers"], SIZES["kv_heads"], SIZES["d"]
    assert measured.cache_bytes == layers * kv_heads * TOKENS * d * 2 * 2
    # All but the first token's reads, which is the prompt.
    assert measured.traffic.k_rows == layers * kv_heads * (TOKENS * (TOKENS + 1) // 2 - 1)


@pytest.mark.parametrize("prompt", [1, 13])
def test_a_policy_that_keeps_all_is_dense(model, tokens, prompt):
    dense = measure(parse("dense"), model, tokens, prompt=prompt)
    for name in ("voting", "h2o", "streaming", "snapkv"):
        policy = parse(f"{name}:capacity={TOKENS}", prompt=prompt)
        measured = measure(policy, model, tokens, prompt=prompt)
        assert measured.perplexity == pytest.approx(dense.perplexity, rel=1e-5)
        assert measured.error < 1e-6
        assert measured.traffic == dense.traffic


def test_error_and_traffic_by_hand(model, tokens):
    """StreamingLLM with 6 rows: the error of each layer's output, on what that layer got."""
    prompt, seen = 4, []

    def observer(layer, name, array):
        if name in "qkv":
            seen.append(array)

    policy = parse("streaming:capacity=6,sinks=2")
    measured = measure(policy, model, tokens, prompt=prompt)
    attentions = [policy.attention() for _ in range(SIZES["layers"])]
    model.hidden(tokens, attentions, observer=observer)
    errors = []
    for layer in range(SIZES["layers"]):
        q, k, v = seen[3 * layer : 3 * layer + 3]
        got, exact = (
            a.sequence(q, k, v)[:, prompt:] for a in (policy.attention(), DenseAttention())
        )
        errors.append(np.linalg.norm(got - exact) / np.linalg.norm(exact))
    assert measured.error == pytest.approx(np.mean(errors), rel=1e-5)
    in_view = [min(t + 1, 7) for t in range(prompt, TOKENS)]
    assert measured.traffic.k_rows == SIZES["layers"] * SIZES["kv_heads"] * sum(in_view)
    assert measured.rows == 6


def test_the_prompt_is_given_and_not_predicted(model, tokens):
    whole = perplexity(model, tokens)
    after = perplexity(model, tokens, prompt=10)
    assert (whole.predicted, after.predicted) == (TOKENS - 1, TOKENS - 10)
    first = perplexity(model, tokens[:10])
    total = np.log(first.perplexity) * 9 + np.log(after.perplexity) * (TOKENS - 10)
    assert np.exp(total / (TOKENS - 1)) == pytest.approx(whole.perplexity, rel=1e-5)
    windows = perplexity(model, tokens, context=15, prompt=10)
    assert windows.predicted == 5 + 5  # the last window has ten tokens only
    with pytest.raises(ValueError, match="41 tokens at least"):
        perplexity(model, tokens, prompt=40)


def test_quantised_products_are_compared_with_float_ones(model, tokens):
    exact = measure(parse("rtn:weight_bits=none,activation_bits=none"), model, tokens)
    assert exact.error == 0
    dense = measure(parse("dense"), model, tokens)
    assert exact.perplexity == dense.perplexity and exact.traffic == dense.traffic
    coarse, fine = (
        measure(parse(f"rtn:weight_bits={b},activation_bits={b}"), model, tokens) for b in (4, 8)
    )
    assert 0 < 8 * fine.error < coarse.error < 1


def test_a_trace_is_measured_without_a_model():
    trace = random_trace()
    measured = measure_trace(parse("streaming:capacity=5"), trace, prompt=1)
    errors = []
    for layer in range(2):
        q, k, v = trace.q[layer], trace.k[layer], trace.v[layer]
        policy = parse("streaming:capacity=5").attention(scale=0.5)
        got, exact = (a.sequence(q, k, v)[:, 1:] for a in (policy, DenseAttention(0.5)))
        errors.append(np.linalg.norm(got - exact) / np.linalg.norm(exact))
    assert measured.error == pytest.approx(np.mean(errors), rel=1e-5)
    assert measured.perplexity is None


def test_table(run):
    status, out, _, made = run(
        "eval --text text.txt --gguf TINY --tokens 40 --policy dense --policy streaming:capacity=9"
    )
    assert status == 0 and made == []
    assert "tiny.gguf on text.txt, 39 tokens counted" in out
    dense, streaming = (
        line.split() for line in out.splitlines() if line[2:].startswith(("d", "s"))
    )
    assert dense[0] == "dense" and dense[2:6] == ["1.000", "0.00%", "100.0%", "100.0%"]
    assert streaming[0] == "streaming:capacity=9" and streaming[6] == "9"


def test_json(run):
    status, out, _, _ = run(
        "eval --text text.txt --gguf TINY --tokens 40 --prompt 8 --json --policy h2o:capacity=4"
    )
    result = json.loads(out)
    assert status == 0 and result["counted"] == 32 and result["tokens"] == 40
    [policy] = result["policies"]
    assert policy["policy"] == "h2o:capacity=4" and policy["rows"] == 4
    assert 0 < policy["traffic"]["ratio"] < 1 < policy["perplexity"]


@pytest.mark.parametrize(
    "policy",
    [
        "streaming:capacity=30",
        "h2o:capacity=30",
        "voting:capacity=30",
        "snapkv:capacity=32,prompt=9",
        "topick:threshold=0",
        "unicaim:heavy=30,reserved=30,top_k=60",
        "lad:window=30",
    ],
)
def test_a_policy_that_did_nothing_says_so(run, policy):
    """Its error would be 0.00 %, or that of number formats."""
    status, out, _, _ = run(f"eval --trace t.npz --policy dense --policy {policy}")
    assert status == 0 and f"{policy}: it read every row of K and V on this input, and" in out
    assert out.count("0.00%") == 1 and out.count(" idle ") == 1
    status, out, _, _ = run(f"eval --trace t.npz --json --policy dense --policy {policy}")
    dense, idle = json.loads(out)["policies"]
    assert status == 0 and dense["idle"] == "" and idle["idle"].startswith("it read every row")


@pytest.fixture
def few_samples(tokens, monkeypatch):
    """Samples to calibrate and to tune on."""
    samples, tuning = [tokens[:12]] * 2, [tokens[8:20]] * 3
    monkeypatch.setattr(commands, "calibration_samples", lambda *_, evaluated: samples)
    monkeypatch.setattr(commands, "tuning_samples", lambda *_, evaluated: tuning)
    monkeypatch.setattr(tune, "STEPS", 3)
    return samples, tuning


def test_zeros_show_no_error(run):
    """Whatever is pruned of V = 0, the sum is 0."""
    trace = random_trace()
    save("zeros.npz", dataclasses.replace(trace, v=np.zeros_like(trace.v)))
    status, out, _, _ = run("eval --trace zeros.npz --policy h2o:capacity=4")
    assert status == 0 and "0.00%" not in out
    assert "h2o:capacity=4: dense attention gives zeros alone on this input, so that" in out
    differences = Differences()
    differences.add(np.ones(3), np.zeros(3))
    assert differences.relative == np.inf and differences.blind


@pytest.mark.parametrize(
    "policy",
    [
        f"snapkv:capacity=8,window=4,kernel={10**30 + 1}",
        f"unicaim:heavy=8,reserved=4,top_k={10**30}",
        f"unicaim_core:heavy=8,reserved=4,top_k={10**30}",
        f"lad:window={10**30}",
        f"topick:latency={10**30}",
    ],
)
def test_numbers_beyond_any_machine_word(run, policy):
    status, out, err, _ = run(f"eval --trace t.npz --prompt 9 --json --policy {policy}")
    assert status == 0, err
    assert np.isfinite(json.loads(out)["policies"][0]["error"])


def test_products_that_are_not_quantised_say_so(run, few_samples):
    common = "eval --text text.txt --gguf TINY --tokens 9 --policy"
    bits = "weight_bits=none,activation_bits=none"
    for name in ("rtn", "kllm"):
        status, out, _, _ = run(f"{common} {name}:{bits}")
        assert status == 0 and " idle " in out and "0.00%" not in out
        assert f"{name}:{bits}: it quantised nothing: its figures are the float model's" in out
    status, out, _, _ = run(f"{common} kllm:{bits},attention=quantised --json")
    [attention] = json.loads(out)["policies"]
    assert status == 0 and attention["idle"] == "" and attention["error"] > 0.001


def test_a_policy_that_needs_a_prompt_says_how_to_give_one(run):
    status, out, err, _ = run("eval --trace t.npz --policy snapkv:capacity=64")
    assert (status, out) == (2, "") and err.endswith(
        "snapkv needs prompt=… (or --prompt N for all policies)\n"
    )
    command = "eval --trace t.npz --prompt 20 --policy snapkv:capacity=8,window=4"
    status, out, _, _ = run(command)
    assert status == 0 and " idle " not in out


def test_kllm_s_whole_format_on_a_text(run, model, tokens, few_samples):
    """Perplexities are those of the model that the results page has; fitted weights are kept."""
    samples, tuning = few_samples
    options = {"norms": "fused", "attention": "quantised", "outlier_share": 0.08, "head": True}
    options |= {"tuning": tuning, "cached": True}
    name = "kllm:norms=fused,attention=quantised,outlier_share=0.08,head=true"
    command = f"eval --text text.txt --gguf TINY --tokens {TOKENS} --json --policy {name},tuned="
    found = {}
    for tuned in ("true", "false"):
        status, out, err, _ = run(command + tuned)
        assert status == 0 and ("tuning: 100%" in err) == (tuned == "true")
        whole = QuantizedLlama(model, samples, tuned=tuned == "true", **options)
        found[tuned] = json.loads(out)["policies"][0]["perplexity"]
        assert found[tuned] == pytest.approx(perplexity(whole, tokens).perplexity, rel=1e-4)
    assert found["true"] != found["false"]
    status, out, err, _ = run(command + "true")
    assert status == 0 and "tuning" not in err and "fitting" not in err
    assert json.loads(out)["policies"][0]["perplexity"] == found["true"]


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_plot(run, form):
    status, out, _, made = run(
        f"eval --text text.txt --gguf TINY --tokens 20 --policy dense --plot p.{form}"
    )
    assert status == 0 and made == [f"p.{form}"] and f"wrote p.{form}" in out
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form]
    with open(f"p.{form}", "rb") as file:
        assert file.read().startswith(start)


def test_every_kind_of_policy_by_default(run):
    status, out, err, _ = run("eval --text text.txt --gguf TINY --tokens 60 --prompt 40 --json")
    assert status == 0, err
    named = [policy["policy"].split(":")[0] for policy in json.loads(out)["policies"]]
    assert sorted(named) == sorted(POLICIES)


def test_trace_without_a_model(run):
    status, out, _, _ = run("eval --trace t.npz --policy dense --policy voting:capacity=5")
    assert status == 0 and "2 layers of t.npz, 29 tokens counted" in out
    status, out, _, _ = run("eval --trace t.npz --json")
    assert status == 0
    assert not {p["policy"] for p in json.loads(out)["policies"]} & {"rtn", "kllm"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--policy votin", "policy votin: there is no 'votin'; did you mean voting?"),
        ("--tokens 5 --prompt 5", "--tokens: it must be more than the prompt's 5, not 5"),
        ("--plot p.jpg", "--plot: the name must end in png or svg or pdf"),
        ("--plot no/p.png", "output no/p.png: the folder no does not exist"),
        ("--trace t.npz", "--trace: a trace takes the place of a text and a model"),
        ("--prompt 70 --tokens 80", "--prompt: the model sees 64 tokens at most, so not 70"),
        (
            "--tokens 20 --policy rtn:weight_bits=1",
            "rtn:weight_bits=1: bits must be between 2 and 8",
        ),
        ("--tokens 20 --policy kllm:thresholds=no", "thresholds must be 'dynamic' or 'static'"),
        ("--tokens 9000", "it has 168 tokens, fewer than 9000"),
    ],
)
def test_bad_command_lines(run, options, sentence):
    status, out, err, made = run(f"eval --text text.txt --gguf TINY {options}")
    assert status == 2 and out == "" and made == []
    assert err.startswith("error: ") and err.count("\n") == 1
    assert sentence in err


def test_bad_traces(run):
    status, _, err, _ = run("eval --trace t.npz --prompt 30")
    assert (
        status == 2
        and "--prompt: the trace has 30 tokens, which must be more than the 30 given" in err
    )
    status, _, err, _ = run("eval --trace t.npz --policy rtn")
    assert status == 2 and "policy rtn: it has no attention to run on a trace" in err
    status, _, err, _ = run("eval --trace none.npz")
    assert status == 2 and "trace none.npz: there is no such file" in err


def test_a_cache_of_fewer_bits_is_not_idle():
    """It reads all rows, and fewer bytes of them."""
    found = measure_trace(parse("kv:bits=2,group=8,residual=8"), random_trace())
    assert not found.idle and found.traffic.k_rows == found.traffic.dense_rows
    assert measure_trace(parse("topick:threshold=0"), random_trace()).idle


def test_layers_of_a_trace_share_a_cascade():
    """SpAtten's second layer leaves out what the first one has made unimportant."""
    trace = random_trace()
    found = measure_trace(parse("spatten:keep=0.5,recent=0"), trace, prompt=10)
    alone = [
        measure_trace(parse("spatten:keep=0.5,recent=0"), one, prompt=10)
        for one in (
            dataclasses.replace(
                trace, q=trace.q[n : n + 1], k=trace.k[n : n + 1], v=trace.v[n : n + 1]
            )
            for n in range(2)
        )
    ]
    assert found.traffic.k_rows < sum(one.traffic.k_rows for one in alone)
