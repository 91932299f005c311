"""The units of Orizuru: leaves that hold values, merges that join units (KLLM, section IV-C).

Each unit keeps its best remaining value in a *head* register. When the head is read, the next best
replaces it at the same clock edge, so a tree of any depth outputs one value every cycle. Both ends
use the same logic: the best value has the largest *key*, which is its order key at the maximum and
the inverted order key at the minimum.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.utils import ceil_log2

from hw.arith.bits.order_key import EMPTY_KEY, FP16, NAN_KEY, FloatFormat, is_nan_key
from hw.component import Component
from hw.kllm.tournament import Tournament
from hw.layout import index, integer
from hw.ports import Ports, wire_in, wire_out


def head_layout(width: int, entries: int) -> data.StructLayout:
    """The best remaining value of a unit: its `key` (0 if the unit is empty) and its `index`."""
    return data.StructLayout({"key": integer(width), "index": index(ceil_log2(entries))})


def select(one_hot, values):
    """The value whose bit is set, as AND-OR logic; 0 if no bit is set."""
    return reduce(
        or_, (value & bit.replicate(len(value)) for bit, value in zip(one_hot, values, strict=True))
    )


def encode(one_hot):
    """The number of the bit that is set; 0 if no bit is set."""
    count = len(one_hot)
    return Cat(
        Cat(one_hot[i] for i in range(count) if i >> bit & 1).any()
        for bit in range(ceil_log2(count))
    )


class OrizuruLeaf(Component[None]):
    """`slots` values with a max tree and a min tree over them (KLLM, section IV-C, Fig. 7a).

    ::

        slots ─→ compare pairs ─┬─ greater ─→ max tree ─→ head_max
                                └─ less ────→ min tree ─→ head_min

    The two trees share the stored values and the comparisons of the lowest level. Each tree has a
    `removed` bit for each slot: popped at that end, or never written.

    A write is visible to the trees in the next cycle; `advance` loads the head at the next clock
    edge. So `advance` in the cycle after the last write makes the first head available one cycle
    later.
    """

    def __init__(self, slots: int, bus: int, float_format: FloatFormat = FP16):
        self._slots = slots
        self._bus = bus
        self._format = float_format
        super().__init__()

    def ports(self) -> Ports:
        width = self._format.width
        return {
            "keys": wire_in(data.ArrayLayout(width, self._bus), "Order keys to write."),
            "keep": wire_in(
                self._bus,
                "Mask of keys that hold a value; the self._slots of the others are removed.",
            ),
            "write": wire_in(
                -(-self._slots // self._bus),
                "Bit g writes self._slots g * self._bus to g * self._bus + self._bus - 1.",
            ),
            "clear": wire_in(
                1, "With the first write of a vector: self._slots not written are removed."
            ),
            "advance_max": wire_in(
                1, "Replace the head by the best remaining slot, and remove that slot."
            ),
            "advance_min": wire_in(1, "The same for the min tree."),
            "head_max": wire_out(
                head_layout(width, self._slots), "Slot and key of the greatest value that remains."
            ),
            "head_min": wire_out(
                head_layout(width, self._slots), "Slot and key of the least value that remains."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        slots, width = self._slots, self._format.width
        keys = [Signal(width, reset_less=True, name=f"key_{i}") for i in range(slots)]
        # Popping removes a bit and not the key: both trees search the same values, each with its
        # mask.
        removed = {end: Signal(slots, init=-1, name=f"removed_{end}") for end in ("max", "min")}
        for i in range(slots):
            with m.If(self.write[i // self._bus]):
                m.d.sync += keys[i].eq(self.keys[i % self._bus])
        # Write and keep of each slot: a bit of `write` is for `bus` slots.
        write = Signal(slots)
        keep = Signal(slots)
        m.d.comb += [
            write.eq(Cat(bit.replicate(self._bus) for bit in self.write)),
            keep.eq(self.keep.replicate(len(self.write))),
        ]

        # Lowest level: one comparison of each pair of slots serves both trees.
        pair_keys: dict[str, list[Value]] = {"max": [], "min": []}  # key of each pair's winner
        picks: dict[str, list[Value]] = {
            "max": [],
            "min": [],
        }  # the winner's slot within the pair, one-hot
        for left in range(0, slots - 1, 2):
            right = left + 1
            greater, less = Signal(name=f"greater_{left}"), Signal(name=f"less_{left}")
            nan = Signal(2, name=f"nan_{left}")
            m.d.comb += [
                greater.eq(keys[right] > keys[left]),
                less.eq(keys[right] < keys[left]),
                nan.eq(Cat(is_nan_key(keys[i], self._format) for i in (left, right))),
            ]
            # A NaN has the lowest key. It must lose at both ends, so the minimum tests for it.
            wins = {"max": greater, "min": ~nan[1] & (less | nan[0])}
            for end in ("max", "min"):
                out = removed[end]
                path = Signal(name=f"path_{end}_{left}")  # the right slot wins
                m.d.comb += path.eq(~out[right] & (out[left] | wins[end]))
                chosen = Mux(path, keys[right], keys[left])
                if end == "min":
                    chosen = Mux(Mux(path, nan[1], nan[0]), NAN_KEY, ~chosen)
                pair_keys[end].append(Mux(out[left] & out[right], EMPTY_KEY, chosen))
                picks[end].append(Cat(~path, path))
        # An odd slot has no partner and wins its pair.
        if slots % 2:
            last = keys[-1]
            inverted = Mux(is_nan_key(last, self._format), NAN_KEY, ~last)
            for end, key in (("max", last), ("min", inverted)):
                pair_keys[end].append(Mux(removed[end][-1], EMPTY_KEY, key))
                picks[end].append(Const(1, 1))

        # Upper levels: a tournament of the pairs for each tree, whose winner is the next head.
        for end in ("max", "min"):
            advance, head = getattr(self, f"advance_{end}"), getattr(self, f"head_{end}")
            tree = Tournament(len(pair_keys[end]), width)
            m.submodules[f"{end}_tree"] = tree
            m.d.comb += [leaf.eq(key) for leaf, key in zip(tree.keys, pair_keys[end], strict=True)]
            won = Signal(slots, name=f"won_{end}")
            m.d.comb += won.eq(
                Cat(
                    pick & bit.replicate(len(pick))
                    for pick, bit in zip(picks[end], tree.won, strict=True)
                )
            )
            with m.If(advance):
                m.d.sync += [head.key.eq(tree.best), head.index.eq(encode(won))]
            # A slot is removed when popped; a write restores it, or removes it if it is not kept.
            # The winner is replaced at once by the best of the rest, as all comparisons are
            # combinational: one pop a cycle.
            popped = won & advance.replicate(slots)
            m.d.sync += removed[end].eq(
                (write & ~keep) | (~write & (self.clear.replicate(slots) | popped | removed[end]))
            )
        return m


class OrizuruMerge(Component[None]):
    """One end's tree over the heads of `inputs` units.

    `advance` loads the head with the best of the children's heads and pops that child in the same
    cycle. There are `inputs` - 1 comparisons, and no storage but the head.
    """

    def __init__(self, inputs: int, entries: int, width: int = FP16.width):
        self._entries = entries
        self._inputs = inputs
        self._width = width
        super().__init__()

    def ports(self) -> Ports:
        return {
            "children": wire_in(
                data.ArrayLayout(head_layout(self._width, self._entries), self._inputs),
                "Heads of units with `entries` values each, in order of their indices.",
            ),
            "take": wire_out(
                self._inputs, "Child whose head is popped in this cycle, one-hot or 0."
            ),
            "advance": wire_in(1, "Replace the head."),
            "head": wire_out(
                head_layout(self._width, self._inputs * self._entries),
                "Best value of the children.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = Tournament(self._inputs, self._width)
        children = [self.children[i] for i in range(self._inputs)]
        m.d.comb += [key.eq(child.key) for key, child in zip(tree.keys, children, strict=True)]
        m.d.comb += self.take.eq(tree.won & self.advance.replicate(self._inputs))
        with m.If(self.advance):
            m.d.sync += [
                self.head.key.eq(tree.best),
                # | child's number | index in the child |, as entries is a power of two.
                self.head.index.eq(
                    Cat(select(tree.won, [child.index for child in children]), encode(tree.won))
                ),
            ]
        return m
