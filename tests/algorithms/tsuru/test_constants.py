"""Constants of a model's keys against sums by hand, and the file that keeps them."""

import numpy as np
import pytest

from golden import InputError
from golden.algorithms.tsuru import (
    constant_samples,
    kept_key_constants,
    key_constants,
    prompt_constants,
)
from golden.download import cache_folder
from golden.lm.commands import open_model
from golden.lm.text import default_text

LENGTH = 30


@pytest.fixture(scope="module")
def opened(tiny):
    model, tokenizer, _ = open_model(tiny)
    return model, tokenizer, constant_samples(tokenizer, LENGTH)


def test_samples_are_the_end_of_the_text(opened):
    _, tokenizer, samples = opened
    # This tokenizer puts nothing before a text.
    assert [len(sample) for sample in samples] == [LENGTH, LENGTH]
    assert samples[0] + samples[1] == tokenizer.encode(default_text())[-2 * LENGTH :]
    with pytest.raises(InputError, match="tsuru: constants for 10000000 positions need 2 times"):
        constant_samples(tokenizer, 10**7)


def test_equals_sums_by_hand(opened):
    model, _, samples = opened
    seen: dict = {}
    for sample in samples:
        model.hidden(
            sample,
            model.dense(),
            observer=lambda layer, name, x: seen.setdefault((layer, name), []).append(x),
        )
    found = key_constants(model, samples)
    assert len(found) == model.config.layers
    for layer, constants in enumerate(found):
        # The first four rows of a sample do not count.
        k, q = (np.concatenate([x[:, 4:] for x in seen[layer, n]], axis=1) for n in "kq")
        np.testing.assert_allclose(constants.mean, k.mean(axis=1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(constants.deviation, k.std(axis=1), rtol=1e-4)
        group = q.reshape(len(k), -1, *q.shape[1:])
        np.testing.assert_allclose(constants.power, np.square(group).mean(axis=(1, 2)), rtol=1e-4)


def test_they_are_kept(opened, tmp_path, monkeypatch):
    model, _, samples = opened
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path))
    runs, hidden = [], type(model).hidden

    def counted(*arguments, **options):
        runs.append(arguments)
        return hidden(*arguments, **options)

    monkeypatch.setattr(type(model), "hidden", counted)
    expected = key_constants(model, samples)
    assert len(runs) == 2
    for runs_by_then in (4, 4):
        found = kept_key_constants(model, samples)
        assert len(runs) == runs_by_then
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a.mean, b.mean)
            np.testing.assert_array_equal(a.power, b.power)
    (file,) = cache_folder().iterdir()
    file.write_bytes(b"damaged")
    kept_key_constants(model, samples)
    kept_key_constants(model, samples)
    assert len(runs) == 6
    kept_key_constants(model, samples[:1])  # other samples are other constants
    assert len(runs) == 7


def test_constants_of_a_prompt():
    """A row more has the medians, so channels in which few rows agree keep their balance."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((4, 10, 5)).astype(np.float32)
    k = (rng.standard_normal((2, 10, 5)) * [1, 30, 2, 3, 1] + 7).astype(np.float32)
    k[0, 4:, 3] = 7
    found = prompt_constants(q, k)
    rows = k[:, 4:].astype(np.float64)
    np.testing.assert_allclose(found.mean, rows.mean(axis=1), rtol=1e-6)
    variance = rows.var(axis=1)
    power = np.square(q[:, 4:].astype(np.float64)).reshape(2, 2, 6, 5).mean(axis=(1, 2))
    for got, of in ((np.square(found.deviation), variance), (found.power, power)):
        one_more = (6 * of + np.median(of, axis=1, keepdims=True)) / 7
        np.testing.assert_allclose(got, one_more, rtol=1e-5)
    assert found.deviation[0, 3] > 0.2
    for few in (1, 4, 5):
        nothing = prompt_constants(q[:, :few], k[:, :few])
        assert not nothing.mean.any() and (nothing.balance() == 1).all()
