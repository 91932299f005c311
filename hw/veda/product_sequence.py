"""The runs of a matrix product: blocks of columns, one after the other (VEDA, IV-A)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Module, Signal
from amaranth.lib import data

from hw.arith.float_format import FP32
from hw.component import Component
from hw.layout import FLAG, address
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import copy
from hw.veda.vector_feed import VectorFeedParameters

BLOCKS = 4095
"""Number of blocks of columns, at most."""


@dataclasses.dataclass(frozen=True)
class ProductParameters(Parameters):
    """
    length
        Number of elements of a vector, at most; 0: there are no products.
    vectors
        Number of vectors that share a matrix's rows, at most.
    normed
        Number of elements of a vector that is normalised, at most.
    address_width
        Width of a row's address.
    """

    length: int = 0
    vectors: int = 1
    normed: int = 0
    address_width: int = 16

    def __post_init__(self):
        require(self.length >= 0, "length must be at least 0", self.length)
        require(self.vectors >= 1, "vectors must be at least 1", self.vectors)

    @property
    def feed(self) -> VectorFeedParameters:
        return VectorFeedParameters(self.length, self.vectors, BLOCKS)

    @cached_property
    def command_fields(self) -> dict:
        """Fields of a command that are a product's; none if there are no products.

        ``product`` this is one: of a matrix at ``address``, with ``rows`` in each of its ``blocks``
        of columns, and that many ``vectors``; ``norm`` them first, with ``inverse``, 1 / rows, and
        ``eps``, both FP32.
        """
        if not self.length:
            return {}
        return {
            "product": FLAG,
            "address": address(self.address_width),
            **{name: field.shape for name, field in self.feed.job_layout},
            "inverse": FP32,
            "eps": FP32,
        }

    @cached_property
    def run_layout(self) -> data.StructLayout:
        """A block's ``address`` and ``rows``, the ``vectors``, ``last`` of the product."""
        fields = {name: self.command_fields[name] for name in ("address", "rows", "vectors")}
        return data.StructLayout(fields | {"last": FLAG})

    def misfits(self, command):
        """Whether a product's command does not fit."""
        fits = (command.rows != 0) & (command.rows <= self.length)
        fits &= (command.vectors != 0) & (command.vectors <= self.vectors)
        return ~(fits & (command.blocks != 0) & (~command.norm | (command.rows <= self.normed)))


class ProductSequence(Component[ProductParameters]):
    """Runs of a product's blocks, each of which follows the one before in the memory.

    Latency: 1 cycle. Throughput: a run a cycle; the next product is accepted a cycle after the
    last one's runs.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(data.StructLayout(p.command_fields), "Products, which fit."),
            "run": stream_out(p.run_layout, "Blocks."),
        }

    def elaborate(self, platform):
        m = Module()
        command, run = self.command, self.run
        # Blocks lie one behind the other, so an adder gives each one's address.
        left = Signal.like(command.payload.blocks)  # blocks whose run has not been accepted
        m.d.comb += [
            command.ready.eq(left == 0),
            run.valid.eq(left != 0),
            run.payload.last.eq(left == 1),
        ]
        with m.If(run.valid & run.ready):
            m.d.sync += [
                left.eq(left - 1),
                run.payload.address.eq(run.payload.address + run.payload.rows),
            ]
        with m.If(command.valid & command.ready):
            m.d.sync += left.eq(command.payload.blocks)
            m.d.sync += copy(run.payload, command.payload)
        return m
