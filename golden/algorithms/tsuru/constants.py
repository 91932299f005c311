"""What keys of a model are like, from dense runs over texts, kept in the cache folder."""

import zipfile
from collections.abc import Sequence

import numpy as np

from golden import InputError
from golden.algorithms.kllm.weight_store import weights_key
from golden.algorithms.tsuru.row_codes import KeyConstants
from golden.download import cache_folder
from golden.files import replacing
from golden.lm.model import Llama
from golden.lm.text import default_text
from golden.lm.tokenizer import Tokenizer

SAMPLES = 2
_SINKS = 4
"""Rows at the start of a sample that do not count: keys of the first are of another kind."""


def constant_samples(tokenizer: Tokenizer, length: int) -> list[list[int]]:
    """Tokens for :func:`key_constants`: SAMPLES runs of that length, the end of ``default_text``.

    :raises InputError: if the text is shorter than that.
    """
    first, tokens = tokenizer.encode(""), tokenizer.encode(default_text())
    body = length - len(first)
    if body < 1 or len(tokens) - len(first) < SAMPLES * body:
        raise InputError(
            f"tsuru: constants for {length} positions need {SAMPLES} times as many tokens of text,"
            f" of which there are {len(tokens)}"
        )
    return [[*first, *tokens[len(tokens) - n * body :][:body]] for n in range(SAMPLES, 0, -1)]


def key_constants(model: Llama, samples: Sequence[Sequence[int]]) -> list[KeyConstants]:
    """Constants of each layer that sees all tokens, over all positions of the samples' tokens.

    A sample should be as long as the context in which they are used: RoPE turns slow channels so
    little that their mean depends on the positions that have been seen.
    """
    layers = [n for n in range(model.config.layers) if model.config.window(n) is None]
    sums = {layer: _Sums() for layer in layers}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in sums and name in "qk":
            sums[layer].add(name, array)

    for sample in samples:
        model.hidden(list(sample), model.dense(), observer=observer)
    return [sums[layer].constants(model.config.kv_heads) for layer in layers]


def prompt_constants(q: np.ndarray, k: np.ndarray) -> KeyConstants:
    """Constants of a layer that are known of its prompt alone.

    Few rows may agree in a channel by chance, so one row more is counted, whose variances and
    powers are the median of a head's channels. Fewer than two rows after the first four say
    nothing: the mean is 0 then, and channels are balanced as they are.

    q, k
        The prompt's, positions encoded, [head, token, d] and [kv head, token, d].
    """
    rows = k.shape[1] - _SINKS
    if rows < 2:
        ones = np.ones_like(k[:, 0], np.float32)
        return KeyConstants(0 * ones, ones, ones)
    sums = _Sums()
    for name, array in (("q", q), ("k", k)):
        sums.add(name, array)
    found = sums.constants(len(k))
    variance, power = (
        (rows * x + np.maximum(np.median(x, axis=1, keepdims=True), np.finfo(np.float32).tiny))
        / (rows + 1)
        for x in (np.square(found.deviation), found.power)
    )
    return KeyConstants(found.mean, np.sqrt(variance), power)


class _Sums:
    """Sums over the tokens of q or k [head, token, d], of them and of their squares."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}

    def add(self, name: str, array: np.ndarray) -> None:
        x = array[:, _SINKS:].astype(np.float64)
        new = x.shape[1], x.sum(axis=1), np.square(x).sum(axis=1)
        old = self._sums.get(name, (0, 0.0, 0.0))
        self._sums[name] = old[0] + new[0], old[1] + new[1], old[2] + new[2]

    def constants(self, kv_heads: int) -> KeyConstants:
        number, first, second = self._sums["k"]
        mean = first / number
        variance = np.maximum(second / number - np.square(mean), 0)
        number, _, second = self._sums["q"]
        power = (second / number).reshape(kv_heads, -1, second.shape[1]).mean(axis=1)
        return KeyConstants(*(x.astype(np.float32) for x in (mean, np.sqrt(variance), power)))


def kept_key_constants(model: Llama, samples: Sequence[Sequence[int]]) -> list[KeyConstants]:
    """The same, computed once and kept; a folder that cannot be written is no error."""
    path = cache_folder() / f"key_constants_{weights_key(model, samples, 0, 'layers')}.npz"
    try:
        with open(path, "rb") as data, np.load(data, allow_pickle=False) as file:
            return [KeyConstants(*layer) for layer in file["constants"]]
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    found = key_constants(model, samples)
    arrays = np.array([[each.mean, each.deviation, each.power] for each in found])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as target:
            np.savez(target, constants=arrays)
    except OSError:
        pass
    return found
