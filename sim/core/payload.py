"""Vectorised packing of stream payloads: Amaranth shapes to ``uint32[beats, words]`` and back.

The layout is read off the Amaranth shape itself, so hardware and testbench share one definition.
"""

import functools

import numpy as np
from amaranth.hdl import Shape

from hw import layout


def width(shape) -> int:
    return Shape.cast(shape).width


def words(shape) -> int:
    """32-bit words one beat takes."""
    return max(1, -(-width(shape) // 32))


def fields(shape) -> list[tuple[str, int, int]]:
    """Leaf fields as (dotted path, bit offset, width), lowest bit first; a plain shape is one."""
    return list(_leaves(_Same(shape)))


@functools.lru_cache(256)
def _leaves(shape: "_Same") -> tuple[tuple[str, int, int], ...]:
    leaves = layout.fields(shape.shape, each=True)
    return tuple((leaf.name or "payload", leaf.offset, leaf.width) for leaf in leaves)


class _Same:
    """A shape as a key: the very object, because comparing layouts costs more than it saves."""

    def __init__(self, shape):
        self.shape = shape

    def __hash__(self):
        return id(self.shape)

    def __eq__(self, other):
        return self.shape is other.shape


def pack(shape, values: dict[str, np.ndarray]) -> np.ndarray:
    """Pack leaf fields, each ``int[beats]`` by dotted path; fields left out are zero.

    An array field may be given whole as ``int[beats, elements]`` under its own path.

    :raises ValueError: for a value that its field's bits hold neither as an unsigned nor as a
        two's complement number.
    """
    beats = len(next(iter(values.values())))
    packed = np.zeros((beats, words(shape)), np.uint32)
    leaves = {path: (offset, bits) for path, offset, bits in fields(shape)}
    for path, value in values.items():
        value = np.asarray(value)
        columns = {path: value}
        if value.ndim == 2:
            columns = {f"{path}[{i}]": value[:, i] for i in range(value.shape[1])}
        for name in columns:
            if name not in leaves:
                raise KeyError(f"payload has no field {name}, only {', '.join(leaves)}")
        if not value.size:
            continue
        # An array's elements are all of one width.
        _require_fit(path, leaves[next(iter(columns))][1], value)
        places = [leaves[name] for name in columns]
        first, bits = places[0] if places else (0, 0)
        dense = [(first + number * bits, bits) for number in range(len(places))]
        if len(places) > 2 and places == dense and bits <= 64:
            _insert_array(packed, first, bits, value)
            continue
        for place, column in zip(places, columns.values(), strict=True):
            _insert(packed, *place, column)
    return packed


def unpack(shape, packed: np.ndarray) -> dict[str, np.ndarray]:
    """Leaf fields as ``uint64[beats]`` by dotted path; as integers, ``object``, if wider."""
    return {path: _extract(packed, offset, bits) for path, offset, bits in fields(shape)}


def to_ints(packed: np.ndarray) -> list[int]:
    """Each beat as one Python integer, as cocotb takes it."""
    rows = np.ascontiguousarray(packed, dtype="<u4")
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def from_ints(values: list[int], shape) -> np.ndarray:
    size = words(shape) * 4
    raw = b"".join(value.to_bytes(size, "little") for value in values)
    return np.frombuffer(raw, "<u4").reshape(len(values), words(shape)).astype(np.uint32)


def first_difference(shape, expected: np.ndarray, got: np.ndarray) -> tuple[str, int, int]:
    """The first leaf field in which two packed beats differ, with both values."""
    for path, offset, bits in fields(shape):
        want, have = (_bits(beat, offset, bits) for beat in (expected, got))
        if want != have:
            return path, want, have
    raise ValueError("the beats are equal")


def _bits(beat: np.ndarray, offset: int, bits: int) -> int:
    return (to_ints(beat[None])[0] >> offset) & ((1 << bits) - 1)


def _require_fit(path: str, bits: int, value: np.ndarray) -> None:
    if bits >= 64:
        return
    for extreme in (int(value.min()), int(value.max())):
        if not -(1 << bits >> 1) <= extreme < 1 << bits:
            raise ValueError(f"a value of field {path} must fit in {bits} bits, not be {extreme}")


def _insert(packed: np.ndarray, offset: int, bits: int, column: np.ndarray) -> None:
    if bits > 64:
        raise ValueError(f"a payload field must be at most 64 bits wide, not {bits}")
    mask = (1 << bits) - 1
    value = column.astype(np.int64).view(np.uint64) if column.dtype.kind != "u" else column
    value = value.astype(np.uint64) & np.uint64(mask)
    while bits > 0:
        word, low = divmod(offset, 32)
        taken = min(bits, 32 - low)
        part = (value & np.uint64((1 << taken) - 1)).astype(np.uint32)
        packed[:, word] |= part << np.uint32(low)
        value = value >> np.uint64(taken)
        offset, bits = offset + taken, bits - taken


def _insert_array(packed: np.ndarray, offset: int, bits: int, value: np.ndarray) -> None:
    """``int[beats, elements]`` of `bits` each, one after another."""
    beats, elements = value.shape
    octets = np.ascontiguousarray(value.astype("<i8" if value.dtype.kind != "u" else "<u8"))
    octets = octets.view(np.uint8).reshape(beats, elements, 8)[:, :, : -(-bits // 8)]
    each = np.unpackbits(octets, axis=2, count=bits, bitorder="little")
    word, low = divmod(offset, 32)
    size = -(-(low + elements * bits) // 32)
    row = np.zeros((beats, 32 * size), np.uint8)
    row[:, low : low + elements * bits] = each.reshape(beats, -1)
    packed[:, word : word + size] |= np.packbits(row, axis=1, bitorder="little").view("<u4")


def _extract(packed: np.ndarray, offset: int, bits: int) -> np.ndarray:
    if bits > 64:
        mask = (1 << bits) - 1
        return np.array([beat >> offset & mask for beat in to_ints(packed)], object)
    value, done = np.zeros(len(packed), np.uint64), 0
    while done < bits:
        word, low = divmod(offset + done, 32)
        taken = min(bits - done, 32 - low)
        part = (packed[:, word] >> np.uint32(low)) & np.uint32((1 << taken) - 1)
        value |= part.astype(np.uint64) << np.uint64(done)
        done += taken
    return value
