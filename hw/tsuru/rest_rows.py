"""Softmax attention of several heads in which one row's scores are given: the rest's."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.attention.grouped_rows import GroupedRows
from hw.attention.pe_array import Control, PeArray
from hw.attention.weighted_rows import WeightedRows, WeightedRowsParameters
from hw.layout import FLAG
from hw.ports import Ports, wire_in

ONE = 0x3C00
"""FP16 bits of 1."""


class RestArray(PeArray):
    """A PE array in which a row that is not ``relative`` has a product that is given, FP16.

    All its products are relative to the first finite one. The number given is taken with the row;
    its products leave before the next such row comes.
    """

    def ports(self) -> Ports:
        return {**super().ports(), "given": wire_in(FP16, "Product of a row in place of q k.")}

    def _subtract(self, m: Module, sums, advance, control: Control, total, last_pe) -> Value:
        row = self.i.payload
        given = Signal(FP16.width, reset_less=True)
        with m.If(self.i.valid & self.i.ready & ~row.outer & ~row.relative):
            m.d.sync += given.eq(self.given)
        # Times one: an FP16 number in the format of sums.
        m.submodules.given_sum = product = sums.multiplier()
        m.d.comb += [
            product.a.eq(sums.unpack(m, None, given, "given")),
            product.b.eq(sums.unpack(m, None, Const(ONE, FP16.width), "one")),
        ]
        always = Control()
        m.d.comb += [
            always.summed.eq(control.summed),
            always.last.eq(control.last),
            always.relative.eq(1),
        ]
        either = Signal(len(Value.cast(total)), name="total_or_given")
        m.d.comb += either.eq(Mux(control.relative, total, product.o))
        return super()._subtract(m, sums, advance, always, either, last_pe)


@dataclasses.dataclass(frozen=True)
class RestRowsParameters(WeightedRowsParameters):
    """As of :class:`WeightedRowsParameters`."""

    @cached_property
    def rows_layout(self) -> data.StructLayout:
        """``data`` of a row, ``last`` of a batch's K or V. A row of K that is the ``rest`` has the
        heads' scores in place of elements, head n's in element n."""
        return data.StructLayout({"data": self.row_layout, "last": FLAG, "rest": FLAG})


class RestRows(WeightedRows[RestRowsParameters]):
    """A lane, for head `number` of a batch."""

    def __init__(self, parameters: RestRowsParameters, number: int):
        self._number = number
        super().__init__(parameters)

    def make_array(self) -> RestArray:
        self._array = RestArray(self.parameters.array)
        return self._array

    def elaborate(self, platform):
        m = super().elaborate(platform)
        row = self.rows.payload
        m.d.comb += [
            self._array.i.payload.relative.eq(~row.rest),
            self._array.given.eq(row.data[self._number]),
        ]
        return m


class RestGroup(GroupedRows):
    """Lanes on the same rows, of which one is the rest, whose score each head has for itself."""

    def make_lane(self, number: int) -> RestRows:
        lane = self.parameters.lane
        assert isinstance(lane, RestRowsParameters)
        return RestRows(lane, number)
