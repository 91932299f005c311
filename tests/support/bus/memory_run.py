"""Requests through an AxiMemory in Amaranth's simulator, and what a plain memory answers."""

import random
from collections import Counter

from amaranth.sim import Simulator

from hw.bus.axi_memory import AxiMemory
from tests.support.bus.axi_slave import AxiSlave

BASE = 0x12000


class Run:
    """Requests (tag, address, data to write or None) through an AxiMemory.

    responses
        (tag, row, cycle) as they came.
    errors
        (write, decode, address) as reported.
    """

    def __init__(self, p, requests, *, pause=0.0, stop_at=None, memory=AxiMemory, seed=1, **slave):
        self.p, self.requests, self.pause, self.stop_at = p, requests, pause, stop_at
        self.dut = memory(p)
        self.slave = AxiSlave(self.dut.bus, pause=pause, seed=seed, **slave)
        self.random = random.Random(seed)
        self.responses: list[tuple[int, int, int]] = []
        self.errors: list[tuple[int, int, int]] = []
        self.accepted: list[int] = []
        self.cycles = 0
        self.drained = False
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._run)
        simulator.run()

    async def _run(self, ctx):
        dut, waiting, limit = self.dut, list(self.requests), 400 + 60 * len(self.requests)
        reads = sum(data is None for _, _, data in waiting)
        request, response = dut.request, dut.response
        ctx.set(dut.base, BASE)
        offering = False
        while self.cycles < limit:
            stopped = self.stop_at is not None and self.cycles >= self.stop_at
            ctx.set(dut.stop, stopped)
            offering = bool(waiting) and (offering or self.random.random() >= self.pause)
            ctx.set(request.valid, offering)
            if offering:
                tag, address, data = waiting[0]
                ctx.set(request.payload.tag, tag)
                ctx.set(request.payload.address, address)
                ctx.set(request.payload.write, data is not None)
                ctx.set(request.payload.data, data or 0)
            ctx.set(response.ready, self.random.random() >= self.pause)
            self.slave.drive(ctx)
            if ctx.get(response.valid) and ctx.get(response.ready):
                row = ctx.get(response.payload.data)
                self.responses.append((ctx.get(response.payload.tag), row, self.cycles))
            if ctx.get(dut.error):
                flags = ctx.get(dut.error_write), ctx.get(dut.error_decode)
                self.errors.append((*flags, ctx.get(dut.error_address)))
            if offering and ctx.get(request.ready):
                self.accepted.append(self.cycles)
                waiting.pop(0)
                offering = False
            self.slave.sample(ctx)
            idle = ctx.get(dut.idle)
            await ctx.tick()
            self.cycles += 1
            if idle and (stopped or not waiting):
                self.drained = stopped or len(self.responses) == reads
                break


def mixed(p, count, seed, rows=6):
    """Requests to few rows, so that reads and writes of a row follow each other closely."""
    choose = random.Random(seed)
    return [
        (
            choose.randrange(1 << p.tag),
            choose.randrange(rows),
            choose.randrange(1 << p.row) if choose.random() < 0.4 else None,
        )
        for _ in range(count)
    ]


def expected(requests):
    """The (tag, row) of each read, of a memory that does everything at once; and what is left."""
    memory: dict[int, int] = {}
    answers = []
    for tag, address, data in requests:
        if data is None:
            answers.append((tag, memory.get(address, 0)))
        else:
            memory[address] = data
    return answers, memory


def check(p, run, requests):
    answers, memory = expected(requests)
    got = [(tag, row) for tag, row, _ in run.responses]
    assert run.drained
    assert (got == answers) if p.in_order else (Counter(got) == Counter(answers))
    for address, row in memory.items():
        place = BASE + address * p.row_bytes
        stored = sum(run.slave.memory.get(place + n, 0) << 8 * n for n in range(p.row_bytes))
        assert stored == row
