"""Sizes, layouts and cycle counts of the accelerator (KLLM, Fig. 5)."""

import dataclasses

from amaranth.lib import data

from hw.arith.float_format import FP16, FP32
from hw.kllm.clustering_unit import ClusteringUnitParameters
from hw.kllm.codebook_replacement import CodebookReplacementParameters
from hw.kllm.index_buffer import IndexBufferParameters
from hw.kllm.outlier_list import OutlierListParameters
from hw.kllm.outlier_split import OutlierSplitParameters
from hw.kllm.pe_lane import PeLaneParameters
from hw.kllm.product_table import ProductTableParameters
from hw.kllm.rms_factor import RmsFactorParameters
from hw.parameters import Parameters, require
from hw.stream.sequential_reader import SequentialReaderParameters

BEAT = 16
"""Values in one beat of a vector."""

IN_FLIGHT = 4
"""Products between acceptance of their jobs and their last results."""


@dataclasses.dataclass(frozen=True)
class CoreParameters(Parameters):
    """
    k, n
        K and N: values of the longest vector, columns of the widest matrix.
    lanes
        Columns at once, a power of two.
    activation_bits, weight_bits
        nA, 2 to 6, and nW.
    counters
        Counters of 16 inputs in a lane; a word of the memory has W = 16 * counters positions.
    macs
        Bins that a lane reduces in a cycle, a power of two from 2^nW to 2^(nA + nW).
    outliers
        At each end of a vector.
    ports
        Outliers that a lane takes in a cycle.
    depth
        Words asked for ahead of time, a power of two from 4.
    address_width
        Of the memory, which holds at least one column of K.
    counter_stages
        Ranks of registers in the column counters, 0 to 3.
    """

    k: int = 576
    n: int = 1536
    lanes: int = 2
    activation_bits: int = 4
    weight_bits: int = 4
    counters: int = 5
    macs: int = 32
    outliers: int = 3
    ports: int = 2
    depth: int = 16
    address_width: int = 24
    counter_stages: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self):
        power = self.lanes > 0 and self.lanes & (self.lanes - 1) == 0
        require(power, "lanes must be a power of two", self.lanes)
        require(self.n >= 1, "n must be at least 1", self.n)
        # The parts check what they are given.
        parts = "lane splitting clustering norming replacing gathering listing table reading"
        for name in parts.split():
            getattr(self, name)
        least = (self.beats - 1).bit_length()
        rule = f"address_width must be at least {least} for columns of {self.beats} words"
        require(self.address_width >= least, rule, self.address_width)

    @classmethod
    def presets(cls) -> dict[str, "CoreParameters"]:
        small = cls(64, 64, 1, counters=1, macs=64, outliers=1, ports=1, address_width=16)
        paper = cls(4096, 4096, 16, counters=32, outliers=21, ports=8, counter_stages=3)
        return {"small": small, "default": cls(), "paper": paper}

    @property
    def lane(self) -> PeLaneParameters:
        return PeLaneParameters(
            self.k,
            self.activation_bits,
            self.weight_bits,
            self.counters,
            self.macs,
            self.ports,
            counter_stages=self.counter_stages,
        )

    @property
    def splitting(self) -> OutlierSplitParameters:
        return OutlierSplitParameters(self.k, self.outliers, BEAT)

    @property
    def clustering(self) -> ClusteringUnitParameters:
        return ClusteringUnitParameters(self.activation_bits, BEAT)

    @property
    def norming(self) -> RmsFactorParameters:
        return RmsFactorParameters(self.k, self.activation_bits, self.outliers)

    @property
    def replacing(self) -> CodebookReplacementParameters:
        return CodebookReplacementParameters(self.activation_bits, self.weight_bits, BEAT)

    @property
    def gathering(self) -> IndexBufferParameters:
        return IndexBufferParameters(self.k, self.activation_bits, BEAT, self.width, self.sets)

    @property
    def listing(self) -> OutlierListParameters:
        outliers = 2 * self.outliers
        return OutlierListParameters(self.k, self.width, BEAT, self.ports, outliers, self.sets)

    @property
    def table(self) -> ProductTableParameters:
        return ProductTableParameters(
            self.activation_bits, self.weight_bits, self.macs, columns=self.sets
        )

    @property
    def reading(self) -> SequentialReaderParameters:
        return SequentialReaderParameters(
            self.address_width, self.word_layout.size, self.depth, longest=self.beats
        )

    @property
    def width(self) -> int:
        """W: positions of one word."""
        return BEAT * self.counters

    @property
    def beats(self) -> int:
        """B: words of the longest column."""
        return -(-self.k // self.width)

    @property
    def sets(self) -> int:
        """Sets of `lanes` columns in the widest matrix."""
        return -(-self.n // self.lanes)

    @property
    def groups(self) -> int:
        """G: groups of bins in which a column is reduced."""
        return self.lane.groups

    @property
    def latency(self) -> int:
        """At most, from the last beat of the longest vector to its first results.

        In an idle core, every outlier in a row of its own, with a function and a factor; without
        them it is about 2 * outliers * `replacing.latency` + `norming.latency` less.
        """
        outliers, replacing = 2 * self.outliers, self.replacing
        front = self.splitting.search + max(self.clustering.setup, replacing.rebuild)
        beats = self.splitting.beats + outliers * (2 + replacing.latency)
        back = self.norming.latency + self.gathering.latency
        return front + beats + back + self.listing.rows + self.lane.latency + 1

    @property
    def load_layout(self) -> data.StructLayout:
        """One row of a table.

        ``table``: 0 products of the activation centroid ``row`` and all of the weights', 1 the
        weights' centroids, 2 midpoints of the activations', ascending, 3 squares of the
        activations' centroids, 4 these themselves; ``values`` FP16; ``last`` of the tables that
        belong together. Squares are needed by jobs that normalise. Jobs with a function need 4
        and make 0 by themselves.
        """
        values = data.ArrayLayout(FP16.width, 1 << max(self.activation_bits, self.weight_bits))
        return data.StructLayout(
            {"table": 3, "row": self.activation_bits, "values": values, "last": 1}
        )

    @property
    def job_layout(self) -> data.StructLayout:
        """One product.

        ``columns`` of the matrix and ``address`` of its first word; ``integer`` whether indices
        are integers; ``tables`` whether tables were loaded for it; ``normalise`` whether to divide
        the vector by the root of its mean square plus ``eps``, ``inverse_k`` being 1 / K, both
        FP32; ``replace`` whether to apply the function ``op`` (:class:`Function`) to the vector,
        which needs ``tables``, and takes them as set. Both together give f(x) / RMS(x).
        """
        return data.StructLayout(
            {
                "columns": range(self.n + 1),
                "address": self.address_width,
                "integer": 1,
                "tables": 1,
                "normalise": 1,
                "inverse_k": FP32.width,
                "eps": FP32.width,
                "replace": 1,
                "op": 2,
            }
        )

    @property
    def word_layout(self) -> data.StructLayout:
        """One word of the memory.

        ``weight`` indices of each lane's column at W positions, ``scale`` (FP16) of each column.
        """
        weight = data.ArrayLayout(data.ArrayLayout(self.weight_bits, self.width), self.lanes)
        return data.StructLayout(
            {"weight": weight, "scale": data.ArrayLayout(FP16.width, self.lanes)}
        )

    @property
    def output_layout(self) -> data.StructLayout:
        """Results of neighbouring columns.

        ``y`` (FP16), ``keep`` which of them are columns of the matrix, ``invalid`` which are NaN,
        ``last`` of the product. ``y`` and ``invalid`` are 0 where there is no column.
        """
        return data.StructLayout(
            {
                "y": data.ArrayLayout(FP16.width, self.lanes),
                "keep": self.lanes,
                "invalid": self.lanes,
                "last": 1,
            }
        )
