"""Rows in, columns out: what a fixed adder tree needs in front of it (VEDA, section IV-A)."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.component import Component


class TransposeBuffer(Component):
    """Tiles of d rows, or fewer at a vector's end, and of their factors; d columns of each.

    Element i of row j lies in bank (i + j) mod d, at address j, so that a row and a column each
    need every bank once. Rotations at both ports put elements in order.

    Throughput: a row a cycle, a column a cycle. With one tile, they take turns; with two, one is
    filled while the other is emptied. Latency: 2 cycles from a tile's last row to its first column.

    Members
    -------
    i : :py:`In(stream.Signature(StructLayout({"w", "x", "last"})))`
        Rows ``w`` and their factors ``x``, FP16.
    o : :py:`Out(stream.Signature(parameters layout))`
        Columns ``w``, of rows that are not there 0; ``last`` of the tile.
    x : :py:`Out(ArrayLayout)`
        The tile's factors, 0 where there are none, while its first column is offered.
    opening, closing : :py:`Out(1)`
        The tile's first row began a vector, its last one ended it; with `x`.
    busy : :py:`Out(1)`
        There are columns to come of tiles that are whole.
    """

    def __init__(self, lanes: int, tiles: int):
        self._lanes, self._tiles = lanes, tiles
        row = data.ArrayLayout(FP16.width, lanes)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"w": row, "x": 16, "last": 1}))),
                "o": Out(stream.Signature(data.StructLayout({"w": row, "last": 1}))),
                "x": Out(row),
                "opening": Out(1),
                "closing": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        d, tiles, i, o = self._lanes, self._tiles, self.i, self.o
        filled, emptied = Signal(range(tiles)), Signal(range(tiles))  # which tile
        row, column = Signal(range(d)), Signal(range(d))
        taken, done, step = Signal(), Signal(), Signal()
        begins = Signal(init=1)
        full = Array(Signal(name=f"full_{n}") for n in range(tiles))
        last_row = Array(Signal(range(d), name=f"last_row_{n}") for n in range(tiles))
        opening = Array(Signal(name=f"opening_{n}") for n in range(tiles))
        closing = Array(Signal(name=f"closing_{n}") for n in range(tiles))
        m.d.comb += [
            i.ready.eq(~full[filled]),
            taken.eq(i.valid & i.ready),
            done.eq(taken & (i.payload.last | (row == d - 1))),
            step.eq(full[emptied] & (~o.valid | o.ready)),
            self.busy.eq(Cat(full).any() | o.valid),
        ]
        with m.If(taken):
            m.d.sync += row.eq(row + 1)
        with m.If(done):
            m.d.sync += [
                row.eq(0),
                begins.eq(i.payload.last),
                full[filled].eq(1),
                last_row[filled].eq(row),
                opening[filled].eq(begins),
                closing[filled].eq(i.payload.last),
                filled.eq(0 if tiles == 1 else ~filled),
            ]
        shown = Signal.like(column)  # column at the output
        height = Signal(range(d))
        tile = Signal.like(emptied)
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(step):
            m.d.sync += [
                o.valid.eq(1),
                o.payload.last.eq(column == d - 1),
                shown.eq(column),
                height.eq(last_row[emptied]),
                tile.eq(emptied),
                column.eq(column + 1),
            ]
            with m.If(column == d - 1):
                m.d.sync += [
                    column.eq(0),
                    full[emptied].eq(0),
                    emptied.eq(0 if tiles == 1 else ~emptied),
                ]

        words = []
        spread = _rotate(m, "row", i.payload.w.as_value(), row, d, left=True)
        for n in range(d):
            m.submodules[f"bank_{n}"] = bank = memory.Memory(shape=16, depth=tiles * d, init=[])
            write, read = bank.write_port(), bank.read_port()
            address = Signal.like(row, name=f"address_{n}")
            m.d.comb += [
                write.en.eq(taken),
                write.addr.eq(Cat(row, filled)),
                write.data.eq(spread.word_select(n, 16)),
                address.eq(n - column),
                read.addr.eq(Cat(address, emptied)),
                read.en.eq(step),
            ]
            words.append(read.data)
        gathered = _rotate(m, "column", Cat(words), shown, d, left=False)
        for n in range(d):
            m.d.comb += o.payload.w[n].eq(Mux(n <= height, gathered.word_select(n, 16), 0))

        factors = [Signal(d * 16, name=f"x_{n}") for n in range(tiles)]
        for n, factor in enumerate(factors):
            with m.If(taken & (filled == n)):
                with m.If(row == 0):
                    m.d.sync += factor.eq(i.payload.x)
                with m.Else():
                    m.d.sync += factor.word_select(row, 16).eq(i.payload.x)
        m.d.comb += [
            self.x.as_value().eq(Array(factors)[tile]),
            self.opening.eq(opening[tile]),
            self.closing.eq(closing[tile]),
        ]
        return m


def _rotate(m: Module, name: str, value, places, count: int, *, left: bool):
    """`count` words of 16 bits, moved up (or down) by so many places."""
    for n in range(len(places)):
        moved = Signal(count * 16, name=f"{name}_moved_{n}")
        by = 16 * (1 << n)
        rotated = value.rotate_left(by) if left else value.rotate_right(by)
        m.d.comb += moved.eq(Mux(places[n], rotated, value))
        value = moved
    return value
