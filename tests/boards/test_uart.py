"""The serial line: every byte, the tolerance of rates, glitches, stop bits, the stated latency."""

import pytest
from amaranth.sim import Simulator

from hw.boards.uart import UartReceiver, UartTransmitter

BYTES = [0x00, 0xFF, 0xA5, 0x5A, 0x01, 0x80, *range(0, 256, 37)]


def frame(byte: int) -> list[int]:
    return [0, *(byte >> n & 1 for n in range(8)), 1]


def levels(bits: list[int], length: float) -> list[int]:
    """A line's level in each cycle, for bits of `length` cycles."""
    ends = [round((n + 1) * length) for n in range(len(bits))]
    return [bit for n, bit in enumerate(bits) for _ in range(ends[n] - (ends[n - 1] if n else 0))]


def receive(divisor: int, line: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Bytes, the cycles of theirs, and cycles of framing errors."""
    receiver = UartReceiver(divisor)
    found, at, errors = [], [], []

    async def bench(ctx):
        for cycle, level in enumerate([*line, *[1] * 12 * divisor]):
            ctx.set(receiver.rx, level)
            await ctx.tick()
            if ctx.get(receiver.valid):
                found.append(ctx.get(receiver.data))
                at.append(cycle)
            if ctx.get(receiver.framing_error):
                errors.append(cycle)

    simulator = Simulator(receiver)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found, at, errors


# With few cycles a bit, a sample may be a quarter of a bit off, which leaves no room.
@pytest.mark.parametrize(("divisor", "rate"), [(4, 1), (5, 1), (25, 0.96), (25, 1), (25, 1.04)])
def test_bytes_back_to_back(divisor, rate):
    bits = [1, 1, *(bit for byte in BYTES for bit in frame(byte))]
    found, _, errors = receive(divisor, levels(bits, divisor * rate))
    assert found == BYTES and not errors


@pytest.mark.parametrize("divisor", [4, 7, 25])
def test_latency(divisor):
    _, at, _ = receive(divisor, levels([1, *frame(0x3C)], divisor))
    assert at == [divisor + 2 + divisor // 2 + 9 * divisor - 1]


def test_a_short_glitch_is_no_start_bit():
    found, _, errors = receive(16, [*[1] * 20, *[0] * 5, *[1] * 40, *levels(frame(0x42), 16)])
    assert found == [0x42] and not errors


def test_a_low_stop_bit_is_an_error_and_the_next_byte_is_read():
    broken = [*frame(0x42)[:-1], 0]
    found, _, errors = receive(8, levels([1, *broken, 0, 0, 1, 1, *frame(0x17)], 8))
    assert found == [0x17] and len(errors) == 1


@pytest.mark.parametrize("divisor", [4, 25])
def test_transmitter(divisor):
    """The line by the standard's definition, bytes without a gap."""
    transmitter = UartTransmitter(divisor)
    line = []

    async def bench(ctx):
        for byte in BYTES:
            ctx.set(transmitter.i.payload, byte)
            ctx.set(transmitter.i.valid, 1)
            while not ctx.get(transmitter.i.ready):
                line.append(ctx.get(transmitter.tx))
                await ctx.tick()
            line.append(ctx.get(transmitter.tx))
            await ctx.tick()
            ctx.set(transmitter.i.valid, 0)
        for _ in range(10 * divisor):
            line.append(ctx.get(transmitter.tx))
            await ctx.tick()

    simulator = Simulator(transmitter)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    # One idle cycle between bytes, in which the next is accepted.
    expected = [level for byte in BYTES for level in [1, *levels(frame(byte), divisor)]]
    assert line == expected
