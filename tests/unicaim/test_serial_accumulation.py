"""Accumulations in a memory: the row to evict, by the model of those in registers."""

import dataclasses

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.unicaim.charge_accumulator import ChargeAccumulator
from golden.unicaim.eviction_sense import eviction_sense
from hw.unicaim.command import CommandOp
from hw.unicaim.core_parameters import UnicaimCoreParameters
from hw.unicaim.serial_accumulation import SerialAccumulation
from hw.unicaim.serial_division import SerialDivision
from tests.support.campaign import suite_takes
from tests.support.formal import prove_stream_rules

SMALL = UnicaimCoreParameters(
    rows=6, d=2, key_bits=1, query_bits=1, kv_heads=2, group=3, fraction=2, share=1, accumulators=2
)
WIDE = dataclasses.replace(SMALL, rows=12, accumulators=4, group=1, share=3, fraction=5)


def jobs_of(p: UnicaimCoreParameters, count: int, rng: np.random.Generator) -> tuple:
    """Jobs as the core makes them, the scores of their queries, and the rows to evict."""
    models = [
        ChargeAccumulator(p.rows, p.group_sum.sum_bits, p.fraction, p.share)
        for _ in range(p.kv_heads)
    ]
    used, evict = [0] * p.kv_heads, [-1] * p.kv_heads
    limit = p.cells.score_limit
    jobs, scores, found = [], [], []
    for _ in range(count):
        context, op = int(rng.integers(p.kv_heads)), CommandOp.STEP
        model = models[context]
        if rng.random() < 0.03:
            used[context] = 0
            model.clear()
            jobs.append((CommandOp.RESTART, context, 0, 0, 0, 0))
            continue
        if rng.random() < 0.2:
            op = CommandOp.PRESET
        evicts = used[context] == p.rows
        row = evict[context] if evicts else used[context]
        used[context] = min(p.rows, used[context] + 1)
        full = used[context] == p.rows
        model.start(row, mean=op is CommandOp.STEP and p.start == "mean")
        queries = int(rng.integers(p.group + 1)) if op is CommandOp.STEP else 0
        values = rng.integers(-limit, limit + 1, (queries, p.rows))
        if rng.random() < 0.4:  # extremes and ties
            values = rng.choice([-limit, limit, 0], (queries, 1)) + np.zeros_like(values)
        # The array's scores of rows that are not in use are 0.
        values[:, used[context] :] = 0
        if queries:
            model.share(values.sum(axis=0))
        scores += [(of, number == queries - 1) for number, of in enumerate(values)]
        jobs.append((op, context, row, evicts, full, queries > 0))
        if full:
            lowest = eviction_sense(model.planes())
            assert lowest is not None
            evict[context] = lowest
            found.append((context, lowest))
    return jobs, scores, found


CASES = {
    "small": (SMALL, 60),
    "longer": (SMALL, 400),
    "wide": (WIDE, 160),
    "from 0": (dataclasses.replace(SMALL, start="zero", kv_heads=1, share=0, fraction=0), 160),
}


@pytest.mark.parametrize("name", suite_takes(["small"], CASES))
def test_rows_to_evict(name):
    """With scores offered, and rows taken, at any time."""
    rng = np.random.default_rng(3)
    p, count = CASES[name]
    jobs, scores, wanted = jobs_of(p, count, rng)
    dut, got, reports = SerialAccumulation(p), [], []

    async def testbench(ctx):
        done = taken = 0
        for _ in range(60_000):
            ctx.set(dut.jobs.valid, done < len(jobs))
            if done < len(jobs):
                names = "op", "context", "row", "evicts", "full", "shares"
                for name, value in zip(names, jobs[done], strict=True):
                    ctx.set(dut.jobs.payload[name], int(value))
            offer = taken < len(scores) and rng.random() < 0.8
            ctx.set(dut.values.valid, bool(offer))
            if offer:
                values, last = scores[taken]
                for row, value in enumerate(values):
                    ctx.set(dut.values.payload["values"][row], int(value))
                ctx.set(dut.values.payload["last"], bool(last))
            ctx.set(dut.evict.ready, bool(rng.random() < 0.5))
            if ctx.get(dut.evict.valid & dut.evict.ready):
                context = ctx.get(dut.evict.payload["context"]) if p.kv_heads > 1 else 0
                got.append((context, ctx.get(dut.evict.payload["row"])))
            taken += ctx.get(dut.values.valid & dut.values.ready)
            done += ctx.get(dut.jobs.valid & dut.jobs.ready)
            await ctx.tick()
            if done == len(jobs):
                reports.append(taken)
                return

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    assert reports == [len(scores)]
    assert got == wanted and len({row for _, row in wanted}) == p.rows


def test_every_quotient():
    """Of up to three numbers of two bits, up to their greatest sums."""
    dut, terms, bits = SerialDivision(3, 2), 3, 2
    wrong = []

    async def testbench(ctx):
        for divisor in range(1, terms + 1):
            for dividend in range(divisor * ((1 << bits) - 1) + 1):
                ctx.set(dut.dividend, dividend)
                ctx.set(dut.divisor, divisor)
                ctx.set(dut.start, 1)
                await ctx.tick()
                ctx.set(dut.start, 0)
                lasts = []
                for _ in range(bits):
                    lasts.append(ctx.get(dut.last))
                    await ctx.tick()
                if (lasts, ctx.get(dut.quotient)) != ([0, 1], dividend // divisor):
                    wrong.append((dividend, divisor))

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    assert not wrong


@pytest.mark.campaign
def test_stream_rules():
    p = dataclasses.replace(SMALL, rows=4, group=1, fraction=0, kv_heads=1)
    prove_stream_rules(
        *(SerialAccumulation(p), "serial_accumulation", "evict", ["jobs", "values"]),
        cover=16,
        depth=9,
    )
