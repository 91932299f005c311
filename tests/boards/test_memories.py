"""Memories on a board, in block memory and in SDRAM: contents, stalls, the cable's rows, faults."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Elaboratable, Module

from hw.boards import block_memory, cable_row
from hw.boards.block_memory import WAITING, BlockMemory, BoardMemory
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.boards.sdram_memory import SdramMemory
from tests.support.boards.sdram_run import with_chip
from tests.support.boards.simulation import simulate
from tests.support.faults import with_fault


def memory(rows: int) -> BoardMemory:
    request = {"tag": (0, 3), "address": (3, 5), "write": (8, 1), "data": (9, 20)}
    response = {"data": (0, 20), "tag": (20, 3)}
    return BoardMemory("request", "response", request, response, 29, 23, rows)


class OnSdram(Elaboratable):
    """An SdramMemory with its device; ports as a BlockMemory has them."""

    def __init__(self, described: BoardMemory):
        p = SdramControllerParameters(
            row=described.row_bits,
            address=described.port.address_width,
            tag=4,
            **{"pads": 2, "page_bits": 2, "column_bits": 2, "bank_bits": 2, "power_up": 80_000},
        )
        self.parameters, self.memory = p, SdramMemory(described, p)

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = self.memory
        chip = with_chip(m, self.memory, self.parameters)
        m.d.sync += Assert(~chip.broken.any(), "a rule of the SDRAM is broken")
        return m


ON_BOARD = pytest.mark.parametrize("kind", [BlockMemory, OnSdram])


@ON_BOARD
@pytest.mark.parametrize("seed", range(3))
def test_a_memory_under_stalls(seed, kind):
    """Reads, writes and the cable's rows at once; responses in order, the newest rows."""
    rng = np.random.default_rng(seed)
    block = kind(memory(24))
    rows, expected, found = [0] * 24, [], []
    ready = rng.random(100_000) < [1, 0.5, 0.1][seed]

    async def takes(ctx):
        for cycle in range(len(ready)):
            ctx.set(block.response.ready, bool(ready[cycle]))
            names = (block.response.valid, block.response.payload)
            _, _, valid, payload = await ctx.tick().sample(*names)
            if valid and ready[cycle]:
                found.append((payload >> 20, payload & 0xFFFFF))

    async def bench(ctx):
        for row in range(24):  # from the cable
            rows[row] = int(rng.integers(1 << 20))
        ctx.set(block.start, 1)
        ctx.set(block.loads, 1)
        await ctx.tick()
        ctx.set(block.start, 0)
        for byte in b"".join(row.to_bytes(3, "little") for row in rows):
            while not ctx.get(block.present):
                await ctx.tick()
            ctx.set(block.push, 1)
            ctx.set(block.given, byte)
            await ctx.tick()
            ctx.set(block.push, 0)
        for number in range(300):
            tag, address = number % 8, int(rng.integers(24))
            write, data = bool(rng.random() < 0.4), int(rng.integers(1 << 20))
            ctx.set(block.request.payload, tag | address << 3 | write << 8 | data << 9)
            ctx.set(block.request.valid, 1)
            await ctx.tick().until(block.request.ready)
            ctx.set(block.request.valid, 0)
            if write:
                rows[address] = data
            else:
                expected.append((tag, rows[address]))
            if rng.random() < 0.5:
                await ctx.tick()
        await ctx.tick().repeat(400)
        assert not ctx.get(block.fault)
        assert ctx.get(block.reads) == len(expected)
        assert ctx.get(block.reads) + ctx.get(block.writes) == 300
        for address, row in enumerate(rows):  # back to the cable
            ctx.set(block.row, address)
            ctx.set(block.loads, 0)
            ctx.set(block.start, 1)
            await ctx.tick()
            ctx.set(block.start, 0)
            data = bytearray()
            for _ in range(3):
                while not ctx.get(block.present):
                    await ctx.tick()
                data.append(ctx.get(block.data))
                ctx.set(block.pop, 1)
                await ctx.tick()
                ctx.set(block.pop, 0)
            assert int.from_bytes(data, "little") == row

    simulate(block, bench, takes)
    assert found == expected and len(found) > 100


def test_many_requests_outstanding():
    """A request a cycle, answers two cycles after each; none is lost while they must wait."""
    block = BlockMemory(memory(32))
    times = []

    async def bench(ctx):
        ctx.set(block.request.valid, 1)
        accepted = 0
        for _ in range(12):
            accepted += ctx.get(block.request.ready)
            await ctx.tick()
        assert accepted == WAITING
        ctx.set(block.response.ready, 1)
        for _ in range(64):
            times.append((ctx.get(block.request.ready), ctx.get(block.response.valid)))
            await ctx.tick()

    simulate(block, bench)
    assert sum(ready for ready, _ in times) >= 60 and sum(valid for _, valid in times) >= 60


def test_latency_of_a_memory():
    block = BlockMemory(memory(32))

    async def bench(ctx):
        ctx.set(block.request.valid, 1)
        await ctx.tick()
        ctx.set(block.request.valid, 0)
        cycles = 1
        while not ctx.get(block.response.valid):
            await ctx.tick()
            cycles += 1
        assert cycles == 2

    simulate(block, bench)


@ON_BOARD
@pytest.mark.parametrize("waited", [*range(4), 9])
def test_what_was_asked_before_clear_is_not_answered(waited, kind):
    """However far the answers are: read, on their way, or waiting for the block."""
    block = kind(memory(32))

    async def bench(ctx):
        ctx.set(block.request.payload, 5 | 3 << 3)
        ctx.set(block.request.valid, 1)
        await ctx.tick().until(block.request.ready)
        await ctx.tick().until(block.request.ready)
        ctx.set(block.request.valid, 0)
        for _ in range(waited):
            await ctx.tick()
        ctx.set(block.clear, 1)
        await ctx.tick()
        ctx.set(block.clear, 0)
        ctx.set(block.response.ready, 1)
        ctx.set(block.request.payload, 6 | 4 << 3)
        ctx.set(block.request.valid, 1)
        await ctx.tick().until(block.request.ready)
        ctx.set(block.request.valid, 0)
        tags = []
        for _ in range(60):
            if ctx.get(block.response.valid):
                tags.append(ctx.get(block.response.payload) >> 20)
            await ctx.tick()
        assert tags == [6] and ctx.get(block.reads) == 1

    simulate(block, bench)


@ON_BOARD
def test_a_request_beyond_the_last_row(kind):
    block = kind(memory(24))

    async def ask(ctx, address, write):
        ctx.set(block.request.payload, address << 3 | write << 8 | 5 << 9)
        ctx.set(block.request.valid, 1)
        await ctx.tick().until(block.request.ready)
        ctx.set(block.request.valid, 0)

    async def bench(ctx):
        ctx.set(block.response.ready, 1)
        await ask(ctx, 23, True)
        assert not ctx.get(block.fault)
        await ask(ctx, 24, True)
        await ctx.tick().repeat(3)
        assert ctx.get(block.fault)
        ctx.set(block.clear, 1)
        await ctx.tick()
        ctx.set(block.clear, 0)
        assert not ctx.get(block.fault)

    simulate(block, bench)


def dump_anew():
    """The cable begins anew while a row is on its way: the next byte is of the new row."""
    block = OnSdram(memory(24))

    async def begin(ctx, row, loads):
        ctx.set(block.row, row)
        ctx.set(block.loads, loads)
        ctx.set(block.start, 1)
        await ctx.tick()
        ctx.set(block.start, 0)

    async def until_present(ctx):
        while not ctx.get(block.present):
            await ctx.tick()

    async def bench(ctx):
        await begin(ctx, 0, 1)
        for number in range(9):
            await until_present(ctx)
            ctx.set(block.given, 0x10 * (number // 3))
            ctx.set(block.push, 1)
            await ctx.tick()
            ctx.set(block.push, 0)
        await until_present(ctx)
        for waited in range(30):
            await begin(ctx, 1, 0)
            for _ in range(waited):
                await ctx.tick()
            await begin(ctx, 2, 0)
            await until_present(ctx)
            assert ctx.get(block.data) == 0x20

    simulate(block, bench)


def test_a_row_that_was_fetched_for_nobody():
    dump_anew()


def test_a_row_for_nobody_that_is_taken_for_the_next_one_is_found(monkeypatch):
    line = "stale.eq((fetching & ~self.fetched) | (self.taken & ~self.stores))"
    faulty = with_fault(cable_row, line, "stale.eq(0)")
    monkeypatch.setattr(block_memory, "CableRow", faulty.CableRow)
    with pytest.raises(AssertionError):
        dump_anew()
