"""A board that is simulated: its top, compiled by Verilator, behind a pseudo-terminal."""

import os
import subprocess
import tty
from pathlib import Path

from hw.boards.design import BoardDesign
from sim.core import cache
from sim.core.design import Design
from sim.core.tools import compiled_folder, compiling
from sim.drivers.board.desk import desk
from sim.drivers.board.serial_port import SerialPort
from sim.drivers.harness import verilated

PROGRAM = Path(__file__).with_name("board.cpp")
DIVISOR = 4
"""Clock cycles a bit: the fewest, because they take time to simulate."""
PATIENCE_S = 120.0
"""Seconds until a packet is sent again: one takes ten thousands of cycles, and a large core's cycle
many microseconds."""


def compile_board(design: BoardDesign) -> Path:
    """Path of the program that simulates a board; built if the cache lacks it."""
    module, verilog = desk(design)
    top = Design(design.block, design.parameters, module, verilog, {}, {})
    key = top.digest(PROGRAM.read_text(), *verilated.tools())
    folder = compiled_folder() / f"{design.module}_{key}"

    def build(done: Path) -> None:
        compiling(f"{design.block.name} on a board")
        verilated.compile_program(top, PROGRAM, done / "board")

    program = verilated.built(folder, "board", build)
    cache.use(folder)
    return program


class SimulatedBoard:
    """A running simulation.

    port
        Path of the pseudo-terminal, a serial port to whoever opens it.
    """

    def __init__(self, design: BoardDesign):
        program = compile_board(design)
        master, self._terminal = os.openpty()
        tty.setraw(self._terminal)
        self.port = os.ttyname(self._terminal)
        command = [str(program), str(master), str(design.board.divisor)]
        self.process = subprocess.Popen(command, pass_fds=[master])
        os.close(master)

    def transport(self, patience: float = PATIENCE_S) -> SerialPort:
        return SerialPort(self.port, patience=patience)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)
