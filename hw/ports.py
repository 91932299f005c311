# amaranth: UnusedElaboratable=no
# (a signature's ports are also created only to read their names)
"""A component's ports: how a block declares them, and the order in which the Verilog lists them.

A block's :meth:`hw.component.Component.ports` is the one place where its ports are written: name,
direction, shape and meaning. The signature, ``hw show``, the Verilog's comments and the sidecar
follow from it.
"""

import dataclasses
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.docstrings import plain
from hw.layout import fields, layout_of, shape_as_json

CLOCKS = ("clk", "rst")
STREAM = ("valid", "ready", "payload")


@dataclasses.dataclass(frozen=True)
class Port:
    """A port of a block, or a stream of three.

    member
        Direction and shape, as Amaranth has them.
    words
        What it carries, in one or a few sentences.
    """

    member: wiring.Member
    words: str = ""

    def array(self, *dimensions: int) -> "Port":
        """As many of them; ``port[0]`` is the first one's attribute, ``port__0`` its name."""
        return Port(self.member.array(*dimensions), self.words)


Ports = dict[str, Port]
"""A block's ports by name, in the order of their declaration."""


def wire_in(shape: Any, words: str = "", *, init: int | None = None) -> Port:
    """An input; `init` is its value where a parent leaves it unconnected."""
    return Port(In(shape, init=init), words)  # type: ignore[call-arg]  # stubs lack init


def wire_out(shape: Any, words: str = "", *, init: int | None = None) -> Port:
    """An output; `init` is the first value of a register that drives it."""
    return Port(Out(shape, init=init), words)  # type: ignore[call-arg]  # stubs lack init


def stream_in(payload: Any, words: str = "") -> Port:
    """A stream into the block; a mapping of names to shapes is a structure."""
    return Port(In(stream.Signature(_shape(payload))), words)


def stream_out(payload: Any, words: str = "") -> Port:
    """A stream out of the block; a mapping of names to shapes is a structure."""
    return Port(Out(stream.Signature(_shape(payload))), words)


def _shape(payload: Any) -> Any:
    return data.StructLayout(payload) if isinstance(payload, dict) else payload


def ordered_ports(signature: wiring.Signature) -> list[tuple[str, wiring.Member]]:
    """Verilog name and member of each port: inputs, then outputs, otherwise as declared.

    The three ports of a stream are together, as valid, ready and payload; a stream whose payload is
    an input is among the inputs.
    """
    groups: dict[str, dict[str, wiring.Member]] = {}
    for path, member, _ in signature.flatten(signature.create()):
        name = "__".join(map(str, path))
        group = stream_of(name) or name
        groups.setdefault(group, {})[name] = member  # type: ignore[assignment]  # stubs say Flow
    ordered = []
    for members in groups.values():
        names = sorted(members, key=_within_stream)
        # Valid and payload go one way; ready comes back.
        forward = members[names[0]].flow
        ordered.append((forward is not wiring.In, [(name, members[name]) for name in names]))
    ordered.sort(key=lambda entry: entry[0])
    return [port for _, ports in ordered for port in ports]


def _within_stream(name: str) -> int:
    return STREAM.index(name.rpartition("__")[2]) if stream_of(name) else 0


def stream_of(name: str) -> str:
    """The stream that a port belongs to, by its name: ``i`` of ``i__payload``; else empty."""
    stream, _, part = name.rpartition("__")
    return stream if part in STREAM else ""


def list_ports(component: wiring.Component, clocks: list[str]) -> list[dict]:
    """Name, direction, width, sign and number format of each port, clock and reset first.

    A port that holds a structure has ``fields`` in place of a format, see
    :meth:`hw.layout.Field.as_json`. Elements of an array are one entry. A port, and of a stream
    the payload, has its declaration's words as ``description``.
    """
    signature = component.signature
    words = descriptions(component)
    ports: list[dict] = [
        {"name": name, "direction": "input", "width": 1, "signed": False, "format": "bit"}
        for name in clocks
    ]
    for name, member in ordered_ports(signature):
        direction = "input" if member.flow is wiring.In else "output"
        port: dict = {"name": name, "direction": direction}
        if layout_of(member.shape) is None:
            port |= shape_as_json(member.shape)
        else:
            shape = Shape.cast(member.shape)
            port |= {"width": shape.width, "signed": shape.signed}
            port["fields"] = [field.as_json() for field in fields(member.shape)]
        if words.get(name):
            port["description"] = words[name]
        ports.append(port)
    return ports


def descriptions(component: wiring.Component) -> dict[str, str]:
    """What a component says of each port, and for a stream of its payload, as plain text."""
    declared: Ports = getattr(component, "ports", dict)()
    said = {}
    for path, _, _ in component.signature.flatten(component):
        name = "__".join(map(str, path))
        if path[0] in declared and (not stream_of(name) or path[-1] == "payload"):
            said[name] = " ".join(plain(declared[str(path[0])].words).split())
    return said
