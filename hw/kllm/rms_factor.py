"""1 / RMS of a vector from its indices and outliers, for its results (KLLM, section III-C2)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.kllm.clustering_unit import ClusteringUnitParameters
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.inverse_rms import InverseRms, InverseRmsParameters
from hw.kllm.outlier_split import ONE, OutlierSplitParameters
from hw.kllm.pe_lane import VectorScale
from hw.kllm.reduction import Reduction, ReductionParameters
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class RmsFactorParameters(Parameters):
    """
    k
        K: values of the longest vector.
    bits
        nA, 2 to 9: bits of an index.
    outliers
        Outliers at each end of a vector.
    """

    k: int = 576
    bits: int = 4
    outliers: int = 3

    def __post_init__(self):
        require(2 <= self.bits <= 9, "bits must be between 2 and 9", self.bits)
        OutlierSplitParameters(self.k, self.outliers)  # checks k and outliers

    @classmethod
    def presets(cls) -> dict[str, "RmsFactorParameters"]:
        return {"small": cls(40, 2, 2), "default": cls(), "paper": cls(4096, outliers=21)}

    @cached_property
    def column_counter(self) -> ColumnCounterParameters:
        # An index takes the place of an (activation, weight) pair: its lowest bit is the weight.
        macs = min(4, 1 << self.bits)
        return ColumnCounterParameters(self.k, self.bits - 1, 1, 1, macs=macs)

    @cached_property
    def reduction(self) -> ReductionParameters:
        return ReductionParameters(self.k, self.bits - 1, 1, self.column_counter.macs)

    @cached_property
    def sparse_path(self) -> SparsePathParameters:
        return SparsePathParameters(2 * self.outliers, 1, 1, 2)

    @cached_property
    def inverse_rms(self) -> InverseRmsParameters:
        return InverseRmsParameters()

    @cached_property
    def sum_latency(self) -> int:
        """Cycles from a vector's last indices to the sum of their squares."""
        return self.column_counter.latency + self.column_counter.groups - 1 + self.reduction.latency

    @cached_property
    def latency(self) -> int:
        """Cycles from a vector's last indices to its result, with normalisation."""
        return self.sum_latency + self.inverse_rms.latency

    def cycles(self, beats: list[int], normalise: list[bool]) -> int:
        """Cycles from the first indices offered to the last result accepted, when nothing stalls.

        beats, normalise
            Number of beats of each vector, and whether it is normalised. All outliers are offered
            ahead of the indices.
        """
        groups = self.column_counter.groups
        # Cycles in which the latest vector is counted, its last counts are read, it leaves.
        counted, read, result = -1 + self.column_counter.stages, -1, -1
        for count, with_root in zip(beats, normalise, strict=True):
            counted = max(counted + count, read)
            read = max(counted + 1, result + 1) + groups - 1
            result = read + self.reduction.latency + with_root * self.inverse_rms.latency
        return result + 1

    @cached_property
    def indices_layout(self) -> data.StructLayout:
        """Indices of 16 positions, as :class:`ClusteringUnit` outputs them."""
        return ClusteringUnitParameters(self.bits, 16).output_layout

    @cached_property
    def pair_layout(self) -> data.StructLayout:
        """A pair of outliers, as :class:`OutlierSplit` outputs it."""
        return OutlierSplitParameters(self.k, self.outliers).pair_layout

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """Command for a vector.

        ``normalise``: compute 1 / RMS, with ``inverse_k`` = 1 / K, ``eps`` and the ``squares`` of
        the centroids. Otherwise the factor is 1.
        """
        return data.StructLayout(
            {
                "normalise": FLAG,
                "inverse_k": FP32,
                "eps": FP32,
                "squares": data.ArrayLayout(FP16, 1 << self.bits),
            }
        )


class RmsFactor(Component[RmsFactorParameters]):
    """r = 1 / sqrt((s_a² sum count[i] squares[i] + sum of outliers²) / K + eps), or 1.

    ::

        indices ─→ ColumnCounter ─→ counts ─→ Reduction ─→ S ─┐
        pairs ───→ SparsePath ─────────────────────────→ O ───┼─→ InverseRms ─→ r ─→ o
        scale ────────────────────────────────────────→ s_a ──┘               s_a ─↗

    Both sums are exact and rounded once, to FP32. Every element counts once: an outlier that is
    ``repeated`` is not added again.

    Latency: 16 + 2^nA / 4 cycles from a vector's last indices to its result, 10 less without
    normalisation. Throughput: a beat of indices and a pair each cycle; a vector's counts wait for
    the result of the vector before, and then take 4 + 2^nA / 4 cycles to the sum, and 10 more to
    the factor.

    Handshake: ``o.valid`` depends on registers and on ``command.valid`` and ``scale.valid``. Both
    are accepted with the result.

    Examples
    --------
    >>> from hw.kllm.rms_factor import RmsFactorParameters
    >>> parameters = RmsFactorParameters(k=576, bits=4, outliers=3)
    >>> parameters.latency
    20
    >>> parameters.cycles([36, 36], [True, True])  # two vectors of 576 values
    92
    """

    summary = "1 / RMS of a vector from its indices and outliers"
    source = "KLLM, section III-C2"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "indices": stream_in(p.indices_layout, "A vector's indices, 16 in a beat."),
            "pairs": stream_in(p.pair_layout, "Its outliers."),
            "scale": stream_in(FP16.width, "FP16, for each vector."),
            "command": stream_in(p.command_layout, "One for each vector."),
            "o": stream_out(VectorScale, "Scale and factor of each vector."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.counter = counter = ColumnCounter(p.column_counter)
        m.submodules.reduction = reduction = Reduction(p.reduction)
        m.submodules.squares = squares = SparsePath(p.sparse_path)
        m.submodules.inverse_root = root = InverseRms(p.inverse_rms)
        done = Signal()  # the vector's result leaves
        self._count(m, counter)
        self._sum_inliers(m, counter, reduction, done)
        self._sum_outliers(m, squares)
        self._join(m, reduction, squares, root, done)
        return m

    def _count(self, m: Module, counter: ColumnCounter) -> None:
        """Indices are counted as a column's are, with their lowest bit as weight."""
        beat = self.indices.payload
        m.d.comb += [
            counter.i.valid.eq(self.indices.valid),
            self.indices.ready.eq(counter.i.ready),
            counter.i.payload.mask.as_value().eq(beat.keep),
            counter.i.payload.last.eq(beat.last),
            counter.i.payload.groups.eq(self.parameters.column_counter.groups),
        ]
        # The sum of squares needs no multiplier for each element: elements with one index have one
        # square, so indices are counted, as in a column of the product (KLLM, section III-C2).
        for number, index in enumerate(beat.index):
            m.d.comb += [
                counter.i.payload.activation[number].eq(index[1:]),
                counter.i.payload.weight[number].eq(index[0]),
            ]

    def _sum_inliers(
        self, m: Module, counter: ColumnCounter, reduction: Reduction, done: Signal
    ) -> None:
        """Each group of counts is multiplied by its group of squares.

        The command is held until its vector's result leaves; counts that arrive meanwhile belong to
        the next vector and wait.
        """
        p, command = self.parameters, self.command.payload
        count = p.column_counter.groups
        group = Signal(range(max(2, count)))
        width = FP16.width * p.column_counter.macs
        groups = [command.squares.as_value().word_select(n, width) for n in range(count)]
        counted = Signal()
        reduced = Signal()  # all counts of the command's vector are multiplied
        allowed = Signal()
        m.d.comb += [
            allowed.eq(self.command.valid & ~reduced),
            counted.eq(counter.o.valid & reduction.i.ready & allowed),
            counter.o.ready.eq(reduction.i.ready & allowed),
            reduction.i.valid.eq(counter.o.valid & allowed),
            reduction.i.payload.counts.eq(counter.o.payload.counts),
            reduction.i.payload.last.eq(counter.o.payload.last),
            reduction.i.payload.products.as_value().eq(Array(groups)[group]),
        ]
        if count > 1:
            with m.If(counted):
                m.d.sync += group.eq(group + 1)
        # From the last counts to the result, counts of the next vector wait.
        with m.If(done):
            m.d.sync += reduced.eq(0)
        with m.Elif(counted & counter.o.payload.last):
            m.d.sync += reduced.eq(1)

    def _sum_outliers(self, m: Module, squares: SparsePath) -> None:
        """Squares of outliers: both values of a pair are entries, and each is its own centroid."""
        pair, row = self.pairs.payload, squares.i.payload
        m.d.comb += [
            squares.i.valid.eq(self.pairs.valid),
            self.pairs.ready.eq(squares.i.ready),
            row.last.eq(pair.last),
        ]
        for number, end in enumerate((pair.max, pair.min)):
            m.d.comb += [
                row.weight[number].eq(number),
                row.codebook[number].eq(end.value),
                row.entries[number].valid.eq(pair.present & ~end.repeated),
                row.entries[number].position.eq(number),
                row.entries[number].value.eq(end.value),
            ]

    def _join(
        self, m: Module, reduction: Reduction, squares: SparsePath, root: InverseRms, done: Signal
    ) -> None:
        """Join both sums, scale and command; the root runs once for a vector to be normalised."""
        command, root_input = self.command.payload, root.i.payload
        joined = Signal()
        started = Signal()  # the root has the vector's sums
        m.d.comb += [
            joined.eq(reduction.o.valid & squares.o.valid & self.scale.valid & self.command.valid),
            # The root's operands remain at its input until the result; `started` makes it take them
            # once.
            root.i.valid.eq(joined & command.normalise & ~started),
            root_input.s.eq(reduction.o.payload.sum),
            root_input.o.eq(squares.o.payload.sum),
            root_input.s_a.eq(self.scale.payload),
            root_input.inverse_k.eq(command.inverse_k),
            root_input.eps.eq(command.eps),
            self.o.valid.eq(joined & (root.o.valid | ~command.normalise)),
            self.o.payload.s_a.eq(self.scale.payload),
            self.o.payload.r.eq(Mux(command.normalise, root.o.payload.r, Const(ONE, FP16.width))),
            done.eq(self.o.valid & self.o.ready),
            root.o.ready.eq(done & command.normalise),
        ]
        # Everything of a vector leaves together, so the next vector's parts cannot mix with it.
        for part in (reduction.o, squares.o, self.scale, self.command):
            m.d.comb += part.ready.eq(done)
        with m.If(done):
            m.d.sync += started.eq(0)
        with m.Elif(root.i.valid & root.i.ready):
            m.d.sync += started.eq(1)
