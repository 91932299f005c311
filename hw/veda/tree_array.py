"""A fixed adder tree in the flexible array's place: VEDA's ablation (Fig. 8, centre)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.parameters import require
from hw.stream.queue import Queue, QueueParameters
from hw.veda.pe_array import SCORE, PeArray, PeArrayParameters
from hw.veda.transpose_buffer import TransposeBuffer

PRODUCTS = 8
"""Inner products begun and not at their end, at most."""

ADD = 2
"""Ranks of the adder of tiles' sums."""


@dataclasses.dataclass(frozen=True)
class TreeArrayParameters(PeArrayParameters):
    """
    rows, columns, arrays, accumulator, multiply_stages, add_stages
        See :class:`PeArrayParameters`.
    tiles
        In the transpose buffer: 1, or 2 to fill one while the other is multiplied.
    """

    tiles: int = 2

    def __post_init__(self):
        super().__post_init__()
        require(1 <= self.tiles <= 2, "tiles must be 1 or 2", self.tiles)
        rule = "rows, columns and arrays must make 4 or more"
        require(self.lanes > ADD, rule, self.lanes)  # else a sum is not there for its next tile

    @property
    def array(self) -> PeArrayParameters:
        fields = dataclasses.asdict(self)
        del fields["tiles"]
        return PeArrayParameters(**fields)

    def outer_product(self, rows: int) -> tuple[int, int, int]:
        d = self.lanes
        fill, free, ready = 0, [0] * self.tiles, 0
        for first in range(0, rows, d):
            begun = max(fill, free[0])
            fill = begun + min(d, rows - first)  # a cycle after the last row
            ready = max(fill, ready)  # the first column's address
            free = [*free[1:], ready + d + 1]
            ready += d + 1
        last_column = ready  # in the array
        return fill - 1, last_column + ADD + 1, last_column + self.latency + ADD + 1


class TreeArray(Component):
    """What :class:`PeArray` computes, from inner products alone.

    ::

        i ─┬─ inner ────────────────────────────────→ array ─┬─→ s
           └─ outer ─→ tile of d rows ─→ d columns ─→  │     └─→ sum of tiles ─→ o
                       tile's factors ───────────────→ q

    The sum of rows times factors, o_i = sum over j of x_j w_ji, runs along the rows, and a tree
    adds along a row. So d rows are collected and turned into d columns, the tile's factors are the
    query, and a tile's sums are added to those of the tiles before: d cycles for each d rows, or
    part of them, behind the cycles in which they come.

    Rounding: a tile's sums as those of any inner product, rounded to FP16; they are added in FP32
    and the total is rounded to FP16 once more.

    Handshake: as :class:`PeArray`, but that ``i.ready`` does not depend on ``s.ready`` or
    ``o.ready`` for rows of outer products, and that scores wait from an outer product's last
    column until its `o` is taken. An outer product must not begin before the scores of the inner
    product before it have gone out. ``q`` is for inner products.

    Members
    -------
    q, i, s, o
        See :class:`PeArray`.
    """

    def __init__(self, parameters: TreeArrayParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "q": In(stream.Signature(p.query_layout)),
                "i": In(stream.Signature(p.input_layout)),
                "s": Out(stream.Signature(SCORE)),
                "o": Out(stream.Signature(p.query_layout)),
            }
        )

    @property
    def parameters(self) -> TreeArrayParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p, i, q = self._parameters, self.i, self.q
        m.submodules.pe_array = array = PeArray(p.array)
        m.submodules.tile = tile = TransposeBuffer(p.lanes, p.tiles)
        kind = data.StructLayout({"tile": 1, "opening": 1, "closing": 1})
        m.submodules.kinds = kinds = Queue(QueueParameters(kind.size, PRODUCTS), shape=kind)

        row = i.payload
        tiled = Signal()  # columns go into the array, and what comes waits
        m.d.comb += [
            tiled.eq(tile.busy),
            tile.i.valid.eq(i.valid & row.outer),
            tile.i.payload.w.eq(row.w),
            tile.i.payload.x.eq(row.x),
            tile.i.payload.last.eq(row.last),
            array.i.valid.eq(Mux(tiled, tile.o.valid, i.valid & ~row.outer)),
            array.i.payload.w.eq(Mux(tiled, tile.o.payload.w, row.w)),
            array.i.payload.last.eq(Mux(tiled, tile.o.payload.last, row.last)),
            array.i.payload.relative.eq(~tiled & row.relative),
            array.q.valid.eq((tiled | q.valid) & kinds.i.ready),
            array.q.payload.eq(Mux(tiled, tile.x, q.payload)),
            tile.o.ready.eq(tiled & array.i.ready),
            i.ready.eq(Mux(row.outer, tile.i.ready, ~tiled & array.i.ready)),
            q.ready.eq(~tiled & array.q.ready & kinds.i.ready),
            kinds.i.valid.eq(array.q.valid & array.q.ready),
            kinds.i.payload.tile.eq(tiled),
            kinds.i.payload.opening.eq(tile.opening),
            kinds.i.payload.closing.eq(tile.closing),
        ]
        self._collect(m, array.s, kinds)
        return m

    def _collect(self, m: Module, s, kinds) -> None:
        """Scores go out; sums of tiles are added up."""
        p, o, kind = self._parameters, self.o, kinds.o.payload
        free, taken = Signal(), Signal()
        waiting = Signal()  # an o is being added up, or not taken
        m.d.comb += [
            # Scores wait too: what the core has to say of a head is of the last one it began.
            free.eq(~waiting | (o.valid & o.ready)),
            self.s.valid.eq(s.valid & ~kind.tile & free),
            self.s.payload.eq(s.payload),
            taken.eq(s.valid & kind.tile & free),
            s.ready.eq(free & (kind.tile | self.s.ready)),
            kinds.o.ready.eq(s.valid & s.ready & s.payload.last),
        ]
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        m.submodules.add = add = FloatAdd(
            FloatAddParameters(format="fp32", flush_subnormals=True, stages=ADD)
        )
        m.submodules.round = convert = FloatConvert(FloatConvertParameters())
        m.submodules.sums = sums = memory.Memory(shape=FP32.width, depth=p.lanes, init=[])
        before, after = sums.read_port(domain="comb"), sums.write_port()
        number = Signal(range(p.lanes))
        with m.If(taken):
            m.d.sync += number.eq(number + 1)
        m.d.comb += [
            widen.a.eq(s.payload.s),
            before.addr.eq(number),
            add.a.eq(widen.o),
            add.b.eq(Mux(kind.opening, 1 << (FP32.width - 1), before.data)),
        ]
        flags = Cat(taken, kind.closing, s.payload.last, number)
        for n in range(ADD):
            behind = Signal(len(flags), name=f"flags_{n + 1}")
            m.d.sync += behind.eq(flags)
            flags = behind
        summed, closing, last = flags[:3]
        m.d.comb += [
            after.en.eq(summed),
            after.addr.eq(flags[3:]),
            after.data.eq(add.o),
            convert.a.eq(add.o),
        ]
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(taken & kind.closing & s.payload.last):
            m.d.sync += waiting.eq(1)
        with m.Elif(o.valid & o.ready):
            m.d.sync += waiting.eq(0)
        with m.If(summed & closing):
            m.d.sync += [
                o.payload.as_value().eq(Cat(o.payload.as_value()[FP16.width :], convert.o)),
                o.valid.eq(last),
            ]
