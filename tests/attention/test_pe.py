"""The PE's multiplier alone, in Amaranth's simulator: products of FP16 in every format of sums."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from golden.arith.formats import canonical, to_bits
from golden.attention.pe_array import _products
from hw.attention.packed_sum import ACCUMULATORS, WideProduct, WideProductParameters, unpack_fp16
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from sim.testbenches.operands import numbers


class Product(Component[None]):
    """Unpacked factors and their product."""

    def __init__(self, name: str):
        self._format = name
        super().__init__()

    def ports(self) -> Ports:
        return {"a": wire_in(16), "b": wire_in(16), "o": wire_out(ACCUMULATORS[self._format].width)}

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiply = multiply = WideProduct(WideProductParameters(format=self._format))
        m.d.comb += [
            multiply.a.eq(unpack_fp16(m, self.a, "a")),
            multiply.b.eq(unpack_fp16(m, self.b, "b")),
            self.o.eq(multiply.o),
        ]
        return m


EDGES = [np.inf, -np.inf, np.nan, 0, -0.0, 1, -65504, 2.0**-24]


@pytest.mark.parametrize("name", ["fp20", "fp32"])
def test_products(name):
    """Random pairs and all pairs of special values; a short format's bits are FP32's upper ones."""
    rng = np.random.default_rng(1)
    kinds = [numbers(kind, 40, rng) for kind in ("plain", "any", "small")]
    a = np.concatenate([*kinds, np.repeat(EDGES, len(EDGES))]).astype(np.float16)
    b = np.concatenate([*kinds[::-1], np.tile(EDGES, len(EDGES))]).astype(np.float16)
    product = canonical(_products(a, b, name).astype(np.float32))
    want = to_bits(product).astype(np.int64) >> 23 - ACCUMULATORS[name].mantissa
    dut = Product(name)
    found = []

    async def testbench(context):
        for x, y in zip(to_bits(a).tolist(), to_bits(b).tolist(), strict=True):
            context.set(dut.a, x)
            context.set(dut.b, y)
            found.append(context.get(dut.o))

    simulator = Simulator(dut)
    simulator.add_testbench(testbench)
    simulator.run()
    assert found == want.tolist()
    assert np.isnan(product).sum() == 23 and np.isinf(product).sum() == 16
