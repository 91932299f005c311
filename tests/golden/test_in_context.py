"""Policies at a fixed context: equal to runs made by hand, and the command ``eval --context``."""

import dataclasses
import gc
import json
import math
import tempfile

import numpy as np
import pytest

from golden import __main__ as cli
from golden.algorithms.attention import DecodeAttention, DenseAttention
from golden.algorithms.baselines import rope_of
from golden.evaluation import in_context, setting
from golden.evaluation.in_context import DenseRun, run_dense, run_free, run_policy, written
from golden.evaluation.policies import POLICIES, parse
from golden.evaluation.row import Row, row_of
from golden.evaluation.setting import Setting, score_all
from golden.evaluation.tasks import Agreement
from golden.evaluation.windows import prose
from golden.lm.commands import open_model
from golden.lm.model import generate
from tests.support.lm.tiny_llama import SIZES, write_gguf

CONTEXT, QUERIES = 24, 7
TEXT = "The theory of the thing is that the other thinks, and then the rest follows. " * 9


@pytest.fixture(scope="module")
def opened(tiny):
    model, tokenizer, _ = open_model(tiny)
    return model, prose(tokenizer, {"one": TEXT}, CONTEXT + 1, QUERIES, 2)


class AfterDense(DecodeAttention):
    """Dense outputs for the first tokens, and another attention's after them."""

    def __init__(self, inner: DecodeAttention, prefix: int) -> None:
        super().__init__()
        self.inner, self.left, self.dense = inner, prefix, DenseAttention()

    def step(self, q, k, v):
        self.left -= 1
        dense, o = self.dense.step(q, k, v), self.inner.step(q, k, v)
        return dense if self.left >= 0 else o


def by_hand(model, window, policy):
    """Losses, log-probabilities and attentions of one run over the whole window."""
    prefix = CONTEXT - QUERIES
    attentions = [
        AfterDense(policy.attention(prompt=prefix, seed=layer, rope=rope_of(model)), prefix)
        for layer in range(model.config.layers)
    ]
    hidden = model.hidden(window.tokens[:-1], attentions)[prefix:]
    logits = model.logits(hidden).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    targets = list(window.tokens[-QUERIES:])
    return -log_p[np.arange(QUERIES), targets].mean(), log_p, [a.inner for a in attentions]


@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "streaming:capacity=9",
        "streaming:capacity=9,positions=cache",
        "voting:capacity=9,reserved=2",
        "h2o:capacity=9,prompt_by=step",
        "topick:threshold=0.05,latency=3",
        "snapkv:capacity=12,window=4",
        "unicaim:heavy=9,reserved=8,top_k=5",
    ],
)
def test_equals_one_run_over_the_window(opened, monkeypatch, text):
    model, windows = opened
    monkeypatch.setattr(in_context, "_ROWS", 3)  # of 7 queries
    policy = parse(text, prompt=CONTEXT - QUERIES)
    dense = run_dense(model, windows[0])
    score = run_policy(policy, model, dense)
    loss, log_p, attentions = by_hand(model, windows[0], policy)
    exact_loss, exact, _ = by_hand(model, windows[0], parse("dense"))
    assert score.loss == pytest.approx(loss, rel=1e-5)
    assert score.dense == pytest.approx(exact_loss, rel=1e-5)
    kl = np.sum(np.exp(exact) * (exact - log_p), axis=-1).mean()
    assert score.kl == pytest.approx(kl, rel=1e-3, abs=1e-6)
    assert score.same == np.mean(exact.argmax(axis=-1) == log_p.argmax(axis=-1))
    assert (kl < 1e-6) == (text == "dense")
    rows = np.mean([attention.rows for attention in attentions]) / model.config.kv_heads
    assert score.kept == rows


def test_reads_on_dense_states_are_those_of_the_last_queries(opened):
    """Token-Picker's own counts of the same queries, each head for itself."""
    model, windows = opened
    dense = run_dense(model, windows[0])
    policy = parse("topick:threshold=0.05,latency=3")
    score = run_policy(policy, model, dense, loop=False)
    assert math.isnan(score.loss) and math.isnan(score.kl)
    chunks, kept, view = 0, 0, 0
    for prefix, queries in zip(dense.prefix, dense.queries, strict=True):
        attention = policy.attention()
        attention.sequence(*(np.concatenate([prefix[n], queries[n]], axis=1) for n in "qkv"))
        counts = attention.counts[-QUERIES:].sum(axis=(0, 1))
        view, chunks, kept = view + counts[0], chunks + counts[:3].sum(), kept + counts[3]
    row = row_of(policy.text, "tiny", CONTEXT, QUERIES, [score])
    assert row.row_bits == 12
    assert row.k_times_fewer.mean == pytest.approx(3 * view / chunks)
    assert row.v_times_fewer.mean == pytest.approx(view / kept)
    assert row.times_fewer.mean == pytest.approx(2 / (chunks / (3 * view) + kept / view))
    assert 1 < row.times_fewer_shared.mean < row.times_fewer.mean
    again = Row.from_json(json.loads(json.dumps(row.as_json())))
    assert again.as_json() == row.as_json() and row.figures["tokens in view"].mean > 0


def test_a_dense_prefix_is_dense_for_every_policy(opened):
    """States of the queries' first layer do not depend on the policy, and later ones do."""
    model, windows = opened
    dense = run_dense(model, windows[0])
    lost = run_policy(parse("streaming:capacity=5"), model, dense)
    assert lost.traffic.k_rows == lost_rows(model)
    assert lost.traffic.dense_rows == model.config.layers * model.config.kv_heads * sum(
        range(CONTEXT - QUERIES + 1, CONTEXT + 1)
    )


def test_every_window_and_layer_has_devices_of_its_own(opened, tiny, monkeypatch):
    """Unless the policy's text gives the seed."""
    model, windows = opened
    tokenizer = open_model(tiny)[1]
    seeds = []

    class Seeded(type(parse("unicaim").attention())):
        def __init__(self, seed: int = 0, prompt: int = 1) -> None:
            seeds.append(seed)
            super().__init__(seed=seed, prompt=prompt)

    monkeypatch.setitem(POLICIES, "unicaim", Seeded)
    policies = [parse("unicaim"), parse("unicaim:seed=5")]
    seeds.clear()
    setting = Setting(model, tokenizer, CONTEXT, QUERIES, 2, "prose", True, {})
    score_all(setting, (run_dense(model, window) for window in windows), policies)
    layers = model.config.layers
    assert seeds == [
        *range(layers), *[5] * layers, *range(1000, 1000 + layers), *[5] * layers
    ]  # fmt: skip


def test_a_quantised_model_reads_the_prefix_itself(opened):
    model, windows = opened
    policy = parse("rtn:weight_bits=4,activation_bits=4")
    quantised = policy.model(model)
    score = run_policy(policy, quantised, run_dense(model, windows[0]))
    logits = quantised.logits(quantised.hidden(windows[0].tokens[:-1])[-QUERIES:])
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    targets = list(windows[0].tokens[-QUERIES:])
    assert score.loss == pytest.approx(-log_p[np.arange(QUERIES), targets].mean(), rel=1e-5)
    assert score.kl > 0 and score.traffic.bytes == score.traffic.dense_bytes


@pytest.fixture
def run(tmp_path, tensors, monkeypatch, call):
    """Runs the command on a tiny model that sees 500 tokens."""
    tiny = write_gguf(tmp_path / "tiny.gguf", tensors, sizes=SIZES | {"context": 500})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text(TEXT)
    (tmp_path / "two.txt").write_text(TEXT[10:])
    return lambda line: call(cli.main, f"eval --gguf {tiny} {line}")


def test_rows_of_json(run):
    status, out, _ = run(
        "--text one.txt two.txt --context 24 --queries 7 --windows 4 --json"
        " --policy dense --policy topick:threshold=0.05 --policy streaming:capacity=9"
    )
    assert status == 0
    dense, topick, streaming = json.loads(out)
    assert (dense["context"], dense["queries"], dense["windows"]) == (24, 7, 4)
    assert dense["perplexity"] == pytest.approx(dense["dense"]) and dense["kl"] < 1e-6
    assert dense["times_fewer"] == dense["times_fewer_shared"] == dense["same"] == 1
    assert topick["times_fewer"] > topick["times_fewer_shared"] > 1
    for row in (topick, streaming):
        assert row["kl"] > 0 and row["kl_se"] > 0 and row["delta_se"] > 0
        assert row["delta"] == pytest.approx(math.log(row["perplexity"] / row["dense"]))
    assert streaming["kept"] == 9


def test_texts_by_name_and_by_role(run):
    line = "--context 24 --queries 7 --windows 3 --policy dense --json --text"
    found = []
    for texts in ("short", "cranes subjects sampled", "cranes one.txt"):
        status, out, _ = run(f"{line} {texts}")
        assert status == 0
        found.append(json.loads(out)[0]["perplexity"])
    assert found[0] == found[1] != found[2]


def test_a_table_and_one_window_without_an_error(run):
    status, out, _ = run("--text one.txt --context 24 --queries 7 --policy streaming:capacity=9")
    assert status == 0 and "±" in out and "1 windows of 24 tokens" in out
    assert "± 0" not in out


def test_reads_alone(run):
    status, out, _ = run(
        "--text one.txt --context 24 --queries 7 --states dense --policy topick --json"
    )
    [row] = json.loads(out)
    assert status == 0 and "kl" not in row and "perplexity" not in row and row["times_fewer"] >= 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--queries 5", "--queries: it is for a fixed context, which --context gives"),
        ("--context 24 --prompt 5", "--prompt: with --context it has no meaning"),
        ("--context 99999", "--context: the model sees at most"),
        ("--context 64 --queries 5 --windows 9999", "tokens are too few for 9999 windows"),
        ("--context 24 --queries 24", "--queries: they must be fewer than"),
        (
            "--context 24 --queries 7 --states dense --policy rtn",
            "can only be measured in the loop",
        ),
        ("--context 24 --policy topick:threshold=0.1..0.2", "needs --kl, the loss to choose"),
        ("--context 24 --kl 0.1 --policy topick", "it needs an open parameter, as low..high"),
        (
            "--context 24 --kl 1 --policy topick:threshold=0.1..0.2 --text held-out",
            "text held-out: it is held out, so that nothing is chosen on it",
        ),
        ("--context 24 --kl 0", "it must be a number above 0, not 0"),
        ("--context 24 --judge one.txt", "--judge: it is for parameters that --kl chooses"),
        ("--context 24 --task agreement --kl 1 --policy topick:threshold=1e-3..0.1", "has no loss"),
        ("--context 24 --task retrieval --states dense --policy topick", "on prose and echo"),
        ("--context 400 --task retrieval --queries 5", "counts the tokens of the answers"),
        ("--kl 0.1", "--kl: it is for a fixed context"),
        ("--context 24 --tokens 5", "--tokens: with --context it has no meaning"),
        ("--text one.txt two.txt", "--text: several texts are for windows"),
    ],
)
def test_mistakes(run, line, said):
    text = "" if "--text" in line else "--text one.txt "
    status, out, err = run(text + line)
    assert status == 2 and not out and said in err


def test_a_parameter_is_chosen_on_one_text_and_judged_on_another(run):
    line = "--context 24 --queries 7 --windows 2 --json --policy streaming:capacity=5..23"
    status, out, _ = run(f"{line} --kl 0.002 0.01 --text one.txt --judge two.txt")
    assert status == 0
    rows = json.loads(out)
    assert [row["allowed_kl"] for row in rows] == [0.002, 0.01]
    for row in rows:
        assert 0 < row["chosen_kl"] <= row["allowed_kl"]
        alone = "--context 24 --queries 7 --windows 2 --json --policy"
        for text, key in (("one", "chosen_kl"), ("two", "kl")):
            _, out, _ = run(f"{alone} {row['policy']} --text {text}.txt")
            assert json.loads(out)[0]["kl"] == pytest.approx(row[key])


def test_a_choice_has_few_windows_in_memory(run, tmp_path, monkeypatch):
    """And leaves no file."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    alive = []

    def counted(*rest, **options):
        alive.append(sum(isinstance(found, DenseRun) for found in gc.get_objects()))
        return run_policy(*rest, **options)

    gc.collect()
    before = sum(isinstance(found, DenseRun) for found in gc.get_objects())
    monkeypatch.setattr(setting, "run_policy", counted)
    line = "--context 24 --queries 7 --windows 5 --json --policy streaming:capacity=5..23 --kl 0.01"
    status, _, err = run(f"{line} --text one.txt")
    assert status == 0, err
    assert len(alive) >= 15 and 1 <= max(alive) - before <= 2
    assert not list((tmp_path / "scratch").iterdir())


def test_what_windows_share_is_run_once(opened, monkeypatch):
    """The same run as alone; the shared beginning is in no call of the model."""
    model, windows = opened
    end = (windows[1].tokens[3], *windows[1].tokens[-QUERIES - 2 :])
    other = dataclasses.replace(windows[0], tokens=windows[0].tokens[: -len(end)] + end)
    alone, before = run_dense(model, other), run_dense(model, windows[0])
    lengths, hidden = [], model.hidden

    def counted(tokens, *rest, **options):
        lengths.append(len(tokens))
        return hidden(tokens, *rest, **options)

    monkeypatch.setattr(model, "hidden", counted)
    after = run_dense(model, other, before)
    assert lengths == [len(end) - 1] and after.loss == pytest.approx(alone.loss, rel=1e-5)
    assert np.allclose(after.log_p, alone.log_p, atol=1e-4)
    for name in "qkv":
        assert np.allclose(after.prefix[1][name], alone.prefix[1][name], atol=1e-4)
        assert after.queries[1][name].shape == alone.queries[1][name].shape


def test_what_was_counted_before_may_be_of_the_prefix_now(opened):
    """An answer of fewer tokens than the one before: what that counted is run again."""
    model, windows = opened
    fewer = dataclasses.replace(windows[0], queries=QUERIES - 3)
    after, alone = run_dense(model, fewer, run_dense(model, windows[0])), run_dense(model, fewer)
    assert after.loss == pytest.approx(alone.loss, rel=1e-5)
    for layer, exact in zip(after.prefix, alone.prefix, strict=True):
        for name in "qkv":
            np.testing.assert_allclose(layer[name], exact[name], atol=1e-4)


def test_a_continuation_is_compared_with_dense_attention_s(opened):
    model, windows = opened
    dense = run_dense(model, windows[0])
    reference = written(parse("dense"), model, dense)
    tokens = list(windows[0].tokens[: CONTEXT - QUERIES + 1])
    assert reference == generate(model, tokens, QUERIES)
    decode = lambda numbers: " ".join(map(str, numbers))  # noqa: E731
    same = run_free(parse("dense"), model, dense, reference, decode)
    assert same.agreement == Agreement(QUERIES, 1, 1) and math.isnan(same.loss)
    poor = run_free(parse("streaming:capacity=5"), model, dense, reference, decode)
    assert poor.agreement.leading < QUERIES and poor.traffic.k_rows == lost_rows(model)


def lost_rows(model):
    return model.config.layers * model.config.kv_heads * QUERIES * 6


@pytest.mark.parametrize("task", ["retrieval", "agreement"])
def test_tables_of_other_tasks(run, task):
    """A tiny model cannot answer, but every column has its figures."""
    line = f"--text one.txt --context 400 --task {task} --policy dense --json"
    line += " --queries 5" if task == "agreement" else ""
    status, out, err = run(line)
    assert status == 0, err
    [row] = json.loads(out)
    if task == "agreement":
        assert (row["leading"], row["equal"], row["rouge_l"]) == (5, 1, 1) and "kl" not in row
    else:
        assert row["right"] == 0 and row["windows"] == 1 and row["kl"] < 1e-6
    status, out, _ = run(line.replace("--json", ""))
    assert status == 0 and {"retrieval": "right", "agreement": "ROUGE-L"}[task] in out


def test_figures_that_are_not_finite_leave_the_other_rows(run, monkeypatch):
    class Broken(DenseAttention):
        def sequence(self, q, k, v):
            return np.full_like(super().sequence(q, k, v), np.nan)

    monkeypatch.setitem(POLICIES, "h2o", Broken)
    line = "--text one.txt --context 24 --queries 7 --policy h2o --policy topick --json"
    status, out, err = run(line)
    broken, topick = json.loads(out)
    assert status == 1 and "error: policy h2o: its figures are not finite" in err
    assert "kl" not in broken and "perplexity" not in broken and topick["kl"] > 0
