"""Successive approximation: the digital half of a converter."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from hw.component import Component


class SarController(Component):
    """Finds the largest number not above the input, a bit a cycle, by a comparator's answers.

    After `start`, in each of `bits` cycles `trial` is what the converter's DAC shall give out, and
    `above` must say in the same cycle whether the input is at least that. In the last of them,
    `done`, `code` is the result. `start` begins a conversion in the next cycle, whatever goes on.

    Members
    -------
    enable : :py:`In(1)`
        Without it, all stays as it is.
    start : :py:`In(1)`
    trial : :py:`Out(bits)`
        From registers.
    above : :py:`In(1)`
    busy, done : :py:`Out(1)`
        From registers.
    code : :py:`Out(bits)`
        Result so far, this cycle's answer in it.
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
        place = Signal(self._bits)  # one-hot, 0 when idle
        found = Signal(self._bits, reset_less=True)
        m.d.comb += [
            self.trial.eq(found | place),
            self.code.eq(Mux(self.above, self.trial, found)),
            self.busy.eq(place.any()),
            self.done.eq(place[0]),
        ]
        with m.If(self.enable):
            m.d.sync += [place.eq(place >> 1), found.eq(self.code)]
            with m.If(self.start):
                m.d.sync += [place.eq(1 << (self._bits - 1)), found.eq(0)]
        return m
