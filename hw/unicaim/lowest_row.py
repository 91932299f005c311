"""The lowest of the rows that are marked."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from hw.component import Component


class LowestRow(Component):
    """Number of the lowest bit that is set, by a knockout tournament of ceil(log2 n) rounds.

    Combinational.

    Members
    -------
    marked : :py:`In(n)`
    found : :py:`Out(1)`
        Some bit is set.
    row : :py:`Out(range(n))`
        Its number, 0 if none is.
    """

    def __init__(self, n: int):
        self._n = n
        super().__init__({"marked": In(n), "found": Out(1), "row": Out(range(n))})

    def elaborate(self, platform):
        m = Module()
        left = [(bit, Const(0, 0)) for bit in self.marked]
        rounds = 0
        while len(left) > 1:
            winners = []
            for number in range(0, len(left), 2):
                if number + 1 == len(left):
                    some, row = left[number]
                    winners.append((some, Cat(row, Const(0, 1))))
                    continue
                (first, first_row), (second, second_row) = left[number : number + 2]
                some = Signal(name=f"some_{rounds}_{number // 2}")
                row = Signal(rounds + 1, name=f"row_{rounds}_{number // 2}")
                lower = Mux(first, first_row, second_row) if rounds else Const(0, 0)
                m.d.comb += [some.eq(first | second), row.eq(Cat(lower, ~first))]
                winners.append((some, row))
            left = winners
            rounds += 1
        [(some, row)] = left
        m.d.comb += [self.found.eq(some), self.row.eq(Mux(some, row, 0))]
        return m
