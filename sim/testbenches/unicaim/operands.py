"""Keys, queries and scores on the cells' levels, and rows of bits as payloads."""

import numpy as np

from golden.trace import Trace
from golden.unicaim.cells import key_levels, key_step, query_levels, row_scores


def keys_and_queries(trace: Trace, d: int, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """`count` keys and as many queries, float64[count, d] both, and a note."""
    if trace.q is not None and trace.k is not None:
        k = trace.k.reshape(-1, trace.k.shape[-1])
        q = trace.q[:, :: trace.group].reshape(k.shape)
        what = "k and q of every kv head's first query head"
    else:
        name = next(iter(trace.x or trace.w))
        k = q = trace.x[name] if trace.x else trace.w[name].T
        what = f"rows of {'x' if trace.x else 'w'}/{name}, which are keys and queries at once"
    columns, rows = np.arange(d) % k.shape[1], np.arange(count) % len(k)
    k, q = (a[rows][:, columns].astype(np.float64) for a in (k, q))
    note = f"Keys and queries are {what}: the first {d} numbers, repeated if there are fewer"
    return k, q, note


def within_fp16(x: np.ndarray) -> np.ndarray:
    """`x` limited to FP16's finite range, float16."""
    return np.clip(x, -65504, 65504).astype(np.float16)


def real_levels(
    trace: Trace, d: int, key_bits: int, query_bits: int, count: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Levels of `count` keys and of as many queries, int [count, d] both, and notes."""
    k, q, note = keys_and_queries(trace, d, count)
    keys = key_levels(k[None], key_step(k[None], key_bits), key_bits)[0]
    note += ", on the cells' levels; once all are used they are repeated."
    return keys.astype(np.int64), query_levels(q, query_bits).astype(np.int64), [note]


def real_scores(trace: Trace, rows: int, count: int) -> tuple[np.ndarray, list[str]]:
    """Scores of `count` queries of one bit for 3-bit keys, 16 cells in a row, and notes.

    Returns int [count, rows], within -64 to 64.
    """
    keys, queries, notes = real_levels(trace, 16, 3, 1, rows + count)
    return row_scores(keys[:rows], queries[rows:]), notes


def pack_bits(bits: np.ndarray) -> np.ndarray:
    """Bits [beats, width], the lowest first, as payloads ``uint32[beats, words]``."""
    beats, width = bits.shape
    padded = np.zeros((beats, -(-width // 32) * 32), np.uint8)
    padded[:, :width] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)
