"""The chunk buffer in a closed loop: requests that wait for responses, and data that change."""

import dataclasses
import random

import pytest
from amaranth.hdl import ResetInserter, Signal, Value
from amaranth.sim import Simulator

from golden.topick.chunk_buffer import ChunkBuffer as Model
from golden.topick.chunk_buffer import timeline
from hw.parameters import ParameterError
from hw.topick.chunk_buffer import ChunkBuffer, ChunkBufferParameters

SIZES = {
    "small": ChunkBufferParameters.preset("small"),
    "all rows": ChunkBufferParameters(4, 3, 3, 1, row_bits=2, address_width=5, label_bits=6),
    "one row": ChunkBufferParameters(1, 2, 4, 2, row_bits=1, address_width=3, label_bits=3),
    "one chunk": ChunkBufferParameters(2, 1, 5, 5, row_bits=3, address_width=4, label_bits=7),
}
TIMEOUT_CYCLES = 500


def data_of(p: ChunkBufferParameters, epoch: int, address: int) -> int:
    """What the memory holds for an address before the clear of that number and after the last."""
    word = random.Random(epoch << 32 | address).getrandbits(p.d * p.chunk_bits)
    return word ^ (epoch & 1)  # never as before the clear, if the word is a bit


@dataclasses.dataclass
class Loop:
    """A run in progress.

    script
        Chunks to request, last first; a flag of V in place of one clears K or V.
    pending
        Requests without response: tag as bits to chunk.
    due
        Requests in the memory: cycle, tag as bits, address.
    epoch
        Clears of K and of V so far.
    """

    p: ChunkBufferParameters
    script: list
    model: Model
    pending: dict = dataclasses.field(default_factory=dict)
    due: list = dataclasses.field(default_factory=list)
    misses: list = dataclasses.field(default_factory=list)
    epoch: list = dataclasses.field(default_factory=lambda: [0, 0])
    label: int = 0
    hits: int = 0
    accepted: dict = dataclasses.field(default_factory=dict)
    waits: list = dataclasses.field(default_factory=list)


def address_of(p: ChunkBufferParameters, chunk) -> int:
    value, number, row = chunk
    return ((value * p.chunks + number << p.row_bits) + row) % (1 << p.address_width)


def next_beat(loop: Loop):
    """The next request's tag, or a clear; None while the script waits for a response."""
    p = loop.p
    if not loop.script:
        return None
    item = loop.script[-1]
    if isinstance(item, int):
        waiting = any(chunk[0] == item for chunk in loop.pending.values())
        return None if waiting else {"keys": item == 0, "values": item == 1}
    if item in loop.pending.values() or len(loop.pending) == 1 << p.label_bits:
        return None
    while any(tag >> p.memory.tag["label"].offset == loop.label for tag in loop.pending):
        loop.label = (loop.label + 1) % (1 << p.label_bits)
    return {"value": item[0], "chunk": item[1], "row": item[2], "label": loop.label}


def run(p: ChunkBufferParameters, script: list, latency: tuple[int, int], stall: float) -> Loop:
    """Run requests and clears; every transfer is checked."""
    dut = ChunkBuffer(p)
    loop = Loop(p, script[::-1], Model(p.rows))
    rng = random.Random(f"{latency}{stall}")

    async def testbench(ctx):
        offered = answer = None
        held = {"response": None, "memory_request": None}
        idle = cycle = 0
        while loop.script or loop.pending:
            ctx.set(dut.clear.valid, 0)
            if offered is None and rng.random() >= stall:
                offered = next_beat(loop)
                if offered is not None and "keys" in offered:
                    clear(ctx, dut, loop, offered)
                    offered = None
                elif offered is not None:
                    ctx.set(dut.request.payload.tag, offered)
                    ctx.set(dut.request.payload.address, address_of(p, loop.script[-1]))
            ctx.set(dut.request.valid, offered is not None)
            if answer is None and rng.random() >= stall:
                answer = respond(ctx, dut, loop, cycle)
            ctx.set(dut.memory_response.valid, answer is not None)
            ctx.set(dut.response.ready, rng.random() >= stall)
            ctx.set(dut.memory_request.ready, rng.random() >= stall)
            moved = check_outputs(ctx, dut, loop, held, cycle, rng.randint(*latency))
            if offered is not None and ctx.get(dut.request.ready):
                request(ctx, dut, loop, cycle)
                offered, moved = None, True
            if ctx.get(dut.clear.valid):
                loop.model.clear(*(bool(ctx.get(it)) for it in clear_flags(dut)))
            if answer is not None and ctx.get(dut.memory_response.ready):
                loop.model.arrive(answer)
                answer, moved = None, True
            await ctx.tick()
            idle = 0 if moved else idle + 1
            cycle += 1
            assert idle < TIMEOUT_CYCLES, f"no transfer for {idle} cycles up to cycle {cycle}"
        for _ in range(20):
            await ctx.tick()
            assert not ctx.get(dut.response.valid) and not ctx.get(dut.memory_request.valid)
        assert not loop.misses and not loop.due

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return loop


def clear_flags(dut):
    return dut.clear.payload["keys"], dut.clear.payload["values"]


def clear(ctx, dut, loop: Loop, flags: dict) -> None:
    ctx.set(dut.clear.payload, flags)
    ctx.set(dut.clear.valid, 1)
    loop.epoch[loop.script.pop()] += 1


def request(ctx, dut, loop: Loop, cycle: int) -> None:
    """A request is accepted: it hits exactly if the model says so."""
    chunk = loop.script.pop()
    bits = ctx.get(Value.cast(dut.request.payload.tag))
    loop.pending[bits], loop.accepted[bits] = chunk, cycle
    loop.label = (loop.label + 1) % (1 << loop.p.label_bits)
    if loop.model.hits(chunk):
        loop.hits += 1
    else:
        loop.misses.append((bits, address_of(loop.p, chunk)))


def respond(ctx, dut, loop: Loop, cycle: int):
    """Offer a response that is due, as the memory's contents are now; returns its chunk."""
    ready = [it for it in loop.due if it[0] <= cycle]
    if not ready:
        return None
    loop.due.remove(ready[0])
    _, bits, address = ready[0]
    chunk = loop.pending[bits]
    word = data_of(loop.p, loop.epoch[chunk[0]], address)
    payload = Value.cast(dut.memory_response.payload)
    ctx.set(payload, bits | word << len(Value.cast(dut.request.payload.tag)))
    return chunk


def check_outputs(ctx, dut, loop: Loop, held: dict, cycle: int, latency: int) -> bool:
    """Stalled beats stay; a miss goes to the memory; a response is pending, with its data."""
    moved = False
    for name in held:
        port = getattr(dut, name)
        beat = ctx.get(Value.cast(port.payload)) if ctx.get(port.valid) else None
        if held[name] is not None:
            assert beat == held[name], f"a stalled beat of {name} changed"
        held[name] = beat
        if beat is None or not ctx.get(port.ready):
            continue
        held[name], moved = None, True
        tag_bits = len(Value.cast(dut.request.payload.tag))
        bits, rest = beat & (1 << tag_bits) - 1, beat >> tag_bits
        if name == "memory_request":
            assert (bits, rest) == loop.misses.pop(0)
            loop.due.append((cycle + latency, bits, rest))
        else:
            chunk = loop.pending.pop(bits)
            assert rest == data_of(loop.p, loop.epoch[chunk[0]], address_of(loop.p, chunk))
            loop.waits.append(cycle - loop.accepted.pop(bits))
    return moved


def script_of(p: ChunkBufferParameters, count: int, seed: int) -> list:
    """Chunks in any order, often the ones before; K or V is cleared now and then."""
    rng = random.Random(seed)
    script: list = []
    for number in range(count):
        if rng.random() < 0.04:
            script.append(rng.randrange(2))
        chunks = [it for it in script[-30:] if not isinstance(it, int)]
        if chunks and rng.random() < 0.5:
            script.append(rng.choice(chunks))
        else:
            row = rng.choice([rng.randrange(1 << p.row_bits), number % p.rows])
            script.append((rng.randrange(2), rng.randrange(p.chunks), row))
    return script


@pytest.mark.parametrize(("latency", "stall"), [((1, 1), 0.0), ((1, 12), 0.0), ((1, 30), 0.4)])
@pytest.mark.parametrize("size", SIZES)
def test_any_memory(size, latency, stall):
    p = SIZES[size]
    script = script_of(p, 120, seed=len(size))
    loop = run(p, script, latency, stall)
    assert loop.hits > 10
    if stall == 0:
        assert min(loop.waits) == p.latency


def test_each_chunk_is_read_once():
    """Three heads read the same rows: the memory is read once for each buffered chunk."""
    p = SIZES["small"]
    rows = [(0, 0, row) for row in range(12)] + [(1, chunk, 5) for chunk in range(3)]
    loop = run(p, rows * 3 + [0] + rows, (1, 20), 0.0)
    # 8 + 3 of these chunks have a place; the keys are cleared before the last head.
    assert loop.hits == 2 * (8 + 3) + 3


def test_rate():
    """A request per cycle, as the model has it that the testbench compares: hits, misses, both."""
    near, far = [(0, 0, row) for row in range(8)], [(0, 1, row) for row in range(8, 16)]
    hits = timeline(near * 11, [], rows=8)
    # The first hit waits for the last response of the memory.
    assert sum(hits.hit) == 80 and hits.cycles[-1] == 87 + 1 + ChunkBufferParameters().latency
    misses = timeline(far * 10, [], rows=8)
    assert not any(misses.hit) and misses.cycles == list(range(3, 83))
    both = timeline(near + [it for pair in zip(near, far, strict=True) for it in pair], [], rows=8)
    assert sum(both.hit) == 8 and both.cycles == list(range(3, 27))


def test_model():
    buffer = Model(4)
    for row in (3, 4):
        buffer.arrive((1, 0, row))
    buffer.arrive((0, 2, 1))
    assert buffer.hits((1, 0, 3)) and not buffer.hits((1, 0, 4)) and not buffer.hits((0, 0, 3))
    buffer.clear(keys=True, values=False)
    assert buffer.hits((1, 0, 3)) and not buffer.hits((0, 2, 1))


WRONG = [
    ({"rows": 48}, "rows must be a power of two, not 48"),
    ({"rows": 0}, "rows must be a power of two, not 0"),
    ({"rows": 2048}, r"rows must be at most 2\^row_bits, 1024, not 2048"),
    ({"d": 0}, "d must be at least 1, not 0"),
    ({"label_bits": 0}, "label_bits must be between 1 and 64, not 0"),
    ({"bits": 10}, "bits must be a multiple of chunk_bits, not 10"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_parameters_are_checked(changes, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        ChunkBufferParameters(**changes)


def test_reset_forgets():
    """After a reset with a hit under way, nothing is answered and nothing is kept."""
    p = SIZES["small"]
    dut = ChunkBuffer(p)

    async def testbench(ctx):
        ctx.set(dut.memory_response.valid, 1)  # chunk 0 of K's row 0
        await ctx.tick()
        ctx.set(dut.memory_response.valid, 0)
        ctx.set(dut.request.valid, 1)
        for _ in range(3):
            await ctx.tick()
        assert ctx.get(dut.response.valid) and not ctx.get(dut.request.ready)
        ctx.set(dut.request.valid, 0)
        ctx.set(reset, 1)
        await ctx.tick()
        ctx.set(reset, 0)
        ctx.set(dut.response.ready, 1)
        ctx.set(dut.request.valid, 1)
        assert ctx.get(dut.request.ready) and not ctx.get(dut.response.valid)
        await ctx.tick()
        assert ctx.get(dut.memory_request.valid)
        ctx.set(dut.request.valid, 0)
        for _ in range(4):
            await ctx.tick()
            assert not ctx.get(dut.response.valid)

    reset = Signal()
    simulator = Simulator(ResetInserter(reset)(dut))
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
