# amaranth: UnusedElaboratable=no
"""Number formats of payload fields: what they say, and that hardware does not see them."""

import doctest
import itertools

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Const, Module, Shape, Signal, Value, signed, unsigned
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw import layout
from hw.arith.float_format import BF16, FORMATS, FP16, FloatFormat
from hw.component import Component, _describe
from hw.layout import FLAG, FixedPoint, Integer, fields, format_words, index, shape_as_json
from hw.ports import Ports, stream_in, stream_out, wire_out
from sim.core import payload


class Command(enum.Enum, shape=3):
    ADD = 1
    DROP = 4


class Entry(data.Struct):
    value: FP16
    limit: FixedPoint(signed(9), fraction=4)
    row: index(range(20))
    last: FLAG


class PlainEntry(data.Struct):
    value: 16
    limit: signed(9)
    row: 5
    last: 1


PLAIN = {
    FP16: unsigned(16),
    FLAG: unsigned(1),
    index(range(20)): unsigned(5),
    layout.integer(signed(7)): signed(7),
    FixedPoint(12, fraction=3): unsigned(12),
    FixedPoint(signed(12), fraction=15): signed(12),
}


def test_the_example_in_the_docstring():
    assert doctest.testmod(layout).attempted == 1
    assert doctest.testmod(layout).failed == 0


@pytest.mark.parametrize("shape", PLAIN, ids=repr)
def test_a_value_of_a_format_is_a_plain_value(shape):
    plain = PLAIN[shape]
    assert Shape.cast(shape) == plain and (shape.width, shape.signed) == (plain.width, plain.signed)
    number = Signal(shape, init=1)
    assert type(number) is Signal and number.shape() == plain and number.init == 1
    assert Signal.like(number).shape() == plain
    view = Signal(data.StructLayout({"other": 3, "number": shape}))
    assert isinstance(view.number, Value) and view.number.shape() == plain
    assert Signal(data.ArrayLayout(shape, 4))[1].shape() == plain
    assert Const(1, shape).shape() == plain
    port = stream.Signature(shape).create()
    assert type(port.payload) is Signal and port.payload.shape() == plain
    assert stream.Signature(shape).is_compliant(port, path=("port",))


def test_constants():
    layouts = data.StructLayout({"a": signed(4), "b": layout.integer(signed(4)), "c": FP16})
    made = layouts.const({"a": -3, "b": -3, "c": 0x3C00})
    assert (made.a, made.b, made.c) == (-3, -3, 0x3C00)
    assert layouts.const({"b": Const(-3, 4)}).b == -3
    assert Signal(layouts, init={"b": -1}).as_value().init == 0xF0
    assert layouts.from_bits(0x80).b == -8
    table = memory.Memory(shape=layout.integer(signed(4)), depth=2, init=[-1, 7])
    assert list(table.init) == [-1, 7]


def test_equal_formats_make_equal_hardware():
    assert _describe((index(5), FP16)) == _describe((index(range(32)), FloatFormat(5, 10)))
    assert _describe(index(5)) != _describe(layout.count(5))
    assert data.StructLayout({"a": FP16}) == data.StructLayout({"a": 16})
    assert BF16 != FP16


def pass_on(shape):
    """RTLIL of a register for a stream of `shape`."""

    class Pass(Component[None]):
        def ports(self) -> Ports:
            return {"i": stream_in(shape), "o": stream_out(shape), "sum": wire_out(9)}

        def elaborate(self, platform):
            m = Module()
            m.d.comb += [self.i.ready.eq(self.o.ready), self.o.valid.eq(self.i.valid)]
            m.d.sync += self.o.payload.eq(self.i.payload)
            m.d.comb += self.sum.eq(self.i.payload.limit + self.i.payload.row)
            return m

    return rtlil.convert(Pass(), emit_src=False)


def test_formats_change_nothing_in_the_hardware():
    assert pass_on(Entry) == pass_on(PlainEntry)

    class Both(wiring.Component):
        i: In(stream.Signature(Entry))
        o: Out(stream.Signature(PlainEntry))

        def elaborate(self, platform):
            m = Module()
            wiring.connect(m, wiring.flipped(self.i), wiring.flipped(self.o))
            return m

    assert "payload" in rtlil.convert(Both())


def test_fields_by_hand():
    class Pair(data.Struct):
        low: FixedPoint(signed(5), fraction=2)
        command: Command

    shape = data.StructLayout({"n": 4, "m": data.ArrayLayout(data.ArrayLayout(Pair, 2), 3)})
    arrays = [{"count": 3, "stride": 16}, {"count": 2, "stride": 8}]
    assert [field.as_json() for field in fields(shape)] == [
        {"name": "n", "offset": 0, "width": 4, "signed": False, "format": "unsigned"},
        {
            "name": "m[][].low",
            "offset": 4,
            "width": 5,
            "signed": True,
            "format": "fixed",
            "fraction_bits": 2,
            "arrays": arrays,
        },
        {
            "name": "m[][].command",
            "offset": 9,
            "width": 3,
            "signed": False,
            "format": "enum",
            "values": {"ADD": 1, "DROP": 4},
            "arrays": arrays,
        },
    ]
    each = [(field.name, field.offset, field.format) for field in fields(shape, each=True)]
    assert each == [
        ("n", 0, "unsigned"),
        *itertools.chain.from_iterable(
            [
                (f"m[{i}][{k}].low", 4 + 16 * i + 8 * k, "fixed"),
                (f"m[{i}][{k}].command", 9 + 16 * i + 8 * k, "enum"),
            ]
            for i in range(3)
            for k in range(2)
        ),
    ]
    assert [name for name, _, _ in payload.fields(shape)] == [name for name, _, _ in each]
    assert payload.fields(Entry) == payload.fields(PlainEntry)


def test_names_of_formats():
    assert [shape.format_name for shape in FORMATS.values()] == list(FORMATS)
    assert FloatFormat(4, 7).format_name == "float_e4m7"
    assert FloatFormat(3, 4, infinities=False).format_name == "float_e3m4_finite"
    made = [layout.position, layout.address, layout.count, layout.integer, layout.mask]
    assert [make(3).format_name for make in made] == [make.__name__ for make in made]
    assert layout.one_hot(3) == Integer("one_hot", unsigned(3))
    assert [layout.format_of(shape) for shape in (1, 2, signed(1), range(-2, 2), Command)] == [
        "bit",
        "unsigned",
        "signed",
        "signed",
        "enum",
    ]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (1, ""),
        (9, ""),
        (signed(9), "signed"),
        (FP16, "fp16"),
        (FLAG, "flag"),
        (index(4), "index"),
        (layout.integer(signed(4)), "signed integer"),
        (FixedPoint(8, 3), "unsigned fixed point, 3 fraction bits"),
        (FixedPoint(signed(8), 30), "signed fixed point, 30 fraction bits"),
        (Command, "enum 1 ADD, 4 DROP"),
    ],
)
def test_formats_for_people(shape, words):
    assert format_words(shape_as_json(shape)) == words
