"""What a page of live blocks is given: beats of the golden models; one sentence for mistakes."""

import json

import numpy as np
import pytest

from golden.kllm.orizuru import pop_order
from golden.topick.rpdu import prune
from hw.parameters import ParameterError
from sim.commands import site
from sim.core import payload
from sim.core.tools import ROOT
from sim.drivers.live import blocks, module
from sim.drivers.live.blocks import LIVE, LiveBlock

NAMES = [live.name for live in LIVE]


@pytest.fixture(scope="module", params=LIVE, ids=NAMES)
def made(request):
    """A block's design and stimulus, and its description as the page reads it."""
    design, stimulus = blocks.prepared(request.param)
    about = json.loads(json.dumps(blocks.description(design, stimulus)))
    return design, stimulus, about


def beats(about, name: str) -> list[int]:
    [stream] = [stream for stream in about["streams"] if stream["name"] == name]
    return [int(beat, 16) for beat in stream["beats"]]


def fields(about, name: str) -> dict[str, np.ndarray]:
    """Fields of a stream's beats, cut out as live.js does: ``[beats, elements]``."""
    [stream] = [stream for stream in about["streams"] if stream["name"] == name]
    found = {}
    for field in stream["fields"]:
        offsets = [field["offset"]]
        for array in field.get("arrays", ()):
            offsets = [at + i * array["stride"] for at in offsets for i in range(array["count"])]
        mask = (1 << field["width"]) - 1
        rows = [[beat >> at & mask for at in offsets] for beat in beats(about, name)]
        found[field["name"]] = np.array(rows)
    return found


def test_beats_are_the_testbench_s(made):
    design, stimulus, about = made
    directions = {stream["name"]: stream["direction"] for stream in about["streams"]}
    assert directions == dict.fromkeys(design.inputs, "input") | dict.fromkeys(
        design.outputs, "output"
    )
    for name, packed in (stimulus.inputs | stimulus.outputs).items():
        assert beats(about, name) == payload.to_ints(packed)
    assert about["cycles"] == stimulus.cycles


def test_fields_are_the_payloads(made):
    design, stimulus, about = made
    for name, shape in (design.inputs | design.outputs).items():
        leaves = payload.unpack(shape, (stimulus.inputs | stimulus.outputs)[name])
        columns = np.concatenate([*fields(about, name).values()], axis=1)
        expected = np.stack([*leaves.values()], axis=1)
        assert np.array_equal(np.sort(columns, axis=1), np.sort(expected, axis=1))


def test_expected_pairs_are_the_golden_model_s():
    about = blocks.description(*blocks.prepared(LIVE[NAMES.index("kllm.orizuru")]))
    values = fields(about, "i")["values[]"].astype(np.uint16).view(np.float16).reshape(-1, 16)
    wanted, got = pop_order(values, np.ones(values.shape, bool), 16), fields(about, "o")
    for end in ("max", "min"):
        assert got[f"{end}.index"].ravel().tolist() == wanted[f"{end}_index"].ravel().tolist()


def test_expected_decisions_are_the_golden_model_s():
    design, stimulus = blocks.prepared(LIVE[NAMES.index("topick.rpdu")])
    about = blocks.description(design, stimulus)
    i, o = fields(about, "i"), fields(about, "o")
    names = ("t", "most", "threshold", "log_denominator", "known")
    t, most, threshold, denominator, known = (i[name].ravel() for name in names)
    t, denominator = ((x.astype(np.uint32)).view(np.int32).astype(int) for x in (t, denominator))
    bits = design.parameters.threshold_bits
    decided = prune(t, most, threshold, denominator, known, threshold_bits=bits)
    assert o["prune"].ravel().tolist() == decided.astype(int).tolist()
    assert 0 < decided.sum() < len(decided)


def test_a_script_adds_a_block():
    text = blocks.script({"block": "a.b", "cycles": 3}, b"\0asm")
    start = "globalThis.liveBlocks = { ...globalThis.liveBlocks, "
    assert text.startswith(start) and text.endswith(" };\n")
    name, _, entry = text[len(start) : -4].partition(": ")
    assert json.loads(name) == "a.b"
    assert json.loads(entry) == {"block": "a.b", "cycles": 3, "wasm": "AGFzbQ=="}


def test_the_page_has_every_block():
    page = (ROOT / "docs" / site.LIVE).read_text()
    assert [row[0].split('"')[3] for row in site.LIVE_ELEMENT.findall(page)] == NAMES


@pytest.mark.parametrize(
    ("live", "reason"),
    [
        (LiveBlock("topick.rpdu", 4), "topick.rpdu has no clock in preset small"),
        (LiveBlock("stream.sequential_reader", 4), "has a memory, which a page does not model"),
    ],
)
def test_a_block_that_cannot_run_is_one_sentence(live, reason):
    with pytest.raises(ParameterError, match=reason):
        blocks.prepared(live)


def test_without_the_compiler_the_site_says_so(monkeypatch, capsys):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(site, "live_files", site.live_files.__wrapped__)
    assert site.live_files() == {}
    assert capsys.readouterr().err == "the live blocks were not built: ziglang is not installed\n"
    element = '<div class="live" data-block="a.b">Old.</div>'
    text = site.with_live_blocks(element, {})
    assert "built without the compiler" in text and "script" not in text


def test_with_the_compiler_the_page_loads_the_blocks():
    element = '<div class="live" data-block="a.b">Old.</div>'
    text = site.with_live_blocks(element, ["live/a.b.js", "live/live.css", "live/live.js"])
    assert "Old" not in text
    # The blocks' files come before the script that looks for them.
    assert text.index("live/a.b.js") < text.index('src="live/live.js"')
