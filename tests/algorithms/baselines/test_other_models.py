"""Baselines that replace matrix products, on models with biases and with norms of products."""

import numpy as np
import pytest

from golden.algorithms.baselines.round_to_nearest import RoundToNearestLlama
from golden.algorithms.baselines.smoothquant import SmoothQuantLlama
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]
SAMPLES = [[7, 31, 256, 90, 4], [12, 257, 88]]
FLOAT = {"weight_bits": None, "activation_bits": None}


@pytest.fixture(scope="module", params=["qwen2", "gemma3"])
def model(request, tmp_path_factory):
    sizes, arch = SIZES | {"sliding_window": 6}, request.param
    path = tmp_path_factory.mktemp(arch) / "tiny.gguf"
    return Llama(
        read_weights(
            GGUFFile(write_gguf(path, random_tensors(1, sizes, arch), sizes=sizes, arch=arch))
        )
    )


def logits(model):
    return model.logits(model.hidden(TEXT))


@pytest.mark.parametrize("kind", ["rtn", "rotated", "smoothquant"])
def test_without_rounding_nothing_changes(model, kind):
    made = {
        "rtn": lambda: RoundToNearestLlama(model, **FLOAT),
        "rotated": lambda: RoundToNearestLlama(model, rotate=True, **FLOAT),
        "smoothquant": lambda: SmoothQuantLlama(model, SAMPLES, **FLOAT),
    }[kind]
    if kind == "rotated" and model.config.normed:
        with pytest.raises(ValueError, match="cannot be rotated where what is added has a norm"):
            made()
        return
    np.testing.assert_allclose(logits(made()), logits(model), rtol=2e-3, atol=2e-3)


def test_eight_bits_are_near(model):
    exact = logits(model)
    error = np.abs(logits(RoundToNearestLlama(model, weight_bits=8, activation_bits=8)) - exact)
    assert 0 < error.mean() < 0.05 * np.abs(exact).mean()
