"""A model whose queries, keys and values have biases, which are added in floats."""

import numpy as np
import pytest

from golden.algorithms.kllm.fold import FoldedLlama, rotation
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.kllm.weight_store import weights_key
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama, in_memory
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]
ONE = SIZES | {"layers": 1}
SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88], [3, 3, 250, 17, 61, 110]]


def written(path, tensors, arch="qwen2", **sizes):
    path = write_gguf(path, tensors, sizes=SIZES | sizes, arch=arch)
    return Llama(read_weights(GGUFFile(path)))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen2") / "tiny.gguf"
    return written(path, random_tensors(arch="qwen2", sizes=ONE), layers=1)


@pytest.mark.parametrize("rotate", [False, True, rotation(SIZES["dim"])])
def test_folding_changes_nothing(model, rotate):
    expected = model.logits(model.hidden(TEXT))
    folded = FoldedLlama(model, rotate)
    found = folded.logits(folded.hidden(TEXT))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"norms": "fused"}, {"bit_exact": True}])
def test_six_bits_are_near_the_float_model(model, options):
    """Logits of a model without the biases are five times as far away."""
    six = {"weight_bits": 6, "activation_bits": 6, "fit": "paper", "outlier_share": 0.1}
    quantised = QuantizedLlama(model, SAMPLES, **six, **options)
    exact = model.logits(model.hidden(TEXT))
    error = np.abs(quantised.logits(quantised.hidden(TEXT)) - exact).mean()
    other = in_memory(model)
    for layer in other.weights.layers:
        layer.biases.clear()
    without = np.abs(other.logits(other.hidden(TEXT)) - exact).mean()
    assert error < 0.2 * without


def test_kept_weights_depend_on_the_biases(model, tmp_path):
    tensors = random_tensors(arch="qwen2", sizes=ONE)
    same = written(tmp_path / "a.gguf", tensors, layers=1)
    tensors["blk.0.attn_v.bias"] = tensors["blk.0.attn_v.bias"] + 1
    other = written(tmp_path / "b.gguf", tensors, layers=1)
    keys = [weights_key(made, SAMPLES, 4, "layers") for made in (model, same, other)]
    assert keys[0] == keys[1] != keys[2]


def test_other_layers_are_refused(tmp_path):
    gemma = written(tmp_path / "g.gguf", random_tensors(arch="gemma3"), "gemma3", sliding_window=4)
    with pytest.raises(ValueError, match="the model's layers must be like Llama's, without norms"):
        QuantizedLlama(gemma, SAMPLES, fit="paper")
    with pytest.raises(ValueError, match="cannot be rotated where what is added has a norm"):
        FoldedLlama(gemma, True)
    folded = FoldedLlama(gemma, False)
    expected = gemma.logits(gemma.hidden(TEXT))
    np.testing.assert_allclose(folded.logits(folded.hidden(TEXT)), expected, rtol=1e-3, atol=1e-3)
