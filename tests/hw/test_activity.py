"""Toggles, glitches, energies: small netlists by hand, and mapped units beside Icarus."""

import subprocess

import numpy as np
import pytest

from hw.catalogue import find
from hw.emit.export import to_rtlil
from sim.synth import SynthesisError, function, liberty, libraries, power
from sim.synth.activity import RUNS, Activity
from sim.synth.delays import delays
from sim.synth.flow import Mapper
from sim.synth.inertial import passing
from sim.synth.netlist import Instance, Netlist
from tests.support.hw import tiny

LIBRARY = """
library (little) {
  time_unit : "1ns"; capacitive_load_unit (1, ff); nom_voltage : 2.0;
  leakage_power_unit : "100nW";
  power_lut_template (both) {
    variable_1 : input_transition_time; variable_2 : total_output_net_capacitance;
    index_1 ("0.02, 0.06"); index_2 ("0, 4");
  }
  cell (INV) {
    area : 1; cell_leakage_power : 3;
    pin (A) { direction : input; capacitance : 1.0; }
    pin (Y) { direction : output; function : "!A";
      timing () { related_pin : "A"; timing_sense : negative_unate;
        cell_rise (scalar) { values ("0.010"); } rise_transition (scalar) { values ("0"); }
        cell_fall (scalar) { values ("0.012"); } fall_transition (scalar) { values ("0"); }
      }
      internal_power () { related_pin : "A";
        rise_power (both) { values ("1, 3", "3, 5"); }
        fall_power (both) { values ("0, 0", "0, 0"); }
      }
    }
  }
  cell (XOR) {
    area : 1; leakage_power () { value : 1; } leakage_power () { value : 2; }
    pin (A) { direction : input; capacitance : 2.0; }
    pin (B) { direction : input; capacitance : 2.0; }
    pin (Y) { direction : output; function : "A ^ B";
      timing () { related_pin : "A B"; timing_sense : non_unate;
        cell_rise (scalar) { values ("0.005"); } rise_transition (scalar) { values ("0"); }
        cell_fall (scalar) { values ("0.011"); } fall_transition (scalar) { values ("0"); }
      }
    }
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
# A register that toggles while `a` is high, and o = a ^ ~a, which is high but for
# glitches: while the inverter falls, 12 ps low, longer than the 11 ps in which `o` falls; while it
# rises 10 ps, shorter.
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
    """The register toggles in every cycle after one with `a`, and one pulse of two passes."""
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
    changes = np.diff(np.concatenate([np.zeros((1, RUNS, 1), int), a]), axis=0)
    flips, rises = np.count_nonzero(changes), np.count_nonzero(changes > 0)
    row = activity.row
    for counts, pulses in ((activity.toggles, 2 * rises), (activity.settled, 0)):
        assert [counts[row[net]] for net in (A, INVERTED, PULSE)] == [flips, flips, pulses]
        assert counts[row[STATE]] == np.count_nonzero(a[:-1])
    activity.cycle({"a": ~now}, counted=False)
    assert activity.settled[row[A]] == flips and np.array_equal(activity.output("not_a"), now)


def test_passing_is_what_a_gate_does():
    """Against one change after another: what is pending is dropped when the value changes back."""
    rng = np.random.default_rng(2)
    time = np.cumsum(rng.integers(1, 6, 4000))
    lane = np.sort(rng.integers(0, 300, 4000))
    delay = rng.integers(1, 6, 4000)
    passed: list[int] = []
    pending: int | None = None
    for at in range(4000):
        if pending is not None and (
            lane[at] != lane[pending] or time[at] >= time[pending] + delay[pending]
        ):
            passed.append(pending)
            pending = None
        pending = at if pending is None else None
        if at == 3999 or lane[at] != lane[at + 1]:
            passed += [pending] if pending is not None else []
            pending = None
    assert passing(time, lane, delay).tolist() == passed and 500 < len(passed) < 3500
    assert passing(time[:0], lane[:0], delay[:0]).tolist() == []


def test_delays_are_means_at_the_loads(tmp_path):
    """Of `tiny`, by hand: slews are handed on, both edges of an exclusive or have two causes."""
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library())
    cells = [
        Instance("n", "N", {"A": A, "Y": 3}),
        Instance("m", "N", {"A": 3, "Y": 7}),
        Instance("x", "X", {"A": A, "B": 3, "Y": 4}),
        Instance("nand", "NAND", {"A": None, "B": 4, "Y": 5}),
        Instance("f", "F", {"CK": CLOCK, "D": 5, "Q": 6}),
    ]
    netlist = Netlist("netlist", cells, {"clk": [CLOCK], "a": [A]}, {"q": [6]})
    # n drives 4 fF that rise and 2 that fall: slews 4 + 4 rising, 8 + 20 + 4 falling. Those at x
    # are 40, 40, 8 and 32, of which the mean is 30; m rises when n falls.
    assert delays(netlist, liberty.read(path)) == {
        ("n", "Y"): (10_000 + 4000 + 8000, 20_000 + 8000 + 2000),
        ("m", "Y"): (10_000 + 3200, 20_000 + 1600),
        ("x", "Y"): (10_000 + 3000 + 4000, 20_000 + 6000 + 1000),
        ("nand", "Y"): (100_000, 200_000),  # of the slow pin alone, the other being constant
        ("f", "Q"): (50_000, 60_000),
    }


def test_a_ring_is_refused(little):
    ring = [Instance("a", "XOR", {"A": A, "B": PULSE, "Y": PULSE})]
    with pytest.raises(SynthesisError, match="ring has a combinational loop"):
        Activity(Netlist("ring", ring, {"a": [A]}, {"o": [PULSE]}), little)


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
    assert found.leakage == pytest.approx(0.1 * (3 + 3 * 1.5))  # µW
    assert found.idle(2000) == pytest.approx(1.5)


def test_a_library_without_power(tmp_path):
    path = tmp_path / "none.lib"
    path.write_text(LIBRARY.replace("internal_power", "no_power"))
    with pytest.raises(SynthesisError, match="no voltage or no internal_power"):
        power.read(path)
    path.write_text(LIBRARY.replace("100nW", "much"))
    with pytest.raises(SynthesisError, match="leakage_power_unit"):
        power.read(path)


WARM, CYCLES = 4, 20
"""Cycles that fill a pipeline and do not count, and all."""


def icarus_toggles(netlist, library, inputs, folder) -> dict[int, int]:
    """Toggles of each net in Icarus, the cells being ``assign #(rise, fall)``.

    inputs
        Port to ``bool[CYCLES, RUNS, bits]``.
    """
    delay = delays(netlist, library)
    found = {net for cell in netlist.cells for net in cell.connections.values()}
    nets = sorted(net for net in found if net is not None)
    lines = [f"wire n{net};" for net in nets]
    width = 0
    for port in inputs:
        for net in netlist.inputs[port]:
            lines.append(f"assign n{net} = vector[{width}];")
            width += 1
    for cell in netlist.cells:
        model = library.cells[cell.kind]

        def named(tree, cell=cell):
            """A function with the cell's nets in place of its pins."""
            kind, *parts = tree
            if kind != "pin":
                return (kind, *(named(part) for part in parts if isinstance(part, tuple)))
            net = cell.connections.get(parts[0])
            if net is None:
                return ("constant", (cell.name, parts[0]) in netlist.ones)
            return ("pin", f"n{net}")

        register = f"r{len(lines)}"
        if model.register is not None:
            following = function.to_verilog(named(function.parse(model.register["next_state"])))
            lines.append(f"reg {register}; always @(posedge clk) {register} <= {following};")
        for pin in model.pins.values():
            net = cell.connections.get(pin.name)
            if pin.direction != "output" or net is None:
                continue
            if model.register is not None:
                text = f"{'~' if pin.function == model.state[1] else ''}{register}"
            else:
                text = function.to_verilog(named(function.parse(pin.function)))
            rise, fall = delay[cell.name, pin.name]
            lines.append(f"assign #({rise}, {fall}) n{net} = {text};")
    for row, net in enumerate(nets):
        lines.append(f"always @(n{net}) if (counted) count[{row}] = count[{row}] + 1;")
    bits = np.concatenate(list(inputs.values()), axis=2).transpose(1, 0, 2).reshape(-1, width)
    rows = ["".join("01"[bit] for bit in row[::-1]) for row in bits.astype(int)]
    (folder / "vectors.txt").write_text("\n".join(rows))
    (folder / "top.v").write_text(
        "\n".join(
            [
                "`timescale 1fs/1fs",
                "module top;",
                f"reg [{width - 1}:0] vector; reg [{width - 1}:0] vectors [0:{len(rows) - 1}];",
                f"integer i; reg clk = 0, counted = 0; integer count [0:{len(nets) - 1}];",
                *lines,
                "initial begin",
                f'$readmemb("{folder / "vectors.txt"}", vectors);',
                f"for (i = 0; i < {len(nets)}; i = i + 1) count[i] = 0;",
                f"for (i = 0; i < {len(rows)}; i = i + 1) begin",
                f"counted = i % {CYCLES} >= {WARM}; clk = 1; vector <= vectors[i]; #100000000;",
                "counted = 0; clk = 0; #1;",
                "end",
                f'for (i = 0; i < {len(nets)}; i = i + 1) $display("%0d", count[i]);',
                "end endmodule",
            ]
        )
    )
    subprocess.run(["iverilog", "-o", folder / "top.vvp", folder / "top.v"], check=True)
    done = subprocess.run(["vvp", "-n", folder / "top.vvp"], check=True, capture_output=True)
    return dict(zip(nets, map(int, done.stdout.split()), strict=True))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name, preset, settled, toggles, clock, leakage",
    [
        ("float_add", "fp16", 715, 2087, 0, 10.8),
        ("float_multiply", "fp16", 1530, 3492, 0, 21.2),
        ("float_multiply_add", "fp16", 2988, 8496, 0, 41.5),
        ("float_multiply_add", "fp16_pipelined", 3462, 7642, 520, 49.4),
    ],
)
def test_toggles_are_those_of_icarus(name, preset, settled, toggles, clock, leakage, tmp_path):
    """Net by net; and the figures in docs/arithmetic.md."""
    block = find(f"arith.{name}")
    library = libraries.find("nangate45")
    rtlil = to_rtlil(block.create(block.parameters_class.preset(preset)), "unit")
    netlist = Mapper(rtlil, "unit", library, tmp_path).map("area").netlist
    rng = np.random.default_rng(1)
    inputs = {
        port: (rng.random((CYCLES, RUNS, len(nets))) < 0.5) | (port == "enable")
        for port, nets in netlist.inputs.items()
        if port != "clk"
    }
    activity = Activity(netlist, library)
    for cycle in range(CYCLES):
        activity.cycle({port: bits[cycle] for port, bits in inputs.items()}, cycle >= WARM)
    found = {net: int(activity.toggles[row]) for net, row in activity.row.items()}
    assert found == icarus_toggles(netlist, library, inputs, tmp_path)
    costs = power.energies(netlist, library, power.read(library.path))
    each = np.array([costs.net.get(net, 0.0) for net in activity.row]) / RUNS / (CYCLES - WARM)
    measured = [counts[:-2] @ each for counts in (activity.settled, activity.toggles)]
    assert measured == pytest.approx([settled, toggles], rel=0.03)
    assert costs.cycle == pytest.approx(clock, rel=0.01)
    assert costs.leakage == pytest.approx(leakage, rel=0.01)
