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
    Value,
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
    :param sdram: whether the design has an SDRAM's pins. Its clock is the opposite of the design's.
    """

    def __init__(self, module: str, verilog: str, board: FpgaBoard, sdram: bool = False):
        self.module = module
        self.verilog = verilog
        self.board = board
        self.sdram = sdram

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
            **(self._sdram(m, platform) if self.sdram else {}),
        )
        for number, shown in enumerate((running, error)):
            # Some boards have none, and a Colorlight's is a pin of its serial line.
            with contextlib.suppress(ResourceError):
                led = io.Buffer(io.Direction.Output, platform.request("led", number, dir="-"))
                m.submodules[f"led_{number}"] = led
                m.d.comb += led.o.eq(shown)
        return m

    @staticmethod
    def _sdram(m: Module, platform: Any) -> dict[str, Value]:
        """The design's ports at the pins of the SDRAM, through registers in the pads."""
        pins = platform.request("sdram", 0, dir="-")
        command = Signal(3)
        bank = Signal(len(pins.ba))
        address = Signal(len(pins.a))
        m.submodules.sdram_data = data = io.FFBuffer(io.Direction.Bidir, pins.dq)
        registered = {"ras": command[0], "cas": command[1], "we": command[2], "ba": bank}
        for name, value in (registered | {"a": address}).items():
            pad = io.FFBuffer(io.Direction.Output, getattr(pins, name))
            m.submodules[f"sdram_{name}"] = pad
            m.d.comb += pad.o.eq(value)
        # Always chosen and clocked, and no byte masked; boards may have these wired.
        for name, level in (("clk_en", 1), ("cs", 1), ("dqm", 0)):
            if hasattr(pins, name):
                fixed = io.Buffer(io.Direction.Output, getattr(pins, name))
                m.submodules[f"sdram_{name}"] = fixed
                m.d.comb += fixed.o.eq(level)
        # Low in the first half of the cycle: the device takes what was put out half a cycle before.
        clock: Any = io.DDRBuffer(io.Direction.Output, pins.clk)  # stubs lack its ports
        m.submodules.sdram_clk = clock
        m.d.comb += [clock.o[0].eq(0), clock.o[1].eq(1)]
        return {
            "o_sdram_command": command,
            "o_sdram_bank": bank,
            "o_sdram_address": address,
            "o_sdram_write_data": data.o,
            "o_sdram_drive": data.oe,
            "i_sdram_read_data": data.i,
        }
