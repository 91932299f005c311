"""Softmax and layer normalisation of vectors, an element at a time (VEDA, sections IV-B and V)."""

import dataclasses
from enum import IntEnum

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.parameters import Parameters, require
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters
from hw.veda import moment_reduction
from hw.veda.moment_reduction import MomentReduction
from hw.veda.normalisation import MULTIPLIED, SUBTRACTED, Normalisation
from hw.veda.softmax_reduction import ENDED, SoftmaxReduction


class Operation(IntEnum):
    SOFTMAX = 0
    LAYER_NORM = 1
    RMS_NORM = 2


SETTLED = 6
"""Cycles from the first element being read to the reduction being free for the next vector."""

LATENCY = 1 + MULTIPLIED
"""Cycles from an element being read to its result."""


@dataclasses.dataclass(frozen=True)
class SpecialFunctionUnitParameters(Parameters):
    """
    length
        Elements in the longest vector, 2 to 4096.
    tile
        Scores among which a maximum is found before their exponentials are added, 1 to 64. The
        paper's 32 and any other make no difference to the rate; fewer wait for less.
    """

    length: int = 256
    tile: int = 8

    def __post_init__(self):
        require(2 <= self.length <= 4096, "length must be between 2 and 4096", self.length)
        require(1 <= self.tile <= 64, "tile must be between 1 and 64", self.tile)

    @classmethod
    def presets(cls) -> dict[str, "SpecialFunctionUnitParameters"]:
        return {
            "small": cls(length=32, tile=4),
            "default": cls(),
            "paper": cls(length=4096, tile=32),
        }

    def wait(self, elements: int, operation: int) -> int:
        """Cycles from a vector's last element to the first being read again."""
        if operation == Operation.SOFTMAX:
            return min(elements, self.tile) + ENDED
        return moment_reduction.ROOT - moment_reduction.AHEAD + 1

    def first(self, elements: int, operation: int) -> int:
        """Cycles from a vector's last element, if they came without a gap, to its first result."""
        return self.wait(elements, operation) + LATENCY + 1

    @property
    def latency(self) -> int:
        """Of a softmax of `tile` or more scores: tile + 12."""
        return self.first(self.length, Operation.SOFTMAX)

    def cycles(self, vectors: list[tuple[int, int]]) -> int:
        """Cycles from the first element offered to the last result taken, without stalls.

        For vectors of so many elements, too long ones included, and their operations.
        """
        now = taken = offered = 0
        for elements, operation in vectors:
            kept = min(elements, self.length)
            read = now + kept - 1 + self.wait(kept, operation)
            taken = read + kept - 1 + LATENCY + 2
            offered = now + elements
            now = max(read + max(kept, SETTLED), offered)
        return max(taken, offered)

    @property
    def job_layout(self) -> data.StructLayout:
        """Of one vector: ``op``, and in FP32 ``inverse`` and ``eps``.

        An :class:`Operation`, where 3 counts as layer norm; for the norms, 1 / n of a vector of n
        elements, and what is added to the variance.
        """
        return data.StructLayout({"op": 2, "inverse": FP32.width, "eps": FP32.width})

    @property
    def input_layout(self) -> data.StructLayout:
        """``x`` FP16, ``last`` on the vector's last element."""
        return data.StructLayout({"x": FP16.width, "last": 1})

    @property
    def output_layout(self) -> data.StructLayout:
        """``y`` FP16, ``last`` on the vector's last element, ``invalid`` on all of one's."""
        return data.StructLayout({"y": FP16.width, "last": 1, "invalid": 1})


class SpecialFunctionUnit(Component):
    """Softmax, layer norm or RMS norm of a vector, as its job says.

        softmax:     y = e^(x - max x) / sum of e^(x - max x)
        layer norm:  y = (x - mean) / sqrt(variance + eps)
        RMS norm:    y = x / sqrt(mean of x² + eps)

    ::

        i ─┬→ buffer ────────────────────────────────────→ normalisation ─→ queue ─→ o
           ├→ softmax reduction: maximum, sum, 1 / sum ─────────┤
           └→ moment reduction: mean, 1 / std ──────────────────┘

    A vector is reduced while its elements come, one a cycle, and then given out, one a cycle. The
    softmax works with powers of two: see :class:`hw.veda.softmax_reduction.SoftmaxReduction` for
    the tiles, :class:`hw.veda.moment_reduction.MomentReduction` for the sums of layer norms.

    Accuracy: a probability is less than 1.7 units in the last place off the softmax of the scores,
    subnormal ones included. A normalised element is less than 1.2 units off, and beside that as
    much as cancels between mean of squares and square of the mean in FP32: 2^-22 of itself times
    1 + mean² / variance, and 2^-22 mean / std.

    Errors, flagged ``invalid`` on all of a vector's results: with a NaN or plus infinity among
    them, scores give the quiet NaN; if all are minus infinity, 0. Elements of a layer norm with
    one that is not finite, or with a variance + eps that is not positive and finite, give NaN. A
    vector of more than `length` elements is cut there: the rest of it is taken and dropped, the
    result is given out with NaNs and ``last`` on its last element. Nothing is left of either in
    the next vector.

    Latency, from the last of n elements to the first result: min(n, tile) + 12 cycles for softmax,
    less if there were gaps between the last ones, and 25 for the others. Throughput: the next
    vector's first element is taken the cycle after the last one of n is read, which is 9 cycles
    before that is given out if nothing stalls; or, if n < 6, as if it had 6.

    Handshake: an element is taken only with its vector's job; the job is taken with the last.
    ``i.ready`` follows ``job.valid`` and ``job.ready`` both streams' valids combinationally.
    ``o.valid`` and ``o.payload`` depend on registers only, ``o.ready`` goes into the queue alone.
    Overflow: none.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
        What to do, a beat for each vector.
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Elements.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        Results.
    """

    summary = "Softmax, layer norm and RMS norm of vectors, an element a cycle"
    source = "VEDA, sections IV-B and V"

    def __init__(self, parameters: SpecialFunctionUnitParameters):
        self._parameters = parameters
        super().__init__(
            {
                "job": In(stream.Signature(parameters.job_layout)),
                "i": In(stream.Signature(parameters.input_layout)),
                "o": Out(stream.Signature(parameters.output_layout)),
            }
        )

    @property
    def parameters(self) -> SpecialFunctionUnitParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p, job, i = self._parameters, self.job, self.i
        m.submodules.softmax = softmax = SoftmaxReduction(p.length, p.tile)
        m.submodules.moments = moments = MomentReduction(p.length)
        m.submodules.credits = credits = CreditCounter(
            CreditCounterParameters.for_pipeline(LATENCY)
        )

        position, last_position = Signal(range(p.length)), Signal(range(p.length))
        collecting, dropping, cut = Signal(), Signal(), Signal()
        taken, full, end = Signal(), Signal(), Signal()
        read, finished, ended = Signal(), Signal(), Signal()
        is_softmax, rms = Signal(), Signal()
        is_score = job.payload.op == Operation.SOFTMAX
        m.d.comb += [
            i.ready.eq(dropping | (collecting & job.valid)),
            job.ready.eq(i.valid & i.ready & i.payload.last),
            taken.eq(i.valid & collecting & job.valid),
            full.eq(position == p.length - 1),
            end.eq(taken & (i.payload.last | full)),
            softmax.valid.eq(taken & is_score),
            moments.valid.eq(taken & ~is_score),
            ended.eq(softmax.ended | moments.ended),
            finished.eq(read & (position == last_position)),
        ]
        for reduction in (softmax, moments):
            m.d.comb += [reduction.x.eq(i.payload.x), reduction.last.eq(end)]
        with m.If(taken | read):
            m.d.sync += position.eq(Mux(end | finished, 0, position + 1))
        with m.If(end):
            m.d.sync += [
                last_position.eq(position),
                dropping.eq(~i.payload.last),
                cut.eq(~i.payload.last),
                is_softmax.eq(is_score),
                rms.eq(job.payload.op == Operation.RMS_NORM),
                moments.inverse.eq(job.payload.inverse),
                moments.eps.eq(job.payload.eps),
            ]
        with m.Elif(i.valid & i.payload.last):
            m.d.sync += dropping.eq(0)
        m.d.comb += moments.rms.eq(rms)

        settling = Signal(range(SETTLED + 1))
        settled = Signal()
        m.d.comb += settled.eq(settling <= 1)
        with m.If(ended):
            m.d.sync += settling.eq(SETTLED)
        with m.Elif(settling.any()):
            m.d.sync += settling.eq(settling - 1)
        with m.FSM(name="phase"):
            with m.State("COLLECT"):
                m.d.comb += collecting.eq(~dropping)
                with m.If(end):
                    m.next = "REDUCE"
            with m.State("REDUCE"):
                with m.If(ended):
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += read.eq(credits.available)
                with m.If(finished):
                    m.next = "SETTLE"
                    with m.If(settled):
                        m.next = "COLLECT"
            with m.State("SETTLE"):
                with m.If(settled):
                    m.next = "COLLECT"

        buffer = memory.Memory(shape=unsigned(FP16.width), depth=p.length, init=[])
        m.submodules.buffer = buffer
        write_port, read_port = buffer.write_port(), buffer.read_port()
        m.d.comb += [
            write_port.en.eq(taken),
            write_port.addr.eq(position),
            write_port.data.eq(i.payload.x),
            read_port.addr.eq(position),
        ]
        flags = Cat(read, finished, is_softmax, cut)
        self._normalise(m, read_port.data, flags, softmax, moments, credits)
        return m

    def _normalise(self, m: Module, x, flags, softmax, moments, credits) -> None:
        """From the element read, a cycle after the flags that go with it, to the output."""
        m.submodules.normalisation = unit = Normalisation()
        m.submodules.add = add = FloatAdd(
            FloatAddParameters(format="fp32", flush_subnormals=True, stages=moment_reduction.ADD)
        )
        m.d.comb += credits.take.eq(flags[0])
        behind = []  # what the flags were a cycle ago, two cycles ago, and so on
        for n in range(LATENCY):
            behind.append(Signal(len(flags), name=f"flags_{n + 1}"))
            m.d.sync += behind[-1].eq(flags)
            flags = behind[-1]
        m.d.comb += [
            unit.x.eq(x),
            # The moments' sums are done before an element comes.
            add.a.eq(Mux(moments.adding, moments.left, unit.wide)),
            add.b.eq(Mux(moments.adding, moments.right, moments.mean)),
            add.subtract.eq(~moments.adding | moments.subtract),
            moments.total.eq(add.o),
            unit.difference.eq(add.o),
            unit.root.eq(moments.root),
            unit.root_order.eq(moments.order),
            unit.origin.eq(softmax.origin),
            unit.inverse.eq(softmax.inverse),
            unit.order.eq(softmax.order),
            unit.is_softmax.eq(behind[SUBTRACTED][2]),
        ]
        layout = self._parameters.output_layout
        m.submodules.results = results = Queue(
            QueueParameters(layout.size, credits.parameters.credits), shape=layout
        )
        wiring.connect(m, results.o, wiring.flipped(self.o))
        valid, last, is_softmax, cut = behind[-1]
        undefined = cut | Mux(is_softmax, softmax.undefined, moments.undefined)
        empty = is_softmax & softmax.empty
        m.d.comb += [
            credits.give.eq(self.o.valid & self.o.ready),
            unit.undefined.eq(undefined),
            unit.empty.eq(empty),
            results.i.valid.eq(valid),
            results.i.payload.y.eq(unit.y),
            results.i.payload.last.eq(last),
            results.i.payload.invalid.eq(undefined | empty),
        ]
