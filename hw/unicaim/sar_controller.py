"""Successive approximation: the digital half of a converter."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from hw.component import Component


class SarController(Component):
    """The largest number not above the input, one bit per cycle, from a comparator's answers.

    After `start`, in each of `bits` cycles `trial` is the value to put on the converter's DAC, and
    `above` must say in the same cycle whether the input is at least that. In the last of these
    cycles `done` is high and `code` is the result. `start` begins a conversion in the next cycle,
    also while another one is running.

    Members
    -------
    enable : :py:`In(1)`
        While low, all registers keep their values.
    start : :py:`In(1)`
    trial : :py:`Out(bits)`
        From registers.
    above : :py:`In(1)`
    busy, done : :py:`Out(1)`
        From registers.
    code : :py:`Out(bits)`
        Result so far, with this cycle's answer.
    """

    def __init__(self, bits: int):
        self._bits = bits
        super().__init__(
            {
                "enable": In(1),
                "start": In(1),
                "trial": Out(bits),
                "above": In(1),
                "busy": Out(1),
                "done": Out(1),
                "code": Out(bits),
            }
        )

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
        with m.If(self.enable):
            m.d.sync += [position.eq(position >> 1), found.eq(self.code)]
            with m.If(self.start):
                m.d.sync += [position.eq(1 << (self._bits - 1)), found.eq(0)]
        return m
