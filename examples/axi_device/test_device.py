"""Steps of a block behind AXI, by its package's driver; runs inside the simulator."""

import importlib
import itertools
import os
import random
import sys

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, First, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from hw.catalogue import find
from sim.core import payload
from sim.drivers.run import load_trace, stimuli_of

sys.path.insert(0, os.environ["BUILD"])
driver = importlib.import_module(os.environ["DESIGN"])

REGISTERS = 1 << 31
"""Where the registers are in the address space of this testbench; RAM is below."""


class Simulated:
    """The driver's transport: registers through AXI4-Lite, buffers in the RAM at once."""

    def __init__(self, registers: AxiLiteMaster, ram: AxiRam):
        self.ram = ram
        # The driver runs in a thread, which waits while the simulation goes on.
        self.read_register = resume(registers.read)
        self.write_register = resume(registers.write)

    def read(self, address: int, size: int) -> bytes:
        if address >= REGISTERS:
            return self.read_register(address - REGISTERS, size).data
        return bytes(self.ram.read(address, size))

    def write(self, address: int, data: bytes) -> None:
        if address >= REGISTERS:
            self.write_register(address - REGISTERS, data)
        else:
            self.ram.write(address, data)


def packed(channel: str, beats) -> bytes:
    """Beats or rows of a testbench as they are in memory."""
    size, _ = driver.CHANNELS[channel]
    return b"".join(beat.to_bytes(size, "little") for beat in payload.to_ints(beats))


def run(bus: Simulated, stimulus, wait_for_interrupt) -> dict[str, tuple[bytes, bytes]]:
    """One run of the device: its outputs and the model's, by channel."""
    device = driver.Device(bus, REGISTERS)
    places = itertools.count(1 << 16, 1 << 16)
    buffers, expected = {}, {}
    for channel in driver.CHANNELS:
        kind, _, name = channel.partition("_")
        place = next(places)
        if kind == "input":
            beats = stimulus.inputs[name]
            bus.write(place, packed(channel, beats))
            buffers[channel] = place, len(beats)
        elif kind == "output":
            beats = stimulus.outputs[name]
            expected[channel] = packed(channel, beats)
            buffers[channel] = place, len(beats)
        else:
            bus.write(place, packed(channel, stimulus.memories[channel].contents))
            buffers[channel] = place
    device.write("interrupt_enable", 1)
    device.write("interrupt_mask", 1)
    device.start(**buffers)
    wait_for_interrupt()
    print(f"{device.wait()} cycles")
    return {
        name: (bus.read(buffers[name][0], len(wanted)), wanted) for name, wanted in expected.items()
    }


def pauses(seed: int):
    """Whether a channel pauses, for each cycle."""
    choose = random.Random(seed)
    while True:
        yield choose.random() < 0.3


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def test_steps(dut):
    block = find(os.environ["BLOCK"])
    parameters = block.parameters_class.preset(os.environ["PRESET"])
    stimulus = stimuli_of(block, parameters, load_trace(None), int(os.environ["STEPS"]), seed=1)[0]

    clock, reset = dut.aclk, dut.aresetn
    Clock(clock, 10, unit="ns").start()
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi"), clock, reset, False, size=REGISTERS)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), clock, reset, False)
    write, read = ram.write_if, ram.read_if
    channels = write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel
    for seed, channel in enumerate(channels):
        channel.set_pause_generator(pauses(seed))
    reset.value = 0
    await ClockCycles(clock, 4)
    reset.value = 1

    async def interrupt():
        await First(RisingEdge(dut.interrupt), ClockCycles(clock, 1_000_000))

    results = await bridge(run)(Simulated(registers, ram), stimulus, resume(interrupt))
    assert results
    for name, (found, wanted) in results.items():
        assert found == wanted, f"{name} differs from the model"
