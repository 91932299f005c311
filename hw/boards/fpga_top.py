"""Top of a board's FPGA: the design's Verilog on the board's pins, with a synchronised reset."""

import contextlib
from typing import Any

from amaranth.build.res import ResourceError
from amaranth.hdl import (
    ClockDomain,
    ClockSignal,
    Elaboratable,
    Instance,
    Module,
    ResetSignal,
    Signal,
)
from amaranth.lib import io
from amaranth.lib.cdc import FFSynchronizer

from hw.boards.platforms import FpgaBoard
from hw.boards.pll import PllClock


class FpgaTop(Elaboratable):
    """An Instance of a design with ports clk, rst, rx, tx, running and error.

    The platform's default reset (power-on, and the button where its platform names one) resets it,
    and a PLL until it has locked. LED 0 shows running, LED 1 error, where the board has them.

    :param module: top module of `verilog`, the whole text.
    :param board: says what makes the clock.
    """

    def __init__(self, module: str, verilog: str, board: FpgaBoard):
        self.module = module
        self.verilog = verilog
        self.board = board

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        platform.add_file("design.v", self.verilog)
        if self.board.pll is not None:
            m.domains.sync = ClockDomain()
            m.submodules.clock = PllClock(self.board.pll, self.board.pll_at_pin)
        uart = platform.request("uart", 0, dir="-")
        m.submodules.rx_pin = rx_pin = io.Buffer(io.Direction.Input, uart.rx)
        m.submodules.tx_pin = tx_pin = io.Buffer(io.Direction.Output, uart.tx)
        rx = Signal(init=1)
        running = Signal()
        error = Signal()
        # The line idles high, so the synchroniser does too: no start bit after reset.
        m.submodules.rx = FFSynchronizer(rx_pin.i, rx, init=1)
        # ECP5's own reset has no signal in the domain: it starts this counter again.
        held = Signal(4, init=15)
        m.d.sync += held.eq(held - held.any())
        m.submodules.design = Instance(
            self.module,
            i_clk=ClockSignal(),
            i_rst=held.any() | ResetSignal(allow_reset_less=True),
            i_rx=rx,
            o_tx=tx_pin.o,
            o_running=running,
            o_error=error,
        )
        for number, shown in enumerate((running, error)):
            # Some boards have none, and a Colorlight's is a pin of its serial line.
            with contextlib.suppress(ResourceError):
                led = io.Buffer(io.Direction.Output, platform.request("led", number, dir="-"))
                m.submodules[f"led_{number}"] = led
                m.d.comb += led.o.eq(shown)
        return m
