"""Vectors of matrix products: normalised or not, kept for all blocks of columns (VEDA, IV-A)."""

import dataclasses

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream

from hw.arith.float_format import FP16
from hw.attention.special_function_unit import SpecialFunctionUnitParameters
from hw.component import Component
from hw.layout import FLAG, count
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import copy, fork, join
from hw.stream.queue import Queue, QueueParameters
from hw.stream.replay_buffer import ReplayBuffer

JOBS = 2
"""Number of products whose vectors may wait."""


@dataclasses.dataclass(frozen=True)
class VectorFeedParameters(Parameters):
    """
    length
        Number of elements of a vector, at most.
    vectors
        Number of vectors of a product, at most.
    blocks
        Number of times that they are output, at most.
    """

    length: int = 64
    vectors: int = 1
    blocks: int = 64

    def __post_init__(self):
        require(self.length >= 1, "length must be at least 1", self.length)
        require(self.vectors >= 1, "vectors must be at least 1", self.vectors)
        require(self.blocks >= 1, "blocks must be at least 1", self.blocks)

    @property
    def depth(self) -> int:
        """Number of elements in the buffer."""
        return self.length * self.vectors

    @property
    def job_layout(self) -> data.StructLayout:
        """Elements of a vector (``rows``), ``vectors``, ``blocks``; ``norm`` them first."""
        fields = {
            "rows": count(range(self.length + 1)),
            "vectors": count(range(self.vectors + 1)),
            "blocks": count(range(self.blocks + 1)),
        }
        return data.StructLayout(fields | {"norm": FLAG})


class VectorFeed(Component[VectorFeedParameters]):
    """Output a product's vectors, element by element, once for each block of columns.

    ::

        x ─┬──────────────────────────────────┬→ ReplayBuffer ─→ factors
           └→ raw ┄ norm of a vector ┄ normed ─┘

    Vectors of the next products are accepted while there is room, as far as the ones before have
    been stored.

    Latency: 3 cycles from a job, or its first element, to the first factor, besides the norm's.
    Throughput: an element a cycle.
    """

    def ports(self) -> Ports:
        p, element = self.parameters, SpecialFunctionUnitParameters().input_layout
        return {
            "job": stream_in(p.job_layout, "Products."),
            "x": stream_in(FP16, "Elements of the vectors."),
            "raw": stream_out(element, "Elements to be normalised."),
            "normed": stream_in(FP16, "The same, normalised."),
            "factors": stream_out(FP16, "Elements of the vectors, for each block."),
        }

    def elaborate(self, platform):
        m = Module()
        p, x = self.parameters, self.x
        m.submodules.buffer = buffer = ReplayBuffer(p.depth, p.blocks, FP16)
        size = QueueParameters(depth=JOBS)
        m.submodules.loads = loads = Queue(size, shape=p.job_layout)
        m.submodules.replays = replays = Queue(size, shape=buffer.job.payload.shape())
        # Two queues, because the next product's vectors are loaded while this one's are output.
        job = stream.Signature(p.job_layout).create()
        join(m, [self.job], [job])
        fork(m, "job", job, [loads.i, replays.i])
        m.d.comb += [
            job.payload.eq(self.job.payload),
            replays.i.payload.words.eq(job.payload.rows * job.payload.vectors),
            replays.i.payload.times.eq(job.payload.blocks),
        ]
        join(m, [replays.o], [buffer.job])
        join(m, [buffer.o], [self.factors])
        m.d.comb += [*copy(buffer.job.payload, replays.o.payload)]
        m.d.comb += self.factors.payload.eq(buffer.o.payload)

        # The product's vectors go into the buffer, some by way of the norm. Elements are counted as
        # they come and as they are stored.
        load, loading = loads.o.payload, loads.o.valid
        came = self._count(m, "came", load)
        stored = self._count(m, "stored", load)
        direct = loading & ~load.norm
        to_norm = loading & load.norm & ~came.all
        m.d.comb += [
            self.raw.valid.eq(x.valid & to_norm),
            self.raw.payload.x.eq(x.payload),
            self.raw.payload.last.eq(came.last),
            buffer.i.valid.eq((direct & x.valid) | (loading & load.norm & self.normed.valid)),
            self.normed.ready.eq(loading & load.norm & buffer.i.ready),
            x.ready.eq((direct & buffer.i.ready) | (to_norm & self.raw.ready)),
            came.passes.eq(self.raw.valid & self.raw.ready),
            stored.passes.eq(buffer.i.valid & buffer.i.ready),
            loads.o.ready.eq(stored.passes & stored.final),
        ]
        with m.If(direct):
            m.d.comb += buffer.i.payload.eq(x.payload)
        with m.Else():
            m.d.comb += buffer.i.payload.eq(self.normed.payload)
        # A product's last element may wait in the norm for long; no other one may enter meanwhile.
        with m.If(loads.o.ready):
            m.d.sync += came.all.eq(0)
        with m.Elif(came.passes & came.final):
            m.d.sync += came.all.eq(1)
        return m

    def _count(self, m: Module, name: str, load) -> "Count":
        """Elements of a product, in their vectors."""
        of = Count(name, self.parameters)
        m.d.comb += [
            of.last.eq(of.position + 1 == load.rows),
            of.final.eq(of.last & (of.vector + 1 == load.vectors)),
        ]
        with m.If(of.passes):
            m.d.sync += of.position.eq(of.position + 1)
            with m.If(of.last):
                m.d.sync += [of.position.eq(0), of.vector.eq(of.vector + 1)]
            with m.If(of.final):
                m.d.sync += of.vector.eq(0)
        return of


class Count:
    """Elements of a product that have passed.

    position, vector
        Where the next element is in its vector, and number of the vector.
    passes
        The element passes.
    last, final, all
        It is its vector's last, and the product's; all have passed.
    """

    def __init__(self, name: str, p: VectorFeedParameters):
        self.position = Signal(range(p.length), name=f"{name}_position")
        self.vector = Signal(range(p.vectors), name=f"{name}_vector")
        self.passes = Signal(name=f"{name}_passes")
        self.last = Signal(name=f"{name}_last")
        self.final = Signal(name=f"{name}_final")
        self.all = Signal(name=f"{name}_all")
