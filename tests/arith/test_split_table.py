"""Two tables for one function: exact at every index, and smaller than one table where possible."""

import math

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from hw.arith.exp2_fixed import significands
from hw.arith.log2_fixed import logarithms
from hw.arith.tables.split_table import SplitTable, fit


def evaluate(table: SplitTable, index: int) -> int:
    base = table.base[index >> table.low]
    if not table.step:
        return base
    fine = index & (1 << table.low) - 1 | index >> (table.low + table.middle) << table.low
    return (base + table.step[fine]) >> table.guard


FUNCTIONS = {
    "power 6 to 8": significands(6, 8),
    "power 10 to 10": significands(10, 10),
    "power 10 to 14": significands(10, 14),
    "power 12 to 12": significands(12, 12),
    "logarithm 9 to 12": logarithms(9, 12, "down", True),
    "logarithm 10 to 10": logarithms(10, 10, "up", True),
    "root 10 to 8": tuple(math.isqrt(i << 6) for i in range(1024)),
    "line": tuple(range(1024)),
    "constant": (5,) * 64,
    "zero": (0,) * 4,
    "random": tuple(int(v) for v in np.sort(np.random.default_rng(1).integers(0, 4096, 1024))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_at_every_index(name):
    values = FUNCTIONS[name]
    table = fit(values)
    assert [evaluate(table, index) for index in range(len(values))] == list(values)
    bits = sum(max(e).bit_length() * len(e) for e in (table.base, table.step) if e)
    whole = max(values).bit_length() * len(values)
    print(f"{name}: {bits} of {whole} bits")
    assert bits <= whole
    if name.startswith(("power 10", "power 12", "logarithm", "line")):
        assert bits < 0.6 * whole
    if name == "random":
        assert not table.step


@pytest.mark.parametrize("name", ["power 10 to 10", "logarithm 10 to 10", "zero"])
def test_hardware(name):
    values = FUNCTIONS[name]
    m = Module()
    index, value = Signal(range(len(values))), Signal(16)
    m.d.comb += value.eq(fit(values).read(m, index, lambda **outputs: list(outputs.values())))
    got = []

    async def testbench(ctx):
        for number in range(len(values)):
            ctx.set(index, number)
            got.append(ctx.get(value))

    simulator = Simulator(m)
    simulator.add_testbench(testbench)
    simulator.run()
    assert got == list(values)
