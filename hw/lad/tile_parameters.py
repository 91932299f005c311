"""Parameters of LAD's tile, with its payloads."""

import dataclasses
import functools
from typing import Any

from amaranth.lib import data

from hw.arith.float_format import FP16, FP32
from hw.attention.head_order import HeadOrderParameters
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.tile_sizes import COUNT_BITS, TileSizes
from hw.layout import FLAG, address, count, index, position
from hw.parameters import require
from hw.stream.memory_port import MemoryPort

VPUS = 6
"""Vector processing units of a tile: two in EAS, one in MD, three in AC."""

PIECES = 16
"""Rows of d elements that a vector of a linear layer has at most."""


@dataclasses.dataclass(frozen=True)
class LadTileParameters(TileSizes):
    __doc__ = TileSizes.__doc__

    @functools.cached_property
    def order(self) -> HeadOrderParameters:
        """Which `heads` and `group` of a command fit."""
        return HeadOrderParameters(self.heads, self.kv_heads)

    @functools.cached_property
    def row_layout(self) -> data.ArrayLayout:
        """A row of K, V, q or o."""
        return data.ArrayLayout(FP16, self.d)

    @functools.cached_property
    def wide_row_layout(self) -> data.ArrayLayout:
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
        """Rows read in a head-step: eight of a position at most, and the caches."""
        return count(range(8 * self.positions + self.cache_rows + 1))

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
    def block_memory(self) -> MemoryPort:
        """The port of a block of the tile, whose tag is a label."""
        return MemoryPort(index(self.label_bits), self.address_width, self.row_layout)

    @functools.cached_property
    def memory(self) -> MemoryPort:
        """The tile's port. In a tag is the ``source``, the block that requested, and its
        ``label``."""
        tag = data.StructLayout({"source": index(3), "label": index(self.label_bits)})
        return MemoryPort(tag, self.address_width, self.row_layout)

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """One token of a sequence.

        ``n``: positions, the new one included, so one more than in the last step. ``heads``, of
        which each ``group`` shares a kv head. ``restart``: the sequence begins, with one position
        whatever ``n`` is.
        ``prefetch``, if not 0: no step, but rows of at most `prefetch` positions of each head that
        were active in the last step, of ``n`` positions, are loaded ahead of the next command.
        ``pieces``, if not 0: no step, but a linear layer of `heads` vectors, at most 6, of `pieces`
        rows each, and of `rows` rows of weights from ``row`` on.
        """
        heads = count(range(self.heads + 1))
        fields = {"n": self.number, "heads": heads, "group": heads, "restart": FLAG}
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
        command."""
        return data.StructLayout({"o": self.row_layout, "invalid": FLAG, "last": FLAG})

    @functools.cached_property
    def y_layout(self) -> data.StructLayout:
        """``y``: a row of W times each vector; ``last`` row."""
        return data.StructLayout({"y": data.ArrayLayout(FP32, VPUS), "last": FLAG})

    @functools.cached_property
    def report_layout(self) -> data.StructLayout:
        """What a head-step did: ``n``; centres, positions with a large mode, active ones, newly
        active ones, active ones whose rows had been prefetched, updated ones, those above m; rows
        read. ``error``: no head-step, but a command was refused; all other fields are 0.
        """
        names = "n", "centres", "large", "active", "fresh", "hits", "updated", "above"
        fields = {**dict.fromkeys(names, self.number), "rows": self.rows_count, "error": FLAG}
        return data.StructLayout(fields)

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


def require_no_sfm(p: LadTileParameters, what: str) -> None:
    """:raises ParameterError: if there is a special function module."""
    sizes = p.vector_lanes, p.rotary_pairs, p.normed
    require(not any(sizes), f"vector_lanes, rotary_pairs and normed must be 0 for {what}", sizes)


class StageParameters(LadTileParameters):
    """Parameters of a block of the tile alone: nothing is prefetched, its VPUs are not lent, and
    there is no special function module beside it."""

    def __post_init__(self):
        super().__post_init__()
        rule = "prefetch and weights must be 0 for a block of the tile by itself"
        require(self.prefetch == self.weights == 0, rule, (self.prefetch, self.weights))
        require_no_sfm(self, "a block of the tile by itself")

    @classmethod
    def presets(cls) -> dict[str, Any]:
        tiles = {name: dataclasses.asdict(p) for name, p in LadTileParameters.presets().items()}
        return {
            name: cls(**(values | {"prefetch": 0, "weights": 0})) for name, values in tiles.items()
        }
