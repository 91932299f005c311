"""The link's parts, each alone: latencies, rates, credits, and rows under stalls of the block."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Elaboratable, Module
from amaranth.sim import Simulator

from hw.boards import block_memory, cable_row
from hw.boards.block_memory import WAITING, BlockMemory, BoardMemory
from hw.boards.frames import END, ESC, FrameReceiver, FrameTransmitter
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.boards.sdram_memory import SdramMemory
from hw.boards.stream_ports import InputPort, OutputPort, beats_held, bytes_of
from sim.drivers.board.link import Deframer, Repairs, frame
from tests.support.boards.sdram_run import with_chip
from tests.support.faults import with_fault


def simulate(component, bench, *others):
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    done = []

    async def main(ctx):
        await bench(ctx)
        done.append(True)

    simulator.add_testbench(main)
    for other in others:
        simulator.add_testbench(other, background=True)
    simulator.run()
    assert done


@pytest.mark.parametrize("width", [1, 8, 9, 70])
@pytest.mark.parametrize("seed", range(2))
def test_credits_of_an_input(width, seed):
    """As many beats as `room` says may be pushed, whatever the block does; none is lost."""
    size, rng = bytes_of(width), np.random.default_rng(seed)
    port = InputPort(width, 40)
    assert beats_held(width, 40) == max(2, 40 // size)
    values = [int.from_bytes(rng.bytes(size), "little") % (1 << width) for _ in range(60)]
    found, ready = [], rng.random(100_000) < 0.1

    async def block(ctx):
        for cycle in range(len(ready)):
            ctx.set(port.o.ready, bool(ready[cycle]))
            _, _, valid, payload = await ctx.tick().sample(port.o.valid, port.o.payload)
            if valid and ready[cycle]:
                found.append(payload)

    async def bench(ctx):
        for value in values:
            while ctx.get(port.room) == 0:
                await ctx.tick()
            for byte in value.to_bytes(size, "little"):
                ctx.set(port.data, byte)
                ctx.set(port.push, 1)
                await ctx.tick()
            ctx.set(port.push, 0)
        await ctx.tick().repeat(4000)
        assert ctx.get(port.room) == beats_held(width, 40)
        assert ctx.get(port.beats) == len(values)

    simulate(port, bench, block)
    assert found == values


@pytest.mark.parametrize("width", [5, 24])
def test_latencies_of_ports(width):
    size = bytes_of(width)
    given, taken = InputPort(width, 64), OutputPort(width, 64)

    async def push(ctx):
        ctx.set(given.push, 1)
        await ctx.tick().repeat(size)
        ctx.set(given.push, 0)
        cycles = 1
        while not ctx.get(given.o.valid):
            await ctx.tick()
            cycles += 1
        # From the cycle of the last byte; those before it had theirs meanwhile.
        assert cycles <= 2 + size

    async def offer(ctx):
        ctx.set(taken.i.valid, 1)
        await ctx.tick()
        ctx.set(taken.i.valid, 0)
        cycles = 0
        while not ctx.get(taken.level):
            await ctx.tick()
            cycles += 1
        assert cycles == 2 + size

    simulate(given, push)
    simulate(taken, offer)


@pytest.mark.parametrize("width", [1, 8, 9, 70])
def test_an_output_stalls_and_loses_nothing(width):
    size, rng = bytes_of(width), np.random.default_rng(width)
    port = OutputPort(width, 40)
    values = [int.from_bytes(rng.bytes(size), "little") % (1 << width) for _ in range(50)]

    async def block(ctx):
        for value in values:
            ctx.set(port.i.payload, value)
            ctx.set(port.i.valid, 1)
            while not ctx.get(port.i.ready):
                await ctx.tick()
            await ctx.tick()
        ctx.set(port.i.valid, 0)

    async def bench(ctx):
        await ctx.tick().repeat(600)
        # Full: what the queue holds, and the beat beside it.
        assert ctx.get(port.level) == min(len(values), beats_held(width, 40))
        for value in values:
            while not ctx.get(port.level):
                await ctx.tick()
            data = bytearray()
            ctx.set(port.pop, 1)
            for _ in range(size):
                data.append(ctx.get(port.data))
                await ctx.tick()
            ctx.set(port.pop, 0)
            assert int.from_bytes(data, "little") == value
        assert ctx.get(port.beats) == len(values)

    simulate(port, bench, block)


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


def bodies(seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    some = [rng.bytes(int(rng.integers(2, 41))) for _ in range(10)]
    special = bytes(rng.choice([END, ESC, 0xDC, 0xDD], 30).astype(np.uint8))
    return [*some, special, bytes([END, ESC]), bytes(40)]


@pytest.mark.parametrize("seed", range(2))
def test_frames_received(seed):
    """`full` in the second cycle after that of END; the packet is the body."""
    receiver = FrameReceiver(44)

    async def bench(ctx):
        for body in bodies(seed):
            for byte in frame(body):
                ctx.set(receiver.data, byte)
                ctx.set(receiver.valid, 1)
                assert not ctx.get(receiver.full)
                await ctx.tick()
            ctx.set(receiver.valid, 0)
            assert ctx.get(receiver.full) and ctx.get(receiver.length) == len(body)
            found = bytearray()
            for address in range(len(body)):
                ctx.set(receiver.read_address, address)
                await ctx.tick()
                found.append(ctx.get(receiver.read_data))
            assert bytes(found) == body
            ctx.set(receiver.release, 1)
            await ctx.tick()
            ctx.set(receiver.release, 0)
        assert ctx.get(receiver.dropped) == 0

    simulate(receiver, bench)


def test_a_packet_that_is_offered_is_not_written_over():
    receiver = FrameReceiver(44)

    async def bench(ctx):
        for body in (b"first", b"second"):
            for byte in frame(body):
                ctx.set(receiver.data, byte)
                ctx.set(receiver.valid, 1)
                await ctx.tick()
        ctx.set(receiver.valid, 0)
        ctx.set(receiver.read_address, 0)
        await ctx.tick().repeat(2)
        assert ctx.get(receiver.full) and ctx.get(receiver.length) == 5
        assert ctx.get(receiver.read_data) == ord("f") and ctx.get(receiver.dropped) == 1

    simulate(receiver, bench)


@pytest.mark.parametrize("seed", range(2))
def test_frames_sent(seed):
    """Under stalls of the line; three cycles a byte without, and one more for an escape."""
    transmitter = FrameTransmitter(44)
    rng = np.random.default_rng(seed)

    async def bench(ctx):
        for number, body in enumerate(bodies(seed)):
            ctx.set(transmitter.length, len(body))
            ctx.set(transmitter.start, 1)
            await ctx.tick()
            ctx.set(transmitter.start, 0)
            data, cycles = bytearray(), 0
            while ctx.get(transmitter.busy):
                ready = bool(number % 2 or rng.random() < 0.5)
                ctx.set(transmitter.o.ready, ready)
                if ready and ctx.get(transmitter.o.valid):
                    data.append(ctx.get(transmitter.o.payload))
                address = ctx.get(transmitter.read_address)
                await ctx.tick()
                ctx.set(transmitter.read_data, body[address] if address < len(body) else 0)
                cycles += 1
            repairs = Repairs()
            assert Deframer(repairs).feed(bytes(data)) == [body] and not repairs.damaged
            assert bytes(data) == frame(body)
            if number % 2:
                escapes = len(data) - len(body) - 6
                assert cycles == 3 * (len(body) + 4) + escapes + 3

    simulate(transmitter, bench)
