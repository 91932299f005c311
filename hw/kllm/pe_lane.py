"""One lane: a column's indices and outliers in, its result out (KLLM, Fig. 5)."""

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.fixed_sum import SUM
from hw.arith.float_format import FP16
from hw.arith.order_key import is_nan
from hw.arith.streamed import Streamed
from hw.component import Component
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.column_scale import ColumnScale, ColumnScaleParameters
from hw.kllm.reduction import Reduction, ReductionParameters
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.parameters import Parameters, require
from hw.stream.queue import Queue, QueueParameters

TOKEN = data.StructLayout({"s_a": FP16.width, "r": FP16.width})
"""What a product's vector gives to each of its results: its scale, and a factor beside it."""

RESULT = data.StructLayout({"y": FP16.width, "invalid": 1})


@dataclasses.dataclass(frozen=True)
class PeLaneParameters(Parameters):
    """
    k
        K: positions of the longest column.
    activation_bits, weight_bits
        nA and nW.
    counters
        Counters of 16 inputs; a step has W = 16 * counters positions.
    macs
        Bins reduced in a cycle, a power of two of at most 2^(nA + nW).
    ports
        R: outliers in one step.
    counter_stages, scale_stages
        Ranks of registers in the column counter, 0 to 3, and in the scaling, 1 to 4.
    """

    k: int = 576
    activation_bits: int = 4
    weight_bits: int = 4
    counters: int = 5
    macs: int = 32
    ports: int = 2
    counter_stages: int = dataclasses.field(default=1, kw_only=True)
    scale_stages: int = dataclasses.field(default=4, kw_only=True)

    def __post_init__(self):
        stages = self.scale_stages
        require(1 <= stages <= 4, "scale_stages must be between 1 and 4", stages)
        # The parts check what they are given.
        for name in ("counting", "reducing", "outlying", "scaling"):
            getattr(self, name)

    @classmethod
    def presets(cls) -> dict[str, "PeLaneParameters"]:
        return {
            "small": cls(k=64, counters=1, macs=64, ports=1),
            "default": cls(),
            "paper": cls(k=4096, counters=32, ports=8, counter_stages=3),
            # For mutants, which simulate slowly.
            "tiny": cls(k=40, activation_bits=1, weight_bits=2, counters=1, macs=4, ports=1),
        }

    @property
    def counting(self) -> ColumnCounterParameters:
        return ColumnCounterParameters(
            self.k,
            self.activation_bits,
            self.weight_bits,
            self.counters,
            macs=self.macs,
            stages=self.counter_stages,
        )

    @property
    def reducing(self) -> ReductionParameters:
        return ReductionParameters(self.k, self.activation_bits, self.weight_bits, self.macs)

    @property
    def outlying(self) -> SparsePathParameters:
        return SparsePathParameters(self.k, self.weight_bits, self.counters, self.ports)

    @property
    def scaling(self) -> ColumnScaleParameters:
        return ColumnScaleParameters(stages=self.scale_stages)

    @property
    def width(self) -> int:
        """W: positions of one step."""
        return self.counting.width

    @property
    def beats(self) -> int:
        """Steps of a column of K positions that have its weights counted."""
        return self.counting.beats

    @property
    def groups(self) -> int:
        """G: groups of bins in which a column is reduced."""
        return self.counting.groups

    @property
    def summed(self) -> int:
        """Cycles from a column's last step to both sums being offered."""
        dense = self.counting.latency + self.groups - 1 + self.reducing.latency
        return max(dense, self.outlying.latency + 1)

    @property
    def latency(self) -> int:
        """Cycles from a column's last step to its result, if nothing before it waits."""
        return self.summed + self.scale_stages

    @property
    def waiting(self) -> int:
        """Columns that may have passed their last step and not been scaled, at full rate.

        One in each rank of the counter's registers, one each whose counts wait and leave, and
        those in the reduction.
        """
        return self.counter_stages + 2 + -(-(self.reducing.latency + 1) // self.groups)

    def cycles(self, steps: Sequence[int]) -> int:
        """Cycles from the first step offered to the last result taken, when nothing stalls.

        For columns of so many steps each; where G is less than B, of B steps or more.
        """
        later = sum(max(count, self.groups) for count in steps[1:])
        return steps[0] + later + self.latency

    @property
    def input_layout(self) -> data.StructLayout:
        """One step of a column.

        ``activation``, ``weight`` indices of W positions, ``mask`` which of them count, ``integer``
        as in :class:`IndexDistributionCounter`; ``entries`` outliers among the positions as in
        :class:`SparsePath`, with ``codebook`` the weights' centroids; ``advance`` if the step is
        the last one at its positions, which makes them count; ``last`` on the column's last step,
        which must advance, and ``scale`` (FP16) of the column with it.
        """
        sparse = self.outlying.input_layout
        return data.StructLayout(
            {
                "activation": data.ArrayLayout(self.activation_bits, self.width),
                "weight": data.ArrayLayout(self.weight_bits, self.width),
                "mask": data.ArrayLayout(1, self.width),
                "integer": 1,
                "entries": sparse["entries"].shape,
                "codebook": sparse["codebook"].shape,
                "scale": FP16.width,
                "advance": 1,
                "last": 1,
            }
        )

    @property
    def products_layout(self) -> data.ArrayLayout:
        """FP16 products of centroids, of one group of bins."""
        return data.ArrayLayout(FP16.width, self.macs)


class PeLane(Component):
    """y = round16((s_a S + O) (r scale)) of one column after another.

        S = sum over bins of count * product        O = sum over outliers of value * centroid

    ::

        i ─┬─→ ColumnCounter ─→ counts ─┬─→ Reduction ─→ S ─┐
           │                 products ──┘                   │
           ├─→ SparsePath ─────────────────→ queue ─→ O ────┼─→ ColumnScale ─→ o
           └─→ scale ──────────────────────→ queue ─────────┤
                                                   token ───┘

    Both sums are exact and rounded once, to FP32 (:class:`Reduction`, :class:`SparsePath`); the
    other roundings are :class:`ColumnScale`'s. Positions with more outliers than a step has ports
    take several steps, all with the same weights, and count with the last of them. A result is
    ``invalid`` if it is NaN: an infinite or NaN product with a count, outlier, centroid of an
    outlier or scale made it so. One that is too large for FP16 is infinite.

    Latency: max(counter_stages + G + 5, 7) + scale_stages cycles from a column's last step to its
    result. Throughput: a column of T steps every max(T, G) cycles, whatever came before; together
    T0 + sum of max(Tc, G) + latency. Where G is less than B, columns of fewer steps than B may
    wait for room in :class:`SparsePath`.

    Handshake: ``o.valid`` depends on registers only. ``i.ready`` depends on registers and on
    ``products.valid``, ``products.ready`` on registers; ``token.ready`` follows ``o.ready``
    combinationally. All of a lane's control is the same whatever the data, so lanes with the same
    valid and ready signals stay in step. Overflow: none within K positions.

    Members
    -------
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Columns, step by step.
    products : :py:`In(stream.Signature(parameters.products_layout))`
        The G groups of products for each column, in order of index.
    token : :py:`In(stream.Signature(TOKEN))`
        ``s_a`` and ``r`` (FP16) for each column.
    o : :py:`Out(stream.Signature(RESULT))`
        ``y`` (FP16) and ``invalid`` of each column.
    """

    summary = "Indices and outliers of columns in, results out"
    source = "KLLM, Fig. 5"

    def __init__(self, parameters: PeLaneParameters):
        self._parameters = parameters
        super().__init__(
            {
                "i": In(stream.Signature(parameters.input_layout)),
                "products": In(stream.Signature(parameters.products_layout)),
                "token": In(stream.Signature(TOKEN)),
                "o": Out(stream.Signature(RESULT)),
            }
        )

    @property
    def parameters(self) -> PeLaneParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.counter = counter = ColumnCounter(p.counting)
        m.submodules.reduction = reduction = Reduction(p.reducing)
        m.submodules.sparse = sparse = SparsePath(p.outlying)
        m.submodules.scale = scale = Streamed(ColumnScale(p.scaling))
        m.submodules.scales = scales = Queue(QueueParameters(FP16.width, p.waiting))
        sums = QueueParameters(SUM.size, p.waiting)
        m.submodules.sparse_sums = sparse_sums = Queue(sums, shape=SUM)
        wiring.connect(m, sparse.o, sparse_sums.i)

        # A step goes to all its takers at once. The counter must be ready even where nothing
        # counts, so that the lane's rate depends on the number of steps alone.
        step = self.i.payload
        ready = Signal()
        m.d.comb += [
            ready.eq(sparse.i.ready & counter.i.ready & scales.i.ready),
            self.i.ready.eq(ready),
            counter.i.valid.eq(self.i.valid & step.advance & sparse.i.ready & scales.i.ready),
            sparse.i.valid.eq(self.i.valid & counter.i.ready & scales.i.ready),
            scales.i.valid.eq(self.i.valid & step.last & sparse.i.ready & counter.i.ready),
            scales.i.payload.eq(step.scale),
        ]
        for name in ("activation", "weight", "mask", "integer", "last"):
            m.d.comb += Value.cast(counter.i.payload[name]).eq(Value.cast(step[name]))
        for name in ("entries", "codebook", "weight", "last"):
            m.d.comb += Value.cast(sparse.i.payload[name]).eq(Value.cast(step[name]))

        m.d.comb += [
            reduction.i.valid.eq(counter.o.valid & self.products.valid),
            counter.o.ready.eq(reduction.i.ready & self.products.valid),
            self.products.ready.eq(reduction.i.ready & counter.o.valid),
            reduction.i.payload.counts.eq(counter.o.payload.counts),
            reduction.i.payload.products.eq(self.products.payload),
            reduction.i.payload.last.eq(counter.o.payload.last),
        ]

        parts = [reduction.o, sparse_sums.o, scales.o, self.token]
        m.d.comb += scale.i.valid.eq(Cat(part.valid for part in parts).all())
        for part in parts:
            others = Cat(other.valid for other in parts if other is not part)
            m.d.comb += part.ready.eq(scale.i.ready & others.all())
        m.d.comb += [
            scale.i.payload.s.eq(reduction.o.payload.sum),
            scale.i.payload.o.eq(sparse_sums.o.payload.sum),
            scale.i.payload.s_a.eq(self.token.payload.s_a),
            scale.i.payload.r.eq(self.token.payload.r),
            scale.i.payload.s_b.eq(scales.o.payload),
            scale.o.ready.eq(self.o.ready),
            self.o.valid.eq(scale.o.valid),
            self.o.payload.y.eq(scale.o.payload.y),
            self.o.payload.invalid.eq(is_nan(scale.o.payload.y)),
        ]
        return m
