"""Adds the weighted sums of a head's lanes (Token-Picker, section 4, step 1)."""

from amaranth.hdl import Module, Signal

from hw.component import Component
from hw.ports import Ports, stream_in, stream_out
from hw.topick.lane_layouts import sums_layout


class SumJoin(Component[None]):
    """o = i[0] + i[1] + ... + i[lanes - 1], element by element, and the same of ``total``.

    A head has one set of sums for each lane, hundreds of cycles apart, so a single adder for each
    element is enough: it adds one lane per cycle, in their order.

    Latency: 1 cycle from the last lane's sums to o, and at least `lanes` cycles from the first's.
    Throughput: a sum every `lanes` + 1 cycles. Overflow: none, o is wide enough.
    """

    def __init__(self, lanes: int, d: int, bits: int, places: int):
        self._places = places
        self._bits = bits
        self._d = d
        self._lanes = lanes
        super().__init__()

    def ports(self) -> Ports:
        growth = (self._lanes - 1).bit_length()
        part, whole = (sums_layout(self._places, self._bits, self._d, more) for more in (0, growth))
        return {
            "i": stream_in(part).array(self._lanes),
            "o": stream_out(whole, "Wider by log2 of the self._lanes, rounded up."),
        }

    def elaborate(self, platform):
        m = Module()
        lane = Signal(range(max(2, self._lanes)))  # to be added next
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        # A fixed order of lanes: a lane that is done early waits, which costs nothing, as the head
        # is complete only with its last lane.
        with m.Switch(lane):
            for number, port in enumerate(self.i):
                is_last = number == self._lanes - 1
                with m.Case(number):
                    m.d.comb += port.ready.eq(~self.o.valid)
                    with m.If(port.valid & port.ready):
                        m.d.sync += lane.eq(0 if is_last else number + 1)
                        m.d.sync += self.o.valid.eq(is_last)
                        pairs = [(self.o.payload.total, port.payload.total)]
                        pairs += zip(self.o.payload.o, port.payload.o, strict=True)
                        for total, part in pairs:
                            m.d.sync += total.eq(part if number == 0 else total + part)
        return m
