"""Words of a matrix: in order, once for every vector of a batch, with their columns' scales."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Mux, Signal, Value
from amaranth.sim import Simulator

from hw.kllm.core.core_parameters import CoreParameters
from hw.kllm.core.word_fetch import WordFetch
from sim.checks.formal.specs import surround
from tests.support.formal import prove_block

TINY = CoreParameters(
    *(40, 14, 2),
    activation_bits=2,
    weight_bits=1,
    counters=1,
    macs=4,
    outliers=1,
    entries=1,
    vectors=4,
    depth=4,
    address_width=7,
)
# Scales of one set in a word, of two, and of eight, of which a matrix has four at most in `few`.
SIZES = {
    "one": TINY,
    "two": dataclasses.replace(TINY, lanes=1, weight_bits=2, depth=8),
    "eight": dataclasses.replace(TINY, lanes=1, weight_bits=4, macs=16, counters=2, depth=4),
    "few": dataclasses.replace(TINY, n=4, lanes=1, weight_bits=4, macs=16, counters=2, depth=4),
}


def random_commands(p, rng, count):
    """(address, words, sets, vectors) of products; addresses wrap."""
    return [
        (
            int(rng.integers(1 << p.address_width)),
            int(rng.integers(1, p.beats + 1)),
            int(rng.choice([1, p.sets, rng.integers(1, p.sets + 1)])),
            int(rng.integers(1, p.vectors + 1)),
        )
        for _ in range(count)
    ]


def words_of(p, contents, commands):
    """Addresses in order; and (word, scales, number of its address) in order of output."""
    addresses, output = [], []
    scale_bits = Value.cast(p.scale_layout.const(None)).shape().width
    for first, words, sets, vectors in commands:
        address = first
        for number in range(sets):
            if number % p.scale_sets == 0:
                addresses.append(address)
                address += 1
                scales = contents[addresses[-1] % len(contents)]
            own = scales >> number % p.scale_sets * scale_bits & (1 << scale_bits) - 1
            of_set = range(len(addresses), len(addresses) + words)
            addresses += range(address, address + words)
            address += words
            for _ in range(vectors):
                output += [(contents[addresses[n] % len(contents)], own, n) for n in of_set]
    return [address % len(contents) for address in addresses], output


def run(p, commands, rng, latency=None):
    """Words and their cycles; random stalls and responses out of order without a `latency`."""
    dut = WordFetch(p)
    width = Value.cast(p.word_layout.const(None)).shape().width
    contents = [
        int.from_bytes(rng.bytes(width // 8), "little") for _ in range(1 << p.address_width)
    ]
    addresses, wanted = words_of(p, contents, commands)
    got, requested = [], []

    def often(share):
        return latency is not None or rng.random() < share

    async def testbench(ctx):
        command = 0
        offered = False
        outstanding = []  # (tag, address, cycle of the response)
        for cycle in range(20000):
            if len(got) == len(wanted):
                return
            offered = command < len(commands) and (offered or often(0.6))
            ctx.set(dut.command.valid, offered)
            if offered:
                names = ("address", "words", "sets", "vectors")
                for name, value in zip(names, commands[command], strict=True):
                    ctx.set(dut.command.payload[name], value)
            ctx.set(dut.request.ready, often(0.8))
            ctx.set(dut.words.ready, often(0.7))
            due = [n for n, (*_, at) in enumerate(outstanding) if at <= cycle]
            answered = bool(due) and often(0.5)
            ctx.set(dut.response.valid, answered)
            if answered:
                which = 0 if latency is not None else int(rng.choice(due))
                tag, address, _ = outstanding.pop(which)
                ctx.set(dut.response.payload.tag, tag)
                ctx.set(Value.cast(dut.response.payload.data), contents[address])
            if ctx.get(dut.request.valid) and ctx.get(dut.request.ready):
                request = dut.request.payload
                requested.append(ctx.get(request.address))
                outstanding.append((ctx.get(request.tag), requested[-1], cycle + (latency or 1)))
                assert len(outstanding) <= p.depth
            command += bool(offered and ctx.get(dut.command.ready))
            offered = offered and not ctx.get(dut.command.ready)
            if ctx.get(dut.words.valid) and ctx.get(dut.words.ready):
                word = dut.words.payload
                pair = (ctx.get(Value.cast(word.weight)), ctx.get(Value.cast(word.scale)))
                got.append((*pair, cycle))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert [word[:2] for word in got] == [word[:2] for word in wanted]
    assert requested[: len(addresses)] == addresses
    return [cycle for *_, cycle in got], wanted


@pytest.mark.parametrize("size", SIZES)
def test_every_word_for_every_vector(size):
    """Products of any size, one after another, from a memory that responds in any order."""
    p = SIZES[size]
    assert p.scale_sets == {"one": 1, "two": 2, "eight": 8, "few": 8}[size]
    rng = np.random.default_rng(len(size))
    commands = [(5, p.beats, p.sets, p.vectors), (0, 1, 1, 1), *random_commands(p, rng, 12)]
    run(p, commands, rng)


@pytest.mark.parametrize("latency", [1, 2, 5])
def test_latency_and_rate(latency):
    """L + 3 cycles to the first word; then one a cycle, and one more for a word of scales."""
    p = dataclasses.replace(TINY, depth=8)
    rng = np.random.default_rng(latency)
    commands = [(3, 3, 7, 1), (30, 2, 3, 1), (60, 3, 2, 4)]
    cycles, wanted = run(p, commands, rng, latency)
    assert cycles[0] == latency + 3
    # Set by set, a word of scales lies ahead; further vectors need none.
    number = np.array([n for *_, n in wanted])
    scales_ahead = np.diff(number) == 2
    assert np.array_equal(np.diff(cycles), 1 + scales_ahead)
    assert np.count_nonzero(scales_ahead) == 7 + 3 + 2 - 1


class FetchSpec(Elaboratable):
    """Rules of streams, for any commands, stalls and responses to outstanding requests.

    Registers power up with any value; reset is high in the first cycle. The reorder buffer has an
    unbounded proof of its own, in tests/stream/test_reorder_buffer.py.
    """

    def __init__(self, dut):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, _ = surround(m, dut)
        command = dut.command.payload
        for name, most in (("words", p.beats), ("sets", p.sets), ("vectors", p.vectors)):
            m.d.comb += Assume((command[name] != 0) & (command[name] <= most))
        waits = Signal(p.depth)
        asked = dut.request.valid & dut.request.ready & ~first
        answered = dut.response.valid & ~first
        tags = [1 << port.payload.tag for port in (dut.request, dut.response)]
        m.d.sync += waits.eq(
            (waits | Mux(asked, tags[0], 0))
            & ~Mux(answered, tags[1], 0)
            & ~first.replicate(p.depth)
        )
        again = ~first & dut.words.valid & dut.words.ready
        given = Signal(range(8))
        m.d.sync += given.eq(Mux(first, 0, given + (again & (given != 7))))
        m.d.comb += [
            Assume(~answered | (waits & tags[1]).any()),
            Assert(first | ((waits & tags[0]) == 0) | ~dut.request.valid, "a tag in use"),
            Cover(given == 5, "words of several vectors"),
        ]
        return m


@pytest.mark.campaign
@pytest.mark.parametrize(("mode", "depth"), [("bmc", 12), ("cover", 12)])
def test_stream_rules(mode, depth):
    p = dataclasses.replace(TINY, vectors=2)
    prove_block(FetchSpec(WordFetch(p)), f"word_fetch_{mode}", mode, depth=depth)
