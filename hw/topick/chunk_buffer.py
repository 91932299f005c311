"""Buffer of chunks between a lane and its memory (Token-Picker, section 4, Fig. 6)."""

import dataclasses
import functools

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory
from amaranth.utils import exact_log2

from hw.component import Component
from hw.layout import FLAG, index, integer, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.memory_port import MemoryPort


@dataclasses.dataclass(frozen=True)
class ChunkBufferParameters(Parameters):
    """
    rows
        Buffered rows, from row 0 on: 2^n.
    d, bits, chunk_bits
        Elements of a key or value, bits of each, and bits of each in a chunk.
    row_bits
        Bits of a row's number.
    address_width
        Bits of an address in the memory.
    label_bits
        Bits of a tag that the buffer passes through.
    """

    rows: int = 64
    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    row_bits: int = 10
    address_width: int = 13
    label_bits: int = 11

    def __post_init__(self):
        power = self.rows >= 1 and self.rows & self.rows - 1 == 0
        require(power, "rows must be a power of two", self.rows)
        for name in ("d", "chunk_bits"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1", value)
        for name in ("row_bits", "address_width", "label_bits"):
            value = getattr(self, name)
            require(1 <= value <= 64, f"{name} must be between 1 and 64", value)
        whole = self.bits >= self.chunk_bits and self.bits % self.chunk_bits == 0
        require(whole, "bits must be a multiple of chunk_bits", self.bits)
        fits = self.rows <= 1 << self.row_bits
        require(fits, f"rows must be at most 2^row_bits, {1 << self.row_bits}", self.rows)

    @classmethod
    def presets(cls) -> dict[str, "ChunkBufferParameters"]:
        return {
            "small": cls(8, 4, 6, 2, row_bits=4, address_width=7, label_bits=5),
            "default": cls(),
            "paper": cls(rows=128, row_bits=11, address_width=14),
        }

    @property
    def latency(self) -> int:
        """Cycles from a request that hits to its response."""
        return 2

    @property
    def chunks(self) -> int:
        return self.bits // self.chunk_bits

    @property
    def planes(self) -> int:
        """Number of chunks that the buffer can hold of a row: all of K and all of V."""
        return 2 * self.chunks

    @functools.cached_property
    def memory(self) -> MemoryPort:
        row = data.ArrayLayout(self.chunk_bits, self.d)
        return chunk_memory(self.chunks, self.row_bits, self.label_bits, self.address_width, row)

    @functools.cached_property
    def clear_layout(self) -> data.StructLayout:
        """Whether the chunks of ``keys``, of ``values`` are forgotten."""
        return data.StructLayout({"keys": FLAG, "values": FLAG})


def chunk_memory(
    chunks: int, row_bits: int, label_bits: int, address_width: int, row: data.ArrayLayout
) -> MemoryPort:
    """A lane's memory, whose rows are chunks: the same bits of each element of a key or value.

    In a tag is whether the chunk is of a ``value``, else of a key; its ``chunk`` and ``row`` of the
    lane; and a ``label``: the slot of the scoreboard, or the probability of a value.
    """
    tag = data.StructLayout(
        {
            "value": FLAG,
            "chunk": index(range(chunks)),
            "row": position(row_bits),
            "label": integer(label_bits),
        }
    )
    return MemoryPort(tag, address_width, row)


class ChunkBuffer(Component[ChunkBufferParameters]):
    """Keep the chunks that arrive from the memory, and answer later requests for them.

    ::

        request ─┬─ miss ─→ register ─→ memory_request ┄┄ memory ┄┄→ memory_response
                 │                                                         │
                 │                           ┌────────── write ────────────┤
                 │                           ↓                             ↓
                 └─ hit ─ read ─→ chunks of rows 0 … rows - 1 ─────────→ register ─→ response

    A bit for each chunk of the buffered rows says whether it is kept. A request whose chunk is kept
    hits and does not go to the memory. All others miss; a response of the memory is kept on its way
    if its row is below `rows`. K and V are kept apart, by chunk and row, not by address:
    after ``clear``, a chunk's address may be another.

    A hit and a response of the memory that wait for the output at the same time take turns, so
    neither blocks the other for longer than a beat. Responses come in any order.

    Latency: 2 cycles from a request that hits to its response, 1 from a request that misses to
    ``memory_request``, and 1 from the memory's response to ``response``; a chunk is kept from the
    cycle after its arrival. Throughput: a request and a response per cycle.

    Handshake: ``request.ready`` depends on the request, on ``clear`` and ``memory_response.valid``,
    and on ``response.ready`` for a hit, ``memory_request.ready`` for a miss;
    ``memory_response.ready`` depends on ``response.ready``. The outputs are registers. Overflow:
    none. ``clear`` is always ready: it takes one cycle, and a request in that cycle misses already.

    At a ``clear`` there must be no request without response of its kind, K or V, whose row is below
    `rows`: its response would be kept. A chunk requested again before its response arrives is
    read twice.

    The chunks are a memory of 2 `chunks` `rows` words with a synchronous read port and a write
    port, fit for SRAM; the bits that say which are kept are as many registers.

    Examples
    --------
    The paper's 2 x 192 KB over 16 lanes are 128 rows in each:

    >>> from hw.topick.chunk_buffer import ChunkBuffer, ChunkBufferParameters
    >>> p = ChunkBuffer(ChunkBufferParameters.preset("paper")).parameters
    >>> p.planes * p.rows * p.d * p.chunk_bits * 16 // 8 // 1024
    384
    """

    summary = "Keeps chunks of K and V on their way from memory for the group's other heads"
    source = "Token-Picker, section 4, Fig. 6"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "request": stream_in(p.memory.read_layout, "Chunks to read."),
            "memory_request": stream_out(p.memory.read_layout, "Requests that miss, in order."),
            "memory_response": stream_in(p.memory.response_layout, "From it, in any order."),
            "response": stream_out(p.memory.response_layout, "One for each request, in any order."),
            "clear": stream_in(p.clear_layout, "Kinds of chunks to forget: of keys, of values."),
        }

    def elaborate(self, platform):
        m = Module()
        p, request, response = self.parameters, self.request, self.response
        word = p.memory.response_layout["data"].shape
        m.submodules.chunks = chunks = memory.Memory(shape=word, depth=p.planes * p.rows, init=[])
        read, write = chunks.read_port(), chunks.write_port()
        kept = self._kept(m, request.payload.tag, write.en)

        # A miss goes to the output register of memory requests, a hit reads the memory.
        hit_valid = Signal()  # the memory's read register holds a hit's chunk
        hit_tag = Signal(p.memory.tag, reset_less=True)
        hit_data = Signal(word)
        hit_free = Signal()
        miss_free = Signal()
        hit = Signal()
        miss = Signal()
        m.d.comb += [
            # A hit does not wait for a miss or the reverse: each has its own register.
            miss_free.eq(~self.memory_request.valid | self.memory_request.ready),
            request.ready.eq(Mux(kept, hit_free, miss_free)),
            hit.eq(request.valid & kept & hit_free),
            miss.eq(request.valid & ~kept & miss_free),
            read.en.eq(hit),
            read.addr.eq(self._address(request.payload.tag)),
            hit_data.eq(read.data),
        ]
        with m.If(miss_free):
            m.d.sync += self.memory_request.valid.eq(miss)
        with m.If(miss):
            m.d.sync += self.memory_request.payload.eq(request.payload)
        # The memory's read register and the tag beside it move together.
        with m.If(hit_free):
            m.d.sync += hit_valid.eq(hit)
        # A hit's tag is stored, because the memory returns the chunk without it.
        with m.If(hit):
            m.d.sync += hit_tag.eq(request.payload.tag)

        # The output register takes turns: a hit goes first after a response of the memory.
        arrived = self.memory_response
        free = Signal()
        hit_first = Signal(reset_less=True)  # an arrival sets it before there can be a hit
        hit_passes = Signal()
        arrival_passes = Signal()
        m.d.comb += [
            free.eq(~response.valid | response.ready),
            hit_passes.eq(hit_valid & free & (hit_first | ~arrived.valid)),
            hit_free.eq(~hit_valid | hit_passes),
            # An arrival also writes its chunk into the buffer as it passes.
            arrived.ready.eq(free & ~(hit_valid & hit_first)),
            arrival_passes.eq(arrived.valid & arrived.ready),
            write.en.eq(arrival_passes & self._is_buffered(arrived.payload.tag)),
            write.addr.eq(self._address(arrived.payload.tag)),
            write.data.eq(arrived.payload.data),
        ]
        # The output register: an arrival and a hit never pass in the same cycle.
        with m.If(free):
            m.d.sync += response.valid.eq(hit_passes | arrival_passes)
        with m.If(arrival_passes):
            m.d.sync += [response.payload.eq(arrived.payload), hit_first.eq(1)]
        with m.Elif(hit_passes):
            m.d.sync += [
                response.payload.tag.eq(hit_tag),
                response.payload.data.eq(hit_data),
                hit_first.eq(0),
            ]
        return m

    def _kept(self, m: Module, tag: data.View, write) -> Signal:
        """Whether the chunk of a tag is kept; `write`: the memory's response is written now."""
        p, arrived = self.parameters, self.memory_response.payload.tag
        m.d.comb += self.clear.ready.eq(1)
        planes = []
        row = Signal(p.rows)  # one-hot, of the response
        m.d.comb += row.eq(Cat(self._row(arrived) == number for number in range(p.rows)))
        for number in range(p.planes):
            # A bit for each chunk of the buffer: whether it holds the present kv head's.
            plane = Signal(p.rows, name=f"kept_{number}")  # rows whose chunk is kept
            here = Signal(name=f"write_{number}")
            m.d.comb += here.eq(write & (self._plane(arrived) == number))
            with m.If(self._clears(number >= p.chunks)):
                m.d.sync += plane.eq(0)
            with m.Else():
                m.d.sync += plane.eq(plane | (row & here.replicate(p.rows)))
            planes.append(plane)
        kept = Signal()
        chunks = Signal(p.rows)  # rows whose chunk of the tag's number is kept
        at_row = Signal(p.rows)
        # A request in the cycle of a clear must already miss.
        forgotten = Mux(tag.value, self._clears(True), self._clears(False))
        m.d.comb += [
            chunks.eq(Array(planes)[self._plane(tag)]),
            at_row.eq(chunks >> self._row(tag)),
            kept.eq(at_row[0] & self._is_buffered(tag) & ~forgotten),
        ]
        return kept

    def _clears(self, value: bool) -> Value:
        """The chunks of V, or else of K, are forgotten in this cycle."""
        flags = self.clear.payload
        return self.clear.valid & (flags.values if value else flags.keys)

    def _is_buffered(self, tag: data.View) -> Value:
        """The row has a place in the buffer."""
        return tag.row < self.parameters.rows

    def _row(self, tag: data.View) -> Value:
        return tag.row[: exact_log2(self.parameters.rows)]

    def _plane(self, tag: data.View) -> Value:
        """Number of a chunk; V's come after K's."""
        chunks = self.parameters.chunks
        return Mux(tag.value, tag.chunk + chunks, tag.chunk)

    def _address(self, tag: data.View) -> Value:
        """Address of a chunk in the buffer: `rows` words for each plane."""
        return Cat(self._row(tag), self._plane(tag))
