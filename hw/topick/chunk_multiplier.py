"""Products of an operand and a chunk of bits that may be signed."""

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib.wiring import In, Out

from hw.arith import carry_save
from hw.arith.datapath import Registers
from hw.component import Component


class ChunkMultiplier(Component):
    """o = a * chunk, the chunk's first bit having a negative weight if ``negative``.

    A row of a's bits for each bit of the chunk, of which the last is inverted, and one added, if
    it counts negative. A row's sign is replaced as in :class:`hw.arith.adder_tree.AdderTree`. It is
    a quarter smaller and faster than a signed multiplier of one more bit. Combinational.

    Members
    -------
    a : :py:`In(signed(bits))`
    chunk : :py:`In(chunk_bits)`
    negative : :py:`In(1)`
    o : :py:`Out(signed(bits + chunk_bits))`
    """

    def __init__(self, bits: int, chunk_bits: int):
        super().__init__(
            {
                "a": In(signed(bits)),
                "chunk": In(chunk_bits),
                "negative": In(1),
                "o": Out(signed(bits + chunk_bits)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits, width, last = len(self.a), len(self.o), len(self.chunk) - 1
        invert = Signal()
        m.d.comb += invert.eq(self.negative & self.chunk[last])
        rows = []
        excess = 0
        for place, bit in enumerate(self.chunk):
            row = Signal(bits, name=f"row_{place}")
            selected = self.a & bit.replicate(bits)
            m.d.comb += row.eq(selected ^ invert.replicate(bits) if place == last else selected)
            rows.append(Cat(Const(0, place), row[:-1], ~row[-1]))
            excess += 1 << (place + bits - 1)
        rows.append(Cat(Const(0, last), invert))
        rows.append(Const(-excess % (1 << width), width))
        m.d.comb += self.o.eq(carry_save.add_rows(m, rows, width, Registers(m, (), None)))
        return m
