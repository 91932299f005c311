"""Memories of rows, for an FPGA's block memories."""

from typing import Any

from amaranth.lib import memory


def row_memory(shape: Any, depth: int) -> Any:
    """A memory of `depth` rows, where no read matters of a row that is written in the same cycle.

    Even a few rows are dearer in tables than in block memories, of which an FPGA has more than the
    rest of a tile needs; and that promise saves the bypass around them. In a library of cells
    neither attribute means anything.
    """
    attributes: Any = {"ram_style": "block", "no_rw_check": 1}  # the stubs know strings only
    return memory.Memory(shape=shape, depth=depth, init=[], attrs=attributes)
