"""Sizes and payloads of several of LAD's tiles."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from amaranth.lib import data

from hw.lad.memory_map import Region
from hw.lad.tile_parameters import LadTileParameters, require_no_sfm
from hw.layout import FLAG, index
from hw.parameters import require
from hw.stream.memory_port import MemoryPort

TILES = 6
"""Tiles of the paper's accelerator."""


@dataclasses.dataclass(frozen=True)
class LadSystemParameters(LadTileParameters):
    """A tile's parameters, with the heads of all tiles, and:

    tiles
        Number of tiles, 1 to `kv_heads`; the paper has `TILES`.
    memory_ports
        1, a port that the tiles share, or `tiles`, one for each, such as a group of a memory's
        channels.
    """

    tiles: int = 2
    memory_ports: int = 1

    def __post_init__(self):
        super().__post_init__()
        fits = 1 <= self.tiles <= self.kv_heads
        require(fits, "tiles must be between 1 and kv_heads", self.tiles)
        fits = self.memory_ports in (1, self.tiles)
        require(fits, "memory_ports must be 1 or as many as tiles", self.memory_ports)
        rule = "weights must be 0: linear layers are not divided among tiles"
        require(self.weights == 0, rule, self.weights)
        require_no_sfm(self, "several tiles")
        _ = self.tile  # checks its own parameters

    @classmethod
    def presets(cls) -> dict[str, Any]:
        of_tile = {name: dataclasses.asdict(p) for name, p in LadTileParameters.presets().items()}
        changed = {
            "small": {"heads": 4, "kv_heads": 2, "weights": 0},
            "default": {},
            "paper": {"tiles": TILES},
        }
        return {name: cls(**(of_tile[name] | changes)) for name, changes in changed.items()}

    @functools.cached_property
    def tile(self) -> LadTileParameters:
        """Every tile's: its share of the kv heads, and of the heads where each kv head has as many
        as it has with all `heads` and `kv_heads` in use."""
        names = [field.name for field in dataclasses.fields(LadTileParameters)]
        values = {name: getattr(self, name) for name in names}
        kv_heads = -(-self.kv_heads // self.tiles)
        heads = min(self.heads, kv_heads * -(-self.heads // self.kv_heads))
        return LadTileParameters(**(values | {"kv_heads": kv_heads, "heads": heads}))

    # Memory

    @functools.cached_property
    def regions(self) -> dict[str, Region]:
        """The memory map of a tile, from the tile's first row on."""
        return self.tile.regions

    @property
    def tile_rows(self) -> int:
        """Tile t's rows begin at t times this, a power of two."""
        return 1 << self.tile.address_width

    @property
    def memory_rows(self) -> int:
        return self.tiles * self.tile_rows

    @property
    def separate(self) -> bool:
        """Whether each tile has a separate port."""
        return self.memory_ports > 1

    @property
    def latency(self) -> int:
        """Cycles of a command of a sequence's first token and one head."""
        return self.tile.latency + 8

    def cycles(self, work: Sequence) -> int:
        """Cycles of commands, about: of the slowest tile, or of all rows on a port that they share.

        :class:`golden.lad.timing.system.SystemCycles` counts them exactly: each tile's as in
        :meth:`LadTileParameters.cycles`, but that a request, an output and a report wait for their
        turn among the tiles and take a cycle more, and a row of q, k or v for those before it.

        work
            For each command, and each tile, the reports of its heads.
        """
        total = 0
        for tiles in work:
            slowest = max(self.tile.cycles([heads]) for heads in tiles)
            shared = sum(report["rows"] for heads in tiles for report in heads)
            total += slowest if self.separate else max(slowest, shared)
        return total

    # Payloads

    @property
    def tile_index(self):
        return index(range(max(2, self.tiles)))

    @functools.cached_property
    def memory(self) -> MemoryPort:
        """A port. In the tag of a shared one is the ``tile`` that requested, and its ``tag``."""
        if self.separate:
            return self.tile.memory
        tag = data.StructLayout({"tile": self.tile_index, "tag": self.tile.memory.tag})
        return MemoryPort(tag, self.address_width, self.row_layout)

    @functools.cached_property
    def head_output_layout(self) -> data.StructLayout:
        """``o`` of a ``head`` of the command; ``invalid`` as a tile's."""
        return data.StructLayout({"o": self.row_layout, "invalid": FLAG, "head": self.head_index})

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a ``head``; ``invalid`` as a tile's; ``last`` of the command."""
        fields = {name: field.shape for name, field in self.head_output_layout}
        return data.StructLayout({**fields, "last": FLAG})

    @functools.cached_property
    def report_layout(self) -> data.StructLayout:
        """The ``head`` of the command, and its report as a tile's."""
        fields = {name: field.shape for name, field in self.tile.report_layout}
        return data.StructLayout({"head": self.head_index, **fields})
