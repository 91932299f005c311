"""Runs on the language model that studies of an algorithm's quality ask for."""

import dataclasses
from collections.abc import Sequence

from golden.evaluation.measure import Measurement
from golden.lm.model import Llama
from golden.lm.perplexity import CONTEXT
from golden.lm.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model and tokens of a text, opened for the studies.

    about
        Name and SHA-256 of the model and name of the text, for the pages.
    tokens, all_tokens
        Tokens that studies run on, and the tokens of the study that needs most.
    samples, tuning
        Token sequences to calibrate with, and to tune scales on.
    """

    model: Llama
    tokenizer: Tokenizer
    about: dict
    tokens: Sequence[int]
    all_tokens: Sequence[int]
    samples: Sequence[Sequence[int]]
    tuning: Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One policy on the first `tokens` tokens of the text, in windows of `context`.

    The first `prompt` tokens of each window are given, the others are predicted.
    """

    policy: str
    tokens: int
    prompt: int = 1
    context: int = CONTEXT


Results = dict[Run, Measurement]
