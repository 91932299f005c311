# amaranth: UnusedElaboratable=no
"""`hw show`: what it says of parameters, ports and fields agrees with the hardware."""

import dataclasses
import itertools
import json
import re

import pytest
from amaranth.hdl import Shape

from hw.arith.datapath import Datapath
from hw.catalogue import FOLDERS, blocks, find
from hw.emit import contracts
from hw.emit.export import module_name, sidecar
from hw.emit.show import describe, meaning, rules, text
from hw.ports import list_ports
from sim.core import payload
from sim.core.design import generate
from sim.core.tools import ROOT
from sim.drivers.run import load_testbench
from tests.hw.test_cli import run  # noqa: F401  (a fixture)


def described(name, **changes):
    block = find(name)
    parameters = dataclasses.replace(block.parameters_class.preset("first"), **changes)
    return describe(block, "first", parameters)


def expanded(fields: list[dict]) -> list[tuple[str, int, int]]:
    """Every leaf as (dotted path, offset, width), elements of arrays one by one."""
    leaves = []
    for field in fields:
        arrays = field.get("arrays", [])
        for at in itertools.product(*(range(array["count"]) for array in arrays)):
            name, offset = field["name"], field["offset"]
            for index, array in zip(at, arrays, strict=True):
                name = name.replace("[]", f"[{index}]", 1)
                offset += index * array["stride"]
            leaves.append((name, offset, field["width"]))
    return leaves


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_of_every_block(block):
    parameters = block.parameters_class.preset("first")
    entry = describe(block, "first", parameters)
    assert json.loads(json.dumps(entry)) == entry
    assert entry["latency"] == parameters.latency and entry["description"]
    names = [parameter["name"] for parameter in entry["parameters"]]
    assert names == [field.name for field in dataclasses.fields(parameters)]
    for parameter in entry["parameters"]:
        assert parameter["description"], parameter["name"]
        assert parameter["value"] == getattr(parameters, parameter["name"])
        assert list(parameter["presets"]) == list(block.parameters_class.presets())
    component = block.create(parameters)
    ports = {port["name"]: port for port in entry["ports"]}
    assert len(ports) == len(entry["ports"])
    for path, member, _ in component.signature.flatten(component):
        port = ports.pop("__".join(map(str, path)))
        shape = Shape.cast(member.shape)
        assert (port["width"], port["signed"]) == (shape.width, shape.signed)
        if "fields" in port:
            leaves = [leaf for leaf in expanded(port["fields"]) if leaf[2]]
            other = [leaf for leaf in payload.fields(member.shape) if leaf[2]]
            assert sorted(leaves) == sorted(other)
            assert sum(width for *_, width in leaves) == port["width"]
        else:
            assert payload.fields(member.shape) == [("payload", 0, shape.width)]
    assert set(ports) <= {"clk", "rst"}
    assert bool(ports) == (not isinstance(component, Datapath) or parameters.stages > 0)


def test_rules_are_those_of_the_checks():
    queue = find("stream.queue").parameters_class()
    assert rules(queue, "depth") == ["depth must be at least 1"]
    orizuru = find("kllm.orizuru").parameters_class()
    assert rules(orizuru, "k") == ["k must be between 0 and n = 256"]
    assert rules(orizuru, "radix") == [
        "radix must be a power of two",
        "radix must be at least 2",
    ]
    add = find("arith.float_add").parameters_class()
    assert rules(add, "format")[0].startswith("format must be one of fp16, ")
    assert rules(add, "flush_subnormals") == []


WITH_MEMORY = [
    "stream.sequential_reader",
    "kllm.kllm_core",
    "veda.veda_core",
    "topick.chunk_buffer",
    "topick.topick_core",
    "lad.active_fetch",
    "lad.lad_system",
    "lad.lad_tile",
    "unicaim.unicaim_core",
    "tsuru.tsuru_core",
    "baseline.dense_core",
    "baseline.h2o_core",
]


def test_memories_are_found():
    found = []
    for block in blocks():
        parameters = block.parameters_class.preset("first")
        ports = list_ports(block.create(parameters), [])
        found += [block.name] * bool(contracts.memories(ports, parameters))
    assert found == WITH_MEMORY


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_memories_are_those_of_the_testbench(name, shipped_trace):
    """Streams, fields and order, which the runs in every simulator prove to be enough."""
    block = find(name)
    parameters = block.parameters_class.preset("first")
    stimulus = load_testbench(block).stimulus(parameters, shipped_trace, 8, 1)
    assert describe(block, "first", parameters)["memories"]["ports"] == [
        {
            "request": memory.request,
            "response": memory.response,
            "address": memory.address,
            "tag": memory.tag,
            "write": memory.write,
            "data": memory.data,
            "order": "requests" if memory.in_order else "any",
        }
        for memory in stimulus.memories.values()
    ]


def test_a_memory_that_must_answer_in_order():
    block = find("topick.topick_core")
    parameters = block.parameters_class.preset("first")
    changed = dataclasses.replace(parameters, pruning=False, observe=False, buffer_tokens=0)
    entry = describe(block, "first", changed)
    assert {memory["order"] for memory in entry["memories"]["ports"]} == {"requests"}
    assert contracts.ORDERS["requests"] in " ".join(text(entry).split())


def test_rules_of_streams_and_memories_stand_where_an_integrator_reads():
    """The docs, `hw show`, the Verilog's comment and the sidecar."""
    block = find("stream.sequential_reader")
    parameters = block.parameters_class.preset("first")
    verilog = generate(block, parameters).verilog
    beside = sidecar(block, parameters, verilog, module_name(block, parameters))
    assert beside["streams"]["ports"] == [
        {"name": "command", "direction": "input"},
        {"name": "response", "direction": "input"},
        {"name": "request", "direction": "output"},
        {"name": "o", "direction": "output"},
    ]
    rules = [*beside["streams"]["rules"], *beside["memories"]["rules"]]
    assert rules == [*contracts.STREAM_RULES, *contracts.MEMORY_RULES]
    page = (ROOT / "docs" / "verilog.md").read_text()
    shown = text(describe(block, "first", parameters))
    for place in (page, shown, verilog.replace("\n// ", " ")):
        words = " ".join(place.split())
        assert all(rule in words for rule in [*rules, contracts.ORDERS["any"]])


def bounds(rule: str) -> dict[str, str]:
    """Least and largest value that a rule states."""
    forms = {"least": r"(?:between|from|at least) (\d+)", "most": r"(?: and| to|at most) (\d+)"}
    return {end: found[1] for end, form in forms.items() if (found := re.search(form, rule))}


@pytest.mark.parametrize("folder", FOLDERS)
def test_rules_do_not_contradict_each_other(folder):
    """Nor the value of a preset."""
    for block in blocks():
        for preset in block.parameters_class.presets().values() if block.folder == folder else ():
            for field in dataclasses.fields(preset):
                said = rules(preset, field.name)
                own = [bounds(rule) for rule in said if rule.startswith(f"{field.name} must")]
                for end in ("least", "most"):
                    stated = {found[end] for found in own if end in found}
                    assert len(stated) <= 1, (block.name, field.name, said)


def test_ranges_of_kllm_s_core_are_its_own():
    core = find("kllm.kllm_core").parameters_class()
    assert {name: rules(core, name) for name in ("k", "outliers", "centroid_bits", "macs")} == {
        "k": ["k must be between 2 and 65536"],
        "outliers": ["outliers must be between 1 and k - 1 = 575"],
        "centroid_bits": ["centroid_bits must be 0 or between 2 and 16"],
        "macs": ["macs must be a power of two from 16 to 256"],
    }
    assert rules(core, "activation_bits") == ["activation_bits must be between 2 and 6"]
    # Its width alone is probed, and the rule of another parameter follows the probe.
    assert rules(find("topick.pec").parameters_class.preset("small"), "width") == []


def test_words_are_found_where_a_docstring_points():
    lane = find("topick.pe_lane").parameters_class
    assert meaning(lane, "entries") == "Entries of the scoreboard: tokens in flight at most."
    assert meaning(lane, "fraction") == meaning(find("topick.pec").parameters_class, "fraction")
    assert meaning(lane, "d").startswith("Elements of a query and a key")
    assert meaning(lane, "nothing") == ""


def test_for_people(run):  # noqa: F811
    status, out, err, made = run("show stream.queue --preset small --set depth=5")
    assert (status, err, made) == (0, "", [])
    for line in (
        "stream.queue: First-in first-out buffer of any depth (library)",
        "Parameters (preset small, module stream_queue_9ad5ad11):",
        "  depth = 5\n      int, default 16; depth must be at least 1\n      Entries held, up to",
        "      presets: small 4, default 16, large 64",
        "Latency: 1 cycle. Cycles from the transfer of",
        "\n  clk         input   1 bit\n",
        "\n  i__payload  input   8 bits\n",
    ):
        assert line in out
    assert ":class:" not in out and "`" not in out and "Members" not in out
    _, out, _, _ = run("show kllm.orizuru")
    assert "[15:0] values[0] to values[15], every 16 bits, fp16\n      [271:256] keep" in out
    _, out, _, _ = run("show topick.pe_lane")
    assert "[31:0] log2, signed" in out


def test_for_programs(run):  # noqa: F811
    status, out, _, _ = run("show kllm.orizuru --json")
    assert status == 0
    entry = json.loads(out)
    assert entry["preset"] == "default" and entry["latency"] == 4
    assert entry["module"] == "kllm_orizuru_default"


def test_as_markdown(run):  # noqa: F811
    status, out, _, _ = run("show kllm.orizuru --markdown")
    assert status == 0 and out.startswith("# kllm.orizuru\n\n")
    for line in (
        "| `i__valid` | input | 1 | bit |  |",
        "| `o__payload` | output | 51 | fields below | The pairs. |",
    ):
        assert f"\n{line}\n" in out
    table = out.split("### Fields of `i__payload`\n\n")[1].split("\n\n")[0].splitlines()
    assert table[:2] == ["| field | bits | elements | every | format |", "|" + " --- |" * 5]
    assert table[2].startswith("| `values[]` | 15:0 | 16 | 16 bits | ")
    assert all(line.count("|") == 6 for line in table)
    assert run("show kllm.orizuru --markdown --json")[0] == 2


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("show all", "names, not 'all'"),
        ("show queue", "not 'queue'; did you mean stream.queue?"),
        ("show stream.queue --preset deflt", "not 'deflt'; did you mean default?"),
        ("show stream.queue --set depht=1", "not 'depht'; did you mean depth?"),
    ],
)
def test_unknown_names_get_the_nearest(run, command, sentence):  # noqa: F811
    status, out, err, _ = run(command)
    assert (status, out) == (2, "") and err.count("\n") == 1 and err.endswith(f"{sentence}\n")
    assert len(err) < 160
