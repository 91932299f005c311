"""SpAtten: cascade token pruning, local value pruning and progressive quantisation.

Source: Wang et al., "SpAtten: Efficient Sparse Attention Architecture with Cascade Token and Head
Pruning", HPCA 2021, arXiv:2012.09852. The schedule over layers, the share of values and the bits
come from a workload that the authors released (github.com/mit-han-lab/spatten-llm), for GPT-2
medium on WikiText-2, by its name without loss; their models are fine-tuned. For ToPick's comparison
(Fig. 9: 12 bits, perplexity + 0.5) give ``first_bits=12,value_bits=12`` and choose ``keep``.

Choices where the paper leaves it open, and what differs:

- Heads are not pruned (the workload has 16 of 16 heads, then 13 and 10), nothing is fine-tuned, and
  queries are not rounded (16 bits there).
- A token's importance is the sum of the attention probabilities that it had in all steps until now,
  over all heads and layers; in the present step, over the layers before. Token by token, that is
  exact. Where a layer takes a run of tokens before the next layer does, it cannot know what itself
  and later layers give in that run, only what they gave before: the prompt should be a run alone.
- A pruned token is left out of all later layers of a step. The next step begins with all tokens, as
  in the workload: nothing is evicted. The newest token is always kept, for its row is at hand.
- The newest tokens had the fewest queries, so that sums prune them first. Without fine-tuning that
  ruins the model: SmolLM2's perplexity of 64 tokens after 448, 10.5, becomes 290 (``recent=0``).
  The authors' release for Llama keeps as many of the newest tokens as important ones, as ``recent``
  of a half does here: 12.2.
- Probabilities of the values that are left out are not given to the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic, floats, grouped, softmax
from golden.algorithms.topick.decide import leading_bits
from golden.algorithms.topick.quantise import QuantisedCache

_QUERY_BLOCK = 128

_STEPS = ((0, 0.0), (2 / 24, 0.2), (3 / 24, 0.4), (5 / 24, 0.8), (11 / 24, 1.4))
"""Depth from which on a layer prunes this multiple of the average share of tokens."""

_ROUNDING = 1e-9
"""So that 0.3 of 10 is 3."""


def kept_share(layer: int, layers: int, keep: float) -> float:
    """Share of tokens that a layer keeps; the 24 layers of GPT-2 medium keep ``keep`` on average.

    >>> [round(1024 * kept_share(layer, 24, 0.5)) for layer in (0, 2, 4, 8, 23)]
    [1024, 922, 819, 614, 307]

    """
    weight = [weight for start, weight in _STEPS if start <= layer / layers + _ROUNDING][-1]
    return 1 - (1 - keep) * weight


class Cascade:
    """What the layers of a sequence share: importances, and the kept tokens of a run of queries.

    A layer takes both, [queries, tokens], with ``enter`` and hands them on with ``leave``.
    ``total`` [tokens] are the importances without the runs that are still under way.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.total = np.zeros(0)
        self._runs: dict[tuple[int, int], tuple[int, np.ndarray, np.ndarray]] = {}

    def enter(self, layer: int, start: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """What the layers before gave each token in this run until each query, and which they kept.

        :raises ValueError: if the layer before did not take the same run, from position ``start``.
        """
        if layer == 0:
            kept = np.tril(np.ones((queries, start + queries), bool), start)
            return np.zeros(kept.shape), kept
        reached, importance, kept = self._runs.pop((start, queries), (-1, *np.zeros((2, 1))))
        if reached != layer - 1:
            raise ValueError(f"layer {layer} must take the same tokens as the layer before it")
        return importance, kept

    def leave(self, layer: int, start: int, importance: np.ndarray, kept: np.ndarray) -> None:
        """The same for the next layer."""
        if layer < self.layers - 1:
            self._runs[start, len(kept)] = layer, importance, kept
        else:
            self.add(importance[-1])

    def add(self, given: np.ndarray) -> None:
        """Add what a run gave each token."""
        new = np.zeros(max(len(given), len(self.total)))
        new[: len(self.total)] = self.total
        new[: len(given)] += given
        self.total = new


class SpAttenAttention(DecodeAttention):
    """Attention over the tokens that no earlier layer has pruned, with the likeliest values.

    keep
        Share of tokens whose keys are read, on average over the layers (``kept_share``); above 2/7.
    values
        Share of the kept tokens whose values a head reads: the largest probabilities'.
    bits, first_bits
        A key is read in its first bits; the keys of a query head whose largest probability is then
        below ``confidence`` are read in all ``bits``. Equal: all at once.
    value_bits
        Bits of a value, at most ``bits``.
    recent
        Share of the tokens that a layer keeps for being the newest, not for their importance.
    prompt
        Tokens at the start that are attended to densely, in all bits.
    calibration, headroom
        Options of the scales (``QuantisedCache``).
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.
    cascade, layer
        Shared by the layers of a sequence; without them it is a model of one layer.

    whole, read
        What the last block of queries read: whether a query read keys in all bits, ``bool[kv heads,
        group, queries]``, and the values that it read, ``bool[kv heads, group, queries, tokens]``.

    Traffic is in bytes of the codes; extra bits of keys and values are read once for a group if any
    of its query heads needs them, and ``alone`` counts each head's.
    """

    def __init__(
        self,
        keep: float = 0.5,
        values: float = 0.3,
        bits: int = 12,
        first_bits: int = 8,
        confidence: float = 0.05,
        value_bits: int = 8,
        recent: float = 0.5,
        prompt: int = 0,
        calibration: int = 64,
        headroom: float = 1.25,
        scale: float | None = None,
        cascade: Cascade | None = None,
        layer: int = 0,
    ) -> None:
        super().__init__()
        self.alone: Traffic = Traffic()
        if not 2 / 7 < keep <= 1:
            raise ValueError(f"keep must be above 2/7, where the last layer keeps none, not {keep}")
        if not 0 < values <= 1:
            raise ValueError(f"values must be above 0 and at most 1, not {values}")
        if not 2 <= bits <= 16:
            raise ValueError(f"bits must be between 2 and 16, not {bits}")
        for name, value in (("first_bits", first_bits), ("value_bits", value_bits)):
            if not 1 <= value <= bits:
                raise ValueError(f"{name} must be between 1 and bits, {bits}, not {value}")
        if not 0 <= recent <= 1:
            raise ValueError(f"recent must be between 0 and 1, not {recent}")
        if prompt < 0:
            raise ValueError(f"prompt must be at least 0, not {prompt}")
        if calibration < 1:
            raise ValueError(f"calibration must be at least 1, not {calibration}")
        if not 1 <= headroom < np.inf:
            raise ValueError(f"headroom must be a finite number of at least 1, not {headroom}")
        self._cascade = Cascade(1) if cascade is None else cascade
        self._layer, self._share = layer, kept_share(layer, self._cascade.layers, keep)
        self._values, self._confidence = values, confidence
        self._bits, self._first_bits, self._value_bits = bits, first_bits, value_bits
        self._recent, self._prompt, self._scale = recent, prompt, scale
        self._cache = QuantisedCache(bits, calibration, headroom)
        self.row_bits = bits
        self.whole, self.read = np.zeros((0, 0, 0), bool), np.zeros((0, 0, 0, 0), bool)

    @classmethod
    def for_layers(cls, parameters: Sequence[Mapping[str, Any]]) -> list[Self]:
        cascade = Cascade(len(parameters))
        return [cls(**p, cascade=cascade, layer=layer) for layer, p in enumerate(parameters)]

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """A run of tokens, in blocks of queries; more may follow."""
        q, k, v = floats(q, k, v)
        grouped(q, len(k))  # raises an error before anything is stored
        split = min(max(self._prompt - len(self._cache), 0), q.shape[1])
        o = np.empty_like(q)
        if split:
            given = self._run(q[:, :split], k[:, :split], v[:, :split], None, o[:, :split])
            self._cascade.add(given.sum(axis=0))
        if split < q.shape[1]:
            start, queries = len(self._cache), q.shape[1] - split
            importance, kept = self._cascade.enter(self._layer, start, queries)
            kept = self._pruned(importance.copy(), kept)
            given = self._run(q[:, split:], k[:, split:], v[:, split:], kept, o[:, split:])
            self._cascade.leave(self._layer, start, importance + given.cumsum(axis=0), kept)
        self.rows = len(k) * len(self._cache)
        # One accumulator of each token for all layers, and the scales.
        self.state_bytes = 8 * len(k) + (4 * len(self._cache) if self._layer == 0 else 0)
        return o

    def _pruned(self, importance: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Tokens of `kept` [queries, tokens] that this layer keeps too."""
        queries, tokens = kept.shape
        newest = np.arange(tokens - queries, tokens)
        number = np.maximum(np.floor(self._share * (newest + 1) + _ROUNDING), 1)
        if (number >= kept.sum(axis=1)).all():
            return kept
        importance[:, : len(self._cascade.total)] += self._cascade.total
        scores = np.where(kept, importance, -np.inf)
        recent = np.maximum(np.floor(self._recent * number + _ROUNDING), 1)
        scores[kept & (np.arange(tokens) > (newest - recent)[:, None])] = np.inf
        return _largest(scores, number)  # no more than are kept, since shares fall with depth

    def _run(self, q, k, v, kept: np.ndarray | None, o: np.ndarray) -> np.ndarray:
        """Store a run's rows and attend, to all tokens where ``kept`` is None; fills ``o``.

        Returns the probabilities that each query gave, summed over heads, [queries, tokens].
        """
        queries, start = q.shape[1], len(self._cache)
        dense = kept is None
        given = np.zeros((1 if dense else queries, start + queries))
        first = 0
        while first < queries:
            block = slice(first, first + _QUERY_BLOCK)
            first += self._cache.append(k[:, block], v[:, block])
            block, end = slice(block.start, first), start + first
            if kept is None:
                mask = np.tril(np.ones((first - block.start, end), bool), start + block.start)
            else:
                mask = kept[block, :end]
            o[:, block], p = self._attend(q[:, block], mask, dense)
            if dense:
                given[0, :end] += p.sum(axis=0)
            else:
                given[block, :end] = p
        return given

    def _attend(
        self, q: np.ndarray, kept: np.ndarray, dense: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """o [heads, queries, d], and probabilities summed over heads [queries, tokens]."""
        heads, queries, d = q.shape
        codes, kv_heads = self._cache.k, len(self._cache.k)
        scale = 1 / np.sqrt(d) if self._scale is None else self._scale
        unit = (self._cache.k_scale * scale)[:, None, None, None].astype(q.dtype)
        by_kv = grouped(q, kv_heads) * unit

        def probabilities(codes: np.ndarray) -> np.ndarray:
            scores = by_kv @ codes.astype(q.dtype).transpose(0, 2, 1)[:, None]
            return softmax(np.where(kept, scores, -np.inf))

        p = probabilities(codes)
        whole = np.ones((kv_heads, heads // kv_heads, queries), bool)
        if self._first_bits < self._bits and not dense:
            first = probabilities(leading_bits(codes, 1, self._bits, self._first_bits))
            whole = first.max(axis=-1) < self._confidence
            p = np.where(whole[..., None], p, first)
        read = np.broadcast_to(kept, p.shape)
        if not dense:
            number = np.floor(self._values * kept.sum(axis=1) + _ROUNDING)
            read = _largest(np.where(kept, p, -1), np.maximum(number, 1))
        step = 2 ** (self._bits - self._value_bits)
        most = 2 ** (self._value_bits - 1)
        rows = np.clip(np.rint(self._cache.v / step), -most, most - 1) * step
        rows = (rows * self._cache.v_scale[:, None, None]).astype(q.dtype)
        self.whole, self.read = whole, read
        self._count(kept, whole, read, d)
        return ((p * read) @ rows[:, None]).reshape(q.shape), p.sum(axis=(0, 1))

    def _count(self, kept: np.ndarray, whole: np.ndarray, read: np.ndarray, d: int) -> None:
        """Reads of a block: keys ``kept`` [queries, tokens], in all bits where ``whole`` [kv heads,
        group, queries], and values ``read`` [kv heads, group, queries, tokens]."""
        number, (queries, tokens) = kept.sum(axis=1), kept.shape
        first_bytes, rest_bytes, value_bytes = (
            -(-d * bits // 8)
            for bits in (self._first_bits, self._bits - self._first_bits, self._value_bits)
        )
        in_view = int(np.arange(tokens - queries + 1, tokens + 1).sum())
        heads = whole.shape[0] * whole.shape[1]
        for traffic, readers in ((self.traffic, len(whole)), (self.alone, heads)):
            k_rows = readers * int(number.sum())
            again = int((whole.reshape(readers, -1, queries).any(axis=1) * number).sum())
            v_rows = int(read.reshape(readers, -1, queries, tokens).any(axis=1).sum())
            traffic.k_rows += k_rows
            traffic.v_rows += v_rows
            traffic.k_bytes += k_rows * first_bytes + again * rest_bytes
            traffic.v_bytes += v_rows * value_bytes
            traffic.dense(readers * in_view, d)


def _largest(x: np.ndarray, number: np.ndarray) -> np.ndarray:
    """A mask of the ``number`` [queries] largest of x [..., queries, tokens], the first on ties."""
    order = np.argsort(-x, axis=-1, kind="stable")
    mask = np.zeros(x.shape, bool)
    chosen = np.broadcast_to(np.arange(x.shape[-1]) < number[:, None], x.shape)
    np.put_along_axis(mask, order, chosen, axis=-1)
    return mask
