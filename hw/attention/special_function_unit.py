"""Softmax and layer normalisation of vectors, an element at a time (VEDA, sections IV-B and V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, memory, wiring

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16, FP32
from hw.attention import moment_reduction
from hw.attention.delay import delay_line
from hw.attention.moment_reduction import MomentReduction
from hw.attention.normalisation import DIFFERENCE_CYCLES, RESULT_CYCLES, Normalisation
from hw.attention.softmax_reduction import LAST_TILE_CYCLES, SoftmaxReduction
from hw.component import Component
from hw.layout import FLAG
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters


class Operation(enum.IntEnum, shape=2):
    """Operation on a vector. Code 3 counts as layer norm."""

    SOFTMAX = 0
    LAYER_NORM = 1
    RMS_NORM = 2


DRAIN_CYCLES = 6
"""Cycles from the first element read to the reduction being free for the next vector."""

LATENCY = 1 + RESULT_CYCLES
"""Cycles from an element being read from the buffer to its result."""


@dataclasses.dataclass(frozen=True)
class SpecialFunctionUnitParameters(Parameters):
    """
    length
        Elements in the longest vector, 2 to 4096.
    tile
        Scores whose maximum is found before their exponentials are added, 1 to 64. The throughput
        is the same for any; a small tile has a lower latency. The paper's is 32.
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

    def reduction_cycles(self, elements: int, operation: int) -> int:
        """Cycles from a vector's last element to the first element read from the buffer."""
        if operation == Operation.SOFTMAX:
            return min(elements, self.tile) + LAST_TILE_CYCLES
        return moment_reduction.RESULT_STEP - moment_reduction.LEAD + 1

    def first_result_cycles(self, elements: int, operation: int) -> int:
        """Cycles from a vector's last element to its first result if there are no gaps."""
        return self.reduction_cycles(elements, operation) + LATENCY + 1

    @cached_property
    def latency(self) -> int:
        """Cycles of a softmax of `tile` or more scores: tile + 12."""
        return self.first_result_cycles(self.length, Operation.SOFTMAX)

    def cycles(self, vectors: list[tuple[int, int]]) -> int:
        """Cycles from the first element offered to the last result accepted, without stalls.

        vectors
            Elements, those beyond `length` included, and operation of each vector.
        """
        start = accepted = offered = 0
        for elements, operation in vectors:
            kept = min(elements, self.length)
            read = start + kept - 1 + self.reduction_cycles(kept, operation)
            accepted = read + kept - 1 + LATENCY + 2
            offered = start + elements
            start = max(read + max(kept, DRAIN_CYCLES), offered)
        return max(accepted, offered)

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """Command of one vector: ``op``, an :class:`Operation`, and for the norms ``inverse`` and
        ``eps``.

        ``inverse`` is 1 / n of a vector of n elements, ``eps`` is added to the variance; both FP32.
        """
        return data.StructLayout({"op": Operation, "inverse": FP32, "eps": FP32})

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``x`` FP16, ``last`` on the vector's last element."""
        return data.StructLayout({"x": FP16, "last": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``y`` FP16, ``last`` on a vector's last element, ``invalid`` on all of one's."""
        return data.StructLayout({"y": FP16, "last": FLAG, "invalid": FLAG})


class SpecialFunctionUnit(Component[SpecialFunctionUnitParameters]):
    """Softmax, layer norm or RMS norm of a vector, as its command says.

        softmax:     y = e^(x - max x) / sum of e^(x - max x)
        layer norm:  y = (x - mean) / sqrt(variance + eps)
        RMS norm:    y = x / sqrt(mean of x² + eps)

    ::

        i ─┬→ buffer ────────────────────────────────────→ normalisation ─→ queue ─→ o
           ├→ softmax reduction: maximum, sum, 1 / sum ─────────┤
           └→ moment reduction: mean, 1 / std ──────────────────┘

    A vector is reduced while its elements arrive, one a cycle, and then read from the buffer and
    output, one a cycle. The softmax works with powers of two: see
    :class:`hw.attention.softmax_reduction.SoftmaxReduction` for the tiles,
    :class:`hw.attention.moment_reduction.MomentReduction` for the sums of layer norms.

    Accuracy: a probability is less than 1.7 units in the last place off the softmax of the scores,
    subnormal ones included. A normalised element is less than 1.2 units off, plus what cancels
    between mean of squares and square of the mean in FP32: 2^-22 of itself times
    1 + mean² / variance, and 2^-22 mean / std.

    Errors, flagged ``invalid`` on all of a vector's results: scores with a NaN or plus infinity
    give the quiet NaN; scores that are all minus infinity give 0. A layer norm with an element that
    is not finite, or with a variance + eps that is not positive and finite, gives NaN. A vector of
    more than `length` elements is cut there: the rest is accepted and dropped, and the result is
    NaN with ``last`` on element `length`. The next vector is not affected.

    Latency, from the last of n elements to the first result: min(n, tile) + 12 cycles for softmax,
    less if there were gaps between the last ones, and 25 for the others. Throughput: the next
    vector's first element is accepted the cycle after the last of n elements is read from the
    buffer, which is 9 cycles before its result if nothing stalls. A vector of fewer than 6 elements
    takes as long as one of 6.

    Handshake: an element is accepted only while its vector's command is valid; the command is
    accepted with the last element. ``i.ready`` depends combinationally on ``command.valid``, and
    ``command.ready`` on both streams' valids. ``o.valid`` and ``o.payload`` depend on registers
    only, ``o.ready`` goes into the queue alone. Overflow: none.

    Examples
    --------
    >>> from hw.attention.special_function_unit import Operation, SpecialFunctionUnitParameters
    >>> parameters = SpecialFunctionUnitParameters(length=64, tile=8)
    >>> [parameters.first_result_cycles(n, Operation.SOFTMAX) for n in (1, 8, 64)]
    [13, 20, 20]
    >>> parameters.first_result_cycles(64, Operation.LAYER_NORM)
    25
    """

    summary = "Softmax, layer norm and RMS norm of vectors, an element a cycle"
    source = "VEDA, sections IV-B and V"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "What to do, a beat for each vector."),
            "i": stream_in(p.input_layout, "Elements."),
            "o": stream_out(p.output_layout, "Results."),
        }

    def elaborate(self, platform):
        m = Module()
        p, command, i = self.parameters, self.command, self.i
        m.submodules.softmax = softmax = SoftmaxReduction(p.length, p.tile)
        m.submodules.moments = moments = MomentReduction(p.length)
        # A credit is a place in the output queue; an element is read only with one.
        m.submodules.credits = credits = CreditCounter(
            CreditCounterParameters.for_pipeline(LATENCY)
        )

        # `position` counts elements in, then elements read. Elements beyond `length` are dropped.
        position = Signal(range(p.length))
        last_position = Signal(range(p.length))
        collecting = Signal()
        dropping = Signal()
        cut = Signal()
        fire = Signal()
        full = Signal()
        end = Signal()
        read = Signal()
        finished = Signal()
        ended = Signal()
        is_softmax = Signal()
        rms = Signal()
        command_is_softmax = command.payload.op == Operation.SOFTMAX
        m.d.comb += [
            i.ready.eq(dropping | (collecting & command.valid)),
            command.ready.eq(i.valid & i.ready & i.payload.last),
            fire.eq(i.valid & collecting & command.valid),
            full.eq(position == p.length - 1),
            end.eq(fire & (i.payload.last | full)),
            softmax.valid.eq(fire & command_is_softmax),
            moments.valid.eq(fire & ~command_is_softmax),
            ended.eq(softmax.ended | moments.ended),
            finished.eq(read & (position == last_position)),
        ]
        for reduction in (softmax, moments):
            m.d.comb += [reduction.x.eq(i.payload.x), reduction.last.eq(end)]
        with m.If(fire | read):
            m.d.sync += position.eq(Mux(end | finished, 0, position + 1))
        # The command is held from the vector's last element on.
        with m.If(end):
            m.d.sync += [
                last_position.eq(position),
                dropping.eq(~i.payload.last),
                cut.eq(~i.payload.last),
                is_softmax.eq(command_is_softmax),
                rms.eq(command.payload.op == Operation.RMS_NORM),
                # The command may change after its vector's last element, which accepts it: what the
                # later phases need is copied here.
                moments.inverse.eq(command.payload.inverse),
                moments.eps.eq(command.payload.eps),
            ]
        with m.Elif(i.valid & i.payload.last):
            m.d.sync += dropping.eq(0)
        m.d.comb += moments.rms.eq(rms)

        self._phases(m, end, ended, finished, dropping, credits.available, collecting, read)

        # The buffer of elements, with one address for both ports, because they are used in turn.
        buffer = memory.Memory(shape=unsigned(FP16.width), depth=p.length, init=[])
        m.submodules.buffer = buffer
        write_port, read_port = buffer.write_port(), buffer.read_port()
        m.d.comb += [
            write_port.en.eq(fire),
            write_port.addr.eq(position),
            write_port.data.eq(i.payload.x),
            read_port.addr.eq(position),
        ]
        flags = Cat(read, finished, is_softmax, cut)
        self._normalise(m, read_port.data, flags, softmax, moments, credits)
        return m

    @staticmethod
    def _phases(
        m: Module,
        end: Signal,
        ended: Signal,
        finished: Signal,
        dropping: Signal,
        has_credit: Signal,
        collecting: Signal,
        read: Signal,
    ) -> None:
        """A vector's way: its elements are collected, reduced, then read one by one.

        end, ended, finished
            The vector's last element; the end of its reduction; its last element that is read.
        dropping, has_credit
            Elements are dropped; an element may be read.
        collecting, read
            What the phases ask for: elements from the input, and from the buffer.
        """
        # The reductions' results are read up to DRAIN_CYCLES after the first element was.
        drain_left = Signal(range(DRAIN_CYCLES + 1))
        drained = Signal()
        m.d.comb += drained.eq(drain_left <= 1)
        with m.If(ended):
            m.d.sync += drain_left.eq(DRAIN_CYCLES)
        with m.Elif(drain_left.any()):
            m.d.sync += drain_left.eq(drain_left - 1)
        with m.FSM(name="phase"):
            with m.State("COLLECT"):
                # Elements into the buffer and a reduction.
                m.d.comb += collecting.eq(~dropping)
                with m.If(end):
                    m.next = "REDUCE"
            with m.State("REDUCE"):
                # Wait for the reduction, which ends some cycles after the last element.
                with m.If(ended):
                    m.next = "READ"
            with m.State("READ"):
                # Elements from the buffer to the normalisation, each with a credit.
                m.d.comb += read.eq(has_credit)
                with m.If(finished):
                    m.next = "DRAIN"
                    with m.If(drained):
                        m.next = "COLLECT"
            with m.State("DRAIN"):
                # After a short vector: the reductions' results are still being read.
                with m.If(drained):
                    m.next = "COLLECT"

    def _normalise(self, m: Module, x, flags, softmax, moments, credits) -> None:
        """From the element read, which comes a cycle after its `flags`, to the output."""
        m.submodules.normalisation = unit = Normalisation()
        m.submodules.add = add = FloatAdd(
            FloatAddParameters(
                format="fp32", flush_subnormals=True, stages=moment_reduction.ADD_STAGES
            )
        )
        m.d.comb += credits.take.eq(flags[0])
        delayed = delay_line(m, "flags", flags, LATENCY)  # go with the element
        m.d.comb += [
            unit.x.eq(x),
            # One adder for both: the moments are complete before an element is read.
            add.a.eq(Mux(moments.add_valid, moments.add_a, unit.x_fp32)),
            add.b.eq(Mux(moments.add_valid, moments.add_b, moments.mean)),
            add.subtract.eq(~moments.add_valid | moments.add_subtract),
            moments.add_o.eq(add.o),
            unit.difference.eq(add.o),
            unit.inverse_std.eq(moments.inverse_std),
            unit.std_exponent.eq(moments.exponent),
            unit.origin.eq(softmax.origin),
            unit.inverse_sum.eq(softmax.inverse_sum),
            unit.sum_exponent.eq(softmax.sum_exponent),
            unit.is_softmax.eq(delayed[DIFFERENCE_CYCLES][2]),
        ]
        layout = self.parameters.output_layout
        m.submodules.results = results = Queue(
            QueueParameters(layout.size, credits.parameters.credits), shape=layout
        )
        wiring.connect(m, results.o, wiring.flipped(self.o))
        # The last stage: flags of the vector with its result.
        valid, last, is_softmax, cut = delayed[-1]
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
