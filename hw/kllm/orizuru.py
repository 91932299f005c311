"""Orizuru: the k largest and k smallest values of a vector, found online (KLLM, section IV-C)."""

import dataclasses

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from hw.arith.bits.order_key import from_key, is_nan, to_key
from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.orizuru_unit import OrizuruLeaf, OrizuruMerge
from hw.layout import FLAG, count, mask, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters


@dataclasses.dataclass(frozen=True)
class OrizuruParameters(Parameters):
    """Sizes of an :class:`Orizuru` engine.

    n
        Values in the longest vector; any number from 1 to 65536.
    k
        Most pairs of a vector, at most `n`.
    lanes
        Values in one input beat, a power of two.
    radix
        Inputs of one unit, a power of two from 2 (16 in the paper).
    """

    n: int = 256
    k: int = 16
    lanes: int = 16
    radix: int = 16

    def __post_init__(self):
        require(1 <= self.n <= 1 << 16, "n must be between 1 and 65536", self.n)
        require(0 <= self.k <= self.n, f"k must be between 0 and n = {self.n}", self.k)
        for name in ("lanes", "radix"):
            value = getattr(self, name)
            power = value > 0 and value & (value - 1) == 0
            require(power, f"{name} must be a power of two", value)
        require(self.radix >= 2, "radix must be at least 2", self.radix)

    @classmethod
    def presets(cls):
        return {
            "small": cls(n=16, k=16, lanes=4),
            "default": cls(),
            "paper": cls(n=4096, k=64),
            # Three levels of units at the smallest size: for proofs and mutants.
            "deep": cls(n=8, k=8, lanes=2, radix=2),
        }

    @property
    def beats(self) -> int:
        """Input beats of a full vector."""
        return -(-self.n // self.lanes)

    @property
    def units(self) -> list[int]:
        """Units in each level, leaves first: 256, 16, 1 for 4096 values."""
        counts = [-(-self.n // self.radix)]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // self.radix))
        return counts

    @property
    def depth(self) -> int:
        """Levels of units."""
        return len(self.units)

    @property
    def latency(self) -> int:
        """Cycles from a vector's last input beat to its first output beat: depth + 2."""
        return self.depth + 2

    def cycles(self, beats: int, k: int) -> int:
        """Cycles for which a vector of `beats` input beats and `k` pairs occupies the engine."""
        return beats + (self.depth + k if k else 0)

    def total_cycles(self, beats: list[int], pairs: list[int]) -> int:
        """Cycles from the first beat offered to the last pair accepted, when nothing stalls.

        beats, pairs
            Number of beats and of pairs of each vector. The output buffer adds a cycle to the last
            pair.
        """
        occupied = sum(self.cycles(count, k) for count, k in zip(beats, pairs, strict=True))
        return occupied + (pairs[-1] > 0)

    @property
    def input_layout(self) -> data.StructLayout:
        """One input beat.

        ``values`` in order of index; mask ``keep`` of those that belong to the vector; ``last``
        beat of the vector; ``k``, the number of pairs, read with the last beat (values above the
        parameter `k` that its bits can hold work as well).
        """
        return data.StructLayout(
            {
                "values": data.ArrayLayout(FP16, self.lanes),
                "keep": mask(self.lanes),
                "k": count(range(self.k + 1)),
                "last": FLAG,
            }
        )

    @property
    def output_layout(self) -> data.StructLayout:
        """One pair.

        ``max``, ``min``: index and value of the next largest and the next smallest value;
        ``present`` is 0, and both are zero, once all values are popped; ``invalid`` if the vector
        holds a NaN; ``last`` pair of the vector.
        """
        end = data.StructLayout({"index": position(range(self.n)), "value": FP16})
        flags = dict.fromkeys(("present", "invalid", "last"), FLAG)
        return data.StructLayout({"max": end, "min": end, **flags})


class Orizuru(Component[OrizuruParameters]):
    """Pops the k largest and k smallest of a vector of up to N FP16 values, one pair a cycle.

        o[j] = (j-th largest, j-th smallest),  j = 0 … k-1

    ::

        i ─→ order keys ─→ leaf units ═max═▷ merge units ═max═▷ root ─┐
                           (16 values)                                ├─→ pair ─→ skid ─→ o
                                      ═min═▷ merge units ═min═▷ root ─┘

    Two trees share the leaves (KLLM, Fig. 7). The paper's tree repeats log2 N comparisons one after
    another for each pop; here every unit keeps its best value in a head register that is replaced
    in the cycle it is read, so one pair is output every cycle at any N.

    Order: ties go to the lower index in both trees, -0 equals +0, NaN comes after every number. The
    two ends are independent: a value is popped at both when 2k exceeds the vector's length. Zeros
    are output as +0, NaNs as the canonical quiet NaN.

    Latency: the first pair is offered depth + 2 cycles after the last input beat was accepted, with
    depth = ceil(log_radix N), at least 1. Throughput: one pair each cycle; a vector of B beats with
    k > 0 pairs occupies the engine for B + depth + k cycles, and with k = 0 for B cycles without
    output. Handshake: `i` is ready while a vector is loaded and not while pairs are popped; `o` may
    stall without loss. Overflow: none.

    A vector ends with ``last`` or with the beat that fills the engine, whichever comes first.
    Lanes beyond N are ignored.

    Examples
    --------
    >>> from hw.kllm.orizuru import Orizuru, OrizuruParameters
    >>> parameters = OrizuruParameters(n=4096, k=64)
    >>> parameters.units, parameters.latency
    ([256, 16, 1], 5)
    >>> parameters.cycles(beats=256, k=64)
    323
    >>> [name for name, _ in Orizuru(parameters).o.payload.shape()]
    ['max', 'min', 'present', 'invalid', 'last']
    """

    summary = "k largest and k smallest of N FP16 values from two trees over shared leaves"
    source = "KLLM, section IV-C, Fig. 7"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "The vector."),
            "o": stream_out(p.output_layout, "The pairs."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        vector = self.i.payload

        beat = Signal(range(p.beats))
        first = Signal(init=1)
        invalid = Signal()
        pairs_left = Signal(range(p.k + 1))
        fill = Signal(p.depth)  # one-hot: the level that loads its first heads
        taken, end, loading, popping, pop = (
            Signal(name=name) for name in ("taken", "end", "loading", "popping", "pop")
        )
        m.d.comb += [
            self.i.ready.eq(loading),
            taken.eq(self.i.valid & loading),
            end.eq(vector.last | (beat == p.beats - 1)),
        ]
        # The flag of NaNs covers the kept values of all beats.
        nans = Cat(is_nan(value) for value in vector.values) & vector.keep
        # Lanes beyond N are ignored.
        inside = p.n - (p.beats - 1) * p.lanes
        nans &= Cat((beat != p.beats - 1) | (lane < inside) for lane in range(p.lanes))
        # The last beat's number of pairs counts down while they are popped.
        with m.If(taken):
            m.d.sync += [
                first.eq(end),
                beat.eq(Mux(end, 0, beat + 1)),
                pairs_left.eq(vector.k),
                invalid.eq(nans.any() | (invalid & ~first)),
            ]
        # Load the leaves, fill the heads level by level, pop the pairs.
        with m.FSM():
            with m.State("LOAD"):
                # Beats go straight to the leaves; a vector without pairs to find needs no search.
                m.d.comb += loading.eq(1)
                with m.If(taken & end & vector.k.any()):
                    m.d.sync += fill.eq(1)
                    m.next = "FILL"
            with m.State("FILL"):
                # A level's heads are chosen from the level below, which was filled in the cycle
                # before.
                m.d.sync += fill.eq(fill << 1)
                with m.If(fill[-1]):
                    m.next = "POP"
            with m.State("POP"):
                # Both roots are popped together: the largest and the smallest value that is left in
                # its tree.
                m.d.comb += popping.eq(1)
                with m.If(pop):
                    m.d.sync += pairs_left.eq(pairs_left - 1)
                    with m.If(pairs_left == 1):
                        m.next = "LOAD"

        leaves = self._leaves(m, beat, taken, first)
        roots = {tree: self._merge(m, tree, leaves, fill, pop) for tree in ("max", "min")}

        # The skid buffer registers `ready`, so that a pop does not depend on ``o.ready``.
        m.submodules.output = output = SkidBuffer(
            SkidBufferParameters(width=p.output_layout.size), shape=p.output_layout
        )
        wiring.connect(m, output.o, wiring.flipped(self.o))
        pair = output.i.payload
        m.d.comb += [
            output.i.valid.eq(popping),
            pop.eq(popping & output.i.ready),
            # The minimum tree has complemented keys, so it too finds a maximum.
            pair.max.index.eq(roots["max"].index),
            pair.max.value.eq(from_key(roots["max"].key)),
            pair.min.index.eq(roots["min"].index),
            pair.min.value.eq(from_key(roots["min"].key, inverted=True)),
            pair.present.eq(roots["max"].key.any()),
            pair.invalid.eq(invalid),
            pair.last.eq(pairs_left == 1),
        ]
        return m

    def _leaves(self, m, beat, taken, first):
        """The leaf units; beat b writes the slots of its lanes."""
        p = self.parameters
        keys = Signal(data.ArrayLayout(FP16.width, p.lanes))
        m.d.comb += [key.eq(to_key(v)) for key, v in zip(keys, self.i.payload.values, strict=True)]
        beat_taken = Signal(p.beats)
        m.d.comb += beat_taken.eq(Cat(taken & (beat == b) for b in range(p.beats)))
        # A leaf reads the lanes of its slots: part of a beat, or whole beats one after another.
        bus = min(p.lanes, p.radix)
        leaves = []
        for number in range(p.units[0]):
            base = number * p.radix
            # A leaf serves both trees, because one comparison of two slots decides in either
            # direction.
            leaf = OrizuruLeaf(min(p.radix, p.n - base), bus)
            m.submodules[f"leaf_{number}"] = leaf
            first_lane = base % p.lanes
            m.d.comb += [
                leaf.clear.eq(taken & first),
                leaf.keys.eq(keys[first_lane : first_lane + bus]),
                leaf.keep.eq(self.i.payload.keep[first_lane : first_lane + bus]),
                leaf.write.eq(beat_taken[base // p.lanes :]),
            ]
            leaves.append(leaf)
        return leaves

    def _merge(self, m, end, leaves, fill, pop):
        """One end's tree of merge units over the leaves; returns the root's head."""
        p = self.parameters
        heads = [getattr(leaf, f"head_{end}") for leaf in leaves]
        advances = [getattr(leaf, f"advance_{end}") for leaf in leaves]
        # Each level joins `radix` units of the level below.
        entries = p.radix
        # Each merge keeps its children's heads in registers, so a pop changes one path only.
        for level in range(1, p.depth):
            merges = []
            for number, base in enumerate(range(0, len(heads), p.radix)):
                children = heads[base : base + p.radix]
                merge = OrizuruMerge(len(children), entries)
                m.submodules[f"{end}_{level}_merge_{number}"] = merge
                for i, child in enumerate(children):
                    # A head is loaded when its level is filled, and whenever it is popped.
                    m.d.comb += [
                        merge.children[i].key.eq(child.key),
                        merge.children[i].index.eq(child.index),
                        advances[base + i].eq(fill[level - 1] | merge.take[i]),
                    ]
                merges.append(merge)
            heads = [merge.head for merge in merges]
            advances = [merge.advance for merge in merges]
            entries *= p.radix
        m.d.comb += advances[0].eq(fill[-1] | pop)
        return heads[0]
