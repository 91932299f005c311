"""The row store: every chunk of every row is written to the address that lanes read it from."""

import random
from itertools import pairwise

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from golden.topick.pe_lane import LaneSizes, chunk_of
from hw.parameters import ParameterError
from hw.topick.row_store import RowStore, RowStoreParameters

SIZES = {
    "small": RowStoreParameters(4, 6, 2, lanes=4, lanes_per_head=2, rows=32, kv_heads=2),
    "one lane": RowStoreParameters(3, 6, 3, lanes=1, lanes_per_head=1, rows=8, kv_heads=3),
    "one row, one chunk": RowStoreParameters(1, 4, 4, 2, lanes_per_head=2, rows=1, kv_heads=1),
    "three groups": RowStoreParameters(2, 6, 2, lanes=6, lanes_per_head=2, rows=4, kv_heads=8),
    "element bits": RowStoreParameters(2, 3, 1, lanes=8, lanes_per_head=8, rows=2, kv_heads=2),
    "contexts": RowStoreParameters(2, 6, 2, 6, lanes_per_head=2, rows=4, kv_heads=4, contexts=5),
    "contexts of a lane": RowStoreParameters(1, 4, 2, 1, 1, rows=2, kv_heads=2, contexts=2),
}


def written(p: RowStoreParameters, token: int, rows: np.ndarray, context: int) -> list[tuple]:
    """(lane, address, data) of each chunk of a token's rows ``[2 kv heads, d]``."""
    sizes = LaneSizes(p.bits, p.chunk_bits, *[0] * 7)
    first = context * -(-p.kv_heads // p.groups)  # kv head of the lane
    return [
        (
            (number // 2 + context) % p.groups * p.lanes_per_head + token % p.lanes_per_head,
            (((first + number // 2 // p.groups) * 2 + number % 2) * p.chunks + chunk) * p.rows
            + token // p.lanes_per_head,
            chunk_of(row, chunk, sizes).tolist(),
        )
        for number, row in enumerate(rows)
        for chunk in range(p.chunks)
    ]


def contexts_of(p: RowStoreParameters, count: int) -> list[int]:
    """The context of each command: from the last one down."""
    return [p.contexts - 1 - number % p.contexts for number in range(count)]


def run(p: RowStoreParameters, tokens: list[int], rows: list[np.ndarray], stall: float):
    """Writes, and the cycle in which each command, row and write was accepted."""
    dut, writes = RowStore(p), []
    kv = [row for of_token in rows for row in of_token.tolist()][::-1]
    contexts = contexts_of(p, len(tokens))[::-1]
    heads, tokens = [len(of_token) // 2 for of_token in rows][::-1], tokens[::-1]
    expected = p.chunks * len(kv)
    cycles: dict[str, list[int]] = {"command": [], "kv": [], "write": []}
    rng = random.Random(stall)

    async def testbench(ctx):
        offered, held = set(), None
        for cycle in range(8 * expected + 200):
            for name, beats in (("command", tokens), ("kv", kv)):
                if beats and rng.random() >= stall:
                    offered.add(name)
                ctx.set(getattr(dut, name).valid, name in offered)
            if tokens:
                command = {"token": tokens[-1], "kv_heads": heads[-1]}
                command |= {"context": contexts[len(tokens) - 1]} if p.contexts > 1 else {}
                ctx.set(dut.command.payload, command)
            if "kv" in offered:
                ctx.set(dut.kv.payload, kv[-1])
            ctx.set(dut.write.ready, rng.random() >= stall)
            beat = ctx.get(dut.write.payload)
            if held is not None:
                assert ctx.get(dut.write.valid)
                assert ctx.get(Value.cast(dut.write.payload)) == held, "a stalled write changed"
            held = None
            for name in cycles:
                port = getattr(dut, name)
                if ctx.get(port.valid) and ctx.get(port.ready):
                    cycles[name].append(cycle)
                    if name == "write":
                        lane = beat.lane if p.lanes > 1 else 0
                        writes.append((lane, beat.address, list(beat.data)))
                    else:
                        (tokens if name == "command" else kv).pop()
                        offered.discard(name)
                        if name == "command":
                            heads.pop()
                elif name == "write" and ctx.get(port.valid):
                    held = ctx.get(Value.cast(dut.write.payload))
            await ctx.tick()
        assert not tokens and not kv and ctx.get(dut.command.ready)

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return writes, cycles


@pytest.mark.parametrize("stall", [0.0, 0.4])
@pytest.mark.parametrize("size", SIZES)
def test_every_size(size, stall):
    p, rng = SIZES[size], np.random.default_rng(3)
    top = p.rows * p.lanes_per_head
    tokens = [top - 1, 0, *rng.integers(0, top, 3).tolist()]
    heads = [p.kv_heads, 1, 0, *rng.integers(1, p.kv_heads + 1, 2).tolist()]
    half = 1 << p.bits - 1
    rows = [rng.integers(-half, half, (2 * count, p.d)) for count in heads]
    rows[0][0], rows[0][1] = -half, half - 1
    writes, cycles = run(p, tokens, rows, stall)
    each = zip(tokens, rows, contexts_of(p, len(tokens)), strict=True)
    want = [it for of in each for it in written(p, *of)]
    assert writes == want
    if stall == 0:
        for count, (command, following) in zip(heads, pairwise(cycles["command"]), strict=False):
            assert following - command == (2 * count * p.chunks + 2 if count else 1)
        assert cycles["write"][0] == cycles["command"][0] + 1 + p.latency
        assert cycles["kv"][0] == cycles["command"][0] + p.chunks


def test_address_of_one_chunk():
    p = RowStoreParameters(2, 6, 2, lanes=4, lanes_per_head=2, rows=32, kv_heads=4)
    rows = np.array([[0, 0]] * 5 + [[-32, 27]] + [[0, 0]] * 2)
    writes, _ = run(p, [9], [rows], 0.0)
    # V of head 2: second head of group 0; token 9 is row 4 of lane 1. 27 is 01 10 11.
    assert writes[15:18] == [(1, 9 * 32 + 4, [2, 1]), (1, 10 * 32 + 4, [0, 2]),
                             (1, 11 * 32 + 4, [0, 3])]  # fmt: skip


WRONG = [
    ({"d": 0}, "d must be at least 1, not 0"),
    ({"chunk_bits": 0}, "chunk_bits must be at least 1, not 0"),
    ({"kv_heads": 0}, "kv_heads must be at least 1, not 0"),
    ({"contexts": 0}, "contexts must be at least 1, not 0"),
    ({"rows": 48}, "rows must be a power of two, not 48"),
    ({"lanes_per_head": 3}, "lanes_per_head must be a power of two, not 3"),
    ({"lanes": 3, "lanes_per_head": 2}, "lanes must be a multiple of lanes_per_head, not 3"),
    ({"bits": 10}, "bits must be a multiple of chunk_bits, not 10"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_parameters_are_checked(changes, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        RowStoreParameters(**changes)
