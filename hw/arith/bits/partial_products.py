"""Unsigned products as columns of bits: radix-4 Booth digits, then Dadda's tree of adders.

A column holds the bits of one weight, each with its delay in levels of two-input XOR gates. The
tree adds the earliest bits first.
"""

from typing import NamedTuple

from amaranth.hdl import Cat, Const, Module, Signal, Value


class Bit(NamedTuple):
    time: float
    value: Value


Columns = list[list[Bit]]


def booth_columns(m: Module, x: Value, y: Value) -> Columns:
    """Bits that add up to `x` times `y`, of equal widths n, modulo 2^2n.

    Two bits of `y` and the one below make a digit d = -2 ... 2 (Booth 1951, MacSorley 1961). Its
    row is |d| x, inverted where d < 0::

        | 1 1 1 1 1 1 | ~s | row: |d| x or ~(|d| x)  (n + 1 bits) |       s = 1 if d < 0
                                                              + s

    Adding s at the lowest bit makes the inversion a negation. The ones above the row are its sign
    extension; the ones of all rows are added up in advance, as constants. A bit of x, inverted or
    not, is used for itself and, doubled, for the next higher bit, so that a row costs one XOR and
    one AND-OR for each bit.
    """
    n = len(x)
    columns: Columns = [[] for _ in range(2 * n)]
    signs = 0
    # The bits of y with a zero below and zeros above, in overlapping groups of three.
    digits = [Const(0, 1), *y, Const(0, 1), Const(0, 1)]
    for low in range(0, n + 1, 2):
        below, middle, top = digits[low : low + 3]
        signed = low + 1 < n  # the last digit is not negative: y has no bits above it
        one, two = Signal(name=f"one_{low}"), Signal(name=f"two_{low}")
        chosen = Signal(n, name=f"multiplicand_{low}")
        row = Signal(n + 1, name=f"row_{low}")
        m.d.comb += [
            # |d| is 1 or 2, and x inverted if d < 0.
            one.eq(middle ^ below),
            two.eq((top & ~middle & ~below) | (~top & middle & below)),
            chosen.eq(x ^ top.replicate(n)),
            row.eq(
                (Cat(chosen, top) & one.replicate(n + 1))
                | (Cat(top, chosen) & two.replicate(n + 1))
            ),
        ]
        for column, bit in zip(columns[low:], row, strict=False):
            column.append(Bit(1.5, bit))
        if signed:
            # The one that completes the negation, and the inverted sign above the row. The
            # constant -2^(low + n + 1) makes up for the inversion and extends the sign.
            negative = Signal(name=f"negative_{low}")
            m.d.comb += negative.eq(top & ~(middle & below))
            columns[low].append(Bit(0.5, negative))
            columns[low + n + 1].append(Bit(0.5, ~negative))
            signs -= 1 << (low + n + 1)
    for weight, column in enumerate(columns):
        if signs >> weight & 1:
            column.append(Bit(0.0, Const(1, 1)))
    return columns


def product_columns(m: Module, platform, x: Value, y: Value) -> Columns:
    """Bits that add up to `x` times `y`, as the target has its products.

    For an FPGA's multipliers they are the product itself, one bit in a column, so that no tree of
    adders follows.
    """
    if getattr(platform, "multiplier", "columns") == "columns":
        return booth_columns(m, x, y)
    product = Signal(2 * len(x), name="whole_product")
    m.d.comb += product.eq(x * y)
    return [[Bit(0.0, bit)] for bit in product]


def reduce_columns(m: Module, columns: Columns, height: int) -> Columns:
    """The same sum in columns of at most `height` bits, with the fewest adders (Dadda 1965).

    Carries out of the last column are dropped.
    """
    # Dadda's sequence: full adders reduce 3 rows to 2, so 2, 3, 4, 6, 9, 13, ...
    heights = [2]
    while heights[-1] < max(map(len, columns)):
        heights.append(heights[-1] * 3 // 2)
    for most in reversed(heights[:-1]):
        if most >= height:
            columns = _level(m, columns, most)
    return columns


def _level(m: Module, columns: Columns, most: int) -> Columns:
    """One level: columns of at most `most` bits, with full adders and a half adder at the end."""
    reduced: Columns = []
    carries: list[Bit] = []  # of the column before
    for weight, column in enumerate(columns):
        waiting = sorted(column, key=lambda bit: bit.time)
        sums: list[Bit] = []
        next_carries: list[Bit] = []
        while (excess := len(waiting) + len(sums) + len(carries) - most) > 0:
            inputs = 3 if excess > 1 else 2
            total, carry = _add(m, waiting[:inputs], f"{most}_{weight}_{len(sums)}")
            waiting = waiting[inputs:]
            sums.append(total)
            next_carries.append(carry)
        reduced.append(waiting + sums + carries)
        carries = next_carries
    return reduced


def _add(m: Module, bits: list[Bit], name: str) -> tuple[Bit, Bit]:
    """Sum and carry of two or three bits; the last one passes one gate only."""
    half = Signal(name=f"half_{name}")
    total, carry = Signal(name=f"sum_{name}"), Signal(name=f"carry_{name}")
    a, b, *rest = (bit.value for bit in bits)
    time = max(bit.time for bit in bits[:2])
    m.d.comb += half.eq(a ^ b)
    if not rest:
        m.d.comb += [total.eq(half), carry.eq(a & b)]
        return Bit(time + 1.0, total), Bit(time + 0.5, carry)
    m.d.comb += [total.eq(half ^ rest[0]), carry.eq((a & b) | (half & rest[0]))]
    late = bits[2].time
    return Bit(max(time + 2.0, late + 1.0), total), Bit(max(time + 1.5, late + 1.0), carry)


def pack(columns: Columns) -> Value:
    """All bits as one value, for a pipeline register."""
    return Cat(bit.value for column in columns for bit in column)


def unpack(columns: Columns, value: Value) -> Columns:
    """The inverse of :func:`pack`, for columns of the same heights; all bits have no delay."""
    bits = iter(value)
    return [[Bit(0.0, next(bits)) for _ in column] for column in columns]


def rows(columns: Columns) -> tuple[Value, Value]:
    """Columns of at most two bits as two numbers."""
    padded = [[bit.value for bit in column] + [Const(0, 1)] * 2 for column in columns]
    return Cat(column[0] for column in padded), Cat(column[1] for column in padded)
