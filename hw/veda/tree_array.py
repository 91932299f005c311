"""A fixed adder tree in the flexible array's place: VEDA's ablation (Fig. 8, centre)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.attention.delay import delay
from hw.attention.pe_array import PeArray
from hw.attention.product_array import PeArrayParameters, ProductArray, ProductTiming
from hw.parameters import require
from hw.stream.queue import Queue, QueueParameters
from hw.veda.transpose_buffer import TransposeBuffer

PRODUCTS = 8
"""Inner products started and not finished, at most."""

ADD_STAGES = 2
"""Pipeline stages of the adder of tiles' sums."""


@dataclasses.dataclass(frozen=True)
class TreeArrayParameters(PeArrayParameters):
    """
    rows, columns, arrays, accumulator, multiply_stages, add_stages
        See :class:`PeArrayParameters`.
    tiles
        Tiles of the transpose buffer: 1, or 2 to fill one while the other is multiplied.
    """

    tiles: int = 2

    def __post_init__(self):
        super().__post_init__()
        require(1 <= self.tiles <= 2, "tiles must be 1 or 2", self.tiles)
        rule = "rows, columns and arrays must make 4 or more"
        # With fewer, a column's sum would not be written when the next tile's is added to it.
        require(self.lanes > ADD_STAGES, rule, self.lanes)

    @cached_property
    def array(self) -> PeArrayParameters:
        """Parameters of the array inside."""
        fields = dataclasses.asdict(self)
        del fields["tiles"]
        return PeArrayParameters(**fields)

    def outer_product(self, rows: int) -> ProductTiming:
        d = self.lanes
        filled, free, multiplied = 0, [0] * self.tiles, 0
        for first in range(0, rows, d):
            start = max(filled, free[0])  # a tile is free
            filled = start + min(d, rows - first)  # a cycle after its last row
            first_column = max(filled, multiplied)  # its address
            multiplied = first_column + d + 1
            free = [*free[1:], multiplied]
        # `multiplied` is when the last column is in the array.
        result = multiplied + self.latency + ADD_STAGES + 1
        return ProductTiming(filled - 1, multiplied + ADD_STAGES + 1, result)


class TreeArray(ProductArray[TreeArrayParameters]):
    """The results of :class:`PeArray`, from inner products alone.

    ::

        i ─┬─ inner ────────────────────────────────→ array ─┬─→ s
           └─ outer ─→ tile of d rows ─→ d columns ─→  │     └─→ sum of tiles ─→ o
                       tile's factors ───────────────→ q

    The sum of rows times factors, o_i = sum over j of x_j w_ji, is over rows; a tree adds the
    elements of one row. So d rows are collected and transposed to d columns; the tile's factors are
    the query; and a tile's sums are added to the sums of the tiles before: d cycles for each d rows
    or part of them, after the cycles in which they arrive.

    Rounding: a tile's sums are rounded to FP16, as any inner product is; they are added in FP32
    and the total is rounded to FP16 once more.

    Handshake: as :class:`PeArray`, but ``i.ready`` does not depend on ``s.ready`` or ``o.ready``
    for rows of outer products, and scores wait from an outer product's last column until its `o` is
    accepted. An outer product must not begin before the scores of the inner product before it are
    accepted. ``q`` is for inner products.
    """

    def elaborate(self, platform):
        m = Module()
        p, i, q = self.parameters, self.i, self.q
        m.submodules.pe_array = array = PeArray(p.array)
        m.submodules.tile = tile = TransposeBuffer(p.query_layout, p.tiles)
        # One entry for each product in the array: whether it is of a tile, and which of a vector's.
        kind = data.StructLayout({"tile": 1, "first_tile": 1, "last_tile": 1})
        m.submodules.kinds = kinds = Queue(QueueParameters(kind.size, PRODUCTS), shape=kind)

        # Rows of outer products go into the tile, other rows to the array; the array takes columns
        # while the tile has any, and inputs for inner products wait.
        row = i.payload
        columns = Signal()
        m.d.comb += [
            columns.eq(tile.busy),
            tile.i.valid.eq(i.valid & row.outer),
            tile.i.payload.w.eq(row.w),
            tile.i.payload.x.eq(row.x),
            tile.i.payload.last.eq(row.last),
            array.i.valid.eq(Mux(columns, tile.o.valid, i.valid & ~row.outer)),
            array.i.payload.w.eq(Mux(columns, tile.o.payload.w, row.w)),
            array.i.payload.last.eq(Mux(columns, tile.o.payload.last, row.last)),
            array.i.payload.relative.eq(~columns & row.relative),
            array.q.valid.eq((columns | q.valid) & kinds.i.ready),
            array.q.payload.eq(Mux(columns, tile.x, q.payload)),
            tile.o.ready.eq(columns & array.i.ready),
            i.ready.eq(Mux(row.outer, tile.i.ready, ~columns & array.i.ready)),
            q.ready.eq(~columns & array.q.ready & kinds.i.ready),
            kinds.i.valid.eq(array.q.valid & array.q.ready),
            kinds.i.payload.tile.eq(columns),
            kinds.i.payload.first_tile.eq(tile.first_tile),
            kinds.i.payload.last_tile.eq(tile.last_tile),
        ]
        self._collect(m, array.s, kinds)
        return m

    def _collect(self, m: Module, s, kinds) -> None:
        """The array's results `s`: scores are output, tiles' sums added up."""
        p, o, kind = self.parameters, self.o, kinds.o.payload
        free = Signal()
        fire = Signal()
        waiting = Signal()  # an o is being summed, or was not accepted yet
        m.d.comb += [
            # Scores wait for it too: the core's flags belong to the head begun last.
            free.eq(~waiting | (o.valid & o.ready)),
            self.s.valid.eq(s.valid & ~kind.tile & free),
            self.s.payload.eq(s.payload),
            fire.eq(s.valid & kind.tile & free),
            s.ready.eq(free & (kind.tile | self.s.ready)),
            kinds.o.ready.eq(s.valid & s.ready & s.payload.last),
        ]
        # sums[column] + s in FP32; the first tile adds to -0.
        m.submodules.widen = widen = FloatConvert(
            FloatConvertParameters(source="fp16", format="fp32")
        )
        m.submodules.add = add = FloatAdd(
            FloatAddParameters(format="fp32", flush_subnormals=True, stages=ADD_STAGES)
        )
        m.submodules.round = convert = FloatConvert(FloatConvertParameters())
        sums = memory.Memory(shape=FP32.width, depth=p.lanes, init=[])
        m.submodules.sums = sums
        read, write = sums.read_port(domain="comb"), sums.write_port()
        column = Signal(range(p.lanes))
        with m.If(fire):
            m.d.sync += column.eq(column + 1)
        m.d.comb += [
            widen.a.eq(s.payload.s),
            read.addr.eq(column),
            add.a.eq(widen.o),
            add.b.eq(Mux(kind.first_tile, 1 << (FP32.width - 1), read.data)),
        ]
        flags = delay(m, "flags", Cat(fire, kind.last_tile, s.payload.last, column), ADD_STAGES)
        summed, last_tile, last = flags[:3]
        m.d.comb += [
            write.en.eq(summed),
            write.addr.eq(flags[3:]),
            write.data.eq(add.o),
            convert.a.eq(add.o),
        ]
        # The last tile's sums are shifted into o, element 0 first.
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(fire & kind.last_tile & s.payload.last):
            m.d.sync += waiting.eq(1)
        with m.Elif(o.valid & o.ready):
            m.d.sync += waiting.eq(0)
        with m.If(summed & last_tile):
            m.d.sync += [
                o.payload.as_value().eq(Cat(o.payload.as_value()[FP16.width :], convert.o)),
                o.valid.eq(last),
            ]
