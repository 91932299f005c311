"""Shifts by an FPGA's multipliers: a shift left by s is a product by 2^s, a one-hot number.

A multiplier of 18 by 18 bits shifts by 0 to 15 where levels of multiplexers take a LUT for each bit
and level.
"""

from amaranth.hdl import Cat, Const, Module, Signal, Value

SHIFTS = "dsp_shifts"
"""The target whose shifters are multipliers too, one of :data:`hw.component.MULTIPLIERS`."""

WIDTH = 18
"""Bits of an operand of an ECP5's multiplier."""

FINE = 4
"""Bits of a shift's number that one product handles."""


def on_multipliers(platform) -> bool:
    """Whether the target has multipliers to spare for shifts."""
    return getattr(platform, "multiplier", "columns") == SHIFTS


def one_hot(m: Module, number: Value, enable: Value | int, name: str) -> Signal:
    """2^number, or 0 unless `enable`; the numbers' upper bits are decoded once for all.

    Two levels of LUT4s: 2^(k - 2) of the upper bits, 2^k of these and the two lower bits.
    """
    # A shift is a product with a power of two: an FPGA's multipliers are often idle, and take the
    # place of hundreds of LUTs of a barrel shifter.
    lower, upper = number[:2], number[2:]
    selected = Signal(1 << len(upper), name=f"{name}_selected")
    result = Signal(1 << len(number), name=name)
    m.d.comb += [
        selected.eq(Cat((upper == n) & enable for n in range(len(selected)))),
        result.eq(Cat((lower == n % 4) & selected[n // 4] for n in range(len(result)))),
    ]
    return result


def leading_one_hot(m: Module, word: Value, name: str) -> Signal:
    """Bit n is high if `word` has n leading zeros; all are low if it is zero."""
    above = Signal(len(word), name=f"{name}_above")
    result = Signal(len(word), name=name)
    m.d.comb += [
        above.eq(Cat(*(word[n:].any() for n in range(1, len(word))), Const(0, 1))),
        result.eq(Cat(reversed(word & ~above))),
    ]
    return result


def products(
    m: Module, word: Value, factor: Value, pieces: tuple[int, ...], name: str
) -> list[list[Value]]:
    """`word` times the one-hot `factor`: for each bit of the result the bits whose OR it is.

    pieces
        Widths of the pieces that `word` is cut into, the lowest one first. Each is one product;
        where two of them overlap, a bit of the result has two sources, of which one is low.
    """
    bits: list[list[Value]] = [[] for _ in range(len(word) + len(factor) - 1)]
    # A word wider than a multiplier's input is cut; since the factor is one-hot, at most one of two
    # overlapping pieces has a one in any bit, so an OR replaces the sum.
    low = 0
    for number, width in enumerate(pieces):
        piece = word[low : low + width]
        product = Signal(len(piece) + len(factor), name=f"{name}_{number}")
        m.d.comb += product.eq(piece * factor)
        for n, bit in enumerate(product[:-1]):
            bits[low + n].append(bit)
        low += width
    assert low >= len(word)
    return bits


def merged(bits: list[list[Value]]) -> Value:
    """The ORs of :func:`products` as a number."""
    return Cat(Cat(sources).any() for sources in bits)
