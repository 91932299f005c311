"""Activations to indices of their nearest centroids (KLLM, section IV-A, figure 5)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.bits.order_key import is_nan, to_key
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.kllm.orizuru_unit import select
from hw.layout import FLAG, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

ONE = 0x3C00
NEVER_BELOW = 0xFFFF
"""Order key above every number's and above the key of a NaN in x."""


@dataclasses.dataclass(frozen=True)
class ClusteringUnitParameters(Parameters):
    """
    activation_bits
        nA: bits of an index, 1 to 6. There are 2^nA centroids and 2^nA - 1 midpoints.
    lanes
        Values in one beat, 1 to 64.
    """

    activation_bits: int = 4
    lanes: int = 16

    def __post_init__(self):
        bits = self.activation_bits
        require(1 <= bits <= 6, "activation_bits must be between 1 and 6", bits)
        require(1 <= self.lanes <= 64, "lanes must be between 1 and 64", self.lanes)

    @classmethod
    def presets(cls) -> dict[str, "ClusteringUnitParameters"]:
        return {
            "small": cls(activation_bits=2, lanes=2),
            "w4a3": cls(activation_bits=3),
            "default": cls(),
            "paper": cls(lanes=32),
        }

    @property
    def midpoints(self) -> int:
        """2^nA - 1."""
        return (1 << self.activation_bits) - 1

    @property
    def latency(self) -> int:
        """Cycles from a beat of values to its indices."""
        return 1

    @property
    def setup(self) -> int:
        """Cycles from a vector's scale offered to its first beat accepted: 2^nA + 1."""
        return self.midpoints + 2

    def cycles(self, beats: list[int]) -> int:
        """Cycles from the first scale offered to the last indices accepted, when nothing stalls.

        Each vector but the first is set up while the one before it passes.

        beats
            Number of beats of each vector.
        """
        return sum([self.setup, *(max(b, self.setup) for b in beats[:-1]), beats[-1], self.latency])

    @property
    def scale_layout(self) -> data.StructLayout:
        """One for each vector, ahead of its values.

        ``scale``, a zero of either sign means 1; ``load``: the vector has new midpoints.
        """
        return data.StructLayout({"scale": FP16, "load": FLAG})

    @property
    def input_layout(self) -> data.StructLayout:
        """``values``, mask ``keep`` of those that belong to the vector, ``last`` beat."""
        values = data.ArrayLayout(FP16, self.lanes)
        return data.StructLayout({"values": values, "keep": mask(self.lanes), "last": FLAG})

    @property
    def output_layout(self) -> data.StructLayout:
        """``index`` of every value, ``keep`` and ``last`` as in the input beat."""
        indices = data.ArrayLayout(index(self.activation_bits), self.lanes)
        return data.StructLayout({"index": indices, "keep": mask(self.lanes), "last": FLAG})


class ClusteringUnit(Component[ClusteringUnitParameters]):
    """Index of the centroid nearest to x / scale, for `lanes` values a cycle.

        index(x) = number of j with round16(scale · midpoint[j]) < x

    ::

        midpoints ─→ 2^nA - 1 registers ─→ × ─→ keys ─→ next vector's keys ─→ this vector's keys
                      └─ round and round ─┘ scale                                     │
        x ─────────────────────────────────────────────────────────────────→ compare ─┴→ o

    The midpoints between neighbouring centroids are multiplied by the scale, one a cycle, so that
    values are compared instead of divided. A value equal to a scaled midpoint gets the lower index.

    The index is found by bisection over the midpoints, so they must ascend; after multiplication by
    a positive scale and rounding they still do. For midpoints that do not ascend the index is the
    bisection's: its highest bit is the comparison with the middle one, and so on. Rounding is to
    nearest even, subnormals included. A NaN gets index 0, and so does every value of a vector whose
    scale is NaN; both zeros are equal. Lanes not kept get the index of their bits.

    Each vector has one beat of `scale`, then its beats of `x`. With ``load`` set, its 2^nA - 1
    midpoints are read from `midpoints` in ascending order; without, it uses the vector before's.
    The first vector after reset must load.

    Latency: 1 cycle from `x` to `o`. Throughput: one beat per cycle. Scaling takes 2^nA - 1 cycles,
    while the vector before passes, and the scale is accepted in the last of them; a vector's first
    beat is accepted 2^nA + 1 cycles after its scale was offered to an idle unit, and vectors of at
    least as many beats follow each other without a gap.

    Handshake: ``o.valid`` and ``o.payload`` are registers. ``x.ready`` follows ``o.ready``, and
    ``scale.ready`` and ``midpoints.ready`` follow each other's valid, combinationally.
    Overflow: none.

    Examples
    --------
    >>> from hw.kllm.clustering_unit import ClusteringUnit, ClusteringUnitParameters
    >>> parameters = ClusteringUnitParameters(activation_bits=4, lanes=16)
    >>> parameters.midpoints, parameters.setup
    (15, 17)
    >>> parameters.cycles([36, 36])  # two vectors of 576 values
    90
    >>> ClusteringUnit(parameters).o.payload.index.shape().length
    16
    """

    summary = "Index of the nearest centroid, by scaled midpoints"
    source = "KLLM, section IV-A"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "midpoints": stream_in(FP16, "FP16, ascending, for each vector that loads."),
            "scale": stream_in(p.scale_layout, "One for each vector."),
            "x": stream_in(p.input_layout, "Values."),
            "o": stream_out(p.output_layout, "Indices."),
        }

    def elaborate(self, platform):
        m = Module()
        x, o = self.x, self.o
        clustering = Signal()
        swap = Signal()  # the prepared keys become those in use
        prepared, prepared_keys = self._prepare(m, swap)
        keys = self._bank("key")
        done = Signal()  # the vector's last beat is accepted
        # A vector passes from the swap to its last beat; the next keys are swapped in with that.
        m.d.comb += [
            # Keys of the next vector are scaled while this one passes (double buffering), so the
            # next one follows at once if its keys are prepared by then.
            x.ready.eq(clustering & (~o.valid | o.ready)),
            done.eq(x.valid & x.ready & x.payload.last),
            swap.eq(prepared & (~clustering | done)),
        ]
        with m.If(swap):
            m.d.sync += [key.eq(new) for key, new in zip(keys, prepared_keys, strict=True)]
            m.d.sync += clustering.eq(1)
        with m.Elif(done):
            m.d.sync += clustering.eq(0)

        # Compare all lanes with all keys, into the output register.
        with m.If(~o.valid | o.ready):
            m.d.sync += [
                o.valid.eq(x.valid & clustering),
                o.payload.keep.eq(x.payload.keep),
                o.payload.last.eq(x.payload.last),
            ]
            for lane, value in enumerate(x.payload.values):
                index = self._index(m, lane, value, keys)
                m.d.sync += o.payload.index[lane].eq(index)
        return m

    def _bank(self, name: str) -> list[Signal]:
        """A register for each midpoint."""
        count = self.parameters.midpoints
        return [Signal(FP16.width, name=f"{name}_{j}", reset_less=True) for j in range(count)]

    def _prepare(self, m: Module, swap: Signal) -> tuple[Signal, list[Signal]]:
        """Scale the midpoints one by one; returns (all are scaled, their order keys).

        The stored midpoints rotate, so that after all steps they are in place for the next vector;
        keys are shifted in behind the multiplier's register.
        """
        scale, midpoints = self.scale, self.midpoints
        # Midpoints are scaled, once for each vector, rather than values divided by the scale, once
        # for each element: x / s > m is x > s m (KLLM, section III-A, token-wise scales).
        stored, prepared_keys = self._bank("midpoint"), self._bank("prepared")
        count = self.parameters.midpoints
        number = Signal(range(max(2, count)))
        step = Signal()
        final = Signal()  # the step of the last midpoint
        stepped = Signal()  # a product is in the multiplier's register
        finished = Signal()  # the last product is
        prepared = Signal()
        midpoint = Signal(FP16.width)
        m.d.comb += [
            step.eq(scale.valid & ~finished & ~prepared & (midpoints.valid | ~scale.payload.load)),
            final.eq(number == count - 1),
            midpoint.eq(Mux(scale.payload.load, midpoints.payload, stored[0])),
            scale.ready.eq(step & final),
            midpoints.ready.eq(step & scale.payload.load),
        ]
        # Rotate the stored midpoints; a loaded one enters in place of the oldest.
        with m.If(step):
            m.d.sync += number.eq(Mux(final, 0, number + 1))
            m.d.sync += [
                register.eq(new)
                for register, new in zip(stored, [*stored[1:], midpoint], strict=True)
            ]
        # One multiplier scales them; a scale of zero is replaced by 1.
        m.submodules.multiply = multiply = FloatMultiply(FloatMultiplyParameters(stages=1))
        is_zero = ~scale.payload.scale[:-1].any()
        m.d.comb += [
            multiply.a.eq(midpoint),
            multiply.b.eq(Mux(is_zero, ONE, scale.payload.scale)),
        ]
        m.d.sync += [stepped.eq(step), finished.eq(step & final)]
        # A NaN is above every value, so that no value counts it as below.
        scaled = Signal(FP16.width)
        m.d.comb += scaled.eq(multiply.o)
        new_key = Mux(is_nan(scaled), Const(NEVER_BELOW, FP16.width), to_key(scaled))
        with m.If(stepped):
            m.d.sync += [
                key.eq(new)
                for key, new in zip(prepared_keys, [*prepared_keys[1:], new_key], strict=True)
            ]
        with m.If(finished):
            m.d.sync += prepared.eq(1)
        with m.Elif(swap):
            m.d.sync += prepared.eq(0)
        return prepared, prepared_keys

    def _index(self, m: Module, lane: int, value, keys: list[Signal]):
        """The value's index by bisection in two steps, for nA = 4::

        step 1: compare with midpoints 3, 7, 11 (of 0 to 14) ─→ index bits 3, 2
        step 2: select the three midpoints between two of them, compare ─→ index bits 1, 0
        """
        key = Signal(FP16.width, name=f"x_key_{lane}")
        m.d.comb += key.eq(to_key(value))
        bits: list[Value] = []

        def above(midpoint, name: str) -> Signal:
            found = Signal(name=f"above_{name}_{lane}")
            m.d.comb += found.eq(key > midpoint)
            return found

        # Step 1. Each group: whether the value is in it, and the midpoints inside.
        groups: list[tuple[Value, list[Signal]]] = [(Const(1, 1), keys)]
        for _ in range((self.parameters.activation_bits + 1) // 2):
            halves: list[tuple[Value, list[Signal]]] = []
            for within, inside in groups:
                middle = len(inside) // 2
                high = above(inside[middle], inside[middle].name)
                lower = Signal(name=f"below_{inside[middle].name}_{lane}")
                upper = Signal(name=f"beyond_{inside[middle].name}_{lane}")
                m.d.comb += [lower.eq(within & ~high), upper.eq(within & high)]
                halves += [(lower, inside[:middle]), (upper, inside[middle + 1 :])]
            groups = halves
            bits.append(Cat(upper for upper, _ in groups[1::2]).any())

        # Step 2. The midpoints of the value's group, and bisection over the comparisons.
        level: list[Value] = []
        for n, candidates in enumerate(zip(*(inside for _, inside in groups), strict=True)):
            chosen = Signal(FP16.width, name=f"chosen_{n}_{lane}")
            m.d.comb += chosen.eq(select([within for within, _ in groups], candidates))
            level.append(above(chosen, str(n)))
        while level:
            centre = level[len(level) // 2]
            bits.append(centre)
            pairs = zip(level[: len(level) // 2], level[len(level) // 2 + 1 :], strict=True)
            level = [Mux(centre, high, low) for low, high in pairs]
        return Cat(reversed(bits))
