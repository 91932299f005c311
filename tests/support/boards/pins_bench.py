"""Tests within cocotb, on a board's pins, that :mod:`tests.boards.test_pins` runs.

``BOARD`` is JSON: block, board (of BoardParameters), vectors and seed.
"""

import functools
import json
import os

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge
from cocotb.triggers import ClockCycles, RisingEdge

from hw.boards.design import BoardParameters, board_design
from hw.boards.protocol import Operation
from hw.catalogue import find
from sim.core.stimulus import compare
from sim.drivers.board.board import Board
from sim.drivers.board.pins import BROKEN, GLITCH, GOOD, LOST, Pins
from sim.drivers.board.run import run_stimulus
from sim.drivers.run import load_testbench

CASE = json.loads(os.environ["BOARD"])
BLOCK = find(CASE["block"])
PARAMETERS = BLOCK.parameters_class.preset("first")
PERIOD_NS = 10
STATUS = bytes([Operation.STATUS])
# The far end's clock is a little slow.
DRIFT = 1.015


@functools.cache
def design():
    return board_design(BLOCK, PARAMETERS, BoardParameters(**CASE["board"]))


@functools.cache
def stimulus():
    """With beats on the way for most of the run."""
    return load_testbench(BLOCK).stimulus(PARAMETERS, None, CASE["vectors"], CASE["seed"])


def host(line: Pins):
    """The testbench through the line; all output beats must be right. The last status, repairs."""
    board = Board(design(), line)
    made = stimulus()
    made.stall = "none"
    outcome = run_stimulus(board, made, timeout=10_000, drain=64)
    assert outcome.failure is None, outcome.failure
    assert sum(map(len, outcome.outputs.values())) > 0
    check = getattr(load_testbench(BLOCK), "compare", compare)
    assert not check(made, outcome.outputs, design().outputs, outcome.cycles_of)
    return board.status(board.do(STATUS)), board.link.repairs


async def power_up(dut, **faults) -> Pins:
    bit_ns = CASE["board"]["divisor"] * PERIOD_NS * DRIFT
    dut.rst.value = 1
    # A reply may be as long as its request; both, and some time between.
    longest = 2.2 * CASE["board"]["packet"] * 10 * bit_ns
    line = Pins(dut, bit_ns, longest, **faults)
    Clock(dut.clk, PERIOD_NS, unit="ns").start()
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    cocotb.start_soon(line.listen())
    return line


def once(fault: str, number: int):
    return lambda n: fault if n == number else GOOD


# Past the first packets, within the load of memories or the writes of beats.
BYTE = 150


@cocotb.test()
async def a_good_line(dut):
    line = await power_up(dut)
    status, repairs = await bridge(host)(line)
    assert (status.framing_errors, status.dropped) == (0, 0)
    assert (repairs.resent, repairs.damaged) == (0, 0)
    assert line.sent > 2 * BYTE and line.heard > BYTE
    assert dut.running.value == 1 and dut.error.value == 0


@cocotb.test()
async def a_byte_lost_on_the_way_to_the_board(dut):
    line = await power_up(dut, to_board=once(LOST, BYTE))
    status, repairs = await bridge(host)(line)
    assert (status.framing_errors, status.dropped) == (0, 1)
    assert repairs.resent == 1 and dut.error.value == 1


@cocotb.test()
async def a_framing_error(dut):
    line = await power_up(dut, to_board=once(BROKEN, BYTE))
    status, repairs = await bridge(host)(line)
    assert (status.framing_errors, status.dropped) == (1, 0)  # which are for other reasons
    assert repairs.resent == 1 and dut.error.value == 1


@cocotb.test()
async def a_byte_lost_on_the_way_back(dut):
    line = await power_up(dut, from_board=once(LOST, BYTE))
    status, repairs = await bridge(host)(line)
    assert (status.framing_errors, status.dropped) == (0, 0)
    assert (repairs.resent, repairs.damaged) == (1, 1)


@cocotb.test()
async def a_glitch_is_no_byte(dut):
    line = await power_up(dut, to_board=lambda n: GLITCH if n % 7 == 0 else GOOD)
    status, repairs = await bridge(host)(line)
    assert (status.framing_errors, status.dropped) == (0, 0)
    assert (repairs.resent, repairs.damaged) == (0, 0)


@cocotb.test()
async def a_reset_in_the_middle_of_a_packet(dut):
    """The block and the link start anew together, and so does the run."""
    line = await power_up(dut)

    async def press():
        await RisingEdge(dut.running)
        begun = line.sent
        while line.sent < begun + 10:
            await RisingEdge(dut.rx)
        assert dut.running.value == 1
        dut.rst.value = 1
        await ClockCycles(dut.clk, 3)
        assert dut.running.value == 0
        dut.rst.value = 0
        pressed.append(line.sent)

    pressed: list[int] = []
    cocotb.start_soon(press())
    status, repairs = await bridge(host)(line)
    assert pressed and repairs.resent >= 1
    assert line.sent > pressed[0] + BYTE
