"""A SystemVerilog package with a packed structure for each payload.

For `i__payload` of the module `orizuru` the package `orizuru_pkg` has the type `i_t`, whose bits
and fields are the payload's: ``orizuru_pkg::i_t beat;`` drives and reads them by name. Bits of no
field are named `unused_N`, N the lowest of them. A value of an enumeration is a `localparam`,
``COMMAND_OP_SOFTMAX`` of the field `op` of the stream `command`. A field whose name is a word of
SystemVerilog has an underscore behind it.
"""

import dataclasses
import math
import re
from collections.abc import Sequence

from hw.emit.keywords import KEYWORDS

PAYLOAD = "__payload"


@dataclasses.dataclass
class _Node:
    """A field, or a structure of fields; with `dims` an array of such, count and stride of each."""

    dims: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    fields: "dict[str, _Node]" = dataclasses.field(default_factory=dict)
    offset: int = 0
    bits: int = 0
    signed: bool = False
    comment: str = ""

    @property
    def low(self) -> int:
        """The lowest bit, of the first elements of all arrays."""
        return min((of.low for of in self.fields.values()), default=self.offset)

    @property
    def element(self) -> int:
        """Bits of one element, or of all if it is no array."""
        if self.dims:
            return self.dims[-1][1]
        return self.bits or max(of.low + of.width for of in self.fields.values()) - self.low

    @property
    def width(self) -> int:
        """Bits of all elements."""
        return math.prod(count for count, _ in self.dims) * self.element


def payload_types(module: str, ports: Sequence[dict]) -> str:
    """Text of the package.

    ports
        Entries of the sidecar.
    """
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "//",
        f"// Payloads of {module}, in the order of its ports.",
        f"package {module}_pkg;",
    ]
    for port in ports:
        if port["name"].endswith(PAYLOAD) or port.get("fields"):
            lines += ["", *_typedef(port)]
    return "\n".join([*lines, "", "endpackage", ""])


def type_name(port: str) -> str:
    """Name of a port's type."""
    return f"{port.removesuffix(PAYLOAD)}_t"


def _typedef(port: dict) -> list[str]:
    root = _tree(port.get("fields") or [])
    name = port["name"].removesuffix(PAYLOAD)
    what = f": {port['description']}" if port.get("description") else ""
    lines = [f"  // {port['direction']} {name}{what}"]
    lines += _constants(name, port.get("fields") or [])
    # A payload of one number, or an array of numbers, needs no structure.
    if not root.fields:
        root = dataclasses.replace(root, bits=root.bits or port["width"])
        return [*lines, f"  typedef {_vector(root)}{type_name(port['name'])};"]
    body = _body(root, port["width"] if not root.dims else root.element, 0, "    ")
    return [
        *lines,
        "  typedef struct packed {",
        *body,
        f"  }} {_dimensions(root)}{type_name(port['name'])};",
    ]


def _tree(fields: Sequence[dict]) -> _Node:
    """The fields by the parts of their names: ``pairs[].value`` is `value` of the array `pairs`."""
    root = _Node()
    for field in fields:
        node = root
        dims = [(of["count"], of["stride"]) for of in field.get("arrays", [])]
        for part in field["name"].split("."):
            # A payload that is an array as a whole has a part without a name.
            name, arrays = re.fullmatch(r"(\w*)((?:\[\])*)", part).groups()  # type: ignore[union-attr]
            if name:
                node = node.fields.setdefault(name, _Node())
            count = len(arrays) // 2
            if count:
                node.dims, dims = dims[:count], dims[count:]
        node.offset, node.bits, node.signed = field["offset"], field["width"], field["signed"]
        node.comment = field.get("format", "")
    return root


def _body(node: _Node, bits: int, base: int, indent: str) -> list[str]:
    """Members of a structure of that many bits from `base` on, the highest first."""
    # In a packed structure the first member has the highest bits.
    lines, top = [], base + bits
    for name, field in sorted(node.fields.items(), key=lambda entry: -entry[1].low):
        end = field.low + field.width
        lines += _gap(end, top, base, indent) + _member(name, field, indent)
        top = field.low
    return lines + _gap(base, top, base, indent)


def _gap(low: int, end: int, base: int, indent: str) -> list[str]:
    """A member for bits of no field."""
    if low == end:
        return []
    return [f"{indent}logic [{end - low - 1}:0] unused_{low - base};"]


def _member(name: str, node: _Node, indent: str) -> list[str]:
    word = f"{name}_" if name in KEYWORDS else name
    if not node.fields:
        comment = f"  // {node.comment}" if node.comment else ""
        return [f"{indent}{_vector(node)}{word};{comment}"]
    body = _body(node, node.element, node.low, f"{indent}  ")
    return [f"{indent}struct packed {{", *body, f"{indent}}} {_dimensions(node)}{word};"]


def _vector(node: _Node) -> str:
    """Type of a field without fields."""
    sign = "signed " if node.signed and not node.dims else ""
    width = f"[{node.element - 1}:0] " if node.element > 1 else ""
    return f"logic {sign}{_dimensions(node)}{width}"


def _dimensions(node: _Node) -> str:
    # A space is needed before a name, and none between dimensions.
    dims = "".join(f"[{count - 1}:0]" for count, _ in node.dims)
    return f"{dims} " if dims and (node.fields or node.element == 1) else dims


def _constants(stream: str, fields: Sequence[dict]) -> list[str]:
    """Values of enumerations."""
    lines = []
    for field in fields:
        path = re.sub(r"\W+", "_", f"{stream}_{field['name']}").strip("_").upper()
        for name, value in field.get("values", {}).items():
            kind = f"logic [{field['width'] - 1}:0]"
            lines.append(f"  localparam {kind} {path}_{name} = {field['width']}'d{value};")
    return lines
