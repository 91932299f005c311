"""The cocotb test that runs any program. It runs inside the simulator; see
:mod:`sim.drivers.axi.runner`.

RAM and master of the registers are cocotbext-axi's. A monitor on each channel that the device
drives checks that valid and payload are held.
"""

import logging
import os
import pickle
import random
from pathlib import Path
from time import monotonic

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRamRead, AxiRamWrite
from cocotbext.axi.sparse_memory import SparseMemory

from sim.drivers.axi.program import ProgramResult

STIMULI = Path(os.environ["SENBAZURU_STIMULI"])
ALIVE = Path(os.environ["SENBAZURU_ALIVE"])
DESCRIPTIONS = pickle.loads(STIMULI.read_bytes())
ALIVE.touch()
TOUCH_S = 0.5
HELD = {
    "aw": ("awaddr", "awid", "awlen"),
    "w": ("wdata", "wstrb", "wlast"),
    "ar": ("araddr", "arid", "arlen"),
}


class FailingRead(AxiRamRead):
    """RAM with addresses that are answered with SLVERR."""

    failing: list[range] = []

    async def _read(self, address, length):
        if any(address in bad for bad in self.failing):
            raise OSError("an address that fails")
        return await super()._read(address, length)


class FailingWrite(AxiRamWrite):
    failing: list[range] = []

    async def _write(self, address, data):
        if any(address in bad for bad in self.failing):
            raise OSError("an address that fails")
        await super()._write(address, data)


def pauses(chance: float, seed: object):
    """Whether a channel pauses, cycle for cycle."""
    choose = random.Random(f"{seed}")
    while True:
        yield choose.random() < chance


async def watch(dut, clock, prefix, channel, fields, failures):
    """Check that a channel's valid and payload are held until ready."""
    valid, ready = (getattr(dut, f"{prefix}_{channel}{part}") for part in ("valid", "ready"))
    signals = [getattr(dut, f"{prefix}_{name}") for name in fields]
    held = None
    while True:
        await RisingEdge(clock)
        offers = bool(valid.value)
        beat = [signal.value for signal in signals] if offers else None
        if held is not None and beat != held:
            failures.append(f"{prefix}_{channel} was not held")
        held = beat if offers and not ready.value else None


@cocotb.test()
@cocotb.parametrize(number=list(range(len(DESCRIPTIONS))))
async def run(dut, number):
    description = DESCRIPTIONS[number]
    program, seed = description["program"], description["seed"]
    logging.getLogger("cocotb").setLevel(logging.ERROR)
    clock, reset = dut.aclk, dut.aresetn
    reset.value = 0
    Clock(clock, 10, unit="ns").start()
    ram = SparseMemory(2**40)
    for address, content in program.ram.items():
        ram.write(address, content)
    failures: list[str] = []
    parts = []
    for prefix in description["masters"]:
        bus = AxiBus.from_prefix(dut, prefix)
        read = FailingRead(bus.read, clock, reset, False, size=2**40, mem=ram)
        write = FailingWrite(bus.write, clock, reset, False, size=2**40, mem=ram)
        read.failing = write.failing = program.failing
        parts += [read.ar_channel, read.r_channel]
        parts += [write.aw_channel, write.w_channel, write.b_channel]
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), clock, reset, False)
    write, read = master.write_if, master.read_if
    parts += [write.aw_channel, write.w_channel, write.b_channel]
    parts += [read.ar_channel, read.r_channel]
    for n, channel in enumerate(parts if program.pause else ()):
        channel.set_pause_generator(pauses(program.pause, f"{seed} {n}"))
    for _ in range(4):
        await RisingEdge(clock)
    reset.value = 1
    await RisingEdge(clock)
    for prefix in description["masters"]:
        for channel, fields in HELD.items():
            cocotb.start_soon(watch(dut, clock, prefix, channel, fields, failures))

    values: dict[str, list[int]] = {}
    failure = None
    for action in program.actions:
        failure = await act(dut, clock, master, description["masters"], action, values)
        if failure is not None:
            break
    failure = failure or (failures[0] if failures else None)
    buffers = {
        name: bytes(ram.read(address, size)) for name, (address, size) in program.dump.items()
    }
    result = ProgramResult(values, buffers, failure)
    STIMULI.with_name(f"outcome_{number}").write_bytes(pickle.dumps(result))


async def act(dut, clock, master, masters, action, values) -> str | None:
    """One access or pause; returns what is wrong."""
    kind, *arguments = action
    if kind == "write":
        offset, value = arguments
        await master.write(offset, value.to_bytes(4, "little"))
    elif kind == "read":
        name, offset = arguments
        response = await master.read(offset, 4)
        values.setdefault(name, []).append(int.from_bytes(response.data, "little"))
    elif kind == "wait":
        for _ in range(arguments[0]):
            await RisingEdge(clock)
    else:
        touched = 0.0
        for _ in range(arguments[0]):
            await ReadOnly()
            if kind == "interrupt" and dut.interrupt.value:
                break
            if kind == "bus" and any(getattr(dut, f"{m}_arvalid").value for m in masters):
                break
            await RisingEdge(clock)
            if monotonic() > touched:
                ALIVE.touch()
                touched = monotonic() + TOUCH_S
        else:
            return f"no {kind} for {arguments[0]} cycles"
        await RisingEdge(clock)
    return None
