"""Which row of each kv head the next token replaces: the one with the least attention (H2O)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory

from hw.attention.probability import FRACTION, fixed, is_probability
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.component import Component
from hw.layout import FLAG, index
from hw.parameters import Parameters, require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class HeavyHittersParameters(Parameters):
    """
    kv_heads
        Number of kv heads.
    capacity
        Number of rows of each, a power of two.
    sum_bits
        Width of the integer part of a row's sum, 1 to 24.
    position_bits
        Width of a token's position in its sequence, 1 to 32.
    """

    kv_heads: int = 3
    capacity: int = 256
    sum_bits: int = 12
    position_bits: int = 24

    def __post_init__(self):
        require(1 <= self.sum_bits <= 24, "sum_bits must be 1 to 24", self.sum_bits)
        rule = "position_bits must be 1 to 32"
        require(1 <= self.position_bits <= 32, rule, self.position_bits)

    @property
    def row_bits(self) -> int:
        return (self.capacity - 1).bit_length()

    @property
    def head_bits(self) -> int:
        return max(1, (self.kv_heads - 1).bit_length())

    @property
    def sum_width(self) -> int:
        """Width of a row's sum, in units of 2^-24."""
        return FRACTION + self.sum_bits

    @cached_property
    def entry_layout(self) -> data.StructLayout:
        """``valid``, and the row ``row`` of a kv head."""
        return data.StructLayout(
            {"valid": FLAG, "row": index(self.row_bits), "kv_head": index(self.head_bits)}
        )

    @cached_property
    def use_layout(self) -> data.StructLayout:
        """``valid``; the probability ``p`` of the head's next row, with the head's ``kv_head``;
        whether the head is ``final`` of its kv head."""
        p = SpecialFunctionUnitParameters().output_layout
        return data.StructLayout(
            {"valid": FLAG, "p": p, "kv_head": index(self.head_bits), "final": FLAG}
        )


class HeavyHitters(Component[HeavyHittersParameters]):
    """S_j += p_j for each row j of a kv head, and at the end of a step the least S_j.

    ::

        cycle   0          1                       2
        use     read S_j   add, write back;        victim
                           compare with the least

    A step's heads give the probabilities of all rows of their kv head, from row 0 on. After the
    kv head's final head, `victim` is the row with the least sum, of equal ones the oldest token's,
    without the `recent` newest tokens, of which the new one is one. A new row begins with a sum of
    0 and belongs to the token at `position`.

    Sums are exact until they saturate. A probability that is invalid, not from 0 to 1, counts as 0.

    Latency: 2 cycles from a kv head's last probability to its victim. Throughput: a probability a
    cycle. The same row of a kv head must not be used in two cycles one after the other, nor a row
    be new in the cycle after a use.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "new": wire_in(p.entry_layout, "A new row."),
            "use": wire_in(p.use_layout, "A probability."),
            "position": wire_in(p.position_bits, "Position of the step's token."),
            "recent": wire_in(range(p.capacity), "Number of newest tokens that are kept."),
            "victim": wire_out(
                data.ArrayLayout(index(p.row_bits), p.kv_heads), "Row to replace, of each kv head."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, use, new = self.parameters, self.use, self.new
        rows = p.kv_heads << p.row_bits
        m.submodules.sums = sums = memory.Memory(shape=unsigned(p.sum_width), depth=rows, init=[])
        m.submodules.positions = positions = memory.Memory(
            shape=unsigned(p.position_bits), depth=rows, init=[]
        )
        # Two memories of one entry for each row of each kv head.
        sum_read, sum_write = sums.read_port(), sums.write_port()
        position_read, position_write = positions.read_port(), positions.write_port()

        # Cycle 0: read the row's sum and position. A head's rows come in order.
        # H2O's score of a token is the sum of all probabilities it has received, by all heads of
        # its kv head: one read and one write a cycle, beside the row of V that has the probability.
        row = Signal(p.row_bits)
        place = Cat(row, use.kv_head)
        m.d.comb += [sum_read.addr.eq(place), position_read.addr.eq(place)]
        with m.If(use.valid):
            m.d.sync += row.eq(Mux(use.p.last, 0, row + 1))

        # Cycle 1: add the probability, write the sum back, compare it with the least one so far.
        added = Signal(p.use_layout)
        added_row = Signal(p.row_bits, reset_less=True)
        probability = Signal(FRACTION + 1)
        total = Signal(p.sum_width + 1)
        grown = Signal(p.sum_width)
        m.d.sync += [added.eq(use), added_row.eq(row)]
        m.d.comb += [
            # Fixed point: the order of additions does not matter, and the bit-exact model is a
            # plain sum.
            probability.eq(Mux(is_probability(added.p.y), fixed(added.p.y), 0)),
            total.eq(sum_read.data + probability),
            # A sum that overflows keeps its largest value.
            grown.eq(total[:-1] | total[-1].replicate(p.sum_width)),
            sum_write.en.eq(added.valid | new.valid),
            sum_write.addr.eq(Cat(added_row, added.kv_head)),
            sum_write.data.eq(grown),
            position_write.en.eq(new.valid),
            position_write.addr.eq(Cat(new.row, new.kv_head)),
            position_write.data.eq(self.position),
        ]
        with m.If(new.valid):  # no probability was used in the cycle before
            m.d.comb += [sum_write.addr.eq(Cat(new.row, new.kv_head)), sum_write.data.eq(0)]

        least = Signal(p.sum_width, reset_less=True)
        oldest = Signal(p.position_bits, reset_less=True)  # position of the token with the least
        least_row = Signal(p.row_bits, reset_less=True)
        found = Signal()  # a row of this head may be replaced
        may_leave = Signal()
        better = Signal()
        position = position_read.data
        m.d.comb += [
            # The newest tokens are kept whatever their sum.
            may_leave.eq(self.position - position >= self.recent),
            better.eq(
                may_leave & (~found | (grown < least) | ((grown == least) & (position < oldest)))
            ),
        ]
        with m.If(added.valid):
            # Among equal sums the oldest token is replaced.
            with m.If(better):
                m.d.sync += [least.eq(grown), oldest.eq(position), least_row.eq(added_row)]
            m.d.sync += found.eq(~added.p.last & (found | better))
            # The search ends with the last row of the last head of a kv head.
            with m.If(added.p.last & added.final):
                victim = Array(self.victim[n] for n in range(p.kv_heads))[added.kv_head]
                m.d.sync += victim.eq(Mux(better, added_row, least_row))
        return m
