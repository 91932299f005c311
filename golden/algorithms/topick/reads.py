"""What a core reads for one token of a sequence, and how many cycles that takes at least.

To compare the RTL's memory counters with the algorithm: decisions are ``decide``'s, and chunks
arrive in the order of a memory of fixed latency.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from golden.algorithms.topick.bit_exact import decide_bit_exactly, sizes_for
from golden.algorithms.topick.decide import (
    arrival_order,
    decide,
    leading_bits,
    margins,
    request_order,
)
from golden.algorithms.topick.quantise import quantise, scale_for
from golden.trace import Trace


@dataclass(frozen=True, eq=False)
class Job:
    """Operands of one token of a sequence: codes of q [heads, d], and of k and v [kv heads, n, d].

    c
        Argument of exp for a score of 1, float64[heads].
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    c: np.ndarray


def job_of(trace: Trace, layer: int, tokens: int, bits: int = 12) -> Job:
    """Token number `tokens` - 1 of a trace's layer; each head's q, k and v have their own scale."""
    rows = slice(tokens)
    q, k, v, scale = trace.attention
    arrays = q[layer][:, tokens - 1, None], k[layer][:, rows], v[layer][:, rows]
    parts = [x.astype(np.float64) for x in arrays]
    scales = [scale_for(np.abs(x).max(axis=(1, 2)), bits) for x in parts]
    q, k, v = (quantise(x, s[:, None, None], bits) for x, s in zip(parts, scales, strict=True))
    c = scales[0] * np.repeat(scales[1], trace.group) * scale
    return Job(q[:, 0].astype(np.int64), k.astype(np.int64), v.astype(np.int64), c)


@dataclass(frozen=True, eq=False)
class Reads:
    """What the heads of a job read.

    chunks
        Chunks of K, int[heads, n].
    values
        Whether the row of V is read, bool[heads, n].
    group
        Query heads of a kv head.
    """

    chunks: np.ndarray
    values: np.ndarray
    group: int

    def k_chunks(self, buffered: int = 0) -> int:
        """Chunks of K that the memory reads: of tokens below `buffered` once for a group."""
        return self._read(self.chunks, buffered)

    def v_rows(self, buffered: int = 0) -> int:
        """Rows of V that the memory reads."""
        return self._read(self.values.astype(np.int64), buffered)

    def in_order(self, head: int) -> list[int]:
        """Chunks of K of each token, in the order of first requests."""
        n = self.chunks.shape[1]
        return self.chunks[head, request_order(np.array([n - 1]), n)[:, 0]].tolist()

    def _read(self, counts: np.ndarray, buffered: int) -> int:
        by_kv_head = counts.reshape(-1, self.group, counts.shape[1])
        once = by_kv_head[..., :buffered].max(axis=1).sum()
        return int(once + by_kv_head[..., buffered:].sum())


def reads_of(
    job: Job,
    threshold: float,
    latency: int,
    *,
    bits: int = 12,
    chunk_bits: int = 4,
    bit_exact: bool = False,
) -> Reads:
    """What is read for a job, each query head for itself.

    latency
        From the request for a token's chunk to that for its next one, in chunks that the head's
        lanes take in that time: (memory + lane) cycles × lanes of a head.
    bit_exact
        In the core's arithmetic, in which the newest token is never pruned and rows of V of
        probability 0 are not read.
    """
    heads, d = job.q.shape
    n = job.k.shape[1]
    group = heads // len(job.k)
    chunks = bits // chunk_bits
    order = request_order(np.array([n - 1]), n)[:, 0]
    k = np.repeat(job.k, group, axis=0)[:, order].astype(np.float64)
    partial = np.stack(
        [
            np.einsum(
                "hnd,hd->nh", leading_bits(k.astype(np.int64), b + 1, bits, chunk_bits), job.q
            )
            for b in range(chunks)
        ]
    )
    events = arrival_order(n, chunks, latency)
    if bit_exact:
        present = np.ones((n, heads), bool)
        sizes = sizes_for(d, bits, chunk_bits)
        made = decide_bit_exactly(events, partial, job.q, job.c, threshold, present, sizes)
        kept = made.weight > 0
    else:
        made = decide(events, partial, *margins(job.q, bits, chunk_bits), job.c, threshold)
        kept = made.kept
    place = np.argsort(order)
    return Reads(made.read[place].T.astype(np.int64), kept[place].T, group)


def in_order_cycles(reads: Sequence[int], latency: int) -> int:
    """Cycles of a lane that takes token after token and waits for each further chunk of a key.

    First chunks arrive one a cycle, requested ahead. Without a scoreboard nothing else is computed
    between a chunk and the token's next one.

    reads
        Chunks of K of each token.
    latency
        From a chunk to the token's next one: of the memory, and of the lane's decision.
    """
    return sum(1 + (read - 1) * latency for read in reads)


def out_of_order_cycles(
    reads: Sequence[int], latency: int, *, entries: int, values: int = 0
) -> int:
    """Cycles of a lane with a scoreboard, in a row of heads alike, from one head to the next.

    A request is sent in each cycle: for a next chunk, else for a token's first one if an entry of
    the scoreboard is free, else for a chunk of V of the head before. The next head begins when all
    tokens are decided and all of these chunks are requested.

    reads
        Chunks of K of each token, in the order of first requests.
    latency
        From a request to the request for the token's next chunk, or to the entry's return.
    values
        Chunks of V of a head.
    """
    waiting = deque(reads)
    later: deque[tuple[int, int]] = deque()  # cycle of the decision, chunks left to read
    free, cycle = entries, 0
    while waiting or later or values:
        # The latency is the same for all, so decisions come in the order of requests.
        while later and later[0][0] <= cycle and not later[0][1]:
            later.popleft()
            free += 1
        if later and later[0][0] <= cycle:
            left = later.popleft()[1]
            later.append((cycle + latency, left - 1))
        elif waiting and free:
            free -= 1
            later.append((cycle + latency, waiting.popleft() - 1))
        elif values:
            values -= 1
        elif not waiting and not later:
            break
        cycle += 1
    return cycle
