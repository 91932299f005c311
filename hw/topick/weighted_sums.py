"""Sums of probabilities times values, chunk by chunk (Token-Picker, section 4, step 1)."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.layout import FixedPoint, index


class WeightedSums(Component):
    """o = sum of p v, from the products of p and the chunks of v, in any order.

    A chunk's products are shifted left by the number of bits below the chunk and added. After the
    ``last`` chunk the sums are output, and the next chunk begins new sums. Sums wrap around.

    Latency: 2 cycles from `take` to the sums, of which the first is that of the products.

    Members
    -------
    advance : :py:`In(1)`
        Must be low unless `free`.
    take : :py:`In(1)`
        A chunk enters, number ``chunk`` of its element; its ``products`` follow one stage later.
    free : :py:`Out(1)`
        No sum is lost if the pipeline advances.
    o : :py:`Out(stream.Signature(...))`
    """

    def __init__(self, d: int, bits: int, chunk_bits: int):
        self._bits, self._chunk_bits = bits, chunk_bits
        self._chunks = bits // chunk_bits
        total = FixedPoint(signed(2 * bits), bits - 1)
        super().__init__(
            {
                "advance": In(1),
                "take": In(1),
                "chunk": In(index(range(self._chunks))),
                "last": In(1),
                "products": In(data.ArrayLayout(signed(bits + chunk_bits), d)),
                "free": Out(1),
                "o": Out(stream.Signature(data.ArrayLayout(total, d))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = 2 * self._bits
        valid = Signal()  # of the stage of the products
        first = Signal(init=1)
        last = Signal(name="last_taken", reset_less=True)
        chunk = Signal.like(self.chunk, name="chunk_taken", reset_less=True)
        m.d.comb += self.free.eq(~valid | ~self.o.valid | self.o.ready)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.advance):
            m.d.sync += [valid.eq(self.take), last.eq(self.last), chunk.eq(self.chunk)]
            with m.If(valid):
                m.d.sync += [first.eq(last), self.o.valid.eq(last)]
        for number, (total, product) in enumerate(zip(self.o.payload, self.products, strict=True)):
            # | sign | product | 0 … 0, `unknown` of them |
            aligned = Signal(signed(width), name=f"aligned_{number}")
            with m.Switch(chunk):
                for which in range(self._chunks):
                    with m.Case(which):
                        unknown = self._bits - self._chunk_bits * (which + 1)
                        m.d.comb += aligned.eq(product << unknown)
            with m.If(self.advance & valid):
                m.d.sync += total.eq((total & ~first.replicate(width)).as_signed() + aligned)
        return m
