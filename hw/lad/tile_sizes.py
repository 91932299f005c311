"""Sizes of LAD's tile: parameters, sub-blocks, tables in memory, cycles.

The bit-exact model states those it needs once more, in :mod:`golden.lad.tile_sizes`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

from hw.arith.float_format import FP16
from hw.attention.vector_path import VectorPathParameters
from hw.lad.apid_parameters import ApidParameters
from hw.lad.memory_map import Region, place_regions
from hw.lad.scores.line_tables import LineTables, line_tables
from hw.lad.vpu import VpuParameters
from hw.parameters import Parameters, require

COUNT_BITS = 11
"""Bits of a counter in a word of G: | count (11) | mode (4) | active (1) |."""

LANES = 3
"""Computation components of AC, each with a VPU."""


@dataclasses.dataclass(frozen=True)
class TileSizes(Parameters):
    """
    d
        Elements of a head's vectors, a power of two: 8 to 128.
    positions
        Tokens of a sequence at most.
    bounds
        Bounds between intervals of the exponential, as in :class:`hw.lad.apid.ApidParameters`.
    slack
        How far off exp a mode's line may be beyond its interval, in units of 2^-16; 0 is the
        paper's.
    identification
        ``codes``: scores of keys in `code_bits` bits; ``centres``: of collinear keys, the paper's.
    code_bits
        2 to 8.
    near
        Keys of modes whose interval begins here or above have exact scores: eighths below 0.
    window
        Number of latest positions, which are always active.
    heads, kv_heads
        Query heads, and heads of K and V.
    counter_bits
        Width of a counter, 2 to 11.
    updates
        Positions that may change their mode in a step, 2 or more.
    depth
        Positions whose rows are in flight or wait, a power of two from 4; twice as many rows of
        codes. A memory that answers within 2 depth - 50 cycles is read at almost full rate.
    prefetch
        Positions whose rows of K and V may be loaded ahead of a step; 0: none.
    weights
        Rows of memory for the weights of linear layers; 0: there is no linear mode.
    multiply_stages, add_stages
        Pipeline stages of the VPUs' multipliers and of a level of their adder trees.
    vector_lanes, rotary_pairs, normed
        Sizes of the special function module: elements added or multiplied in a cycle, 0 to 64;
        pairs of the longest head that is turned by its position, 0 to 512; elements of the longest
        vector that is normalised, 0 or 2 to 8192. 0: there is no such unit.
    """

    d: int = 64
    positions: int = 1024
    bounds: str = "80_52_36_26_18_11_5"
    slack: int = 13
    identification: str = "codes"
    code_bits: int = 6
    near: int = 24
    window: int = 16
    heads: int = 9
    kv_heads: int = 3
    counter_bits: int = COUNT_BITS
    updates: int = 16
    depth: int = 64
    prefetch: int = 0
    weights: int = 0
    multiply_stages: int = 2
    add_stages: int = 2
    vector_lanes: int = dataclasses.field(default=0, kw_only=True)
    rotary_pairs: int = dataclasses.field(default=0, kw_only=True)
    normed: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self):
        require(self.d in (8, 16, 32, 64, 128), "d must be 8, 16, 32, 64 or 128", self.d)
        fits = 1 < self.positions <= 1 << 16
        require(fits, "positions must be between 2 and 65536", self.positions)
        fits = 0 <= self.slack <= 256
        require(fits, "slack must be between 0 and 256", self.slack)
        known = self.identification in ("codes", "centres")
        require(known, "identification must be codes or centres", self.identification)
        fits = 2 <= self.code_bits <= 8
        require(fits, "code_bits must be between 2 and 8", self.code_bits)
        require(self.near >= 0, "near must be at least 0", self.near)
        fits = 1 <= self.kv_heads <= self.heads <= 1024
        rule = "kv_heads must be between 1 and heads, and these at most 1024"
        require(fits, rule, (self.kv_heads, self.heads))
        fits = 2 <= self.counter_bits <= COUNT_BITS
        require(fits, f"counter_bits must be between 2 and {COUNT_BITS}", self.counter_bits)
        require(2 <= self.updates <= 256, "updates must be between 2 and 256", self.updates)
        power = self.depth > 0 and self.depth & (self.depth - 1) == 0
        fits = power and 4 <= self.depth <= 256
        require(fits, "depth must be a power of two from 4 to 256", self.depth)
        fits = self.prefetch == 0 or 2 <= self.prefetch <= 1 << 16
        require(fits, "prefetch must be 0 or between 2 and 65536", self.prefetch)
        fits = self.weights == 0 or 2 <= self.weights < 1 << 24
        require(fits, "weights must be 0 or between 2 and 2^24 - 1", self.weights)
        _ = self.vpu, self.apid, self.vector_path  # each checks its own parameters
        rule = f"counters of a position must fit a row, {self.row_bits} bits"
        require(self.counter_word_bits <= self.row_bits, rule, self.counter_word_bits)

    @classmethod
    def presets(cls) -> dict[str, Self]:
        return {
            "small": cls(
                d=8,
                positions=60,
                bounds="80_48_24_8",
                window=4,
                heads=2,
                kv_heads=1,
                counter_bits=4,
                updates=4,
                depth=8,
                prefetch=16,
                weights=40,
                multiply_stages=1,
                add_stages=1,
            ),
            "default": cls(),
            "paper": cls(
                d=128, positions=4096, heads=32, kv_heads=32, identification="centres", slack=0
            ),
        }

    # Sub-blocks

    @functools.cached_property
    def vpu(self) -> VpuParameters:
        return VpuParameters(self.d, self.multiply_stages, self.add_stages)

    @functools.cached_property
    def apid(self) -> ApidParameters:
        return ApidParameters(
            lanes=self.lanes,
            positions=self.positions,
            depth=64,
            outputs=1,
            window=self.window,
            bounds=self.bounds,
            slack=self.slack,
            counter_bits=self.counter_bits,
        )

    @functools.cached_property
    def vector_path(self) -> VectorPathParameters:
        """The special function module (LAD, IV-B(6))."""
        return VectorPathParameters(self.vector_lanes, self.rotary_pairs, self.normed)

    @property
    def lanes(self) -> int:
        """Positions that APID takes in a cycle: the paper's 12 as a power of two."""
        return min(16, self.d)

    @functools.cached_property
    def tables(self) -> LineTables:
        """Lines of the exponential."""
        return line_tables(self.apid.bound_values, self.slack)

    @property
    def intervals(self) -> int:
        """I."""
        return self.apid.intervals

    @property
    def near_mode(self) -> int:
        """The first mode whose interval begins at `near` or above."""
        return 1 + sum(bound < -self.near / 8 for bound in self.apid.bound_values)

    # Memory

    @property
    def row_bits(self) -> int:
        """Bits of a memory word: d numbers in FP16."""
        return self.d * FP16.width

    @property
    def element_bits(self) -> int:
        """log2 d."""
        return self.d.bit_length() - 1

    @property
    def table_rows(self) -> int:
        """Rows of a table with a 16-bit word for each position."""
        return -(-self.positions // self.d)

    @property
    def code_rows(self) -> int:
        """Rows of a kv head's codes: each element's codes follow one another in its 16 bits."""
        return -(-self.positions * self.code_bits // FP16.width)

    @property
    def counter_word_bits(self) -> int:
        """Bits of a position's counters, a power of two."""
        return 1 << (self.intervals * self.counter_bits - 1).bit_length()

    @property
    def counter_words(self) -> int:
        """Number of positions whose counters share a row."""
        return self.row_bits // self.counter_word_bits

    @property
    def cache_rows(self) -> int:
        """Rows of a head's A to F in FP32: two for each column of A, for B, C and D; E and F."""
        return 2 * self.d + 7

    @property
    def columns(self) -> int:
        """Columns of A in a lane of AC, at most."""
        return -(-self.d // LANES)

    @functools.cached_property
    def regions(self) -> dict[str, Region]:
        """The memory map. Parts of a table are a power of two apart, tables without gaps.

        ``code`` and ``unit``, or ``norm``, ``dnorm`` and ``cid``: by kv head, as K and V.
        """
        kv = self.kv_heads
        sizes = {"k": (self.positions, kv), "v": (self.positions, kv)}
        if self.identification == "codes":
            sizes |= {"code": (self.code_rows, kv), "unit": (self.table_rows, kv)}
        else:
            sizes |= dict.fromkeys(("norm", "dnorm", "cid"), (self.table_rows, kv))
        sizes["g"] = self.table_rows, self.heads
        sizes["counter"] = -(-self.positions // self.counter_words), self.heads
        sizes["cache"] = self.cache_rows, self.heads
        if self.weights:
            sizes["weight"] = self.weights, 1
        return place_regions(sizes)

    @property
    def memory_rows(self) -> int:
        return max(region.end for region in self.regions.values())

    @property
    def address_width(self) -> int:
        return (self.memory_rows - 1).bit_length()

    @property
    def latency(self) -> int:
        """Cycles of a command of a sequence's first token and one head, with the fastest memory.

        K is encoded (or its length found), one score computed, and meanwhile the empty caches are
        multiplied.
        """
        dot, vpu, columns = self.vpu.dot_latency, self.vpu.latency, -(-self.d // 3)
        if self.identification == "codes":
            return 2 * dot + 3 * vpu + self.element_bits + max(59, 44 + columns)
        return 2 * dot + 2 * vpu + max(62, 47 + columns)

    cycles_exact = False

    def cycles(self, work: Sequence) -> int:
        """Cycles of commands, about, with a memory that answers in the next cycle.

        :class:`golden.lad.timing.tile.TileCycles` counts them exactly, and every run without
        stalls is compared with. They depend on the commands and the model's results alone: which
        positions are in M or active, whose counters are halved, how many modes change, which rows
        were loaded ahead. Two heads share the port, so that they are no sum, but follow from these
        rules, cycle by cycle::

            port      one request a cycle, by turns; readers wait for writes and for caches
            answer    2 cycles after its request
            EAS       after STORE_V: log2 d + M + 8 and the code's place in its row, 0 to 15;
                      rows of G and units; rows of codes, a pair of scores a cycle; meanwhile a key
                      of M or of the window a cycle, before these rows; 3 cycles for a row of G in
                      the scan of M; dot_latency + 5 from the last pair to its score
            APID      a beat of `lanes` positions a cycle while 64 - lanes entries are free; 5
                      cycles to the first entry, one entry a cycle
            fetch     counters if the row is another one, K, V: a request a cycle; `depth` slots
            MD        dot_latency + 9 from a key to its correction, an entry a cycle
            AC        ceil(d / 3) + dot_latency + 6 from the caches to the first position, 2 M + 12
                      from the last one to o; T + M + 5 to B to F, then T for each column
            caches    2 cycles for a column or vector as soon as it is set, not in a cycle in which
                      the sums read theirs; read again behind that, for the next head
            G         2 cycles a row, once MD has ended, and the report

        M is `multiply_stages`, T the terms. The scores of a head begin once there is a store for
        them, two heads in all, and a command once all heads of the last one are reported.

        work
            For each command the reports of its heads, each a mapping.
        """
        fixed = 2 * self.cache_rows + 100
        return sum(report["rows"] + report["n"] + fixed for heads in work for report in heads)
