"""A language model whose attention is LAD's tile: what it reads and stores, and faults."""

import dataclasses
import re

import numpy as np
import pytest

from golden.lm.commands import open_model
from golden.trace import load
from hw.catalogue import find
from hw.lad.tile_parameters import LadTileParameters
from sim.commands.engines.lad.attention import LadAttention
from sim.commands.engines.lad.lad_tile import engine
from sim.commands.engines.part import LayerRun
from sim.core.design import generate
from tests.support.sim.generated import (
    TOKENS,
    attention_command,
    require_dense,
    require_mutants_found,
    result_of,
    upset_memory,
    write_llama,
)

BLOCK = "lad.lad_tile"
SMALL = {
    "positions": 32,
    "window": 4,
    "counter_bits": 4,
    "updates": 4,
    "depth": 8,
    "multiply_stages": 1,
    "add_stages": 1,
}
SETTINGS = " ".join(f"--set {name}={value}" for name, value in SMALL.items())


@pytest.fixture
def generated(run, model):
    def command(options="", gguf=model):
        return run(attention_command(gguf, BLOCK, f"{SETTINGS} {options}"))

    return command


@pytest.fixture(scope="module")
def parameters(model):
    return dataclasses.replace(engine.parameters(open_model(model)[0].config, 64), **SMALL)


def test_it_is_dense_attention_with_lines_for_exp(generated, tmp_path):
    path = tmp_path / "run.npz"
    options = f"--memory latency=1..9,order=any --trace-out {path}"
    result = result_of(generated, options)
    trace = load(path)  # as `sim run --trace` does
    with np.load(path) as file:
        run = {name[4:]: file[name] for name in file.files if name.startswith("run/")}
    steps = result["prompt_tokens"] + TOKENS - 1  # the last token is not read
    for layer in range(3):
        assert trace.q[layer].shape[1] == steps
        rows = (x[layer] for x in (trace.q, trace.k, trace.v))
        require_dense(run["o"][layer], *rows, 0.1, trace.scale)
    figures = result["figures"]
    assert figures["n"] == 3 * 4 * steps * (steps + 1) / 2  # layers, heads
    assert figures["rows of dense attention"] == 2 * figures["n"]
    assert figures["invalid heads"] == 0 and figures["fresh"] <= figures["active"]
    assert 0 < figures["updated"] < figures["active"] < figures["n"]
    # Rows of a report, and those read to add the code and the unit of a new key.
    assert figures["rows"] < figures["rows read"] <= figures["rows"] + 3 * 2 * 2 * steps
    row = 8 * 2
    assert result["bytes"] == {
        "kv_read": row * figures["rows read"],
        "kv_written": row * figures["rows written"],
    }
    assert result["evicted"] == [[], [], []] and result["rows_kept"] == steps
    assert re.fullmatch(r"[\d.]+% of positions active, [\d.]+% updated, .* reads", result["note"])
    # Query heads of a kv head for which a position was active.
    votes = run["votes"]
    assert votes[votes >= 0].sum() == figures["active"]
    window = [votes[:, :, token, max(0, token - 3) : token + 1] for token in range(steps)]
    assert all((active == 2).all() for active in window)
    assert run["cycles"].sum(0).tolist() == result["cycles_per_token"]


def test_rows_are_not_loaded_ahead_beside_products_on_the_same_tile(run, model):
    line = attention_command(model, BLOCK, f"--linear {BLOCK} {SETTINGS} --set prefetch=24")
    status, out, err = run(line)
    assert (status, out) == (2, "")
    assert "prefetch must be 0, not 24, on a tile that multiplies too" in err


@pytest.mark.campaign
def test_rows_loaded_ahead(generated):
    """The step has fewer cycles; its outputs are the same, with the model's check and without."""
    plain, ahead = (result_of(generated, f"--set prefetch={rows}") for rows in (0, 24))
    assert ahead["text"] == plain["text"] and plain["figures"]["hits"] == 0
    figures = ahead["figures"]
    assert 0 < figures["hits"] < figures["active"] == plain["figures"]["active"]
    assert figures["cycles"] < plain["figures"]["cycles"]
    # What is loaded ahead and not active any more has been read in vain.
    assert figures["rows read"] > plain["figures"]["rows read"]
    assert ahead["note"].endswith(
        f", {figures['hits'] / figures['active']:.1%} of active ones loaded ahead"
    )
    for options in ("--memory latency=1..40,order=any", "--check none"):
        found = result_of(generated, f"--set prefetch=24 {options}")
        assert found["text"] == plain["text"] and found["figures"]["hits"] == figures["hits"]


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(generated, parameters):
    checked, alone = (result_of(generated, o) for o in ("", "--check none --threads 1"))
    steps = checked["prompt_tokens"] + TOKENS - 1
    bits = 8 * 16 + 2 + sum(field.width for _, field in parameters.report_layout)
    assert checked["bits_compared"] == 3 * 4 * steps * bits
    assert alone["bits_compared"] == 0
    for key in ("tokens", "figures", "cycles_per_token", "bytes", "note"):
        assert checked[key] == alone[key]


def test_a_head_size_is_filled_up_and_its_scale_is_its_own(parameters):
    """Six elements of eight."""
    rng = np.random.default_rng(1)
    attention = LadAttention(LayerRun(generate(find(BLOCK), parameters), 0))
    q, k, v = (rng.standard_normal((heads, 12, 6)) for heads in (4, 2, 2))
    o = attention.sequence(q, k, v)
    attention.close()
    require_dense(o, q, k, v, 0.1)


def test_parameters_of_a_model(model):
    config = open_model(model)[0].config
    assert engine.parameters(config, 64) == LadTileParameters(d=8, heads=4, kv_heads=2)
    wide = dataclasses.replace(config, d=48, heads=9, kv_heads=3)
    assert engine.parameters(wide, 1025) == LadTileParameters(positions=2048)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set heads=3", "heads must be at least 4, not 3"),
        ("--set kv_heads=1", "kv_heads must be at least 2, not 1"),
        ("--set d=4", "d must be 8, 16, 32, 64 or 128, not 4"),
        (
            "--set positions=16",
            "positions must be at least 17, the prompt's and those to make, not 16",
        ),
        ("--set slack=300", "slack must be between 0 and 256, not 300"),
        ("--threshold 0.1", "threshold must be used with topick.topick_core alone, not 0.1"),
    ],
)
def test_refusals(generated, options, message):
    status, out, err = generated(options)
    assert status == 2 and out == "" and err == f"error: {message}\n"


def test_a_head_larger_than_d_is_refused(generated, tmp_path):
    wide = write_llama(tmp_path, dim=64, d=16)
    status, out, err = generated("--set d=8", gguf=wide)
    assert (status, out) == (2, "")
    assert err == "error: d must be at least the head size, 16, not 8\n"


@pytest.fixture
def upset(monkeypatch, parameters):
    """A bit of all rows of a table flips before a layer's step."""

    def upset(region, word, bit, when):
        rows = slice(parameters.regions[region].base, parameters.regions[region].end)

        def flip(session):
            session.contents["memory"][rows, word] ^= 1 << bit

        upset_memory(monkeypatch, *when, flip)

    return upset


@pytest.mark.parametrize(
    ("region", "word", "bit", "when", "stream"),
    [
        ("v", 1, 31, (0, 1), "o"),  # a sign of values in the window
        ("cache", 0, 31, (1, 12), "o"),  # signs in A to F
        ("counter", 1, 3, (2, 11), "memory|report"),
        ("g", 0, 15, (1, 6), "report|memory"),  # whether the first position was active
        ("k", 3, 0, (2, 9), r"\w+"),  # the last bit of elements
        ("code", 0, 0, (0, 10), r"\w+"),
    ],
)
def test_a_bit_upset_in_a_layer_s_memory_is_located(
    upset, generated, region, word, bit, when, stream
):
    upset(region, word, bit, when)
    status, out, err = generated()
    layer, token = when
    assert status == 1 and out == ""
    assert re.match(
        rf"error: lad.lad_tile, layer {layer}, token {token}: "
        rf"transaction \d, stream ({stream}), beat \d+, field ",
        err,
    ), err


def test_a_row_that_no_output_shows_is_compared(upset, generated):
    """The value of a position that is never read in this step."""
    upset("v", 2, 4, (0, 0))
    status, out, err = generated()
    assert status == 1 and out == ""
    assert err.startswith(
        "error: lad.lad_tile, layer 0, token 0: transaction 1, stream memory, beat 0, field row "
    ), err


INSTANCES = (
    "",
    "port.arbiter",
    "stores.store_0",
    "stores.store_1",
    "eas",
    "eas.source",
    "eas.vpu_0",
    "eas.vpu_1",
    "apid",
    "apid.subtract_3",
    "active_fetch",
    "md",
    "md.vpu",
    "md.correct.multiply",
    "md.correct.alpha",
    "md.correct.beta",
    "ac",
    "ac.lane_0",
    "ac.lane_2",
    "ac.operands.denominator",
)


@pytest.mark.campaign
@pytest.mark.parametrize("instance", INSTANCES)
def test_mutants_in_each_sub_block_stop_the_text(generated, monkeypatch, mutants, instance):
    monkeypatch.chdir(mutants.folder)
    require_mutants_found(generated, mutants, BLOCK, instance)
