"""Packages: all files of one description, beats in C and Python as the testbenches pack them."""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from hw.__main__ import main
from hw.bus.accelerator import BusParameters
from hw.catalogue import find
from hw.package.ip_xact import NAMESPACE
from hw.package.package import package, write_package
from sim.core import payload
from sim.drivers.axi.runner import generate_device
from tests.support.bus.c_header import Header

CORES = (
    *("kllm.kllm_core", "lad.lad_tile", "topick.topick_core", "unicaim.unicaim_core"),
    *("veda.veda_core", "baseline.h2o_core", "arith.exp", "kllm.orizuru", "topick.pe_lane"),
)


def device(name: str, preset: str = "first", **bus):
    block = find(name)
    parameters = block.parameters_class.preset(preset)
    return generate_device(block, parameters, dataclasses.replace(BusParameters(), **bus))


def driver(folder, module: str):
    spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def check_beats(design, folder) -> None:
    """Random beats, through C and through Python, against the testbenches' own packing."""
    header = Header(design, folder)
    python = driver(folder, design.module)
    random = np.random.default_rng(seed=7)
    for beat in header.description.beats:
        channel, shape = beat.channel.channel, header.description._shape(beat.channel)
        assert beat.width == payload.width(shape) and 8 * beat.channel.bytes >= beat.width
        for _ in range(8):
            number = int.from_bytes(random.bytes(beat.channel.bytes), "little")
            number &= (1 << beat.width) - 1
            raw = number.to_bytes(beat.channel.bytes, "little")
            words = np.frombuffer(raw, "<u4")
            leaves = payload.fields(shape)
            expected = {path: number >> low & (1 << width) - 1 for path, low, width in leaves}
            if max(width for *_, width in leaves) <= 64:
                unpacked = payload.unpack(shape, words[: payload.words(shape)][None])
                assert expected == {path: int(value[0]) for path, value in unpacked.items()}
            got, again = header.unpack(beat, words.tolist())
            assert int.from_bytes(np.array(again, "<u4").tobytes(), "little") == number
            assert _leaves(beat, got) == expected
            assert python.unpack(channel, raw) == got
            assert python.pack(channel, **got) == raw


def _leaves(beat, got: dict) -> dict[str, int]:
    """Unsigned value of each leaf, by the path that payload.unpack has."""
    found = {}

    def walk(value, path, width):
        if not isinstance(value, list):
            found[path] = value & (1 << width) - 1
            return
        for n, element in enumerate(value):
            walk(element, path.replace("[]", f"[{n}]", 1), width)

    for member in beat.members:
        walk(got[member.name], member.field.name or "payload", member.field.width)
    return found


def test_beats_in_c_and_python(tmp_path):
    """One of the streams carries 128 bits in one field."""
    check_beats(device("stream.sequential_reader", "default"), tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("name", CORES)
def test_beats_of_cores_in_c_and_python(name, tmp_path):
    check_beats(device(name), tmp_path)


def test_all_files_agree():
    """Registers and ports in the Verilog, the sidecar, IP-XACT, SystemRDL, header and driver."""
    design = device("stream.sequential_reader", masters="each")
    files = package(design)
    assert files == package(design)
    name = design.module
    sidecar = json.loads(files[f"{name}.json"])
    root = ElementTree.fromstring(files[f"{name}.xml"])
    spaces = {"x": NAMESPACE}
    top = re.search(rf"^module {name}\((.*?)^\);", design.verilog, re.M | re.S)[1]
    ports = re.findall(r"^ *(?:input|output) .*?(\w+)(?: = .*)?,?$", top, re.M)
    assert [port["name"] for port in sidecar["ports"]] == ports
    assert [e.text for e in root.findall("x:model/x:ports/x:port/x:name", spaces)] == ports
    mapped = [e.text for e in root.findall(".//x:physicalPort/x:name", spaces)]
    assert sorted(mapped) == sorted(ports), "every port is in one bus interface"
    offsets = {}
    for register in sidecar["registers"]:
        parts = ["_low", "_high"] if register["bits"] == 64 else [""]
        for n, part in enumerate(parts):
            offsets[register["name"] + part] = register["offset"] + 4 * n
    found = {
        e.find("x:name", spaces).text: int(e.find("x:addressOffset", spaces).text[2:], 16)
        for e in root.findall(".//x:register", spaces)
    }
    assert found == offsets
    rdl = re.findall(r"^    } (\w+) @ (0x[0-9a-f]+);", files[f"{name}.rdl"], re.M)
    assert {register: int(at, 16) for register, at in rdl} == offsets
    for register in sidecar["registers"]:
        macro = f"#define SEQUENTIAL_READER_{register['name'].upper()} 0x"
        assert f"{macro}{register['offset']:03x}u" in files[f"{name}.h"]
    masters = [e.text for e in root.findall("x:addressSpaces/x:addressSpace/x:name", spaces)]
    assert masters == ["m0_axi", "m1_axi", "m2_axi", "m3_axi"]


def test_nothing_is_half_written(tmp_path):
    """Where one file cannot be replaced, none is."""
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("before")
    with pytest.raises(IsADirectoryError) as raised:
        write_package({"a": "after", "b": "after"}, tmp_path)
    assert raised.value.filename == str(tmp_path / "b")
    assert (tmp_path / "a").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "line, words",
    [
        ("package veda.veda_core --bus data=100 -o x", "must be one of 32, 64"),
        ("package veda.veda_core --bus width=64 -o x", "parameter name must be one of data"),
        ("package veda.veda_cor -o x", "did you mean veda.veda_core"),
        ("package veda.veda_core", "-o/--output"),
        ("package veda.veda_core --preset small -o /proc/version/x", "/proc/version: Not a dir"),
    ],
)
def test_mistakes(call, line, words):
    status, out, err = call(main, line)
    assert status == 2 and words in err and not out


@pytest.mark.campaign
def test_the_same_command_writes_the_same_bytes(tmp_path):
    texts = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        line = "-m hw package stream.sequential_reader --preset first --bus masters=each -o"
        command = [sys.executable, *line.split(), str(folder)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed, "HOME": str(tmp_path)})
        texts.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert texts[0] == texts[1] and len(texts[0]) == 9
