"""Quantised models in the cache folder: made once, read again, and made anew if damaged."""

import dataclasses
import os

import numpy as np
import pytest

from golden.algorithms.kllm import store, tune
from golden.algorithms.kllm.activations import ActivationQuantizer
from golden.algorithms.kllm.calibration import calibration_samples
from golden.algorithms.kllm.model import QuantizedLlama
from golden.lm.commands import open_model
from golden.lm.model import Llama
from golden.lm.weights import INPUTS

TEXT = [72, 256, 13, 200]
SETTINGS = {"weight_bits": 2, "activation_bits": 2, "outliers": 1, "fit": "paper"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def stored(folder, tiny):
    """Calls :func:`quantized_model` on the tiny model; returns it and what it said."""
    model, tokenizer, _ = open_model(tiny)

    def call(**settings):
        said = []
        arguments = SETTINGS | settings
        found = store.quantized_model(model, tokenizer, progress=said.append, **arguments)
        return found, said

    return call


def assert_same(a: QuantizedLlama, b: QuantizedLlama):
    np.testing.assert_array_equal(a.hidden(TEXT), b.hidden(TEXT))
    assert_same_matrices(a, b)


def assert_same_matrices(a: QuantizedLlama, b: QuantizedLlama):
    for left, right in zip(a.matrices, b.matrices, strict=True):
        assert list(left) == list(INPUTS) == list(right)
        for name in left:
            for field in ("index", "codebook", "scale", "zero"):
                x, y = getattr(left[name], field), getattr(right[name], field)
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("bits", [2, 4, 5])
def test_made_once_then_read(stored, folder, bits):
    made, said = stored(weight_bits=bits)
    assert said == [f"quantising, once: fitting layer {n} of 3 …" for n in (1, 2, 3)]
    assert len(list(folder.iterdir())) == 1
    read, said = stored(weight_bits=bits)
    assert said == [] and read is not made
    assert_same(made, read)


def test_it_is_the_model_that_the_settings_say(stored, tiny):
    model, tokenizer, _ = open_model(tiny)
    samples = calibration_samples(tokenizer)
    options = {"fit": "fitted", "norms": "fused", "rotate": True, "attention": "quantised"}
    bits = {"weight_bits": 2, "activation_bits": 2, "bit_exact": True}
    expected = QuantizedLlama(model, samples, outliers=3, **bits, **options)
    for _ in range(2):  # fitted, then read
        assert_same(stored(outliers=3, **options)[0], expected)


def test_outliers_by_number_or_share():
    codebook = np.float16([-1, 1])
    assert ActivationQuantizer(codebook, 0.1).count(48) == 3
    assert ActivationQuantizer(codebook, 0.1, outliers=7).count(48) == 7


def test_each_setting_has_a_file_of_its_own(stored, folder):
    """Of the weights: outliers do not matter to them, a rotation and the way of fitting do."""
    options = [{}, {"outliers": 2}, {"fit": "fitted"}, {"norms": "fused"}]
    options += [{"norms": "fused", "rotate": True}, {"norms": "fused", "head": True}]
    files = []
    for settings in options:
        stored(**settings)
        files.append(len(list(folder.iterdir())))
    assert files == [1, 1, 2, 3, 4, 5]


def test_tuned_scales_have_a_file_for_all_that_they_depend_on(tiny, folder, monkeypatch):
    monkeypatch.setattr(tune, "STEPS", 2)
    model, tokenizer, _ = open_model(tiny)
    samples = calibration_samples(tokenizer, 4, 16)
    weights = model.weights
    bare = Llama(dataclasses.replace(weights, output=weights.output * np.float32(2)))
    options = [
        *({}, {"tuning": samples}, {"tuning": samples[:2]}, {"outlier_share": 0.2}),
        *({"attention": "quantised"}, {"fit": "paper"}, {"samples": samples[1:]}),
        *({"samples": samples[1:], "fit": "paper"}, {"model": bare}),
    ]
    made = []
    for own in options:
        settings = {
            "model": model,
            "samples": samples,
            "tuned": True,
            "tuning": samples[2:],
            "weight_bits": 2,
        } | own
        own_model, own_samples = settings.pop("model"), settings.pop("samples")
        before = set(folder.iterdir()) if folder.exists() else set()
        found = [QuantizedLlama(own_model, own_samples, cached=True, **settings) for _ in range(2)]
        made.append(set(folder.iterdir()) - before)
        assert_same_matrices(*found)
    # The first of each fit and samples makes the untuned weights' file too.
    assert [len(files) for files in made] == [2, 1, 1, 1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "other"])
def test_a_damaged_file_is_made_again(stored, folder, damage):
    made, _ = stored()
    path = next(folder.iterdir())
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "byte":
        data[len(data) // 3] ^= 1
    elif damage == "empty":
        data.clear()
    path.write_bytes(data)
    if damage == "other":
        with path.open("wb") as file:
            np.savez(file, matrices=np.zeros(3))
    again, said = stored()
    assert len(said) == 3
    assert_same(made, again)
    assert stored()[1] == []


def test_a_folder_that_cannot_be_written(stored, folder, monkeypatch):
    folder.write_text("a file")
    made, said = stored()
    assert len(said) == 3
    folder.unlink()
    assert_same(made, stored()[0])


def test_an_interrupt_leaves_no_file(stored, folder, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stored()
    assert os.listdir(folder) == []
