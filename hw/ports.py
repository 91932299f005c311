# amaranth: UnusedElaboratable=no
# (a signature's ports are also created only to read their names)
"""A component's ports in the order in which the Verilog and the sidecar list them."""

from amaranth.hdl import Shape
from amaranth.lib import wiring

from hw.layout import fields, layout_of, shape_as_json

CLOCKS = ("clk", "rst")
STREAM = ("valid", "ready", "payload")


def ordered_ports(signature: wiring.Signature) -> list[tuple[str, wiring.Member]]:
    """Verilog name and member of each port: inputs, then outputs, otherwise as declared.

    The three ports of a stream stay together, as valid, ready and payload; a stream whose payload
    is an input stands among the inputs.
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


def list_ports(signature: wiring.Signature, clocks: list[str]) -> list[dict]:
    """Name, direction, width, sign and number format of each port, clock and reset first.

    A port that holds a structure has ``fields`` in place of a format, see
    :meth:`hw.layout.Field.as_json`. Elements of an array are one entry.
    """
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
        ports.append(port)
    return ports
