# amaranth: UnusedElaboratable=no
"""A language model's matrix products on LAD's tile, beside its attention: bits, bytes, faults."""

import json

import numpy as np
import pytest

from golden.algorithms.lad.tile_model import TileLlama
from golden.lm.commands import open_model
from sim import __main__ as cli
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
SETTINGS |= {"multiply_stages": 1, "add_stages": 1, "bounds": "80_48_24_8"}


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


def test_refusals(generated):
    for option, message in (
        ("--set weights=100", "weights must be at least"),
        ("--check attention", "check must be all or none where one tile computes attention and"),
    ):
        status, out, err = generated(option)
        assert status == 2 and out == "" and message in err and err.count("\n") == 1


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
