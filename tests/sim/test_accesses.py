"""Counters of the memories inside a design, beside a plain count of what goes in and out."""

import dataclasses
import json

import pytest

from hw.catalogue import find
from sim.core.design import generate
from sim.core.memory import FASTEST
from sim.core.tools import ROOT
from sim.studies.compare.accesses import accesses, counted
from sim.studies.compare.data import Shape, made
from sim.studies.compare.designs import DESIGNS, PORTS, choose
from sim.studies.compare.step import bytes_of, run_step
from sim.synth.memories import LEAKAGE_NW, access_pj
from tests.support.campaign import suite_takes

MODULE = """\
module unit__store(
  input clk,
  output [63:0] a
);
  reg [63:0] words [127:0];
  reg [31:0] lines [255:0];
  reg [63:0] few [7:0];
  wire [63:0] seen = lines[where];
  initial words[0] = 64'h0;
  always @(posedge clk) begin
    if (put[0]) words[{at[5:0], odd}][31:0] <= low;
    if (put[1])
      words[{at[5:0], odd}][63:32] <= high;
  end
  always @(posedge clk) if (take) out <= words[at];
  always @(posedge clk) if (more) lines[at] <= words[next];
  always @(posedge clk) few[0] <= out;
  always @(posedge clk) both <= words[at] ^ words[next];
endmodule
module unit(
  input clk
);
  unit__store first (
    .clk(clk)
  );
  unit__store \\second[1]  (
    .clk(clk)
  );
endmodule
"""


def test_statements_that_read_or_write_are_counted(monkeypatch):
    design = generate(find("stream.queue"), find("stream.queue").parameters_class.preset("small"))
    found, stores = counted(dataclasses.replace(design, verilog=MODULE, module="unit"))
    assert [(of.module, of.name, of.rows, of.bits, of.instances) for of in stores] == [
        ("store", "words", 128, 64, 2),
        ("store", "lines", 256, 32, 2),
    ]
    text = " ".join(found.verilog.split())
    bits, reads = "counted_0_bits_1", ("counted_0_reads_2", "counted_0_reads_3")
    assert f"begin words[{{at[5:0], odd}}][31:0] <= low; {bits} = {bits} + 64'd32; end" in text
    assert f"begin words[{{at[5:0], odd}}][63:32] <= high; {bits} = {bits} + 64'd32; end" in text
    assert f"begin out <= words[at]; {reads[0]} = {reads[0]} + 64'd1; end" in text
    # A statement that reads one memory and writes another counts in both.
    assert "lines[at] <= words[next];" in text and f"{reads[1]} = {reads[1]} + 64'd1;" in text
    twice = " ".join(2 * ["counted_0_reads_5 = counted_0_reads_5 + 64'd1;"])
    assert f"begin both <= words[at] ^ words[next]; {twice} end" in text
    assert "counted_1_bits_3 = counted_1_bits_3 + 64'd32;" in text
    # Read without a clock: whenever the address changes.
    assert "if (!((where) == counted_1_address_0)) begin counted_1_address_0 <= where;" in text
    assert "few[0] <= out;" in text and "initial words[0] = 64'h0;" in text
    assert found.observed == tuple(
        f"counted_{kind}_{at}" for at in (0, 1) for kind in ("reads", "bits")
    )
    both = " + ".join(f"{path}.counted_0_bits_1" for path in ("first", "\\second[1] "))
    assert f"assign counted_bits_0 = {both};" in text


def test_what_was_counted_between_two_moments():
    _, stores = counted(generate(find("baseline.dense_core"), small("baseline.dense_core")))
    assert len(stores) <= 1
    before = {f"counted_{kind}_{n}": 5 for n in range(len(stores)) for kind in ("reads", "bits")}
    after = {name: value + 3 + name.startswith("counted_b") for name, value in before.items()}
    assert [(of.reads, of.written) for of in accesses(stores, before, after)] == [
        (3, 4) for _ in stores
    ]


def small(name):
    return find(name).parameters_class.preset("small")


@pytest.mark.parametrize("name", suite_takes(("baseline.dense_core",), DESIGNS))
def test_all_memories_are_found(name):
    """Their bits are those that mapping by hierarchy leaves out."""
    rows = json.loads((ROOT / "docs" / "results" / "synthesis.json").read_text())
    (bits,) = {
        row["memory_bits"]
        for row in rows
        if (row["block"], row["preset"]) == (name, "default") and "hierarchy" in row["mode"]
    }
    block = find(name)
    _, stores = counted(generate(block, block.parameters_class.preset("default")))
    assert sum(of.rows * of.bits * of.instances for of in stores) == bits


def test_every_row_goes_through_the_dense_core_s_buffer():
    """Written when the memory answers, read when it is this row's turn; before the step, nothing
    is counted."""
    shape = Shape(d=16, n=40, heads=2, kv_heads=2)
    step = choose("baseline.dense_core", shape, PORTS, ()).step(shape, made(shape))
    ran = run_step(step, FASTEST)
    moved = bytes_of(step, ran.outcome)
    (slots,) = ran.accesses
    assert slots.store.name == "slots" and slots.store.bits == 16 * shape.d
    rows = (moved["k_read"] + moved["v_read"]) // (2 * shape.d)
    assert (slots.reads, slots.written) == (rows, rows * slots.store.bits)


def test_the_energy_of_an_access_is_the_table_s():
    """M. Horowitz, ISSCC 2014, Fig. 1.1.9: 64 bits of 8 KB, 32 KB and 1 MB."""
    for kilobytes, picojoules in ((8, 10), (32, 20), (1024, 100)):
        found = access_pj(kilobytes * 1024 // 8, 64, volts=0.9)
        assert found == pytest.approx(picojoules, rel=0.14)
    # Macros that OpenROAD's scripts have for the library: a rise and a fall of the clock.
    for rows, bits, picojoules in ((512, 64, 2 * 5.300), (2048, 39, 2 * 6.855)):
        assert access_pj(rows, bits, volts=1.1) == pytest.approx(picojoules, rel=0.07)
    # VEDA's buffer of 256 KB, 256 bytes a cycle at 1 GHz, in mW; scaled to 28 nm.
    assert access_pj(1024, 2048, volts=0.9) * 28 / 45 == pytest.approx(148.82, rel=0.35)


def test_leakage_of_a_bit_is_the_macros():
    """Of 512 rows of 64 bits and 2048 of 39, in nW."""
    for bits, nanowatts in ((512 * 64, 823_237), (2048 * 39, 1_876_600)):
        assert pytest.approx(nanowatts, rel=0.04) == LEAKAGE_NW * bits
