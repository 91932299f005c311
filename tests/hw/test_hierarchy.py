"""`python -m hw synth --hierarchy`: each distinct module once, its area times its instances."""

import json

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.files import file_sha256
from hw import __main__ as cli
from hw.component import Component
from hw.emit.export import to_rtlil
from hw.ports import Port
from sim.core.jobs import kept
from sim.synth import flow, hierarchy, libraries, report
from sim.synth.hierarchy import Hierarchy, Piece
from tests.support.hw import tiny

QUEUE = "stream.queue --preset small"


class Step(Component):
    """A register behind a sum, of which no bit is constant; it is larger than what is around it."""

    def ports(self):
        return {"a": Port(In(8), "operand"), "o": Port(Out(8), "a sum")}

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.eq(self.a + ~self.a.rotate_left(3))
        return m


class Chain(Component):
    """`steps` of them in a row, and a memory."""

    def __init__(self, steps: int, depth: int = 0):
        self.steps, self.depth = steps, depth
        super().__init__()

    def ports(self):
        return {"a": Port(In(8), "operand"), "o": Port(Out(8), "result")}

    def elaborate(self, platform):
        m = Module()
        value = self.a
        for number in range(self.steps):
            m.submodules[f"step{number}"] = step = Step()
            m.d.comb += step.a.eq(value)
            value = step.o
        m.d.comb += self.o.eq(value)
        if self.depth:
            m.submodules.memory = memory = Memory(shape=8, depth=self.depth, init=[])
            read, write = memory.read_port(), memory.write_port()
            m.d.comb += [read.addr.eq(self.a), write.addr.eq(self.a), write.en.eq(1)]
            m.d.comb += [write.data.eq(value), self.o.eq(read.data)]
        return m


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "build_folder", lambda: tmp_path / "kept")
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library())
    return path


def parts_of(component: wiring.Component, library, least: int) -> list[hierarchy.Part]:
    rtlil = to_rtlil(component, "chain")
    return Hierarchy(rtlil, "chain", str(library), file_sha256(library), "area", least).parts()


@pytest.mark.campaign
def test_a_module_used_twice_counts_twice_and_is_mapped_once(library, monkeypatch):
    mapped = []
    true = hierarchy.measure_piece
    monkeypatch.setattr(hierarchy, "measure_piece", lambda *a: mapped.append(a) or true(*a))
    top, step = parts_of(Chain(2), library, 20)
    assert len(mapped) == 2 and (top.module, step.module) == (hierarchy.TOP, "step")
    assert (top.instances, step.instances) == (1, 2) and (top.flipflops, step.flipflops) == (0, 8)
    assert top.area_um2 == 0 and top.whole_um2 == 2 * step.area_um2 == 2 * step.whole_um2 > 0
    # The second core finds the module kept, whatever its own name.
    rtlil = to_rtlil(Chain(3), "other")
    other = Hierarchy(rtlil, "other", str(library), file_sha256(library), "area", 20)
    assert len(mapped) == 3 and other.parts()[0].whole_um2 == 3 * step.area_um2


@pytest.mark.campaign
def test_one_piece_is_the_flat_mapping(library, tmp_path):
    [whole] = parts_of(Chain(2), library, 10**6)
    (tmp_path / "flat").mkdir()
    found = libraries.find(str(library))
    rtlil = to_rtlil(Chain(2), "chain")
    flat = flow.Mapper(rtlil, "chain", found, tmp_path / "flat").map("area")
    assert whole.flipflops == flat.flipflops == 16
    assert whole.area_um2 == pytest.approx(flat.area, rel=0.05)


@pytest.mark.parametrize(("most", "bits"), [(127, 128), (128, 0)])
def test_large_memories_are_counted_in_bits(monkeypatch, most, bits):
    monkeypatch.setattr(hierarchy, "MEMORY", most)
    cell = """module \\top
  cell $mem_v2 \\memory
    parameter \\ABITS 4
    parameter \\RD_PORTS 1
    parameter \\SIZE 16
    parameter signed \\WIDTH 32'00000000000000000000000000001000
    parameter \\WR_PORTS 2
    connect \\RD_DATA \\q
  end
end
"""
    text, memories = hierarchy.without_memories(cell)
    name = "\\memory_16x8_1r2w"
    assert memories == ({name: bits} if bits else {})
    assert text == cell if not bits else "wire width 16 input 10 \\WR_DATA" in text
    # A table that nothing writes is logic.
    assert hierarchy.without_memories(cell.replace("WR_PORTS 2", "WR_PORTS 0"))[1] == {}


@pytest.mark.campaign
def test_a_memory_is_no_area(library, monkeypatch):
    areas = {}
    for most, bits in ((511, 512), (512, 0)):
        monkeypatch.setattr(hierarchy, "MEMORY", most)
        top, *_ = parts_of(Chain(1, depth=64), library, 20)
        assert top.whole_memory_bits == bits
        areas[bits] = top.whole_um2
    assert areas[0] > areas[512] + 9 * 512


def test_instances_and_areas_of_nested_pieces():
    """Two lanes with three units each; a unit has a memory, and the top has one unit more."""

    def piece(area: float, **inside: int) -> Piece:
        return Piece({f"\\{name}": n for name, n in inside.items()}, area, 1, 1, area, "", "")

    design = object.__new__(Hierarchy)
    design.top, design.memories = "core", {"\\ram": 64}
    design.pieces = {
        "\\core": piece(5.0, core__unit=1, core__lane=2),
        "\\core__unit": piece(7.0, ram=1),
        "\\core__lane": piece(11.0, core__unit=3, ram=2),
    }
    top, lane, unit = design.parts()
    assert [(p.module, p.instances) for p in (top, lane, unit)] == [
        (hierarchy.TOP, 1),
        ("lane", 2),
        ("unit", 7),
    ]
    assert (unit.whole_um2, lane.whole_um2, top.whole_um2) == (7, 11 + 21, 5 + 7 + 2 * 32)
    assert (unit.whole_memory_bits, lane.whole_memory_bits) == (64, 5 * 64)
    assert (lane.memory_bits, top.memory_bits, top.whole_memory_bits) == (128, 0, 11 * 64)


def test_small_parts_are_one_line():
    def part(name: str, instances: int, area: float, bits: int = 0) -> dict:
        values = {"module": name, "instances": instances, "area_um2": area, "memory_bits": bits}
        return values | {"whole_um2": 1000.0 if name == "top" else area}

    parts = [part("top", 1, 400), part("a", 3, 197), part("b", 2, 4), part("c", 1, 1, 8)]
    assert report.part_rows({"parts": parts}) == [
        ["a", "3", "197", "197", "591", "59.1", "0"],
        ["top", "1", "400", "1,000", "400", "40.0", "0"],
        ["c", "1", "1", "1", "1", "0.1", "8"],
        ["smaller ones", "2", "", "", "8", "0.8", "0"],
    ]


@pytest.mark.campaign
def test_the_command(tmp_path, monkeypatch, call, library):
    monkeypatch.chdir(tmp_path)
    options = f"synth {QUEUE} --hierarchy --mode area --liberty {library} --jobs 1"
    status, out, err = call(cli.main, f"{options} --json")
    [row] = json.loads(out)
    assert (status, err) == (0, "") and row["mode"] == "area, by hierarchy"
    assert row["area_um2"] == row["parts"][0]["whole_um2"] > 9 * row["flipflops"] >= 9 * 39
    assert row["memory_bits"] == 0 and row["paths"] == {} and row["start"] is None
    status, out, _ = call(cli.main, options)
    assert status == 0 and "(top)" in out and "a lower bound of the period" in " ".join(out.split())


@pytest.mark.parametrize("option", ["--clock 900", "-o nets", "--ecp5", "--xilinx"])
def test_options_that_do_not_go_together(tmp_path, monkeypatch, call, library, option):
    monkeypatch.chdir(tmp_path)
    text = f"synth {QUEUE} --hierarchy --liberty {library} {option}"
    if "ecp5" in option or "xilinx" in option:
        text = text.replace(f"--liberty {library}", "")
    status, out, err = call(cli.main, text)
    assert status == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("error: --") and err.endswith(" do not go together\n")
    assert "--hierarchy" in err
