"""Blocks that a page runs: which there are, and what the page needs to know of each.

A block's file is a script, so that the page works from a plain folder: it adds to ``liveBlocks``
the block's description and its WebAssembly.
"""

import base64
import dataclasses
import json
from typing import Any

from hw.catalogue import find
from hw.parameters import ParameterError
from hw.ports import list_ports
from sim.core import payload
from sim.core.design import Design, generate, with_streams
from sim.core.stimulus import Stimulus
from sim.drivers.live.module import compile_module
from sim.drivers.run import load_testbench, load_trace

SEED = 1


@dataclasses.dataclass(frozen=True)
class LiveBlock:
    """A configuration that runs in a page.

    preset
        A preset's name, or ``first``.
    vectors
        Transactions of the shipped recording of SmolLM2: few enough to follow them.
    """

    name: str
    vectors: int
    preset: str = "first"


LIVE = (
    LiveBlock("kllm.orizuru", 8),
    LiveBlock("topick.rpdu", 64, "pipelined"),  # the first preset is combinational
    LiveBlock("unicaim.topk_sense", 8),
    LiveBlock("veda.voting_engine", 48),
    LiveBlock("lad.apid", 12),
)


def prepared(live: LiveBlock) -> tuple[Design, Stimulus]:
    """The design, and its testbench's stimulus from recorded data.

    :raises ParameterError: if a page could not run the block: it has no clock, or a memory.
    """
    block = find(live.name)
    preset = block.parameters_class.preset_name(live.preset)
    parameters = block.parameters_class.preset(preset)
    stimulus = load_testbench(block).stimulus(parameters, load_trace(None), live.vectors, SEED)
    if stimulus.memories:
        raise ParameterError(f"{live.name} has a memory, which a page does not model")
    design = generate(block, parameters)
    if not design.clocked:
        raise ParameterError(f"{live.name} has no clock in preset {preset}, so no cycles to show")
    return design, stimulus


def description(design: Design, stimulus: Stimulus) -> dict[str, Any]:
    """What a page knows of a design beside its WebAssembly, as JSON.

    ``streams`` has each stream's payload in the sidecar's words and its beats as hexadecimal
    numbers: of inputs the beats to send, of outputs the golden model's. ``cycles`` is the formula's
    number for a run without stalls.
    """
    block, parameters = design.block, design.parameters
    component = with_streams(block.create(parameters), design.module)
    ports = {port["name"]: port for port in list_ports(component, ["clk", "rst"])}

    def stream(name: str, direction: str, beats) -> dict[str, Any]:
        port = ports[f"{name}__payload"]
        fields = port.get("fields") or [{**port, "name": "", "offset": 0}]
        values = [f"{value:x}" for value in payload.to_ints(beats)]
        return {
            "name": name,
            "direction": direction,
            "description": port.get("description", ""),
            "fields": fields,
            "beats": values,
        }

    return {
        "block": block.name,
        "module": design.module,
        "timeout": design.timeout_cycles,
        "drain": design.drain_cycles,
        "cycles": stimulus.cycles,
        "streams": [
            *(stream(name, "input", stimulus.inputs[name]) for name in design.inputs),
            *(stream(name, "output", stimulus.outputs[name]) for name in design.outputs),
        ],
    }


def script(about: dict[str, Any], module: bytes) -> str:
    """The file of a block, for a page to load."""
    entry = json.dumps({**about, "wasm": base64.b64encode(module).decode()})
    name = json.dumps(about["block"])
    return f"globalThis.liveBlocks = {{ ...globalThis.liveBlocks, {name}: {entry} }};\n"


def scripts() -> dict[str, str]:
    """The file of each block by its name.

    :raises NoCompiler: without Zig's compiler.
    """
    made = {}
    for live in LIVE:
        design, stimulus = prepared(live)
        made[live.name] = script(description(design, stimulus), compile_module(design))
    return made
