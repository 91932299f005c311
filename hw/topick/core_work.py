"""The work of ToPick's core, and its formula of cycles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hw.topick.core_parameters import TopickCoreParameters


class TokenWork(NamedTuple):
    """The work of a command, for :meth:`TopickCoreParameters.cycles`.

    tokens
        Number of tokens, the new one included.
    heads, kv_heads
        Number of query heads and of kv heads, spread evenly over the groups.
    block
        Number of new tokens.
    """

    tokens: int
    heads: int
    kv_heads: int
    block: int = 1


def queries_in_order(groups: int, heads: int, group: int, block: int) -> list[tuple[int, int]]:
    """New token, from 0 on, and head of each query of a command, in the order of the stream ``q``.

    The heads of as many kv heads as there are groups of lanes, for each token; then the next ones'.

    >>> queries_in_order(groups=2, heads=3, group=1, block=2)
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    """
    together = groups * group
    return [
        (token, head)
        for first in range(0, heads, together)
        for token in range(block)
        for head in range(first, min(first + together, heads))
    ]


def cycles_of(
    p: "TopickCoreParameters", work: Sequence[TokenWork | None], memory_latency: int
) -> int:
    """See :meth:`TopickCoreParameters.cycles`."""
    total = 0
    for command in work:
        if command is None:
            total += 2
            continue
        tokens, heads, kv_heads, block = command
        turns = -(-kv_heads // p.groups) * -(-heads // kv_heads)  # heads of a group
        rows = -(-tokens // p.lanes_per_head)
        start = 33 + 8 * kv_heads + p.share_bits + p.lanes_per_head - 1
        waits = (turns + 1) * (memory_latency - 1) + 8 * (turns - 1)
        total += (start + waits + 2 * p.lane.chunks * rows * turns) * block
    return total
