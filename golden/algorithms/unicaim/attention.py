"""Static-dynamic KV cache pruning as decode attention (UniCAIM, section III-A)."""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    Traffic,
    attention_scores,
    floats,
    grouped,
    softmax,
    weighted_sum,
)
from golden.algorithms.cache import KVCache
from golden.algorithms.unicaim.level_rows import LevelOptions, LevelRows
from golden.algorithms.unicaim.selection import (
    charge_share,
    eviction_candidate,
    static_pruning,
    top_k,
)

_QUERY_BLOCK = 256
_ACCUMULATION_BYTES = 4


class StaticDynamicAttention(DecodeAttention):
    """UniCAIM's cache of a fixed number of rows, the top k of which each query attends to.

    The first ``prompt`` tokens are attended to densely, and every kv head adds up the probabilities
    that each token received from the prompt's last ``observe`` queries (0: from all of them, as the
    paper has it) of all heads of its group. After the prompt each kv head keeps the ``heavy``
    tokens with the largest sums, in rows 0, 1, ... by position (static pruning, III-A1). A decode
    step then

    1. writes the new token into the lowest free row; when ``heavy + reserved`` rows are in use, it
       overwrites the row with the smallest accumulation, ties to the lowest address;
    2. measures the similarity of every row, the new one included, to each query head (``key_bits``
       of 0: exactly; else on cells, see below);
    3. selects the ``top_k`` rows of each query head, as ``selection.top_k`` explains with ``fill``,
       and attends to these by ``exact``; a head without any row gives zeros;
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

    On cells, keys are levels of ``key_bits`` and queries of ``query_bits``, with ``rotate``,
    ``centre``, ``span``, ``spread_mv``, ``seed`` and ``calibrate`` as in ``LevelOptions``. Mean and
    step of the keys are set by all keys of the prompt and then constant. Without rotation and
    centring, and with ``observe`` of 0, this is the paper.

    ``exact`` is ``"rows"`` for attention on the keys as they are, or ``"cells"``, the paper's
    current-domain mode: the selected rows' scores on the cells are converted (``converter_bits``,
    0 for converters without rounding) and multiplied by the steps of query and key.

    Traffic: similarities are computed in the array and read no rows. A selected row counts
    as one read of K, its conversion, and one of V, once per kv head if any head of the group
    selected it; ``alone`` counts each query head's selection. ``conversions`` counts the
    analog-to-digital conversions of decode steps, one per selected row and query head.
    ``state_bytes`` has four bytes for each accumulation or sum, and ``key_bits`` for each cell.
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
        observe: int = 32,
        rotate: bool = True,
        centre: bool = True,
        span: float | None = None,
        exact: str = "rows",
        converter_bits: int = 0,
        spread_mv: float = 0.0,
        calibrate: str = "none",
        seed: int = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.alone: Traffic = Traffic()
        _check("heavy", heavy, 1)
        _check("reserved", reserved, 1)
        _check("top_k", top_k, 1)
        _check("prompt", prompt, 1)
        _check("key_bits", key_bits, 0, 8)
        _check("query_bits", query_bits, 1, 8)
        _check("share", share, 0)
        _check("observe", observe, 0)
        _check("converter_bits", converter_bits, 0, 24)
        if accumulate not in ("charge", "attention"):
            raise ValueError(f'accumulate must be "charge" or "attention", not "{accumulate}"')
        if start not in ("mean", "zero"):
            raise ValueError(f'start must be "mean" or "zero", not "{start}"')
        if exact not in ("rows", "cells"):
            raise ValueError(f'exact must be "rows" or "cells", not "{exact}"')
        self._options = LevelOptions(
            key_bits, query_bits, rotate, centre, span, spread_mv, seed, calibrate, converter_bits
        )
        if not key_bits and (exact == "cells" or spread_mv):
            raise ValueError("without cells, key_bits of 0, exact must be rows and spread_mv 0")
        if exact == "rows" and calibrate == "codes":
            raise ValueError("calibrate of codes needs exact of cells: rows are not converted")
        if converter_bits and exact == "rows" and calibrate == "none":
            raise ValueError("converter_bits needs exact of cells: rows are not converted")
        self._heavy, self._capacity = heavy, heavy + reserved
        self._top_k, self._fill = top_k, fill
        self._prompt = prompt
        self._first_observed = max(prompt - observe, 0) if observe else 0
        self._key_bits, self._exact = key_bits, exact
        self._accumulate, self._share, self._start = accumulate, share, start
        self._scale = scale
        self.conversions = 0
        self._seen = 0
        self._rows = 0
        self._cache = KVCache()  # of the prompt
        self._sums = np.zeros((0, 0))

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._seen < self._prompt:
            return self._dense(*floats(q[:, None], k[:, None], v[:, None]))[:, 0]
        return self._decode(*floats(q, k, v))

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; only the prompt's last queries are observed."""
        q, k, v = floats(q, k, v)
        unobserved = min(max(self._first_observed - self._seen, 0), q.shape[1])
        if unobserved:
            self._cache.append(k[:, :unobserved], v[:, :unobserved])
            self._seen += unobserved
            self._rows = self._seen
            self._sums = np.zeros((len(k), self._seen))
            self._count_state(*k.shape[::2])
        if unobserved < q.shape[1]:
            self.sequence(q[:, unobserved:], k[:, unobserved:], v[:, unobserved:])

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
            unobserved = max(self._first_observed - start - first, 0)
            for kv in range(kv_heads):
                scores = q[kv, :, first:last] @ self._cache.k[kv, :end].T
                scores[:, future] = -np.inf
                p = softmax(scores)
                o[kv, :, first:last] = p @ self._cache.v[kv, :end]
                sums[kv, :end] += p[:, unobserved:].sum(axis=(0, 1), dtype=np.float64)
        self._sums = sums
        rows = tokens * start + tokens * (tokens + 1) // 2
        for traffic, readers in ((self.traffic, kv_heads), (self.alone, heads)):
            traffic.read(readers * rows, readers * rows, d)
            traffic.dense(readers * rows, d)
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
        self._k, self._v = (np.zeros((kv_heads, self._capacity, d), k.dtype) for _ in range(2))
        self._positions = np.zeros((kv_heads, self._capacity), np.int64)
        self._accumulation = np.zeros((kv_heads, self._capacity), k.dtype)
        heads = np.arange(kv_heads)[:, None]
        rows = np.arange(self._rows)
        self._k[:, rows], self._v[:, rows] = k[heads, kept], v[heads, kept]
        self._positions[:, rows] = kept
        if self._key_bits:
            self._cells = LevelRows(self._options, k, self._capacity)
            self._cells.write(heads, rows, self._k[:, rows])
        if self._accumulate == "attention":
            self._accumulation[:, rows] = self._sums[heads, kept]
        # The number of kv heads that hold each token; at 0 it is evicted.
        holders = np.bincount(kept.ravel(), minlength=self._prompt)
        self._holders = {p: int(n) for p, n in enumerate(holders) if n}
        self.evicted += [p for p, n in enumerate(holders) if n == 0]
        self._cache = KVCache()  # frees the prompt's rows

    def _decode(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """One token after the prompt: [heads, d], [kv heads, d] twice."""
        heads, d = q.shape
        kv_heads = k.shape[0]
        self._write(k, v)
        rows = slice(self._rows)
        similarity, exact = self._scores(q)
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

        conversions = int(np.count_nonzero(selected))
        self.conversions += conversions
        read = int(np.count_nonzero(grouped(selected, kv_heads).any(axis=1)))
        self._seen += 1
        self.traffic.read(read, read, d)
        self.traffic.dense(kv_heads * self._seen, d)
        self.alone.read(conversions, conversions, d)
        self.alone.dense(heads * self._seen, d)
        self._count_state(kv_heads, d)
        return o

    def _scores(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Similarities that select rows, and scores for the softmax: twice [heads, rows in use]."""
        if self._exact == "cells":
            similarity = self._cells.scores(q, self._rows)
            scale = q.dtype.type(1 / np.sqrt(q.shape[1]) if self._scale is None else self._scale)
            return similarity, scale * self._cells.converted(q, similarity)
        exact = attention_scores(q, self._k[:, : self._rows], self._scale)
        return self._cells.scores(q, self._rows) if self._key_bits else exact, exact

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
            self._cells.write(heads, row, k)
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
