"""A language model whose attention is ToPick's core: what it keeps and reads, and faults."""

import dataclasses
import re

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.topick import TokenPickerAttention
from golden.lm.commands import open_model
from golden.trace import load
from hw.catalogue import find
from hw.emit.export import export
from sim.commands.engines.part import LayerRun
from sim.commands.engines.topick import topick_core
from sim.commands.engines.topick.topick_core import engine
from sim.core.design import generate
from tests.support.sim.generated import (
    PROMPT,
    TOKENS,
    attention_command,
    require_dense,
    require_mutants_found,
    result_of,
    upset_memory,
)

BLOCK = "topick.topick_core"
DIFFERS = r"transaction \d, stream \w+, beat \d+, field "
SETTINGS = "--set tokens=32 --set entries=8"


@pytest.fixture(scope="module")
def parameters(model):
    default = engine.parameters(open_model(model)[0].config, 64)
    return dataclasses.replace(default, tokens=32, entries=8)


@pytest.fixture
def generated(run, model):
    def command(options=""):
        return run(attention_command(model, BLOCK, f"{SETTINGS} {options}"))

    return command


def test_without_pruning_it_is_dense_attention_on_twelve_bits(generated, tmp_path):
    path = tmp_path / "run.npz"
    options = f"--threshold 0 --memory latency=1..9,order=any --trace-out {path}"
    result = result_of(generated, options)
    trace = load(path)
    with np.load(path) as file:
        o = file["run/o"]
    for layer in range(3):
        rows = (x[layer] for x in (trace.q, trace.k, trace.v))
        require_dense(o[layer], *rows, 2e-2, trace.scale)
    figures, steps = result["figures"], result["prompt_tokens"] + TOKENS - 1
    tokens = 3 * 4 * steps * (steps + 1) / 2  # layers, heads
    assert figures["tokens in view"] == figures["tokens kept"] == tokens
    assert figures["chunks of keys read"] == figures["chunks of all keys"] == 3 * tokens
    assert result["bits_compared"] == 3 * 4 * steps * (8 * 25 + 13 + 2 + 1)


def test_texts_in_contexts_of_a_core(generated):
    """Each is as alone where nothing is pruned; their steps overlap; fewer contexts than texts."""
    prompts, alone = ("the a the", "a", "the the"), []
    options = "--threshold 0 --memory latency=20"
    for prompt in prompts:
        alone.append(result_of(generated, f"{options} --prompt '{prompt}'"))
    others = " ".join(f"--prompt '{prompt}'" for prompt in prompts)
    found = [result_of(generated, f"{options} --set contexts={n} {others}") for n in (1, 2, 3)]
    apart = found[0]
    read = sum(one["bytes"]["kv_read"] for one in alone)
    assert apart["bytes"]["kv_read"] == read
    for result in found:
        assert result["tokens"] == [one["tokens"] for one in alone]
        assert result["cycles_of_prompts"] == apart["cycles_of_prompts"]
        assert result["bytes"] == apart["bytes"]
        assert result["bits_compared"] >= apart["bits_compared"]  # o and reports with contexts
    steps = [result["cycles_of_steps"] for result in found]
    assert sum(steps[0]) == sum(one["cycles"] for one in alone) - sum(apart["cycles_of_prompts"])
    for apart_cycles, two, three in zip(*steps, strict=True):
        assert three < two < apart_cycles


def test_a_prompt_in_blocks_is_dense_attention_that_reads_once(generated, tmp_path):
    path = tmp_path / "run.npz"
    options = f"--set block=5 --threshold 0 --memory latency=1..9,order=any --trace-out {path}"
    result = result_of(generated, f"{options} --prompt '{4 * PROMPT}'")
    trace, prompt = load(path), result["prompt_tokens"]
    with np.load(path) as file:
        o, votes = file["run/o"], file["run/votes"]
    for layer in range(3):
        rows = (x[layer] for x in (trace.q, trace.k, trace.v))
        require_dense(o[layer], *rows, 2e-2, trace.scale)
    ends = [*range(5, prompt, 5), prompt]
    assert prompt > 6 and prompt % 5 != 1  # a token that is left over is no block
    figures, chunks = result["figures"], 3 * 2 * 3  # layers, K and V, chunks
    assert figures["chunks read by blocks"] == chunks * 2 * sum(ends)
    assert figures["chunks of blocks by tokens"] == chunks * 4 * prompt * (prompt + 1) / 2
    alone = 3 * 4 * sum(range(prompt + 1, prompt + TOKENS))
    assert figures["tokens in view"] == alone
    assert figures["chunks of keys read"] == 3 * alone
    assert all((votes[:, :, t, : t + 1] == 2).all() for t in range(prompt))
    assert "blocks of the prompt read" in result["note"]


def test_rows_beyond_the_scale_in_a_block(parameters, monkeypatch):
    """A block has the scale that it ends with; rows of earlier blocks are written again."""
    monkeypatch.setattr(topick_core, "CALIBRATION", 2)
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(0, 1, (heads, 20, 8)).astype(np.float32) for heads in (4, 2, 2))
    k[:, 7:] *= 3
    v[:, 12] *= np.array([9, 30], np.float32)[:, None]
    p = dataclasses.replace(parameters, block=5)
    layer = engine.attention(LayerRun(generate(find(BLOCK), p), 0), 32, threshold=0.0)
    o, dense = (a.sequence(q, k, v) for a in (layer, DenseAttention()))
    largest = np.abs(v).max()
    np.testing.assert_allclose(o, dense, atol=2e-3 * largest)
    figures = layer.figures()
    layer.close()
    assert figures["elements saturated"] == 0
    assert figures["tokens stored again"] == 5 + 10
    assert [bool(cycles) for cycles in layer.cycles] == ([False] * 4 + [True]) * 4


def test_rows_beyond_the_scale_are_like_the_algorithm_s(parameters, monkeypatch):
    """Rows that grow long after the scales were set: those in the memories are written again."""
    monkeypatch.setattr(topick_core, "CALIBRATION", 2)
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(0, 1, (heads, 20, 8)).astype(np.float32) for heads in (4, 2, 2))
    k[:, 5:] *= 3
    v[:, [7, 12]] *= np.array([9, 30], np.float32)[:, None]
    layer = engine.attention(LayerRun(generate(find(BLOCK), parameters), 0), 32, threshold=0.0)
    algorithm = TokenPickerAttention(0.0, calibration=2, bit_exact=True)
    o, expected, dense = (a.sequence(q, k, v) for a in (layer, algorithm, DenseAttention()))
    largest = np.abs(v).max()
    np.testing.assert_allclose(o, expected, atol=5e-4 * largest)
    np.testing.assert_allclose(o, dense, atol=2e-3 * largest)
    figures = layer.figures()
    layer.close()
    assert figures["elements saturated"] == 0
    assert figures["tokens stored again"] == algorithm.figures()["tokens stored again"] >= 5 + 12


def test_a_threshold_saves_keys_and_values(generated):
    kept = result_of(generated, "--threshold 0.05")
    figures = kept["figures"]
    assert figures["tokens kept"] < 0.8 * figures["tokens in view"]
    assert figures["chunks of keys read"] < figures["chunks of all keys"]
    values = figures["chunks read"] - figures["chunks of keys read"]
    assert 0 < values <= 3 * figures["tokens kept"]
    assert kept["bytes"]["kv_read"] == figures["chunks read"] * 4  # 8 elements of 4 bits
    steps = kept["prompt_tokens"] + TOKENS - 1
    assert kept["bytes"]["kv_written"] == 3 * 2 * 2 * 3 * 4 * steps
    assert kept["evicted"] == [[], [], []] and kept["rows_kept"] == steps
    assert "% of tokens kept" in kept["note"] and "; 0 elements of K and V sat" in kept["note"]


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(generated):
    checked, alone = (result_of(generated, o) for o in ("", "--check none --threads 1"))
    assert alone["bits_compared"] == 0
    for key in ("tokens", "figures", "cycles_per_token", "bytes"):
        assert checked[key] == alone[key]


def test_trace_of_a_run(generated, tmp_path):
    path = tmp_path / "run.npz"
    result = result_of(generated, f"--threshold 0.05 --trace-out {path}")
    steps = result["prompt_tokens"] + TOKENS - 1
    trace = load(path)  # as `sim run --trace` does
    assert trace.q.shape == (3, 4, steps, 8) and trace.k.shape == (3, 2, steps, 8)
    with np.load(path) as file:
        run = {name[4:]: file[name] for name in file.files if name.startswith("run/")}
    assert run["cycles"].sum(0).tolist() == result["cycles_per_token"]
    # Query heads of a kv head that kept each token; the newest one is kept by all.
    votes = run["votes"]
    assert votes[votes >= 0].sum() == result["figures"]["tokens kept"]
    assert all((votes[:, :, token, token] == 2).all() for token in range(steps))


@pytest.mark.parametrize(
    ("pattern", "instead", "message"),
    [
        # A pruned token's probability is above the threshold; a sum of other weights.
        pytest.param(
            r"(assign prune = known & ~\(&threshold\)) & ",
            r"\1 | ",
            rf"{DIFFERS}(kept|o\[\d+\]|beat|chunk), ",
            id="prunes more",
        ),
    ],
)
def test_a_fault_in_the_rtl_ends_the_text_and_is_located(
    generated, parameters, tmp_path, pattern, instead, message
):
    made = export(find(BLOCK), parameters)
    text, count = re.subn(pattern, instead, made.verilog, count=1)
    assert count == 1, f"the Verilog has no {pattern}"
    path = tmp_path / "faulty.v"
    path.write_text(text)
    status, out, err = generated(f"--threshold 0.05 --verilog {path}")
    assert status == 1 and out == ""
    assert re.match(rf"error: topick.topick_core, layer 0, token \d+: {message}", err), err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set heads=3", "heads must be at least 4, not 3"),
        ("--set lanes=1 --set kv_heads=1", "kv_heads must be at least 2, not 1"),
        ("--set d=4", "d must be at least the head size, 8, not 4"),
        ("--set tokens=16", "tokens must be at least 17, the prompt's and those to make, not 16"),
        ("--threshold 1", "threshold must be at least 0 and below 1, not 1.0"),
        (
            "--attention veda.veda_core --threshold 0.1",
            "threshold must be used with topick.topick_core alone, not 0.1",
        ),
    ],
)
def test_refusals(generated, options, message):
    status, out, err = generated(options)
    assert status == 2 and out == "" and err == f"error: {message}\n"


@pytest.mark.parametrize(("layer", "token"), [(0, 1), (1, 6), (2, 11)])
def test_a_bit_upset_in_a_layer_s_memory_is_located(monkeypatch, generated, layer, token):
    """The sign of an element in each chunk of the first lane."""

    def flip(session):
        session.contents["memory__0"][:, 0] ^= 1 << 3

    upset_memory(monkeypatch, layer, token, flip)
    status, out, err = generated("--threshold 0.05")
    assert status == 1 and out == ""
    assert err.startswith(f"error: topick.topick_core, layer {layer}, token {token}: transaction ")


INSTANCES = (
    "",
    "store",
    # Not the margins: if they are too large, less is pruned, which only a replay of all decisions
    # finds, and that is the testbench's.
    "queries_0.fifo",
    "arbiter",
    "group_0",
    "group_1.dag",
    "group_0.dag.log2",
    "group_0.join",
    "group_1.heads.fifo",
    "group_0.port_0",
    "group_0.order_0",
    "group_0.generator_0",
    "group_0.generator_0.exp2",
    "group_0.lane_0",
    "group_1.lane_0.multiplier_3",
    "group_0.lane_0.tree",
    "group_0.lane_0.scoreboard",
    "group_0.lane_0.requests",
    "group_0.lane_0.pec",
    "group_0.lane_0.rpdu",
    "group_0.lane_0.sums",
)


@pytest.mark.campaign
@pytest.mark.parametrize("instance", INSTANCES)
def test_mutants_in_each_sub_block_stop_the_text(generated, monkeypatch, mutants, instance):
    monkeypatch.chdir(mutants.folder)
    require_mutants_found(generated, mutants, BLOCK, instance, "--threshold 0.05")
