"""The lanes' steps: each once, those of a product after the scales of its batch."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.kllm.core.core_parameters import IN_FLIGHT, TAG_FLAGS, CoreParameters
from hw.kllm.core.step_join import StepJoin

TINY = CoreParameters(
    *(40, 6, 2),
    activation_bits=3,
    weight_bits=1,
    counters=1,
    macs=4,
    outliers=1,
    entries=1,
    address_width=8,
)


@pytest.mark.parametrize("seed", range(2))
def test_every_step_once_and_after_its_scale(seed):
    """Products of random rows, vectors and columns; scales early, and late."""
    rng = np.random.default_rng(seed)
    dut = StepJoin(TINY)
    products = [
        {
            # Of each word of each vector.
            "rows": [
                rng.integers(1, 4, rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 3))
            ],
            "sets": int(rng.integers(1, 3)),
            "tag": int(rng.integers(0, 1 << TINY.index_buffer.tag_bits)),
        }
        for _ in range(100)
    ]
    rows, words, wanted = [], [], []
    for number, product in enumerate(products):
        for column in range(product["sets"]):
            for vector, of_vector in enumerate(product["rows"]):
                end = column == product["sets"] - 1 and vector == len(product["rows"]) - 1
                for word, count in enumerate(of_vector):
                    final = word == len(of_vector) - 1
                    words.append((number, product["tag"], end and final))
                    for row in range(count):
                        advance = row == count - 1
                        rows.append((advance, advance and final))
                        wanted.append((number, len(words) - 1, len(rows) - 1))
    steps, scales, late, early = [], 0, 0, 0

    async def testbench(ctx):
        nonlocal scales, late, early
        row = word = 0
        through = 0  # products whose steps are all taken
        for _ in range(9000):
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
            if offers[1]:
                _, tag, end = words[word]
                ctx.set(dut.indices.payload.tag, tag)
                ctx.set(dut.indices.payload.end, int(end))
                ctx.set(dut.indices.payload.keep[0], word & 1)
            if offers[2]:
                ctx.set(dut.weights.payload.scale[1], word)
            # Products in flight bound the scales ahead.
            most = min(len(products), through + IN_FLIGHT)
            often = 0.5 if through // 10 % 2 else 0.03
            scale_done = scales < most and bool(rng.random() < often)
            ready = bool(rng.random() < 0.8)
            ctx.set(dut.scale_done, int(scale_done))
            ctx.set(dut.o.ready, ready)
            valid = bool(ctx.get(dut.o.valid))
            late += all(offers) and scales == through
            early += scales == through + IN_FLIGHT
            assert valid == (all(offers) and scales > through)
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
                tag = words[word][1]
                assert ctx.get(step.bank) == tag & 1 and ctx.get(step.integer) == tag >> 1 & 1
                assert ctx.get(step.groups) == tag >> TAG_FLAGS
                steps.append((words[word][0], word, row))
                through += int(rows[row][1] and words[word][2])
            await ctx.tick()
            scales += scale_done
            row += int(taken)
            word += int(onward)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert steps == wanted
    assert late > 10 and early > 10, (late, early)
