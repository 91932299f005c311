"""Tables of smooth integer functions as the sum of two smaller tables, exact at every entry.

The function's index is cut into coarse, middle and low bits. One table is indexed by the coarse and
middle bits, the other by the coarse and low bits, and the function is their sum without its `guard`
low bits::

    index        | coarse | middle | low |
    base         | coarse | middle |
    step         | coarse |        | low |

    values[i] = (base[coarse, middle] + step[coarse, low]) >> guard

This is the bipartite table method (D. Das Sarma and D. Matula, "Faithful bipartite ROM reciprocal
tables", 1995), but the entries are solved for instead of rounded: for given cuts the conditions are
a system of difference constraints on integers, so relaxation (Bellman and Ford) finds entries that
make every value exact, or shows that the system has no solution.
"""

import dataclasses
import functools
from collections.abc import Callable

from amaranth.hdl import Cat, Module, Signal, Value

# What a bit of the adder costs in table bits, such that the choice between one table and two has
# the smaller product of area and delay for tables of 2^8 to 2^12 entries of 8 to 16 bits (45 nm).
ADDER_BIT = 200
ROUNDS = 24  # of relaxation; solvable systems of up to 2^12 values take fewer


@dataclasses.dataclass(frozen=True)
class SplitTable:
    """Entries of the two tables; where `step` is empty, `base` holds the values themselves.

    width
        Bits of a value.
    low, middle
        Numbers of low and middle index bits; the rest are coarse.
    guard
        Bits of the sum below a value.
    """

    width: int
    low: int
    middle: int
    guard: int
    base: tuple[int, ...]
    step: tuple[int, ...] = ()

    def read(self, m: Module, index: Value, cut: Callable[..., list[Value]]) -> Value:
        """The value at `index`; `cut` may put pipeline registers at the tables' outputs.

        cut
            Called with the outputs by name, returns them in that order as a list.
        """
        base = _table(m, "base", self.base, index[self.low :])
        if not self.step:
            return cut(base=base)[0]
        fine = Cat(index[: self.low], index[self.low + self.middle :])
        step = _table(m, "step", self.step, fine)
        base, step = cut(base=base, step=step)
        total = Signal(self.width + self.guard, name="total")
        m.d.comb += total.eq(base + step)
        return total[self.guard :]


def _table(m: Module, name: str, entries: tuple[int, ...], index: Value) -> Value:
    entry = Signal(max(1, max(entries).bit_length()), name=name)
    with m.Switch(index):
        for number, value in enumerate(entries[:-1]):
            with m.Case(number):
                m.d.comb += entry.eq(value)
        with m.Default():
            m.d.comb += entry.eq(entries[-1])
    return entry


@functools.cache
def fit(values: tuple[int, ...]) -> SplitTable:
    """The cheapest tables found for a monotonic function of 2^n values.

    All cuts that cost less than one table are tried, cheapest first.
    """
    address = (len(values) - 1).bit_length()
    width = max(values).bit_length()
    candidates = []
    for low in range(1, address - 1):
        # A step entry holds the rise of the function over the values of the low bits.
        firsts, lasts = values[:: 1 << low], values[(1 << low) - 1 :: 1 << low]
        rise = max(abs(last - first) for first, last in zip(firsts, lasts, strict=True))
        for middle in range(1, address - low + 1):
            for guard in range(5):
                bits = (width + guard) << (address - low)
                bits += (rise << guard).bit_length() << (address - middle)
                cost = bits + ADDER_BIT * (width + guard)
                if cost < width << address:
                    candidates.append((cost, low, middle, guard))
    failed: list[tuple[int, int, int]] = []  # low, middle, guard
    for _, low, middle, guard in sorted(candidates):
        # More middle bits or fewer guard bits only add constraints: no solution either.
        if any(low == lo and middle >= mid and guard <= bits for lo, mid, bits in failed):
            continue
        tables = _solve(values, low, middle, guard)
        if tables is not None:
            return SplitTable(width, low, middle, guard, *tables)
        failed.append((low, middle, guard))
    return SplitTable(width, 0, 0, 0, values)


def _solve(values, low, middle, guard) -> tuple | None:
    """Both tables' entries for given cuts; None if the constraints have no solution."""
    base, step = [], []
    size = 1 << (low + middle)
    # Each value of the coarse bits is a separate system of equations.
    for start in range(0, len(values), size):
        group = values[start : start + size]
        rows = [group[row : row + (1 << low)] for row in range(0, size, 1 << low)]
        offsets = _relax(rows, guard)
        if offsets is None:
            return None
        step += offsets
        base += [_most_zeros(row, offsets, guard) for row in rows]
    return tuple(base), tuple(step)


def _relax(rows, guard: int) -> list[int] | None:
    """Offsets by column such that each row has a base: base + offset >> guard = value."""
    first = rows[0][0] << guard
    least = [[(value << guard) - first for value in row] for row in rows]
    slack = (1 << guard) - 1
    columns = list(zip(*least, strict=True))
    # base[r] <= minus[c] + least[r][c] + slack, and minus[c] <= base[r] - least[r][c]
    base, minus = [0] * len(rows), [0] * len(columns)
    for _ in range(ROUNDS):
        now = [
            min(known, min(map(int.__add__, minus, row)) + slack)
            for known, row in zip(base, least, strict=True)
        ]
        then = [
            min(known, min(map(int.__sub__, now, column)))
            for known, column in zip(minus, columns, strict=True)
        ]
        if (now, then) == (base, minus):
            return [max(minus) - value for value in minus]
        base, minus = now, then
    return None


def _most_zeros(row, offsets, guard: int) -> int:
    """The base with most trailing zeros among a row's possible ones: it needs the least logic."""
    least = max((value << guard) - offset for value, offset in zip(row, offsets, strict=True))
    most = min(
        ((value + 1) << guard) - 1 - offset for value, offset in zip(row, offsets, strict=True)
    )
    zeros = 0
    while (most >> (zeros + 1) << (zeros + 1)) >= max(least, 1):
        zeros += 1
    return most >> zeros << zeros
