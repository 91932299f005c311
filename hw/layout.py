"""Payload layouts: number formats of fields, and the position of each field.

A field's shape may state what its bits mean, for the JSON sidecar, the Verilog comments and
``hw show``. Hardware reads such a field as a plain value, unsigned or signed::

    class Entry(data.Struct):
        value: FP16  # of hw.arith.float_format
        limit: FixedPoint(signed(20), fraction=8)
        row: index(range(512))
        last: FLAG

    >>> [(f.name, f.offset, f.width, f.format) for f in fields(data.ArrayLayout(index(4), 3))]
    [('[]', 0, 4, 'index')]

A field without a format reads ``unsigned``, ``signed``, ``bit`` or ``enum``.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Const, Format, Shape, ShapeCastable, Value, unsigned
from amaranth.lib import data, enum


class NumberFormat(ShapeCastable, abc.ABC):
    """Base of shapes that name their number format. A value of such a shape is a plain ``Value``.

    Subclasses are frozen dataclasses, so that equal formats build equal (shared) hardware.
    """

    @property
    @abc.abstractmethod
    def format_name(self) -> str:
        """The ``format`` of a field in the sidecar."""

    @property
    def width(self) -> int:
        return Shape.cast(self).width

    @property
    def signed(self) -> bool:
        return Shape.cast(self).signed

    @abc.abstractmethod
    def as_shape(self) -> Shape:
        """Width and sign of the bits."""

    def __call__(self, value) -> Value:
        value = Value.cast(value)
        if value.shape().signed == self.signed:
            # A cast would hide the signal, and with it the name that the Verilog should have.
            return value  # a signal itself
        return value.as_signed() if self.signed else value.as_unsigned()

    def const(self, init) -> Const:
        return Const(Const.cast(0 if init is None else init).value, Shape.cast(self))

    def from_bits(self, raw: int) -> int:
        return Const(raw, Shape.cast(self)).value

    def format(self, value, spec: str) -> Format:
        return Format(f"{{:{spec}}}", Value.cast(value))


@dataclasses.dataclass(frozen=True)
class Integer(NumberFormat):
    """An integer and its meaning, one word. See :func:`index`, :func:`count` and others below.

    shape
        Width and sign, as for a ``Signal``: ``8``, ``signed(8)``, ``range(100)``.
    """

    meaning: str
    shape: Shape

    def __post_init__(self):
        # A range or a width becomes a shape at once, so that equal formats compare equal.
        object.__setattr__(self, "shape", Shape.cast(self.shape))

    @property
    def format_name(self) -> str:
        return self.meaning

    def as_shape(self) -> Shape:
        return self.shape


@dataclasses.dataclass(frozen=True)
class FixedPoint(NumberFormat):
    """A number of value ``bits / 2**fraction``, unsigned or two's complement as `shape` says."""

    shape: Shape
    fraction: int

    def __post_init__(self):
        object.__setattr__(self, "shape", Shape.cast(self.shape))

    @property
    def format_name(self) -> str:
        return "fixed"

    def as_shape(self) -> Shape:
        return self.shape


def index(shape) -> Integer:
    """Number of an entry in a table, codebook or array."""
    return Integer("index", shape)


def position(shape) -> Integer:
    """Place of an element in a vector, row, column or sequence of tokens."""
    return Integer("position", shape)


def address(shape) -> Integer:
    """Address of a word in a memory."""
    return Integer("address", shape)


def count(shape) -> Integer:
    """How many of something."""
    return Integer("count", shape)


def integer(shape) -> Integer:
    """A number as such: unsigned or, with a signed shape, two's complement."""
    return Integer("integer", shape)


def mask(shape) -> Integer:
    """One independent bit for each of several things; bit 0 for the first."""
    return Integer("mask", shape)


def one_hot(shape) -> Integer:
    """Like a mask of which exactly one bit is set."""
    return Integer("one_hot", shape)


FLAG = Integer("flag", unsigned(1))
"""True or false."""


@dataclasses.dataclass(frozen=True)
class Array:
    """Elements of an array that a field is part of.

    count
        Number of elements.
    stride
        Bits from one element to the next.
    """

    count: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Field:
    """A leaf field of a payload.

    name
        Path with dots, ``pair.value``; ``[]`` is any element of an array. Empty if the
        payload is a plain number.
    offset
        Lowest bit, in element 0 of each array.
    shape
        As declared: a plain shape, a :class:`NumberFormat` or an enumeration.
    arrays
        For each ``[]`` of the name, from left to right.
    """

    name: str
    offset: int
    shape: object
    arrays: tuple[Array, ...] = ()

    @property
    def width(self) -> int:
        return Shape.cast(self.shape).width

    @property
    def signed(self) -> bool:
        return Shape.cast(self.shape).signed

    @property
    def format(self) -> str:
        return format_of(self.shape)

    def as_json(self) -> dict:
        """The field's entry in the sidecar."""
        arrays = {"arrays": [dataclasses.asdict(array) for array in self.arrays]}
        return {
            "name": self.name,
            "offset": self.offset,
            **shape_as_json(self.shape),
            **(arrays if self.arrays else {}),
        }


def shape_as_json(shape) -> dict:
    """Width, sign and format of a plain number, with ``fraction_bits`` or an enum's ``values``."""
    cast = Shape.cast(shape)
    entry = {"width": cast.width, "signed": cast.signed, "format": format_of(shape)}
    if isinstance(shape, FixedPoint):
        entry["fraction_bits"] = shape.fraction
    if isinstance(shape, enum.EnumType):
        members: list[Any] = list(shape)
        entry["values"] = {member.name: Const.cast(member).value for member in members}
    return entry


def format_of(shape) -> str:
    """Name of the number format of a plain shape."""
    if isinstance(shape, NumberFormat):
        return shape.format_name
    if isinstance(shape, enum.EnumType):
        return "enum"
    cast = Shape.cast(shape)
    if cast.signed:
        return "signed"
    return "bit" if cast.width == 1 else "unsigned"


def format_words(entry: dict) -> str:
    """The format in a sidecar's entry for people: ``signed fixed point, 8 fraction bits``.

    Empty for plain bits, and for a structure, whose fields have the formats.
    """
    name = entry.get("format", "bit")
    if name in ("bit", "unsigned", "signed"):
        return "signed" if name == "signed" else ""
    if name == "enum":
        return "enum " + ", ".join(f"{value} {key}" for key, value in entry["values"].items())
    sign = "signed " if entry["signed"] else ""
    if name == "fixed":
        return f"{sign or 'unsigned '}fixed point, {entry['fraction_bits']} fraction bits"
    return sign + name


def field_words(field: dict) -> str:
    """A field's entry in the sidecar as one line: ``[15:0] values[0] to values[3], every 16
    bits, fp16``."""
    low, high = field["offset"], field["offset"] + field["width"] - 1
    first = last = field["name"]
    arrays = field.get("arrays", ())
    for array in arrays:
        first = first.replace("[]", "[0]", 1)
        last = last.replace("[]", f"[{array['count'] - 1}]", 1)
    name = first
    if first != last:
        strides = " and ".join(str(a["stride"]) for a in arrays if a["count"] > 1)
        name = f"{first} to {last}, every {strides} bits"
    at = {0: "no bits:", 1: f"[{low}]"}.get(field["width"], f"[{high}:{low}]")
    return ", ".join(filter(None, [f"{at} {name}", format_words(field)]))


def fields(
    shape, name: str = "", offset: int = 0, arrays: tuple = (), *, each: bool = False
) -> Iterator[Field]:
    """Leaf fields of a payload's shape in the order of their declaration, lowest bit first.

    each
        List the elements of arrays one by one, as ``values[0]``, ``values[1]``..., instead of as
        one field ``values[]``.
    """
    layout = layout_of(shape)
    if layout is None:
        yield Field(name, offset, shape, arrays)
    elif isinstance(layout, data.ArrayLayout) and not each:
        element = layout.elem_shape
        # One entry stands for all elements: a row of 128 numbers is a line of the sidecar, not 128.
        inner = (*arrays, Array(layout.length, Shape.cast(element).width))
        yield from fields(element, f"{name}[]", offset, inner)
    else:
        for key, field in layout:
            path = f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}".lstrip(".")
            yield from fields(field.shape, path, offset + field.offset, arrays, each=each)


def layout_of(shape) -> data.Layout | None:
    """The layout of a structure or array, also of a ``data.Struct``; None if plain."""
    # A `data.Struct` wraps its layout, perhaps in several layers.
    while isinstance(shape, ShapeCastable) and not isinstance(shape, data.Layout):
        shape = shape.as_shape()
    return shape if isinstance(shape, data.Layout) else None
