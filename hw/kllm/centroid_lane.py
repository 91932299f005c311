"""A lane that multiplies fixed-point centroids: what counting is compared with (KLLM, Fig. 5)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, wiring

from hw.arith.bits.order_key import is_nan
from hw.arith.fixed_sum import SUM
from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.centroid_sum import CentroidSum, CentroidSumParameters
from hw.kllm.column_scale import ColumnScale, ColumnScaleParameters, join_sums
from hw.kllm.pe_lane import ColumnVector, Result
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters


@dataclasses.dataclass(frozen=True)
class CentroidLaneParameters(Parameters):
    """
    k
        K: positions of the longest column.
    weight_bits
        nW: bits of a weight index.
    bits
        Width of a fixed-point centroid, sign included.
    counters
        A step has W = 16 * counters positions, as in :class:`PeLane`.
    entries
        R: outliers in one step.
    columns
        Columns whose sums are kept for a later product.
    sum_stages
        Pipeline stages of the products before their accumulator, 0 to 3.
    """

    k: int = 576
    weight_bits: int = 4
    bits: int = 8
    counters: int = 5
    entries: int = 2
    columns: int = 768
    sum_stages: int = dataclasses.field(default=2, kw_only=True)

    def __post_init__(self):
        stages = self.sum_stages
        require(0 <= stages <= 3, "sum_stages must be between 0 and 3", stages)
        # Each part's parameters check their own ranges when they are made.
        _ = self.dense, self.sparse_path, self.column_scale

    @classmethod
    def presets(cls) -> dict[str, "CentroidLaneParameters"]:
        return {
            "small": cls(k=64, counters=1, entries=1, columns=8),
            "default": cls(),
            "twelve_bits": cls(bits=12),
            "paper": cls(k=4096, counters=32, entries=8, columns=256, sum_stages=3),
            # For mutants, which simulate slowly; its sums fill FP32's significand.
            "tiny": cls(k=40, weight_bits=2, bits=12, counters=1, entries=1, columns=8),
        }

    @cached_property
    def dense(self) -> CentroidSumParameters:
        sizes = self.k, self.weight_bits, self.bits, self.counters
        alone = CentroidSumParameters(*sizes, stages=self.sum_stages)
        # A column's outliers may take longer than its products, whose sum then waits: without room
        # for the columns behind it, columns of one step would come in some cycles only.
        late = max(0, self.sparse_path.latency + 1 - alone.latency)
        return dataclasses.replace(alone, late=late)

    @cached_property
    def sparse_path(self) -> SparsePathParameters:
        return SparsePathParameters(self.k, self.weight_bits, self.counters, self.entries)

    @cached_property
    def column_scale(self) -> ColumnScaleParameters:
        return ColumnScaleParameters(self.columns)

    @property
    def segment(self) -> int:
        """W: positions of one step."""
        return self.dense.segment

    @property
    def beats(self) -> int:
        """B: steps of a column of K positions that advance to new weights."""
        return self.dense.segments

    @cached_property
    def sum_latency(self) -> int:
        """Cycles from a column's last step to both sums being offered."""
        return max(self.dense.latency, self.sparse_path.latency + 1)

    @cached_property
    def latency(self) -> int:
        """Cycles from a column's last step to its result, if nothing before it waits."""
        return self.sum_latency + self.column_scale.latency

    @property
    def waiting(self) -> int:
        """Columns between their last step and the column scale, at full rate."""
        return self.sum_latency + 2

    def cycles(self, steps: Sequence[int]) -> int:
        """Cycles from the first step offered to the last result taken, when nothing stalls.

        steps
            Number of steps of each column.
        """
        return sum(steps) + self.latency

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """One step of a column.

        ``activation`` fixed-point centroids of W positions, 0 at those that do not count;
        ``weight`` indices; ``fixed`` the weights' fixed-point centroids; ``entries`` outliers among
        the positions as in :class:`SparsePath`, with ``codebook`` the weights' FP16 centroids;
        ``advance`` on the last step at its positions, with which they are summed; ``last`` on the
        column's last step, which must advance, with the column's ``scale``.
        """
        dense, sparse = self.dense.input_layout, self.sparse_path.input_layout
        return data.StructLayout(
            {
                "activation": dense["activation"].shape,
                "weight": dense["weight"].shape,
                "fixed": dense["codebook"].shape,
                "entries": sparse["entries"].shape,
                "codebook": sparse["codebook"].shape,
                "scale": FP16,
                "advance": FLAG,
                "last": FLAG,
            }
        )


class CentroidLane(Component[CentroidLaneParameters]):
    """y = round16((s_a S + O + kept sum or 0) (r scale)) of one column after another.

        S = sum over positions of activation * fixed[weight]
        O = sum over outliers of value * codebook[weight]

    ::

        i ─┬─→ CentroidSum ─────────────────────→ S ─┐
           ├─→ SparsePath ─────────→ queue ─→ O ─────┼─→ ColumnScale ─→ o
           └─→ scale ──────────────→ queue ──────────┤
                                     vector_scale ───┘

    The same results as :class:`PeLane`, by multiplication in place of counting: centroids are
    integers of `bits` bits, made offline from the FP16 ones, whose scale is a factor of the
    column's ``scale``, and divides ``codebook`` (:mod:`golden.kllm.centroid_lane`). The
    activations' centroids are looked up once for all lanes, outside; in integer mode they are the
    integers themselves.

    Both sums are exact and rounded once, to FP32; the other roundings are :class:`ColumnScale`'s.
    Positions with more outliers than a step has entries take several steps, all with the same
    weights, and are summed with the last of them.

    Errors: a result is NaN and ``invalid`` if an outlier, the centroid of its weight, or a scale is
    infinite or NaN. A result too large for FP16 is infinite.

    Latency: max(sum_stages + 4, 7) + 5 cycles from a column's last step to its result.
    Throughput: a column of T steps every T cycles.

    Handshake: ``o.valid`` and ``i.ready`` depend on registers only; ``vector_scale.ready`` follows
    ``o.ready`` combinationally. A lane's control does not depend on data, so lanes with the same
    valid and ready signals run in lockstep. Overflow: none within K positions.

    Examples
    --------
    >>> from hw.kllm.centroid_lane import CentroidLaneParameters
    >>> parameters = CentroidLaneParameters(k=4096, bits=8, counters=32, entries=8)
    >>> parameters.segment, parameters.beats, parameters.latency, parameters.dense.width
    (512, 8, 12, 28)
    >>> parameters.cycles([8] * 16)  # 16 columns of 4096 positions with few outliers
    140
    """

    summary = "The same lane by small multipliers, to compare"
    source = "KLLM, Fig. 5"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Columns, step by step."),
            "vector_scale": stream_in(ColumnVector, "For each column, the scales of its vector."),
            "o": stream_out(Result, "A result for each column."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.dense = dense = CentroidSum(p.dense)
        m.submodules.sparse = sparse = SparsePath(p.sparse_path)
        m.submodules.scale = scale = ColumnScale(p.column_scale)
        m.submodules.scales = scales = Queue(QueueParameters(FP16.width, p.waiting))
        sums = QueueParameters(SUM.size, p.waiting)
        m.submodules.sparse_sums = sparse_sums = Queue(sums, shape=SUM)
        # A sparse sum waits in its queue until the column's dense sum is there.
        wiring.connect(m, sparse.o, sparse_sums.i)

        # Fork: products, sparse path and queue of scales accept a step in the same cycle. All must
        # be ready for any step, so that the lane's rate depends on the number of steps alone.
        step = self.i.payload
        accepted = Signal()
        m.d.comb += [
            self.i.ready.eq(sparse.i.ready & dense.i.ready & scales.i.ready),
            accepted.eq(self.i.valid & self.i.ready),
            # Only the last step at a position advances; earlier ones carry outliers alone.
            dense.i.valid.eq(accepted & step.advance),
            sparse.i.valid.eq(accepted),
            scales.i.valid.eq(accepted & step.last),
            scales.i.payload.eq(step.scale),
            Value.cast(dense.i.payload.activation).eq(Value.cast(step.activation)),
            Value.cast(dense.i.payload.codebook).eq(Value.cast(step.fixed)),
            Value.cast(dense.i.payload.weight).eq(Value.cast(step.weight)),
            dense.i.payload.last.eq(step.last),
        ]
        # The sparse path multiplies the outliers' own values, in FP16, by the weights' centroids.
        for name in ("entries", "codebook", "weight", "last"):
            m.d.comb += Value.cast(sparse.i.payload[name]).eq(Value.cast(step[name]))

        join_sums(m, scale, dense.o, dense.o.payload, sparse_sums.o, scales.o, self.vector_scale)
        m.d.comb += [
            scale.o.ready.eq(self.o.ready),
            self.o.valid.eq(scale.o.valid),
            self.o.payload.y.eq(scale.o.payload.y),
            self.o.payload.invalid.eq(is_nan(scale.o.payload.y)),
        ]
        return m
