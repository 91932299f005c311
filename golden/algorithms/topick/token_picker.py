"""Token-Picker: attention that drops improbable tokens on the leading bits of their keys.

Source: Park et al., "Token-Picker: Accelerating Attention in Text Generation with Minimized Memory
Transfer via Probability Estimation", DAC 2024, sections 3 and 4. Choices where the paper leaves it
open: K and V have a scale each per kv head (``QuantisedCache``), q has its own scale each
step, and the memory's latency gives the order in which chunks arrive (``arrival_order``).
"""

from collections.abc import Iterator

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic, floats, grouped
from golden.algorithms.topick.bit_exact import decide_bit_exactly, sizes_for
from golden.algorithms.topick.decide import (
    Decisions,
    arrival_order,
    decide,
    leading_bits,
    margins,
    request_order,
)
from golden.algorithms.topick.quantise import QuantisedCache, quantise, scale_for

_QUERY_BLOCK = 128


class TokenPickerAttention(DecodeAttention):
    """Prunes tokens whose probability is certain to be at most ``threshold``; 0 prunes nothing.

    ``bits`` is the precision of q, K and V, read in chunks of ``chunk_bits`` (section 4).
    ``latency`` is the time from the request for a chunk to its arrival, in chunks; the default,
    512, is the capacity of the scoreboards of the paper's 16 lanes (Table 1). ``calibration`` and
    ``headroom`` set the scales of K and V (``QuantisedCache``). ``scale`` multiplies the scores
    before the softmax; 1 / sqrt(d) when not given. ``bit_exact`` computes as the hardware's core
    (``bit_exact.decide_bit_exactly``), in which the newest token is never pruned.

    Traffic counts each chunk of a key once per kv head and step, if any query head of the group
    requests it, and the values of tokens that any of them keeps, with ``bit_exact`` those whose
    probability does not round to 0; a chunk, and a row of V, takes whole bytes. Every first
    chunk is read, so ``k_rows`` is dense attention's; the saving is in ``k_bytes``. ``Traffic``
    compares with a dense reader of FP16; ``k_reduction``, ``v_reduction`` and ``reduction``
    compare as the paper does. ``alone`` counts the same for each query head by itself.
    ``state_bytes`` are the scales, 4 bytes each.
    """

    def __init__(
        self,
        threshold: float = 1e-3,
        bits: int = 12,
        chunk_bits: int = 4,
        latency: int = 512,
        calibration: int = 64,
        headroom: float = 1.25,
        scale: float | None = None,
        bit_exact: bool = False,
    ) -> None:
        super().__init__()
        self.alone: Traffic = Traffic()
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be at least 0 and below 1, not {threshold}")
        if not 2 <= bits <= 16:
            raise ValueError(f"bits must be between 2 and 16, not {bits}")
        if chunk_bits < 1 or bits % chunk_bits:
            raise ValueError(f"chunk_bits must divide bits, {bits}, not be {chunk_bits}")
        if latency < 0:
            raise ValueError(f"latency must be at least 0, not {latency}")
        if calibration < 1:
            raise ValueError(f"calibration must be at least 1, not {calibration}")
        if not 1 <= headroom < np.inf:
            raise ValueError(f"headroom must be a finite number of at least 1, not {headroom}")
        if bit_exact and chunk_bits == bits:
            raise ValueError(f"bit_exact: chunk_bits must be less than bits, {bits}")
        self._threshold = threshold
        self._bits = bits
        self._chunk_bits = chunk_bits
        self._chunks = bits // chunk_bits
        self._latency = latency
        self._scale = scale
        self._bit_exact = bit_exact
        self._cache = QuantisedCache(bits, calibration, headroom)
        self._counts: list[np.ndarray] = []
        self._dense_row_bytes = 0
        self.row_bits = bits

    @property
    def counts(self) -> np.ndarray:
        """Tokens per step (one at least) and query head, int[step, query head, chunks + 1].

        Column b counts those whose chunk b was requested, so column 0 those in view; the last
        column counts those kept. Its share of column 0 is what Fig. 3 compares.
        """
        return np.concatenate(self._counts)

    @property
    def k_reduction(self) -> float:
        """Bytes of all K rows at ``bits`` bits over the bytes of K read (Fig. 8); 1 at first."""
        return self._reduction(1, self.traffic.k_bytes)

    @property
    def v_reduction(self) -> float:
        """The same of V."""
        return self._reduction(1, self.traffic.v_bytes)

    @property
    def reduction(self) -> float:
        """The same of K and V together."""
        return self._reduction(2, self.traffic.bytes)

    def figures(self) -> dict[str, float]:
        """Sums over steps and query heads: tokens in view, chunks requested, tokens kept.

        With ``bit_exact``, the kept tokens whose probability is not 0. Tokens whose codes were made
        again when a scale was raised; elements of K and V that saturated.
        """
        chunks = self.counts.sum(axis=(0, 1))
        return {
            "tokens in view": float(chunks[0]),
            "chunks requested": float(chunks[:-1].sum()),
            "tokens kept": float(chunks[-1]),
            "tokens stored again": float(self._cache.stored_again),
            "elements saturated": float(self._cache.saturated),
        }

    def _reduction(self, parts: int, read: int) -> float:
        return parts * self.traffic.dense_rows * self._dense_row_bytes / read if read else 1.0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Blocks of queries at once, equal to stepping; more tokens may follow."""
        q, k, v = floats(q, k, v)
        grouped(q, len(k))  # raises an error before anything is stored
        o = np.empty_like(q)
        for block in self._stored(k, v):
            o[:, block] = self._attend(q[:, block])
        return o

    def _stored(self, k: np.ndarray, v: np.ndarray) -> Iterator[slice]:
        """Store tokens block by block; gives each block when it is the latest in the cache."""
        first = 0
        while first < k.shape[1]:
            block = slice(first, first + _QUERY_BLOCK)
            first += self._cache.append(k[:, block], v[:, block])
            self.rows = len(k) * len(self._cache)
            self.state_bytes = 8 * len(k)
            yield slice(block.start, first)

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; the codes of K and V do not depend on the queries."""
        _, k, v = floats(q, k, v)
        for _ in self._stored(k, v):
            pass

    def _attend(self, q: np.ndarray) -> np.ndarray:
        """Attention of the latest queries [heads, queries, d], one for each of the last tokens."""
        heads, queries, d = q.shape
        kv_heads, tokens, _ = self._cache.k.shape
        newest = np.arange(tokens - queries, tokens)
        q_scale = scale_for(np.abs(q).max(axis=-1), self._bits)
        codes = quantise(q, q_scale[..., None], self._bits)
        scale = 1 / np.sqrt(d) if self._scale is None else self._scale
        unit = q_scale * np.repeat(self._cache.k_scale, heads // kv_heads)[:, None] * scale

        order = request_order(newest, tokens)
        present = np.broadcast_to((order >= 0)[:, None], (tokens, heads, queries))
        decisions = self._decide(codes, self._partial_scores(codes, order), unit, present)
        self._count(decisions.read, decisions.weight > 0 if self._bit_exact else decisions.kept, d)

        # From the order of requests back to the tokens' order; -1 is an extra column that is
        # dropped.
        weight = np.zeros((heads, queries, tokens + 1))
        np.put_along_axis(weight, order.T[None], decisions.weight.transpose(1, 2, 0), axis=2)
        weight = weight[..., :-1]
        if self._bit_exact:
            # Integers below 2^53, so exact in float64.
            sums = self._weighted(weight, self._cache.v.astype(np.float64))
            unit = np.repeat(self._cache.v_scale, heads // kv_heads)[:, None]
            return (sums * (unit / np.maximum(decisions.denominator, 1))[..., None]).astype(q.dtype)
        p = (weight / decisions.denominator[..., None]).astype(q.dtype)
        values = (self._cache.v * self._cache.v_scale[:, None, None]).astype(q.dtype)
        return self._weighted(p, values)

    def _decide(
        self, codes: np.ndarray, partial: np.ndarray, unit: np.ndarray, present: np.ndarray
    ) -> Decisions:
        order = arrival_order(len(present), self._chunks, self._latency)
        if self._bit_exact:
            sizes = sizes_for(codes.shape[-1], self._bits, self._chunk_bits, len(present))
            return decide_bit_exactly(order, partial, codes, unit, self._threshold, present, sizes)
        margin = margins(codes, self._bits, self._chunk_bits)
        return decide(order, partial, *margin, unit, self._threshold, present)

    def _weighted(self, p: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Values [kv heads, tokens, d] weighted by p [heads, queries, tokens]."""
        heads, queries, tokens = p.shape
        o = grouped(p, len(values)).reshape(len(values), -1, tokens) @ values
        return o.reshape(heads, queries, -1)

    def _partial_scores(self, q: np.ndarray, order: np.ndarray) -> np.ndarray:
        """s^b of codes ``q`` [heads, queries, d] in the order of requests.

        Integers below 2^53, so float64 holds them and the matrix products are exact. Returns
        [chunks, tokens, heads, queries].
        """
        heads, queries, d = q.shape
        kv_heads, tokens, _ = self._cache.k.shape
        rows = q.reshape(kv_heads, -1, d).transpose(0, 2, 1).astype(np.float64)
        partial = np.empty((self._chunks, tokens, heads, queries))
        for b in range(self._chunks):
            known = leading_bits(self._cache.k, b + 1, self._bits, self._chunk_bits)
            by_kv = (known.astype(np.float64) @ rows).reshape(kv_heads, tokens, -1, queries)
            scores = by_kv.transpose(1, 0, 2, 3).reshape(tokens, heads, queries)
            partial[b] = np.take_along_axis(scores, order[:, None], axis=0)
        return partial

    def _count(self, read: np.ndarray, kept: np.ndarray, d: int) -> None:
        """Count what was read; ``read`` and ``kept`` are [tokens, heads, queries]."""
        tokens, heads, queries = read.shape
        kv_heads = len(self._cache.k)
        columns = [read > b for b in range(self._chunks)] + [kept]
        self._counts.append(np.stack([np.count_nonzero(c, axis=0).T for c in columns], axis=-1))
        self._dense_row_bytes = row_bytes = -(-d * self._bits // 8)
        for traffic, readers in ((self.traffic, kv_heads), (self.alone, heads)):
            shared = (tokens, readers, heads // readers, queries)
            chunks = read.reshape(shared).max(axis=2)
            k_rows = int(np.count_nonzero(chunks))
            v_rows = int(np.count_nonzero(kept.reshape(shared).any(axis=2)))
            traffic.k_rows += k_rows
            traffic.v_rows += v_rows
            traffic.k_bytes += int(chunks.sum(dtype=np.int64)) * -(-d * self._chunk_bits // 8)
            traffic.v_bytes += v_rows * row_bytes
            traffic.dense(k_rows, d)
