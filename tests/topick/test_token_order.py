"""The order of a lane's rows: any number of rows, one head after another."""

import random

import pytest
from amaranth.sim import Simulator

from golden.topick.topick_core import token_order
from hw.topick.token_order import TokenOrder


def starts_of(row_bits: int, rng: random.Random) -> list[tuple[int, bool]]:
    """Every kind of short head, full ones and random ones, shuffled; some without rows."""
    most = 1 << row_bits
    sizes = [*range(min(most, 5) + 1), most - 1, most, rng.randint(0, most)]
    starts = [(tokens, newest) for tokens in sizes for newest in (False, True)]
    rng.shuffle(starts)
    return starts


def simulate(row_bits: int, first: bool, starts: list[tuple[int, bool]], stall: float) -> list[int]:
    """Rows of heads, one a cycle or with pauses; the next head starts a cycle after the last."""
    dut, rng, rows = TokenOrder(row_bits, first), random.Random(stall), []

    async def testbench(ctx):
        for tokens, newest in starts:
            for name, value in (("tokens", tokens), ("newest", newest), ("start", 1)):
                ctx.set(getattr(dut, name), value)
            await ctx.tick()
            for name in ("start", "tokens", "newest"):
                ctx.set(getattr(dut, name), 0)
            for _ in range(tokens):
                while rng.random() < stall:
                    await ctx.tick()
                rows.append(ctx.get(dut.row))
                ctx.set(dut.take, 1)
                await ctx.tick()
                ctx.set(dut.take, 0)

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return rows


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("row_bits", [1, 2, 3, 5])
@pytest.mark.parametrize("first", [False, True])
def test_rows_come_in_the_models_order(row_bits, first, stall):
    starts = starts_of(row_bits, random.Random(row_bits))
    rows = simulate(row_bits, first, starts, stall)
    assert rows == [row for tokens, newest in starts for row in token_order(tokens, newest, first)]


def test_example():
    assert simulate(3, True, [(5, True), (0, True)], 0.0) == [4, 0, 3, 2, 1]
    assert simulate(3, False, [(5, False)], 0.0) == [4, 3, 2, 1, 0]
