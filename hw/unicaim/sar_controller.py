"""Successive approximation: the digital half of a converter."""

from amaranth.hdl import Module, Mux, Signal

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class SarController(Component[None]):
    """The largest number not above the input, one bit per cycle, from a comparator's answers.

    After `start`, in each of `bits` cycles `trial` is the value to put on the converter's DAC, and
    `above` must say in the same cycle whether the input is at least that. In the last of these
    cycles `done` is high and `code` is the result. `start` begins a conversion in the next cycle,
    also while another one is running.
    """

    def __init__(self, bits: int):
        self._bits = bits
        super().__init__()

    def ports(self) -> Ports:
        return {
            "enable": wire_in(1, "While low, all registers keep their values."),
            "start": wire_in(1),
            "trial": wire_out(self._bits, "From registers."),
            "above": wire_in(1),
            "busy": wire_out(1, "From registers."),
            "done": wire_out(1, "The last bit is decided in this cycle; a function of registers."),
            "code": wire_out(self._bits, "Result so far, with this cycle's answer."),
        }

    def elaborate(self, platform):
        m = Module()
        position = Signal(self._bits)  # one-hot: the bit to try; 0 when idle
        found = Signal(self._bits, reset_less=True)  # the bits above it
        m.d.comb += [
            # | bits found | 1 | 0 … 0 |
            self.trial.eq(found | position),
            self.code.eq(Mux(self.above, self.trial, found)),
            self.busy.eq(position.any()),
            self.done.eq(position[0]),
        ]
        # A binary search from the top: a bit is kept if the input is at least the value with it.
        with m.If(self.enable):
            m.d.sync += [position.eq(position >> 1), found.eq(self.code)]
            # A start overrides the last step of the conversion in progress, so conversions follow
            # one another without a cycle between them.
            with m.If(self.start):
                m.d.sync += [position.eq(1 << (self._bits - 1)), found.eq(0)]
        return m
