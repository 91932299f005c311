"""Products of an operand and a chunk of bits that may be signed."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from hw.arith.bits import carry_save
from hw.arith.datapath import Registers
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.topick.lane_layouts import LaneLayouts


class ChunkMultiplier(Component[None]):
    """o = a * chunk; the chunk's highest bit has a negative weight if ``negative``.

    Combinational. A quarter smaller and faster than a signed multiplier of one more bit.
    """

    def __init__(self, bits: int, chunk_bits: int):
        self._chunk_bits = chunk_bits
        self._bits = bits
        super().__init__()

    def ports(self) -> Ports:
        return {
            "a": wire_in(signed(self._bits)),
            "chunk": wire_in(self._chunk_bits),
            "negative": wire_in(1, "The chunk is two's complement, else unsigned."),
            "o": wire_out(signed(self._bits + self._chunk_bits)),
        }

    def elaborate(self, platform):
        m = Module()
        bits, width, last = len(self.a), len(self.o), len(self.chunk) - 1
        # A partial product for each bit of the chunk. Instead of extending its sign, the sign bit
        # is inverted (S), which adds 2^(bits - 1) to it; a constant takes all of these off again.
        # A negative highest bit subtracts `a`: the last row is ~a, and 1 is added at its weight.
        #
        #   |     S a a a a |
        #   |   S a a a a 0 |
        #   | S a a a a 0 0 |   the last row, inverted if negative
        #   |         + 0 0 |   the + 1 of its negation
        #   |    constant   |
        invert = Signal()
        m.d.comb += invert.eq(self.negative & self.chunk[last])
        rows: list[Value] = []
        excess = 0
        for position, bit in enumerate(self.chunk):
            row = Signal(bits, name=f"row_{position}")
            selected = self.a & bit.replicate(bits)
            m.d.comb += row.eq(selected ^ invert.replicate(bits) if position == last else selected)
            rows.append(Cat(Const(0, position), row[:-1], ~row[-1]))
            excess += 1 << (position + bits - 1)
        rows.append(Cat(Const(0, last), invert))
        rows.append(Const(-excess % (1 << width), width))
        m.d.comb += self.o.eq(carry_save.add_rows(m, rows, width, Registers(m, (), None)))
        return m


def products(
    m: Module, p: LaneLayouts, advance: Value, taking: Value, response, value, q
) -> list[Signal]:
    """Registers with a lane's products, one an element: of q and a chunk of a key, or of p and one
    of a value. A lane of whole ones multiplies a chunk as the upper bits of an element.

    advance
        The registers change.
    taking
        The `response`, a beat with a key's chunk, is multiplied by `q`; else the beat `value`.
    """
    first = Signal(name="first_of_element")  # only the first chunk is signed
    m.d.comb += first.eq(Mux(taking, response.tag.chunk, value.chunk) == 0)
    found = []
    for number, operand in enumerate(q):
        multiplier = ChunkMultiplier(p.operand_bits, p.multiplied_bits)
        m.submodules[f"multiplier_{number}"] = multiplier
        product = Signal.like(multiplier.o, name=f"product_{number}", reset_less=True)
        key, of_value = (_multiplied(p, beat, number) for beat in (response, value))
        m.d.comb += [
            multiplier.a.eq(Mux(taking, operand, value.p)),
            multiplier.chunk.eq(Mux(taking, key, of_value)),
            multiplier.negative.eq(first),
        ]
        with m.If(advance):
            m.d.sync += product.eq(multiplier.o)
        found.append(product)
    return found


def _multiplied(p: LaneLayouts, beat, number: int) -> Value:
    """What is multiplied of an element: | chunk | 0 … 0 |, or all chunks."""
    if not p.whole:
        return beat.data[number]
    rest = [beat.rest[chunk][number] for chunk in range(p.chunks - 1)]
    return Cat(*reversed(rest), beat.data[number])
