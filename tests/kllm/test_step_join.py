"""The lanes' steps: each once, those of a normalised product after its vector's scale."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.kllm.core_parameters import CoreParameters
from hw.kllm.step_join import StepJoin

TINY = CoreParameters(
    *(40, 6, 2),
    activation_bits=2,
    weight_bits=1,
    counters=1,
    macs=4,
    outliers=1,
    entries=1,
    address_width=8,
)


@pytest.mark.parametrize("seed", range(2))
def test_every_step_once_and_after_its_scale(seed):
    """Products of random rows and columns; scales early, late, and after the last step."""
    rng = np.random.default_rng(seed)
    dut = StepJoin(TINY)
    products = [
        {
            "rows": rng.integers(1, 4, rng.integers(1, 4)).tolist(),  # of each word
            "sets": int(rng.integers(1, 3)),
            "normalise": bool(rng.integers(0, 2)),
        }
        for _ in range(100)
    ]
    rows, words, wanted = [], [], []
    for number, product in enumerate(products):
        for column in range(product["sets"]):
            for word, count in enumerate(product["rows"]):
                final = word == len(product["rows"]) - 1
                words.append((number, product["normalise"], column == product["sets"] - 1))
                for row in range(count):
                    advance = row == count - 1
                    rows.append((advance, advance and final))
                    wanted.append((number, len(words) - 1, len(rows) - 1))
    steps, scales, late, behind = [], 0, 0, 0

    async def testbench(ctx):
        nonlocal scales, late, behind
        row = word = 0
        through = 0  # products whose steps are all taken
        for _ in range(6000):
            if len(steps) == len(wanted):
                return
            offers = rng.random(3) < 0.7
            present = [row < len(rows), word < len(words), word < len(words)]
            offers = [bool(a and b) for a, b in zip(offers, present, strict=True)]
            ports = (dut.rows, dut.indices, dut.weights)
            for port, offer in zip(ports, offers, strict=True):
                ctx.set(port.valid, offer)
            if offers[0]:
                ctx.set(dut.rows.payload.advance, int(rows[row][0]))
                ctx.set(dut.rows.payload.last, int(rows[row][1]))
                ctx.set(dut.rows.payload.entries[0].value, row)
            normalise = False
            if offers[1]:
                number, normalise, end = words[word]
                ctx.set(dut.indices.payload.tag, normalise << 2 | (number & 1) << 1 | number & 1)
                ctx.set(dut.indices.payload.end, int(end))
                ctx.set(dut.indices.payload.keep[0], word & 1)
            if offers[2]:
                ctx.set(dut.weights.payload.data.scale[1], word)
            # At most four products are in flight, which bounds the scales ahead.
            most = min(len(products), through + 4)
            scale_done = scales < most and bool(rng.random() < 0.03)
            scale_done |= through - scales == 3
            ready = bool(rng.random() < 0.8)
            ctx.set(dut.scale_done, int(scale_done))
            ctx.set(dut.o.ready, ready)
            valid = bool(ctx.get(dut.o.valid))
            late += all(offers) and normalise and scales == through
            behind += all(offers) and normalise and scales < through
            assert valid == (all(offers) and (not normalise or scales > through))
            taken = valid and ready
            assert bool(ctx.get(dut.rows.ready)) == taken
            onward = taken and rows[row][0]
            for port in (dut.indices, dut.weights):
                assert bool(ctx.get(port.ready)) == onward
            if taken:
                step = dut.o.payload
                assert ctx.get(step.entries[0].value) == row
                assert ctx.get(step.scale[1]) == word
                assert ctx.get(step.mask[0]) == word & 1
                assert ctx.get(step.bank) == ctx.get(step.integer) == words[word][0] & 1
                steps.append((words[word][0], word, row))
                through += rows[row][1] and words[word][2]
            await ctx.tick()
            scales += scale_done
            row += int(taken)
            word += int(onward)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert steps == wanted
    assert late > 10 and behind > 10, (late, behind)
