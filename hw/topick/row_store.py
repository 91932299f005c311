"""Writes a token's keys and values to the lanes' memories by chunks (Token-Picker, Fig. 6)."""

import dataclasses
import functools

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.utils import exact_log2

from hw.component import Component
from hw.layout import address, count, index, integer, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


def first_group(context: Value, groups: int) -> Value:
    """Group of lanes of a context's kv head 0: the context's number modulo the groups."""
    numbers = [number % groups for number in range(1 << len(context))]
    return Array(Const(number, range(max(2, groups))) for number in numbers)[context]


def rotated(turn: Value, first: Value, groups: int) -> Value:
    """(turn + first) mod `groups`, of two numbers below `groups`."""
    group = turn + first
    return Mux(group >= groups, group - groups, group)[: len(turn)]


@dataclasses.dataclass(frozen=True)
class RowStoreParameters(Parameters):
    """
    d, bits, chunk_bits
        Elements of a key or value, bits of each, and bits of each in a chunk.
    lanes, lanes_per_head
        Lanes, and how many of them share the tokens of a head (2^n).
    rows
        Tokens of a head in one lane, at most (2^n).
    kv_heads
        Most heads with separate keys and values.
    contexts
        Sequences in the memories.
    """

    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    lanes: int = 3
    lanes_per_head: int = 1
    rows: int = 1024
    kv_heads: int = 3
    contexts: int = 1

    def __post_init__(self):
        for name in ("d", "chunk_bits", "lanes", "kv_heads", "contexts"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1", value)
        for name in ("lanes_per_head", "rows"):
            value = getattr(self, name)
            require(value >= 1 and value & value - 1 == 0, f"{name} must be a power of two", value)
        whole = self.bits >= self.chunk_bits and self.bits % self.chunk_bits == 0
        require(whole, "bits must be a multiple of chunk_bits", self.bits)
        whole = self.lanes % self.lanes_per_head == 0
        require(whole, "lanes must be a multiple of lanes_per_head", self.lanes)

    @property
    def latency(self) -> int:
        """Cycles from a key or value to its first chunk."""
        return 1

    @property
    def chunks(self) -> int:
        return self.bits // self.chunk_bits

    @property
    def groups(self) -> int:
        """Groups of lanes; each has the heads of some key-value heads."""
        return self.lanes // self.lanes_per_head

    @property
    def planes(self) -> int:
        """Chunk planes in a lane's memory: `rows` chunks of equal number, of K or V of one head."""
        return self.contexts * self.context_planes

    @property
    def context_planes(self) -> int:
        """Chunk planes of a context in a lane's memory."""
        return -(-self.kv_heads // self.groups) * 2 * self.chunks

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """``token``: its position in the sequence. ``kv_heads``: their number. ``context`` of the
        sequence, if there are several."""
        return data.StructLayout(
            {
                "token": position(range(self.rows * self.lanes_per_head)),
                "kv_heads": count(range(self.kv_heads + 1)),
            }
            | ({"context": index(range(self.contexts))} if self.contexts > 1 else {})
        )

    @functools.cached_property
    def row_layout(self) -> data.ArrayLayout:
        """A key or a value: its codes."""
        return data.ArrayLayout(integer(signed(self.bits)), self.d)

    @functools.cached_property
    def write_layout(self) -> data.StructLayout:
        """``lane`` whose memory is written, at ``address``, with the bits of each element."""
        return data.StructLayout(
            {
                "lane": index(range(self.lanes)),
                "address": address(range(self.planes * self.rows)),
                "data": data.ArrayLayout(self.chunk_bits, self.d),
            }
        )


class RowStore(Component[RowStoreParameters]):
    """Split the keys and values of one token into chunks and write each chunk to its lane's memory.

    A command is a token. Its rows follow: K, then V, of each key-value head in order. Each row is
    written as `chunks` chunks, the most significant bits of each element first::

        element    | chunk 0 | chunk 1 | ... | chunk C - 1 |     `bits` bits
        address    | plane = (head's number in its group * 2 + is V) * C + chunk | row |

    Head g of context c belongs to group (g + c) mod `groups` and is number g // `groups` of the
    context there, whose planes follow the planes of context c - 1. Token i is row
    i // `lanes_per_head` of the group's lane i mod `lanes_per_head`.

    Latency: 1 cycle from a row to its first chunk, if a command was accepted before. Throughput: a
    chunk a cycle, so 2 kv_heads chunks + 2 cycles from a command to the next.

    Handshake: a row is accepted with its last chunk; ``kv.ready`` depends on registers and
    ``write.ready``. ``command.ready`` depends on registers; it is high from the cycle after the
    last write was accepted until the next command. Overflow: none.

    A command of 0 heads writes nothing. More heads than `kv_heads` are an error of the host.

    Examples
    --------
    >>> from hw.topick.row_store import RowStore, RowStoreParameters
    >>> parameters = RowStoreParameters(lanes=4, lanes_per_head=2, rows=32, kv_heads=3)
    >>> parameters.groups, parameters.planes, RowStore(parameters).write.payload.address.shape()
    (2, 12, unsigned(9))
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout),
            "kv": stream_in(p.row_layout, "Rows of K and V."),
            "write": stream_out(p.write_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p, write = self.parameters, self.write
        token = Signal.like(self.command.payload.token, reset_less=True, init=None)
        remaining = Signal(range(p.kv_heads + 1))  # heads to split, with this one
        chunk = Signal(range(p.chunks), reset_less=True)
        is_value = Signal(reset_less=True)
        turn = Signal(range(max(2, p.groups)), reset_less=True)  # group, counted from the first
        first = Signal.like(turn)  # group of the context's first head
        base = Signal(range(p.planes), reset_less=True)  # first plane of the head
        plane = Signal(range(p.planes), reset_less=True)
        splitting = Signal()  # a row, if there is one, and the output register is free
        step = Signal()  # a chunk goes to the output register
        chunk_ends = Signal()  # the row's last chunk
        m.d.comb += [
            # Not before the last chunk has been accepted, because a head may start then.
            self.command.ready.eq((remaining == 0) & ~write.valid),
            splitting.eq((remaining != 0) & (~write.valid | write.ready)),
            step.eq(self.kv.valid & splitting),
            chunk_ends.eq(chunk == p.chunks - 1),
            # A row of K or V is held at the input until its last chunk has been written.
            self.kv.ready.eq(splitting & chunk_ends),
        ]
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [
                token.eq(self.command.payload.token),
                remaining.eq(self.command.payload.kv_heads),
                Cat(chunk, is_value, turn, base, plane).eq(0),
            ]
            if p.contexts > 1:
                context = self.command.payload.context
                start = context * p.context_planes
                m.d.sync += [
                    first.eq(first_group(context, p.groups)),
                    base.eq(start),
                    plane.eq(start),
                ]
        with m.If(step):
            m.d.sync += [chunk.eq(chunk + 1), plane.eq(plane + 1)]
            # K and V of a head alternate, so a row's last chunk also changes between them.
            with m.If(chunk_ends):
                m.d.sync += [chunk.eq(0), is_value.eq(~is_value)]
            # Heads go round the groups, so that the lanes of all groups fill alike.
            with m.If(chunk_ends & is_value):
                # The next head: the same planes in the next group, then further ones in the first.
                m.d.sync += [remaining.eq(remaining - 1), turn.eq(turn + 1), plane.eq(base)]
                with m.If(turn == p.groups - 1):
                    m.d.sync += [turn.eq(0), base.eq(plane + 1), plane.eq(plane + 1)]
        # Output register.
        with m.If(step):
            # The token's low bits choose the lane of its group, the others the row there.
            group = turn if p.contexts == 1 else rotated(turn, first, p.groups)
            lane_bits = exact_log2(p.lanes_per_head)
            m.d.sync += [
                write.valid.eq(1),
                write.payload.lane.eq(Cat(token[:lane_bits], group)),
                write.payload.address.eq(Cat(token[lane_bits:], plane)),
                write.payload.data.eq(self._chunk(chunk)),
            ]
        with m.Elif(write.ready):
            m.d.sync += write.valid.eq(0)
        return m

    def _chunk(self, chunk: Signal):
        """Bits of a chunk of each element of the row at the input."""
        p = self.parameters
        # Chunk 0 holds the most significant bits of each element.
        lowest = [p.bits - p.chunk_bits * (number + 1) for number in range(p.chunks)]
        elements = [self.kv.payload[i].as_unsigned() for i in range(p.d)]
        choices = [Cat(e[low : low + p.chunk_bits] for e in elements) for low in lowest]
        return Array(choices)[chunk]
