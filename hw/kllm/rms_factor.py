"""What a vector gives its results: scale and 1 / RMS, from its indices (KLLM, section III-C2)."""

import dataclasses

from amaranth.hdl import Array, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
from hw.kllm.index_buffer import IndexBufferParameters
from hw.kllm.inverse_rms import InverseRms, InverseRmsParameters
from hw.kllm.outlier_split import ONE, OutlierSplitParameters
from hw.kllm.pe_lane import TOKEN
from hw.kllm.reduction import Reduction, ReductionParameters
from hw.kllm.sparse_path import SparsePath, SparsePathParameters
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class RmsFactorParameters(Parameters):
    """
    k
        K: values of the longest vector.
    bits
        nA, 2 to 9: bits of an index.
    outliers
        At each end of a vector.
    """

    k: int = 576
    bits: int = 4
    outliers: int = 3

    def __post_init__(self):
        require(2 <= self.bits <= 9, "bits must be between 2 and 9", self.bits)
        self.pair_layout  # noqa: B018 (checks k and outliers)

    @classmethod
    def presets(cls) -> dict[str, "RmsFactorParameters"]:
        return {"small": cls(40, 2, 2), "default": cls(), "paper": cls(4096, outliers=21)}

    @property
    def counting(self) -> ColumnCounterParameters:
        # The index's lowest bit stands where a column has its weight.
        macs = min(4, 1 << self.bits)
        return ColumnCounterParameters(self.k, self.bits - 1, 1, 1, macs=macs)

    @property
    def reducing(self) -> ReductionParameters:
        return ReductionParameters(self.k, self.bits - 1, 1, self.counting.macs)

    @property
    def squaring(self) -> SparsePathParameters:
        return SparsePathParameters(2 * self.outliers, 1, 1, 2)

    @property
    def rooting(self) -> InverseRmsParameters:
        return InverseRmsParameters()

    @property
    def summed(self) -> int:
        """Cycles from a vector's last indices to the sum of their squares."""
        return self.counting.latency + self.counting.groups - 1 + self.reducing.latency

    @property
    def latency(self) -> int:
        """Cycles from a vector's last indices to its token, with a factor."""
        return self.summed + self.rooting.latency

    def cycles(self, beats: list[int], normalise: list[bool]) -> int:
        """Cycles from the first indices offered to the last token taken, when nothing stalls.

        For vectors of so many beats, all with pairs ahead of them.
        """
        groups = self.counting.groups
        counted, left, token = -1 + self.counting.stages, -1, -1
        for count, own in zip(beats, normalise, strict=True):
            counted = max(counted + count, left)
            left = max(counted + 1, token + 1) + groups - 1
            token = left + self.reducing.latency + own * self.rooting.latency
        return token + 1

    @property
    def indices_layout(self) -> data.StructLayout:
        """Indices of 16 positions, as :class:`IndexBuffer` takes them."""
        return IndexBufferParameters(self.k, self.bits, 16, 16).input_layout

    @property
    def pair_layout(self) -> data.StructLayout:
        """A pair of outliers, as :class:`OutlierSplit` gives it."""
        return OutlierSplitParameters(self.k, self.outliers).pair_layout

    @property
    def order_layout(self) -> data.StructLayout:
        """What to make of a vector.

        ``normalise`` whether to find 1 / RMS, with ``inverse_k`` (FP32, 1 / K), ``eps`` (FP32) and
        ``squares`` (FP16) of the centroids.
        """
        return data.StructLayout(
            {
                "normalise": 1,
                "inverse_k": FP32.width,
                "eps": FP32.width,
                "squares": data.ArrayLayout(FP16.width, 1 << self.bits),
            }
        )


class RmsFactor(Component):
    """r = 1 / sqrt((s_a² sum count[i] squares[i] + sum of outliers²) / K + eps), or 1.

    ::

        indices ─→ ColumnCounter ─→ counts ─→ Reduction ─→ S ─┐
        pairs ───→ SparsePath ─────────────────────────→ O ───┼─→ InverseRms ─→ r ─→ o
        scale ────────────────────────────────────────→ s_a ──┘               s_a ─↗

    Both sums are exact and rounded to FP32. Every element counts once: an outlier that is
    ``repeated`` is not added again.

    Latency: 16 + 2^nA / 4 cycles from a vector's last indices to its token, 10 less without a
    factor. Throughput: a beat of indices and a pair each cycle; a vector's counts wait for the
    token of the one before, and then take 4 + 2^nA / 4 cycles to its sum, 10 more to a factor.

    Handshake: ``o.valid`` depends on registers and on ``order.valid`` and ``scale.valid``. Both
    are taken with the token.

    Members
    -------
    indices : :py:`In(stream.Signature(parameters.indices_layout))`
        A vector's indices, 16 in a beat.
    pairs : :py:`In(stream.Signature(parameters.pair_layout))`
        Its outliers.
    scale : :py:`In(stream.Signature(16))`
        FP16, for each vector.
    order : :py:`In(stream.Signature(parameters.order_layout))`
        What to do, for each vector.
    o : :py:`Out(stream.Signature(TOKEN))`
        ``s_a`` and ``r`` of each vector.
    """

    summary = "1 / RMS of a vector from its indices and outliers"
    source = "KLLM, section III-C2"

    def __init__(self, parameters: RmsFactorParameters):
        p = self._parameters = parameters
        super().__init__(
            {
                "indices": In(stream.Signature(p.indices_layout)),
                "pairs": In(stream.Signature(p.pair_layout)),
                "scale": In(stream.Signature(FP16.width)),
                "order": In(stream.Signature(p.order_layout)),
                "o": Out(stream.Signature(TOKEN)),
            }
        )

    @property
    def parameters(self) -> RmsFactorParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.counter = counter = ColumnCounter(p.counting)
        m.submodules.reduction = reduction = Reduction(p.reducing)
        m.submodules.squares = squares = SparsePath(p.squaring)
        m.submodules.inverse_root = root = InverseRms(p.rooting)
        order = self.order.payload

        beat = self.indices.payload
        m.d.comb += [
            counter.i.valid.eq(self.indices.valid),
            self.indices.ready.eq(counter.i.ready),
            counter.i.payload.mask.as_value().eq(beat.keep),
            counter.i.payload.last.eq(beat.last),
        ]
        for number, index in enumerate(beat.index):
            m.d.comb += [
                counter.i.payload.activation[number].eq(index[1:]),
                counter.i.payload.weight[number].eq(index[0]),
            ]
        group = Signal(range(max(2, p.counting.groups)))
        squares_width = FP16.width * p.counting.macs
        groups = [
            order.squares.as_value().word_select(n, squares_width) for n in range(p.counting.groups)
        ]
        counted = Signal()
        reduced = Signal()  # the order's vector is; what comes now is the next one's
        allowed = Signal()
        m.d.comb += [
            allowed.eq(self.order.valid & ~reduced),
            counted.eq(counter.o.valid & reduction.i.ready & allowed),
            counter.o.ready.eq(reduction.i.ready & allowed),
            reduction.i.valid.eq(counter.o.valid & allowed),
            reduction.i.payload.counts.eq(counter.o.payload.counts),
            reduction.i.payload.last.eq(counter.o.payload.last),
            reduction.i.payload.products.as_value().eq(Array(groups)[group]),
        ]
        if p.counting.groups > 1:
            with m.If(counted):
                m.d.sync += group.eq(group + 1)

        # Each of a pair's values is the centroid that it is multiplied by.
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

        joined = Signal()
        started = Signal()
        done = Signal()
        root_input = root.i.payload
        m.d.comb += [
            joined.eq(reduction.o.valid & squares.o.valid & self.scale.valid & self.order.valid),
            root.i.valid.eq(joined & order.normalise & ~started),
            root_input.s.eq(reduction.o.payload.sum),
            root_input.o.eq(squares.o.payload.sum),
            root_input.s_a.eq(self.scale.payload),
            root_input.inverse_k.eq(order.inverse_k),
            root_input.eps.eq(order.eps),
            self.o.valid.eq(joined & (root.o.valid | ~order.normalise)),
            self.o.payload.s_a.eq(self.scale.payload),
            self.o.payload.r.eq(Mux(order.normalise, root.o.payload.r, Const(ONE, FP16.width))),
            done.eq(self.o.valid & self.o.ready),
            root.o.ready.eq(done & order.normalise),
        ]
        for part in (reduction.o, squares.o, self.scale, self.order):
            m.d.comb += part.ready.eq(done)
        with m.If(done):
            m.d.sync += reduced.eq(0)
        with m.Elif(counted & counter.o.payload.last):
            m.d.sync += reduced.eq(1)
        with m.If(done):
            m.d.sync += started.eq(0)
        with m.Elif(root.i.valid & root.i.ready):
            m.d.sync += started.eq(1)
        return m
