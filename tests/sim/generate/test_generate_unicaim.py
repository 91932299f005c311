"""A language model whose attention is UniCAIM's core: what it selects and evicts, and faults."""

import re

import numpy as np
import pytest

from golden.lm.commands import open_model
from golden.trace import load
from hw.catalogue import find
from hw.unicaim.unicaim_core import UnicaimCoreParameters
from sim.commands.engines.part import LayerRun
from sim.commands.engines.unicaim.unicaim_core import UnicaimAttention, dense_prompt, engine
from sim.core.design import generate
from tests.support.sim.generated import (
    TOKENS,
    attention_command,
    require_dense,
    require_mutants_found,
    result_of,
    upset_memory,
)

BLOCK = "unicaim.unicaim_core"
OPTIONS = "--capacity 16 --set parallel=4 --set observe=1"


@pytest.fixture(scope="module")
def parameters(model):
    default = engine.parameters(open_model(model)[0].config, 16)
    return default.replace_from_text(["parallel=4", "observe=1"])


@pytest.fixture
def generated(run, model):
    def command(options="", gguf=model):
        return run(attention_command(gguf, BLOCK, f"{OPTIONS} {options}"))

    return command


def test_with_all_rows_it_is_dense_attention(generated, tmp_path):
    path = tmp_path / "run.npz"
    result = result_of(generated, f"--capacity 24 --top-k 24 --trace-out {path}")
    trace = load(path)
    with np.load(path) as file:
        run = {name[4:]: file[name] for name in file.files if name.startswith("run/")}
    steps = result["prompt_tokens"] + TOKENS - 1
    for layer in range(3):
        rows = (x[layer] for x in (trace.q, trace.k, trace.v))
        require_dense(run["o"][layer], *rows, 8e-3, trace.scale)
    assert result["evicted"] == [[], [], []] and result["rows_kept"] == steps
    figures = result["figures"]
    assert figures["conversions"] == figures["conversions of all rows"]
    assert figures["rows read"] == 2 * figures["conversions"]
    assert run["cycles"].sum(0).tolist() == result["cycles_per_token"]


@pytest.mark.campaign
def test_cells_by_the_clock_that_are_measured(generated):
    """A row of the prompt is measured when its report has come, so a step begins after that."""
    options = "time_steps=128 late=10 spread_mv=54 line_error=5 calibrate=1 exact=cells"
    settings = " ".join(f"--set {option}" for option in options.split())
    result = result_of(generated, f"--set array=cell {settings} --set accumulators=0 --top-k 4")
    assert result["figures"]["steps"] / result["figures"]["queries"] > 64


def test_rows_are_selected_and_evicted(generated, tmp_path):
    path = tmp_path / "run.npz"
    options = f"--top-k 4 --tokens 24 --memory latency=1..9,order=any --trace-out {path}"
    result = result_of(generated, options)
    with np.load(path) as file:
        positions, votes, evicted = (file[f"run/{n}"] for n in ("positions", "votes", "evicted"))
    figures, prompt = result["figures"], result["prompt_tokens"]
    steps = 24 - 1  # the last token is not read
    queries = 3 * 4 * steps
    assert figures["queries"] == queries
    used = [min(prompt + 1 + step, 16) for step in range(steps)]
    assert figures["conversions"] == 12 * sum(min(4, rows) for rows in used)
    assert figures["conversions of all rows"] == 12 * sum(used)
    assert result["rows_kept"] == 16
    assert figures["rows evicted"] == 3 * 2 * (prompt + steps - 16)
    assert (evicted >= 0).sum() == figures["rows evicted"]
    # A row holds a token that came before or now, the new one among them, and none evicted.
    assert votes[votes >= 0].sum() == figures["conversions"]
    for token in range(prompt, prompt + steps):
        held = positions[:, :, token]
        assert (held == token).any(axis=-1).all() and held.max() == token
    gone = {
        (at[0], at[1], position)
        for at, position in zip(np.argwhere(evicted >= 0), evicted[evicted >= 0], strict=True)
    }
    final = positions[:, :, -1]
    assert all(position not in final[layer, head] for layer, head, position in gone)
    assert re.fullmatch(
        r"4\.0 rows selected a query, [\d.]+ times fewer than in use, [\d.]+ steps a search, "
        r"\d+ rows evicted",
        result["note"],
    )


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(generated):
    checked, alone = (
        result_of(generated, f"--top-k 4 --tokens 18 --set observe=0 {o}")
        for o in ("", "--check none --threads 1")
    )
    assert checked["bits_compared"] > 0 and alone["bits_compared"] == 0
    for key in ("tokens", "figures", "cycles_per_token", "bytes", "note", "evicted"):
        assert checked[key] == alone[key], key


def test_a_prompt_longer_than_the_rows_is_pruned(parameters):
    """The tokens kept are those with the largest probabilities; later outputs use them alone."""
    rng = np.random.default_rng(1)
    attention = UnicaimAttention(LayerRun(generate(find(BLOCK), parameters), 0), 12, 16)
    q, k, v = (rng.standard_normal((heads, 41, 6)) for heads in (4, 2, 2))
    o = attention.sequence(*(x[:, :40] for x in (q, k, v)))
    require_dense(o, *(x[:, :40] for x in (q, k, v)), 1e-5)
    _, sums = dense_prompt(*(x[:, :40] for x in (q, k, v)))
    kept = np.sort(np.argsort(sums, axis=1)[:, -12:], axis=1)
    assert attention.steps[-1].positions.tolist() == kept.tolist()
    last = attention.sequence(*(x[:, 40:] for x in (q, k, v)))[:, 0]
    attention.close()
    for kv_head in range(2):
        rows = [*kept[kv_head], 40]
        scores = q[2 * kv_head : 2 * kv_head + 2, 40] @ k[kv_head, rows].T / np.sqrt(6)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        got = last[2 * kv_head : 2 * kv_head + 2]
        np.testing.assert_allclose(got, p @ v[kv_head, rows], atol=5e-3)


def test_parameters_of_a_model(model):
    config = open_model(model)[0].config
    made = engine.parameters(config, 64)
    assert (made.rows, made.d, made.kv_heads, made.group, made.array) == (64, 8, 2, 2, "serial")
    assert isinstance(made, UnicaimCoreParameters) and engine.parameters(config, 9).rows == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set kv_heads=1", "kv_heads must be at least 2, not 1"),
        ("--set group=1", "group must be at least 2, not 1"),
        ("--set d=4", "d must be at least the head size, 8, not 4"),
        ("--set rows=12 --set accumulators=4", "rows must be at least the capacity, 16, not 12"),
        ("--set rows=24", "capacity must be the core's rows, 24, not 16"),
        ("--capacity 8", "capacity must be the core's rows, 16, not 8"),
    ],
)
def test_refusals(generated, options, message):
    status, out, err = generated(options)
    assert status == 2 and out == "" and err == f"error: {message}\n"


def test_rows_to_select_are_for_this_block_alone(run, model):
    status, out, err = run(attention_command(model, "veda.veda_core", "--top-k 4"))
    assert (status, out) == (2, "")
    assert err == "error: top_k must be used with unicaim.unicaim_core alone, not 4\n"


@pytest.mark.parametrize(("row", "when", "stream"), [(1, (0, 3), "o"), (16, (2, 6), "o|memory")])
def test_a_bit_upset_in_a_layer_s_memory_is_located(monkeypatch, generated, row, when, stream):
    def flip(session):
        session.contents["memory"][row::32, 1] ^= 1 << 30

    upset_memory(monkeypatch, *when, flip)
    status, out, err = generated()
    layer, step = when
    assert status == 1 and out == ""
    assert re.match(
        rf"error: {BLOCK}, layer {layer}, token \d+: transaction \d+, stream ({stream}), ", err
    )


INSTANCES = (
    "",
    "sequence",
    "manager",
    "converter",
    "converter.lane_3",
    "array",
    "sense",
    "accumulation",
    "accumulation.accumulator",
    "accumulation.eviction_sense",
    "fetch",
    "exact",
    "reorder",
)


@pytest.mark.campaign
@pytest.mark.parametrize("instance", INSTANCES)
def test_mutants_in_each_sub_block_stop_the_text(generated, monkeypatch, mutants, instance):
    monkeypatch.chdir(mutants.folder)
    options = "--top-k 4 --tokens 24"
    require_mutants_found(generated, mutants, BLOCK, instance, options)
