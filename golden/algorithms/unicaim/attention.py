"""Static-dynamic KV cache pruning as decode attention (UniCAIM, section III-A)."""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    attention_scores,
    floats,
    grouped,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache
from golden.algorithms.unicaim.selection import (
    charge_share,
    eviction_candidate,
    static_pruning,
    top_k,
)
from golden.unicaim.cells import key_levels, key_step, query_levels

_QUERY_BLOCK = 256
_ACCUMULATION_BYTES = 4


class StaticDynamicAttention(DecodeAttention):
    """UniCAIM's cache of a fixed number of rows, the top k of which each query attends to.

    The first ``prompt`` tokens are attended to densely, and every kv head adds up the probabilities
    that each token received from all queries of its group. After the prompt each kv head keeps
    the ``heavy`` tokens with the largest sums, in rows 0, 1, ... by position (static pruning,
    III-A1). A decode step then

    1. writes the new token into the lowest free row; when ``heavy + reserved`` rows are in use, it
       overwrites the row with the smallest accumulation, ties to the lowest address;
    2. measures the similarity of every row, the new one included, to each query head (``key_bits``
       of 0: exactly; else on the levels of ``golden.unicaim.cells``);
    3. selects the ``top_k`` rows of each query head, as ``selection.top_k`` explains with ``fill``,
       and attends to these exactly; a head without any row gives zeros;
    4. accumulates, per kv head and row.

    That is the circuit's order: the discharge at the end of a step finds the row that the next
    token's one write cycle overwrites, and the new token takes part in its own step like any other
    row.

    ``accumulate`` is ``"charge"``, as in the circuit (III-B4): the accumulation of a row moves
    by 2^-``share`` of its distance to the similarity, summed over the group (in units of
    ``row_scores`` on cells, of attention scores otherwise). After the prompt all accumulators are
    preset to the similarity 0. With ``"attention"`` it is the table of III-A2: to the sums from the
    prompt each step adds the probabilities of the selected rows, summed over the group. A row
    written in step 1 starts from the mean accumulation of the other rows in use, or from 0
    (``start`` of ``"mean"`` or ``"zero"``).

    Traffic: similarities are computed in the array and read no rows. A selected row counts
    as one read of K, its conversion, and one of V, once per kv head if any head of the group
    selected it. ``conversions`` counts the analog-to-digital conversions of decode steps, one per
    selected row and query head. ``state_bytes`` has four bytes for each accumulation or sum, and
    ``key_bits`` for each cell.

    The cells' key step is set by all keys of the prompt and then constant. Exact attention uses the
    keys as given. The paper's array would convert the scores of the same 3-bit levels; on the
    language model that about doubles the perplexity.
    """

    def __init__(
        self,
        heavy: int = 512,
        reserved: int = 64,
        top_k: int = 64,
        prompt: int = 512,
        key_bits: int = 3,
        query_bits: int = 3,
        accumulate: str = "charge",
        share: int = 4,
        start: str = "mean",
        fill: bool = True,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        _check("heavy", heavy, 1)
        _check("reserved", reserved, 1)
        _check("top_k", top_k, 1)
        _check("prompt", prompt, 1)
        _check("key_bits", key_bits, 0, 8)
        _check("query_bits", query_bits, 1, 8)
        _check("share", share, 0)
        if accumulate not in ("charge", "attention"):
            raise ValueError(f'accumulate must be "charge" or "attention", not "{accumulate}"')
        if start not in ("mean", "zero"):
            raise ValueError(f'start must be "mean" or "zero", not "{start}"')
        self._heavy, self._capacity = heavy, heavy + reserved
        self._top_k, self._fill = top_k, fill
        self._prompt = prompt
        self._key_bits, self._query_bits = key_bits, query_bits
        self._accumulate, self._share, self._start = accumulate, share, start
        self._scale = scale
        self.conversions = 0
        self._seen = 0
        self._rows = 0
        self._cache: KVCache | None = KVCache()  # of the prompt
        self._sums = np.zeros((0, 0))

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._seen < self._prompt:
            return self._dense(*floats(q[:, None], k[:, None], v[:, None]))[:, 0]
        return self._decode(*floats(q, k, v))

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The prompt as matrix products, then one step after another; equal to stepping."""
        q, k, v = floats(q, k, v)
        o = np.empty_like(q)
        split = min(max(self._prompt - self._seen, 0), q.shape[1])
        if split:
            o[:, :split] = self._dense(q[:, :split], k[:, :split], v[:, :split])
        for t in range(split, q.shape[1]):
            o[:, t] = self._decode(q[:, t], k[:, t], v[:, t])
        return o

    def figures(self) -> dict[str, float]:
        return {"conversions": float(self.conversions)}

    @property
    def positions(self) -> np.ndarray:
        """The token's position in each row after the prompt, [kv heads, rows in use]; a copy."""
        return self._positions[:, : self._rows].copy()

    @property
    def accumulation(self) -> np.ndarray:
        """The accumulation of each row after the prompt, [kv heads, rows in use]; a copy."""
        return self._accumulation[:, : self._rows].copy()

    def _dense(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Tokens of the prompt: [heads, tokens, d], [kv heads, tokens, d] twice."""
        heads, tokens, d = q.shape
        kv_heads = k.shape[0]
        start = len(self._cache)
        self._cache.append(k, v)
        self._seen += tokens
        scale = q.dtype.type(1 / np.sqrt(d) if self._scale is None else self._scale)
        q = grouped(q, kv_heads) * scale
        o = np.empty_like(q)
        sums = np.zeros((kv_heads, start + tokens))
        sums[:, :start] = self._sums.reshape(kv_heads, start)
        for first in range(0, tokens, _QUERY_BLOCK):
            last = min(first + _QUERY_BLOCK, tokens)
            end = start + last
            future = np.arange(end) > np.arange(start + first, end)[:, None]
            for kv in range(kv_heads):
                scores = q[kv, :, first:last] @ self._cache.k[kv, :end].T
                scores[:, future] = -np.inf
                p = softmax(scores)
                o[kv, :, first:last] = p @ self._cache.v[kv, :end]
                sums[kv, :end] += p.sum(axis=(0, 1), dtype=np.float64)
        self._sums = sums
        rows = kv_heads * (tokens * start + tokens * (tokens + 1) // 2)
        self.traffic.read(rows, rows, d)
        self.traffic.dense(rows, d)
        self._rows = start + tokens
        if self._seen == self._prompt:
            self._prune()
        self._count_state(kv_heads, d)
        return o.reshape(heads, tokens, d)

    def _prune(self) -> None:
        """Keep the heavy tokens of each kv head and fill the array with them."""
        k, v = self._cache.k, self._cache.v
        kv_heads, _, d = k.shape
        kept = static_pruning(self._sums, self._heavy)
        self._rows = kept.shape[1]
        self._k, self._v, self._levels = (
            np.zeros((kv_heads, self._capacity, d), k.dtype) for _ in range(3)
        )
        self._positions = np.zeros((kv_heads, self._capacity), np.int64)
        self._accumulation = np.zeros((kv_heads, self._capacity), k.dtype)
        heads = np.arange(kv_heads)[:, None]
        rows = np.arange(self._rows)
        self._k[:, rows], self._v[:, rows] = k[heads, kept], v[heads, kept]
        self._positions[:, rows] = kept
        if self._key_bits:
            self._key_step = key_step(k, self._key_bits)
            self._levels[:, rows] = key_levels(self._k[:, rows], self._key_step, self._key_bits)
        if self._accumulate == "attention":
            self._accumulation[:, rows] = self._sums[heads, kept]
        # The number of kv heads that hold each token; at 0 it is evicted.
        holders = np.bincount(kept.ravel(), minlength=self._prompt)
        self._holders = {p: int(n) for p, n in enumerate(holders) if n}
        self.evicted += [p for p, n in enumerate(holders) if n == 0]
        self._cache = None

    def _decode(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """One token after the prompt: [heads, d], [kv heads, d] twice."""
        heads, d = q.shape
        kv_heads = k.shape[0]
        self._write(k, v)
        rows = slice(self._rows)
        exact = attention_scores(q, self._k[:, rows], self._scale)
        similarity = exact
        if self._key_bits:
            levels = query_levels(q, self._query_bits).astype(q.dtype)
            similarity = attention_scores(levels, self._levels[:, rows], 1.0)
        selected = top_k(similarity, self._top_k, fill=self._fill)
        p = np.zeros_like(exact)
        some = selected.any(axis=-1)
        p[some] = softmax(np.where(selected[some], exact[some], -np.inf))
        o = weighted_sum(p, self._v[:, rows])

        accumulation = self._accumulation[:, rows]
        if self._accumulate == "charge":
            total = grouped(similarity, kv_heads).sum(axis=1)
            accumulation[:] = charge_share(accumulation, total, self._share)
        else:
            accumulation += grouped(p, kv_heads).sum(axis=1)

        self.conversions += int(np.count_nonzero(selected))
        read = int(np.count_nonzero(grouped(selected, kv_heads).any(axis=1)))
        self.traffic.read(read, read, d)
        self._seen += 1
        self.traffic.dense(kv_heads * self._seen, d)
        self._count_state(kv_heads, d)
        return o

    def _write(self, k: np.ndarray, v: np.ndarray) -> None:
        """One write cycle: the new token into the lowest free row, or over the row to evict."""
        heads = np.arange(len(k))
        if self._rows < self._capacity:
            row = np.full(len(k), self._rows)
            self._rows += 1
        else:
            row = eviction_candidate(self._accumulation)
            for position in sorted(self._positions[heads, row].tolist()):
                self._holders[position] -= 1
                if not self._holders[position]:
                    del self._holders[position]
                    self.evicted.append(position)
        self._k[heads, row], self._v[heads, row] = k, v
        if self._key_bits:
            self._levels[heads, row] = key_levels(k, self._key_step, self._key_bits)
        self._positions[heads, row] = self._seen
        self._holders[self._seen] = len(k)
        self._accumulation[heads, row] = 0
        if self._start == "mean":
            others = self._accumulation[:, : self._rows].sum(axis=1)
            self._accumulation[heads, row] = others / (self._rows - 1)

    def _count_state(self, kv_heads: int, d: int) -> None:
        self.rows = kv_heads * self._rows
        # The array is written after the prompt.
        cell_bits = 0 if self._seen < self._prompt else self._key_bits
        self.state_bytes = self.rows * _ACCUMULATION_BYTES + -(-self.rows * d * cell_bits // 8)


def _check(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value}")
