"""Sizes and payloads of the core (Token-Picker, section 4 and Table 1)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from amaranth.lib import data

from hw.attention.head_order import HeadOrderParameters
from hw.parameters import Parameters, require
from hw.stream.memory_port import MemoryPort
from hw.topick.chunk_buffer import ChunkBufferParameters, chunk_memory
from hw.topick.core_layouts import CoreLayouts
from hw.topick.core_work import TokenWork, cycles_of
from hw.topick.dag import HEADROOM, DagParameters
from hw.topick.margin_generator import MarginGeneratorParameters
from hw.topick.probability_generator import ProbabilityGeneratorParameters
from hw.topick.row_store import RowStoreParameters

MARGIN_STAGES = 3


def _is_power(number: int) -> bool:
    return number >= 1 and number & (number - 1) == 0


@dataclasses.dataclass(frozen=True)
class TopickCoreParameters(CoreLayouts, Parameters):
    """
    d, bits, chunk_bits, scale_bits, shift_bits, width
        As in :class:`hw.topick.scores.Scores`.
    fraction, precision, limb
        As in :class:`hw.topick.pec.PecParameters`.
    threshold_bits, entries, observe
        As in :class:`hw.topick.pe_lane.PeLaneParameters`.
    lanes
        Number of lanes of the core, each with a separate memory port.
    lanes_per_head
        Lanes that share the tokens of a head, a power of two that divides `lanes`. The lanes of one
        head are a group; kv head k of context c belongs to group (k + c) mod (lanes /
        lanes_per_head).
    tokens
        Most tokens of a sequence, a power of two, 2 or more for each lane of a head.
    heads, kv_heads
        At most.
    buffer_tokens
        Tokens whose chunks of K and V are kept for the other query heads of their kv head: 0, or a
        power of two, 2 or more for each lane of a head.
    pruning
        False: the paper's baseline, which reads all chunks in order; its memories must answer in
        order.
    block
        Tokens of a command, at most: a block of a prompt, whose queries share what is read. With
        more than 1 each lane has a buffer of all its rows and multiplies whole elements.
    contexts
        Number of sequences whose rows are in the memories; a command names one of them. With more
        than 1 a command begins while other contexts' commands still run.
    """

    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    scale_bits: int = 16
    shift_bits: int = 4
    width: int = 32
    fraction: int = 10
    precision: int = 12
    limb: int = 16
    threshold_bits: int = 16
    entries: int = 64
    lanes: int = 3
    lanes_per_head: int = 1
    tokens: int = 1024
    heads: int = 9
    kv_heads: int = 3
    buffer_tokens: int = 0
    pruning: bool = True
    observe: bool = False
    block: int = 1
    contexts: int = 1

    def __post_init__(self):
        shared, lanes = self.lanes_per_head, self.lanes
        require(lanes >= 1, "lanes must be at least 1", lanes)
        rule = f"lanes_per_head must be a power of two that divides {lanes} (lanes)"
        require(_is_power(shared) and lanes % shared == 0, rule, shared)
        least, most = 2 * shared, 1 << HEADROOM - 1  # two for each lane; a DAG's most
        rule = f"tokens must be a power of two from {least} to {most}"
        require(_is_power(self.tokens) and least <= self.tokens <= most, rule, self.tokens)
        require(self.kv_heads >= 1, "kv_heads must be at least 1", self.kv_heads)
        rule = f"heads must be at least {self.kv_heads} (kv_heads)"
        require(self.heads >= self.kv_heads, rule, self.heads)
        kept = self.buffer_tokens
        rule = f"buffer_tokens must be 0 or a power of two between {2 * shared} and {self.tokens}"
        require(kept == 0 or (_is_power(kept) and 2 * shared <= kept <= self.tokens), rule, kept)
        rule = "pruning must be on with observe or buffer_tokens"
        require(self.pruning or not (self.observe or kept), rule, self.pruning)
        rule = f"block must be 1 to {self.tokens} (tokens)"
        require(1 <= self.block <= self.tokens, rule, self.block)
        rule = "block must be 1 without pruning, or with buffer_tokens"
        require(self.block == 1 or (self.pruning and not kept), rule, self.block)
        require(self.contexts >= 1, "contexts must be at least 1", self.contexts)
        rule = "contexts must be 1 with block or buffer_tokens"
        alone = self.block == 1 and not kept
        require(self.contexts == 1 or alone, rule, self.contexts)
        _ = self.lane, self.dag, self.probability_generator  # each checks its own parameters

    @classmethod
    def presets(cls) -> dict[str, "TopickCoreParameters"]:
        small: dict[str, Any] = {
            "scale_bits": 6,
            "shift_bits": 2,
            "width": 14,
            "fraction": 4,
            "precision": 6,
        }
        small |= {"d": 4, "bits": 6, "chunk_bits": 2, "limb": 8, "threshold_bits": 7}
        small |= {"lanes": 4, "lanes_per_head": 2, "tokens": 64, "heads": 4, "kv_heads": 3}
        return {
            "small": cls(**small, entries=6, observe=True),
            "default": cls(),
            # The same as `small`, with blocks of a prompt.
            "prompts": cls(**small, entries=16, observe=True, block=5),
            # The same as `small`, with three sequences.
            "contexts": cls(**small, entries=6, observe=True, contexts=3),
            "paper": cls(
                entries=32,
                lanes=16,
                lanes_per_head=16,
                tokens=2048,
                heads=16,
                kv_heads=16,
                buffer_tokens=2048,
            ),
            "streams": cls(lanes=16, heads=16, kv_heads=16),
        }

    @property
    def responses_in_order(self) -> bool:
        """Without pruning, a lane pairs chunks with its tokens by their order."""
        return not self.pruning

    @property
    def latency(self) -> int:
        """Cycles of a command of one token and one head, with the fastest memories.

        With pruning, each next chunk of the key is requested after a decision.
        """
        decisions = MARGIN_STAGES + (self.lane.chunks - 1) * self.lane.request_latency
        return self.cycles([TokenWork(1, 1, 1)]) + (decisions if self.pruning else 0)

    @property
    def decision_delay(self) -> int:
        """Cycles from a decision of a lane to the first one that sees its difference."""
        return self.lane.latency - self.lane.decision_latency + self.dag.latency

    cycles_exact = False
    """Pruning decides by timing; without it, see :meth:`cycles`."""

    def cycles(self, work: Sequence[TokenWork | None], memory_latency: int = 1) -> int:
        """Cycles from a command offered to its last o accepted, if every chunk of K and V is read.

        Without stalls, and of the core without pruning: exact for a head in each group, otherwise
        within 12 cycles for each further head of a group, if there are 16 rows or more in a lane.
        Commands of different contexts overlap, which this leaves out: where they keep all lanes
        busy alike, each adds the chunks that a lane reads and writes for it, and up to 12 cycles.
        Of blocks of a prompt, with pruning: exact for at most 8 lanes a head, 12 groups, with more
        than one of them `queries` heads on a kv head; and 12 `entries` or more.

        work
            Work of each command, or None for one that is refused.
        memory_latency
            Cycles from every request to its response.
        """
        return cycles_of(self, work, memory_latency)

    @property
    def queries(self) -> int:
        """Queries that wait for a group: with several groups all of a kv head's, so that none of
        them has to wait for the query of another one."""
        if self.groups == 1:
            return 2
        return self.kv_heads_of_lane * -(-self.heads // self.kv_heads)

    @functools.cached_property
    def order(self) -> HeadOrderParameters:
        """Which `heads` and `group` of a command fit."""
        return HeadOrderParameters(self.heads, self.kv_heads)

    @functools.cached_property
    def margin_generator(self) -> MarginGeneratorParameters:
        sizes = self.d, self.bits, self.chunk_bits, self.scale_bits, self.shift_bits, self.width
        return MarginGeneratorParameters(*sizes, stages=MARGIN_STAGES)

    @functools.cached_property
    def dag(self) -> DagParameters:
        return DagParameters(
            lanes=self.lanes_per_head,
            width=self.width,
            fraction=self.fraction,
            precision=self.precision,
            limb=self.limb,
            limb_bits=self.lane.pec.limb_bits,
            tokens=self.tokens,
        )

    @functools.cached_property
    def probability_generator(self) -> ProbabilityGeneratorParameters:
        sizes = self.width, self.fraction, self.bits, self.chunk_bits, self.d
        return ProbabilityGeneratorParameters(
            *sizes,
            rows=self.rows,
            skip=self.pruning,
            probability_bits=self.probability_bits,
            whole=self.block > 1,
            waits=False,
        )

    @functools.cached_property
    def chunk_buffer(self) -> ChunkBufferParameters:
        return ChunkBufferParameters(
            rows=self.buffer_tokens // self.lanes_per_head,
            d=self.d,
            bits=self.bits,
            chunk_bits=self.chunk_bits,
            row_bits=self.row_bits,
            address_width=self.address_width,
            label_bits=self.label_bits,
        )

    @functools.cached_property
    def row_store(self) -> RowStoreParameters:
        sizes = self.d, self.bits, self.chunk_bits, self.lanes, self.lanes_per_head
        numbers = {"rows": self.rows, "kv_heads": self.kv_heads, "contexts": self.contexts}
        return RowStoreParameters(*sizes, **numbers)

    @property
    def planes(self) -> int:
        """Number of planes: all chunks of K or V of a kv head are planes of `rows` words."""
        return self.contexts * self.kv_heads_of_lane * 2 * self.lane.chunks

    @property
    def address_width(self) -> int:
        return (self.planes - 1).bit_length() + self.row_bits

    @property
    def label_bits(self) -> int:
        """Width of a tag's part that is a slot for K and a probability for V."""
        return max((self.entries - 1).bit_length(), self.probability_bits)

    @functools.cached_property
    def memory(self) -> MemoryPort:
        sizes = self.lane.chunks, self.row_bits, self.label_bits, self.address_width
        return chunk_memory(*sizes, self.lane.chunk_layout)

    @property
    def row_response_layout(self) -> data.StructLayout:
        """What a lane's port gets: a chunk read, or a whole row."""
        fields = {name: field.shape for name, field in self.memory.response_layout}
        return data.StructLayout(fields | self.lane.rest_field)
