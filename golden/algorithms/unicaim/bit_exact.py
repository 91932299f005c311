"""UniCAIM's attention as its core computes it, on every bit."""

import dataclasses

import numpy as np

from golden.algorithms.attention import DecodeAttention, Traffic, softmax
from golden.algorithms.unicaim.selection import static_pruning
from golden.unicaim.divisors import code_units, key_divisor, query_divisors
from golden.unicaim.unicaim_core import CoreSizes, UnicaimCore


class BitExactAttention(DecodeAttention):
    """Static-dynamic pruning by :class:`golden.unicaim.unicaim_core.UnicaimCore`.

    The prompt, of ``prompt`` tokens in a single call, is dense attention in floating point; then
    the ``heavy`` tokens that its last 32 queries give the most are written to the core, of
    ``heavy`` + ``reserved`` rows. The array is one of cells if ``spread_mv`` or ``time_steps`` is
    not 0; ``line_error`` and ``calibrate`` need ``time_steps`` and ``spread_mv``. ``scale``
    multiplies the scores; 1 / sqrt(d) when not given. Other parameters are as in
    :class:`golden.unicaim.unicaim_core.CoreSizes`. Rows that a query of a group selects are read,
    once for the group; ``alone`` counts each query's. Raises ``ValueError`` for tokens before the
    prompt is complete.
    """

    def __init__(
        self,
        heavy: int = 512,
        reserved: int = 64,
        top_k: int = 64,
        prompt: int = 512,
        key_bits: int = 3,
        query_bits: int = 3,
        exact: str = "rows",
        rotate: bool = True,
        spread_mv: int = 0,
        time_steps: int = 0,
        late: int = 0,
        line_error: int = 0,
        calibrate: bool = False,
        seed: int = 1,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.alone: Traffic = Traffic()
        for name, value, least in (
            *(("heavy", heavy, 1), ("reserved", reserved, 0), ("top_k", top_k, 1)),
            *(("prompt", prompt, 1), ("spread_mv", spread_mv, 0), ("seed", seed, 0)),
            *(("time_steps", time_steps, 0), ("late", late, 0), ("line_error", line_error, 0)),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        self._scale = scale
        self._heavy, self._prompt = heavy, prompt
        self._top_k = min(top_k, heavy + reserved)
        self._sizes = CoreSizes(
            rows=heavy + reserved,
            d=0,
            key_bits=key_bits,
            query_bits=query_bits,
            exact=exact,
            rotate=rotate,
            array="cell" if spread_mv or time_steps else "digital",
            spread_mv=spread_mv,
            time_steps=time_steps,
            late=late,
            line_error=line_error,
            calibrate=calibrate,
            seed=seed,
        )
        self._core: UnicaimCore | None = None
        self._divisors: list[float] = []
        self._seen = 0
        self.conversions = 0

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._core is not None:
            return super().sequence(q, k, v)
        tokens = self._prompt
        if q.shape[1] < tokens:
            raise ValueError(f"the prompt must have {tokens} tokens, not {q.shape[1]}")
        first = self._begin(q[:, :tokens], k[:, :tokens], v[:, :tokens])
        if q.shape[1] == tokens:
            return first
        rest = super().sequence(q[:, tokens:], k[:, tokens:], v[:, tokens:])
        return np.concatenate([first, rest], axis=1)

    def _begin(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        kv_heads, _, d = k.shape
        group = len(q) // kv_heads
        sizes = dataclasses.replace(self._sizes, d=d, kv_heads=kv_heads, group=group)
        core = self._core = UnicaimCore(sizes)
        o, sums = dense_prompt(q, k, v, scale=self._scale)
        kept = static_pruning(sums, self._heavy)
        half_k, half_v = k.astype(np.float16), v.astype(np.float16)
        for kv_head in range(kv_heads):
            mean = half_k[kv_head].astype(np.float64).mean(axis=0).astype(np.float16)
            self._divisors.append(key_divisor(sizes, half_k[kv_head], mean))
            core.load(kv_head, mean, self._divisors[-1])
            for position in kept[kv_head]:
                core.preset(kv_head, half_k[kv_head, position], half_v[kv_head, position])
        self._seen = k.shape[1]
        self.rows = kept.size
        return o

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._core is None:
            return self.sequence(q[:, None], k[:, None], v[:, None])[:, 0]
        core, (kv_heads, d) = self._core, k.shape
        scale = 1 / np.sqrt(d) if self._scale is None else self._scale
        queries = (np.asarray(q, np.float64) * scale).astype(np.float16)
        half_k, half_v = np.asarray(k).astype(np.float16), np.asarray(v).astype(np.float16)
        o, read, conversions = [], 0, 0
        for kv_head, heads in enumerate(queries.reshape(kv_heads, -1, d)):
            divisors = query_divisors(core.sizes, heads)
            units = code_units(core.sizes, self._divisors[kv_head], divisors)
            row = half_k[kv_head], half_v[kv_head]
            result = core.step(kv_head, *row, heads, divisors, self._top_k, units)
            o += [head.o for head in result.heads]
            conversions += result.conversions
            read += len(set().union(*(head.selected for head in result.heads)))
        self._seen += 1
        self.rows = sum(head.used for head in core.heads)
        self.conversions += conversions
        self.traffic.read(read, read, d)
        self.traffic.dense(kv_heads * self._seen, d)
        self.alone.read(conversions, conversions, d)
        self.alone.dense(len(q) * self._seen, d)
        return np.array(o, np.float32)

    def figures(self) -> dict[str, float]:
        return {"conversions": float(self.conversions)}


def dense_prompt(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, observe: int = 32, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Causal attention of a prompt, q [heads, tokens, d], k and v [kv heads, tokens, d].

    Returns o float32[heads, tokens, d] and, for each kv head and token, the sum of the
    probabilities that the last ``observe`` queries of its group gave it, [kv heads, tokens].
    ``scale`` multiplies the scores; 1 / sqrt(d) when not given.
    """
    heads, tokens, d = q.shape
    o, sums = np.empty(q.shape, np.float32), np.zeros(k.shape[:2])
    future = np.triu(np.ones((tokens, tokens), bool), 1)
    for head in range(heads):
        kv_head = head * len(k) // heads
        scores = (q[head] @ k[kv_head].T) * (1 / np.sqrt(d) if scale is None else scale)
        p = softmax(np.where(future, -np.inf, scores))
        o[head] = p @ v[kv_head]
        sums[kv_head] += p[-observe:].sum(axis=0, dtype=np.float64)
    return o, sums
