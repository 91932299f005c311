"""Runs of a device, against masters that are slow, and injected faults."""

import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from hw.bus import run_control
from hw.bus.device_map import Device, DeviceMemory, DeviceStream
from hw.bus.errors import ErrorCode
from hw.bus.run_control import ControlParameters
from tests.support.faults import with_fault

DEVICE = Device(
    streams=(DeviceStream("i", "input", 32), DeviceStream("o", "output", 32)),
    memories=(DeviceMemory("", "request", "response", 64, 8),),
    build=1,
)
BASES = (0x1000, 0x2000, 0x3000)


class Run:
    """A start, masters that are busy for a while from `begin` on, and an end.

    entries
        Beats (base, beats) of a descriptor, one in four cycles; none: run with the registers.
    reset_at
        Cycle of a reset by software.
    seen
        For each cycle from the start on, the values of the outputs.
    """

    OUTPUTS = ("begin", "stop", "block_reset", "done", "idle", "done_set", "error_set", "code")

    def __init__(self, module, *, entries=(), reset_at=None, cycles=80):
        self.dut = module.RunControl(ControlParameters(DEVICE, 32))
        self.entries, self.reset_at, self.cycles = list(entries), reset_at, cycles
        self.seen: list[dict[str, int]] = []
        self.begun: list[tuple] = []
        self.busy_at_reset = 0
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._run)
        simulator.run()

    async def _run(self, ctx):
        dut, busy, waiting = self.dut, 0, list(self.entries)
        ctx.set(dut.next, 0x100 if waiting else 0)
        for n, base in enumerate(BASES):
            ctx.set(dut.base[n], base)
            ctx.set(dut.beats[n], 3 if n < 2 else 0)
        for cycle in range(self.cycles):
            ctx.set(dut.start, cycle == 0)
            ctx.set(dut.reset, cycle == self.reset_at)
            ctx.set(dut.idle_masters, 0b1111 if busy == 0 else 0b1101)
            ctx.set(dut.entry.valid, bool(waiting) and cycle % 4 == 3)
            if waiting:
                base, beats = waiting[0]
                ctx.set(dut.entry.payload, {"base": base, "beats": beats})
            if ctx.get(dut.entry.valid) and ctx.get(dut.entry.ready):
                waiting.pop(0)
            self.seen.append({n: ctx.get(Value.cast(getattr(dut, n))) for n in self.OUTPUTS})
            if ctx.get(dut.begin):
                bases = (ctx.get(base) for base in dut.run_base)
                self.begun.append((*bases, *(ctx.get(beats) for beats in dut.run_beats)))
            self.busy_at_reset += ctx.get(dut.block_reset) and busy > 0
            busy = 12 if ctx.get(dut.begin) else max(0, busy - 1)
            await ctx.tick()

    def first(self, name: str) -> int:
        return next(cycle for cycle, values in enumerate(self.seen) if values[name])


def done_until_the_next_start(module):
    """A status that software polls stays; the run is over only once the masters are idle."""
    run = Run(module)
    done = run.first("done")
    assert run.begun == [(*BASES, 3, 3, 0)]
    assert done >= run.first("begin") + 12
    assert all(values["done"] and values["idle"] for values in run.seen[done:])
    assert sum(values["done_set"] for values in run.seen) == 1


def begin_with_a_whole_descriptor(module):
    run = Run(module, entries=[(0, 0), (0x5000, 1), (0x6000, 2), (0x7000, 0)])
    assert run.begun == [(0x5000, 0x6000, 0x7000, 1, 2, 0)]


def drain_before_the_reset(module):
    """Masters stop, and are idle, before the block is reset; then the device is ready."""
    run = Run(module, reset_at=12)
    assert run.first("stop") == 13
    assert run.first("block_reset") > run.first("stop")
    assert run.busy_at_reset == 0
    assert run.seen[-1]["done"] and run.seen[-1]["idle"]
    assert run.seen[-1]["code"] == ErrorCode.RESET_WHILE_RUNNING.value


CHECKS = (done_until_the_next_start, begin_with_a_whole_descriptor, drain_before_the_reset)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_run(check):
    check(run_control)


FAULTS = {
    "a_status_pulse": (
        "        with m.If(~self.idle):\n            m.d.sync",
        "        m.d.sync += self.done.eq(0)\n        with m.If(~self.idle):\n            m.d.sync",
        done_until_the_next_start,
    ),
    "the_end_before_memory_has_it": (
        "            m.d.comb += self.running.eq(1)\n            with m.If(self.quiet):",
        "            m.d.comb += self.running.eq(1)\n            with m.If(1):",
        done_until_the_next_start,
    ),
    "run_before_loaded": (
        "with m.If(self.number == channels):",
        "with m.If(self.number == channels - 1):",
        begin_with_a_whole_descriptor,
    ),
    "half_reset": (
        "            m.d.sync += left.eq(RESET_CYCLES)\n            with m.If(self.quiet):",
        "            m.d.sync += left.eq(RESET_CYCLES)\n            with m.If(1):",
        drain_before_the_reset,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, check = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(with_fault(run_control, line, instead))
