"""The cocotb test that runs any stimulus. It runs inside the simulator; see
:mod:`sim.drivers.cocotb.runner`.

``SENBAZURU_JOBS`` names a pickled list of stimulus descriptions. Each is a test of its own; the
results of number n are written to ``played_n`` beside that file. ``SENBAZURU_ALIVE`` names a file
that is touched as long as simulated time passes.
"""

import os
import pickle
import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock

from sim.core.stalls import PATTERNS, Throttle
from sim.drivers.cocotb.stream import PERIOD_NS, Port, Ticks, monitor, sink, source

JOBS = Path(os.environ["SENBAZURU_JOBS"])
ALIVE = Path(os.environ["SENBAZURU_ALIVE"])
DESCRIPTIONS = pickle.loads(JOBS.read_bytes())
ALIVE.touch()  # the simulator has started
if any(description["memories"] for description in DESCRIPTIONS):
    # These bring NumPy and Amaranth with them, half of the time that a small run takes.
    from sim.core.memory import MemoryModel
    from sim.drivers.cocotb.memory import serve


async def reset(dut, ticks):
    dut.rst.value = 1
    for _ in range(4):
        await ticks.trigger()
    dut.rst.value = 0


async def disturb(ticks, ports, inputs, choose):
    """Random traffic, to be cut off by a reset: what follows must not depend on it.

    It ends right after an input was taken or while an output waits, when a reset matters most.
    """
    after_input, cycles = choose.getrandbits(1), choose.randrange(200)
    for cycle in range(cycles + 200):
        for name, port in ports.items():
            if name not in inputs:
                port.ready.value = choose.getrandbits(1)
            elif inputs[name]:
                port.payload.value = choose.choice(inputs[name])
                port.valid.value = choose.getrandbits(1)
        await ticks.trigger()
        moved = any(port.transfers() for name, port in ports.items() if name in inputs)
        waiting = any(
            port.valid.value and not port.ready.value
            for name, port in ports.items()
            if name not in inputs
        )
        if cycle >= cycles and (moved if after_input else waiting):
            break
    for name, port in ports.items():
        (port.valid if name in inputs else port.ready).value = 0


@cocotb.test()
@cocotb.parametrize(number=list(range(len(DESCRIPTIONS))))
async def run(dut, number):
    description = DESCRIPTIONS[number]
    stall = PATTERNS[description["stall"]]
    expected = description["expected"]  # stream name to number of beats
    seed = description["seed"]

    ticks = Ticks(dut, description["clocked"], ALIVE)
    ports = {name: Port(dut, name) for name in [*description["inputs"], *expected]}
    # Memory name to (Memory, MemoryPort, MemoryTiming).
    memories = description["memories"]
    asks = {name: Port(dut, m.request) for name, (m, _, _) in memories.items()}
    answers = {name: Port(dut, m.response) for name, (m, _, _) in memories.items()}
    models = {
        name: MemoryModel(m.contents, timing, port.data.width, name)
        for name, (m, port, timing) in memories.items()
    }
    for name in memories:
        asks[name].ready.value = 0
        answers[name].valid.value = 0
        answers[name].payload.value = 0
    for name in description["inputs"]:
        ports[name].valid.value = 0
        ports[name].payload.value = 0
    for name in expected:
        ports[name].ready.value = 0
    if description["clocked"]:
        Clock(dut.clk, PERIOD_NS, unit="ns").start()
        await reset(dut, ticks)
        await disturb(ticks, ports, description["inputs"], random.Random(f"{seed} before reset"))
        await reset(dut, ticks)

    received = {name: [] for name in expected}
    cycles = {name: [] for name in expected}
    sources = [
        cocotb.start_soon(
            source(ticks, ports[name], beats, Throttle(stall.chances(stall.valid), f"{seed}{name}"))
        )
        for name, beats in description["inputs"].items()
    ]
    gates = {name: Throttle(stall.chances(stall.ready), f"{seed}{name}") for name in expected}
    for name in expected:
        cocotb.start_soon(monitor(ticks, ports[name]))
        collector = sink(ticks, ports[name], received[name], cycles[name], gates[name], stall.late)
        cocotb.start_soon(collector)
    servers = []
    for name, (_, port, _) in memories.items():
        cocotb.start_soon(monitor(ticks, asks[name]))
        gates_of = [
            Throttle(stall.chances(stall.ready), f"{seed}{name} request"),
            Throttle(stall.chances(stall.valid), f"{seed}{name} response"),
        ]
        server = serve(ticks, asks[name], answers[name], port, models[name], *gates_of)
        servers.append(cocotb.start_soon(server))
    cocotb.start_soon(ticks.count())

    failure, complete = None, None
    while complete is None or ticks.cycle <= complete + description["drain_cycles"]:
        await ticks.trigger()
        faults = [server.result() for server in servers if server.done()]
        if faults:
            failure = faults[0]
            break
        if complete is None:
            sent = all(task.done() for task in sources)
            if sent and all(len(received[name]) >= n for name, n in expected.items()):
                complete = ticks.last_transfer
            elif ticks.cycle > ticks.last_transfer + description["timeout_cycles"]:
                cycles = description["timeout_cycles"]
                failure = f"no transfer for {cycles} cycles before cycle {ticks.cycle}"
                break
    result = {
        "received": received,
        "cycles": cycles,
        "complete": (ticks.last_transfer if complete is None else complete) + 1,
        "simulated": ticks.cycle,
        "failure": failure,
        "memories": {name: model.use for name, model in models.items()},
    }
    JOBS.with_name(f"played_{number}").write_bytes(pickle.dumps(result))
