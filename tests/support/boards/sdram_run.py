"""Requests through an SDRAM's controller to the model of the device, in Amaranth's simulator."""

import random

from amaranth.hdl import Module
from amaranth.sim import Simulator

from hw.boards.sdram_controller import SdramController
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from sim.drivers.board.sdram_device import PINS, Rule, SdramChip

Request = tuple[int, int, int | None]
"""Tag, number of a row, and data to write."""


def with_chip(m: Module, pins, p: SdramControllerParameters) -> SdramChip:
    """The device at the pins of a controller, through as many registers as `p` says."""
    m.submodules.chip = chip = SdramChip(p)
    assert p.pads in (0, 2)
    domain = m.d.sync if p.pads else m.d.comb
    for name in PINS:
        domain += getattr(chip, name).eq(getattr(pins, name))
    domain += pins.read_data.eq(chip.read_data)
    return chip


class Run:
    """Requests through a controller, offered as fast as it takes them or with pauses.

    accepted
        The cycles of the requests.
    answers
        (tag, row, cycle) of each read.
    broken
        Cycle and rule of each broken rule.
    """

    def __init__(self, p, requests, *, pause=0.0, quiet=0, controller=SdramController, seed=1):
        self.p, self.requests, self.pause, self.quiet = p, requests, pause, quiet
        self.random = random.Random(seed)
        self.accepted: list[int] = []
        self.answers: list[tuple[int, int, int]] = []
        self.broken: list[tuple[int, Rule]] = []
        m = Module()
        m.submodules.dut = self.dut = controller(p)
        self.chip = with_chip(m, self.dut, p)
        simulator = Simulator(m)
        simulator.add_clock(1e-6)
        simulator.add_testbench(self._run)
        simulator.run()

    @property
    def rules(self) -> set[Rule]:
        return {rule for _, rule in self.broken}

    async def _run(self, ctx):
        dut, waiting = self.dut, list(self.requests)
        reads = sum(data is None for *_, data in waiting)
        request, offering = dut.request, False
        limit = self.p.initialisation + 60 * self.p.columns * (len(waiting) + 1)
        for cycle in range(limit + self.quiet):
            if not waiting and len(self.answers) == reads and cycle > self.quiet:
                break
            offering = bool(waiting) and (offering or self.random.random() >= self.pause)
            ctx.set(request.valid, offering)
            if offering:
                tag, address, data = waiting[0]
                ctx.set(request.payload.tag, tag)
                ctx.set(request.payload.address, address)
                ctx.set(request.payload.write, data is not None)
                ctx.set(request.payload.data, data or 0)
            broken = ctx.get(self.chip.broken)
            self.broken += [(cycle, rule) for rule in Rule if broken >> rule & 1]
            if ctx.get(dut.answered):
                answer = dut.answer
                self.answers.append((ctx.get(answer.tag), ctx.get(answer.data), cycle))
            if offering and ctx.get(request.ready):
                self.accepted.append(cycle)
                waiting.pop(0)
                offering = False
            await ctx.tick()


def mixed(p: SdramControllerParameters, count: int, seed: int = 1) -> list[Request]:
    """Runs of rows and jumps, reads and writes; only what was written is read."""
    choose = random.Random(seed)
    rows = 1 << p.address
    written: set[int] = set()
    requests: list[Request] = []
    row = 0
    for _ in range(count):
        kind = choose.random()
        if kind < 0.3:
            row = choose.randrange(rows)
        elif kind < 0.6 and written:
            row = choose.choice(sorted(written))
        else:
            row = (row + 1) % rows
        write = row not in written or choose.random() < 0.4
        written.add(row)
        data = choose.getrandbits(p.row) if write else None
        requests.append((choose.randrange(1 << p.tag), row, data))
    return requests


def expected(requests: list[Request]) -> list[tuple[int, int]]:
    """Tag and row of each read, of a memory that does one thing after another at once."""
    memory: dict[int, int] = {}
    answers = []
    for tag, row, data in requests:
        if data is None:
            answers.append((tag, memory[row]))
        else:
            memory[row] = data
    return answers


def check(run: Run) -> None:
    """No rule is broken, and each read has its row, in order."""
    assert not run.broken
    assert [answer[:2] for answer in run.answers] == expected(run.requests)
