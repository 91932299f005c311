"""Policies at a fixed context: quality and reads of the last queries of long windows.

The model runs once over each window with dense attention, in blocks of queries. Each policy then
gets the queries, keys and values of the dense prefix of every layer, and the model goes on from
there with that policy in every layer. So all policies predict the same tokens after the same
context, and what one costs is a paired difference that the windows' own difficulty leaves alone.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic
from golden.algorithms.baselines import rope_of
from golden.evaluation.policies import Policy
from golden.evaluation.tasks import Agreement, agreement
from golden.evaluation.windows import Window
from golden.lm.model import Llama

_SEEDS_OF_A_WINDOW = 1000
_ROWS = 64
"""Rows of logits that are in memory at a time, as float64."""


@dataclasses.dataclass(frozen=True)
class DenseRun:
    """A window, run with dense attention.

    prefix, queries
        For each layer, ``q`` [head, token, d], ``k`` and ``v`` [kv head, token, d]: of the tokens
        before the counted queries, and of these queries.
    log_p
        Logarithms of the probabilities of the next token, float32 [query, vocab].
    loss
        Mean negative log-likelihood of the counted tokens.
    """

    window: Window
    prefix: list[dict[str, np.ndarray]]
    queries: list[dict[str, np.ndarray]]
    log_p: np.ndarray
    loss: float

    @property
    def first(self) -> int:
        """Position of the first counted query."""
        return len(self.window.tokens) - 1 - self.window.queries


@dataclasses.dataclass(frozen=True)
class Score:
    """What a policy gave in one window.

    loss, dense
        Mean negative log-likelihood of the counted tokens, of the policy and of dense attention;
        NaN where the policy ran on the dense model's states.
    kl
        Mean over the queries of KL(dense || policy) of the next token's distribution, in nats.
    same
        Share of queries whose likeliest next token is dense attention's.
    right
        1 if each counted token is the likeliest, so that greedy decoding would write the text, or
        0; NaN as the losses.
    agreement
        Of two greedy continuations, the policy's and dense attention's; of :func:`run_free` alone.
    traffic
        Reads of K and V for the counted queries, rows shared by the heads of a group.
    alone
        The same where each query head reads for itself.
    row_bits
        Bits of an element in the dense attention that the policy's paper compares with.
    kept
        Tokens held in the cache at the end, averaged over layers and kv heads.
    figures
        Further counts of the algorithm, the prefix's among them where it was stepped through,
        averaged over the layers: a window's own, which a row has an error of.
    """

    loss: float
    dense: float
    kl: float
    same: float
    right: float
    agreement: Agreement | None
    traffic: Traffic
    alone: Traffic
    row_bits: int
    kept: float
    figures: dict[str, float]
    seconds: float


def run_dense(model: Llama, window: Window, before: DenseRun | None = None) -> DenseRun:
    """Run a window of N + 1 tokens, of which the last ``window.queries`` are predicted.

    The last query sees N tokens, itself among them. What the window has in common with the one
    `before` is not run again: questions on one text differ at its end alone.
    """
    fed, count = window.tokens[:-1], window.queries
    first, known = len(fed) - count, 0
    attentions = model.dense()
    seen: list[dict[str, list[np.ndarray]]] = [
        {name: [] for name in "qkv"} for _ in range(model.config.layers)
    ]
    if before is not None:
        same = [a == b for a, b in zip(fed[:first], before.window.tokens, strict=False)]
        known = same.index(False) if False in same else len(same)
        known = min(known, before.first)
    if before is not None and known:
        for attention, old, parts in zip(attentions, before.prefix, seen, strict=True):
            for name in "qkv":
                parts[name].append(old[name][:, :known])
            attention.prefill(*(old[name][:, :known] for name in "qkv"))

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if name in "qkv":
            seen[layer][name].append(array)

    hidden = model.hidden(fed[known:], attentions, start=known, observer=observer)
    log_p = _log_probabilities(model, hidden[first - known :])
    whole = [{n: np.concatenate(some, axis=1) for n, some in parts.items()} for parts in seen]
    prefix = [{name: array[:, :first] for name, array in layer.items()} for layer in whole]
    queries = [{name: array[:, first:] for name, array in layer.items()} for layer in whole]
    return DenseRun(window, prefix, queries, log_p, _loss(log_p, window))


def run_policy(
    policy: Policy,
    model: Llama,
    dense: DenseRun,
    *,
    loop: bool = True,
    number: int = 0,
    **defaults,
) -> Score:
    """Run a policy on the counted queries of a window.

    model
        The policy's, ``policy.model`` of the one that ran densely.
    loop
        Whether the policy's outputs reach the next layer and so the prediction. Otherwise each
        layer gets the dense model's queries, keys and values, and only reads are counted.
    number
        The window's: policies with a `seed` that their text does not give get another one in each
        window and layer.
    defaults
        Parameters for policies that have them.
    """
    started = time.perf_counter()
    attentions = _after_prefix(policy, model, dense, number, **defaults)
    counters = _counters(model, attentions)
    log_p = None
    if loop:
        first = dense.first
        hidden = model.hidden(dense.window.tokens[first:-1], attentions, start=first)
        log_p = _log_probabilities(model, hidden)
    else:
        for attention, seen in zip(attentions, dense.queries, strict=True):
            attention.sequence(seen["q"], seen["k"], seen["v"])
    return _score(dense, log_p, counters, model, started)


def run_free(
    policy: Policy,
    model: Llama,
    dense: DenseRun,
    reference: Sequence[int],
    decode: Callable[[list[int]], str],
    *,
    number: int = 0,
    **defaults,
) -> Score:
    """Let the model write as many tokens as a window has queries, greedily, under a policy.

    reference
        What it writes with dense attention: :func:`written` of the policy ``dense``.
    decode
        Text of token numbers. The other parameters are as in :func:`run_policy`.
    """
    started = time.perf_counter()
    attentions = _after_prefix(policy, model, dense, number, **defaults)
    counters = _counters(model, attentions)
    tokens = _greedy(model, attentions, dense)
    score = _score(dense, None, counters, model, started)
    return dataclasses.replace(score, agreement=agreement(reference, tokens, decode))


def written(policy: Policy, model: Llama, dense: DenseRun, **defaults) -> list[int]:
    """The tokens that the model writes after a window's prefix under a policy."""
    return _greedy(model, _after_prefix(policy, model, dense, 0, **defaults), dense)


def _greedy(model: Llama, attentions: Sequence[DecodeAttention], dense: DenseRun) -> list[int]:
    tokens = [dense.window.tokens[dense.first]]
    for place in range(dense.window.queries):
        hidden = model.hidden(tokens[-1:], attentions, start=dense.first + place)
        tokens.append(int(model.logits(hidden).argmax()))
    return tokens[1:]


def _after_prefix(
    policy: Policy, model: Llama, dense: DenseRun, number: int, **defaults
) -> Sequence[DecodeAttention]:
    """The layers' attentions after the prefix, which a quantised model reads itself."""
    if policy.quantises_products:
        fresh = model.dense()
        model.hidden(dense.window.tokens[: dense.first], fresh)
        return fresh
    defaults |= {"prompt": dense.first}
    options = {"seed": number * _SEEDS_OF_A_WINDOW, "rope": rope_of(model)} | defaults
    attentions = model.attentions(lambda layers: policy.attentions(layers, **options))
    for attention, seen in zip(attentions, dense.prefix, strict=True):
        attention.prefill(seen["q"], seen["k"], seen["v"])
    return attentions


def _counters(model: Llama, attentions: Sequence[DecodeAttention]) -> list["_Counter"]:
    """Counters of the layers that see all tokens: others read the same under every policy."""
    return [
        _Counter(attention)
        for layer, attention in enumerate(attentions)
        if model.config.window(layer) is None
    ]


class _Counter:
    """What an attention has read since."""

    def __init__(self, attention: DecodeAttention) -> None:
        self.attention = attention
        self._before = copy.copy(attention.traffic), copy.copy(attention.alone)

    @property
    def shared(self) -> Traffic:
        return self.attention.traffic.since(self._before[0])

    @property
    def alone(self) -> Traffic | None:
        before = self._before[1]
        if self.attention.alone is None:
            return None
        return self.attention.alone.since(Traffic() if before is None else before)


def _score(dense: DenseRun, log_p, counters: list[_Counter], model: Llama, started: float) -> Score:
    shared, alone = Traffic(), Traffic()
    group = model.config.heads // model.config.kv_heads
    for counter in counters:
        shared.add(counter.shared)
        of_heads = counter.alone
        # Where the heads of a group read the same, each reads what they share.
        alone.add(counter.shared.times(group) if of_heads is None else of_heads)
    loss = kl = same = right = float("nan")
    if log_p is not None:
        loss = _loss(log_p, dense.window)
        kl = float(np.mean(_divergence(dense.log_p, log_p)))
        likeliest = log_p.argmax(axis=-1)
        same = float(np.mean(likeliest == dense.log_p.argmax(axis=-1)))
        right = float((likeliest == dense.window.tokens[-dense.window.queries :]).all())
    figures: dict[str, list[float]] = {}
    for counter in counters:
        for name, value in counter.attention.figures().items():
            figures.setdefault(name, []).append(value)
    return Score(
        loss=loss,
        dense=dense.loss if log_p is not None else float("nan"),
        kl=kl,
        same=same,
        right=right,
        agreement=None,
        traffic=shared,
        alone=alone,
        row_bits=counters[0].attention.row_bits,
        kept=float(np.mean([c.attention.rows for c in counters])) / model.config.kv_heads,
        figures={name: float(np.mean(values)) for name, values in figures.items()},
        seconds=time.perf_counter() - started,
    )


def _log_probabilities(model: Llama, hidden: np.ndarray) -> np.ndarray:
    """Logarithms for the next token, float32 [query, vocab], summed in float64."""
    parts = []
    for first in range(0, len(hidden), _ROWS):
        logits = model.logits(hidden[first : first + _ROWS]).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        parts.append(logits.astype(np.float32))
    return np.concatenate(parts)


def _loss(log_p: np.ndarray, window: Window) -> float:
    targets = np.asarray(window.tokens[-window.queries :])
    return -float(np.mean(log_p[np.arange(len(targets)), targets], dtype=np.float64))


def _divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p || q) in nats, [query], from logarithms [query, vocab]."""
    return np.array(
        [np.sum(np.exp(a, dtype=np.float64) * (a - b)) for a, b in zip(p, q, strict=True)]
    )
