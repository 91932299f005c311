"""Perplexity: how well a model predicts a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic
from golden.lm.model import Llama

CONTEXT = 2048
"""Tokens of one window, as the usual tables of perplexities have it."""

_LOGIT_ROWS = 256


@dataclass(frozen=True)
class Score:
    """exp of the mean negative log-likelihood over ``predicted`` tokens, and the cache traffic."""

    perplexity: float
    predicted: int
    traffic: Traffic


def perplexity(
    model: Llama,
    tokens: Sequence[int],
    fresh: Callable[[], Sequence[DecodeAttention]] | None = None,
    *,
    context: int = CONTEXT,
    prompt: int = 1,
    progress: str | None = None,
) -> Score:
    """Score ``tokens`` in windows of ``context``, each seen alone.

    The first ``prompt`` tokens of a window (at least one) are given, the others predicted; a window
    without others is left out. ``fresh()`` gives new attentions of all layers for a window, by
    default the model's own.
    ``progress`` names a progress bar on stderr. Logits are computed some rows at a time in float32
    and their losses summed in float64. Raises ``ValueError`` when no token is predicted.
    """
    prompt = max(prompt, 1)
    if min(len(tokens), context) <= prompt:
        raise ValueError(f"perplexity needs {prompt + 1} tokens at least")
    loss, predicted, traffic = 0.0, 0, Traffic()
    windows = [tokens[first : first + context] for first in range(0, len(tokens), context)]
    for number, window in enumerate(windows, 1):
        if len(window) <= prompt:
            continue
        attentions = (fresh or model.dense)()
        label = progress
        if progress is not None and len(windows) > 1:
            label = f"{progress}, window {number} of {len(windows)}"
        hidden = model.hidden(window, attentions, progress=label)[prompt - 1 :]
        targets = np.asarray(window[prompt:])
        for first in range(0, len(targets), _LOGIT_ROWS):
            some = targets[first : first + _LOGIT_ROWS]
            logits = model.logits(hidden[first : first + len(some)])
            top = logits.max(axis=-1)
            total = np.exp(logits - top[:, None]).sum(axis=-1, dtype=np.float64)
            chosen = logits[np.arange(len(some)), some]
            loss += float(np.sum(np.log(total) + top - chosen))
        predicted += len(targets)
        for attention in attentions:
            traffic.add(attention.traffic)
    return Score(float(np.exp(loss / predicted)), predicted, traffic)
