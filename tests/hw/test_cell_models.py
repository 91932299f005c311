"""Models of a library's cells for simulation."""

import pytest

from sim.synth import SynthesisError, liberty, models
from sim.synth.netlist import Instance, Netlist
from tests.support.hw import tiny

REGISTER = """cell (R) { area : 9;
ff (Q0, Q1) { next_state : "(D * EN) + (Q0 * EN')"; clocked_on : "CKN'";
clear : "RN'"; preset : "S"; }
pin (CKN D EN RN S) { direction : input; capacitance : 0.001; }
pin (Q) { direction : output; function : "Q0"; }
pin (QN) { direction : output; function : "Q1"; } }
"""


def test_models_of_registers(tmp_path):
    """Enable, set, clear, falling clock, both outputs."""
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library(REGISTER))
    text = models.model(liberty.read(path).cells["R"])
    assert "always @(negedge CKN or negedge RN or posedge S)" in text
    assert "if (~RN) Q0 <= 1'b0; else\n    if (S) Q0 <= 1'b1; else" in text
    assert "Q0 <= ((D & EN) | (Q0 & ~EN));" in text
    assert "assign Q = Q0;" in text and "assign QN = Q1;" in text and "wire Q1 = ~Q0;" in text


def test_a_cell_without_function_has_no_model(tmp_path):
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library("cell (Z) { pin (Y) { direction : output; } }"))
    netlist = Netlist("top", [Instance("u", "Z", {"Y": 0})], {}, {})
    with pytest.raises(SynthesisError, match="output Y of cell Z has no function"):
        models.models(netlist, liberty.read(path))
