"""The cocotb test that runs any stimulus. It runs inside the simulator; see
:mod:`sim.drivers.cocotb.runner`.

``SENBAZURU_STIMULI`` names a pickled list of stimulus descriptions. Each is a separate test; the
results of number n are written to ``outcome_N`` beside that file. ``SENBAZURU_ALIVE`` names a file
that is touched as long as simulated time passes.
"""

import os
import pickle
import random
from pathlib import Path
from time import monotonic

import cocotb
from cocotb.clock import Clock

from sim.core.stalls import longest_stall
from sim.drivers.cocotb.stream import PERIOD_NS, Cycles, Monitor, Port, Sink, Source, reset

STIMULI = Path(os.environ["SENBAZURU_STIMULI"])
ALIVE = Path(os.environ["SENBAZURU_ALIVE"])
DESCRIPTIONS = pickle.loads(STIMULI.read_bytes())
ALIVE.touch()  # the simulator has started
if any(description["memories"] for description in DESCRIPTIONS):
    # These bring NumPy and Amaranth with them, half of the time that a small run takes.
    from sim.core.memory import MemoryModel
    from sim.drivers.cocotb.memory import MemoryServer

TOUCH_S = 0.2


class WatchedCycles(Cycles):
    """Touches ``ALIVE`` as long as simulated time passes, for the process that waits for it."""

    touch_at = 0.0

    def trigger(self):
        now = monotonic()
        if now > self.touch_at:
            ALIVE.touch()
            self.touch_at = now + TOUCH_S
        return super().trigger()


async def disturb(cycles, ports, inputs, choose):
    """Random traffic that a reset cuts off: later results must not depend on it.

    It ends right after an input was accepted or while an output waits, when a reset matters most.
    """
    after_input, least = choose.getrandbits(1), choose.randrange(200)
    for cycle in range(least + 200):
        for name, port in ports.items():
            if name not in inputs:
                port.ready.value = choose.getrandbits(1)
            elif inputs[name]:
                port.payload.value = choose.choice(inputs[name])
                port.valid.value = choose.getrandbits(1)
        await cycles.trigger()
        accepted = any(port.transfers() for name, port in ports.items() if name in inputs)
        waiting = any(
            port.valid.value and not port.ready.value
            for name, port in ports.items()
            if name not in inputs
        )
        if cycle >= least and (accepted if after_input else waiting):
            break
    for name, port in ports.items():
        (port.valid if name in inputs else port.ready).value = 0


@cocotb.test()
@cocotb.parametrize(number=list(range(len(DESCRIPTIONS))))
async def run(dut, number):
    description = DESCRIPTIONS[number]
    expected = description["expected"]  # stream name to number of beats
    seed = description["seed"]
    stalls = {"stall": description["stall"], "seed": seed}

    # Initial values, then traffic between two resets.
    cycles = WatchedCycles(dut.clk if description["clocked"] else None)
    ports = {name: Port(dut, name) for name in [*description["inputs"], *expected]}
    # Memory name to (Memory, MemoryPort, MemoryTiming).
    memories = description["memories"]
    requests = {name: Port(dut, m.request) for name, (m, _, _) in memories.items()}
    responses = {name: Port(dut, m.response) for name, (m, _, _) in memories.items()}
    for port in [*(ports[name] for name in description["inputs"]), *responses.values()]:
        port.valid.value = 0
        port.payload.value = 0
    for port in [*(ports[name] for name in expected), *requests.values()]:
        port.ready.value = 0
    if description["clocked"]:
        Clock(dut.clk, PERIOD_NS, unit="ns").start()
        await reset(dut.rst, cycles)
        await disturb(cycles, ports, description["inputs"], random.Random(f"{seed} before reset"))
        await reset(dut.rst, cycles)

    # Cycle 0 begins here, with a source or sink for each stream.
    timeout = description["timeout_cycles"]
    cycles.longest_stall = longest_stall(timeout)
    sources = []
    for name, beats in description["inputs"].items():
        source = Source(cycles, ports[name], **stalls)
        source.send(*beats)
        sources.append(source)
    sinks = {}
    for name in expected:
        Monitor(cycles, ports[name])
        sinks[name] = Sink(cycles, ports[name], **stalls)
    servers = {}
    for name, (memory, fields, timing) in memories.items():
        Monitor(cycles, requests[name])
        model = MemoryModel(memory.contents, timing, fields.data.width, name)
        streams = requests[name], responses[name]
        servers[name] = MemoryServer(
            cycles, *streams, fields, model, name=name, strict=False, **stalls
        )

    # Until all expected beats have arrived, and longer, for beats too many.
    failure, complete = None, None
    while complete is None or cycles.cycle <= complete + description["drain_cycles"]:
        await cycles.trigger()
        failure = next((server.fault for server in servers.values() if server.fault), None)
        if failure is not None:
            break
        if complete is None:
            sent = all(source.idle for source in sources)
            if sent and all(len(sinks[name].received) >= n for name, n in expected.items()):
                complete = cycles.last_transfer
            elif cycles.cycle > cycles.last_transfer + timeout:
                failure = f"no transfer for {timeout} cycles before cycle {cycles.cycle}"
                break
    result = {
        "received": {name: sink.received for name, sink in sinks.items()},
        "cycles": {name: sink.cycles_of for name, sink in sinks.items()},
        "complete": (cycles.last_transfer if complete is None else complete) + 1,
        "simulated": cycles.cycle,
        "failure": failure,
        "memories": {name: server.model.use for name, server in servers.items()},
    }
    STIMULI.with_name(f"outcome_{number}").write_bytes(pickle.dumps(result))
