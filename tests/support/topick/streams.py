"""Any component's streams in Amaranth's simulator: beats in, beats and their cycles out."""

import random
from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Value
from amaranth.sim import Simulator

TIMEOUT_CYCLES = 100


def run(
    dut, inputs: Mapping, outputs: Mapping, stall: float = 0.0
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Outputs' beats as integers, and the cycle of each transfer, inputs' too.

    inputs
        Name to a stream and its beats, payloads that the simulator takes.
    outputs
        Name to a stream. The run ends when nothing was transferred for 100 cycles.
    stall
        How often a source does not offer its next beat, and a sink does not take one.
    """
    got: dict[str, list[int]] = {name: [] for name in outputs}
    cycles: dict[str, list[int]] = {name: [] for name in [*inputs, *outputs]}
    left: dict[str, list] = {name: list(beats)[::-1] for name, (_, beats) in inputs.items()}
    rng = random.Random(stall)

    async def testbench(ctx):
        cycle = idle = 0
        offered: set[str] = set()
        held: dict[str, Any] = {}
        while idle < TIMEOUT_CYCLES:
            for name, (port, _) in inputs.items():
                if name not in offered and left[name] and rng.random() >= stall:
                    offered.add(name)
                    ctx.set(port.payload, left[name].pop())
                ctx.set(port.valid, name in offered)
            for port in outputs.values():
                ctx.set(port.ready, rng.random() >= stall)
            idle += 1
            for name in list(offered):
                if ctx.get(inputs[name][0].ready):
                    offered.discard(name)
                    cycles[name].append(cycle)
                    idle = 0
            for name, port in outputs.items():
                valid, beat = ctx.get(port.valid), ctx.get(Value.cast(port.payload))
                assert name not in held or (valid and held[name] == beat), f"{name} changed"
                held.pop(name, None)
                if valid and ctx.get(port.ready):
                    got[name].append(beat)
                    cycles[name].append(cycle)
                    idle = 0
                elif valid:
                    held[name] = beat
            await ctx.tick()
            cycle += 1
        assert not offered and not any(left.values()), "not all input beats were taken"

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return got, cycles
