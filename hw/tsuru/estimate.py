"""Estimates of scores as numbers, and pieces of the pipeline that makes them."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed, unsigned

from hw.layout import FixedPoint
from hw.tsuru.row_format import SCALE_BITS

FRACTION = 6
"""Fraction bits of an estimate."""
ESTIMATE = FixedPoint(signed(16), FRACTION)
"""A score as a binary logarithm: log2(e) q k."""


def sum_of(values: list) -> Value:
    """A tree of adders, neighbours first."""
    while len(values) > 1:
        pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
        values = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def delayed(m: Module, advance, name: str, flags, scales: list) -> tuple[Value, list]:
    """Flags, of which the first is valid, and scales a stage later."""
    later = Signal(len(flags), name=f"{name}_flags")
    kept = [
        Signal(unsigned(SCALE_BITS), name=f"{name}_scale_{n}", reset_less=True)
        for n in range(len(scales))
    ]
    with m.If(advance):
        m.d.sync += [later.eq(flags), *(to.eq(of) for to, of in zip(kept, scales, strict=True))]
    return later, kept


def clipped(m: Module, total) -> Value:
    """A signed number, saturated at an estimate's bits."""
    width = ESTIMATE.width
    above = total[width - 1 :]
    fits = ~above.any() | above.all()
    result = Signal(ESTIMATE.as_shape(), name="clipped")
    limit = Cat((~total[-1]).replicate(width - 1), total[-1])
    m.d.comb += result.eq(Mux(fits, total[:width], limit))
    return result


def saturated(m: Module, product, right, not_finite) -> Value:
    """product 2^-right, rounded down and saturated; a left shift saturates whatever is not 0."""
    shifted = Signal(product.shape(), name="shifted")
    result = Signal(ESTIMATE.as_shape(), name="saturated")
    m.d.comb += shifted.eq(product >> right[:-1])
    left = right[-1] & product.any()
    largest = (1 << ESTIMATE.width - 1) - 1
    m.d.comb += result.eq(
        Mux(
            not_finite,
            largest,
            Mux(left, Mux(product[-1], -largest - 1, largest), clipped(m, shifted)),
        )
    )
    return result
