"""The link's parts, each alone: latencies, rates and credits."""

import numpy as np
import pytest

from hw.boards.frames import END, ESC, FrameReceiver, FrameTransmitter
from hw.boards.stream_ports import InputPort, OutputPort, beats_held, bytes_of
from sim.drivers.board.link import Deframer, Repairs, frame
from tests.support.boards.simulation import simulate


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
