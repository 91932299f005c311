"""Pruning tokens by the leading bits of their keys (Token-Picker, section 3).

The names are the paper's: chunk ``b`` of a key holds its bits number b from the most significant;
``s^b`` is the partial score with the unknown bits 0; ``p''`` the upper bound of a probability.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def leading_bits(k: np.ndarray, chunks: int, bits: int, chunk_bits: int) -> np.ndarray:
    """Codes ``k`` (integers) with all but their first ``chunks`` chunks set to 0.

    In two's complement every bit but the sign only adds (Eq. 4), so this rounds towards minus
    infinity, and only the first chunk is signed.
    """
    unknown = bits - chunks * chunk_bits
    return k >> unknown << unknown


def margins(q: np.ndarray, bits: int, chunk_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """``(M_min, M_max)``, each [chunks, ...]: how far q . k may be from s^b (Fig. 4b).

    With r bits unknown every element of k may still grow by 2^r - 1 and not shrink, so
    M_max^b = (2^r - 1) * (sum of the positive q_j) and M_min^b the same of the negative ones.

    q
        Integers [..., d].
    """
    unknown = bits - chunk_bits * np.arange(1, bits // chunk_bits + 1)
    reach = 2.0**unknown - 1
    most = np.multiply.outer(reach, np.maximum(q, 0).sum(axis=-1))
    least = np.multiply.outer(reach, np.minimum(q, 0).sum(axis=-1))
    return least, most


def request_order(newest: np.ndarray, tokens: int) -> np.ndarray:
    """Tokens in the order in which their first chunks are requested (section 3.1, Fig. 4a).

    The newest, then token 0, then the rest from new to old: usually the first of these have the
    largest weights, so the denominator grows early.

    newest
        Number of each query's newest token, int[queries].
    :returns: int[tokens, queries]; -1 past a query's last token.
    """
    n = np.arange(tokens)[:, None]
    token = np.where(n == 0, newest, np.where(n == 1, 0, newest - n + 1))
    return np.where(n <= newest, token, -1)


def arrival_order(tokens: int, chunks: int, latency: int) -> list[tuple[int, int]]:
    """Events (place in the request order, chunk) as a memory of that ``latency`` returns them.

    A new first chunk arrives in each time slot, and a later chunk of the same key ``latency`` slots
    after the one before it, on whose arrival it was requested. Within a slot, keys arrive in the
    order of requests. So latency 0 gives one key after another, and ``tokens`` or more gives all
    first chunks, then all second ones (section 3.2, Fig. 5). The chunks of pruned keys, which are
    never requested, are listed too.
    """
    events = [(n, b) for n in range(tokens) for b in range(chunks)]
    return sorted(events, key=lambda event: (event[0] + event[1] * latency, event))


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of ``decide`` on each token and lane.

    read
        Chunks read, int8[tokens, ...]; 0 where there is no token.
    kept
        Whether the token was never pruned, bool[tokens, ...].
    weight
        exp(score - largest score) of the kept, 0 elsewhere, float64[tokens, ...].
    denominator
        Sum of all updates, float64[...]: the sum of ``weight`` but for rounding, so a kept token's
        probability is ``weight / denominator``.
    """

    read: np.ndarray
    kept: np.ndarray
    weight: np.ndarray
    denominator: np.ndarray


def decide(
    order: Iterable[tuple[int, int]],
    partial: np.ndarray,
    least: np.ndarray,
    most: np.ndarray,
    scale: np.ndarray | float,
    threshold: float,
    present: np.ndarray | None = None,
) -> Decisions:
    """Replay an arrival order of (token, chunk) events and prune by p'' <= threshold (Eq. 5).

    At each event, ``s_max = partial + most`` of that chunk is compared with the denominator after
    the earlier events, the token's own earlier term included:
    ``s_max - ln(denominator) <= ln(threshold)`` prunes, equality too. A pruned token's earlier
    term leaves the denominator; otherwise its term exp(s_min) replaces the earlier one. A token
    that is not pruned at its last chunk is kept.

    In any order the denominator is at most the exact one, so no token whose exact probability
    exceeds the threshold is pruned, up to the rounding of float64. With a threshold below 1 one
    token is always kept, because the denominator is at least its own term. Sums run in the order of
    the events, so lanes do not influence each other in any bit.

    order
        Events; each token's chunks in order from 0. Events of tokens that are pruned already are
        skipped. So for a trace of real arrivals, made by the same decisions, ``read`` counts all
        its events.
    partial
        Integers s^b [chunks, tokens, ...]; axes after the first two are independent lanes (heads
        and queries) with the same order.
    least, most
        Margins M_min and M_max, integers [chunks, ...].
    scale
        Argument of exp for a score of 1, [...] or one number; above 0.
    threshold
        0 (nothing is pruned) to 1, exclusive.
    present
        bool[tokens, ...]: the tokens that a lane has; all of them when not given. At least one.
    :raises ValueError: if the threshold is out of range, the order repeats or leaves out a chunk,
        or a token is neither pruned nor at its last chunk when the order ends.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and below 1, not {threshold}")
    chunks, tokens, *shape = partial.shape
    order = list(order)
    _check_order(order, tokens, chunks)
    partial = np.asarray(partial, np.float64).reshape(chunks, tokens, -1)
    least, most = (np.reshape(margin, (chunks, -1)) for margin in (least, most))
    lanes = partial.shape[2]
    scale = np.broadcast_to(scale, shape).reshape(lanes)
    alive = np.ones((tokens, *shape), bool) if present is None else present.copy()
    alive = alive.reshape(tokens, lanes)
    # Relative to the largest score, so that exp cannot overflow. It cancels in p''.
    top = np.where(alive, partial[-1], -np.inf).max(axis=0)
    least, most = least - top, most - top
    read = np.zeros((tokens, lanes), np.int8)
    term = np.zeros((tokens, lanes))
    denominator = np.zeros(lanes)
    with np.errstate(divide="ignore"):  # ln(0) is -inf: no token is pruned
        ln_threshold = np.log(threshold)
        for token, b in order:
            live = np.flatnonzero(alive[token])  # lanes in which the token is not pruned
            if not len(live):
                continue
            s = partial[b, token, live]
            s_max = (s + most[b, live]) * scale[live]
            s_min = (s + least[b, live]) * scale[live]
            pruned = s_max - np.log(denominator[live]) <= ln_threshold
            new = np.where(pruned, 0.0, np.exp(s_min))
            denominator[live] += new - term[token, live]
            term[token, live] = new
            alive[token, live] = ~pruned
            read[token, live] = b + 1
    undecided = np.argwhere(alive & (read < chunks))
    if len(undecided):
        token, lane = undecided[0]
        raise ValueError(f"the order lacks chunk {read[token, lane]} of token {token}")
    return Decisions(
        read.reshape(tokens, *shape),
        alive.reshape(tokens, *shape),
        term.reshape(tokens, *shape),
        denominator.reshape(shape),
    )


def _check_order(order: Sequence[tuple[int, int]], tokens: int, chunks: int) -> None:
    expected = [0] * tokens
    for token, b in order:
        if not (0 <= token < tokens and 0 <= b < chunks):
            raise ValueError(
                f"the order names chunk {b} of token {token}, but there are {tokens} tokens of"
                f" {chunks} chunks"
            )
        if b != expected[token]:
            raise ValueError(
                f"the order must bring the chunks of token {token} one by one from 0,"
                f" but chunk {b} comes as number {expected[token]}"
            )
        expected[token] += 1
