"""Rows in, columns out: what a fixed adder tree needs in front of it (VEDA, section IV-A)."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.layout import FLAG
from hw.ports import Ports, stream_in, stream_out, wire_out


class TransposeBuffer(Component[None]):
    """Tiles of d rows, or fewer at a vector's end, and of their factors; output as d columns each.

    Element i of row j is word j of bank (i + j) mod d, so that a row and a column each access every
    bank once; rotations at both ports put the elements in order. With d = 4, ``ij`` is element i of
    row j::

        bank    0   1   2   3
        word 0  00  10  20  30
        word 1  31  01  11  21      row 1 is rotated by one bank
        word 2  22  32  02  12
        word 3  13  23  33  03      column 0 is 00, 01, 02, 03

    Throughput: a row a cycle, a column a cycle. One tile is filled and emptied in turn; of two, one
    is filled while the other is emptied. Latency: 2 cycles from a tile's last row to its first
    column.

    Parameters
    ----------
    row : ArrayLayout
        d elements of FP16.
    tiles : int
        1 or 2.
    """

    def __init__(self, row: data.ArrayLayout, tiles: int):
        self._row = row
        self._lanes = row.length
        self._tiles = tiles
        super().__init__()

    def ports(self) -> Ports:
        return {
            "i": stream_in(
                {"w": self._row, "x": FP16, "last": FLAG},
                "Rows ``w`` and their factors ``x``, FP16.",
            ),
            "o": stream_out(
                {"w": self._row, "last": FLAG},
                "Columns ``w``, 0 where the tile has no row; ``last`` of the tile.",
            ),
            "x": wire_out(
                self._row,
                "The tile's factors, 0 where it has no row, while its first column is offered.",
            ),
            "first_tile": wire_out(
                1, "The tile's first row began a vector, its last one ended it."
            ),
            "last_tile": wire_out(1, "With `x`."),
            "busy": wire_out(1, "Columns of complete tiles are to come."),
        }

    def elaborate(self, platform):
        m = Module()
        d, tiles, i, o = self._lanes, self._tiles, self.i, self.o

        # Fill tile `filling` row by row; a full one waits to be emptied, column by column.
        filling = Signal(range(tiles))
        emptying = Signal(range(tiles))
        row = Signal(range(d))
        column = Signal(range(d))
        fire = Signal()
        done = Signal()
        step = Signal()
        # A tile of d by d words goes in by rows and out by columns, one of either a cycle.
        vector_first = Signal(init=1)  # the next row begins a vector
        full = Array(Signal(name=f"full_{n}") for n in range(tiles))
        last_row = Array(Signal(range(d), name=f"last_row_{n}") for n in range(tiles))
        first_tile = Array(Signal(name=f"first_tile_{n}") for n in range(tiles))
        last_tile = Array(Signal(name=f"last_tile_{n}") for n in range(tiles))
        m.d.comb += [
            i.ready.eq(~full[filling]),
            fire.eq(i.valid & i.ready),
            done.eq(fire & (i.payload.last | (row == d - 1))),
            step.eq(full[emptying] & (~o.valid | o.ready)),
            self.busy.eq(Cat(full).any() | o.valid),
        ]
        with m.If(fire):
            m.d.sync += row.eq(row + 1)
        # A tile is full after d rows or with its vector's end; the other one is filled next.
        with m.If(done):
            m.d.sync += [
                row.eq(0),
                vector_first.eq(i.payload.last),
                full[filling].eq(1),
                last_row[filling].eq(row),
                first_tile[filling].eq(vector_first),
                last_tile[filling].eq(i.payload.last),
                filling.eq(0 if tiles == 1 else ~filling),
            ]

        output_column = Signal.like(column)
        height = Signal(range(d))  # rows at the output, less one
        output_tile = Signal.like(emptying)
        # The output keeps what it needs of the tile, which is filled again after its last column.
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(step):
            m.d.sync += [
                o.valid.eq(1),
                o.payload.last.eq(column == d - 1),
                output_column.eq(column),
                height.eq(last_row[emptying]),
                output_tile.eq(emptying),
                column.eq(column + 1),
            ]
            # With its last column being read, the tile may be filled again.
            with m.If(column == d - 1):
                m.d.sync += [
                    column.eq(0),
                    full[emptying].eq(0),
                    emptying.eq(0 if tiles == 1 else ~emptying),
                ]

        in_order = self._banks(m, fire, filling, row, step, emptying, column, output_column)
        # What the banks hold beyond the tile's rows is of an earlier tile.
        for n in range(d):
            m.d.comb += o.payload.w[n].eq(Mux(n <= height, in_order.word_select(n, 16), 0))
        factors = self._factors(m, fire, filling, row)
        m.d.comb += [
            self.x.as_value().eq(Array(factors)[output_tile]),
            self.first_tile.eq(first_tile[output_tile]),
            self.last_tile.eq(last_tile[output_tile]),
        ]
        return m

    def _banks(self, m: Module, fire, filling, row, step, emptying, column, output_column) -> Value:
        """The banks: row j is rotated up by j, column i down by i. Returns a column in order."""
        d, tiles = self._lanes, self._tiles
        words = []
        # The rotation places any row and any column in d different banks, so that each is one
        # access: word i of row j is in bank (i + j) mod d.
        rotated = _rotate(m, "row", self.i.payload.w.as_value(), row, d, left=True)
        for n in range(d):
            m.submodules[f"bank_{n}"] = bank = memory.Memory(shape=16, depth=tiles * d, init=[])
            write, read = bank.write_port(), bank.read_port()
            address = Signal.like(row, name=f"address_{n}")
            m.d.comb += [
                write.en.eq(fire),
                write.addr.eq(Cat(row, filling)),
                write.data.eq(rotated.word_select(n, 16)),
                address.eq(n - column),
                read.addr.eq(Cat(address, emptying)),
                read.en.eq(step),
            ]
            words.append(read.data)
        return _rotate(m, "column", Cat(words), output_column, d, left=False)

    def _factors(self, m: Module, fire: Signal, filling: Signal, row: Signal) -> list[Signal]:
        """Each tile's factors: the first one of a tile clears the others."""
        d = self._lanes
        factors = [Signal(d * 16, name=f"x_{n}") for n in range(self._tiles)]
        for n, factor in enumerate(factors):
            with m.If(fire & (filling == n)):
                with m.If(row == 0):
                    m.d.sync += factor.eq(self.i.payload.x)
                with m.Else():
                    m.d.sync += factor.word_select(row, 16).eq(self.i.payload.x)
        return factors


def _rotate(m: Module, name: str, value, words, count: int, *, left: bool):
    """`count` words of 16 bits, rotated up (`left`) or down by `words` words."""
    for n in range(len(words)):
        stage = Signal(count * 16, name=f"{name}_rotated_{n}")
        by = 16 * (1 << n)
        rotated = value.rotate_left(by) if left else value.rotate_right(by)
        m.d.comb += stage.eq(Mux(words[n], rotated, value))
        value = stage
    return value
