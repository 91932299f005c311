"""One lane: a column's indices and outliers in, its result out (KLLM, Fig. 5)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.bits.order_key import is_nan
from hw.arith.fixed_sum import SUM
from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.column_scale import ColumnScale, ColumnScaleParameters, join_sums
from hw.kllm.reduction import Reduction, ReductionParameters
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.layout import FLAG, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import join
from hw.stream.queue import Queue, QueueParameters


class VectorScale(data.Struct):
    """Scale `s_a` of a product's vector, and a second factor `r`, such as 1 / RMS."""

    s_a: FP16  # type: ignore[valid-type]  # a shape
    r: FP16  # type: ignore[valid-type]  # a shape


class ColumnVector(data.Struct):
    """A column's vector and product.

    ``s_a`` and ``r`` as in :class:`VectorScale`; ``first`` and ``add`` as in :class:`ColumnScale`.
    """

    s_a: FP16  # type: ignore[valid-type]  # a shape
    r: FP16  # type: ignore[valid-type]  # a shape
    first: FLAG  # type: ignore[valid-type]  # a shape
    add: FLAG  # type: ignore[valid-type]  # a shape


class Result(data.Struct):
    """Result `y` of a column; `invalid` if it is NaN."""

    y: FP16  # type: ignore[valid-type]  # a shape
    invalid: FLAG  # type: ignore[valid-type]  # a shape


@dataclasses.dataclass(frozen=True)
class PeLaneParameters(Parameters):
    """
    k
        K: positions of the longest column.
    activation_bits, weight_bits
        nA and nW.
    counters
        Counters of 16 inputs each; a step has W = 16 * counters positions.
    macs
        Bins reduced in a cycle, a power of two of at most 2^(nA + nW).
    entries
        R: outliers in one step.
    columns
        Columns whose sums are kept for a later product.
    counter_stages
        Pipeline stages of the column counter, 0 to 3.
    """

    k: int = 576
    activation_bits: int = 4
    weight_bits: int = 4
    counters: int = 5
    macs: int = 32
    entries: int = 2
    columns: int = 768
    counter_stages: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self):
        require(1 <= self.k <= 1 << 16, "k must be between 1 and 65536", self.k)
        stages = self.counter_stages
        require(0 <= stages <= 3, "counter_stages must be between 0 and 3", stages)
        # Each part's parameters check their own ranges when they are made.
        _ = self.column_counter, self.reduction, self.sparse_path, self.column_scale

    @classmethod
    def presets(cls) -> dict[str, "PeLaneParameters"]:
        return {
            "small": cls(k=64, counters=1, macs=64, entries=1, columns=4),
            "default": cls(),
            "paper": cls(k=4096, counters=32, entries=8, columns=256, counter_stages=3),
            # For mutants, which simulate slowly.
            "tiny": cls(40, 1, 2, counters=1, macs=4, entries=1, columns=4),
        }

    @cached_property
    def column_counter(self) -> ColumnCounterParameters:
        return ColumnCounterParameters(
            self.k,
            self.activation_bits,
            self.weight_bits,
            self.counters,
            macs=self.macs,
            stages=self.counter_stages,
        )

    @cached_property
    def reduction(self) -> ReductionParameters:
        return ReductionParameters(self.k, self.activation_bits, self.weight_bits, self.macs)

    @cached_property
    def sparse_path(self) -> SparsePathParameters:
        return SparsePathParameters(self.k, self.weight_bits, self.counters, self.entries)

    @cached_property
    def column_scale(self) -> ColumnScaleParameters:
        return ColumnScaleParameters(self.columns)

    @property
    def segment(self) -> int:
        """W: positions of one step."""
        return self.column_counter.segment

    @property
    def beats(self) -> int:
        """Steps of a column of K positions that advance to new weights."""
        return self.column_counter.beats

    @property
    def groups(self) -> int:
        """G: groups of bins in which a column is reduced."""
        return self.column_counter.groups

    def latency_of(self, groups: int) -> int:
        """Cycles from a column's last step to its result, with counts in `groups` groups."""
        dense = self.column_counter.latency + groups - 1 + self.reduction.latency
        return max(dense, self.sparse_path.latency + 1) + self.column_scale.latency

    @cached_property
    def latency(self) -> int:
        """Cycles from a column's last step to its result, if nothing before it waits."""
        return self.latency_of(self.groups)

    @property
    def waiting(self) -> int:
        """Columns between their last step and the column scale, at full rate.

        One in each stage of the counter, one whose counts wait, one whose counts are read, and
        those in the reduction.
        """
        return self.counter_stages + 2 + self.reduction.latency + 1

    def cycles(self, steps: Sequence[int], groups: Sequence[int] | None = None) -> int:
        """Cycles from the first step offered to the last result taken, when nothing stalls.

        steps, groups
            Number of steps and of groups of each column; by default all G groups.
        """
        every = [self.groups] * len(steps) if groups is None else groups
        later = sum(max(pair) for pair in zip(steps[1:], every[:-1], strict=True))
        return steps[0] + later + self.latency_of(every[-1])

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """One step of a column.

        ``activation``, ``weight`` indices of W positions; ``mask`` of those that are counted;
        ``integer`` as in :class:`IndexDistributionCounter`; ``entries`` outliers among the
        positions as in :class:`SparsePath`, with ``codebook`` the weights' centroids; ``advance``
        on the last step at its positions, with which they are counted; ``last`` on the column's
        last step, which must advance, with the column's ``scale`` and the number of ``groups`` of
        bins with counts, at least 1.
        """
        sparse = self.sparse_path.input_layout
        return data.StructLayout(
            {
                "activation": data.ArrayLayout(index(self.activation_bits), self.segment),
                "weight": data.ArrayLayout(index(self.weight_bits), self.segment),
                "mask": data.ArrayLayout(mask(1), self.segment),
                "integer": FLAG,
                "entries": sparse["entries"].shape,
                "codebook": sparse["codebook"].shape,
                "scale": FP16,
                "advance": FLAG,
                "last": FLAG,
                "groups": self.column_counter.input_layout["groups"].shape,
            }
        )

    @cached_property
    def products_layout(self) -> data.ArrayLayout:
        """Products of centroids of one group of bins."""
        return data.ArrayLayout(FP16, self.macs)


class PeLane(Component[PeLaneParameters]):
    """y = round16((s_a S + O + kept sum or 0) (r scale)) of one column after another.

        S = sum over bins of count * product        O = sum over outliers of value * centroid

    ::

        i ─┬─→ ColumnCounter ─→ counts ─┬─→ Reduction ─→ S ─┐
           │                 products ──┘                   │
           ├─→ SparsePath ─────────────────→ queue ─→ O ────┼─→ ColumnScale ─→ o
           └─→ scale ──────────────────────→ queue ─────────┤
                                            vector_scale ───┘

    Both sums are exact and rounded once, to FP32 (docs/kllm.md, "Rounding of sums"); the other
    roundings are :class:`ColumnScale`'s. Positions with more outliers than a step has entries take
    several steps, all with the same weights, and are counted with the last of them.

    Errors: a result is NaN and ``invalid`` if a product with a count above 0, an outlier, the
    centroid of its weight, or a scale is infinite or NaN. A result too large for FP16 is infinite.

    Latency: max(counter_stages + G' + 5, 7) + 5 cycles from a column's last step to its result, G'
    being the groups in use. Throughput: a column of T steps every max(T, G') cycles; in total
    T0 + sum of max(Tc, G') + latency.

    Handshake: ``o.valid`` depends on registers only. ``i.ready`` depends on registers and on
    ``products.valid``, ``products.ready`` on registers; ``vector_scale.ready`` follows ``o.ready``
    combinationally. A lane's control does not depend on data, so lanes with the same valid and
    ready signals run in lockstep. Overflow: none within K positions.

    Examples
    --------
    >>> from hw.kllm.pe_lane import PeLaneParameters
    >>> parameters = PeLaneParameters(k=4096, counters=32, macs=32, entries=8)
    >>> parameters.segment, parameters.beats, parameters.groups, parameters.latency
    (512, 8, 8, 19)
    >>> parameters.cycles([8] * 16)  # 16 columns of 4096 positions with few outliers
    147
    """

    summary = "Indices and outliers of columns in, results out"
    source = "KLLM, Fig. 5"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Columns, step by step."),
            "products": stream_in(
                p.products_layout,
                "The groups of products in use for each column, in order of index.",
            ),
            "vector_scale": stream_in(ColumnVector, "For each column, the scales of its vector."),
            "o": stream_out(Result, "A result for each column."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.counter = counter = ColumnCounter(p.column_counter)
        m.submodules.reduction = reduction = Reduction(p.reduction)
        m.submodules.sparse = sparse = SparsePath(p.sparse_path)
        m.submodules.scale = scale = ColumnScale(p.column_scale)
        m.submodules.scales = scales = Queue(QueueParameters(FP16.width, p.waiting))
        sums = QueueParameters(SUM.size, p.waiting)
        m.submodules.sparse_sums = sparse_sums = Queue(sums, shape=SUM)
        wiring.connect(m, sparse.o, sparse_sums.i)

        # Fork: counter, sparse path and queue of scales accept a step in the same cycle. The
        # counter must be ready even for a step that does not advance, so that the lane's rate
        # depends on the number of steps alone.
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
        # Counter and sparse path read the fields of the step that they need.
        for name in ("activation", "weight", "mask", "integer", "last", "groups"):
            m.d.comb += Value.cast(counter.i.payload[name]).eq(Value.cast(step[name]))
        for name in ("entries", "codebook", "weight", "last"):
            m.d.comb += Value.cast(sparse.i.payload[name]).eq(Value.cast(step[name]))

        # A group of counts meets its group of products: the product table is read by groups in the
        # order in which the counter outputs them.
        join(m, [counter.o, self.products], [reduction.i])
        m.d.comb += [
            reduction.i.payload.counts.eq(counter.o.payload.counts),
            reduction.i.payload.products.eq(self.products.payload),
            reduction.i.payload.last.eq(counter.o.payload.last),
        ]

        # A column's two sums are complete at different times; the queue behind the sparse path lets
        # it run ahead, and the join here takes them in the order of columns.
        dense = reduction.o
        join_sums(m, scale, dense, dense.payload.sum, sparse_sums.o, scales.o, self.vector_scale)
        m.d.comb += [
            scale.o.ready.eq(self.o.ready),
            self.o.valid.eq(scale.o.valid),
            self.o.payload.y.eq(scale.o.payload.y),
            self.o.payload.invalid.eq(is_nan(scale.o.payload.y)),
        ]
        return m
