"""Sums of many numbers by carry-save adders, with one carry propagation at the end."""

import heapq
from collections.abc import Callable

from amaranth.hdl import Cat, Const, Module, Signal, Value

# Delay of a full adder's outputs from its two early inputs and from its late one, in units of a
# two-input XOR gate.
SUM, SUM_LATE, CARRY, CARRY_LATE = 2.0, 1.0, 1.7, 0.8

CUTS = ((), ("result",), ("reduced", "result"), ("halfway", "reduced", "result"))


def add_rows(m: Module, rows: list[Value], width: int, cut: Callable) -> Signal:
    """The sum of all rows modulo 2^width: carry-save adders on whole rows, then one addition.

    ::

        x       | x x x x |
        y       | y y y y |         one full adder for each bit (Wallace 1964)
        z       | z z z z |
        sum     | s s s s |
        carry | c c c c 0 |

    The earliest rows are added first. Rows are unsigned; constant zeros are removed by synthesis.

    cut
        Registers for the points of :data:`CUTS`.
    """
    waiting = [(0.0, number, row) for number, row in enumerate(rows)]
    for point, height in (("halfway", round((2 * len(rows)) ** 0.5)), ("reduced", 2)):
        _reduce(m, waiting, max(height, 2), width, point)
        ordered = [row for *_, row in sorted(waiting)]
        ordered = cut(point, **{f"row_{number}": row for number, row in enumerate(ordered)})
        ordered = [ordered] if len(waiting) == 1 else ordered
        waiting = [(0.0, number, row) for number, row in enumerate(ordered)]
    total = Signal(width, name="total")
    m.d.comb += total.eq(sum(row for *_, row in waiting))
    return cut("result", result=total)


def _reduce(m: Module, heap: list, height: int, width: int, name: str) -> None:
    """Reduce a heap of (time, number, row) in place to at most `height` rows."""
    heapq.heapify(heap)
    count = len(heap)
    while len(heap) > height:
        (t0, _, x), (t1, _, y), (t2, _, z) = (heapq.heappop(heap) for _ in range(3))
        lengths = sorted(len(row) for row in (x, y, z))
        half, total, carry = (
            Signal(min(bits, width), name=f"{kind}_{name}_{count}")
            for kind, bits in (("half", lengths[2]), ("sum", lengths[2]), ("carry", lengths[1]))
        )
        m.d.comb += [half.eq(x ^ y), total.eq(half ^ z), carry.eq((x & y) | (half & z))]
        early = max(t0, t1)
        row = Cat(Const(0, 1), carry)[:width]
        heapq.heappush(heap, (max(early + SUM, t2 + SUM_LATE), count, total))
        heapq.heappush(heap, (max(early + CARRY, t2 + CARRY_LATE), count + 1, row))
        count += 2  # numbers the rows, for their names and to order rows of equal time
