"""The cable's side of a memory on the board: rows as bytes."""

from amaranth.hdl import Cat, Module, Signal

from hw.boards.stream_ports import bytes_of
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

CABLE_PORTS: Ports = {
    "clear": wire_in(1, "Forget requests, not rows."),
    "start": wire_in(1, "Begin at `row`, to push if `loads`, else to pop."),
    "loads": wire_in(1, "Direction of the rows after `start`: to the memory."),
    "row": wire_in(32),
    "push": wire_in(1),
    "repeat": wire_in(1),
    "pop": wire_in(1),
    "given": wire_in(8),
    "data": wire_out(8),
    "present": wire_out(1, "A byte may be pushed or popped, or the row repeated."),
}
"""What the command processor has of every memory, whatever it is made of."""


class CableRow(Component[None]):
    """A row of a memory, as bytes for the cable, the lowest first.

    After `start`, `push` collects the bytes of rows from `row` on, each of which is stored with its
    last byte, and `repeat` stores the last one once more; or `pop` takes the bytes of rows that are
    fetched; while `present` is high. The memory may take any time for a row.

    Latency: `asks` in the cycle after a row's last byte, or after `start`. Throughput: a byte a
    cycle, but for the time of the memory.

    Parameters
    ----------
    width : int
        Bits of a row.
    """

    def __init__(self, width: int):
        self._width = width
        super().__init__()

    def ports(self) -> Ports:
        bits = 8 * bytes_of(self._width)
        own = {name: port for name, port in CABLE_PORTS.items() if name != "clear"}
        return own | {
            "asks": wire_out(1, "A row is to be stored or fetched."),
            "stores": wire_out(1, "It is to be stored; valid with `asks`."),
            "number": wire_out(32, "Number of the row."),
            "stored": wire_out(bits, "The row."),
            "taken": wire_in(1, "The memory has begun; only while `asks` is high."),
            "fetched": wire_in(1, "A row that was to be fetched is there."),
            "found": wire_in(bits, "The row, with `fetched`."),
        }

    def elaborate(self, platform):
        m = Module()
        size = bytes_of(self._width)
        counted = Signal(range(size + 1))
        waits = Signal()
        # A row fetched for what was before `start` is nobody's.
        fetching = Signal()
        stale = Signal()
        m.d.comb += [
            self.data.eq(self.stored[:8]),
            self.present.eq(~waits & (self.stores | (counted != 0))),
            self.asks.eq(waits & ~fetching),
        ]
        with m.If(self.taken):
            m.d.sync += [fetching.eq(~self.stores), waits.eq(~self.stores)]
            with m.If(self.stores):
                m.d.sync += self.number.eq(self.number + 1)
        with m.If(self.fetched):
            m.d.sync += [fetching.eq(0), stale.eq(0)]
            with m.If(~stale):
                m.d.sync += [self.stored.eq(self.found), counted.eq(size), waits.eq(0)]
        # Bytes arrive lowest first; the last one of a row stores it.
        with m.If(self.push):
            m.d.sync += [self.stored.eq(Cat(self.stored, self.given)[8:]), counted.eq(counted + 1)]
            with m.If(counted == size - 1):
                m.d.sync += [counted.eq(0), waits.eq(1)]
        with m.If(self.repeat):
            m.d.sync += waits.eq(1)
        # Bytes leave lowest first; with a row's last one the next row is fetched.
        with m.If(self.pop):
            m.d.sync += [self.stored.eq(self.stored >> 8), counted.eq(counted - 1)]
            with m.If(counted == 1):
                m.d.sync += [self.number.eq(self.number + 1), waits.eq(1)]
        # A transfer begins at a row: to load it, bytes are collected; to dump it, it is fetched.
        with m.If(self.start):
            m.d.sync += [
                self.number.eq(self.row),
                self.stores.eq(self.loads),
                counted.eq(0),
                waits.eq(~self.loads),
                stale.eq((fetching & ~self.fetched) | (self.taken & ~self.stores)),
            ]
        return m
