"""A cocotb test of the hand-written top against the models of its parts."""

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from golden.arith.float_multiply_add import float_multiply_add


def model(a: np.ndarray, b: np.ndarray) -> int:
    """Bits of the FP32 sum, rounded after every product as the hardware does."""
    total = np.zeros(1, np.float32)
    for number in range(len(a)):
        total = float_multiply_add(a[number : number + 1], b[number : number + 1], total)
    return int(total.view(np.uint32)[0])


async def drive(dut, **values):
    """Set inputs in the middle of a cycle, so that the next rising edge reads them."""
    await FallingEdge(dut.clk)
    for name, value in values.items():
        getattr(dut, name).value = int(value)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def test_sums(dut):
    Clock(dut.clk, 10, unit="ns").start()
    await drive(dut, rst=1, valid=0, last=0, a=0, b=0)
    await drive(dut, rst=0)

    rng = np.random.default_rng(seed=1)
    for length in (1, 2, 64):
        a, b = rng.standard_normal((2, length)).astype(np.float16)
        for number in range(length):
            last = number == length - 1
            bits = a.view(np.uint16)[number], b.view(np.uint16)[number]
            await drive(dut, valid=1, last=last, a=bits[0], b=bits[1])
        await drive(dut, valid=0)
        assert dut.done.value == 1
        assert dut.sum.value.to_unsigned() == model(a, b)
        await FallingEdge(dut.clk)
        assert dut.done.value == 0
