"""Every block of the catalogue can be found, built, and driven by a testbench."""

import re

import numpy as np
import pytest
from amaranth.lib import wiring

from golden import trace as traces
from hw.catalogue import PARTS, Block, blocks, configurations, find, select
from hw.emit.export import to_rtlil, to_verilog
from hw.parameters import ParameterError
from sim.core import payload
from sim.core.design import with_streams
from sim.drivers.run import load_testbench

PRESETS = [
    pytest.param(
        block, preset, id=f"{block.name} {preset}", marks=pytest.mark.campaign if n else ()
    )
    for block in blocks()
    for n, preset in enumerate(block.parameters_class.presets())
]
VECTORS = 20


@pytest.fixture(scope="module")
def trace():
    return traces.load(traces.shipped()[0])


def streams(component) -> tuple[dict, dict]:
    """Payload shapes of the input and of the output streams, by name."""
    found = {}, {}
    for path, member, _ in component.signature.flatten(component):
        if path[-1] == "payload":
            found[member.flow is wiring.Out]["__".join(map(str, path[:-1]))] = member.shape
    return found


def test_names_are_unique_and_tell_where_the_class_is():
    names = [block.name for block in blocks()]
    assert len(set(names)) == len(names)
    for block in blocks():
        assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9]+(_[a-z0-9]+)*", block.name)
        assert block.component.__module__ == f"hw.{block.name}"
        assert block.name == f"{block.folder}.{block.module}"
        assert block.parameters_class.__name__ == f"{block.component.__name__}Parameters"
        assert block.parameters_class.__module__.startswith(f"hw.{block.folder}.")
        assert block.summary and block.source and "\n" not in block.summary + block.source


def test_find_and_select():
    assert find("stream.skid_buffer").component.__name__ == "SkidBuffer"
    assert [find(block.name) for block in blocks()] == list(blocks()) == select("all")
    assert select("stream.queue") == [find("stream.queue")]
    rule = "block must be one of those that `python -m hw list` names"
    nearest = {
        "queue": "; did you mean stream.queue?",
        "pe_lane": "; did you mean kllm.pe_lane or topick.pe_lane?",
        "stream.Queue": "; did you mean stream.queue?",
        "": "",
        "ALL": "",
    }
    for wrong, end in nearest.items():
        with pytest.raises(ParameterError) as caught:
            select(wrong)
        assert str(caught.value) == f"{rule}, not {wrong!r}{end}"


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_every_block_is_small_first_and_has_a_default(block):
    known = block.parameters_class.presets()
    default = block.parameters_class.preset_name("default")
    assert list(known)[0] in ("small", default)
    assert known[default] == block.parameters_class.preset("default") == block.parameters_class()


@pytest.mark.parametrize("block, preset", PRESETS)
def test_every_preset_creates_its_component(block, preset):
    parameters = block.parameters_class.preset(preset)
    component = block.create(parameters)
    assert type(component) is block.component
    assert component.parameters is parameters
    assert type(parameters.latency) is int and parameters.latency >= 0
    outcome = with_streams(component)
    inputs, outputs = streams(outcome)
    assert inputs and outputs
    members = list(outcome.signature.flatten(outcome))
    plain = [m.flow for path, m, _ in members if path[-1] not in ("payload", "valid", "ready")]
    assert all(flow is wiring.Out for flow in plain)  # outputs beside streams are left open


@pytest.mark.parametrize("real", [True, False], ids=["real", "random"])
@pytest.mark.parametrize("block, preset", PRESETS)
def test_every_bench_makes_whole_jobs(block, preset, real, trace):
    """Real and random data for every input, an answer for every output, each with its owner."""
    testbench, parameters = load_testbench(block), block.parameters_class.preset(preset)
    vectors = testbench.default_vectors(parameters)
    assert type(vectors) is int and vectors >= 1
    stimulus = testbench.stimulus(parameters, trace if real else None, VECTORS, seed=1)
    inputs, outputs = streams(with_streams(block.create(parameters)))
    bound = {s for m in stimulus.memories.values() for s in (m.request, m.response)}
    assert set(stimulus.inputs) | bound >= set(inputs) and set(stimulus.outputs) | bound >= set(
        outputs
    )
    for shapes, given in ((inputs, stimulus.inputs), (outputs, stimulus.outputs)):
        for name, beats in given.items():
            assert beats.dtype == np.uint32
            assert beats.shape[1:] == (payload.words(shapes[name]),)
            # No bit above the payload's width is ever set.
            spare = 32 * beats.shape[1] - payload.width(shapes[name])
            assert not (beats[:, -1] >> np.uint32(32 - spare)).any() if spare else True
    assert any(len(beats) for beats in stimulus.inputs.values())
    assert any(len(beats) for beats in stimulus.outputs.values())
    for name, beats in stimulus.outputs.items():
        owners = np.asarray(stimulus.transaction_of[name])
        assert owners.shape == (len(beats),)
        assert (owners >= 0).all() and (owners < stimulus.transactions).all()
    assert stimulus.transactions == VECTORS
    assert stimulus.cycles >= max(map(len, [*stimulus.inputs.values(), *stimulus.outputs.values()]))
    if real:
        assert stimulus.notes and all(note.endswith(".") for note in stimulus.notes)
    else:
        assert stimulus.notes == []


def first_preset(block: Block):
    return block.parameters_class.preset("first")


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_jobs_depend_on_the_seed_and_on_nothing_else(block):
    testbench, parameters = load_testbench(block), first_preset(block)
    one, again, other = (testbench.stimulus(parameters, None, 60, seed) for seed in (1, 1, 2))
    assert same(one.inputs, again.inputs) and same(one.outputs, again.outputs)
    assert not same(one.inputs, other.inputs) and not same(one.outputs, other.outputs)


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_verilog_and_area_and_are_no_blocks(name):
    part = find(name, parts=True)
    assert part.name == name and part not in blocks() and part.summary
    small = part.parameters_class.preset("first")
    assert f"module {part.module}(" in to_verilog(to_rtlil(part.create(small), part.module))
    assert configurations(name, ["first"], parts=True) == [(part, "small")]
    with pytest.raises(ParameterError, match="block must be one of those that"):
        find(name)


def test_configurations_are_the_presets_that_blocks_have():
    both = configurations("all", ["small", "default"])
    assert both == [
        (block, name)
        for block in blocks()
        for name in dict.fromkeys(("small", block.parameters_class.preset_name("default")))
        if name in block.parameters_class.presets()
    ]
    queue, orizuru = find("stream.queue"), find("kllm.orizuru")
    some = configurations("all", ["deep", "large"])
    assert (queue, "large") in some and (orizuru, "deep") in some
    assert (queue, "deep") not in some and (orizuru, "large") not in some
    with pytest.raises(ParameterError, match="preset must be one of small, default, .*'huge'"):
        configurations("all", ["huge"])


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_every_port_says_what_it_carries(block: Block):
    component = block.create(block.parameters_class.preset("first"))
    assert [name for name, port in component.ports().items() if not port.words] == []
