"""A testbench's stimulus in Amaranth's simulator, which needs no compilation: for many sizes."""

import random
from typing import Any

import numpy as np
from amaranth.hdl import Value
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hw.catalogue import Block
from sim.core import payload
from sim.core.stimulus import Stimulus, compare
from sim.drivers.run import load_testbench

TIMEOUT_CYCLES = 200


def check(block: Block, parameters, stimulus: Stimulus, stall: float) -> None:
    """The outputs are those of the stimulus; without stalls in its number of cycles.

    stall
        How often a source does not offer its next beat, and a sink does not take one.
    """
    dut = block.create(parameters)
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for path, member, _ in dut.signature.flatten(dut):
        if path[-1] == "payload":
            (inputs if member.flow is wiring.In else outputs)[path[0]] = member.shape
    got: dict[str, list[int]] = {name: [] for name in outputs}
    cycles_of: dict[str, list[int]] = {name: [] for name in outputs}
    beats = {name: payload.to_ints(stimulus.inputs[name])[::-1] for name in inputs}
    rng = random.Random(f"{stall}")
    last = -1

    async def testbench(ctx):
        nonlocal last
        cycle = 0
        offering: set[str] = set()
        held: dict[str, int] = {}
        while cycle <= last + TIMEOUT_CYCLES:
            for name in inputs:
                port = getattr(dut, name)
                if name not in offering and beats[name] and rng.random() >= stall:
                    offering.add(name)
                    ctx.set(Value.cast(port.payload), beats[name].pop())
                ctx.set(port.valid, name in offering)
            for name in outputs:
                ctx.set(getattr(dut, name).ready, rng.random() >= stall)
            for name in list(offering):
                if ctx.get(getattr(dut, name).ready):
                    offering.discard(name)
                    last = cycle
            for name in outputs:
                port = getattr(dut, name)
                valid, beat = ctx.get(port.valid), ctx.get(Value.cast(port.payload))
                assert name not in held or (valid and beat == held[name]), (
                    f"{name} changed before it was taken"
                )
                held.pop(name, None)
                if valid and ctx.get(port.ready):
                    got[name].append(beat)
                    cycles_of[name].append(cycle)
                    last = cycle
                elif valid:
                    held[name] = beat
            await ctx.tick()
            cycle += 1
        assert not offering and not any(beats.values()), "not all input beats were taken"

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    check = getattr(load_testbench(block), "compare", compare)
    packed = {name: payload.from_ints(beats, outputs[name]) for name, beats in got.items()}
    at = {name: np.array(cycles, np.int64) for name, cycles in cycles_of.items()}
    assert check(stimulus, packed, outputs, at) == []
    assert stall or last + 1 == stimulus.cycles
