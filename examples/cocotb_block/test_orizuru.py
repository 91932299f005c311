"""A cocotb test of ``kllm.orizuru`` against its bit-exact model; runs inside the simulator."""

import json
import os
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock

from golden.kllm.orizuru import orizuru
from sim.drivers.cocotb.layout import read_layouts
from sim.drivers.cocotb.stream import Cycles, Monitor, Port, Sink, Source, reset

SIDECAR = Path(os.environ["SIDECAR"])
BLOCK = json.loads(SIDECAR.read_text())
LAYOUTS = read_layouts(SIDECAR)
N, LANES = BLOCK["parameters"]["n"], BLOCK["parameters"]["lanes"]


def beats_of(x: np.ndarray, k: int) -> list[dict]:
    """A vector as input beats of `LANES` values, fields by name."""
    rows = x.view(np.uint16).reshape(-1, LANES).tolist()
    keep = (1 << LANES) - 1  # every lane holds a value
    return [
        {"values": row, "keep": keep, "k": k, "last": number == len(rows) - 1}
        for number, row in enumerate(rows)
    ]


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(stall=["none", "random", "bursts", "long"])
async def test_pairs(dut, stall):
    """Pairs are the model's, in order, bit for bit, whatever the stalls."""
    Clock(dut.clk, 10, unit="ns").start()
    cycles = Cycles(dut.clk)
    await reset(dut.rst, cycles)
    source = Source(cycles, Port(dut, "i"), LAYOUTS["i"], stall=stall)
    sink = Sink(cycles, Port(dut, "o"), LAYOUTS["o"], stall=stall)
    Monitor(cycles, Port(dut, "o"))

    rng = np.random.default_rng(seed=1)
    for k in (1, 5, N):
        x = rng.standard_normal(N).astype(np.float16)
        source.send(*beats_of(x, k))
        pairs = await sink.receive(k)
        expected = orizuru(x, k)
        for end in ("max", "min"):
            indices = [pair[f"{end}.index"] for pair in pairs]
            values = [pair[f"{end}.value"] for pair in pairs]
            assert indices == getattr(expected, f"{end}_indices").tolist()
            assert values == getattr(expected, f"{end}_values").view(np.uint16).tolist()
        assert [pair["last"] for pair in pairs] == [0] * (k - 1) + [1]


@cocotb.test(timeout_time=100, timeout_unit="us")
async def test_latency(dut):
    """Without stalls the first pair comes `latency` cycles after the last input beat."""
    Clock(dut.clk, 10, unit="ns").start()
    cycles = Cycles(dut.clk)
    await reset(dut.rst, cycles)
    source = Source(cycles, Port(dut, "i"), LAYOUTS["i"])
    sink = Sink(cycles, Port(dut, "o"), LAYOUTS["o"])

    source.send(*beats_of(np.arange(N, dtype=np.float16), k=2))
    await source.drain()
    accepted = cycles.cycle
    await sink.receive(2)
    first = accepted + BLOCK["latency"]
    assert sink.cycles_of == [first, first + 1]
