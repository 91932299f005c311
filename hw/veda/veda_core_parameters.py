"""Parameters of VEDA's core: sizes, payloads, cycles (VEDA, section V and Fig. 7)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from amaranth.lib import data

from hw.attention.decode_core import DecodeParameters
from hw.attention.product_array import PeArrayParameters
from hw.attention.special_function_unit import (
    DRAIN_CYCLES,
    Operation,
    SpecialFunctionUnitParameters,
)
from hw.attention.vector_path import VectorPathParameters
from hw.layout import index
from hw.parameters import require
from hw.stream.memory_port import MemoryPort
from hw.stream.sequential_reader import SequentialReaderParameters
from hw.veda.compared_rows import ComparedRowsParameters
from hw.veda.context_memory import by_context
from hw.veda.core_work import MovedWork, OverflowWork, ProductWork, StepWork
from hw.veda.product_sequence import ProductParameters
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import SchedulerParameters
from hw.veda.state_mover import StateMoverParameters
from hw.veda.tree_array import TreeArrayParameters

TILE = 8
"""Scores in a tile of the softmax: it adds as many cycles to a head."""

DATAFLOWS = {"flexible": 0, "tree": 1, "tree_double": 2}
"""The array's dataflows, and the tiles of the transpose buffer that each needs."""

SCHEDULINGS = ("element_serial", "separate")


@dataclasses.dataclass(frozen=True)
class VedaCoreParameters(DecodeParameters):
    """
    rows, columns, arrays
        Size of the array; the product, d, is the number of elements in a row.
    capacity, heads, kv_heads, depth, position_bits, count_bits
        See :class:`SchedulerParameters`. The capacity includes the new token's row, so at most
        capacity - 1 rows are kept between steps. A run of K, or of V, of at most `depth` rows is
        read once for the heads that share it; `depth` rows are also requested ahead.
    contexts
        Number of caches, such as the layers of each sequence. Their rows are in the memory; counts
        of votes, lengths and maps are in the core.
    resident
        Number of contexts, from 2, whose state is in the core at a time; the others' is in the
        memory, after the matrices' rows. 0: the state of all is in the core.
    vector
        Number of elements of a vector that a matrix is multiplied by, at most; 0: the core computes
        attention alone.
    tokens
        Number of vectors of a product, at most, that share the matrix's rows.
    normed
        Number of elements of a vector that is normalised, at most.
    weights
        Number of rows of matrices in the memory, after the caches'.
    block
        Number of tokens of a step, at most, that share rows of K and V: a block of a prompt. The
        softmax has room for the scores of `parallel` heads of all tokens, the voting engine for
        each token's scores.
    parallel
        Number of query heads, 1 to `heads`, whose keys go through the array before their values;
        the softmax has room for their scores. As many heads of a kv head share its rows.
    accumulator, multiply_stages
        See :class:`PeArrayParameters`.
    dataflow
        ``flexible``, or for comparison ``tree`` and ``tree_double``: :class:`TreeArray` with one
        tile or two.
    scheduling
        ``element_serial``, or for comparison ``separate``: the softmax begins after the last score,
        and the product with V after the last probability.
    vector_lanes, rotary_pairs
        `lanes` and `pairs` of :class:`VectorPathParameters`: units beside these for other vectors.
    """

    rows: int = 8
    columns: int = 8
    arrays: int = 1
    capacity: int = 256
    heads: int = 9
    kv_heads: int = 3
    depth: int = 512
    accumulator: str = "fp32"
    position_bits: int = 24
    count_bits: int = 16
    dataflow: str = "flexible"
    scheduling: str = "element_serial"
    multiply_stages: int = 1
    parallel: int = 3
    contexts: int = 1
    vector: int = 0
    tokens: int = 1
    normed: int = 0
    weights: int = 0
    block: int = 1
    resident: int = 0
    vector_lanes: int = dataclasses.field(default=0, kw_only=True)
    rotary_pairs: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self):
        for name, known in (("dataflow", DATAFLOWS), ("scheduling", SCHEDULINGS)):
            value = getattr(self, name)
            require(value in known, f"{name} must be one of {', '.join(known)}", value)
        rule = f"resident must be 0, or 2 to the contexts, {self.contexts}"
        require(self.resident == 0 or 2 <= self.resident <= self.contexts, rule, self.resident)
        # Built here, as each checks its own.
        _ = self.array, self.schedule, self.softmax, self.product, self.vector_path
        _ = self.resident and self.mover
        require(self.array.lanes >= 2, "rows, columns and arrays must make 2 or more", self.rows)
        compared = self.dataflow != "flexible" or self.scheduling != "element_serial"
        for name, only in (("parallel", 1), ("vector", 0), ("block", 1)):
            value = getattr(self, name)
            rule = f"{name} must be {only} with another dataflow or scheduling"
            require(value == only or not compared, rule, value)
        rule = "weights must be at least 1 with products, and else 0"
        require((self.weights > 0) == (self.vector > 0), rule, self.weights)

    @classmethod
    def presets(cls) -> dict[str, "VedaCoreParameters"]:
        sizes = ("rows", "columns", "arrays", "capacity", "heads", "kv_heads", "depth")
        small: dict[str, Any] = dict(zip(sizes, (2, 2, 2, 32, 4, 2, 16), strict=True))
        small |= {"position_bits": 8, "count_bits": 4, "parallel": 2, "contexts": 2}
        # The whole accelerator, and small.
        products = small | {"vector": 40, "tokens": 2, "normed": 24, "weights": 512}
        return {
            "small": cls(**small),
            "default": cls(),
            "products": cls(**products),
            # The same, and blocks of a prompt.
            "prompts": cls(**products, block=5),
            "paper": cls(8, 8, 2, 4096, 32, 32, 1024, parallel=2),
        }

    @cached_property
    def vector_path(self) -> VectorPathParameters:
        return VectorPathParameters(self.vector_lanes, self.rotary_pairs)

    @cached_property
    def array(self) -> PeArrayParameters | TreeArrayParameters:
        sizes = self.rows, self.columns, self.arrays, self.accumulator, self.multiply_stages
        tiles = DATAFLOWS[self.dataflow]
        return TreeArrayParameters(*sizes, tiles=tiles) if tiles else PeArrayParameters(*sizes)

    @cached_property
    def schedule(self) -> SchedulerParameters:
        return SchedulerParameters(
            self.kv_heads,
            self.depth,
            self.capacity,
            self.heads,
            self.position_bits,
            self.count_bits,
            self.parallel,
            self.resident or self.contexts,
            self.block,
            moved=self.resident > 0,
        )

    @cached_property
    def mover(self) -> StateMoverParameters:
        """Parameters of what moves contexts' state."""
        sizes = self.capacity, self.count_bits, self.position_bits, 16 * self.d
        first_row = self.cached_rows + self.weights
        return StateMoverParameters(self.contexts, self.resident, *sizes, first_row)

    @property
    def cached_rows(self) -> int:
        """Number of rows of the caches of all contexts."""
        return self.contexts << self.schedule.region_bits

    @property
    def state_rows(self) -> int:
        """Number of rows of contexts' state in the memory, after the matrices'."""
        return self.contexts * self.mover.rows if self.resident else 0

    @cached_property
    def softmax(self) -> SpecialFunctionUnitParameters:
        vectors = self.parallel * self.block
        return SpecialFunctionUnitParameters(max(self.capacity, self.normed), TILE, vectors)

    @cached_property
    def product(self) -> ProductParameters:
        """Parameters of matrix products."""
        return ProductParameters(self.vector, self.tokens, self.normed, self.address_width)

    @property
    def address_width(self) -> int:
        """Width of a row's address; matrices' rows follow the caches', then state."""
        return (self.cached_rows + self.weights + self.state_rows - 1).bit_length()

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        longest = max(self.capacity, self.vector)
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=longest
        )

    @property
    def times(self) -> int:
        """Number of times that a run is read, at most."""
        return max(self.parallel, self.tokens)

    @cached_property
    def attention(self) -> ComparedRowsParameters:
        return ComparedRowsParameters(
            *(self.array, self.softmax),
            products=self.tokens if self.vector else 0,
            separate=self.scheduling == "separate",
            heads=self.heads * self.block,
        )

    def head_cycles(self, slots: int) -> int:
        """Cycles from a head's first key offered to its result accepted, without stalls."""
        return self.attention.head_cycles(slots)

    @cached_property
    def latency(self) -> int:
        """Cycles of a head besides two for each slot, with 8 slots or more."""
        return self.head_cycles(TILE) - 2 * TILE

    @property
    def idle_bound(self) -> int:
        """The votes of a step, or a ``separate`` softmax, over `capacity` slots."""
        return max(self.schedule.voting.idle_bound, self.attention.softmax_cycles(self.capacity))

    def cycles(
        self, steps: Sequence, memory_latency: int = 1, pause: int = 0, late: bool = False
    ) -> int:
        """Cycles from the first command offered to the last result or report accepted.

        Without stalls: the memory answers in `memory_latency` cycles, at most depth - 3, or with
        l slots min(depth, RUNS l) - 3; rows of q, k and v are valid in time, and so are commands,
        or `pause` cycles after a step's last beat. Exact but for :meth:`tolerance`.

        steps
            Each a :class:`StepWork`, or its fields, a :class:`ProductWork`, an
            :class:`OverflowWork`, or None for another command that is refused.
        late
            State is moved as if a full reader kept the job before until the array's last run.
        """
        attention, voting, order = self.attention, self.schedule.voting, self.schedule.order
        idle = 0  # when a command may be accepted
        free: dict[int, int] = {}  # the same for a context's
        key = 0  # when the array may take the next head's first key
        outer = 0  # when it may take the next outer product's first row
        taken = reported = swap = -RowMapParameters.SWAP_CYCLES
        offered = 0  # when the command is offered to the parts that need not wait for runs
        ready = 0  # when elements of the next product's vectors may enter the norm
        end = 0  # when the last head's result is offered
        fetched = self.FETCH_CYCLES + memory_latency + 1  # from a run to its first row
        held: dict[int | None, int] = {}  # when a context's state may be moved
        arrival = 0  # when the mover of state may see the next command
        for step in steps:
            moved = 0  # when the step's context has a place
            if isinstance(step, MovedWork):
                begin = max(arrival, key if late else 0, held.get(step.old, 0))
                moved, step = begin + self.mover.cycles(step, memory_latency), step.work
            if step is None or isinstance(step, OverflowWork):
                known = 0 if step is None else free.get(step.context, 0)
                error = max(idle, reported, known, moved) + 1
                idle, arrival, end = error + 1, error, max(end, error)
                continue
            if isinstance(step, ProductWork):
                rows = self.array.outer_product(step.rows)
                first = max(outer, idle - 1 + fetched)
                elements = max(offered + 2, ready)
                last, ready = self._vectors(step, elements, first)
                offered = max(offered, idle) + 1
                end, key = max(end, last + rows.result), last + rows.next_row
                outer = last + step.rows - 1 + self.array.outer_end_cycles
                idle += 2 + (step.blocks - 1) * self.requests(step)
                arrival = idle
            else:
                work = StepWork(*step)
                slots, heads, group, votes, evictions, context = work
                # The voting engine takes a command when it has reported the step before.
                command = max(idle, free.get(context, 0), taken + 1, moved)
                taken = max(command, reported) + 1
                offered = arrival = command + 1
                # The tokens join when the map has done the last swap; then their rows are written.
                tokens, lengths = work.tokens, list(work.lengths)
                join = command + 1
                join = max(join, swap + RowMapParameters.SWAP_CYCLES) if swap < join else join
                run = join + tokens + 2 * tokens * -(-heads // group)
                key = max(key, run + fetched)
                for turn in order.turns(heads, group):
                    times = attention.turn(key, lengths * turn, hold=taken + 1 + tokens)
                    key, end = times.next_key, max(end, times.result)
                outer = times.last_row + self.array.outer_end_cycles
                ready = times.last_row - self.READ_AHEAD
                # The sequence ends with the last run, when the rows before have been requested.
                last_run = self._requests(lengths, order.batches(heads, group)[-1])
                idle = run + self.rows_read(work) - last_run + 2
                counting = voting.step_cycles(slots, heads, votes, evictions)
                counting -= 1 + tokens + heads * sum(lengths)
                reported = times.last_row + counting
                free[context] = held[context] = reported + 1
                if evictions:
                    swap = reported
                    held[context] += RowMapParameters.SWAP_CYCLES
                end = max(end, reported)
            if pause:
                idle = offered = arrival = end + pause
        return end + 1

    def _requests(self, lengths: Sequence[int], times: int) -> int:
        """Number of rows that a run requests, which comes with each of the lengths in turn."""
        return lengths[-1] if lengths[-1] <= self.depth else sum(lengths) * times

    def requests(self, work: ProductWork) -> int:
        """Number of rows that a product requests for each block."""
        return self._requests([work.rows], work.vectors)

    def _vectors(self, work: ProductWork, element: int, first: int) -> tuple[int, int]:
        """When a product's last block begins with its last vector's first row; when all of its
        vectors are in the buffer.

        element, first
            When the first element may be accepted, and the first row.
        """
        period = work.rows - 1 + self.array.outer_end_cycles
        if not work.norm:
            last = first + (work.blocks * work.vectors - 1) * period
            return last, element + work.rows * work.vectors
        # A vector is normalised when the one before has been.
        reduction = self.softmax.reduction_cycles(work.rows, Operation.RMS_NORM)
        for vector in range(work.vectors):
            read = element + work.rows - 1 + reduction
            element = read + max(work.rows, DRAIN_CYCLES)
            first = max(first + (vector > 0) * period, read + self.NORMED_CYCLES)
        return first + (work.blocks - 1) * work.vectors * period, element

    FETCH_CYCLES, READ_AHEAD, NORMED_CYCLES = 4, 20, 10
    """Cycles from a run's start to its first row at the array, besides the memory's latency; from a
    probability being read from the softmax's buffer to its use, at most; from an element being
    read, to be normalised, to its use by the array."""

    def tolerance(self, steps: Sequence) -> tuple[int, int]:
        """Cycles that steps may take fewer, and more, than :meth:`cycles` says.

        None for a product alone, and for steps of one context. Beside others, a step's writes and
        changes of the map keep rows of the step before from being requested, and vectors that are
        normalised wait for the special function unit. State is moved between the times that early
        and late requests of the job before give it; its place waits for another's swap, and rows
        of other jobs for its rows.
        """
        moves = [step for step in steps if isinstance(step, MovedWork)]
        work = [step.work if isinstance(step, MovedWork) else step for step in steps]
        work = [step for step in work if step is not None]
        products = [step for step in work if isinstance(step, ProductWork)]
        attention = [step for step in work if isinstance(step, StepWork)]
        if len(work) < 2 or (not products and len({step.context for step in attention}) < 2):
            return 0, 0
        writes = sum(step.tokens * 2 * -(-step.heads // step.group) for step in attention)
        changes = RowMapParameters.SWAP_CYCLES * (len(work) + len(moves))
        changes += sum(step.tokens - 1 for step in attention)
        if moves:
            changes += sum(self.mover.rows_of(move) for move in moves)
            changes += self.cycles(steps, late=True) - self.cycles(steps)
        normed = self.READ_AHEAD * sum(step.norm for step in products)
        return normed, writes + changes + 2 * normed

    def rows_read(self, step: StepWork) -> int:
        """Number of rows that a step reads from the memory, of K and V."""
        batches = self.schedule.order.batches(step.heads, step.group)
        return 2 * sum(self._requests(step.lengths, heads) for heads in batches)

    @property
    def d(self) -> int:
        return self.array.lanes

    @property
    def row_layout(self) -> data.ArrayLayout:
        return self.array.query_layout

    @property
    def command_layout(self) -> data.StructLayout:
        step = by_context(self.schedule.command_layout, self.contexts)
        fields = {name: field.shape for name, field in step}
        return data.StructLayout(fields | self.product.command_fields)

    @property
    def report_layout(self) -> data.StructLayout:
        return by_context(self.schedule.report_layout, self.contexts)

    @cached_property
    def memory(self) -> MemoryPort:
        tag = index(range(self.depth + (self.resident > 0)))  # the last is the mover's
        return MemoryPort(tag, self.address_width, self.row_layout)

    @property
    def output_layout(self) -> data.StructLayout:
        return self.attention.output_layout
