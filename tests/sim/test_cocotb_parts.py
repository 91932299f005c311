"""The parts that any cocotb testbench may import; those of this project's own run everywhere."""

import doctest
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from cocotb_tools.runner import get_runner

from hw.catalogue import find
from hw.emit.export import export, list_ports
from sim.core import payload, tools
from sim.core.design import generate
from sim.drivers.cocotb import layout
from sim.drivers.cocotb.layout import Field, PayloadLayout, read_layouts


def test_example():
    assert doctest.testmod(layout).failed == 0


def streams(name: str):
    """Stream name, Amaranth shape and sidecar entry of a block's streams, smallest preset."""
    block = find(name)
    parameters = block.parameters_class.preset("first")
    design = generate(block, parameters)
    ports = list_ports(block.create(parameters), [])
    entries = {port["name"]: port for port in ports}
    for stream, shape in (design.inputs | design.outputs).items():
        yield stream, shape, entries[f"{stream}__payload"]


@pytest.mark.parametrize("name", ["kllm.orizuru", "stream.queue", "attention.pe_array", "lad.apid"])
def test_sidecar_shape_and_vectorised_packing_agree(name):
    rng = np.random.default_rng(1)
    for _, shape, entry in streams(name):
        found = PayloadLayout.from_port(entry)
        assert found.fields == PayloadLayout.from_shape(shape).fields
        bits = int.from_bytes(rng.bytes(4 * payload.words(shape)), "little")
        bits &= (1 << payload.width(shape)) - 1
        values = found.unpack(bits)
        assert found.pack(values) == bits
        columns = {path: np.array([value]) for path, value in values.items()}
        assert payload.to_ints(payload.pack(shape, columns)) == [bits]


def test_arrays_and_arrays_in_structures():
    fields = [
        {
            "name": "pairs[].value[]",
            "offset": 4,
            "width": 3,
            "signed": True,
            "arrays": [{"count": 2, "stride": 16}, {"count": 2, "stride": 3}],
        }
    ]
    found = PayloadLayout.from_port({"fields": fields})
    assert found.fields["pairs[1].value[1]"] == Field(23, 3, True)
    assert found.pack({"pairs[1].value": [-1, 3]}) == 0b011_111 << 20
    assert found.pack({"pairs[1].value": np.array([-1, 3], np.int8)}) == 0b011_111 << 20
    assert found.unpack(0b011_111 << 20)["pairs[1].value[0]"] == -1
    assert found.span("pairs[1]") == (20, 6) and found.span("payload") == (4, 22)


def test_wrong_values():
    found = PayloadLayout({"k": Field(0, 4)})
    for value in (16, -9):
        with pytest.raises(ValueError, match=f"field k must fit in 4 bits, not be {value}"):
            found.pack({"k": value})
    with pytest.raises(KeyError, match="no field m, only k"):
        found.pack({"m": 0})
    with pytest.raises(KeyError, match="no field m, only k"):
        found.span("m")


@pytest.mark.parametrize("simulator", ["icarus"])
def test_parts_in_a_simulation(simulator, tmp_path, monkeypatch):
    block = find("stream.sequential_reader")
    verilog, sidecar = export(block, block.parameters_class.preset("small")).write(tmp_path)[:2]
    assert read_layouts(sidecar)["o"].fields["last"] == Field(8, 1)
    monkeypatch.setenv("PYTHONPATH", str(tools.ROOT))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    runner = get_runner(simulator)
    runner.build(
        sources=[verilog],
        hdl_toplevel=verilog.stem,
        build_dir=tmp_path,
        build_args=["-g2012"],
        timescale=("1ns", "1ps"),
        log_file=tmp_path / "build.log",
    )
    found = runner.test(
        test_module="tests.support.sim.cocotb_parts",
        hdl_toplevel=verilog.stem,
        build_dir=tmp_path,
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
        log_file=tmp_path / "run.log",
        extra_env={"SIDECAR": str(sidecar), "COCOTB_REWRITE_ASSERTION_FILES": ""},
    )
    cases = list(ElementTree.parse(Path(found)).iter("testcase"))
    kinds = ("failure", "error", "skipped")
    failed = [c.get("name") for c in cases if any(c.find(kind) is not None for kind in kinds)]
    assert len(cases) == 8 and not failed, (tmp_path / "run.log").read_text()
