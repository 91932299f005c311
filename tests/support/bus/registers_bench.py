"""Within cocotb: random accesses to two AXI4-Lite slaves of one map, whose answers must be equal.

``REGISTERS`` is JSON: end (of the addresses), accesses, seed.
"""

import json
import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

CASE = json.loads(os.environ["REGISTERS"])
SETTLED = 6
"""Cycles after which both have taken what hardware and software did."""


@cocotb.test()
async def equal_answers(dut):
    choose = random.Random(CASE["seed"])
    Clock(dut.clk, 10, unit="ns").start()
    masters = [
        AxiLiteMaster(AxiLiteBus.from_prefix(dut, name), dut.clk, dut.rst)
        for name in ("ours", "theirs")
    ]
    dut.hardware.value = 0
    dut.sets.value = 0
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await ClockCycles(dut.clk, SETTLED)
    kinds: set[str] = set()
    last_read = -1
    for _ in range(CASE["accesses"]):
        # Often the first four, which act.
        end = CASE["end"] if choose.random() < 0.8 else 16
        address = 4 * choose.randrange(end // 4)
        reads = choose.random() < 0.5
        # What hardware does, in a cycle in which no access is under way; but between a counter's
        # low and high word, as only our registers keep the high word of that moment.
        if not (reads and address == last_read + 4):
            dut.hardware.value = choose.getrandbits(len(dut.hardware))
        if choose.random() < 0.5:
            dut.sets.value = choose.getrandbits(len(dut.sets))
            await ClockCycles(dut.clk, 1)
            dut.sets.value = 0
        await ClockCycles(dut.clk, SETTLED)
        if reads:
            last_read = address
            answers = [await master.read(address, 4) for master in masters]
            found = [(answer.resp, bytes(answer.data)) for answer in answers]
        else:
            # Strobes of some bytes: an access that begins and ends within the word.
            first = choose.randrange(4)
            data = choose.randbytes(choose.randrange(1, 5 - first))
            answers = [await master.write(address + first, data) for master in masters]
            found = [(answer.resp, b"") for answer in answers]
            kinds.add("whole" if len(data) == 4 else "bytes")
        kinds.add(found[0][0].name)
        assert found[0] == found[1], f"address {address:#x}"
        await ClockCycles(dut.clk, SETTLED)
        assert int(dut.differs.value) == 0, f"a value behind address {address:#x}"
    assert kinds == {"OKAY", "SLVERR", "whole", "bytes"}, kinds
    assert int(dut.pulses.value) > 0, "no start"
    assert int(dut.cleared.value) > 0, "no cause cleared"
