"""The lowest of the rows that are marked: a priority encoder."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class LowestRow(Component[None]):
    """Number of the lowest bit that is set, by a binary tree of ceil(log2 n) levels.

    Combinational.
    """

    def __init__(self, n: int):
        self._n = n
        super().__init__()

    def ports(self) -> Ports:
        return {
            "marked": wire_in(self._n),
            "found": wire_out(1, "Some bit is set."),
            "row": wire_out(range(self._n), "Its number; 0 if no bit is set."),
        }

    def elaborate(self, platform):
        m = Module()
        # Each node of the tree: whether a bit below it is set, and the number of the lowest one
        # within the node. A level joins two neighbours and adds one bit to that number.
        nodes: list[tuple[Value, Value]] = [(bit, Const(0, 0)) for bit in self.marked]
        level = 0
        while len(nodes) > 1:
            joined: list[tuple[Value, Value]] = []
            for number in range(0, len(nodes), 2):
                if number + 1 == len(nodes):
                    found, row = nodes[number]
                    joined.append((found, Cat(row, Const(0, 1))))
                    continue
                (first, first_row), (second, second_row) = nodes[number : number + 2]
                found = Signal(name=f"found_{level}_{number // 2}")
                row = Signal(level + 1, name=f"row_{level}_{number // 2}")
                # Depth log2 of the rows; where neither half has a bit, the number does not matter.
                low_bits = Mux(first, first_row, second_row) if level else Const(0, 0)
                m.d.comb += [found.eq(first | second), row.eq(Cat(low_bits, ~first))]
                joined.append((found, row))
            nodes = joined
            level += 1
        [(found, row)] = nodes
        m.d.comb += [self.found.eq(found), self.row.eq(Mux(found, row, 0))]
        return m
