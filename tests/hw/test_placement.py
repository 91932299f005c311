"""Placement of cells, the wires between them, and the DEF file."""

import builtins
import dataclasses
import itertools
import re

import numpy as np
import pytest

from sim.core.tools import ToolError
from sim.synth import SynthesisError, def_file, delays, liberty, power, timing
from sim.synth.netlist import Instance, Netlist
from sim.synth.placement import Core, place
from sim.synth.wires import OHM_PER_UM, ROUTED, Wires, tree
from tests.support.hw import tiny

pytest.importorskip("coloquinte", reason="PyPI has coloquinte for Python 3.11 and 3.12 only")

CORE = Core("unit", 0.5, 2.0, layers=None)
"""Sites of 1 µm², as the tiny library's cells have areas of 1 to 9."""

CLOCK, A = 0, 1


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library().replace("area : 1.5", "area : 2"))
    return liberty.read(path)


def chain(length: int, every: int = 5) -> Netlist:
    """Inverters, every few a flip-flop in place of one, each driving the next."""
    cells = []
    for number in range(length):
        before, after = A + number, A + number + 1
        if number % every == every - 1:
            pins = {"CK": CLOCK, "D": before, "Q": after}
            cells.append(Instance(f"f{number}", "F", pins))
        else:
            cells.append(Instance(f"n{number}", "N", {"A": before, "Y": after}))
    return Netlist("chain", cells, {"clk": [CLOCK], "a": [A]}, {"o": [A + length]})


def shuffled(netlist: Netlist, seed: int) -> Netlist:
    """The same netlist with its cells in another order."""
    order = np.random.default_rng(seed).permutation(len(netlist.cells))
    cells = [netlist.cells[number] for number in order]
    return Netlist(netlist.name, cells, netlist.inputs, netlist.outputs)


@pytest.mark.parametrize("utilisation", [0.1, 0.7, 0.9])
@pytest.mark.parametrize("length", [1, 40, 300])
def test_cells_have_places_of_their_own(library, length, utilisation):
    """In rows, on sites, inside the core, without overlap, turned as their row is."""
    core = Core("unit", 0.5, 2.0, utilisation, None)
    found = place(chain(length), library, core)
    x, y = found.corners.T
    assert np.allclose(y / 2 % 1, 0) and np.allclose(x / 0.5 % 1, 0)
    assert x.min() >= 0 and (x + found.widths).max() <= found.width + 1e-9
    assert y.min() >= 0 and y.max() + 2 <= found.height + 1e-9
    for row in np.unique(y):
        at = np.flatnonzero(y == row)
        at = at[np.argsort(x[at])]
        assert np.all(x[at][1:] >= (x + found.widths)[at][:-1] - 1e-9)
        assert len({found.turned[number] in ("N", "FN") for number in at}) == 1
    area = {"N": 1, "F": 9}
    assert found.widths * 2 == pytest.approx([area[c.kind] for c in found.netlist.cells])
    used = (found.widths * 2).sum() / (found.width * found.height)
    assert used <= utilisation * 1.01 or length == 1


def test_ports_are_around_the_core(library):
    cells = [Instance(f"n{bit}", "N", {"A": 1 + bit, "Y": 101 + bit}) for bit in range(60)]
    inputs, outputs = list(range(1, 61)), list(range(101, 161))
    netlist = Netlist("wide", cells, {"a": inputs}, {"o": outputs})
    found = place(netlist, library, CORE)
    assert [port.net for port in found.ports] == [*inputs, *outputs]
    assert found.ports[0].name == "a[0]" and found.ports[-1].name == "o[59]"
    assert [port.direction for port in found.ports] == ["INPUT"] * 60 + ["OUTPUT"] * 60
    for port in found.ports:
        assert port.x in (0, found.width) or port.y in (0, found.height)
    assert len({(port.x, port.y) for port in found.ports}) > 60


def test_a_placement_shortens_wires_and_repeats(library):
    """A chain in any order of its cells takes much less wire than at random places."""
    netlist = shuffled(chain(400, every=500), 1)
    found, again = (place(netlist, library, CORE) for _ in range(2))
    assert np.array_equal(found.corners, again.corners)
    random = np.random.default_rng(2).permutation(len(netlist.cells))
    moved = {
        net: found.corners[random[[n for n, c in enumerate(netlist.cells) if net in pins(c)]]]
        for net in found.pins
    }
    at_random = sum(tree(points) for points in moved.values() if len(points))
    assert sum(tree(points) for points in found.pins.values()) < at_random / 3


def pins(cell: Instance) -> tuple:
    return tuple(cell.connections.values())


def test_a_clock_pulls_at_nothing(library):
    """And has a wire."""
    found = place(chain(60), library, CORE)
    assert found.clocks == {CLOCK} and len(found.pins[CLOCK]) == 12
    without = chain(60)
    for cell in without.cells:
        cell.connections.pop("CK", None)
    del without.inputs["clk"]
    plain = place(without, library, CORE)
    assert np.array_equal(plain.corners, found.corners)
    assert Wires.of(found).total(clocks=True) > 0 == Wires.of(plain).total(clocks=True)


def test_what_cannot_be_placed(library, monkeypatch):
    with pytest.raises(SynthesisError, match=r"N of 1 um2 takes 0\.71 sites of 0\.7 x 2 um"):
        place(chain(3), library, Core("odd", 0.7, 2.0, layers=None))
    with pytest.raises(SynthesisError, match="empty has no cell"):
        place(Netlist("empty", [], {}, {}), library, CORE)
    with pytest.raises(SynthesisError, match="61 cells of chain find no place in a core 99% full"):
        place(chain(61, every=1), library, dataclasses.replace(CORE, utilisation=0.99))
    usual = builtins.__import__

    def missing(name, *arguments, **options):
        if name == "coloquinte":
            raise ModuleNotFoundError(name)
        return usual(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ToolError, match="pip install coloquinte"):
        place(chain(3), library, CORE)


def test_what_is_printed_remains(library, capfd):
    """Coloquinte prints; a program's own output must come through before and after."""
    print("before")
    place(chain(20), library, CORE)
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_the_shortest(seed):
    """Against every tree of up to five points, by their Prüfer sequences."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 6, (int(rng.integers(1, 6)), 2)).astype(float)
    different = np.unique(points, axis=0)
    number = len(different)
    best = 0.0
    if number == 2:
        best = np.abs(different[0] - different[1]).sum()
    elif number > 2:
        best = min(
            length_of(sequence, different)
            for sequence in itertools.product(range(number), repeat=number - 2)
        )
    assert tree(points) == pytest.approx(best)


def length_of(sequence: tuple[int, ...], points: np.ndarray) -> float:
    """Of the tree with that Prüfer sequence."""
    left, total = list(range(len(points))), 0.0
    for at, end in enumerate(sequence):
        leaf = next(node for node in left if node not in sequence[at:])
        left.remove(leaf)
        total += np.abs(points[leaf] - points[end]).sum()
    return total + np.abs(points[left[0]] - points[left[1]]).sum()


def test_loads_delays_and_energies_with_wires(library):
    """Two inverters: the wire between them by hand, with the tables' planes."""
    netlist = chain(2)
    wires = Wires.of(place(netlist, library, CORE))
    net = A + 1
    between = wires.lengths[net]
    first, second = (corner + (0.25, 1.0) for corner in wires.placement.corners)
    assert between == pytest.approx(ROUTED * np.abs(first - second).sum()) and between > 0
    plain, wired = netlist.loads(library), wires.netlist(2.0).loads(library)
    assert wired[net] == pytest.approx([load + 2 * between for load in plain[net]])
    assert wires.netlist(0.0).loads(library)[net] == pytest.approx(plain[net])
    # 2 ps more for each fF, as it rises; slews go on, at 1 ps for each fF, and count a fifth.
    before, after = delays.delays(netlist, library), delays.delays(wires.netlist(2.0), library)
    assert after["n0", "Y"][0] - before["n0", "Y"][0] == pytest.approx(4000 * between, abs=2)
    slow = timing.analyse(wires.netlist(2.0), library).worst.delay
    assert slow > timing.analyse(netlist, library).worst.delay
    assert wires.longest() == max(wires.lengths.values())
    # Half of the wire's own capacitance, at 2 fF/um, and all of the pins'.
    worst = max(
        OHM_PER_UM * length * (length + max(plain.get(at, (0, 0)))) / 1000
        for at, length in wires.lengths.items()
    )
    assert wires.resistive_delay(library, 2.0) == pytest.approx(worst)


def test_energy_of_wires(library):
    """Half of C V² a toggle more, and C V² a cycle for the clock."""
    netlist = chain(10)
    wires = Wires.of(place(netlist, library, CORE))
    cells = {name: power.CellPower({}, 0.0) for name in library.cells}
    costs = power.Power(2.0, cells)
    plain = power.energies(netlist, library, costs)
    wired = power.energies(wires.netlist(3.0), library, costs)
    for net, length in wires.lengths.items():
        if net != CLOCK:
            assert wired.net[net] - plain.net[net] == pytest.approx(2 * 3 * length)
    assert wired.cycle - plain.cycle == pytest.approx(4 * 3 * wires.lengths[CLOCK])


def test_the_def_file_says_where_all_is(library):
    netlist = chain(30)
    found = place(netlist, library, CORE)
    text = def_file.text(found, library)
    assert max(map(len, text.splitlines())) < 120
    placed = re.findall(r"- u(\d+) (\S+) \+ PLACED \( (\d+) (\d+) \) (\S+) ;", text)
    assert len(placed) == 30 == int(re.search(r"COMPONENTS (\d+)", text)[1])
    for number, kind, x, y, turn in placed:
        assert kind == netlist.cells[int(number)].kind and turn == found.turned[int(number)]
        assert [int(x), int(y)] == (found.corners[int(number)] * def_file.UNITS).round().tolist()
    nets = dict(re.findall(r"^- n(\d+)(?: \+ USE CLOCK)?\n((?:  \( .*\n)+)  ;", text, re.M))
    wanted: dict[int, list[str]] = {}
    for port in found.ports:
        wanted.setdefault(port.net, []).append(f"PIN {port.name}")
    for number, cell in enumerate(netlist.cells):
        for pin, net in cell.connections.items():
            wanted.setdefault(net, []).append(f"u{number} {pin}")
    assert {int(net): re.findall(r"\( (.*) \)", body) for net, body in nets.items()} == wanted
    assert f"- n{CLOCK} + USE CLOCK\n" in text and text.count("ROW row") == found.rows
    left, bottom, right, top = map(
        int, re.search(r"DIEAREA \( (\S+) (\S+) \) \( (\S+) (\S+) \)", text).groups()
    )
    for x, y in re.findall(r"\+ PLACED \( (-?\d+) (-?\d+) \) N ;\n(?:- |END PINS)", text):
        assert left < int(x) < right and bottom < int(y) < top


def test_tracks_fill_the_die(library):
    """Those of a layer, from inside one edge to inside the other; ports are on the third layer."""
    layers = (("a", "Y", 0.5, 0.25), ("b", "X", 0.3, 0.1), ("c", "Y", 0.5, 0.25))
    found = place(chain(30), library, dataclasses.replace(CORE, layers=layers))
    text = def_file.text(found, library)
    die = re.search(r"DIEAREA \( (\S+) (\S+) \) \( (\S+) (\S+) \)", text)
    left, bottom, right, top = map(int, die.groups())
    tracks = re.findall(r"TRACKS (\w) (\S+) DO (\d+) STEP (\d+) LAYER (\w) ;", text)
    assert [track[4] for track in tracks] == ["a", "b", "c"]
    for (_, axis, pitch, at), (found_axis, first, count, step, _) in zip(
        layers, tracks, strict=True
    ):
        low, high = (left, right) if axis == "X" else (bottom, top)
        first, step = int(first), int(step)
        last = first + (int(count) - 1) * step
        assert found_axis == axis and step == round(pitch * def_file.UNITS)
        assert low <= first < low + step and high - step < last <= high
        assert (first - round(at * def_file.UNITS)) % step == 0
    assert text.count("+ LAYER c ") == len(found.ports)


def test_rows_turn_as_the_def_file_says(library):
    """A cell in a row that is turned over is turned over."""
    found = place(chain(200), library, CORE)
    text = def_file.text(found, library)
    rows = dict(re.findall(r"ROW row\d+ unit 0 (\d+) (N|FS) DO", text))
    for number, turn in enumerate(found.turned):
        y = str(round(found.corners[number, 1] * def_file.UNITS))
        assert (rows[y] == "N") == (turn in ("N", "FN"))
