"""The core in Amaranth's simulator, with memories that hold few requests."""

import numpy as np
from amaranth.hdl import Value
from amaranth.sim import Simulator

from hw.topick.topick_core import TopickCore
from sim.core import payload
from sim.core.memory import MemoryModel, MemoryTiming
from sim.testbenches.topick.core_jobs import CoreStimulus

TIMEOUT_CYCLES = 1000


def run(stimulus: CoreStimulus, timing: MemoryTiming, holds: int) -> tuple[dict, dict]:
    """Outputs of the core, packed, and the cycle of each beat.

    holds
        Requests that each memory takes before a response must be taken.
    """
    p = stimulus.jobs.parameters
    dut = TopickCore(p)
    sources = {name: payload.to_ints(beats)[::-1] for name, beats in stimulus.inputs.items()}
    sinks = {"o": dut.o} | {f"report__{n}": port for n, port in enumerate(dut.report)}
    got: dict[str, list[int]] = {name: [] for name in sinks}
    cycles: dict[str, list[int]] = {name: [] for name in sinks}
    memories = [
        MemoryModel(memory.contents, timing, name=name)
        for name, memory in stimulus.memories.items()
    ]
    offered: list = [None] * p.lanes
    in_flight = [0] * p.lanes

    async def testbench(ctx):
        cycle = idle = 0
        for port in sinks.values():
            ctx.set(port.ready, 1)
        while any(len(got[name]) < len(beats) for name, beats in stimulus.outputs.items()):
            for name, beats in sources.items():
                port = getattr(dut, name)
                ctx.set(port.valid, bool(beats))
                if beats:
                    ctx.set(Value.cast(port.payload), beats[-1])
            for lane, (request, response) in enumerate(zip(dut.request, dut.response, strict=True)):
                if offered[lane] is None:
                    offered[lane] = memories[lane].response(cycle)
                ctx.set(response.valid, offered[lane] is not None)
                if offered[lane] is not None:
                    tag, row = offered[lane]
                    beat = tag | row << payload.width(p.memory.tag)
                    ctx.set(Value.cast(response.payload), beat)
                ctx.set(request.ready, in_flight[lane] < holds)
            moved = False
            for lane, (request, response) in enumerate(zip(dut.request, dut.response, strict=True)):
                if ctx.get(request.valid) and ctx.get(request.ready):
                    beat = request.payload
                    data = ctx.get(beat.data.as_value()) if ctx.get(beat.write) else None
                    tag = ctx.get(beat.tag.as_value())
                    memories[lane].request(cycle, tag, ctx.get(beat.address), data)
                    in_flight[lane] += data is None
                    moved = True
                if ctx.get(response.valid) and ctx.get(response.ready):
                    offered[lane], moved = None, True
                    in_flight[lane] -= 1
            for name, beats in sources.items():
                if beats and ctx.get(getattr(dut, name).ready):
                    beats.pop()
                    moved = True
            for name, port in sinks.items():
                if ctx.get(port.valid):
                    got[name].append(ctx.get(Value.cast(port.payload)))
                    cycles[name].append(cycle)
                    moved = True
            await ctx.tick()
            cycle += 1
            idle = 0 if moved else idle + 1
            assert idle < TIMEOUT_CYCLES, f"no transfer for {idle} cycles up to cycle {cycle}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    packed = {
        name: payload.from_ints(beats, sinks[name].payload.shape()) for name, beats in got.items()
    }
    return packed, {name: np.array(at, np.int64) for name, at in cycles.items()}
