"""Bit-exact model of the core: what each head outputs, given each token's last decision.

Which tokens a lane prunes depends on the times at which chunks arrive. Everything else follows from
the decisions: all differences of a head add up to the terms of its kept tokens, in any order. So
the outputs are functions of the operands and of the decisions that the core reports; ``must_keep``
and ``read_on`` bound those decisions from both sides, and ``replay`` repeats them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.arith.log2_fixed import log2_fixed
from golden.topick.dag import HEADROOM, Denominator
from golden.topick.pe_lane import (
    Decision,
    Head,
    LaneSizes,
    PeLane,
    chunk_of,
    probability_sum,
    weighted_sum,
)
from golden.topick.pec import limbs, term
from golden.topick.probability_generator import probability


@dataclass(frozen=True, eq=False)
class HeadResult:
    """A head's outputs.

    o
        Sums of p v, int64[d], in units of 2^-probability_bits of v's codes.
    total
        Sum of p in those units: attention is o / total.
    p
        Probabilities in units of 2^-probability_bits, int64[n]; 0 for pruned tokens.
    t
        Score of each token's last chunk read, a binary logarithm, int64[n].
    known, log2
        The final denominator's logarithm, see :meth:`golden.topick.dag.Denominator.log2`.
    """

    o: np.ndarray
    total: int
    p: np.ndarray
    t: np.ndarray
    known: bool
    log2: int


def attend(
    head: Head,
    k: np.ndarray,
    v: np.ndarray,
    chunks_read: np.ndarray,
    kept: np.ndarray,
    sizes: LaneSizes,
    *,
    lanes: int = 1,
) -> HeadResult:
    """Output of a head whose tokens were decided like this.

    k, v
        Codes, int[n, d].
    chunks_read
        Number of chunks of each key that were read, 1 to ``sizes.chunks``, int[n].
    kept
        bool[n]; the others were pruned at the last chunk read.
    lanes
        Number of lanes of the head, token i in lane i mod `lanes`. It only matters if probabilities
        add up to 2 or more: each lane's sums wrap around. That takes a denominator that is unknown,
        as all tokens but far smaller ones were pruned, see `docs/topick.md`.
    :raises ValueError: if a token is kept before its last chunk.

    Scores of 2, 0 and -4, binary logarithms of weights; the last token was pruned:

    >>> sizes = LaneSizes(12, 4, 14, 10, 12, 16, 16, 64, 11)
    >>> head = Head(np.array([32, 0]), mantissa=1 << 15, shift=0, threshold=4096, tokens=3)
    >>> k, v = np.array([[32, 0], [0, 0], [-64, 0]]), np.array([[1, 0], [1, 9], [5, 5]])
    >>> result = attend(head, k, v, np.array([3, 3, 1]), np.array([True, True, False]), sizes)
    >>> result.p, result.o, result.total
    (array([1640,  410,    0]), array([2050, 3690]), 2050)
    """
    chunks_read, kept = np.asarray(chunks_read), np.asarray(kept, bool)
    if (kept & (chunks_read != sizes.chunks)).any():
        token = int(np.argmax(kept & (chunks_read != sizes.chunks)))
        raise ValueError(f"token {token} is kept after {chunks_read[token]} chunks of its key")
    t = scores(head, k, sizes)
    parts, added = _terms(head, t, chunks_read, kept, sizes)
    known, log2 = _denominator(parts, added, kept, sizes).log2()
    last = np.take_along_axis(t, chunks_read[None] - 1, axis=0)[0]
    places = sizes.probability_bits
    p = np.where(kept, probability(last, log2, fraction=sizes.fraction, places=places), 0)
    sums = [weighted_sum(p[i::lanes], v[i::lanes], sizes) for i in range(lanes)]
    o = np.sum(sums, axis=0)
    total = sum(probability_sum(p[i::lanes], sizes) for i in range(lanes))
    return HeadResult(o, total, p, last, known, log2)


def attend_all(
    head: Head, k: np.ndarray, v: np.ndarray, sizes: LaneSizes, *, lanes: int = 1
) -> HeadResult:
    """Output of a query of a block of a prompt: no token that it sees is pruned.

    k, v
        Codes of the tokens up to the query's own, int[n, d].
    """
    n = len(k)
    return attend(head, k, v, np.full(n, sizes.chunks), np.ones(n, bool), sizes, lanes=lanes)


def scores(head: Head, k: np.ndarray, sizes: LaneSizes) -> np.ndarray:
    """t of every token after each of its chunks, int64[chunks, n]: as a lane has it."""
    unknown = np.array([sizes.unknown(chunk) for chunk in range(sizes.chunks)])[:, None, None]
    partial = (np.asarray(k, np.int64) >> unknown << unknown) @ np.asarray(head.q, np.int64)
    return partial * head.mantissa >> sizes.base + head.shift


def must_keep(head: Head, k: np.ndarray, sizes: LaneSizes) -> np.ndarray:
    """Tokens that no order of arrival may prune, bool[n].

    Those whose exact probability on these operands is above the threshold, with a margin for the
    errors of float64; the newest; and all of them at a threshold of all ones.
    """
    n = len(k)
    if head.threshold == (1 << sizes.threshold_bits) - 1:
        return np.ones(n, bool)
    # Exact integers; a unit is 2^-places of a binary logarithm.
    product = (np.asarray(k, np.int64) @ np.asarray(head.q, np.int64)) * int(head.mantissa)
    places = sizes.base + int(head.shift) + sizes.fraction
    power = np.exp2((product - product.max()) * 2.0**-places)
    threshold = 2.0 ** (-int(head.threshold) / 2**sizes.fraction)
    # Relative errors in units of 2^-52: 1 for each addition, and the errors of exp2 whose
    # arguments, above -1100 or the power is 0, have one themselves; 2^-1100 and less do not count.
    above = power > threshold * power.sum() * (1 + (n + 2000) * 2.0**-52)
    above[-1] = True
    return above


def read_on(
    head: Head,
    k: np.ndarray,
    chunks_read: np.ndarray,
    kept: np.ndarray,
    rank: np.ndarray,
    sizes: LaneSizes,
    *,
    lanes: int,
    delay: int,
) -> np.ndarray:
    """Tokens that were kept or read further, though under any timing they must be pruned, bool[n].

    A decision sees at least the terms of the kept tokens that its lane decided long enough before,
    each cut off at the limbs of the largest term ever added: terms of other tokens are not
    negative. How long before its last decision another token was decided is known by `rank`. Its
    earlier decisions came after its first request, which waited for a free slot, and so for the
    last decisions of as many tokens as there are requested ones before it without a slot for them.

    rank
        Index of each token in the order of its lane's last decisions, from 0 on, int[n].
    delay
        A lane's decisions, one a cycle at most, from a decision to the first that sees its term.
    """
    every = (1 << sizes.threshold_bits) - 1
    found = np.zeros(len(k), bool)
    chunks_read, kept = np.asarray(chunks_read), np.asarray(kept, bool)
    t = scores(head, k, sizes)
    parts, added = _terms(head, t, chunks_read, kept, sizes)
    if head.threshold == every or not added.any():
        return found
    upper = t + (head.margins(sizes)[0] + head.threshold)[:, None]
    number = int(parts[0][added].max())
    at, high, low = (part[-1] for part in parts)
    units = np.where(at == number, (high << sizes.limb) + low, np.where(at == number - 1, high, 0))
    units = np.where(kept, units, 0)
    options: dict[str, Any] = {"width": 2 * sizes.limb + HEADROOM, "rounding": "down"}
    options |= {"precision": sizes.fraction, "output": sizes.fraction}
    for lane in range(min(lanes, len(k))):
        tokens = np.arange(lane, len(k), lanes)
        rows = len(tokens)
        # Sums of the first tokens decided, by their number.
        sums = np.append(0, np.cumsum(units[tokens[np.argsort(rank[tokens])]]))
        log2 = log2_fixed(sums, **options) + ((number - 1) * sizes.limb << sizes.fraction)
        is_newest = (len(k) - 1) % lanes == lane
        place = np.argsort(token_order(rows, is_newest, lane == 0))
        least = place + 1 - sizes.entries - delay  # decided before the first decision
        for chunk in range(sizes.chunks):
            last = chunks_read[tokens] == chunk + 1
            seen = np.maximum(np.where(last, rank[tokens] + 1 - delay, least), 0)
            prunes = (sums[seen] > 0) & (upper[chunk, tokens] < log2[seen])
            goes_on = (chunks_read[tokens] > chunk + 1) | (last & kept[tokens])
            found[tokens] |= prunes & goes_on
    found[-1] = False
    return found


def token_order(rows: int, newest: bool, first: bool) -> list[int]:
    """Rows of a lane in the order of their first requests.

    Row `rows` - 1 if it is the head's `newest` token; row 0 if it is the head's `first` one; then
    the others from the highest row down.

    >>> token_order(5, newest=True, first=True), token_order(3, newest=False, first=False)
    ([4, 0, 3, 2, 1], [2, 1, 0])
    """
    front = [rows - 1] * newest + [0] * first
    order = front + list(reversed(range(rows)))
    return list(dict.fromkeys(order))[:rows]


def replay(
    lane: PeLane,
    head: Head,
    k: np.ndarray,
    observed: Iterable[tuple[int, int, int, bool, int]],
    sizes: LaneSizes,
    *,
    newest: bool = True,
    first: bool = True,
) -> list[Decision]:
    """Decisions of a lane on the chunks that it was observed to receive.

    lane
        Continued from the lane's last head: its slots go on.
    head, k
        The lane's rows of a head.
    observed
        ``(row, chunk, slot, known, log2)`` of each response in its order, with the logarithm of the
        denominator that the lane saw.
    newest, first
        As in :func:`token_order`.
    :raises ValueError: if a slot is not the one that the row was issued, or a row is left undecided
        or read again after its last decision.
    """
    lane.begin(head)
    waiting = token_order(head.tokens, newest, first)
    slots: dict[int, int] = {}
    expected: dict[int, int] = dict.fromkeys(range(head.tokens), 0)  # next chunk of each row
    decisions = []
    for row, chunk, slot, known, log2 in observed:
        # Slots are issued in the order of their return, so it does not matter when.
        while waiting and lane.scoreboard.free:
            slots[waiting.pop(0)] = lane.scoreboard.take()
        if expected.get(row) != chunk:
            raise ValueError(f"chunk {chunk} of row {row} is read instead of {expected.get(row)}")
        if slots.get(row) != slot:
            raise ValueError(f"row {row} is in slot {slot} instead of {slots.get(row)}")
        data = chunk_of(k[row], chunk, sizes)
        decision = lane.decide(row, chunk, slot, data, known, log2)
        if decision.requests:
            expected[row] = chunk + 1
        else:
            del expected[row]
        decisions.append(decision)
    if expected:
        raise ValueError(f"rows {sorted(expected)} are left undecided")
    return decisions


def replay_whole(
    lane: PeLane,
    rows: int,
    observed: Iterable[tuple[int, int, int, bool, int]],
    *,
    newest: bool = True,
    first: bool = True,
) -> None:
    """As :func:`replay`, of a query whose keys came whole: each as chunk 0, and in order.

    :raises ValueError: if a row or its slot is not the one that was requested next.
    """
    waiting = token_order(rows, newest, first)
    issued: list[tuple[int, int]] = []  # row and slot, not yet observed
    for row, chunk, slot, *_ in observed:
        while waiting and lane.scoreboard.free:
            issued.append((waiting.pop(0), lane.scoreboard.take()))
        wanted = issued.pop(0) if issued else None
        if chunk or wanted != (row, slot):
            raise ValueError(f"row {row}, chunk {chunk} is in slot {slot} instead of {wanted}")
        lane.scoreboard.free_slot(slot)
    if waiting or issued:
        raise ValueError(f"{len(waiting) + len(issued)} rows are left unread")


def _terms(
    head: Head, t: np.ndarray, chunks_read: np.ndarray, kept: np.ndarray, sizes: LaneSizes
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Parts of each chunk's term, and which of them were in the sum, as :func:`_denominator`'s.

    A token adds a term at each chunk but the one at which it is pruned. The largest limb of all
    these terms is where the sum ends, though the terms of pruned tokens have left it.
    """
    _, least = head.margins(sizes)
    terms = term(t, least[:, None], fraction=sizes.fraction, precision=sizes.precision)
    added = np.arange(sizes.chunks)[:, None] < chunks_read - ~kept
    return limbs(*terms, precision=sizes.precision, limb=sizes.limb), added


def _denominator(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    added: np.ndarray,
    kept: np.ndarray,
    sizes: LaneSizes,
) -> Denominator:
    """The sum of the kept tokens' last terms, cut at the lower limb of the largest limb added.

    parts
        Limb number, upper and lower part of each chunk's term, int64[chunks, n].
    added
        Terms that were in the sum at some time, bool[chunks, n].
    """
    denominator = Denominator(limb=sizes.limb, fraction=sizes.fraction)
    if added.any():
        number = int(parts[0][added].max())
        at, high, low = (part[-1, kept] for part in parts)
        upper, lower = at == number, at == number - 1
        denominator.add(number, int(high[upper].sum()), int(low[upper].sum() + high[lower].sum()))
    return denominator
