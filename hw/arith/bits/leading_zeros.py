"""Leading-one detection and normalising shift."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value


def leading_one(m: Module, word: Value, name: str = "leading") -> Signal:
    """Position of the highest one of `word`, where the top bit has the number 2^k - 1.

    k is the number of bits of the result, ceil(log2 width), so the complement of the result is the
    number of leading zeros. A word of zeros gives 0.

    A balanced tree of ``position = upper.any ? upper.position : lower.position``: since the
    position of a half of zeros is 0, each multiplexer is an AND and an OR. Depth log2 of the width.
    """
    levels = max(1, (len(word) - 1).bit_length())
    # Zeros below the word, so that its top bit has the number 2^k - 1.
    padded = Cat(Const(0, (1 << levels) - len(word)), word)
    _, position = _search(m, padded, name)
    result = Signal(levels, name=f"{name}_one")
    m.d.comb += result.eq(Cat(position))
    return result


def _search(m: Module, word: Value, name: str) -> tuple[Value, list[Value]]:
    """Whether the word has a one, and the bits of its position."""
    if len(word) == 1:
        return word, []
    half = len(word) // 2
    lower, low_bits = _search(m, word[:half], f"{name}_l")
    upper, high_bits = _search(m, word[half:], f"{name}_u")
    found = Signal(name=f"{name}_found")
    bits = Signal(len(low_bits), name=f"{name}_place")
    m.d.comb += found.eq(upper | lower)
    m.d.comb += [
        bit.eq(high | ~upper & low)
        for bit, high, low in zip(bits, high_bits, low_bits, strict=True)
    ]
    return found, [*bits, upper]


def shift_to_top(m: Module, word: Value, position: Value, name: str = "normal") -> Value:
    """`word` shifted left by the complement of `position`, the longest shift first.

    If `position` is :func:`leading_one` of the word, its leading one becomes the top bit. The
    highest bits of the position, which arrive first, control the first multiplexers.
    """
    for level in reversed(range(len(position))):
        shifted = Signal(len(word), name=f"{name}_{1 << level}")
        m.d.comb += shifted.eq(Mux(position[level], word, word << (1 << level)))
        word = shifted
    return word
