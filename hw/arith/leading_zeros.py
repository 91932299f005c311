"""Finding the leading one of a word and shifting it to the top."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value


def leading_one(m: Module, word: Value, name: str = "leading") -> Signal:
    """Place of the highest one of `word`, counted so that its top bit has the highest number.

    With k bits enough for every place, the top bit's number is 2^k - 1 whatever the width, so the
    complement of the result is the number of leading zeros. A word without a one gives 0.

    A balanced tree of ``position = upper.any ? upper.position : lower.position``: since the
    position of a half without a one is 0, each multiplexer is an AND and an OR. Depth log2 of the
    width.
    """
    levels = max(1, (len(word) - 1).bit_length())
    padded = Cat(Const(0, (1 << levels) - len(word)), word)
    _, position = _search(m, padded, name)
    result = Signal(levels, name=f"{name}_one")
    m.d.comb += result.eq(Cat(position))
    return result


def _search(m: Module, word: Value, name: str) -> tuple[Value, list[Value]]:
    """Whether there is a one, and the bits of its place."""
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

    If `position` is :func:`leading_one` of the word, its leading one arrives at the top. The order
    is that in which :func:`leading_one` knows the bits.
    """
    for level in reversed(range(len(position))):
        shifted = Signal(len(word), name=f"{name}_{1 << level}")
        m.d.comb += shifted.eq(Mux(position[level], word, word << (1 << level)))
        word = shifted
    return word
