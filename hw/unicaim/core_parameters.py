"""Parameters and ports of UniCAIM's core."""

import dataclasses
import functools
from collections.abc import Sequence

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.attention.product_array import PeArrayParameters
from hw.attention.special_function_unit import (
    DRAIN_CYCLES,
    Operation,
    SpecialFunctionUnitParameters,
)
from hw.attention.weighted_rows import WeightedRowsParameters
from hw.layout import FLAG, FixedPoint, count, index, integer
from hw.parameters import Parameters, require, require_one_of
from hw.stream.memory_port import MemoryPort
from hw.unicaim.adc_bank import AdcBankParameters
from hw.unicaim.array import ArrayParameters
from hw.unicaim.cell_array import CellArrayParameters
from hw.unicaim.charge_accumulator import ChargeAccumulatorParameters
from hw.unicaim.command import CommandOp, CommandWork
from hw.unicaim.digital_array import DigitalArrayParameters
from hw.unicaim.eviction_sense import EvictionSenseParameters
from hw.unicaim.group_sum import GroupSumParameters
from hw.unicaim.level_converter import LevelConverterParameters, RowKind
from hw.unicaim.row_manager import RowManagerParameters
from hw.unicaim.serial_array import SerialArrayParameters
from hw.unicaim.topk_sense import TopkSenseParameters

TILE = 8
"""Scores in a tile of the softmax."""
STAGES = 5
"""Cycles from the last word of a pass over accumulations in a memory to its results."""


@dataclasses.dataclass(frozen=True)
class UnicaimCoreParameters(Parameters):
    """
    rows, d, key_bits, query_bits
        Sizes of the array, see :class:`hw.unicaim.array.ArrayParameters`; d is a power of two.
    kv_heads
        Sets of rows, one for each kv head, 1 to 256.
    group
        Most query heads of a kv head, 1 to 256.
    array
        ``digital``, ``serial`` (rows are in a memory), or for simulation ``cell``.
    parallel
        Rows that the serial array scores in a cycle.
    exact
        Where the scores of selected rows come from: ``rows``, their keys in the memory, or
        ``cells``, the array's own scores, converted.
    converters, adc_bits
        Number of converters of the cells' scores, and bits of their codes, at most 11.
    accumulators
        Rows whose accumulations move in a cycle, from a memory; a power of two from 2 that divides
        `rows` and is less. 0: all rows at once, from registers.
    share, fraction
        Of :class:`hw.unicaim.charge_accumulator.ChargeAccumulatorParameters`.
    fill
        Select exactly k rows, see :class:`hw.unicaim.topk_sense.TopkSenseParameters`.
    start
        Accumulation of a new row: ``mean`` of the others, or ``zero``.
    rotate
        Keys and queries are rotated before they become levels.
    depth
        Rows requested from the memory and not yet used, at most; a power of two from 4.
    spread_mv, time_steps, late, line_error
        Errors and times of the ``cell`` array: see
        :class:`hw.unicaim.cell_array.CellArrayParameters`.
    calibrate
        Each row of the ``cell`` array is measured by `adc_bits` after it is written.
    seed
        Seed of the rotation's signs and of the array's errors.
    observe
        A further output has the address of every selected row, for tests.
    """

    rows: int = 64
    d: int = 64
    key_bits: int = 3
    query_bits: int = 1
    kv_heads: int = 3
    group: int = 4
    array: str = "digital"
    parallel: int = 8
    exact: str = "rows"
    converters: int = 10
    adc_bits: int = 10
    accumulators: int = 0
    share: int = 4
    fraction: int = 8
    fill: bool = True
    start: str = "mean"
    rotate: bool = True
    depth: int = 64
    spread_mv: int = 0
    time_steps: int = 0
    late: int = 0
    line_error: int = 0
    calibrate: bool = False
    seed: int = 1
    observe: bool = False

    def __post_init__(self):
        for name, known in (
            ("array", ["digital", "serial", "cell"]),
            ("exact", ["rows", "cells"]),
            ("start", ["mean", "zero"]),
        ):
            require_one_of(name, getattr(self, name), known)
        d, depth = self.d, self.depth
        require(d >= 2 and d & (d - 1) == 0, "d must be a power of two from 2", d)
        require(1 <= self.group <= 256, "group must be between 1 and 256", self.group)
        power = depth >= 4 and depth & (depth - 1) == 0
        require(power, "depth must be a power of two from 4", depth)
        bits = self.adc_bits
        require(2 <= bits <= 11, "adc_bits must be between 2 and 11", bits)
        some = self.accumulators
        power = some >= 2 and some & (some - 1) == 0 and self.rows > some and self.rows % some == 0
        rule = "accumulators must be 0, or a power of two from 2 that divides rows and is less"
        require(some == 0 or power, rule, some)
        _ = self.cells, self.converter, self.accumulator, self.bank  # each checks its own

    @classmethod
    def presets(cls) -> dict[str, "UnicaimCoreParameters"]:
        small = cls(
            rows=8, d=4, query_bits=2, kv_heads=2, converters=3, fraction=3, depth=8, observe=True
        )
        serial = cls(rows=576, query_bits=3, array="serial", accumulators=8)
        return {
            "small": small,
            "cells": dataclasses.replace(
                small, exact="cells", array="serial", parallel=2, accumulators=2
            ),
            "default": cls(),
            "serial": serial,
            "paper": dataclasses.replace(
                serial, d=128, query_bits=1, kv_heads=1, group=1, exact="cells", converters=64
            ),
        }

    @functools.cached_property
    def cells(self) -> ArrayParameters:
        """Parameters of the array."""
        sizes = self.rows, self.d, self.key_bits, self.query_bits, self.kv_heads
        if self.array == "cell":
            times = self.time_steps, self.late, self.line_error
            bits = self.adc_bits if self.calibrate else 0
            return CellArrayParameters(*sizes, self.spread_mv, self.seed, *times, bits)
        if self.array == "serial":
            return SerialArrayParameters(*sizes, parallel=self.parallel)
        return DigitalArrayParameters(*sizes)

    @functools.cached_property
    def converter(self) -> LevelConverterParameters:
        sizes = self.rows, self.d, self.key_bits, self.query_bits, self.kv_heads
        return LevelConverterParameters(*sizes, rotate=self.rotate, seed=self.seed)

    @functools.cached_property
    def sense(self) -> TopkSenseParameters:
        return TopkSenseParameters(self.rows, self.fill)

    @functools.cached_property
    def manager(self) -> RowManagerParameters:
        return RowManagerParameters(self.rows, self.kv_heads)

    @functools.cached_property
    def group_sum(self) -> GroupSumParameters:
        return GroupSumParameters(self.rows, self.cells.score.width, self.group)

    @functools.cached_property
    def accumulator(self) -> ChargeAccumulatorParameters:
        bits = self.group_sum.sum_bits
        return ChargeAccumulatorParameters(
            self.rows, bits, self.fraction, self.share, self.kv_heads
        )

    @property
    def words(self) -> int:
        """Words of a kv head's accumulations in a memory."""
        return self.rows // self.accumulators

    @property
    def pass_cycles(self) -> int:
        """Cycles from a query's scores to the next query's that move all accumulations."""
        return self.words + STAGES if self.accumulators else 1

    @property
    def accumulation_total(self) -> Shape:
        """Shape of a sum of accumulations in offset binary."""
        return unsigned((self.rows * ((1 << self.accumulator.width) - 1)).bit_length())

    @functools.cached_property
    def eviction(self) -> EvictionSenseParameters:
        return EvictionSenseParameters(self.rows)

    @functools.cached_property
    def bank(self) -> AdcBankParameters:
        fraction = max(1, self.score_bits - self.adc_bits)
        return AdcBankParameters(self.converters, self.adc_bits, fraction)

    @property
    def score_bits(self) -> int:
        return self.cells.score.width

    @property
    def adc_shift(self) -> int:
        """Shift of a code: one step of it is 2^adc_shift of score."""
        return max(0, self.score_bits - self.adc_bits)

    @functools.cached_property
    def pe_array(self) -> PeArrayParameters:
        columns = min(8, self.d // 2) if self.d > 2 else 2
        rows = min(8, self.d // columns)
        return PeArrayParameters(rows, columns, self.d // columns // rows)

    @functools.cached_property
    def softmax(self) -> SpecialFunctionUnitParameters:
        return SpecialFunctionUnitParameters(self.rows, TILE, norms=False)

    @property
    def latency(self) -> int:
        """Cycles from a query to the first address of its rows, with one plane a cycle."""
        planes = self.converter.latency + self.query_bits - 1
        return planes + self.cells.latency + self.score_bits

    def head_cycles(self, rows: int) -> int:
        """Cycles from a query to its result, with a memory that answers in the next cycle."""
        reading = 5 if self.exact == "rows" else 0  # from an address to its row
        return self.latency + reading + self.exact_cycles(rows)

    cycles_exact = False

    def cycles(self, work: Sequence[CommandWork]) -> int:
        """Cycles of commands, about, from the first one offered to the last output accepted.

        Without stalls, with a memory that answers in the next cycle, and of an array whose searches
        have a known number of steps; `golden.unicaim.core_cycles` counts them exactly but for rows
        that are read and written at once.
        """
        planes = self.accumulator.planes
        reading = 5 if self.exact == "rows" else 0  # from an address to its row
        result = self.pe_array.outer_product(1).result
        sequence = exact = end = 0  # when each is free, and when the last output is accepted
        free: dict[int, int] = {}  # when a kv head takes its next command
        for op, kv_head, full, queries in work:
            accepted = max(sequence, free.get(kv_head, 0))
            if op is CommandOp.LOAD:
                sequence = end = accepted + self.converter.row_cycles(RowKind.MEAN)
                continue
            written = self.cells.write_cycles - 1
            sequence = accepted + self.converter.row_cycles(RowKind.KEY) + written
            # The accumulations of its kv head: the new row's, then the row to evict.
            done = sequence + 4
            if op is CommandOp.STEP and self.start == "mean":
                done += planes + 3
            if full and op is not CommandOp.RESTART:
                done += self.pass_cycles if self.accumulators else planes + 2
            for rows in queries:
                first = sequence + self.latency + reading
                rows = max(1, rows)
                exact = max(exact + self.exact_interval(rows), first + self.exact_cycles(rows))
                sequence += self.selection_interval(rows)
                summed = first - self.score_bits + self.pass_cycles
                done = max(done, exact - result + 1, summed)
            free[kv_head], end = done, max(end, done, exact)
        return end + 1

    @property
    def idle_bound(self) -> int:
        """Cycles without a transfer, at most."""
        exact = self.attention.softmax_cycles(self.rows) + self.pe_array.latency + self.rows
        steps = self.cells.steps if self.array == "cell" else 0
        return 2 * exact + steps + self.latency + self.accumulator.planes + 16

    @functools.cached_property
    def attention(self) -> WeightedRowsParameters:
        return WeightedRowsParameters(self.pe_array, self.softmax, keys=self.exact == "rows")

    def exact_cycles(self, rows: int) -> int:
        """Cycles from a head's first selected row, its key or its sample, to its result."""
        scores = self.bank.latency + 2 if self.exact == "cells" else self.pe_array.latency
        timing = self.pe_array.outer_product(rows)
        return rows - 1 + scores + self.attention.softmax_cycles(rows) + timing.result

    def exact_interval(self, rows: int) -> int:
        """Cycles from a head to the next one in the exact stage, for `rows` selected rows."""
        if self.exact == "cells":
            reduction = self.softmax.reduction_cycles(rows, Operation.SOFTMAX)
            return rows - 1 + reduction + max(rows, DRAIN_CYCLES)
        timing = self.pe_array.outer_product(rows)
        return self.attention.value_cycles(rows) + timing.next_row

    def selection_interval(self, rows: int) -> int:
        """Cycles from a query's search to the next one's: its planes, scores and steps, and where
        exact is ``cells`` the addresses, as the array then keeps its scores. It keeps them for
        a pass over all accumulations, too."""
        kept = self.score_bits + (rows if self.exact == "cells" else 0)
        planes = self.query_bits + self.cells.latency - 1
        return max(planes + max(kept, self.pass_cycles - STAGES), self.pass_cycles)

    def head_interval(self, rows: int) -> int:
        """Cycles from a head's result to the next one's, with `rows` selected rows of each."""
        return max(self.exact_interval(rows), self.selection_interval(rows))

    @functools.cached_property
    def row_layout(self) -> data.ArrayLayout:
        """d elements, FP16."""
        return data.ArrayLayout(FP16, self.d)

    @property
    def kv_head(self) -> dict:
        """The field of a kv head, if there are several."""
        return {"kv_head": index(range(self.kv_heads))} if self.kv_heads > 1 else {}

    @functools.cached_property
    def mean_layout(self) -> data.StructLayout:
        """``mean``: the mean key of a kv head, which is taken off its keys. ``divisor`` of its
        keys: see :class:`hw.unicaim.level_converter.LevelConverter`."""
        return data.StructLayout({"divisor": FP16, "mean": self.row_layout})

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """``op``: see :class:`CommandOp`. ``kv_head``, if there are several. ``k``: rows to select.
        ``heads``: query heads of a STEP."""
        numbers = {"k": count(range(self.rows + 1)), "heads": count(range(self.group + 1))}
        return data.StructLayout({"op": CommandOp, **self.kv_head, **numbers})

    @functools.cached_property
    def q_layout(self) -> data.StructLayout:
        """``x``: a query times the scale. ``divisor``: of its levels. ``unit``, where exact is
        ``cells``: what a code of the converters is worth, FP16 too."""
        unit = {"unit": FP16} if self.exact == "cells" else {}
        return data.StructLayout({"divisor": FP16, **unit, "x": self.row_layout})

    @property
    def address_width(self) -> int:
        return (self.kv_heads - 1).bit_length() + 1 + (self.rows - 1).bit_length()

    @functools.cached_property
    def memory(self) -> MemoryPort:
        """The memory of K and V. An address is | kv head | V | row |."""
        return MemoryPort(index(range(self.depth)), self.address_width, self.row_layout)

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """``o`` of a head. ``invalid``: its softmax was. ``present``: how many rows were selected.
        ``last`` of a step."""
        present = count(range(self.rows + 1))
        fields = {"present": present, "invalid": FLAG, "last": FLAG}
        return data.StructLayout({"o": self.row_layout, **fields})

    @functools.cached_property
    def report_layout(self) -> data.StructLayout:
        """``row``: the row written, 0 for RESTART. ``evicts``: it was in use. ``conversions``: rows
        selected, by all heads together. ``steps`` of all searches for them."""
        steps = self.group * max(self.cells.steps, 2 * self.cells.score_limit + 2)
        return data.StructLayout(
            {
                "row": index(range(self.rows)),
                "evicts": FLAG,
                "conversions": count(range(self.group * self.rows + 1)),
                "steps": count(range(steps + 1)),
            }
        )

    @functools.cached_property
    def code_layout(self) -> data.StructLayout:
        """A converter's ``code``, ``last`` of a head. ``present`` is 0 for a head without rows."""
        code = integer(signed(self.adc_bits))
        return data.StructLayout({"code": code, "present": FLAG, "last": FLAG})

    @property
    def context(self) -> Shape:
        """Shape of a kv head inside the core: at least one bit."""
        return unsigned(max(1, (self.kv_heads - 1).bit_length()))

    @property
    def sample(self) -> FixedPoint:
        return self.bank.sample
