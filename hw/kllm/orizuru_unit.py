"""The units Orizuru is built of: leaves that hold values, merges that join units.

Each unit keeps the best value it has left in a *head* register. Whoever takes a head has it
replaced by the next best at the same clock edge, so a tree of units hands out one value every cycle
however deep it is. Both ends use the same logic: "best" means the largest *rank*, where the rank of
a value is its order key for the maximum and the inverted key for the minimum.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.arith.order_key import EMPTY_KEY, FP16, NAN_KEY, FloatFormat, is_nan_key
from hw.component import Component
from hw.kllm.tournament import Tournament


def head_layout(width: int, entries: int) -> data.StructLayout:
    """The best value left below a unit: its `rank` (0 for none left) and its `index`."""
    return data.StructLayout({"rank": width, "index": ceil_log2(entries)})


def select(one_hot, values):
    """The value whose bit is set, as AND-OR logic; 0 if none is."""
    return reduce(
        or_, (value & bit.replicate(len(value)) for bit, value in zip(one_hot, values, strict=True))
    )


def encode(one_hot):
    """The number of the bit that is set; 0 if none is."""
    count = len(one_hot)
    return Cat(
        Cat(one_hot[i] for i in range(count) if i >> bit & 1).any()
        for bit in range(ceil_log2(count))
    )


class OrizuruLeaf(Component):
    """`slots` values with a max tree and a min tree over them (KLLM, section IV-C, Fig. 7a).

    The two trees share the stored values and the comparisons of the lowest level. A slot leaves
    each tree by that tree's own `gone` bit.

    Everything happens at the clock edge: a write is seen by the trees in the next cycle, `advance`
    loads the head in the same cycle. `advance` in the cycle after the last write gives the first
    head one cycle later.

    Members
    -------
    keys : :py:`In(ArrayLayout(width, bus))`
        Order keys to write.
    keep : :py:`In(bus)`
        Which of them hold a value; the others count as gone.
    write : :py:`In(ceil(slots / bus))`
        Where to: bit g writes slots g * bus and following.
    clear : :py:`In(1)`
        With the first write of a vector: slots not written are gone.
    advance_max, advance_min : :py:`In(1)`
        Replace the head by the best slot left, and mark that slot gone.
    head_max, head_min : :py:`Out(head_layout(width, slots))`
        Best value taken out of each tree.
    """

    def __init__(self, slots: int, bus: int, float_format: FloatFormat = FP16):
        self._slots = slots
        self._bus = bus
        self._format = float_format
        width = float_format.width
        super().__init__(
            {
                "keys": In(data.ArrayLayout(width, bus)),
                "keep": In(bus),
                "write": In(-(-slots // bus)),
                "clear": In(1),
                "advance_max": In(1),
                "advance_min": In(1),
                "head_max": Out(head_layout(width, slots)),
                "head_min": Out(head_layout(width, slots)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slots, width = self._slots, self._format.width
        keys = [Signal(width, reset_less=True, name=f"key_{i}") for i in range(slots)]
        gone = {end: Signal(slots, init=-1, name=f"gone_{end}") for end in ("max", "min")}
        for i in range(slots):
            with m.If(self.write[i // self._bus]):
                m.d.sync += keys[i].eq(self.keys[i % self._bus])
        write, keep = Signal(slots), Signal(slots)
        m.d.comb += [
            write.eq(Cat(bit.replicate(self._bus) for bit in self.write)),
            keep.eq(self.keep.replicate(len(self.write))),
        ]

        ranks = {"max": [], "min": []}  # of each pair's winner
        picks = {"max": [], "min": []}  # its slot within the pair, one-hot
        for left in range(0, slots - 1, 2):
            right = left + 1
            # The one comparison that both trees share.
            greater, less = Signal(name=f"greater_{left}"), Signal(name=f"less_{left}")
            nan = Signal(2, name=f"nan_{left}")
            m.d.comb += [
                greater.eq(keys[right] > keys[left]),
                less.eq(keys[right] < keys[left]),
                nan.eq(Cat(is_nan_key(keys[i], self._format) for i in (left, right))),
            ]
            # NaN has the lowest key, which the maximum wants and the minimum does not.
            wins = {"max": greater, "min": ~nan[1] & (less | nan[0])}
            for end in ("max", "min"):
                out = gone[end]
                path = Signal(name=f"path_{end}_{left}")
                m.d.comb += path.eq(~out[right] & (out[left] | wins[end]))
                chosen = Mux(path, keys[right], keys[left])
                if end == "min":
                    chosen = Mux(Mux(path, nan[1], nan[0]), NAN_KEY, ~chosen)
                ranks[end].append(Mux(out[left] & out[right], EMPTY_KEY, chosen))
                picks[end].append(Cat(~path, path))
        if slots % 2:
            last = keys[-1]
            inverted = Mux(is_nan_key(last, self._format), NAN_KEY, ~last)
            for end, rank in (("max", last), ("min", inverted)):
                ranks[end].append(Mux(gone[end][-1], EMPTY_KEY, rank))
                picks[end].append(Const(1, 1))

        for end in ("max", "min"):
            advance, head = getattr(self, f"advance_{end}"), getattr(self, f"head_{end}")
            tree = Tournament(len(ranks[end]), width)
            m.submodules[f"{end}_tree"] = tree
            m.d.comb += [key.eq(rank) for key, rank in zip(tree.keys, ranks[end], strict=True)]
            won = Signal(slots, name=f"won_{end}")
            m.d.comb += won.eq(
                Cat(
                    pick & bit.replicate(len(pick))
                    for pick, bit in zip(picks[end], tree.won, strict=True)
                )
            )
            with m.If(advance):
                m.d.sync += [head.rank.eq(tree.best), head.index.eq(encode(won))]
            popped = won & advance.replicate(slots)
            m.d.sync += gone[end].eq(
                (write & ~keep) | (~write & (self.clear.replicate(slots) | popped | gone[end]))
            )
        return m


class OrizuruMerge(Component):
    """One end's tree over the heads of `inputs` units: takes the best and passes it on.

    `advance` loads the head with the best of the children's heads and takes that child's, all in
    one cycle. One comparison per child less one, no storage but the head.

    Members
    -------
    children : :py:`In(ArrayLayout(head_layout(width, entries), inputs))`
        Heads of units with `entries` values each, in order of their indices.
    take : :py:`Out(inputs)`
        Which child's head is taken in this cycle, at most one.
    advance : :py:`In(1)`
        Replace the head.
    head : :py:`Out(head_layout(width, inputs * entries))`
        Best value taken from the children.
    """

    def __init__(self, inputs: int, entries: int, width: int = FP16.width):
        self._inputs = inputs
        self._width = width
        super().__init__(
            {
                "children": In(data.ArrayLayout(head_layout(width, entries), inputs)),
                "take": Out(inputs),
                "advance": In(1),
                "head": Out(head_layout(width, inputs * entries)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = Tournament(self._inputs, self._width)
        children = [self.children[i] for i in range(self._inputs)]
        m.d.comb += [key.eq(child.rank) for key, child in zip(tree.keys, children, strict=True)]
        m.d.comb += self.take.eq(tree.won & self.advance.replicate(self._inputs))
        with m.If(self.advance):
            m.d.sync += [
                self.head.rank.eq(tree.best),
                # entries is a power of two, so the indices simply join.
                self.head.index.eq(
                    Cat(select(tree.won, [child.index for child in children]), encode(tree.won))
                ),
            ]
        return m
