"""Eviction of whole blocks of tokens, as a paged cache can free memory.

A serving engine's cache has pages of 16 or 32 tokens, one table of pages for all heads of a layer
(Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
arXiv:2309.06180, section 4), so it can give back a page, not a row. The papers' cores keep a list
of rows for each kv head, or for a layer. This policy has both, with the scores of three of them.
"""

import numpy as np

from golden.algorithms.attention import (
    DecodeAttention,
    attention_scores,
    floats,
    grouped,
    softmax,
    weighted_sum,
)
from golden.algorithms.prompt import probabilities
from golden.algorithms.unicaim.selection import charge_share
from golden.algorithms.veda.voting import cast_votes

SCORES = ("sum", "charge", "votes")

_SCORE_BYTES = 4


class BlockEvictionAttention(DecodeAttention):
    """Attention over the blocks kept of earlier tokens, the new token's included.

    A block is ``block`` tokens that follow each other, the first one from position 0. After a step,
    while more than ``capacity`` / ``block`` blocks are in use, one is evicted whole: of those that
    are full, the one of the least mean score, the oldest on ties. So between steps it holds
    ``capacity`` rows at most, and up to ``block`` - 1 fewer.

    block
        1 is eviction row by row.
    per
        "head": each kv head evicts for itself; "layer": scores are summed over all heads, and a
        block leaves all of them, as a page table for all heads has it.
    by
        A row's score. "sum": the probabilities that it has had, summed over the group, and the
        newest half of ``capacity`` is never evicted (H2O). "charge": UniCAIM's accumulation, which
        moves by 2^-``share`` of its distance to the similarity and begins with the others' mean.
        "votes": VEDA's, counted downwards; the first ``reserved`` tokens cast none, and votes of
        one kv head are of the probabilities of its group.
    observe
        Number of the last queries of a prompt (:meth:`prefill`) that give scores, 0 for all. A
        prompt is attended to densely, and at its end blocks are evicted by these probabilities'
        sums, or by their votes; "charge" begins anew after that.
    heavy
        Rows to keep at a prompt's end, ``capacity`` if not given: the rest is for later tokens.

    With ``block`` of 1 this is H2O's policy, VEDA's by layer with a capacity without a prompt, and
    UniCAIM's with ``capacity`` one less than its rows, without selection and cells.
    """

    def __init__(
        self,
        capacity: int,
        block: int = 16,
        per: str = "layer",
        by: str = "sum",
        observe: int = 0,
        heavy: int | None = None,
        share: int = 4,
        reserved: int = 32,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, known in (("per", per, ("head", "layer")), ("by", by, SCORES)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value}")
        for name, number, least in (
            *(("block", block, 1), ("observe", observe, 0), ("share", share, 0)),
            ("reserved", reserved, 0),
        ):
            if number < least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
        heavy = capacity if heavy is None else heavy
        for name, rows in (("capacity", capacity), ("heavy", heavy)):
            if rows < 2 * block or rows % block:
                raise ValueError(f"{name} must be blocks of {block}, two at least, not {rows}")
        if heavy > capacity:
            raise ValueError(f"heavy must be at most capacity, {capacity}, not {heavy}")
        self._capacity, self._block, self._heavy = capacity, block, heavy
        self._per_layer, self._by, self._observe = per == "layer", by, observe
        self._share, self._reserved, self._scale = share, reserved, scale
        self._tokens = 0
        self._k = self._v = np.empty((0, 0, 0))
        self._scores = np.empty((0, 0))
        self.positions = np.empty((0, 0), np.int64)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        q, k, v = floats(q, k, v)
        kv_heads, d = k.shape
        self._append(k[:, None], v[:, None])
        similarity = attention_scores(q, self._k, self._scale)
        p = softmax(similarity)
        o = weighted_sum(p, self._v)
        if self._by == "charge":
            total = grouped(similarity, kv_heads).sum(axis=1)
            self._scores = charge_share(self._scores, total, self._share)
        elif self._by == "sum":
            self._scores += grouped(p, kv_heads).sum(axis=1)
        elif self._tokens > self._reserved:
            self._vote(grouped(p, kv_heads).mean(axis=1), self.positions)
        rows = self._k.shape[1]
        self._evict(self._capacity)
        self.traffic.read(kv_heads * rows, kv_heads * rows, d)
        self.traffic.dense(kv_heads * self._tokens, d)
        return o

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """A dense prompt; nothing is counted in ``traffic``. After other tokens, step by step."""
        if self._tokens:
            super().prefill(q, k, v)
            return
        q, k, v = floats(q, k, v)
        kv_heads, n, _ = k.shape
        self._append(k, v)
        self._scores[:] = 0  # not charge's mean
        first = max(n - self._observe, 0) if self._observe else 0
        for begin, p in probabilities(q, k, self._scale):
            each = grouped(p, kv_heads)[:, :, max(first - begin, 0) :]
            seen = p.shape[2]
            if self._by != "votes":
                self._scores[:, :seen] += each.sum(axis=(1, 2))
                continue
            for at in range(each.shape[2]):
                position = begin + max(first - begin, 0) + at
                if position >= self._reserved:
                    mean = each[:, :, at, : position + 1].mean(axis=1)
                    self._vote(mean, self.positions[:, : position + 1])
        self._evict(self._heavy)
        if self._by == "charge":
            self._scores[:] = 0

    def _append(self, k: np.ndarray, v: np.ndarray) -> None:
        """New rows, [kv heads, tokens, d]."""
        kv_heads, new, d = k.shape
        if not self._tokens:
            self._k = self._v = np.empty((kv_heads, 0, d), k.dtype)
            self._scores = np.empty((kv_heads, 0), k.dtype)
            self.positions = np.empty((kv_heads, 0), np.int64)
        start = np.zeros((kv_heads, 1), k.dtype)
        if self._by == "charge" and self._scores.size:
            start = self._scores.mean(axis=1, keepdims=True)
        at = np.arange(self._tokens, self._tokens + new)
        self._k, self._v = np.concatenate([self._k, k], 1), np.concatenate([self._v, v], 1)
        self._scores = np.concatenate([self._scores, np.repeat(start, new, 1)], 1)
        self.positions = np.concatenate([self.positions, np.tile(at, (kv_heads, 1))], 1)
        self._tokens += new
        self.rows = self.positions.size
        self.state_bytes = self.rows * _SCORE_BYTES

    def _vote(self, p: np.ndarray, positions: np.ndarray) -> None:
        """Votes of a token, from [kv heads, rows] of probabilities; they count downwards."""
        seen = p.shape[1]
        if self._per_layer:
            self._scores[:, :seen] -= cast_votes(p.mean(axis=0), positions[0])[0]
            return
        for head, row in enumerate(p):
            self._scores[head, :seen] -= cast_votes(row, positions[head])[0]

    def _evict(self, capacity: int) -> None:
        """Evict blocks until at most `capacity` rows' are in use.

        Rows are in the order of their tokens, and all blocks but the last are full.
        """
        kv_heads, rows = self.positions.shape
        number = -(-rows // self._block) - capacity // self._block
        if number <= 0:
            return
        full = rows // self._block
        scores = self._scores[:, : full * self._block].reshape(kv_heads, full, -1).sum(axis=2)
        if self._per_layer:
            scores = np.broadcast_to(scores.sum(axis=0), scores.shape)
        end = self._tokens
        if self._by == "sum":
            end -= (self._capacity + 1) // 2
        last = self.positions[:, self._block - 1 :: self._block]
        order = np.argsort(np.where(last < end, scores, np.inf), axis=1, kind="stable")
        keep = np.ones((kv_heads, full), bool)
        np.put_along_axis(keep, order[:, :number], False, axis=1)
        kept = np.repeat(keep, self._block, axis=1)
        kept = np.pad(kept, ((0, 0), (0, rows - kept.shape[1])), constant_values=True)
        self.evicted += np.setdiff1d(self.positions, self.positions[kept]).tolist()
        arrays = (self._k, self._v, self._scores, self.positions)
        self._k, self._v, self._scores, self.positions = (
            array[kept].reshape(kv_heads, -1, *array.shape[2:]) for array in arrays
        )
        self.rows = self.positions.size
        self.state_bytes = self.rows * _SCORE_BYTES
