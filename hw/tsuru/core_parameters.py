"""Parameters of the sixth design's core: what its parts have in common, and its memory."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.attention.decode_core import DecodeParameters
from hw.attention.grouped_rows import GroupedRowsParameters
from hw.attention.product_array import PeArrayParameters
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.attention.streamed_rows import TILE
from hw.layout import FLAG, count, index
from hw.parameters import require
from hw.stream.memory_port import MemoryPort
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.tsuru.core_cycles import Batch, CoreCycles, Step
from hw.tsuru.rest_rows import RestRowsParameters
from hw.tsuru.row_choice import THRESHOLD, RowChoiceParameters
from hw.tsuru.row_format import SEARCH_ROWS, RowFormat
from hw.tsuru.row_search import PLANES
from hw.tsuru.row_supply import RowSupplyParameters

FINE_CYCLES, SINK_CYCLES = 6, 7
"""Cycles of a kv head's new row, and of a sink."""


class Work(NamedTuple):
    """What a step does, for :meth:`TsuruCoreParameters.cycles`.

    tokens
        Number of rows of each kv head, the new one included.
    heads, group
        Number of query heads, and of those that share a kv head.
    chosen
        Chosen slots of each tile of 8, of each batch.
    """

    tokens: int
    heads: int
    group: int
    chosen: Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class TsuruCoreParameters(DecodeParameters):
    """
    d
        Number of elements of a row: a power of two from 8 to 256.
    capacity
        Tokens of a sequence, at most: a power of two from 16 to 4096.
    heads, kv_heads
        Number of query heads, and of kv heads, of a step, at most.
    parallel
        Number of query heads of a kv head on the same rows, 1 to `heads` and at most d.
    depth
        Words requested and not yet used, at most, by the search, and as many by the chosen rows: a
        power of two, at least 4.
    sinks
        Rows at the start that are exact, 0 to 2.
    kept
        Chosen rows whose V waits on the chip; see :class:`RowSupplyParameters`.
    query_bits
        Bits of an element of a query in the search, 4 to 11.
    key_fraction, value_fraction
        Fraction bits of fine codes; see :class:`hw.tsuru.row_format.RowFormat`.
    """

    d: int = 64
    capacity: int = 1024
    heads: int = 9
    kv_heads: int = 3
    parallel: int = 3
    depth: int = 32
    sinks: int = 1
    kept: int = 128
    query_bits: int = 8
    key_fraction: int = 4
    value_fraction: int = 4

    def __post_init__(self):
        _ = self.order, self.reader, self.choice, self.supply, self.rows  # each checks its own

    @classmethod
    def presets(cls) -> dict[str, "TsuruCoreParameters"]:
        return {
            "small": cls(d=8, capacity=64, heads=4, kv_heads=2, parallel=2, depth=8, kept=8),
            "default": cls(),
            "wide": cls(d=128, capacity=4096, heads=32, kv_heads=8, parallel=4, depth=64, kept=512),
        }

    @cached_property
    def format(self) -> RowFormat:
        return RowFormat(self.d, self.key_fraction, self.value_fraction)

    @cached_property
    def choice(self) -> RowChoiceParameters:
        """The parameters of search and choice."""
        return RowChoiceParameters(
            self.d, self.capacity, self.parallel, self.query_bits, self.sinks
        )

    @cached_property
    def supply(self) -> RowSupplyParameters:
        return RowSupplyParameters(
            self.d,
            self.capacity,
            self.order.head_bits,
            self.parallel,
            self.sinks,
            self.kept,
            self.depth,
            self.key_fraction,
            self.value_fraction,
        )

    @cached_property
    def rows(self) -> GroupedRowsParameters:
        """The lanes' parameters."""
        array = PeArrayParameters(rows=self.d, columns=1, arrays=1)
        # The rest is a row more.
        softmax = SpecialFunctionUnitParameters(self.capacity + 1, TILE, norms=False)
        return GroupedRowsParameters(RestRowsParameters(array, softmax), self.parallel)

    @property
    def row_layout(self) -> data.ArrayLayout:
        """A query; a word of memory too."""
        return data.ArrayLayout(FP16, self.d)

    @property
    def output_layout(self) -> data.StructLayout:
        return self.rows.lane.output_layout

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step of ``heads``, ``group`` on each kv head; ``restart`` begins a sequence. Rows whose
        estimated probability is above 2^-``threshold`` are read."""
        fields = {name: field.shape for name, field in self.order.step_layout}
        return data.StructLayout({"restart": FLAG} | fields | {"threshold": THRESHOLD})

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """``length``: number of tokens in memory after the step; ``chosen``: rows that its batches
        read besides the sinks, added up; ``error``: it was refused."""
        return data.StructLayout(
            {
                "length": count(range(self.capacity + 1)),
                "chosen": count(range(self.heads * self.capacity)),
                "error": FLAG,
            }
        )

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        """The reader of search words."""
        return SequentialReaderParameters(
            address_width=self.address_width,
            depth=self.depth,
            longest=self.choice.words(self.choice.slots),
        )

    @cached_property
    def memory(self) -> MemoryPort:
        """| kv head | half | place |: the first half has the search blocks, from its middle on V of
        the sinks, from three quarters on the mean of V; the second half has rows by number, sinks'
        K among them. The upper bit of a tag says that a chosen row is read."""
        tag = index(range(2 * self.depth))
        return MemoryPort(tag, self.address_width, self.row_layout)

    @property
    def latency(self) -> int:
        """Cycles of a head's softmax and sums, besides two for each row."""
        return self.rows.lane.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        choice = self.choice
        return self.latency + choice.latency + choice.rest_cycles + 2 * self.parallel

    def cycles(self, steps: Sequence[Work | None], memory_latency: int = 1, pause: int = 0) -> int:
        """Cycles from the first command offered to the last result or report accepted.

        Without stalls: the memory answers in `memory_latency` cycles, rows of q and kv are valid in
        time, and so are commands, or `pause` cycles after a step's last beat. There is no formula:
        the parts' control is gone through cycle by cycle.

        steps
            Work of each; None for a command that is refused.

        :raises ParameterError: for chosen slots without a sink or the newest row, which the core
            always reads.
        """
        parts = [None if step is None else self._step(step) for step in steps]
        return CoreCycles(self, memory_latency).run(parts, pause)

    def _step(self, work: Work) -> Step:
        sinks = min(work.tokens, self.sinks)
        slots = work.tokens + (PLANES - 1) * sinks
        tiles = -(-slots // SEARCH_ROWS)
        rule = (
            f"chosen must be {tiles} tiles, with the sinks in the first, the newest row in the last"
        )
        for of in work.chosen:
            require(len(of) == tiles and of[0] >= sinks and of[-1] > 0, rule, list(of))
        heads = self.order.batches(work.heads, work.group)
        batches = [
            Batch(number, self.choice.words(slots), chosen, sinks)
            for number, chosen in zip(heads, work.chosen, strict=True)
        ]
        batches[-1].last = True
        of_row = SINK_CYCLES if work.tokens <= self.sinks else FINE_CYCLES
        return Step(of_row * -(-work.heads // work.group), batches)
