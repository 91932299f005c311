"""Runs of rows, output once for each head: rules of the streams, and memories in any order."""

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Signal
from amaranth.sim import Simulator

from hw.attention import row_reader
from hw.attention.row_reader import RowReader
from hw.stream.sequential_reader import SequentialReaderParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import prove_block

SMALL = SequentialReaderParameters(address_width=3, data_width=2, depth=4, longest=6)
WIDE = SequentialReaderParameters(address_width=6, data_width=8, depth=32, longest=40)
TIMES, TOKENS = 3, 3


class ReaderSpec(Elaboratable):
    """The rules of its streams, with a memory that answers requests in any order, once each.

    The other assertions relate the buffer's registers, so that an induction can begin anywhere.
    """

    def __init__(self, dut: RowReader):
        self._dut = dut

    def elaborate(self, platform):
        m = Module()
        dut, depth = self._dut, self._dut.parameters.depth
        first, internals = surround(m, dut)
        signal = internals.signal
        requested, emptied, ahead, filled = (
            signal(f"reorder.{name}") for name in ("requested", "emptied", "ahead", "filled")
        )
        kept = Signal(range(2 * depth))
        m.d.comb += [
            kept.eq(requested - emptied),
            Assert(first | (signal("runs.fifo.level") <= depth)),
            Assert(first | ((kept <= depth) & (ahead <= kept)), "a row that was not requested"),
        ]
        for slot in range(depth):
            place, at = Signal(range(depth), name=f"place_{slot}"), Signal(range(2 * depth))
            used, holds = place < kept, filled[slot] ^ at[-1]
            answered = dut.response.valid & (dut.response.payload.tag == slot)
            m.d.comb += [
                place.eq(slot - emptied),
                at.eq(emptied + place),
                Assume(first | ~answered | (used & ~holds)),
                Assert(first | used | ~holds, "a row in a free slot"),
                Assert(first | (place >= ahead) | holds, "a row that was not there"),
            ]
        m.d.comb += [
            Cover(~first & dut.request.valid & ~dut.request.ready, "a stalled request"),
            Cover(~first & dut.o.valid & (signal("number") != 1), "a run once more"),
        ]
        return m


@pytest.mark.campaign
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_rules_of_its_streams(tokens):
    spec = ReaderSpec(RowReader(SMALL, SMALL.data_width, TIMES, tokens))
    prove_block(spec, f"row_reader_{tokens}", depth=2)
    prove_block(spec, f"row_reader_{tokens}", "cover", depth=14)


def run(dut: RowReader, runs: list[dict[str, int]], total: int, rng) -> tuple[list, list]:
    """The `total` rows output, with `last`, and addresses requested, of runs' commands."""
    contents = np.arange(64) * 3 % 256
    got: list[tuple[int, int]] = []
    asked: list[int] = []

    async def testbench(ctx):
        sent, waiting = 0, []
        for _ in range(8000):
            if len(got) == total:
                return
            ctx.set(dut.command.valid, sent < len(runs))
            if sent < len(runs):
                ctx.set(dut.command.payload, runs[sent])
            ctx.set(dut.request.ready, int(rng.random() < 0.8))
            ctx.set(dut.o.ready, int(rng.random() < 0.8))
            answered = bool(waiting) and rng.random() < 0.6
            ctx.set(dut.response.valid, answered)
            if answered:
                tag, address = waiting.pop(int(rng.integers(len(waiting))))
                ctx.set(dut.response.payload, {"tag": tag, "data": int(contents[address])})
            if ctx.get(dut.request.valid) and ctx.get(dut.request.ready):
                payload = ctx.get(dut.request.payload)
                waiting.append((payload.tag, payload.address))
                asked.append(payload.address)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                payload = ctx.get(dut.o.payload)
                got.append((payload.data, payload.last))
            sent += ctx.get(dut.command.valid) and ctx.get(dut.command.ready)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return got, asked


def differences(module, most: int = 1) -> bool:
    """Whether rows, or requests, differ from those of runs of 1 to 40 rows, 1 to 3 times.

    Many runs of one row wait at once. A run is of a block of at `most` that number of tokens.
    """
    rng = np.random.default_rng(2)
    runs, wanted, requests = [], [], []
    for rows in [32, 33, 32, *[1] * 60, *rng.integers(1, 41, 10).tolist()]:
        address, times = int(rng.integers(0, 64 - rows)), int(rng.integers(1, TIMES + 1))
        times = TIMES if not runs else times
        tokens = int(rng.integers(1, min(most, rows) + 1)) if most > 1 else 1
        field = {"tokens": tokens} if most > 1 else {}
        runs.append({"address": address, "words": rows, "times": times, **field})
        addresses = list(range(address, address + rows))
        parts = [addresses[: rows - tokens + 1 + n] for n in range(tokens)] * times
        wanted += [(3 * a % 256, a == part[-1]) for part in parts for a in part]
        # A run that fits in the buffer is requested once.
        requests += addresses if rows <= WIDE.depth else sum(parts, [])
    dut = module.RowReader(WIDE, WIDE.data_width, TIMES, most)
    return run(dut, runs, len(wanted), rng) != (wanted, requests)


@pytest.mark.parametrize("most", [1, TOKENS])
def test_runs_from_a_memory_in_any_order(most):
    assert not differences(row_reader, most)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("reorder.skip.eq(ends != token)", "reorder.skip.eq(0)"),
        ("Mux(long, left == 1, left <= run.tokens)", "left == 1"),
        ("words.eq(following)", "words.eq(run.words)"),
        (
            "runs.i.payload.tokens.eq(Mux(long, 1, run.tokens))",
            "runs.i.payload.tokens.eq(run.tokens)",
        ),
    ],
    ids=["causal", "ends", "length", "long"],
)
def test_a_fault_with_blocks_is_found(line, instead):
    assert differences(with_fault(row_reader, line, instead), TOKENS)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("run.words > p.depth", "run.words >= p.depth"),
        ("Mux(long, 1, run.times)", "run.times"),
        ("number.eq(Mux(last_time, 1, number + 1))", "number.eq(Mux(last_time, 1, number))"),
        ("& (runs.i.ready | ~first)", ""),
    ],
    ids=["kept", "again", "times", "queue"],
)
def test_a_fault_is_found(line, instead):
    assert differences(with_fault(row_reader, line, instead))
