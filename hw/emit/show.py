# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""What `python -m hw show` says of one block: its parameters, ports and latency."""

import collections
import dataclasses
import re
import textwrap

from hw.arith.datapath import Datapath
from hw.catalogue import Block
from hw.docstrings import contract, latency_words, meaning, plain
from hw.emit import contracts
from hw.emit.export import module_name
from hw.layout import field_words, format_words
from hw.parameters import ParameterError, Parameters
from hw.ports import list_ports

PROBES = {int: (-1, 0, 1, 3, 1 << 20), str: ("?",), bool: ()}
"""Values of each type that most parameters refuse, with the rule as the reason."""


def describe(block: Block, preset: str, parameters: Parameters) -> dict:
    """All there is to know before the first Verilog, JSON-serialisable.

    ``ports``, ``streams`` and ``memories`` are as in the sidecar, ``contracts`` is their rules in
    words; of a parameter, ``rules`` are the reasons for which values
    around it are refused, with the others as in `parameters`.
    """
    component = block.create(parameters)
    clocks = ["clk", "rst"]
    if isinstance(component, Datapath):
        clocks = ["clk"] if parameters.latency else []
    ports = list_ports(component, clocks)
    return {
        "block": block.name,
        "summary": block.summary,
        "source": block.source,
        "description": contract(type(component)),
        "preset": preset,
        "module": module_name(block, parameters),
        "latency": parameters.latency,
        "latency_is": latency_words(type(parameters)),
        "parameters": [_parameter(block, parameters, f) for f in dataclasses.fields(parameters)],
        "ports": ports,
        "contracts": contracts.paragraphs(ports, parameters),
        **contracts.as_json(ports, parameters),
    }


def _parameter(block: Block, parameters: Parameters, field: dataclasses.Field) -> dict:
    value = getattr(parameters, field.name)
    presets = block.parameters_class.presets()
    return {
        "name": field.name,
        "type": type(value).__name__,
        "value": value,
        "default": field.default,
        "presets": {name: getattr(preset, field.name) for name, preset in presets.items()},
        "rules": rules(parameters, field.name),
        "description": plain(meaning(type(parameters), field.name)),
    }


def rules(parameters: Parameters, name: str) -> list[str]:
    """What a parameter must be, as its own checks say when probed with values around its range."""
    found: dict[str, None] = {}
    # The rules are not written down twice: the checks' own messages say them.
    for probe in PROBES[type(getattr(parameters, name))]:
        try:
            dataclasses.replace(parameters, **{name: probe})
        except ParameterError as error:
            found[str(error).rpartition(", not ")[0]] = None
    own = [rule for rule in found if rule.startswith(f"{name} must")]
    # A rule of another parameter may name the probe itself, which says nothing: then it differs
    # from probe to probe.
    words = collections.Counter(re.sub(r"-?\d+", "", rule) for rule in found)
    once = [rule for rule in found if words[re.sub(r"-?\d+", "", rule)] == 1]
    return own or [rule for rule in once if " = " not in rule]


def text(entry: dict) -> str:
    """The same for people."""
    parts = [f"{entry['block']}: {entry['summary']} ({entry['source']})", entry["description"]]
    lines = [f"Parameters (preset {entry['preset']}, module {entry['module']}):"]
    for parameter in entry["parameters"]:
        lines.append(f"  {parameter['name']} = {_value(parameter['value'])}")
        said = [
            f"{parameter['type']}, default {_value(parameter['default'])}",
            *parameter["rules"],
        ]
        others = [f"{name} {_value(value)}" for name, value in parameter["presets"].items()]
        lines += _wrapped("; ".join(said)) + _wrapped(parameter["description"])
        lines += _wrapped(f"presets: {', '.join(others)}")
    parts.append("\n".join(lines))
    cycles = "cycle" if entry["latency"] == 1 else "cycles"
    parts.append(textwrap.fill(f"Latency: {entry['latency']} {cycles}. {entry['latency_is']}", 100))
    lines = ["Ports:"]
    widest = max(len(port["name"]) for port in entry["ports"])
    for port in entry["ports"]:
        bits = f"{port['width']} bit{'s' if port['width'] != 1 else ''}"
        lines.append(f"  {port['name']:{widest}}  {port['direction']:6}  {bits}{_format(port)}")
        lines += _wrapped(port.get("description", ""))
        lines += [f"      {field_words(field)}" for field in port.get("fields", ())]
    parts.append("\n".join(lines))
    parts += [textwrap.fill(paragraph, 100) for paragraph in entry["contracts"]]
    return "\n\n".join(part for part in parts if part)


def markdown(entry: dict) -> str:
    """The same as a page of Markdown, with a table for each payload."""
    cycles = "cycle" if entry["latency"] == 1 else "cycles"
    parts = [
        f"# {entry['block']}",
        f"{entry['summary']} ({entry['source']}).",
        f"Module `{entry['module']}`, preset `{entry['preset']}`.",
        *_paragraphs(entry["description"]),
        "## Parameters",
        _table(
            ("parameter", "value", "meaning", "presets"),
            [
                (f"`{p['name']}`", _value(p["value"]), p["description"], _presets(p))
                for p in entry["parameters"]
            ],
        ),
        "## Latency",
        f"{entry['latency']} {cycles}. {entry['latency_is']}",
        "## Ports",
        _table(
            ("port", "direction", "bits", "format", "meaning"),
            [
                (
                    f"`{p['name']}`",
                    p["direction"],
                    p["width"],
                    _format_or_fields(p),
                    p.get("description", ""),
                )
                for p in entry["ports"]
            ],
        ),
    ]
    if entry["contracts"]:
        parts += ["## Rules", *entry["contracts"]]
    for port in entry["ports"]:
        if fields := port.get("fields"):
            parts.append(f"### Fields of `{port['name']}`")
            rows = [(f"`{f['name']}`", *_places(f), format_words(f) or f["format"]) for f in fields]
            parts.append(_table(("field", "bits", "elements", "every", "format"), rows))
    return "\n\n".join(parts)


def _paragraphs(description: str) -> list[str]:
    """A docstring in Markdown: drawings stay indented, examples become code."""
    found = []
    for part in re.split(r"\n{2,}(?! )", description.replace("Examples\n--------\n", "")):
        part = re.sub(r"^::\n+", "", part)
        if part.startswith(">>>"):
            part = f"```python\n{part}\n```"
        found.append(re.sub(r"::(?=\n\n    )", ":", part))
    return found


def _presets(parameter: dict) -> str:
    return ", ".join(f"{name} {_value(x)}" for name, x in parameter["presets"].items())


def _format_or_fields(port: dict) -> str:
    return "fields below" if "fields" in port else format_words(port) or port["format"]


def _places(field: dict) -> tuple[str, str, str]:
    """Bits of a field, or of the first element of an array; numbers of elements; strides."""
    low, high = field["offset"], field["offset"] + field["width"] - 1
    arrays = field.get("arrays", ())
    counts = " x ".join(str(array["count"]) for array in arrays)
    strides = ", ".join(f"{array['stride']} bits" for array in arrays)
    return f"{high}:{low}" if high > low else str(low), counts, strides


def _table(titles: tuple, rows: list[tuple]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _value(value) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value) or '""'


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(
        " ".join(words.split()), 96, initial_indent=6 * " ", subsequent_indent=6 * " "
    )


def _format(entry: dict) -> str:
    words = format_words(entry)
    return f", {words}" if words else ""
