"""Texts that KLLM's codebooks are fitted to (KLLM, section V-A)."""

import os
from collections.abc import Sequence

import numpy as np

from golden import InputError
from golden.algorithms.attention import DenseAttention
from golden.lm.text import default_text, many_subjects, sampled_prose
from golden.lm.tokenizer import Tokenizer


def calibration_samples(
    tokenizer: Tokenizer, samples: int = 32, length: int = 128, evaluated: str = ""
) -> list[list[int]]:
    """Runs of tokens to calibrate on, none of them in the text that is evaluated.

    Half of them are of ``default_text``, evenly spread over its second half, or over what follows
    `evaluated` if that reaches further; half of ``many_subjects``: of as many tokens, that makes
    weights' errors in three products of layer 14 18 to 29 % smaller on a text of another subject,
    and 7 to 12 % larger on the reference. [V-A] has 16 samples. Fitted to 32 x 256 tokens, products
    of three layers err up to a quarter less on other tokens than fitted to 16 x 128, and to
    64 x 256 a few percent less again; 32 x 128 takes a quarter of that time.

    :raises InputError: if too little of the texts is left.
    """
    text = default_text()
    start = len(text) // 2
    at = text.find(evaluated[:_FOUND]) if evaluated else -1
    if at >= 0:
        # Cut inside a character, the evaluated text ends differently.
        start = max(start, at + len(os.path.commonprefix([text[at:], evaluated])))
    half = samples // 2
    return [
        *_spread(tokenizer, samples - half, length, text, start, evaluated),
        *_spread(tokenizer, half, length, many_subjects(), 0, evaluated),
    ]


def tuning_samples(
    tokenizer: Tokenizer, samples: int = 96, length: int = 128, evaluated: str = ""
) -> list[list[int]]:
    """Runs of tokens to tune scales on: a third as for :func:`calibration_samples`, the others of a
    text that the language model itself made."""
    known = calibration_samples(tokenizer, samples // 3, length, evaluated)
    more = _spread(tokenizer, samples - len(known), length, sampled_prose(), 0, evaluated)
    return [*known, *more]


def _spread(
    tokenizer: Tokenizer, samples: int, length: int, text: str, start: int, evaluated: str
) -> list[list[int]]:
    """Samples evenly spread over `text` from character `start` on."""
    # Paragraphs are repeated: of four candidates for each sample, those that are not are left.
    starts = start + np.arange(4 * samples) * (len(text) - start) // max(4 * samples, 1)
    evaluated_runs, encoded = _runs(evaluated), []
    for first in starts:
        # A start inside a word would make rare tokens.
        end = min(int(first) + 16 * length, len(text))
        at = text.find(" ", first, end)
        tokens = tokenizer.encode(text[at:end], length) if at >= 0 else []
        if len(tokens) == length and not _runs(tokenizer.decode(tokens)) & evaluated_runs:
            encoded.append(tokens)
    if len(encoded) < samples:
        raise InputError(
            f"the text is evaluated up to character {start} of {len(text)}: too little is left"
            f" for {samples} x {length} tokens to calibrate on"
        )
    return [encoded[number * len(encoded) // samples] for number in range(samples)]


def _runs(text: str) -> set[tuple[str, ...]]:
    """All runs of 12 words."""
    words = text.split()
    return {tuple(words[first : first + 12]) for first in range(len(words) - 11)}


_FOUND = 200
"""Characters by which an evaluated text is found in the one to calibrate on."""


def evenly(samples: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
    """At most `count` of the samples, evenly spread."""
    return list(samples[:: -(-len(samples) // count)])


class SeparateSamples:
    """Dense attention over concatenated samples, each of which attends to itself only.

    Replaces a ``DecodeAttention`` where all tokens are processed at once. Positions count on across
    samples; rotary encoding is relative, so that has no effect.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        ends = np.cumsum(self._lengths)
        parts = [slice(end - length, end) for length, end in zip(self._lengths, ends, strict=True)]
        rows = [DenseAttention().sequence(q[:, part], k[:, part], v[:, part]) for part in parts]
        return np.concatenate(rows, axis=1)
