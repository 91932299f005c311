"""Parameters and ports of the arrays that make inner and outer products (VEDA, section IV-A)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.attention.pe import PeParameters
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

LARGEST = 256

SCORE = data.StructLayout({"s": FP16, "last": FLAG})


class Fold(NamedTuple):
    """One addition of two partial sums at the end of an outer product.

    capture, add
        Cycles after the product's last addition: the first sum is captured in ``r``, and added to
        the second.
    partial_sums
        Partial sums that must exist for the first one to: a product may have fewer rows than L.
    """

    capture: int
    add: int
    partial_sums: int


class ProductTiming(NamedTuple):
    """Cycles from an outer product's first row, without stalls.

    last_row
        To its last row.
    next_row
        To the first row of an inner product after it.
    result
        To its result.
    """

    last_row: int
    next_row: int
    result: int


@dataclasses.dataclass(frozen=True)
class PeArrayParameters(Parameters):
    """
    rows, columns, arrays
        Powers of two; their product is d, the number of PEs.
    accumulator, multiply_stages, add_stages
        As in :class:`PeParameters`; L = add_stages.
    """

    rows: int = 8
    columns: int = 8
    arrays: int = 1
    accumulator: str = "fp32"
    multiply_stages: int = 1
    add_stages: int = 2

    def __post_init__(self):
        for name in ("rows", "columns", "arrays"):
            value = getattr(self, name)
            power = 0 < value <= LARGEST and value & (value - 1) == 0
            require(power, f"{name} must be a power of two up to {LARGEST}", value)
        PeParameters(self.accumulator, self.multiply_stages, self.add_stages)  # or ParameterError

    @classmethod
    def presets(cls) -> dict[str, "PeArrayParameters"]:
        return {
            "small": cls(rows=2, columns=2, arrays=2),
            "default": cls(),
            "paper": cls(arrays=2),
            # For mutation tests, whose simulations are slow.
            "tiny": cls(rows=1, columns=2),
        }

    @cached_property
    def pe(self) -> PeParameters:
        """Those of a PE."""
        return PeParameters(self.accumulator, self.multiply_stages, self.add_stages)

    @property
    def lanes(self) -> int:
        """d, the number of PEs and the elements of a row."""
        return self.rows * self.columns * self.arrays

    @property
    def levels(self) -> int:
        """Levels of the adder tree, from products to the sum of all."""
        return max(1, self.lanes.bit_length() - 1)

    @property
    def tree_cycles(self) -> int:
        """Cycles of an inner product in the adders: the tree's levels and the subtraction."""
        return (self.levels + 1) * self.add_stages

    @property
    def fold_cycles(self) -> int:
        """Cycles from an outer product's last addition to the start of the last fold."""
        return self.add_stages * (self.add_stages.bit_length() - 1)

    @cached_property
    def fold_schedule(self) -> list[Fold]:
        """How L partial sums become one: pairs first, then pairs of those, as they leave the adder.

        With L = 4 and partial sums s1 to s4, s4 the newest: s1 + s2, s3 + s4, then their sum.
        """
        size = self.add_stages
        schedule = []
        # Pairs are neighbours in time, so a sum waits in r for the shortest time, and one r is
        # enough.
        for level in range(size.bit_length() - 1):
            width = 1 << level
            for first in range(width, size, 2 * width):
                capture = level * size + first
                schedule.append(Fold(capture, capture + width, size + 1 - first))
        return schedule

    @property
    def outer_end_cycles(self) -> int:
        """Cycles from an outer product's last addition to its sums."""
        return self.fold_cycles + self.add_stages

    @property
    def latency(self) -> int:
        """Cycles from a row to its inner product."""
        return self.multiply_stages + self.tree_cycles + 2

    @property
    def outer_latency(self) -> int:
        """Cycles from an outer product's last row to the sums."""
        return self.multiply_stages + self.outer_end_cycles + 2

    def cycles(self, products: Sequence[tuple[bool, int]]) -> int:
        """Cycles from the first row or query offered to the last result accepted, without stalls.

        products
            In order: whether the product is an outer one, and its rows. Queries are valid in time.
        """
        # Cycles in which the last additions of an inner and of an outer product started.
        # The same rules as the hardware's `free`: an outer product waits for an empty tree, an
        # inner one for the last fold to have begun.
        inner = outer = -self.tree_cycles - self.outer_end_cycles
        start = self.multiply_stages - 1
        for is_outer, rows in products:
            if is_outer:
                free = max(inner + self.tree_cycles, outer + self.outer_end_cycles)
                outer = start = max(start + 1, free) + rows - 1
            else:
                inner = start = max(start + 2, outer + self.fold_cycles + 1) + rows - 1
        return start + (self.outer_end_cycles if products[-1][0] else self.tree_cycles) + 3

    def outer_product(self, rows: int) -> ProductTiming:
        """Timing of an outer product of `rows` rows."""
        last = rows - 1
        return ProductTiming(last, last + max(2, self.fold_cycles + 1), last + self.outer_latency)

    @cached_property
    def query_layout(self) -> data.ArrayLayout:
        """d elements, FP16."""
        return data.ArrayLayout(FP16, self.lanes)

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``w`` (FP16) the row, ``x`` (FP16) its factor if ``outer``, ``last`` of a product.

        ``relative`` is the same for all rows of an inner product: subtract its first finite result
        from all of them.
        """
        flags = {"outer": FLAG, "relative": FLAG, "last": FLAG}
        return data.StructLayout({"w": self.query_layout, "x": FP16} | flags)


A = TypeVar("A", bound=PeArrayParameters)


class ProductArray(Component[A]):
    """Base of the two arrays, with their ports; see :class:`hw.attention.pe_array.PeArray`."""

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "q": stream_in(p.query_layout, "Queries."),
            "i": stream_in(p.input_layout, "Rows."),
            "s": stream_out(SCORE, "Inner products ``s``, with the row's ``last``."),
            "o": stream_out(p.query_layout, "The d sums of an outer product."),
        }
