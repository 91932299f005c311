"""How often each index occurs in a column, counted beat by beat (KLLM, sections IV and IV-B)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits import carry_save
from hw.arith.datapath import Registers
from hw.component import Component, on_fpga
from hw.kllm.concat_unit import ConcatUnit, ConcatUnitParameters
from hw.kllm.index_distribution_counter import (
    IndexDistributionCounter,
    IndexDistributionCounterParameters,
)
from hw.layout import FLAG, count, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class ColumnCounterParameters(Parameters):
    """Sizes of a :class:`ColumnCounter`.

    k
        Indices that count in the longest column.
    activation_bits, weight_bits
        Bits of the two indices of a position.
    counters, inputs
        Counters side by side, and indices that each counts in a beat (16 in the paper).
    macs
        Counts in one output beat, a power of two of at most 2^(activation_bits + weight_bits).
    stages
        Pipeline stages before the accumulators, 0 to 3: within the counters, after the sum of
        the counters, halfway through that sum.
    """

    k: int = 576
    activation_bits: int = 4
    weight_bits: int = 4
    counters: int = 5
    inputs: int = 16
    macs: int = 32
    stages: int = dataclasses.field(default=1, kw_only=True)

    CUTS: ClassVar = (
        (),
        ("counter",),
        ("counter", "result"),
        ("counter", "halfway", "result"),
    )

    def __post_init__(self):
        for name in ("k", "counters"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        most = len(self.CUTS) - 1
        require(0 <= self.stages <= most, f"stages must be between 0 and {most}", self.stages)
        counter = self.counter  # raises for the counter's parameters out of range
        fits = self.macs >= 1 and self.macs & (self.macs - 1) == 0 and self.macs <= counter.bins
        require(fits, f"macs must be a power of two up to {counter.bins}", self.macs)

    @classmethod
    def presets(cls) -> dict[str, "ColumnCounterParameters"]:
        return {
            "small": cls(64, counters=1, macs=64),
            "default": cls(),
            "paper": cls(4096, counters=32, stages=3),
            # All pipeline stages at a size for proofs and mutants.
            "tiny": cls(23, 2, 1, counters=3, inputs=4, macs=2, stages=3),
        }

    @property
    def counter(self) -> IndexDistributionCounterParameters:
        return IndexDistributionCounterParameters(
            self.inputs, self.activation_bits, self.weight_bits, stages=min(self.stages, 1)
        )

    @property
    def segment(self) -> int:
        """Indices in one input beat."""
        return self.counters * self.inputs

    @property
    def beats(self) -> int:
        """Input beats of a column of `k` indices."""
        return -(-self.k // self.segment)

    @property
    def bins(self) -> int:
        """Counts of a column."""
        return self.counter.bins

    @property
    def groups(self) -> int:
        """Output beats of a column."""
        return self.bins // self.macs

    @property
    def count_bits(self) -> int:
        """Bits of a count, which may reach `k`."""
        return self.k.bit_length()

    @property
    def latency(self) -> int:
        """Cycles from a column's last input beat to its first output beat, with a free buffer."""
        return self.stages + 1

    def cycles(self, beats: Sequence[int], groups: Sequence[int] | None = None) -> int:
        """Cycles for columns of these numbers of input beats, when nothing stalls.

        groups
            Groups that are output of each column; by default all.
        """
        every = [self.groups] * len(beats) if groups is None else groups
        later = sum(max(pair) for pair in zip(beats[1:], every[:-1], strict=True))
        return beats[0] + later + self.stages + every[-1]

    @property
    def input_layout(self) -> data.StructLayout:
        """One input beat.

        ``activation``, ``weight`` indices; ``mask`` of those that are counted; ``integer`` as in
        :class:`IndexDistributionCounter`; ``last`` beat of the column, with the number of
        ``groups`` that are output of it, at least 1.
        """
        return data.StructLayout(
            {
                "activation": data.ArrayLayout(index(self.activation_bits), self.segment),
                "weight": data.ArrayLayout(index(self.weight_bits), self.segment),
                "mask": data.ArrayLayout(mask(1), self.segment),
                "integer": FLAG,
                "last": FLAG,
                "groups": count(range(self.groups + 1)),
            }
        )

    @property
    def output_layout(self) -> data.StructLayout:
        """One group of a column's counts in order of index; ``last`` group of the column."""
        counts = data.ArrayLayout(count(self.count_bits), self.macs)
        return data.StructLayout({"counts": counts, "last": FLAG})


class ColumnCounter(Component[ColumnCounterParameters]):
    """counts[v] = number of a column's indices activation * 2^weight_bits + weight that equal v.

    ::

        i ─→ concat ─→ counter 0 ─┐
                    ─→ counter 1 ─┼─→ + ─→ accumulators ─→ buffer ─→ groups of `macs` ─→ o
                    ─→ …         ─┘      ↑______│

    A column has any number of beats from 1; it ends with ``last``. Its counts move to the buffer
    with its last beat, so that the next column is counted while they are output: the first
    ``groups`` of them, as many as have counts. In integer mode these are the first
    ceil(nA 2^nW / macs).

    Latency: the first group is offered `stages` + 1 cycles after the column's last beat was
    accepted, if the column before has left the buffer by then. Throughput: a beat each cycle, and a
    column of B' beats every max(B', groups of the column before) cycles. In total, B' of the first
    column, max(B', groups of the column before) of each other one, `stages` and the last column's
    groups.

    Handshake: ``o.valid`` depends on registers only. ``i.ready`` is low while a column's last beat
    is at the accumulators and the buffer holds counts that are not all output in this cycle, so it
    follows ``o.ready`` combinationally.

    Overflow: none for up to `k` counted indices, even if all are equal; beyond that, counts wrap
    modulo 2^count_bits.

    Examples
    --------
    >>> from hw.kllm.column_counter import ColumnCounter, ColumnCounterParameters
    >>> parameters = ColumnCounterParameters(k=576, counters=5, macs=32)
    >>> parameters.segment, parameters.beats, parameters.bins, parameters.groups
    (80, 8, 256, 8)
    >>> parameters.cycles([8] * 10)
    89
    >>> ColumnCounter(parameters).o.payload.counts.shape().length
    32
    """

    summary = "Histogram of a column's indices, double-buffered"
    source = "KLLM, section IV-B"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(
                p.input_layout,
                "Columns, a beat of `counters` * `inputs` pairs of indices at a time.",
            ),
            "o": stream_out(p.output_layout, "Their counts, in order of index."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        advance, arrived, last, add, load, leaving = (
            Signal(name=name) for name in ("advance", "arrived", "last", "add", "load", "leaving")
        )
        used = Signal(self.i.payload.groups.shape())  # groups of the beat's column
        # Control takes the same number of stages as the counts.
        self._pipeline_control(m, advance, arrived, last, used)

        # The pipeline stops only where a column is complete and the buffer is not free.
        busy = Signal()  # the buffer holds counts
        fresh = Signal(init=1)  # the next beat begins a column
        group = Signal(range(max(2, p.groups)))  # a signal of width 0 is not valid Verilog
        final = Signal.like(group, reset_less=True)  # the buffered column's last group
        at_end = group == final
        m.d.comb += [
            # Double buffering: the next column is counted while this one's groups leave.
            leaving.eq(self.o.ready & at_end),
            advance.eq(~(arrived & last & busy) | leaving),
            add.eq(advance & arrived),
            load.eq(add & last),
            self.i.ready.eq(advance),
            self.o.valid.eq(busy),
            self.o.payload.last.eq(at_end),
        ]
        # After the last beat of a column the next one starts from zero.
        with m.If(add):
            m.d.sync += fresh.eq(last)
        # The buffer is loaded with a column's last beat, and free after its last group.
        with m.If(load):
            m.d.sync += [busy.eq(1), final.eq(used - 1)]
        with m.Elif(leaving):
            m.d.sync += busy.eq(0)
        # A group of counts leaves in each cycle in which it is accepted.
        if p.groups > 1:
            with m.If(busy & self.o.ready):
                m.d.sync += group.eq(Mux(at_end, 0, group + 1))

        # One row of accumulators for each activation index.
        counters = self._count(m, advance)
        totals = []
        for row in range(1 << p.activation_bits):
            m.submodules[f"accumulators_{row}"] = accumulators = RowAccumulators(p)
            size = accumulators.totals.shape().length
            part = slice(row * size, (row + 1) * size)
            for counts, counter in zip(accumulators.counts, counters, strict=True):
                m.d.comb += counts.eq(counter.counts[part])
            m.d.comb += [
                accumulators.enable.eq(advance),
                accumulators.add.eq(add),
                accumulators.first.eq(fresh),
                accumulators.load.eq(load),
            ]
            totals.append(accumulators.totals)
        # Output: the group of counts that is addressed.
        # The groups are parts of one long row of counts.
        column = Cat(totals)
        with m.Switch(group):
            for number in range(p.groups):
                with m.Case(number) if number < p.groups - 1 else m.Default():
                    counts = column.word_select(number, p.count_bits * p.macs)
                    m.d.comb += self.o.payload.counts.eq(counts)
        return m

    def _pipeline_control(self, m: Module, advance, arrived, last, used):
        """Delay valid, last and groups by the pipeline stages before the accumulators."""
        p = self.parameters
        groups = self.i.payload.groups
        if not p.stages:
            m.d.comb += [arrived.eq(self.i.valid), last.eq(self.i.payload.last), used.eq(groups)]
            return
        for stage in range(p.stages):
            later = Signal.like(groups, name=f"groups_{stage}", reset_less=True)
            with m.If(advance):
                m.d.sync += later.eq(groups)
            groups = later
        m.d.comb += used.eq(groups)
        valid = Signal(p.stages)
        ends = Signal(p.stages, reset_less=True)
        m.d.comb += [arrived.eq(valid[-1]), last.eq(ends[-1])]
        with m.If(advance):
            m.d.sync += [
                valid.eq(valid << 1 | self.i.valid),
                ends.eq(ends << 1 | self.i.payload.last),
            ]

    def _count(self, m: Module, advance) -> list[IndexDistributionCounter]:
        """Returns the counters, each fed with its part of the beat."""
        p = self.parameters
        beat = self.i.payload
        m.submodules.concat = concat = ConcatUnit(
            ConcatUnitParameters(p.segment, p.activation_bits, p.weight_bits)
        )
        m.d.comb += [
            concat.activation.eq(beat.activation),
            concat.weight.eq(beat.weight),
            concat.mask.eq(beat.mask.as_value()),
        ]
        # Counter n counts positions n * inputs to (n + 1) * inputs - 1 of the beat.
        counters = []
        for number in range(p.counters):
            counter = IndexDistributionCounter(p.counter)
            m.submodules[f"counter_{number}"] = counter
            part = slice(number * p.inputs, (number + 1) * p.inputs)
            m.d.comb += [
                counter.index.eq(concat.index[part]),
                counter.mask.eq(concat.mask_out[part]),
                counter.integer_mode.eq(beat.integer),
            ]
            # Without stages a counter is combinational and has nothing to enable.
            if p.stages:
                m.d.comb += counter.enable.eq(advance)
            counters.append(counter)
        return counters


class RowAccumulators(Component[ColumnCounterParameters]):
    """Counts of one activation index: sum over the counters, accumulator, output buffer."""

    def ports(self) -> Ports:
        p = self.parameters
        columns = 1 << p.weight_bits
        counts = data.ArrayLayout(p.counter.count_bits, columns)
        return {
            "counts": wire_in(data.ArrayLayout(counts, p.counters)),
            "enable": wire_in(1, "The pipeline stages in the sums advance."),
            "add": wire_in(1, "The beat at the end of the pipeline is added."),
            "first": wire_in(1, "This beat is its column's first."),
            "load": wire_in(1, "This beat is its column's last: the sums go to `totals`."),
            "totals": wire_out(
                data.ArrayLayout(p.count_bits, columns), "Counts of the latest complete column."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        for column, total in enumerate(self.totals):
            m.d.comb += total.eq(self._accumulate(m, platform, column))
        return m

    def _accumulate(self, m: Module, platform, column: int) -> Signal:
        """The buffered count of one weight index."""
        p = self.parameters
        chosen = p.CUTS[p.stages]
        registers = Registers(m, chosen, self.enable)

        def cut(point: str, **values):
            named = {f"{name}_{column}": value for name, value in values.items()}
            return registers(point, **named)

        # An FPGA's registers have a synchronous reset beside their LUTs: a column's last sum leaves
        # a zero. Elsewhere the first sum of a column is told to start from zero.
        clears = on_fpga(platform)
        counted = Signal(p.count_bits, name=f"counted_{column}", reset_less=not clears)
        buffered = Signal(p.count_bits, name=f"buffered_{column}", reset_less=True)
        before = Signal(p.count_bits, name=f"before_{column}")
        m.d.comb += before.eq(counted if clears else Mux(self.first, 0, counted))
        # Counts of all counters and the accumulator are added in carry-save form.
        rows = [counts[column] for counts in self.counts]
        if "result" in chosen:
            # The counters' sum has a separate register, wide enough for a beat of equal indices.
            width = min(p.segment.bit_length(), p.count_bits)
            rows = [carry_save.add_rows(m, rows, width, cut)]
        after = carry_save.add_rows(m, [*rows, before], p.count_bits, _no_cut)
        # The last sum of a column goes to the buffer in the same cycle.
        with m.If(self.add):
            m.d.sync += counted.eq(after)
        with m.If(self.load):
            m.d.sync += buffered.eq(after)
            if clears:
                m.d.sync += counted.eq(0)
        return buffered


def _no_cut(point: str, **values):
    """The values unchanged."""
    return next(iter(values.values())) if len(values) == 1 else tuple(values.values())
