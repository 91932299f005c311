"""Sums of probabilities times values, chunk by chunk (Token-Picker, section 4, step 1)."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data

from hw.component import Component
from hw.layout import index
from hw.ports import Ports, stream_out, wire_in, wire_out
from hw.topick.lane_layouts import LaneLayouts


class WeightedSums(Component[LaneLayouts]):
    """o = sum of p v, from the products of p and the chunks of v, in any order; the sum of all p.

    A chunk's products are shifted left by the number of bits below the chunk and added. After the
    ``last`` chunk the sums are output, and the next chunk begins new sums. A p counts in ``total``
    with chunk 0 of its value. Sums wrap around.

    Latency: 2 cycles from `take` to the sums, of which the first computes the products.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "advance": wire_in(1, "Must be low unless `free`."),
            "take": wire_in(
                1,
                "A chunk enters, number ``chunk`` of its element, with its ``p``; its "
                "``products`` follow one stage later.",
            ),
            "chunk": wire_in(index(range(p.chunks))),
            "p": wire_in(p.probability_bits),
            "last": wire_in(1),
            "products": wire_in(data.ArrayLayout(signed(p.product_bits), p.d)),
            "free": wire_out(1, "No sum is lost if the pipeline advances."),
            "o": stream_out(p.sum_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p, width = self.parameters, self.parameters.sum_bits
        valid = Signal()  # of the stage of the products
        # `first` masks the old sums instead of clearing them, so no cycle passes between two heads.
        first = Signal(init=1)
        last = Signal(name="last_taken", reset_less=True)
        chunk = Signal.like(self.chunk, name="chunk_taken", reset_less=True)
        probability = Signal.like(self.p, name="p_taken", reset_less=True)
        m.d.comb += self.free.eq(~valid | ~self.o.valid | self.o.ready)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.advance):
            m.d.sync += [valid.eq(self.take), last.eq(self.last), chunk.eq(self.chunk)]
            # A value's chunks all carry its p; it counts once.
            m.d.sync += probability.eq(Mux(self.chunk == 0, self.p, 0))
            with m.If(valid):
                m.d.sync += [first.eq(last), self.o.valid.eq(last)]
        mass = self.o.payload.total
        with m.If(self.advance & valid):
            m.d.sync += mass.eq((mass & ~first.replicate(len(mass))) + probability)
        sums = zip(self.o.payload.o, self.products, strict=True)
        for number, (total, product) in enumerate(sums):
            # | sign | product | 0 … 0, `unknown` of them |, of a chunk's bits at the lowest end;
            # at the highest of an element's, the first chunk's product, or a whole one's, is right.
            aligned = Signal(signed(width), name=f"aligned_{number}")
            # Partial products have the weight of their chunk; shifts by constants are wires and a
            # multiplexer.
            with m.Switch(chunk):
                for which in range(p.chunks):
                    with m.Case(which):
                        left = p.unknown(which) + p.chunk_bits - p.multiplied_bits
                        m.d.comb += aligned.eq(product << left if left >= 0 else product >> -left)
            with m.If(self.advance & valid):
                m.d.sync += total.eq((total & ~first.replicate(width)).as_signed() + aligned)
        return m
