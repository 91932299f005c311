"""A datapath in Amaranth's simulator against its testbench's golden results."""

import numpy as np
from amaranth.sim import Simulator

from hw.catalogue import Block
from tests.support.arith.functions import golden_of


def check(block: Block, parameters, operands: dict[str, np.ndarray]) -> None:
    """All operations, one per cycle, have the model's results `stages` cycles later."""
    expected = golden_of(block)(parameters, **operands)
    dut = block.create(parameters)
    count = len(next(iter(operands.values())))

    async def testbench(ctx):
        for cycle in range(count + parameters.stages):
            if cycle < count:
                for name, values in operands.items():
                    ctx.set(getattr(dut, name), values[cycle].tolist())
            if cycle >= parameters.stages:
                for name, values in expected.items():
                    got = ctx.get(getattr(dut, name))
                    want = values[cycle - parameters.stages].tolist()
                    got = list(got) if isinstance(want, list) else int(got)
                    assert got == want, f"operation {cycle - parameters.stages}, {name}"
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
