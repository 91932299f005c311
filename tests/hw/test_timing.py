"""Static timing and the Liberty reader, against delays worked out by hand."""

import pytest

from sim.synth import SynthesisError, function, liberty
from sim.synth.netlist import Instance, Netlist
from sim.synth.timing import analyse
from tests.support.hw import tiny


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "tiny.lib"
        path.write_text(text)
        return liberty.read(path)

    return read


@pytest.fixture
def library(read):
    return read(tiny.library())


def near(value):
    return pytest.approx(value, abs=1e-6)


def chain(*kinds: str) -> Netlist:
    """Cells one after another, from input a to output y."""
    cells = [
        Instance(f"u{n}", kind, {"A": n, "Y": n + 1} | ({"B": n} if kind == "X" else {}))
        for n, kind in enumerate(kinds)
    ]
    return Netlist("chain", cells, {"a": [0]}, {"y": [len(kinds)]})


def test_interpolation_and_extrapolation():
    table = liberty.Table((0.0, 100.0), (0.0, 10.0), ((1.0, 2.0), (3.0, 8.0)))
    assert table(0, 0) == 1 and table(100, 10) == 8
    assert table(50, 5) == 3.5
    assert table(200, 10) == 14  # 2 + 2 * (8 - 2)
    assert table(100, 20) == 13 and table(0, -10) == 0
    three = liberty.Table((0.0,), (0.0, 1.0, 3.0), ((0.0, 10.0, 14.0),))
    assert [three(7, x) for x in (0.5, 1, 2, 4)] == [5, 10, 12, 16]
    assert liberty.Table((0.0,), (0.0,), ((6.0,),))(40, 40) == 6


@pytest.mark.parametrize("swapped", [False, True])
def test_two_inverters(read, swapped):
    """Unateness, loads by edge, slews handed on, whichever axis a table has first."""
    timing = analyse(chain("N", "N"), read(tiny.library(swapped=swapped)))
    # a: 0 ps, no slew. m falls 20 + 1 * 1 fF later, slew 8 + 2 * 1; rises 10 + 2 * 2, slew 4 + 2.
    # y rises after that fall: 10 + 0.1 * 10; falls after that rise: 20 + 0.2 * 6.
    assert timing.worst.delay == near(max(21 + 11, 14 + 21.2))
    assert list(timing.paths) == ["input-output"]
    path = timing.worst
    assert (path.start, path.end) == ("a", "y")
    assert [(s.driver, s.edge) for s in path.steps] == [
        ("a", "fall"),
        ("u0", "rise"),
        ("u1", "fall"),
    ]
    assert [s.arrival for s in path.steps] == [near(0), near(14), near(35.2)]
    assert [s.slew for s in path.steps] == [near(0), near(6), near(8 + 0.5 * 6)]


def test_driven_inputs(library):
    """The driver's slew, and of its delay what the load of the net adds."""
    timing = analyse(chain("N", "N"), library, "B")
    # a rises 3 * 2 fF late, slew 2 + 2; falls 1 * 1 late, slew 3 + 2.
    # m falls at 6 + 20 + 0.2 * 4 + 1, slew 8 + 0.5 * 4 + 2; rises at 1 + 10 + 0.1 * 5 + 4, slew 6.
    assert timing.worst.delay == near(max(27.8 + 10 + 1.2, 15.5 + 20 + 1.2))
    assert [s.slew for s in timing.worst.steps] == [near(4), near(12), near(4)]


def test_without_unateness_both_edges_count(library):
    timing = analyse(chain("N", "X"), library)
    # The exclusive or has two pins at m, of 4 fF rising and 2 fF falling.
    fall, rise = (20 + 2, 8 + 2 * 2), (10 + 2 * 4, 4 + 4)
    y_rise = max(time + 10 + 0.1 * slew for time, slew in (fall, rise))
    y_fall = max(time + 20 + 0.2 * slew for time, slew in (fall, rise))
    assert timing.worst.delay == near(max(y_rise, y_fall)) == near(44.4)


def test_the_slower_pin_and_constants(library):
    connected = {"A": 0, "B": 0, "Y": 1}
    netlist = Netlist("one", [Instance("u", "NAND", connected)], {"a": [0]}, {"y": [1]})
    assert analyse(netlist, library).worst.delay == near(200)
    netlist.cells[0].connections["B"] = None
    assert analyse(netlist, library).worst.delay == near(20)
    netlist.cells[0].connections["A"] = None
    assert analyse(netlist, library).worst is None


def register(*cells: Instance) -> Netlist:
    flip_flop = Instance("r", "F", {"CK": 9, "D": 1, "Q": 2})
    ports = {"a": [0], "clk": [9]}
    return Netlist("registered", [flip_flop, *cells], ports, {"q": [2]}, {2: "state"})


def test_registers_cut_paths(library):
    timing = analyse(
        register(Instance("u", "NAND", {"A": 0, "B": 2, "Y": 1})),
        library,
    )
    # NAND from A: y falls 20 + load 2 fF, slew 8 + 2 * 2, setup 25 + 0.25 * 12;
    # y rises 10 + 2 * 2, slew 4 + 2, setup 30 + 0.5 * 6. But B's arcs give slews 5 and 6 only.
    into = max(20 + 2 + 25 + 0.25 * 12, 10 + 4 + 30 + 0.5 * 6)
    # q has B's pin of 2 and 1 fF: rises at 50 + 2, falls at 60 + 1. Through B 200 and 100.
    loop = max(52 + 200 + 25 + 0.25 * 12, 61 + 100 + 30 + 0.5 * 6)
    assert {kind: path.delay for kind, path in timing.paths.items()} == {
        "input-register": near(into),
        "register-register": near(loop),
        "register-output": near(61),
    }
    assert timing.worst.start == "state" and timing.worst.end == "state (D)"
    assert timing.paths["input-register"].start == "a"


@pytest.mark.parametrize(
    ("netlist", "reason"),
    [
        (register(Instance("u", "N", {"A": 3, "Y": 3})), "registered has a combinational loop"),
        (chain("N", "OR9"), "chain keeps a OR9, for which tiny has no cell"),
        (
            Netlist("held", [Instance("u", "L", {"D": 0, "E": 1, "Q": 2})], {}, {}),
            "held has a latch (u), which has no timing",
        ),
    ],
)
def test_what_cannot_be_timed(read, netlist, reason):
    with pytest.raises(SynthesisError) as error:
        analyse(netlist, read(tiny.library(tiny.LATCH)))
    assert str(error.value) == reason


def test_a_driver_must_exist(library):
    with pytest.raises(SynthesisError, match="library tiny has no driving cell BUF_X9"):
        analyse(chain("N"), library, "BUF_X9")


def test_the_reader_keeps_what_matters(library):
    assert set(library.cells) == {"N", "B", "NAND", "X", "F"}
    inverter, flip_flop = library.cells["N"], library.cells["F"]
    assert inverter.area == 1 and inverter.pins["A"].capacitance == (near(2), near(1))
    assert flip_flop.register["clocked_on"] == "CK" and flip_flop.state == ("IQ", "IQN")
    assert inverter.register is None and not flip_flop.is_latch
    assert {arc.kind for arc in flip_flop.pins["D"].arcs} == {"setup_rising"}


def test_comments_continued_lines_and_forgotten_semicolons(read):
    text = tiny.library().replace("area : 1;", "area : 1\n/* ; } */ // ) {\n", 1)
    text = text.replace('values ("', 'values ( \\\n "')
    assert read(text).cells["N"].area == 1
    assert analyse(chain("N", "N"), read(text)).worst.delay == near(35.2)


@pytest.mark.parametrize(
    "text",
    ["", "module a; endmodule", "cell (N) { }", tiny.library()[:-3], "\x7fELF\x02\x01 { : ( "],
)
def test_other_files_are_no_libraries(read, text):
    with pytest.raises(SynthesisError, match="is not a Liberty file$"):
        read(text)


def test_tables_of_other_variables_are_refused(read):
    odd = tiny.library().replace("total_output_net_capacitance", "related_out_capacitance")
    with pytest.raises(SynthesisError, match="varies over related_out_capacitance, unsupported"):
        read(odd)


FUNCTIONS = {
    "A": lambda a, b, c: a,
    "!A": lambda a, b, c: not a,
    "A'": lambda a, b, c: not a,
    "(A B)'": lambda a, b, c: not (a and b),
    "!(A*B)+C": lambda a, b, c: not (a and b) or c,
    "A & B | !C": lambda a, b, c: (a and b) or not c,
    "A + B C": lambda a, b, c: a or (b and c),
    "A^B & C": lambda a, b, c: (a != b) and c,
    "!A ^ B": lambda a, b, c: a == b,
    "((A)) | 1": lambda a, b, c: True,
    "B' & 0": lambda a, b, c: False,
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_functions(text):
    bits = [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]
    expected = tuple(bool(FUNCTIONS[text](*values)) for values in bits)
    assert function.truth_table(text, ["A", "B", "C"]) == expected
    # Verilog's and genlib's notation mean the same.
    tree = function.parse(text)
    spelled = function.to_verilog(tree).replace("~", " not ").replace("1'b", "")
    spelled = spelled.replace("&", "and").replace("|", "or").replace("^", "!=")
    gates = function.to_genlib(tree).replace("CONST", "").replace("!", " not ")
    gates = gates.replace("*", "and").replace("+", "or")
    for values, wanted in zip(bits, expected, strict=True):
        names = dict(zip("ABC", values, strict=True))
        assert bool(eval(f"({gates})", names)) == wanted
        if "not A !=" not in spelled:  # Python's not binds weaker than Verilog's
            assert bool(eval(f"({spelled})", names)) == wanted


@pytest.mark.parametrize("text", ["", "A &", "(A", "A)", "& A", "A ? B", "!"])
def test_broken_functions(text):
    with pytest.raises(SynthesisError, match="cannot be read"):
        function.parse(text)


def test_functions_of_unknown_pins():
    with pytest.raises(SynthesisError, match="names 'Z', which is no input"):
        function.truth_table("A & Z", ["A"])
