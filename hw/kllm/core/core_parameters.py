"""Sizes, layouts and cycle counts of the accelerator (KLLM, Fig. 5)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from amaranth.hdl import Signal
from amaranth.lib import data

from hw.arith.float_format import FP16, FP32
from hw.attention.vector_path import VectorPathParameters
from hw.kllm.centroid_lane import CentroidLaneParameters
from hw.kllm.clustering_unit import ClusteringUnitParameters
from hw.kllm.codebook_replacement import CodebookReplacementParameters
from hw.kllm.core.product_work import ProductWork, product_cycles
from hw.kllm.core.table import Table
from hw.kllm.element_function import Function
from hw.kllm.index_buffer import IndexBufferParameters
from hw.kllm.outlier_list import OutlierListParameters
from hw.kllm.outlier_split import OutlierSplitParameters
from hw.kllm.pe_lane import PeLaneParameters
from hw.kllm.product_table import ProductTableParameters
from hw.kllm.rms_factor import RmsFactorParameters
from hw.kllm.softmax_parameters import SoftmaxParameters
from hw.layout import FLAG, address, count, index, mask
from hw.parameters import Parameters, require
from hw.stream.memory_port import MemoryPort

BEAT = 16
"""Values in one beat of a vector."""

IN_FLIGHT = 4
"""Products that may be in flight: between acceptance of their command and their last result."""

TAG_FLAGS = 3  # of a product, that accompany its indices: bank of tables, ``integer``, ``signed``

RANGES = (
    ("k", 2, 1 << 16),
    ("activation_bits", 2, 6),
    ("weight_bits", 1, 6),
    ("counter_stages", 0, 3),
)


@dataclasses.dataclass(frozen=True)
class CoreParameters(Parameters):
    """
    k, n
        K, from 2, because a value must be left beside an end's outliers, and N: values of the
        longest vector, columns of the widest matrix. A matrix of more than K rows takes several
        products, whose sums are added.
    lanes
        Columns at once, a power of two up to 16.
    activation_bits, weight_bits
        nA, 2 to 6, and nW, 1 to 6.
    counters
        Counters of 16 inputs in a lane; a memory word has W = 16 * counters positions.
    macs
        Bins that a lane reduces in a cycle, a power of two from 2^nW to 2^(nA + nW).
    outliers
        Most outliers at each end of a vector, 1 to K - 1.
    entries
        R: outliers that a lane multiplies in a cycle.
    vectors
        Most vectors of a batch, a power of two.
    scores
        Results in the longest row of the softmax, a multiple of `lanes` from 4 to 65536.
    depth
        Memory words requested and not yet used, a power of two from 4, at least the words of a
        column.
    address_width
        Address bits of the memory, which holds at least one column of K positions.
    counter_stages
        Pipeline stages in the column counters, 0 to 3.
    centroid_bits
        0: lanes count indices. 2 to 16: they multiply fixed-point centroids of as many bits
        (:class:`CentroidLane`), without functions; `macs` then has no meaning.
    vector_lanes
        Lanes of the unit that adds and multiplies vectors (:class:`VectorUnit`), 0 to 64; 0: none.
    rotary_pairs
        Pairs of elements in the longest head that is turned by its position, 0 to 512; 0: none.
    """

    k: int = 576
    n: int = 1536
    lanes: int = 2
    activation_bits: int = 4
    weight_bits: int = 4
    counters: int = 5
    macs: int = 32
    outliers: int = 3
    entries: int = 3
    vectors: int = 4
    scores: int = 512
    depth: int = 128
    address_width: int = 24
    counter_stages: int = dataclasses.field(default=1, kw_only=True)
    centroid_bits: int = dataclasses.field(default=0, kw_only=True)
    vector_lanes: int = dataclasses.field(default=0, kw_only=True)
    rotary_pairs: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self):
        power = self.lanes > 0 and self.lanes & (self.lanes - 1) == 0
        fits = power and self.lanes <= BEAT
        require(fits, f"lanes must be a power of two up to {BEAT}", self.lanes)
        for name, low, high in RANGES:
            value = getattr(self, name)
            require(low <= value <= high, f"{name} must be between {low} and {high}", value)
        for name in ("n", "counters", "entries"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        low, high = 1 << self.weight_bits, 1 << self.activation_bits + self.weight_bits
        power = self.macs > 0 and self.macs & (self.macs - 1) == 0
        rule = f"macs must be a power of two from {low} to {high}"
        require(power and low <= self.macs <= high, rule, self.macs)
        fits = 4 <= self.scores <= 65536 and self.scores % self.lanes == 0
        rule = f"scores must be a multiple of lanes = {self.lanes} between 4 and 65536"
        require(fits, rule, self.scores)
        fits = self.centroid_bits == 0 or 2 <= self.centroid_bits <= 16
        require(fits, "centroid_bits must be 0 or between 2 and 16", self.centroid_bits)
        power = self.vectors > 0 and self.vectors & (self.vectors - 1) == 0
        require(power, "vectors must be a power of two", self.vectors)
        power = self.depth >= 4 and self.depth & (self.depth - 1) == 0
        require(power, "depth must be a power of two from 4", self.depth)
        # Each sub-block's parameters check what these have in common.
        self.build_parts()
        rule = f"depth must be at least {self.beats}, the words of a column"
        require(self.depth >= self.beats, rule, self.depth)
        least = self.beats.bit_length()  # one more word is of scales
        rule = f"address_width must be at least {least} for columns of {self.beats} words"
        require(self.address_width >= least, rule, self.address_width)

    def build_parts(self) -> tuple[Parameters, ...]:
        """Parameters of all sub-blocks.

        :raises ParameterError: where one of them is out of its range.
        """
        return (
            self.lane,
            self.outlier_split,
            self.clustering_unit,
            self.rms_factor,
            self.codebook_replacement,
            self.index_buffer,
            self.outlier_list,
            self.product_table,
            self.softmax,
            self.vector_path,
            *([self.centroid_lane] if self.centroid_bits else []),
        )

    @classmethod
    def presets(cls) -> dict[str, "CoreParameters"]:
        sizes = {"counters": 1, "macs": 64, "outliers": 3, "entries": 1, "address_width": 16}
        small = cls(64, 64, 1, **sizes, vectors=4, scores=16, depth=16)
        sizes = {"counters": 32, "outliers": 21, "entries": 8, "vectors": 8, "scores": 4096}
        paper = cls(4096, 4096, 16, **sizes, counter_stages=3)
        return {"small": small, "default": cls(), "paper": paper}

    @cached_property
    def lane(self) -> PeLaneParameters:
        return PeLaneParameters(
            self.k,
            self.activation_bits,
            self.weight_bits,
            self.counters,
            self.macs,
            self.entries,
            self.sets * self.vectors,
            counter_stages=self.counter_stages,
        )

    @cached_property
    def centroid_lane(self) -> CentroidLaneParameters:
        return CentroidLaneParameters(
            *(self.k, self.weight_bits, self.centroid_bits, self.counters, self.entries),
            self.sets * self.vectors,
            sum_stages=self.counter_stages,
        )

    def lane_latency(self, groups: int) -> int:
        """Cycles from a column's last step to its result, with counts in `groups` groups."""
        return self.centroid_lane.latency if self.centroid_bits else self.lane.latency_of(groups)

    @cached_property
    def outlier_split(self) -> OutlierSplitParameters:
        return OutlierSplitParameters(self.k, self.outliers, BEAT)

    @cached_property
    def clustering_unit(self) -> ClusteringUnitParameters:
        return ClusteringUnitParameters(self.activation_bits, BEAT)

    @cached_property
    def rms_factor(self) -> RmsFactorParameters:
        return RmsFactorParameters(self.k, self.activation_bits, self.outliers)

    @cached_property
    def codebook_replacement(self) -> CodebookReplacementParameters:
        return CodebookReplacementParameters(self.activation_bits, self.weight_bits, BEAT)

    @cached_property
    def index_buffer(self) -> IndexBufferParameters:
        tag = TAG_FLAGS + len(Signal(range(self.groups + 1)))
        sizes = (self.k, self.activation_bits, BEAT, self.segment, self.sets, self.vectors)
        return IndexBufferParameters(*sizes, tag)

    @cached_property
    def outlier_list(self) -> OutlierListParameters:
        outliers = 2 * self.outliers
        sizes = (self.k, self.segment, BEAT, self.entries, outliers, self.sets, self.vectors)
        return OutlierListParameters(*sizes)

    @cached_property
    def product_table(self) -> ProductTableParameters:
        return ProductTableParameters(
            self.activation_bits, self.weight_bits, self.macs, columns=self.sets
        )

    @cached_property
    def softmax(self) -> SoftmaxParameters:
        return SoftmaxParameters(self.lanes, self.scores)

    @cached_property
    def vector_path(self) -> VectorPathParameters:
        return VectorPathParameters(self.vector_lanes, self.rotary_pairs)

    @property
    def segment(self) -> int:
        """W: positions of one memory word."""
        return BEAT * self.counters

    @property
    def beats(self) -> int:
        """B: words of the longest column."""
        return -(-self.k // self.segment)

    @property
    def sets(self) -> int:
        """Sets of `lanes` columns in the widest matrix."""
        return -(-self.n // self.lanes)

    @property
    def groups(self) -> int:
        """G: groups of bins in which a column is reduced."""
        return self.lane.groups

    @cached_property
    def latency(self) -> int:
        """Upper bound of the cycles from the last beat of the longest vector to its first results.

        For an idle core, with every outlier in a separate row, a function and normalisation.
        """
        outliers, replacing = 2 * self.outliers, self.codebook_replacement
        front = self.outlier_split.search + max(self.clustering_unit.setup, replacing.rebuild)
        beats = self.outlier_split.beats + outliers * (2 + replacing.latency)
        back = self.rms_factor.latency + self.index_buffer.latency
        lane = self.lane_latency(self.groups)
        return front + beats + back + self.outlier_list.rows + lane + 1

    cycles_exact = False

    def cycles(self, work: Sequence[ProductWork]) -> int:
        """Cycles of products, about, from the first command offered to the last result accepted.

        Without stalls, functions and the softmax; `golden.kllm.cycles` counts them all exactly.
        """
        return product_cycles(self, work)

    @cached_property
    def table_layout(self) -> data.StructLayout:
        """One row of a table.

        ================ ======================================================================
        ``table``        ``values``
        ================ ======================================================================
        PRODUCTS         products of the activations' centroid ``row`` and all weights' centroids
        WEIGHT_CENTROIDS the weights' centroids
        MIDPOINTS        midpoints between the activations' centroids, ascending
        SQUARES          squares of the activations' centroids, for commands that normalise
        CENTROIDS        the activations' centroids, for commands with a function
        FIXED            in place of PRODUCTS where lanes multiply: row 0 the fixed-point centroids
                         of the activations, row 1 the weights'
        ================ ======================================================================

        ``last`` marks the last row of the tables that belong together. Commands with a function
        need CENTROIDS and compute PRODUCTS themselves.
        """
        values = data.ArrayLayout(FP16, 1 << max(self.activation_bits, self.weight_bits))
        row = index(self.activation_bits)
        return data.StructLayout({"table": Table, "row": row, "values": values, "last": FLAG})

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """One product.

        ``vectors`` of the batch, all of the same number of ``words``, ceil(K' / W); ``outliers`` at
        each end of each. ``columns`` of the matrix and ``address`` of its first word. ``integer``:
        activation indices are integers, from 0, or with ``signed`` from -2^(nA - 1) in two's
        complement; ``lines`` of the table of products that are in use, 2^nA or less, nA if
        ``integer``. ``add``: add the sums of the product before, which was ``partial``:
        it had as many columns and vectors, and gave no results.

        ``store``: output the vectors' indices. ``softmax``: each vector's results are a row of the
        softmax, at most `scores`, in place of beats of `y`. ``weighted``: the vectors are
        multiplied by the rows, one by one in the order of their products; a row that several
        products use belongs to batches of one vector.

        ``tables``: tables were loaded for this command; ``normalise``: divide the vector by
        sqrt(mean square + ``eps``), with ``inverse_k`` = 1 / K; ``replace``: apply the function
        ``op`` (:class:`Function`) to the vector, which implies ``tables`` and one vector. Both
        together give f(x) / RMS(x). Where a vector is in parts, `normalise` sees the last part
        alone.
        """
        return data.StructLayout(
            {
                "vectors": count(range(self.vectors + 1)),
                "words": count(range(self.beats + 1)),
                "outliers": self.outlier_split.count_layout,
                "columns": count(range(self.n + 1)),
                "address": address(self.address_width),
                "integer": FLAG,
                "signed": FLAG,
                "lines": count(range((1 << self.activation_bits) + 1)),
                "add": FLAG,
                "partial": FLAG,
                "store": FLAG,
                "softmax": FLAG,
                "weighted": FLAG,
                "tables": FLAG,
                "normalise": FLAG,
                "inverse_k": FP32,
                "eps": FP32,
                "replace": FLAG,
                "op": Function,
            }
        )

    @cached_property
    def word_layout(self) -> data.ArrayLayout:
        """One word of the memory: weight indices of each lane's column at W positions.

        A word of scales has, from its lowest bits on, `scale_layout` of `scale_sets` sets.
        """
        weight = data.ArrayLayout(index(self.weight_bits), self.segment)
        return data.ArrayLayout(weight, self.lanes)

    @cached_property
    def scale_layout(self) -> data.ArrayLayout:
        """Scales of a set's columns."""
        return data.ArrayLayout(FP16, self.lanes)

    @property
    def scale_sets(self) -> int:
        """S: sets whose scales a word of scales has, a power of two of at most 16."""
        fit = self.segment * self.weight_bits // FP16.width
        return min(16, 1 << fit.bit_length() - 1)

    def words(self, k: int, n: int) -> int:
        """Words of memory that a matrix of `k` rows and `n` columns takes."""
        sets = -(-n // self.lanes)
        return sets * -(-k // self.segment) + -(-sets // self.scale_sets)

    @cached_property
    def memory(self) -> MemoryPort:
        """The memory, of which the core only reads."""
        return MemoryPort(index(range(self.depth)), self.address_width, self.word_layout)

    @cached_property
    def stored_layout(self) -> data.StructLayout:
        """Indices of 16 values as :class:`ClusteringUnit` outputs them, and the vector's scale.

        An index is 0 where the mask ``keep`` of inliers is.
        """
        indices = data.ArrayLayout(index(self.activation_bits), BEAT)
        return data.StructLayout(
            {"index": indices, "keep": mask(BEAT), "last": FLAG, "scale": FP16}
        )

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """Results of `lanes` neighbouring columns, for each vector of the batch in turn.

        ``y``; ``keep``: lanes with a column of the matrix; ``invalid``: lanes whose result is NaN;
        ``last`` beat of the product. ``y`` and ``invalid`` are 0 in lanes without a column.
        """
        return data.StructLayout(
            {
                "y": data.ArrayLayout(FP16, self.lanes),
                "keep": mask(self.lanes),
                "invalid": mask(self.lanes),
                "last": FLAG,
            }
        )
