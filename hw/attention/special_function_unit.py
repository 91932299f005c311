"""Softmax and layer normalisation of vectors, an element at a time (VEDA, sections IV-B and V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, memory, wiring

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16, FP32
from hw.attention import moment_reduction
from hw.attention.delay import delay, delay_line
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
"""Cycles from a norm's first element read to the moments being free for the next vector."""

ORIGIN_CYCLES, SUM_CYCLES = 3, 5
"""Cycles from an element to the use of its softmax's origin, and of its sum."""

VECTORS = 64
"""Number of complete vectors in a unit's buffer, at most."""

ADDER = FloatAddParameters("fp32", flush_subnormals=True, stages=moment_reduction.ADD_STAGES)

LATENCY = 1 + RESULT_CYCLES
"""Cycles from an element being read from the buffer to its result."""


@dataclasses.dataclass(frozen=True)
class SpecialFunctionUnitParameters(Parameters):
    """
    length
        Elements in the longest vector, 2 to 8192.
    tile
        Scores whose maximum is found before their exponentials are added, 1 to 64. The throughput
        is the same for any; a small tile has a lower latency. The paper's is 32.
    vectors
        Number of complete vectors that the buffer holds, at most, 1 to 64.
    norms
        Whether there are norms; without, every vector is a softmax, whatever its command says.
    """

    length: int = 256
    tile: int = 8
    vectors: int = 1
    norms: bool = True

    def __post_init__(self):
        require(2 <= self.length <= 8192, "length must be between 2 and 8192", self.length)
        require(1 <= self.tile <= 64, "tile must be between 1 and 64", self.tile)
        rule = f"vectors must be between 1 and {VECTORS}"
        require(1 <= self.vectors <= VECTORS, rule, self.vectors)

    @classmethod
    def presets(cls) -> dict[str, "SpecialFunctionUnitParameters"]:
        return {
            "small": cls(length=32, tile=4),
            "default": cls(),
            "several": cls(length=32, tile=4, vectors=3),
            "scores": cls(length=32, tile=4, norms=False),
            "paper": cls(length=4096, tile=32),
        }

    def is_softmax(self, operation: int) -> bool:
        """Whether a command of this operation is a softmax."""
        return not self.norms or operation == Operation.SOFTMAX

    def reduction_cycles(self, elements: int, operation: int) -> int:
        """Cycles from a vector's last element to the first element read from the buffer."""
        if self.is_softmax(operation):
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
        free = [0] * self.vectors  # when the buffer has room for the vectors to come
        start = drained = accepted = read_end = norm_end = 0
        for elements, operation in vectors:
            kept = min(elements, self.length)
            norm = not self.is_softmax(operation)
            start = max(start, norm_end, read_end if norm else free.pop(0))
            complete = start + kept - 1
            read = complete + self.reduction_cycles(kept, operation)
            if not norm:  # a short tile waits until the one before is drained
                for number in range(self.tile, kept, self.tile):
                    drained = max(drained, start + number - 1) + self.tile
                drained = max(drained, complete) + (kept - 1) % self.tile + 1
                read = max(drained + LAST_TILE_CYCLES, read_end)
            read_end = read + kept
            if norm:
                norm_end = read + max(kept, DRAIN_CYCLES)
            else:
                free.append(read_end)
            accepted = read + kept - 1 + LATENCY + 2
            offered = start = start + elements
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
    output, one a cycle. Meanwhile the next ones arrive, if the buffer has room for several and none
    of them is a norm, which has the unit to itself. The softmax works with powers of two: see
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
    less if there were gaps between the last ones, and 25 for the others. Throughput: scores of a
    softmax are accepted, one a cycle, while fewer than `vectors` complete vectors wait in the
    buffer. A vector leaves it with its last element read, which is 9 cycles before its result if
    nothing stalls. A norm is accepted when the buffer is empty, and its next vector when all n
    elements of the norm are read, or as many cycles later as 6 exceed n.

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
        m.submodules.softmax = softmax = SoftmaxReduction(p.length, p.tile, p.vectors)
        moments = None
        if p.norms:
            m.submodules.moments = moments = MomentReduction(p.length)
        # A credit is a place in the output queue; an element is read only with one.
        m.submodules.credits = credits = CreditCounter(
            CreditCounterParameters.for_pipeline(LATENCY)
        )

        # Elements beyond `length` are dropped.
        position = Signal(range(p.length))  # of the next element in its vector
        reading = Signal(range(p.length))  # of the next one that is read from the buffer
        slot = Signal(range(p.vectors))  # of the buffer, in which a vector is collected
        read_slot = Signal(range(p.vectors))
        collecting = Signal()
        dropping = Signal()
        fire = Signal()
        full = Signal()
        end = Signal()
        read = Signal()
        finished = Signal()
        # Vectors in the buffer, from their last element on until their last element is read.
        layout = data.StructLayout({"last": range(p.length), "is_softmax": FLAG, "cut": FLAG})
        m.submodules.vectors = vectors = Queue(QueueParameters(depth=p.vectors), shape=layout)
        is_softmax = command.payload.op == Operation.SOFTMAX if p.norms else Const(1)
        m.d.comb += [
            i.ready.eq(dropping | (collecting & command.valid)),
            command.ready.eq(i.valid & i.ready & i.payload.last),
            fire.eq(i.valid & collecting & command.valid),
            full.eq(position == p.length - 1),
            end.eq(fire & (i.payload.last | full)),
            softmax.valid.eq(fire & is_softmax),
            softmax.x.eq(i.payload.x),
            softmax.last.eq(end),
            finished.eq(read & (reading == vectors.o.payload.last)),
            vectors.i.valid.eq(end),
            vectors.i.payload.last.eq(position),
            vectors.i.payload.is_softmax.eq(is_softmax),
            vectors.i.payload.cut.eq(~i.payload.last),
            vectors.o.ready.eq(finished),
        ]
        if moments is not None:
            self._reduce_norm(m, moments, fire & ~is_softmax, end)
        with m.If(fire):
            m.d.sync += position.eq(Mux(end, 0, position + 1))
        with m.If(read):
            m.d.sync += reading.eq(Mux(finished, 0, reading + 1))
        with m.If(end):
            m.d.sync += [
                slot.eq(Mux(slot == p.vectors - 1, 0, slot + 1)),
                dropping.eq(~i.payload.last),
            ]
        with m.Elif(i.valid & i.payload.last):
            m.d.sync += dropping.eq(0)
        with m.If(finished):
            m.d.sync += read_slot.eq(Mux(read_slot == p.vectors - 1, 0, read_slot + 1))
        self._phases(
            m,
            may_begin=~dropping & vectors.i.ready & (is_softmax | ~vectors.o.valid),
            begun=position.any(),
            norm=vectors.o.valid & ~vectors.o.payload.is_softmax,
            ended=(softmax.ended, None if moments is None else moments.ended),
            finished=finished,
            has_credit=credits.available,
            collecting=collecting,
            read=read,
        )

        element = self._element(m, fire, Cat(position, slot), Cat(reading, read_slot))
        flags = Cat(read, finished, vectors.o.payload.is_softmax, vectors.o.payload.cut)
        self._normalise(m, element, flags, softmax, moments, credits)
        return m

    def _reduce_norm(self, m: Module, moments: MomentReduction, valid: Value, end: Signal) -> None:
        """A norm's elements, and of its command what is needed after it has been accepted."""
        command = self.command.payload
        m.d.comb += [moments.valid.eq(valid), moments.x.eq(self.i.payload.x), moments.last.eq(end)]
        with m.If(end):
            m.d.sync += [
                moments.rms.eq(command.op == Operation.RMS_NORM),
                moments.inverse.eq(command.inverse),
                moments.eps.eq(command.eps),
            ]

    def _element(self, m: Module, fire: Signal, write_address: Value, read_address: Value) -> Value:
        """The buffer's element, a cycle after its address: | slot | position |."""
        p = self.parameters
        depth = p.vectors << (p.length - 1).bit_length() if p.vectors > 1 else p.length
        buffer = memory.Memory(shape=unsigned(FP16.width), depth=depth, init=[])
        m.submodules.buffer = buffer
        write_port, read_port = buffer.write_port(), buffer.read_port()
        m.d.comb += [
            write_port.en.eq(fire),
            write_port.addr.eq(write_address),
            write_port.data.eq(self.i.payload.x),
            read_port.addr.eq(read_address),
        ]
        return read_port.data

    def _phases(
        self, m: Module, *, may_begin, begun, norm, ended, finished, has_credit, collecting, read
    ) -> None:
        """When elements are collected from the input, and when they are read from the buffer.

        may_begin, begun
            The buffer has room for the vector that is offered; its first element has been accepted.
        norm
            The buffer's oldest vector is one.
        ended, finished
            A softmax's and a norm's (or None) reduction ends; a vector's last element is read.
        has_credit, collecting, read
            An element may be read; the phases ask for one from the input, and from the buffer.
        """
        of_softmax, of_norm = ended
        # Vectors whose reduction has ended, and that are not all read.
        reduced = Signal(range(self.parameters.vectors + 1))
        m.d.comb += read.eq(reduced.any() & has_credit)
        if of_norm is None:
            m.d.sync += reduced.eq(reduced + of_softmax - finished)
            m.d.comb += collecting.eq(begun | may_begin)
            return
        # A norm has the moments and the adder to itself. Its results are read up to DRAIN_CYCLES
        # after its first element was.
        drain_left = Signal(range(DRAIN_CYCLES + 1))
        with m.If(of_norm):
            m.d.sync += drain_left.eq(DRAIN_CYCLES)
        with m.Elif(drain_left.any()):
            m.d.sync += drain_left.eq(drain_left - 1)
        m.d.sync += reduced.eq(reduced + (of_softmax | of_norm) - finished)
        m.d.comb += collecting.eq(begun | (may_begin & ~norm & (drain_left == 0)))

    def _normalise(self, m: Module, x, flags, softmax, moments, credits) -> None:
        """From the element read, which comes a cycle after its `flags`, to the output."""
        m.submodules.normalisation = unit = Normalisation(self.parameters.norms)
        m.d.comb += credits.take.eq(flags[0])
        delayed = delay_line(m, "flags", flags, LATENCY)  # go with the element
        m.d.comb += [
            unit.x.eq(x),
            unit.origin.eq(softmax.origins.payload),
            unit.inverse_sum.eq(softmax.sums.payload.inverse),
            unit.sum_exponent.eq(softmax.sums.payload.exponent),
        ]
        if moments is not None:
            self._differences(m, unit, moments)
            m.d.comb += unit.is_softmax.eq(delayed[DIFFERENCE_CYCLES][2])
        # An element is normalised with its vector's results, which wait in the reduction's queues
        # until its last one.
        at_origin, at_sum, sums = delayed[ORIGIN_CYCLES], delayed[SUM_CYCLES], softmax.sums.payload
        m.d.comb += [
            softmax.origins.ready.eq(at_origin[:3].all()),
            softmax.sums.ready.eq(at_sum[:3].all()),
        ]
        layout = self.parameters.output_layout
        m.submodules.results = results = Queue(
            QueueParameters(layout.size, credits.parameters.credits), shape=layout
        )
        wiring.connect(m, results.o, wiring.flipped(self.o))
        valid, last, is_softmax, cut = delayed[-1]  # go with the result
        flags = Cat(sums.undefined, sums.empty)
        softmax_undefined, none = delay(m, "sum_flags", flags, RESULT_CYCLES - SUM_CYCLES)
        undefined, empty = cut | softmax_undefined, none
        if moments is not None:
            undefined = cut | Mux(is_softmax, softmax_undefined, moments.undefined)
            empty = is_softmax & none
        m.d.comb += [
            credits.give.eq(self.o.valid & self.o.ready),
            unit.undefined.eq(undefined),
            unit.empty.eq(empty),
            results.i.valid.eq(valid),
            results.i.payload.y.eq(unit.y),
            results.i.payload.last.eq(last),
            results.i.payload.invalid.eq(undefined | empty),
        ]

    def _differences(self, m: Module, unit, moments) -> None:
        """An element less the mean, by the adder that made the moments before."""
        m.submodules.add = add = FloatAdd(ADDER)
        m.d.comb += [
            add.a.eq(Mux(moments.add_valid, moments.add_a, unit.x_fp32)),
            add.b.eq(Mux(moments.add_valid, moments.add_b, moments.mean)),
            add.subtract.eq(~moments.add_valid | moments.add_subtract),
            moments.add_o.eq(add.o),
            unit.difference.eq(add.o),
            unit.inverse_std.eq(moments.inverse_std),
            unit.std_exponent.eq(moments.exponent),
        ]
