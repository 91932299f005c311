"""Devices for tests: compiled once, and a block's stimuli through them."""

import dataclasses
import functools

from hw.bus.bus_parameters import BusParameters
from hw.catalogue import Block, find
from hw.parameters import Parameters
from sim.core.stimulus import compare, compare_memories
from sim.drivers.axi.program import Session
from sim.drivers.axi.runner import AxiSimulation, generate_device
from sim.drivers.run import load_testbench, load_trace, memory_timing, stimuli_of

SMALL = BusParameters(data=32, burst=4, bursts=2, reads=4, writes=2)
"""A device whose engines split even short buffers."""


@functools.cache
def simulation(
    name: str, bus: BusParameters = SMALL, preset: str = "first", simulator: str = "icarus"
) -> AxiSimulation:
    """The device of a block, compiled.

    Without ToPick's streams `observed`, whose number of beats depends on timing.
    """
    block = find(name)
    parameters = block.parameters_class.preset(preset)
    if hasattr(parameters, "observe"):
        parameters = parameters.replace_from_text(["observe=false"])
    return AxiSimulation(generate_device(block, parameters, bus), simulator)


def stimuli(block: Block, parameters: Parameters, vectors: int) -> list:
    """Real and random data, in an order that any memory may have."""
    found = stimuli_of(block, parameters, load_trace(None), vectors, 1)
    for stimulus in found:
        stimulus.stall = "random"
        stimulus.timings = dict.fromkeys(stimulus.memories, memory_timing("random", 1))
    return found


def differences(device: AxiSimulation, vectors: int, pauses=(0.0, 0.4)) -> list:
    """Run a block's stimuli; returns what differs from the golden model, or went wrong."""
    design = device.device
    sessions = []
    for stimulus in stimuli(design.block, design.parameters, vectors):
        for pause in pauses:
            session = Session(design, pause)
            for name, value in session.buffers(stimulus).items():
                session.write(name, value)
            session.start()
            sessions.append((session, stimulus))
    results = device.run_programs([session.program for session, _ in sessions])
    found: list = []
    check = getattr(load_testbench(design.block), "compare", compare)
    for (session, stimulus), result in zip(sessions, results, strict=True):
        if result.failure is not None or result.values["error"] != [0]:
            found.append((result.failure, result.values))
            continue
        outcome = session.outcome(stimulus, result)
        found += check(stimulus, outcome.outputs, design.payloads, outcome.cycles_of)
        found += compare_memories(stimulus, outcome)
    return found


def each(bus: BusParameters) -> BusParameters:
    """The same with a master for each stream and memory."""
    return dataclasses.replace(bus, masters="each")
