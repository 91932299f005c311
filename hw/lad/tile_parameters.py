"""Sizes and payloads of LAD's tile, and its tables in memory."""

import dataclasses
import functools
from typing import Any

from amaranth.lib import data

from hw.arith.float_format import FP16, FP32
from hw.lad.apid_parameters import MODE_BITS, ApidParameters
from hw.lad.line_tables import LineTables, line_tables
from hw.lad.memory_map import Region, place_regions
from hw.lad.vpu import VpuParameters
from hw.layout import FLAG, address, count, index, position
from hw.parameters import Parameters, require

COUNT_BITS = 11
"""Bits of a counter in a word of G: | count (11) | mode (4) | active (1) |."""


VPUS = 6
"""Vector processing units of a tile: two in EAS, one in MD, three in AC."""

LANES = 3
"""Computation components of AC, each with a VPU."""

PIECES = 16
"""Rows of d elements that a vector of a linear layer has at most."""


@dataclasses.dataclass(frozen=True)
class LadTileParameters(Parameters):
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
        _ = self.vpu, self.apid  # each checks its own parameters
        rule = f"counters of a position must fit a row, {self.row_bits} bits"
        require(self.counter_word_bits <= self.row_bits, rule, self.counter_word_bits)

    @classmethod
    def presets(cls) -> dict[str, "LadTileParameters"]:
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
    def address_bits(self) -> int:
        return (self.memory_rows - 1).bit_length()

    @property
    def latency(self) -> int:
        """Cycles of a job of a sequence's first token and one head, with the fastest memory.

        K is encoded (or its length found), one score computed, and meanwhile the empty caches are
        multiplied.
        """
        dot, vpu, columns = self.vpu.dot_latency, self.vpu.latency, -(-self.d // 3)
        if self.identification == "codes":
            return 2 * dot + 3 * vpu + self.element_bits + max(59, 44 + columns)
        return 2 * dot + 2 * vpu + max(62, 47 + columns)

    def cycles(self, report: dict[str, int]) -> int:
        """Cycles of a head-step, about, with a memory that answers in the next cycle.

        :class:`golden.lad.timing.tile.TileCycles` counts them exactly, and every run without
        stalls is compared with. They depend on the jobs and the model's results alone: which
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
        them, two heads in all, and a job once all heads of the last one are reported.

        report
            As the tile's.
        """
        return report["rows"] + 2 * self.cache_rows + report["n"] + 100

    # Payloads

    @functools.cached_property
    def row(self) -> data.ArrayLayout:
        """A row of K, V, q or o."""
        return data.ArrayLayout(FP16, self.d)

    @functools.cached_property
    def wide_row(self) -> data.ArrayLayout:
        """d numbers in FP32."""
        return data.ArrayLayout(FP32, self.d)

    @property
    def position(self):
        return position(range(max(2, self.positions)))

    @property
    def number(self):
        """A number of positions."""
        return count(range(self.positions + 1))

    @property
    def head_index(self):
        return index(range(max(2, self.heads)))

    @property
    def kv_head_index(self):
        return index(range(max(2, self.kv_heads)))

    @property
    def rows_count(self):
        """Rows read in a head-step."""
        return count(6 + (8 * self.positions + self.cache_rows).bit_length())

    @functools.cached_property
    def word_layout(self) -> data.StructLayout:
        """A position's word of G, 16 bits: ``count`` of its ``mode``; ``active`` in the step
        before."""
        return data.StructLayout(
            {"count": count(COUNT_BITS), "mode": index(MODE_BITS), "active": FLAG}
        )

    @property
    def label_bits(self) -> int:
        """Width of a tag's label: what the requesting block needs to know."""
        widest = max(self.positions, self.cache_rows, 2 * self.depth, self.prefetch, 64)
        return 2 + (widest - 1).bit_length()

    @functools.cached_property
    def read_layout(self) -> data.StructLayout:
        """A block's request: a row to read, or to ``write``."""
        return data.StructLayout(
            {
                "label": index(self.label_bits),
                "address": address(self.address_bits),
                "write": FLAG,
                "data": self.row,
            }
        )

    @functools.cached_property
    def fetch_layout(self) -> data.StructLayout:
        """The request of a block that only reads."""
        return data.StructLayout(
            {"label": index(self.label_bits), "address": address(self.address_bits)}
        )

    @functools.cached_property
    def answer_layout(self) -> data.StructLayout:
        """A row that a block requested, with the request's label."""
        return data.StructLayout({"label": index(self.label_bits), "data": self.row})

    @functools.cached_property
    def tag_layout(self) -> data.StructLayout:
        """``source``: the block that requested. ``label``: its own."""
        return data.StructLayout({"source": index(3), "label": index(self.label_bits)})

    @functools.cached_property
    def request_layout(self) -> data.StructLayout:
        """A row to read, or to ``write``."""
        return data.StructLayout(
            {
                "tag": self.tag_layout,
                "address": address(self.address_bits),
                "write": FLAG,
                "data": self.row,
            }
        )

    @functools.cached_property
    def response_layout(self) -> data.StructLayout:
        return data.StructLayout({"tag": self.tag_layout, "data": self.row})

    @functools.cached_property
    def job_layout(self) -> data.StructLayout:
        """One token of a sequence.

        ``n``: positions, the new one included, so one more than in the last step. ``heads``, of
        which each ``group`` shares a kv head. ``clear``: the sequence begins; ``n`` counts as 1.
        ``prefetch``, if not 0: no step, but rows of at most `prefetch` positions of each head that
        were active in the last step, of ``n`` positions, are loaded ahead of the next job.
        ``pieces``, if not 0: no step, but a linear layer of `heads` vectors, at most 6, of `pieces`
        rows each, and of `rows` rows of weights from ``row`` on.
        """
        heads = count(range(self.heads + 1))
        fields = {"n": self.number, "heads": heads, "group": heads, "clear": FLAG}
        if self.prefetch:
            fields["prefetch"] = count(range(self.prefetch + 1))
        if self.weights:
            fields["pieces"] = count(range(PIECES + 1))
            fields["row"] = address(range(max(2, self.weights)))
            fields["rows"] = count(range(self.weights + 1))
        return data.StructLayout(fields)

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a head; ``invalid``: it has no meaning, see the tile's errors; ``last`` of the
        job."""
        return data.StructLayout({"o": self.row, "invalid": FLAG, "last": FLAG})

    @functools.cached_property
    def y_layout(self) -> data.StructLayout:
        """``y``: a row of W times each vector; ``last`` row."""
        return data.StructLayout({"y": data.ArrayLayout(FP32, VPUS), "last": FLAG})

    @functools.cached_property
    def report_layout(self) -> data.StructLayout:
        """What a head-step did: ``n``; centres, positions with a large mode, active ones, newly
        active ones, active ones whose rows had been prefetched, updated ones, those above m; rows
        read.
        """
        names = "n", "centres", "large", "active", "fresh", "hits", "updated", "above"
        return data.StructLayout({**dict.fromkeys(names, self.number), "rows": self.rows_count})

    @functools.cached_property
    def entry_layout(self) -> data.StructLayout:
        """A position that left its mode's interval, or whose counters must be halved (``halve``).

        ``fresh``: it was not active in the step before. ``last`` of the head.
        """
        return data.StructLayout(
            {
                "index": self.position,
                "mode": index(MODE_BITS),
                "count": count(self.counter_bits),
                "fresh": FLAG,
                "halve": FLAG,
                "last": FLAG,
            }
        )


class StageParameters(LadTileParameters):
    """Parameters of a block of the tile alone: nothing is prefetched, its VPUs are not lent."""

    def __post_init__(self):
        super().__post_init__()
        rule = "prefetch and weights must be 0 for a block of the tile by itself"
        require(self.prefetch == self.weights == 0, rule, (self.prefetch, self.weights))

    @classmethod
    def presets(cls) -> dict[str, Any]:
        tiles = {name: dataclasses.asdict(p) for name, p in LadTileParameters.presets().items()}
        return {
            name: cls(**(values | {"prefetch": 0, "weights": 0})) for name, values in tiles.items()
        }
