"""Sum of the scores of all rows over a group of query heads."""

import dataclasses
import functools

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG, integer
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class GroupSumParameters(Parameters):
    """
    rows
        Scores of a query, 2 or more.
    score_bits
        Width of a signed score, 2 to 24.
    group
        Queries of a sum, at most, 1 to 256.
    """

    rows: int = 64
    score_bits: int = 10
    group: int = 4

    def __post_init__(self):
        require(self.rows >= 2, "rows must be at least 2", self.rows)
        for name, least, most in (("score_bits", 2, 24), ("group", 1, 256)):
            value = getattr(self, name)
            rule = f"{name} must be between {least} and {most}"
            require(least <= value <= most, rule, value)

    @classmethod
    def presets(cls) -> dict[str, "GroupSumParameters"]:
        return {"small": cls(4, 5, 3), "default": cls(), "paper": cls(576, 11, 1)}

    @property
    def sum_bits(self) -> int:
        return self.score_bits + (self.group - 1).bit_length()

    @property
    def latency(self) -> int:
        """Cycles from a sum's last scores to the sum."""
        return 1

    def cycles(self, sums: list[int]) -> int:
        """Cycles from the first scores offered to the last sum taken, without stalls.

        sums
            Queries of each.
        """
        return sum(sums) + len(sums)

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """``values``: a query's scores. ``last`` of a sum."""
        values = data.ArrayLayout(integer(signed(self.score_bits)), self.rows)
        return data.StructLayout({"values": values, "last": FLAG})

    @functools.cached_property
    def output_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(integer(signed(self.sum_bits)), self.rows)


class GroupSum(Component[GroupSumParameters]):
    """Add up the scores of a group's queries, for all rows at once.

        o[r] = sum over the group's queries of values[r]

    The query heads of a group share the rows of a kv head, and so their accumulations
    (:class:`hw.unicaim.charge_accumulator.ChargeAccumulator`).

    Overflow: none up to `group` queries. Latency: 1 cycle. Throughput: a query a cycle, and a cycle
    more for each sum, which is in the accumulators' registers. Outputs depend on registers only.

    Examples
    --------
    >>> from hw.unicaim.group_sum import GroupSumParameters
    >>> parameters = GroupSumParameters(score_bits=12, group=3)
    >>> parameters.sum_bits, parameters.cycles([3, 3])
    (14, 8)
    """

    summary = "Sums of all rows' scores over a group of queries"
    source = "UniCAIM, section III-B4, for grouped queries"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Terms of a group."),
            "o": stream_out(p.output_layout, "Their sum."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        begun = Signal()  # scores of this sum have been added
        # The totals are the output: the next group must not add to them before they have been
        # taken.
        m.d.comb += self.i.ready.eq(~self.o.valid)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.payload.last), begun.eq(~self.i.payload.last)]
        for number in range(p.rows):
            total = Signal(signed(p.sum_bits), name=f"total_{number}", reset_less=True)
            m.d.comb += self.o.payload[number].eq(total)
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += total.eq(self.i.payload.values[number] + Mux(begun, total, 0))
        return m
