"""What counting costs: toggles and energies of small netlists, the designs, the page."""

from pathlib import Path

import numpy as np
import pytest

from golden.trace import Trace, TraceError
from sim.__main__ import parser
from sim.commands.counting.designs import STEPS, data_of
from sim.commands.counting.errors import errors_of
from sim.commands.counting.measured import Measured
from sim.commands.counting.page import data, read, section, together
from sim.synth import SynthesisError, liberty, power
from sim.synth.activity import RUNS, Activity
from sim.synth.netlist import Instance, Netlist

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LIBRARY = """
library (little) {
  time_unit : "1ns"; capacitive_load_unit (1, ff); nom_voltage : 2.0;
  power_lut_template (both) {
    variable_1 : input_transition_time; variable_2 : total_output_net_capacitance;
    index_1 ("0.02, 0.06"); index_2 ("0, 4");
  }
  cell (INV) {
    area : 1;
    pin (A) { direction : input; capacitance : 1.0; }
    pin (Y) { direction : output; function : "!A";
      internal_power () { related_pin : "A";
        rise_power (both) { values ("1, 3", "3, 5"); }
        fall_power (both) { values ("0, 0", "0, 0"); }
      }
    }
  }
  cell (XOR) {
    area : 1;
    pin (A) { direction : input; capacitance : 2.0; }
    pin (B) { direction : input; capacitance : 2.0; }
    pin (Y) { direction : output; function : "A ^ B"; }
  }
  cell (DFF) {
    area : 1;
    ff (IQ, IQN) { clocked_on : "C"; next_state : "D"; }
    pin (D) { direction : input; capacitance : 1.0;
      internal_power () {
        rise_power (scalar) { values ("2"); }
        fall_power (scalar) { values ("4"); }
      }
    }
    pin (C) { direction : input; capacitance : 0.5;
      internal_power () {
        rise_power (scalar) { values ("1"); }
        fall_power (scalar) { values ("3"); }
      }
    }
    pin (Q) { direction : output; function : "IQ";
      timing () { related_pin : "C"; timing_type : rising_edge;
        cell_rise (scalar) { values ("0"); } rise_transition (scalar) { values ("0"); }
        cell_fall (scalar) { values ("0"); } fall_transition (scalar) { values ("0"); }
      }
      internal_power () {
        rise_power (scalar) { values ("6"); }
        fall_power (scalar) { values ("8"); }
      }
    }
    pin (QN) { direction : output; function : "IQN";
      internal_power () {
        rise_power (scalar) { values ("1"); }
        fall_power (scalar) { values ("1"); }
      }
    }
  }
}
"""
CLOCK, A, INVERTED, PULSE, STATE = range(5)
# A register that toggles while `a` is high, and o = a ^ ~a, which is high but for glitches.
NETLIST = Netlist(
    "little",
    [
        Instance("inverter", "INV", {"A": A, "Y": INVERTED}),
        Instance("pulse", "XOR", {"A": A, "B": INVERTED, "Y": PULSE}),
        Instance("next", "XOR", {"A": A, "B": STATE, "Y": 5}),
        Instance("state", "DFF", {"D": 5, "C": CLOCK, "Q": STATE, "QN": None}),
        Instance("high", "XOR", {"A": None, "B": A, "Y": 6}),
    ],
    {"clk": [CLOCK], "a": [A]},
    {"o": [PULSE], "state": [STATE], "not_a": [6]},
    ones=frozenset({("high", "A")}),
)


@pytest.fixture
def little(tmp_path):
    path = tmp_path / "little.lib"
    path.write_text(LIBRARY)
    return liberty.read(path)


def test_toggles_of_a_little_netlist(little):
    """The register toggles in every cycle after one with `a`; the pulse is a glitch."""
    activity = Activity(NETLIST, little)
    rng = np.random.default_rng(1)
    a = rng.random((20, RUNS, 1)) < 0.5
    state = np.zeros((RUNS, 1), bool)
    for now, before in zip(a, [np.zeros_like(state), *a], strict=False):
        activity.cycle({"a": now})
        state ^= before
        assert np.array_equal(activity.output("state"), state)
        assert np.array_equal(activity.output("not_a"), ~now)
        assert activity.output("o").all()
    flips = np.count_nonzero(a[1:] ^ a[:-1]) + np.count_nonzero(a[0])
    row = activity.row
    for counts, pulses in ((activity.toggles, 2 * flips), (activity.settled, 0)):
        assert [counts[row[net]] for net in (A, INVERTED, PULSE)] == [flips, flips, pulses]
        assert counts[row[STATE]] == np.count_nonzero(a[:-1])
    activity.clear()
    assert not activity.toggles.any() and not activity.settled.any()


def test_a_ring_does_not_settle(little):
    ring = [Instance("a", "XOR", {"A": A, "B": PULSE, "Y": PULSE})]
    activity = Activity(Netlist("ring", ring, {"a": [A]}, {"o": [PULSE]}), little)
    with pytest.raises(SynthesisError, match="ring does not settle"):
        activity.cycle({"a": np.ones((RUNS, 1), bool)})


def test_energies_of_a_little_netlist(little):
    """By hand: half of C V² is 2 fJ for each fF, and the inverter has 2 fF to drive."""
    found = power.energies(NETLIST, little, power.read(little.path))
    assert found.net == pytest.approx(
        {
            A: 2 * (1 + 2 + 2 + 2),
            INVERTED: 2 * 2 + (3 + 0) / 2,  # of the table, at 40 ps and 2 fF
            PULSE: 0,
            STATE: 2 * 2 + 7 + 1,  # both outputs
            5: 2 * 1 + 3,  # and the data pin's
            6: 0,
        }
    )
    assert found.cycle == 2 * 2 * 0.5 + 2 * 2


def test_a_library_without_power(tmp_path):
    path = tmp_path / "none.lib"
    path.write_text(LIBRARY.replace("internal_power", "no_power"))
    with pytest.raises(SynthesisError, match="no voltage or no internal_power"):
        power.read(path)


@pytest.fixture(scope="module")
def columns(shipped_trace):
    return data_of(shipped_trace, STEPS * 16, 2)


def test_the_trace_s_columns(columns):
    """Real indices, no two runs alike; steps in the order of the column's positions."""
    assert columns.weight.shape == (RUNS, 2, 128) and 0.97 < columns.keep.mean() < 1
    assert len(np.unique(columns.weight.reshape(RUNS, -1), axis=0)) > RUNS // 2
    steps = columns.steps(columns.weight, 16)
    assert steps.shape == (16, RUNS, 16)
    assert np.array_equal(steps[9, 3], columns.weight[3, 1, 16:32])


def test_errors_of_the_trace(shipped_trace):
    """8 bits hardly change a product, 12 bits less."""
    few = Trace(
        x={name: x[:4] for name, x in shipped_trace.x.items() if "attn" in name},
        w={name: w for name, w in shipped_trace.w.items() if "attn" in name},
    )
    found = errors_of(few, 4, (8, 12))
    assert len(found) == 3
    for e in found:
        assert e.apart[12] < e.apart[8] / 5 < 0.02
        assert all(abs(error - e.counting) < 0.01 for error in e.centroids.values())
    with pytest.raises(TraceError, match="no matrices"):
        errors_of(Trace(x=few.x), 4, (8,))


def test_parts_of_a_design_are_added():
    parts = [Measured("x", 80, 1.0, d, 2.0, e, 3, 4.0, 5.0, 6.0) for d, e in ((5, 8), (7, 2))]
    assert together(parts) == Measured("counting", 80, 2.0, 7, 4.0, 8, 6, 8.0, 10.0, 12.0)
    assert together(parts).energy == 30


def test_the_page_in_the_docs():
    """It follows from the measurements beside it, which are written as they are read."""
    kept = read(RESULTS / "kllm_counting.json")
    assert section(kept).markdown() == (RESULTS / "kllm_counting.md").read_text()
    assert data(kept) == (RESULTS / "kllm_counting.json").read_text()


def test_options():
    arguments = parser().parse_args(["counting", "--counters", "1", "2"])
    assert arguments.counters == [1, 2] and arguments.liberty == "nangate45"
    with pytest.raises(SystemExit):
        parser().parse_args(["counting", "--counters", "0"])
