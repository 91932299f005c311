"""Vector processing unit: d multipliers and a tree of adders (LAD, section IV-B, Fig. 5(b))."""

import dataclasses
import functools

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, wiring

from hw.arith.adder_tree import AdderTree, AdderTreeParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component, enable_while
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters

LARGEST = 1024
"""Elements of a vector at most."""


class Mode(enum.IntEnum, shape=2):
    """Result of an operation: a dot product, element-wise products, a scaled vector, no result."""

    DP = 0
    EM = 1
    S = 2
    NONE = 3


@dataclasses.dataclass(frozen=True)
class VpuParameters(Parameters):
    """
    d
        Elements of a vector, 2 or more.
    multiply_stages
        M: pipeline stages of a multiplier, 1 to 4.
    add_stages
        Pipeline stages of a level of the tree, 1 to 4.
    """

    d: int = 64
    multiply_stages: int = 2
    add_stages: int = 2

    def __post_init__(self):
        require(2 <= self.d <= LARGEST, f"d must be between 2 and {LARGEST}", self.d)
        for name in ("multiply_stages", "add_stages"):
            stages = getattr(self, name)
            require(1 <= stages <= 4, f"{name} must be between 1 and 4", stages)

    @classmethod
    def presets(cls) -> dict[str, "VpuParameters"]:
        return {
            # For mutation tests, which simulate slowly.
            "small": cls(d=2, multiply_stages=1, add_stages=1),
            "eight": cls(d=8),
            "default": cls(),
            "paper": cls(d=128),
        }

    @property
    def tree_latency(self) -> int:
        """T: cycles of a dot product in the adder tree."""
        return self.add_stages * (self.d - 1).bit_length()

    @property
    def latency(self) -> int:
        """Cycles from an operation to its vector."""
        return self.multiply_stages + 1

    @property
    def dot_latency(self) -> int:
        """Cycles from an operation to its dot product."""
        return self.latency + self.tree_latency + 1

    @functools.cached_property
    def credits(self) -> CreditCounterParameters:
        """Dot products in flight at most, those in the queue included."""
        return CreditCounterParameters.for_pipeline(self.latency + self.tree_latency)

    @functools.cached_property
    def vector(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16, self.d)

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """An operation.

        ``mode``: see :class:`Mode`. ``load``: store ``vec1`` in the vector register, for this
        operation and the following ones. ``vec2``, ``scal``: operands.
        """
        return data.StructLayout(
            {"mode": Mode, "load": FLAG, "vec1": self.vector, "vec2": self.vector, "scal": FP16}
        )


class Vpu(Component[VpuParameters]):
    """Dot products, element-wise products and scaled vectors on the same d multipliers.

    With the vector register r, an operation computes one of

        DP:  o_scal = sum over k of r[k] vec2[k]
        EM:  o_vec[k] = r[k] vec2[k]
        S:   o_vec[k] = scal vec2[k]

    ::

        vec1 ─→ r ───┐
        scal ─→ ─────┴─ mux ─→ × ─┬─→ o_vec
        vec2 ─→ ──────────────→   └─→ tree of adders ─→ queue ─→ o_scal

    ``load`` replaces r by ``vec1``, with any mode, before the operation uses it; so a new vector
    costs no cycle. NONE has no result: it only loads. r is undefined before the first load.

    Every product and every sum is rounded to FP16, to nearest even;
    :class:`hw.arith.adder_tree.AdderTree` adds, neighbours first. Subnormals count, infinities and
    NaNs follow IEEE 754, each NaN the canonical one. Shorter vectors are padded with zeros.

    Latency: M + 1 cycles from an operation to its vector, M + T + 2 to its dot product, with
    M = multiply_stages and T = add_stages ceil(log2 d). Throughput: one operation per cycle, in any
    order of modes.

    Each output has the results of its modes in the order of the operations. Between the two outputs
    there is no order: a vector does not wait for a dot product requested before it, as delaying it
    would take T registers as wide as a vector.

    Handshake: a vector that is not taken stalls the multipliers, not the tree: ``i.ready`` follows
    ``o_vec.ready`` combinationally. Dot products that are not taken fill a queue; at most as many
    as it has entries are in flight, else ``i.ready`` is low for DP. This is the only dependence of
    ``i.ready`` on ``i.payload``. Overflow: none.

    The paper has registers for ``vec1`` only and describes no pipeline.

    Examples
    --------
    >>> from hw.lad.vpu import Mode, Vpu, VpuParameters
    >>> parameters = VpuParameters(d=128, multiply_stages=2, add_stages=2)
    >>> parameters.latency, parameters.tree_latency, parameters.dot_latency
    (3, 14, 18)
    >>> [(mode.name, mode.value) for mode in Mode]
    [('DP', 0), ('EM', 1), ('S', 2), ('NONE', 3)]
    """

    summary = "Dot products, element-wise products and scaled vectors, one operation per cycle"
    source = "LAD, section IV-B and Fig. 5(b)"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Operations."),
            "o_vec": stream_out(p.vector, "Results of EM and S."),
            "o_scal": stream_out(FP16, "Results of DP."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        operation = self.i.payload
        m.submodules.credits = credits = CreditCounter(p.credits)
        m.submodules.queue = queue = Queue(
            QueueParameters(FP16.width, p.credits.credits), shape=FP16
        )
        m.submodules.tree = tree = AdderTree(AdderTreeParameters(n=p.d, stages=p.tree_latency))
        wiring.connect(m, queue.o, wiring.flipped(self.o_scal))

        advance = Signal()  # of the multipliers
        is_dot = Signal()
        is_vector = Signal()
        taken = Signal()
        # A dot product takes a credit, an entry of the queue, before it enters the multipliers.
        m.d.comb += [
            # Two resources: a vector waits in the multipliers' last stage, a dot product in the
            # queue. So a queue of dot products that nobody takes never stops vectors, and no
            # deadlock arises where the consumer of one waits for the other.
            advance.eq(~self.o_vec.valid | self.o_vec.ready),
            is_dot.eq(operation.mode == Mode.DP),
            is_vector.eq((operation.mode == Mode.EM) | (operation.mode == Mode.S)),
            self.i.ready.eq(advance & (credits.available | ~is_dot)),
            taken.eq(self.i.valid & self.i.ready),
            credits.take.eq(taken & is_dot),
            credits.give.eq(self.o_scal.valid & self.o_scal.ready),
        ]

        # Which pipeline stages hold a vector or a dot product: the operands, the multipliers, and
        # then the tree, for dot products.
        vectors = Signal(p.multiply_stages + 1)
        dots = Signal(p.multiply_stages + 1)
        adding = Signal(p.tree_latency)
        with m.If(advance):
            m.d.sync += [
                vectors.eq(Cat(taken & is_vector, vectors[:-1])),
                dots.eq(Cat(taken & is_dot, dots[:-1])),
            ]
        # The tree never stalls. A dot product at the end of the multipliers enters it at once: the
        # multipliers stall only for a vector at their end.
        m.d.sync += adding.eq(Cat(dots[-1], adding[:-1]))
        multiplies = (vectors[:-1] | dots[:-1]).any()
        m.d.comb += [
            tree.enable.eq(enable_while(dots[-1] | adding[:-1].any(), platform)),
            self.o_vec.valid.eq(vectors[-1]),
            queue.i.valid.eq(adding[-1]),
            queue.i.payload.eq(tree.o),
        ]

        # Operand registers, then d multipliers, then the tree.
        r = Signal(p.vector, reset_less=True)
        vec2 = Signal(p.vector, reset_less=True)
        scal = Signal(FP16.width, reset_less=True)
        scaling = Signal(reset_less=True)
        # r is loaded at the same clock edge as the operand registers, so an operation uses its own
        # `load`, and the one before it has by then gone from r into the multipliers.
        with m.If(taken & operation.load):
            m.d.sync += r.eq(operation.vec1)
        with m.If(advance):
            m.d.sync += [
                vec2.eq(operation.vec2),
                scal.eq(operation.scal),
                scaling.eq(operation.mode == Mode.S),
            ]
        for k in range(p.d):
            unit = FloatMultiply(FloatMultiplyParameters(stages=p.multiply_stages))
            m.submodules[f"multiply_{k}"] = unit
            m.d.comb += [
                unit.enable.eq(advance & enable_while(multiplies, platform)),
                unit.a.eq(Mux(scaling, scal, r[k])),
                unit.b.eq(vec2[k]),
                self.o_vec.payload[k].eq(unit.o),
                tree.i[k].eq(unit.o),
            ]
        return m
