"""The ports that decode cores have in common, in one vocabulary."""

import abc
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from amaranth.hdl import Module
from amaranth.lib import data, wiring

from hw.attention.head_order import HeadOrderParameters
from hw.attention.vector_path import VectorPathParameters
from hw.component import Component
from hw.parameters import Parameters
from hw.ports import Ports, stream_in, stream_out
from hw.stream.memory_port import MemoryPort
from hw.stream.sequential_reader import SequentialReaderParameters


class DecodeParameters(Parameters, abc.ABC):
    """Base of a decode core's parameters. A subclass is a dataclass with these fields, and defines
    the layouts of its command, its report, its rows and its results.

    heads, kv_heads, parallel
        See :class:`HeadOrderParameters`.
    capacity
        Number of rows of K of a kv head, and of V: a power of two.
    depth
        Number of rows requested and not yet used, at most; see
        :class:`hw.stream.sequential_reader.SequentialReaderParameters`.
    """

    heads: int
    kv_heads: int
    capacity: int
    depth: int
    parallel = 1
    contexts = 1
    """Number of sequences whose rows the memory holds."""
    cycles_exact = True
    """Whether :meth:`cycles` is exact: not where the core's decisions depend on timing."""

    @property
    def vector_path(self) -> VectorPathParameters:
        """Units beside it for other operations on vectors; none, unless a subclass has some."""
        return VectorPathParameters()

    @property
    @abc.abstractmethod
    def d(self) -> int:
        """Number of elements of a row."""

    @property
    @abc.abstractmethod
    def row_layout(self) -> data.ArrayLayout:
        """Elements of a row of q, K and V."""

    @property
    @abc.abstractmethod
    def command_layout(self) -> data.StructLayout:
        """``heads``, ``group``, ``restart``, and the core's own fields."""

    @property
    @abc.abstractmethod
    def report_layout(self) -> data.StructLayout:
        """``length``, ``error``, and the core's own fields."""

    @property
    @abc.abstractmethod
    def output_layout(self) -> data.StructLayout:
        """``o``, ``invalid``, ``last`` of a step."""

    @abc.abstractmethod
    def cycles(self, steps: Sequence, memory_latency: int = 1, pause: int = 0) -> int:
        """Cycles from the first command offered to the last result or report accepted."""

    @cached_property
    def order(self) -> HeadOrderParameters:
        return HeadOrderParameters(self.heads, self.kv_heads, self.parallel)

    @property
    def row_bits(self) -> int:
        """Width of the index of a row of a kv head."""
        # Rows of K and V of a kv head are regions of a power of two, so an address is a
        # concatenation.
        return (self.capacity - 1).bit_length()

    @property
    def address_width(self) -> int:
        """Width of a row's address, | context | kv head | K or V | row |."""
        return (self.contexts - 1).bit_length() + self.order.head_bits + 1 + self.row_bits

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=self.capacity
        )

    @cached_property
    def memory(self) -> MemoryPort:
        return self.reader.memory(self.row_layout)


D = TypeVar("D", bound=DecodeParameters)


# One vocabulary of streams for all decode cores, so that testbenches, engines and a user's own
# logic can exchange one core for another.
class DecodeCore(Component[D]):
    """Base of a decode core: a command, its rows, a memory, results and reports."""

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "Steps, each one token of a sequence."),
            "kv": stream_in(
                p.row_layout, "New rows of K and V in turn, of each kv head of a step."
            ),
            "q": stream_in(
                p.row_layout, "Queries of the heads of a step, times the scale of scores."
            ),
            **p.memory.ports(),
            "o": stream_out(p.output_layout, "Results, one for each head."),
            "report": stream_out(
                p.report_layout, "What became of each step, and refused commands."
            ),
        }


def connect_rows(m: Module, core: DecodeCore, part) -> None:
    """Connect the core's rows, memory and results to the ports of the same names of a part."""
    for name in ("kv", "q", "response"):
        wiring.connect(m, wiring.flipped(getattr(core, name)), getattr(part, name))
    for name in ("request", "o"):
        wiring.connect(m, getattr(part, name), wiring.flipped(getattr(core, name)))
