"""What a design takes of an FPGA: counts of Yosys' cells beside a placer's."""

import json
from collections import Counter

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.catalogue import find
from hw.emit.export import to_rtlil
from sim.synth import SynthesisError, ecp5, xilinx


class Product(wiring.Component):
    """Combinational, as wide as one of the FPGA's multipliers."""

    a: In(16)
    b: In(16)
    p: Out(32)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.p.eq(self.a * self.b)
        return m


def test_ecp5_counts_agree_with_the_placer(tmp_path):
    block = find("stream.queue")
    rtlil = to_rtlil(block.create(block.parameters_class.preset("small")), "queue")
    usage = ecp5.measure(rtlil, "queue", tmp_path)
    placed = json.loads((tmp_path / "report.json").read_text())["utilization"]
    # The placer may add a source of zeros and one of ones.
    assert 0 <= placed["TRELLIS_COMB"]["used"] - usage.lut4 <= 2 < usage.lut4
    assert usage.flipflops == placed["TRELLIS_FF"]["used"]
    # The memory takes two distributed RAMs of six tables each.
    assert usage.lut4 > 12 and usage.dsp == usage.bram == 0
    assert 7 <= usage.flipflops < 32 and 100 < usage.fmax_mhz < 1000


def test_ecp5_multiplier(tmp_path):
    usage = ecp5.measure(to_rtlil(Product(), "product"), "product", tmp_path)
    assert usage.dsp == 1 and usage.flipflops == 0 and usage.fmax_mhz is None


@pytest.mark.campaign
def test_xilinx_counts_are_the_cells_of_yosys(tmp_path):
    """A memory of tables takes four for each RAM32M; a product is one DSP48E1."""
    block = find("stream.queue")
    rtlil = to_rtlil(block.create(block.parameters_class.preset("small")), "queue")
    usage = xilinx.measure(rtlil, "queue", tmp_path)
    assert usage.memories == 8 < usage.luts < 32 and usage.dsp == usage.bram == 0
    assert 7 <= usage.flipflops < 32
    usage = xilinx.measure(to_rtlil(Product(), "product"), "product", tmp_path)
    assert usage.dsp == 1 and usage.flipflops == 0


def test_cells_of_xilinx_are_all_counted():
    cells = Counter({"LUT2": 3, "LUT6": 4, "SRL16E": 2, "RAM64M": 1, "RAMB36E1": 1, "FDRE": 5})
    used = xilinx.usage_of("top", cells + Counter({"MUXF7": 9, "INV": 1, "CARRY4": 2}))
    assert used == xilinx.Usage(13, 6, 0, 5, 2, 2)
    with pytest.raises(SynthesisError, match="top has a cell LDCE, which is not counted"):
        xilinx.usage_of("top", cells + Counter({"LDCE": 1}))
