"""The ports that decode cores have in common, in one vocabulary."""

from functools import cached_property

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.attention.head_order import HeadOrderParameters
from hw.attention.row_port import request_layout
from hw.component import Component
from hw.parameters import Parameters
from hw.stream.sequential_reader import SequentialReaderParameters


class DecodeParameters(Parameters):
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

    @property
    def row_layout(self) -> data.ArrayLayout:
        """Elements of a row of q, K and V."""
        raise NotImplementedError

    @property
    def command_layout(self) -> data.StructLayout:
        """``heads``, ``group``, ``restart``, and the core's own fields."""
        raise NotImplementedError

    @property
    def report_layout(self) -> data.StructLayout:
        """``length``, ``error``, and the core's own fields."""
        raise NotImplementedError

    @property
    def output_layout(self) -> data.StructLayout:
        """``o``, ``invalid``, ``last`` of a step."""
        raise NotImplementedError

    @cached_property
    def order(self) -> HeadOrderParameters:
        return HeadOrderParameters(self.heads, self.kv_heads, self.parallel)

    @property
    def row_bits(self) -> int:
        """Width of the index of a row of a kv head."""
        return (self.capacity - 1).bit_length()

    @property
    def address_width(self) -> int:
        """Width of a row's address, | kv head | K or V | row |."""
        return self.order.head_bits + 1 + self.row_bits

    @cached_property
    def reader(self) -> SequentialReaderParameters:
        return SequentialReaderParameters(
            address_width=self.address_width, depth=self.depth, longest=self.capacity
        )

    @cached_property
    def request_layout(self) -> data.StructLayout:
        return request_layout(self.depth, self.address_width, self.row_layout)

    @cached_property
    def response_layout(self) -> data.StructLayout:
        return self.reader.response_layout(self.row_layout)


class DecodeCore(Component):
    """Base of a decode core: a command, its rows, a memory, results and reports.

    Members
    -------
    command : :py:`In(stream.Signature(parameters.command_layout))`
        Steps, each one token of a sequence.
    kv : :py:`In(stream.Signature(parameters.row_layout))`
        New rows of K and V in turn, of each kv head of a step.
    q : :py:`In(stream.Signature(parameters.row_layout))`
        Queries of the heads of a step, times the scale of scores.
    request : :py:`Out(stream.Signature(parameters.request_layout))`
        To the memory. A write is complete when the request is accepted.
    response : :py:`In(stream.Signature(parameters.response_layout))`
        Rows read, in any order.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Results, one for each head.
    report : :py:`Out(stream.Signature(parameters.report_layout))`
        What became of each step, and refused commands.
    """

    def __init__(self, parameters: DecodeParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "command": In(stream.Signature(p.command_layout)),
                "kv": In(stream.Signature(p.row_layout)),
                "q": In(stream.Signature(p.row_layout)),
                "request": Out(stream.Signature(p.request_layout)),
                "response": In(stream.Signature(p.response_layout)),
                "o": Out(stream.Signature(p.output_layout)),
                "report": Out(stream.Signature(p.report_layout)),
            }
        )

    @property
    def parameters(self) -> DecodeParameters:
        return self._parameters


def connect_rows(m: Module, core: DecodeCore, part) -> None:
    """Connect the core's rows, memory and results to the ports of the same names of a part."""
    for name in ("kv", "q", "response"):
        wiring.connect(m, wiring.flipped(getattr(core, name)), getattr(part, name))
    for name in ("request", "o"):
        wiring.connect(m, getattr(part, name), wiring.flipped(getattr(core, name)))
