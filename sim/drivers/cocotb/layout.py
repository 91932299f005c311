"""Payload fields by name, for cocotb testbenches: read from a JSON sidecar or an Amaranth shape.

Imports neither NumPy nor, for sidecars, Amaranth, so that a simulation starts fast. The vectorised
equivalent for whole stimuli is :mod:`sim.core.payload`.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Field:
    """A leaf field: `width` bits from bit `offset` on, two's complement if `signed`."""

    offset: int
    width: int
    signed: bool = False

    def pack(self, name: str, value: int) -> int:
        """The field's bits in place.

        :raises ValueError: if `value` fits neither as an unsigned nor as a signed number.
        """
        value = int(value)
        if not -(1 << self.width >> 1) <= value < 1 << self.width:
            raise ValueError(f"field {name} must fit in {self.width} bits, not be {value}")
        return (value & (1 << self.width) - 1) << self.offset

    def unpack(self, payload: int) -> int:
        bits = payload >> self.offset & (1 << self.width) - 1
        negative = self.signed and bits >> self.width - 1
        return bits - (1 << self.width) if negative else bits


class PayloadLayout:
    """The fields of a stream's payload, by dotted path: ``k``, ``max.value``, ``values[0]``.

    A payload that is a plain number has the single field ``payload``.

    >>> layout = PayloadLayout({"values[0]": Field(0, 4), "values[1]": Field(4, 4, signed=True)})
    >>> hex(layout.pack({"values": [5, -1]}))
    '0xf5'
    >>> layout.unpack(0xF5)
    {'values[0]': 5, 'values[1]': -1}
    """

    def __init__(self, fields: Mapping[str, Field]):
        self.fields = dict(fields)

    @classmethod
    def from_shape(cls, shape) -> "PayloadLayout":
        """From an Amaranth shape: ``component.i.payload.shape()``, a ``data.Struct``, ``8``."""
        from hw.layout import fields

        leaves = fields(shape, each=True)
        return cls({f.name or "payload": Field(f.offset, f.width, f.signed) for f in leaves})

    @classmethod
    def from_port(cls, port: Mapping) -> "PayloadLayout":
        """From a payload's entry among the ``ports`` of a JSON sidecar."""
        found = {}
        for entry in port.get("fields", [{**port, "name": "", "offset": 0}]):
            for name, offset in _elements(entry):
                found[name or "payload"] = Field(offset, entry["width"], entry["signed"])
        return cls(found)

    def pack(self, values: Mapping[str, int | Iterable[int]]) -> int:
        """The payload with these fields; others are 0. An array may be given whole, by its name.

        :raises KeyError: for a field that there is not.
        :raises ValueError: for a value too large for its field.
        """
        payload = 0
        for path, value in values.items():
            if isinstance(value, Iterable):
                items = {f"{path}[{number}]": item for number, item in enumerate(value)}
            else:
                items = {path: value}
            for name, item in items.items():
                if name not in self.fields:
                    raise KeyError(f"no field {name}, only {', '.join(self.fields)}")
                payload |= self.fields[name].pack(name, item)
        return payload

    def unpack(self, payload: int) -> dict[str, int]:
        """Every leaf field's value, negative only for signed fields."""
        return {name: field.unpack(payload) for name, field in self.fields.items()}

    def span(self, path: str) -> tuple[int, int]:
        """Lowest bit and width of a field, or of all fields of a structure or array.

        ``payload`` means all of a payload that has no such field.

        :raises KeyError: if there is no such field.
        """
        below = (f"{path}.", f"{path}[")
        found = [f for name, f in self.fields.items() if name == path or name.startswith(below)]
        if path == "payload" and not found:
            found = list(self.fields.values())
        if not found:
            raise KeyError(f"no field {path}, only {', '.join(self.fields)}")
        start = min(field.offset for field in found)
        return start, max(field.offset + field.width for field in found) - start


def read_layouts(sidecar: Path | str) -> dict[str, PayloadLayout]:
    """Stream name to payload layout, of a JSON sidecar that ``python -m hw verilog`` wrote."""
    ports = json.loads(Path(sidecar).read_text())["ports"]
    streams = {port["name"].removesuffix("__payload"): port for port in ports}
    return {
        name: PayloadLayout.from_port(port)
        for name, port in streams.items()
        if port["name"].endswith("__payload")
    }


def _elements(entry: Mapping) -> Iterator[tuple[str, int]]:
    """Name and offset of each element of a sidecar's field, ``values[]`` as ``values[0]``..."""
    arrays = entry.get("arrays", ())
    for numbers in itertools.product(*(range(array["count"]) for array in arrays)):
        name, offset = entry["name"], entry["offset"]
        for number, array in zip(numbers, arrays, strict=True):
            name = name.replace("[]", f"[{number}]", 1)
            offset += number * array["stride"]
        yield name, offset
