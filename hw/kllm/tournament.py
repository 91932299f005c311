"""Tournament: the largest of several keys in one combinational tree."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class Tournament(Component[None]):
    """Balanced tree of compare-and-select nodes over unsigned keys (KLLM, Fig. 7).

        best = max(keys),  won = one-hot of the lowest index that holds it

    A node is one comparison and one multiplexer; there are `inputs` - 1 of them in
    ceil(log2(inputs)) levels. Combinational.
    """

    def __init__(self, inputs: int, width: int):
        self._inputs = inputs
        self._width = width
        super().__init__()

    def ports(self) -> Ports:
        return {
            "keys": wire_in(
                data.ArrayLayout(self._width, self._inputs),
                "Keys to compare; the lowest index wins ties.",
            ),
            "best": wire_out(self._width, "The winning key."),
            "won": wire_out(self._inputs, "Index of the winning key, one-hot."),
        }

    def elaborate(self, platform):
        m = Module()

        def winner(first: int, count: int):
            """Returns (best key, one-hot index) of `count` keys from `first` on."""
            if count == 1:
                return self.keys[first], None
            # The left part is a full tree, the right part takes the rest.
            half = 1 << (count - 1).bit_length() - 1
            left, left_won = winner(first, half)
            right, right_won = winner(first + half, count - half)
            # The paper's path bit: this node points to its right child.
            # Strictly greater: of equal keys the left one, with the lower index, wins.
            path = Signal(name=f"path_{first}_{count}")
            best = Signal(self._width, name=f"best_{first}_{count}")
            m.d.comb += [path.eq(right > left), best.eq(Mux(path, right, left))]
            # The winner's one-hot number: the chosen part's, with the other part masked.
            left_won = ~path if left_won is None else left_won & (~path).replicate(half)
            right_won = path if right_won is None else right_won & path.replicate(count - half)
            won = Signal(count, name=f"won_{first}_{count}")
            m.d.comb += won.eq(Cat(left_won, right_won))
            return best, won

        best, won = winner(0, self._inputs)
        m.d.comb += [self.best.eq(best), self.won.eq(1 if won is None else won)]
        return m
