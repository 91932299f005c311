"""Adds the weighted sums of a head's lanes (Token-Picker, section 4, step 1)."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.layout import FixedPoint


class SumJoin(Component):
    """o = i[0] + i[1] + ... + i[lanes - 1], element by element.

    A head has one sum for each lane, hundreds of cycles apart, so a single adder for each element
    is enough: it adds one lane per cycle, in their order.

    Latency: 1 cycle from the last lane's sums to o, and at least `lanes` cycles from the first's.
    Throughput: a sum every `lanes` + 1 cycles. Overflow: none, o is wide enough.

    Members
    -------
    i : :py:`In(stream.Signature(ArrayLayout)).array(lanes)`
        d sums of 2 `bits` bits.
    o : :py:`Out(stream.Signature(ArrayLayout))`
        d sums, wider by log2 of the lanes, rounded up.
    """

    def __init__(self, lanes: int, d: int, bits: int):
        self._lanes = lanes
        growth = (lanes - 1).bit_length()
        part, whole = (
            data.ArrayLayout(FixedPoint(signed(2 * bits + more), bits - 1), d)
            for more in (0, growth)
        )
        super().__init__(
            {
                "i": In(stream.Signature(part)).array(lanes),
                "o": Out(stream.Signature(whole)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lane = Signal(range(max(2, self._lanes)))  # to be added next
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.Switch(lane):
            for number, port in enumerate(self.i):
                is_last = number == self._lanes - 1
                with m.Case(number):
                    m.d.comb += port.ready.eq(~self.o.valid)
                    with m.If(port.valid & port.ready):
                        m.d.sync += lane.eq(0 if is_last else number + 1)
                        m.d.sync += self.o.valid.eq(is_last)
                        for total, part in zip(self.o.payload, port.payload, strict=True):
                            m.d.sync += total.eq(part if number == 0 else total + part)
        return m
