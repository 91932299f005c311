# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""What `python -m hw show` says of one block: its parameters, ports and latency."""

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap

from hw.arith.datapath import Datapath
from hw.catalogue import Block
from hw.export import list_ports, module_name
from hw.layout import format_words
from hw.parameters import ParameterError, Parameters

PROBES = {int: (-1, 0, 1, 3, 1 << 20), str: ("?",), bool: ()}
"""Values of each type that most parameters refuse, with the rule as the reason."""


def describe(block: Block, preset: str, parameters: Parameters) -> dict:
    """All there is to know before the first Verilog, JSON-serialisable.

    ``ports`` is as in the sidecar; of a parameter, ``rules`` are the reasons for which values
    around it are refused, with the others as in `parameters`.
    """
    component = block.create(parameters)
    clocks = ["clk", "rst"]
    if isinstance(component, Datapath):
        clocks = ["clk"] if parameters.latency else []
    return {
        "block": block.name,
        "summary": block.summary,
        "source": block.source,
        "description": _plain(_contract(type(component))),
        "preset": preset,
        "module": module_name(block, parameters),
        "latency": parameters.latency,
        "latency_is": _plain(inspect.getdoc(type(parameters).latency) or _LATENCY),
        "parameters": [_parameter(block, parameters, f) for f in dataclasses.fields(parameters)],
        "ports": list_ports(component.signature, clocks),
    }


_LATENCY = inspect.getdoc(Parameters.latency)


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
        "description": _plain(meaning(type(parameters), field.name)),
    }


def rules(parameters: Parameters, name: str) -> list[str]:
    """What a parameter must be, as its own checks say when probed with values around its range."""
    found = {}
    for probe in PROBES[type(getattr(parameters, name))]:
        try:
            dataclasses.replace(parameters, **{name: probe})
        except ParameterError as error:
            found[str(error).rpartition(", not ")[0]] = None
    own = [rule for rule in found if rule.startswith(f"{name} must")]
    # A rule of another parameter may name the probe itself, which says nothing.
    return own or [rule for rule in found if " = " not in rule]


def meaning(parameters_class: type, name: str) -> str:
    """A parameter's words in its class's docstring, or in the one that this refers to."""
    unresolved = ""
    for cls in parameters_class.__mro__:
        found = _entry(inspect.cleandoc(cls.__dict__.get("__doc__") or ""), name)
        if not found:
            continue
        reference = re.match(r"(?:.* )?(?:[Aa]s (?:in|for)|See)\b(?: :class:`([\w.]+)`)?", found)
        if reference is None:
            return found
        unresolved = unresolved or found
        if reference[1] and (words := meaning(_resolve(reference[1], cls), name)):
            return words
    return unresolved


def _entry(docstring: str, name: str) -> str:
    """The indented text under a line of names, or a first sentence that begins with names."""
    names = r"\w+(?:(?:, | and )\w+)*"
    for match in re.finditer(rf"^({names})\n((?:    .*\n?|\n(?=    ))+)", docstring, re.M):
        if name in re.findall(r"\w+", match[1]):
            return textwrap.dedent(match[2]).strip()
    first = re.match(rf"({names}) (as in :class:`[\w.]+`)", docstring)
    return first[2] if first and name in re.findall(r"\w+", first[1]) else ""


def _resolve(name: str, cls: type) -> type:
    """A class that a docstring of `cls` names; `object` where it names no class."""
    module, _, bare = name.rpartition(".")
    home = importlib.import_module(module) if module else sys.modules[cls.__module__]
    return getattr(home, bare, object)


def _contract(cls: type) -> str:
    """A component's docstring without the sections on its members and arguments."""
    return re.split(r"\n+(?:Members|Parameters|Attributes)\n-+\n", inspect.getdoc(cls) or "")[0]


def _plain(text: str) -> str:
    """Text without the markup of docstrings."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    return re.sub(r"`+([^`]*)`+", r"\1", text).strip()


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
    meant = " ".join(entry["latency_is"].split())
    parts.append(textwrap.fill(f"Latency: {entry['latency']} {cycles}. {meant}", 100))
    lines = ["Ports:"]
    widest = max(len(port["name"]) for port in entry["ports"])
    for port in entry["ports"]:
        bits = f"{port['width']} bit{'s' if port['width'] != 1 else ''}"
        lines.append(f"  {port['name']:{widest}}  {port['direction']:6}  {bits}{_format(port)}")
        lines += map(_field, port.get("fields", ()))
    parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part)


def _value(value) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value) or '""'


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(
        " ".join(words.split()), 96, initial_indent=6 * " ", subsequent_indent=6 * " "
    )


def _field(field: dict) -> str:
    low, high = field["offset"], field["offset"] + field["width"] - 1
    first, last = field["name"], field["name"]
    arrays = field.get("arrays", ())
    for array in arrays:
        first = first.replace("[]", "[0]", 1)
        last = last.replace("[]", f"[{array['count'] - 1}]", 1)
    name = first
    if first != last:
        strides = " and ".join(str(a["stride"]) for a in arrays if a["count"] > 1)
        name = f"{first} to {last}, every {strides} bits"
    at = f"[{high}:{low}]" if high >= low else "no bits:"
    return f"      {at} {name}{_format(field)}"


def _format(entry: dict) -> str:
    words = format_words(entry)
    return f", {words}" if words else ""
