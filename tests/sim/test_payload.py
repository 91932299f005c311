"""Packing of payloads, compared with Amaranth's."""

import numpy as np
import pytest
from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data, enum
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core import payload


class Colour(enum.Enum, shape=2):
    RED = 1
    BLUE = 3


class Beat(data.Struct):
    value: signed(7)
    colour: Colour
    tags: data.ArrayLayout(3, 2)


LEAVES = st.builds(
    lambda width, sign: signed(max(1, width)) if sign else unsigned(width),
    st.integers(0, 64),
    st.booleans(),
)
NAMES = st.sampled_from(["a", "b", "value", "x1"])
LAYOUTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(data.ArrayLayout, inner, st.integers(1, 4)),
        st.builds(data.StructLayout, st.dictionaries(NAMES, inner, min_size=1, max_size=4)),
    ),
    max_leaves=6,
)


def drawn(draw, shape):
    """A value of `shape` as Amaranth takes it, and its leaves in order."""
    if isinstance(shape, data.ArrayLayout):
        parts = [drawn(draw, shape.elem_shape) for _ in range(shape.length)]
        return [part[0] for part in parts], sum((part[1] for part in parts), [])
    if isinstance(shape, data.StructLayout):
        parts = {name: drawn(draw, member) for name, member in shape.members.items()}
        return {k: part[0] for k, part in parts.items()}, sum((p[1] for p in parts.values()), [])
    low = -(1 << shape.width - 1) if shape.signed else 0
    value = draw(st.integers(low, low + (1 << shape.width) - 1))
    return value, [value]


def constant(shape, value) -> int:
    """The bits of a value by Amaranth."""
    if isinstance(shape, data.Layout):
        return shape.const(value).as_bits()
    return value & ((1 << shape.width) - 1)


@settings(max_examples=200, deadline=None)
@given(st.data(), LAYOUTS, st.integers(1, 4))
def test_pack_and_unpack_agree_with_amaranth(data_source, shape, beats):
    drawn_beats = [drawn(data_source.draw, shape) for _ in range(beats)]
    expected = [constant(shape, value) for value, _ in drawn_beats]
    leaves = payload.fields(shape)
    assert len(leaves) == len(drawn_beats[0][1])
    assert len({path for path, _, _ in leaves}) == len(leaves)
    columns = {}
    for k, (path, _, _) in enumerate(leaves):
        column = [values[k] for _, values in drawn_beats]
        columns[path] = np.array(column, np.int64 if min(column) < 0 else np.uint64)
    packed = payload.pack(shape, columns)
    assert packed.dtype == np.uint32
    assert packed.shape == (beats, max(1, -(-Shape.cast(shape).width // 32)))
    assert payload.to_ints(packed) == expected
    assert np.array_equal(payload.from_ints(expected, shape), packed)
    unpacked = payload.unpack(shape, packed)
    assert list(unpacked) == [path for path, _, _ in leaves]
    for path, _, width in leaves:
        mask = (1 << width) - 1
        assert unpacked[path].dtype == np.uint64
        assert unpacked[path].tolist() == [int(value) & mask for value in columns[path]]


@settings(max_examples=100, deadline=None)
@given(st.data(), LAYOUTS)
def test_first_difference_names_the_field_of_the_lowest_bit(data_source, shape):
    width = payload.width(shape)
    one = data_source.draw(st.integers(0, (1 << width) - 1))
    other = data_source.draw(st.integers(0, (1 << width) - 1))
    beats = payload.from_ints([one, other], shape)
    if one == other:
        with pytest.raises(ValueError, match="equal"):
            payload.first_difference(shape, *beats)
        return
    path, expected, got = payload.first_difference(shape, *beats)
    lowest = ((one ^ other) & -(one ^ other)).bit_length() - 1
    offset, bits = next((o, w) for p, o, w in payload.fields(shape) if p == path)
    assert offset <= lowest < offset + bits
    mask = (1 << bits) - 1
    assert (expected, got) == (one >> offset & mask, other >> offset & mask)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 63, 64, 65, 100, 257])
def test_integers_of_any_width(width):
    values = [0, 1, (1 << width) - 1, 1 << (width - 1), 0x5AA5 % (1 << width)]
    packed = payload.from_ints(values, unsigned(width))
    assert packed.shape == (5, -(-width // 32)) and packed.dtype == np.uint32
    assert payload.to_ints(packed) == values
    assert packed[3, -1] == 1 << ((width - 1) % 32) and not packed[3, :-1].any()
    assert payload.from_ints([], unsigned(width)).shape == (0, -(-width // 32))
    assert payload.to_ints(payload.from_ints([], unsigned(width))) == []


def test_a_field_across_three_words():
    shape = data.StructLayout({"low": 31, "wide": 64, "high": 1})
    assert payload.fields(shape) == [("low", 0, 31), ("wide", 31, 64), ("high", 95, 1)]
    packed = payload.pack(shape, {"wide": np.array([2**64 - 1], np.uint64)})
    assert packed.tolist() == [[0x8000_0000, 0xFFFF_FFFF, 0x7FFF_FFFF]]
    assert payload.unpack(shape, packed)["wide"].tolist() == [2**64 - 1]
    packed = payload.pack(shape, {"wide": np.array([1, 1 << 63], np.uint64), "high": [1, 0]})
    assert packed.tolist() == [[1 << 31, 0, 1 << 31], [0, 0, 1 << 30]]


def test_struct_classes_and_enumerations():
    assert payload.fields(Beat) == [
        ("value", 0, 7),
        ("colour", 7, 2),
        ("tags[0]", 9, 3),
        ("tags[1]", 12, 3),
    ]
    packed = payload.pack(Beat, {"value": [-1], "colour": [3], "tags[1]": [5]})
    expected = Beat.const({"value": -1, "colour": Colour.BLUE, "tags": [0, 5]})
    assert payload.to_ints(packed) == [expected.as_bits()]
    assert payload.unpack(Beat, packed)["value"].tolist() == [0x7F]


def test_arrays_may_be_given_whole():
    whole = payload.pack(Beat, {"tags": np.array([[1, 2], [3, 4], [5, 6]])})
    parts = payload.pack(Beat, {"tags[0]": np.array([1, 3, 5]), "tags[1]": np.array([2, 4, 6])})
    assert whole.tolist() == parts.tolist()
    bare = data.ArrayLayout(5, 3)
    assert [path for path, _, _ in payload.fields(bare)] == ["[0]", "[1]", "[2]"]
    nested = data.StructLayout({"rows": data.ArrayLayout(data.ArrayLayout(4, 2), 2)})
    assert [path for path, _, _ in payload.fields(nested)] == [
        *("rows[0][0]", "rows[0][1]", "rows[1][0]", "rows[1][1]")
    ]


def test_plain_shapes_are_one_field():
    for shape, width in ((8, 8), (unsigned(40), 40), (signed(3), 3), (range(9), 4), (Colour, 2)):
        assert payload.fields(shape) == [("payload", 0, width)]
    packed = payload.pack(unsigned(40), {"payload": np.array([1 << 39 | 7])})
    assert packed.tolist() == [[7, 1 << 7]]


def test_unions_share_their_bits():
    shape = data.UnionLayout({"word": 16, "low": 8})
    assert payload.unpack(shape, payload.from_ints([0x1234], shape)) == {
        "word": 0x1234,
        "low": 0x34,
    }


@pytest.mark.parametrize("order", ["<u4", ">u4"])
def test_to_ints_does_not_depend_on_memory_layout(order):
    packed = np.array([[1, 2], [3, 4], [5, 6]], order)
    assert payload.to_ints(packed) == [1 | 2 << 32, 3 | 4 << 32, 5 | 6 << 32]
    assert payload.to_ints(packed[::2]) == [1 | 2 << 32, 5 | 6 << 32]
    assert payload.to_ints(np.asfortranarray(packed)) == payload.to_ints(packed)


def test_unknown_and_too_wide_fields_are_refused():
    with pytest.raises(
        KeyError, match=r"payload has no field speed, only value, colour, tags\[0\]"
    ):
        payload.pack(Beat, {"speed": [1]})
    with pytest.raises(KeyError, match=r"no field tags\[2\]"):
        payload.pack(Beat, {"tags": np.zeros((1, 3), int)})
    wide = data.StructLayout({"a": 65})
    with pytest.raises(ValueError, match="at most 64 bits wide, not 65"):
        payload.pack(wide, {"a": np.array([1])})
    # Unpacking and comparing such a payload work.
    beats = payload.from_ints([0, 1 << 64], wide)
    assert payload.unpack(wide, beats)["a"].tolist() == [0, 1 << 64]
    assert payload.first_difference(wide, *beats) == ("a", 0, 1 << 64)


@pytest.mark.parametrize("value", [8, -5, 1 << 40])
@pytest.mark.parametrize("values", [lambda v: [1, v], lambda v: [[1, 2], [v, 3]]])
def test_a_value_that_does_not_fit_is_refused(value, values):
    shape = data.StructLayout({"a": data.ArrayLayout(3, 2), "b": 3})
    array = np.array(values(value))
    name = "a" if array.ndim == 2 else "b"
    sentence = f"^a value of field {name} must fit in 3 bits, not be {value}$"
    with pytest.raises(ValueError, match=sentence):
        payload.pack(shape, {name: array})


def test_values_at_the_ends_of_a_field_s_range_are_packed():
    shape = data.StructLayout({"a": 3, "b": signed(64), "c": 0})
    values = {"a": [7, -4], "b": [-1, 1], "c": [0, 0]}
    packed = payload.pack(shape, {name: np.array(v) for name, v in values.items()})
    assert [hex(beat) for beat in payload.to_ints(packed)] == [hex((1 << 67) - 1), "0xc"]
