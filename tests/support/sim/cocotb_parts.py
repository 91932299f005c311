"""Tests within cocotb, on a sequential reader, that :mod:`tests.sim.test_cocotb_parts` runs."""

import os

import cocotb
import numpy as np
from cocotb.clock import Clock

from sim.core.memory import MemoryFault, MemoryModel, MemoryTiming
from sim.core.stalls import Stall
from sim.drivers.cocotb.layout import read_layouts
from sim.drivers.cocotb.memory import MemoryServer, memory_fields
from sim.drivers.cocotb.stream import Cycles, Monitor, Port, Sink, Source, reset

LAYOUTS = read_layouts(os.environ["SIDECAR"])
CONTENTS = np.arange(100, 164, dtype=np.uint32)[:, None]  # row n holds 100 + n


async def start(dut, timing=None, period_ns=10, **stalls):
    """Reset, and a part on each stream; cycles, source, sink and memory server."""
    Clock(dut.clk, period_ns, unit="ns").start()
    cycles = Cycles(dut.clk, period_ns)
    await reset(dut.rst, cycles)
    source = Source(cycles, Port(dut, "command"), LAYOUTS["command"], **stalls)
    sink = Sink(cycles, Port(dut, "o"), LAYOUTS["o"], **stalls)
    model = MemoryModel(CONTENTS, timing or MemoryTiming(), row_bits=8)
    fields = memory_fields(LAYOUTS["request"], LAYOUTS["response"])
    ports = Port(dut, "request"), Port(dut, "response")
    return cycles, source, sink, MemoryServer(cycles, *ports, fields, model, **stalls)


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(stall=["none", "bursts", Stall(valid=0.5, ready=0.5)], period_ns=[10, 4])
async def test_fields_and_memory(dut, stall, period_ns):
    timing = MemoryTiming(latency=(3, 9), reorder=True)
    cycles, source, sink, server = await start(dut, timing, period_ns, stall=stall, seed=2)
    requests: list[dict] = []
    Monitor(cycles, Port(dut, "request"), LAYOUTS["request"], on_beat=requests.append)

    source.send({"address": 5, "words": 3}, {"address": 40, "words": 1})
    await source.drain()
    assert source.idle
    words = await sink.receive(4)
    assert words == [
        {"data": 105, "last": 0},
        {"data": 106, "last": 0},
        {"data": 107, "last": 1},
        {"data": 140, "last": 1},
    ]
    assert [request["address"] for request in requests] == [5, 6, 7, 40]
    assert server.model.use.rows_read == 4 and server.fault is None

    # Later, after the source was idle; each beat is returned once.
    source.send(LAYOUTS["command"].pack({"address": 9, "words": 1}))
    assert await sink.receive() == [{"data": 109, "last": 1}]
    assert len(sink.received) == len(sink.cycles_of) == 5
    assert sink.cycles_of == sorted(set(sink.cycles_of)) and sink.cycles_of[0] > 0
    assert cycles.last_transfer == sink.cycles_of[-1] <= cycles.cycle


@cocotb.test(timeout_time=100, timeout_unit="us", expect_error=MemoryFault)
async def test_address_out_of_range(dut):
    _, source, sink, _ = await start(dut)
    source.send({"address": 64, "words": 1})
    await sink.receive()


@cocotb.test(timeout_time=100, timeout_unit="us")
async def test_what_cannot_be_sent(dut):
    _, source, _, _ = await start(dut)
    for beat, error in ({"address": 256}, ValueError), ({"place": 0}, KeyError):
        try:
            source.send(beat)
        except error:
            continue
        raise AssertionError(f"{beat} was accepted")
    assert source.idle
