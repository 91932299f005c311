"""Perplexity: how well a model predicts a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from golden.attention import DecodeAttention, DenseAttention, Traffic
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
    policy: Callable[[int], DecodeAttention] = lambda layer: DenseAttention(),
    *,
    context: int = CONTEXT,
    progress: bool = False,
) -> Score:
    """Score ``tokens`` in windows of ``context``, each seen alone and all but its first predicted.

    ``policy(layer)`` gives a fresh attention for each layer and window. Needs two tokens. Logits
    are computed some rows at a time in float32 and their losses summed in float64.
    """
    if len(tokens) < 2:
        raise ValueError("perplexity needs two tokens at least")
    loss, predicted, traffic = 0.0, 0, Traffic()
    windows = [tokens[first : first + context] for first in range(0, len(tokens), context)]
    for number, window in enumerate(windows, 1):
        if len(window) < 2:
            continue
        attentions = [policy(layer) for layer in range(model.config.layers)]
        label = f"window {number} of {len(windows)}" if progress else None
        hidden = model.hidden(window, attentions, progress=label)
        targets = np.asarray(window[1:])
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
