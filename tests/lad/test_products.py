# amaranth: UnusedElaboratable=no
"""A language model's matrix products on LAD's tile, beside its attention: bits, bytes, faults."""

import dataclasses
import json

import numpy as np
import pytest

from golden.algorithms.lad.tile_model import TileLlama
from golden.algorithms.vectors import normalised
from golden.lm.commands import open_model
from hw.parameters import ParameterError
from sim import __main__ as cli
from sim.commands.engines.lad.lad_tile import products
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

# Two layers of two heads of eight elements; vectors of the last product are longer than the tile
# takes, 16 pieces of 8.
TINY = SIZES | {
    "layers": 2,
    "d": 8,
    "key_length": 8,
    "heads": 2,
    "kv_heads": 1,
    "dim": 12,
    "ffn": 140,
    "sliding_window": 8,
}
SETTINGS = {"positions": 32, "window": 4, "counter_bits": 4, "updates": 4, "depth": 8}
SETTINGS |= {"multiply_stages": 1, "add_stages": 1, "bounds": "80_48_24_8", "vector_lanes": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("products") / "tiny.gguf"
    return write_gguf(path, random_tensors(sizes=TINY, arch="llama"), sizes=TINY, arch="llama")


@pytest.fixture
def generated(call, model):
    """Status, standard output and standard error of a command."""

    def run(options: str = "", attention: str = "lad.lad_tile"):
        settings = " ".join(f"--set {name}={value}" for name, value in SETTINGS.items())
        blocks = f"--attention {attention} --linear lad.lad_tile {settings}"
        story = "--prompt 'the a the' --tokens 4 --json"
        return call(cli.main, f"generate --gguf {model} {story} {blocks} {options}")

    return run


def result_of(answer) -> dict:
    status, out, err = answer
    assert (status, err) == (0, "")
    return json.loads(out)


def test_a_model_on_one_tile_a_layer(generated, model):
    """Attention and products on the same tiles, which read each matrix once for the prompt."""
    result = result_of(generated())
    alone = result_of(generated(attention="none"))
    assert result["mismatches"] == alone["mismatches"] == 0
    assert result["bits_compared"] > alone["bits_compared"] > 0
    # A piece of 8 elements is 16 bytes; two vectors at once, as the tile has two heads.
    tile = result["blocks"]["lad.lad_tile"]
    assert tile["weights"] == 2 * (16 + 8 + 8) + 2 * 12 + 2 * (140 + 140) + 18 * 12
    read = 2 * tile["weights"] * 16
    assert result["bytes"]["weights_read"] == alone["bytes"]["weights_read"] == (2 + 3) * read
    assert result["cycles"] > alone["cycles"] > result["bytes"]["weights_read"] / 16


def test_the_same_without_checks(generated):
    checked, free = (result_of(generated(option)) for option in ("", "--check none"))
    assert checked["tokens"] == free["tokens"]
    assert checked["cycles_per_token"] == free["cycles_per_token"]


def test_products_are_the_float_ones_rounded(model):
    """Against float64, of vectors in one part and in two."""
    llama = open_model(model)[0]
    tile, rng = TileLlama(llama, 8, 16), np.random.default_rng(1)
    for index, layer in enumerate(llama.weights.layers):
        multiply = tile.products(index, layer)
        for name, (rows, columns) in (("wq", (12, 16)), ("wv", (12, 8)), ("down", (140, 12))):
            x = rng.standard_normal((3, rows)).astype(np.float32)
            y, w = multiply(name, x), getattr(layer, name).astype(float)
            assert y.shape == (3, columns) and y.dtype == np.float32
            bound = 12 * 2.0**-11 * (abs(x.astype(float)) @ abs(w))
            assert (abs(y - x.astype(float) @ w) <= bound).all()
            assert (y != x @ getattr(layer, name)).any()


def test_a_wrong_sum_is_found(generated, monkeypatch):
    zeros = lambda x, w: np.zeros((len(w), len(x)), np.float32)  # noqa: E731
    monkeypatch.setattr("sim.testbenches.lad.lad_tile.linear", zeros)
    status, out, err = generated(attention="none")
    assert (status, out) == (1, "") and "layer 0, token" in err and "matrix wq wk wv: " in err


@pytest.mark.parametrize(
    "model_of, wrong, where, field",
    [
        ("special_function_unit.layer_norm", lambda x, *_, rms: (x, False), "norm", "y"),
        ("vector_unit.vector_unit", lambda a, b, op: (a, a != a), "sum of two vectors", "y[0]"),
        ("rotary_encoding.rotary_encoding", lambda a, b, *_: (b, a), "positions", "a[0]"),
    ],
)
def test_a_wrong_operation_on_vectors_is_found(
    generated, monkeypatch, model_of, wrong, where, field
):
    monkeypatch.setattr(f"sim.testbenches.attention.{model_of}", wrong)
    status, out, err = generated(attention="none")
    assert (status, out) == (1, "") and f"layer 0, token 0: {where}: " in err
    assert f"field {field}, " in err


def test_norms_are_the_float_ones_rounded(model):
    """Of the model's length, in FP16 in and out; the gain is in the matrices that follow."""
    llama = open_model(model)[0]
    tile = TileLlama(llama, 8, 16, normed=True)
    x = np.random.default_rng(2).standard_normal((50, 12)).astype(np.float16)
    wide = x.astype(float)
    wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + llama.config.norm_eps)
    found = normalised(x, tile.norm)
    assert found.dtype == np.float16 and (abs(found - wanted) <= 1.3 * 2.0**-11 * abs(wanted)).all()
    layer = llama.weights.layers[0]
    gained = (layer.wq * layer.attn_norm[:, None]).astype(np.float16)
    first = tile.matrices[0][0][0][:16].reshape(16, -1)[:, :12]
    np.testing.assert_array_equal(first, gained.T)
    plain = TileLlama(llama, 8, 16)
    np.testing.assert_array_equal(plain.matrices[0][1][0], tile.matrices[0][1][0])
    assert tile.normalise(x, layer.ffn_norm) is x
    assert (plain.normalise(x, layer.ffn_norm) != x).any()


@pytest.mark.campaign
def test_without_special_functions(generated):
    """The host's norms, positions, sums and gated products."""
    units = {"vector_lanes": 0, "rotary_pairs": 0, "normed": 0}
    options = " ".join(f"--set {name}=0" for name in units)
    result = result_of(generated(options))
    assert result["mismatches"] == 0 and result["bits_compared"] > 0
    assert result["blocks"]["lad.lad_tile"] | units == result["blocks"]["lad.lad_tile"]


def test_refusals(generated):
    for option, message in (
        ("--set weights=100", "weights must be at least"),
        ("--set rotary_pairs=3", "rotary_pairs must be 0 or at least 4, of a head of the model"),
        ("--set normed=11", "normed must be 0 or at least 12"),
        ("--set vector_lanes=65", "vector_lanes must be between 0 and 64"),
        ("--check attention", "check must be all or none where one tile computes attention and"),
    ):
        status, out, err = generated(option)
        assert status == 2 and out == "" and message in err and err.count("\n") == 1


def test_positions_beyond_the_encoding_s_are_refused(model):
    config = open_model(model)[0].config
    p = dataclasses.replace(products.parameters(config, 16), positions=1 << 14)
    products.require_fit(p, config, 16, 8192)
    rule = "prompt and tokens must be at most the positions that the core encodes, 8192, not 8193"
    with pytest.raises(ParameterError, match=f"^{rule}$"):
        products.require_fit(p, config, 16, 8193)
    products.require_fit(dataclasses.replace(p, rotary_pairs=0), config, 16, 8193)


@pytest.mark.campaign
@pytest.mark.parametrize("attention", ["lad.lad_tile", "lad.lad_system"])
def test_a_token_of_the_real_model(call, smollm2, attention):
    """All 30 layers, attention and products on one tile, or on three and a fourth: every bit."""
    blocks = f"--attention {attention} --linear lad.lad_tile"
    result = result_of(
        call(cli.main, f"generate --gguf {smollm2} {blocks} --prompt Once --tokens 1 --json")
    )
    assert result["mismatches"] == 0 and result["bits_compared"] > 3e7
    rows = 30 * result["blocks"]["lad.lad_tile"]["weights"]
    assert result["bytes"]["weights_read"] == 128 * rows
    assert rows < result["cycles_per_token"][0] < 1.1 * rows
