"""The engines between memory and streams: a copy of a buffer, under any slave."""

import random
from types import SimpleNamespace

import pytest
from amaranth.hdl import Module
from amaranth.lib.wiring import connect
from amaranth.sim import Simulator

from hw.bus.bursts import EngineParameters
from hw.bus.read_engine import ReadEngine
from hw.bus.write_engine import WriteEngine
from tests.support.bus.axi_slave import AxiSlave

TO = 0x9000


class Copy:
    """Buffers (base, beats) copied by a read engine in front of a write engine.

    Each goes to `base` + TO. `stop` is raised in a cycle and held until both engines are idle.

    cycles
        From the start to idle, of each buffer.
    errors
        (write, decode, address) as reported.
    """

    def __init__(self, p, buffers, *, pause=0.0, seed=1, stop_at=None, **slave):
        self.p, self.buffers, self.stop_at = p, buffers, stop_at
        self.read, self.write = ReadEngine(p), WriteEngine(p)
        bus = SimpleNamespace(
            **{name: getattr(self.read, name) for name in ("ar", "r")},
            **{name: getattr(self.write, name) for name in ("aw", "w", "b")},
        )
        self.slave = AxiSlave(bus, pause=pause, seed=seed, **slave)
        self.content = random.Random(seed)
        self.cycles: list[int] = []
        self.errors: list[tuple[int, int, int]] = []
        m = Module()
        m.submodules.read, m.submodules.write = self.read, self.write
        connect(m, self.read.o, self.write.i)
        simulator = Simulator(m)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._run)
        simulator.run()

    async def _run(self, ctx):
        engines = (self.read, self.write)
        for number, (base, beats) in enumerate(self.buffers):
            size = beats * self.p.beat_bytes
            self.slave.memory |= {base + n: self.content.randrange(256) for n in range(size)}
            ctx.set(self.read.base, base)
            ctx.set(self.write.base, base + TO)
            for engine in engines:
                ctx.set(engine.beats, beats)
                ctx.set(engine.start, 1)
            for cycle in range(200 + 20 * size):
                if number == 0 and self.stop_at is not None and cycle >= self.stop_at:
                    for engine in engines:
                        ctx.set(engine.stop, 1)
                self.slave.drive(ctx)
                for write, engine in enumerate(engines):
                    if ctx.get(engine.error):
                        where = ctx.get(engine.error_address)
                        self.errors.append((write, ctx.get(engine.error_decode), where))
                done = cycle > 1 and all(ctx.get(engine.idle) for engine in engines)
                self.slave.sample(ctx)
                await ctx.tick()
                for engine in engines:
                    ctx.set(engine.start, 0)
                if done:
                    break
            assert done, "hangs"
            assert self.slave.idle
            self.cycles.append(cycle)
            for engine in engines:
                ctx.set(engine.stop, 0)

    def check(self, base, beats):
        """The buffer's bits are copied, the bits above a beat's are 0, nothing else is written."""
        memory, step = self.slave.memory, self.p.beat_bytes
        for beat in range(beats):
            at = base + beat * step
            value, copied = (
                sum(memory.get(a + n, 0) << 8 * n for n in range(step)) for a in (at, at + TO)
            )
            assert copied == value & (1 << self.p.width) - 1, beat
        assert not {base + TO - 1, base + TO + beats * step} & {*memory}


@pytest.mark.parametrize(
    ("width", "data", "burst"),
    [
        pytest.param(24, 64, 4, id="two_lanes"),
        pytest.param(32, 32, 1, id="equal"),
        pytest.param(100, 32, 8, id="wider"),
        pytest.param(6, 128, 2, id="four_lanes", marks=pytest.mark.campaign),
        pytest.param(512, 32, 16, id="much_wider", marks=pytest.mark.campaign),
    ],
)
def test_buffers_are_copied(width, data, burst):
    p = EngineParameters(width, data, burst=burst, outstanding=2)
    step = p.beat_bytes
    buffers = [(0x4000 - 3 * step, 9), (0x5000 + step, 1), (0x6000, 7)]
    run = Copy(p, buffers, pause=0.3, latency=5)
    for buffer in buffers:
        run.check(*buffer)
    assert not run.errors


def test_a_transfer_in_each_cycle():
    """Bursts of 16, four under way: 64 transfers at latency 40, and the same again for the copy."""
    p = EngineParameters(64, 64)
    run = Copy(p, [(0x4000, 128)], latency=40)
    run.check(0x4000, 128)
    assert run.cycles[0] <= 128 + 16 + 2 * 40 + 12


def test_bus_errors_are_reported():
    p = EngineParameters(64, 64, burst=4)
    run = Copy(p, [(0x4000, 12)], latency=3, failing=range(0x4028, 0x4030))
    assert run.errors == [(0, 1, 0x4028)]
    run = Copy(p, [(0x4000, 12)], latency=3, failing=range(0x4020 + TO, 0x4028 + TO))
    assert run.errors == [(1, 1, 0x4020 + TO)]


@pytest.mark.parametrize("stop_at", [2, 12, 20, 27, 33])
def test_stop_drains_the_bus_and_the_next_run_works(stop_at):
    p = EngineParameters(24, 64, burst=4, outstanding=2)
    run = Copy(p, [(0x4000, 40), (0x6004, 11)], latency=6, stop_at=stop_at)
    run.check(0x6004, 11)
