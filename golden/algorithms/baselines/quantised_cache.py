"""A cache of a few bits an element: KIVI, and the 4-bit cache that LAD compares with.

Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
arXiv:2402.02750, section 3 and algorithm 1: keys share a scale by channel, over a group of tokens,
and values by token, over a group of channels; the newest tokens stay FP16. With ``keys`` of
"token" and a ``residual`` of 0 it is the cache of QServe (Lin et al., arXiv:2405.04532), LAD's
baseline, without its smoothing of keys.
"""

import numpy as np

from golden.algorithms.attention import ELEMENT_BYTES, DecodeAttention, floats, grouped, softmax
from golden.algorithms.cache import KVCache

_QUERY_BLOCK = 256
_SCALE_BYTES = 2 * ELEMENT_BYTES
"""A group's step and least value, both FP16."""


def rounded_group(x: np.ndarray, bits: int) -> np.ndarray:
    """x [..., group] as codes of `bits` bits give it back: low + code step, rounded to nearest.

    low is the least value and step (greatest - low) / (2^bits - 1), both in FP16.
    """
    low = x.min(axis=-1, keepdims=True)
    step = (x.max(axis=-1, keepdims=True) - low) / (2**bits - 1)
    low, step = (number.astype(np.float16).astype(x.dtype) for number in (low, step))
    step = np.where(step > 0, step, x.dtype.type(1))
    return low + step * np.clip(np.rint((x - low) / step), 0, 2**bits - 1)


class QuantisedCacheAttention(DecodeAttention):
    """Attention over all tokens, the older ones of which are kept in ``bits`` bits an element.

    bits
        1 to 8.
    group
        Elements that share a scale, or the whole of a token's value (or key) if that has fewer; d
        must be a multiple of it.
    residual
        R. Values of the newest R tokens are FP16. Keys by channel stay FP16 until there are R more,
        which are then quantised together: a multiple of ``group``. Keys by token are as values.
    keys
        "channel" or "token".
    prompt
        Tokens at the start whose own attention has all rows as they are (KIVI's prefill).
    scale
        Multiplies the scores before the softmax; 1 / sqrt(d) when not given.

    Traffic is every row in view, in bytes with scales. ``rows`` counts tokens, however many bits
    their rows have; the figure "bits an element" is the size of the cache.
    """

    def __init__(
        self,
        bits: int = 4,
        group: int = 32,
        residual: int = 128,
        keys: str = "channel",
        prompt: int = 0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= bits <= 8:
            raise ValueError(f"bits must be between 1 and 8, not {bits}")
        if group < 1:
            raise ValueError(f"group must be at least 1, not {group}")
        if residual < 0:
            raise ValueError(f"residual must be at least 0, not {residual}")
        if keys not in ("channel", "token"):
            raise ValueError(f"keys must be channel or token, not {keys}")
        if keys == "channel" and (residual < 1 or residual % group):
            raise ValueError(f"residual must be a multiple of group, {group}, not {residual}")
        if prompt < 0:
            raise ValueError(f"prompt must be at least 0, not {prompt}")
        self._bits, self._group, self._residual = bits, group, residual
        self._by_channel, self._prompt, self._scale = keys == "channel", prompt, scale
        self._exact, self._coarse = KVCache(), KVCache()

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]

    def prefill(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """As :meth:`sequence`; the cache does not depend on the queries."""
        self._store(*floats(k, v))

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Blocks of queries at once, equal to stepping; more tokens may follow."""
        q, k, v = floats(q, k, v)
        q = q * q.dtype.type(1 / np.sqrt(q.shape[2]) if self._scale is None else self._scale)
        by_kv, start = grouped(q, len(k)), len(self._exact)
        self._store(k, v)
        o = np.empty_like(by_kv)
        for first in range(0, q.shape[1], _QUERY_BLOCK):
            block = slice(first, min(first + _QUERY_BLOCK, q.shape[1]))
            o[:, :, block] = self._attend(by_kv[:, :, block], start + block.start)
        return o.reshape(q.shape)

    def figures(self) -> dict[str, float]:
        kv_heads, n, d = self._exact.k.shape
        _, k_bytes, v_bytes = self._sizes(np.array([n - 1]), d)
        return {"bits an element": float(8 * (k_bytes + v_bytes)[0] / (2 * n * d))}

    def _store(self, k: np.ndarray, v: np.ndarray) -> None:
        start, (kv_heads, tokens, d) = len(self._exact), k.shape
        group = min(self._group, d)
        if d % group:
            raise ValueError(f"group must divide d, {d}, not be {group}")
        self._exact.append(k, v)
        rows = [
            rounded_group(x.reshape(kv_heads, tokens, -1, group), self._bits).reshape(x.shape)
            for x in (k, v)
        ]
        self._coarse.append(*rows)
        if self._by_channel:
            # Groups that are complete now; the rows of the one that is not yet are not used.
            size = self._group
            some = slice(start // size * size, (start + tokens) // size * size)
            by_channel = self._exact.k[:, some].swapaxes(1, 2)
            made = rounded_group(by_channel.reshape(kv_heads, d, -1, size), self._bits)
            self._coarse.k[:, some] = made.reshape(by_channel.shape).swapaxes(1, 2)
        self.rows = kv_heads * len(self._exact)

    def _attend(self, q: np.ndarray, start: int) -> np.ndarray:
        """Attention of q [kv heads, group, queries, d], scaled, the first at position ``start``."""
        kv_heads, group, queries, d = q.shape
        newest = np.arange(start, start + queries)
        end = start + queries
        number, k_bytes, v_bytes = self._sizes(newest, d)
        place = np.arange(end)
        coarse_k, coarse_v = (place < count[:, None] for count in number)
        o = np.empty_like(q)
        for kv in range(kv_heads):
            exact, coarse = (x.k[kv, :end].T for x in (self._exact, self._coarse))
            scores = np.where(coarse_k, q[kv] @ coarse, q[kv] @ exact)
            p = softmax(np.where(place > newest[:, None], -np.inf, scores))
            exact, coarse = (x.v[kv, :end] for x in (self._exact, self._coarse))
            o[kv] = (p * coarse_v) @ coarse + (p * ~coarse_v) @ exact
        rows = kv_heads * int((newest + 1).sum())
        self.traffic.k_rows += rows
        self.traffic.v_rows += rows
        self.traffic.k_bytes += kv_heads * int(k_bytes.sum())
        self.traffic.v_bytes += kv_heads * int(v_bytes.sum())
        self.traffic.dense(rows, d)
        return o

    def _sizes(self, newest: np.ndarray, d: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """For queries at positions ``newest``: tokens of K and V that are quantised, and the bytes
        of K and of V in one kv head: [queries] each."""
        n = newest + 1
        values = np.maximum(n - self._residual, 0)
        keys = n // self._residual * self._residual if self._by_channel else values
        keys, values = (np.where(newest < self._prompt, 0, count) for count in (keys, values))
        coded = -(-d * self._bits // 8)
        by_token = coded + _SCALE_BYTES * (d // min(self._group, d))
        k_bytes = keys * by_token + (n - keys) * d * ELEMENT_BYTES
        if self._by_channel:
            scales = _SCALE_BYTES * d * (keys // self._group)
            k_bytes = keys * coded + scales + (n - keys) * d * ELEMENT_BYTES
        return [keys, values], k_bytes, values * by_token + (n - values) * d * ELEMENT_BYTES
