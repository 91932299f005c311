"""Active position identification (LAD, section IV-B, part 3)."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data

from hw.arith.bits.order_key import to_key
from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS, ApidParameters
from hw.lad.packing_queue import PackingQueue
from hw.lad.scores.line_tables import HIGHEST_KEY
from hw.ports import Ports, stream_in, stream_out


class Apid(Component[ApidParameters]):
    """Which positions have left their mode's interval. Position i of n is active unless

        lower[mode[i]] < s[i] - m <= upper[mode[i]]    and    i < n - window

    ::

        s ─→ - m ─→ compare with lower[mode], upper[mode] ─┬─→ active ──→ queue ─→ o
        g ─→ ─────────────────────────────────────────────┴─→ count + 1 ───────→ counters

    A step begins with a `command`; then its n positions follow in beats, oldest first. Every beat
    outputs one of `counters`, in which the counters of its inactive positions' modes are
    incremented. A counter that becomes full, 2^bits - 1, is halved, rounded down; the position's
    other counters must then be halved too, which keeps their order: it enters the queue, marked
    ``halve``. The active positions enter the queue with their word of G. The latest `window`
    positions are always active, with mode 0, whatever their score and word; so every step has an
    active position, and its last one ends the step.

    With `slack`, a mode is accepted a little beyond its interval, as far as its line is close to
    the exponential: fewer positions are active, and the error is bounded.

    Example with bounds -10, -6, -3, -1: a position of mode 2, the interval from -6 to -3, with
    s - m = -4.5 is inactive, and its counter of mode 2 is incremented. With s - m = -2.5 it has
    left the interval and is active.

    The difference is rounded to FP16, as MD rounds it. An interval includes its upper bound and not
    its lower one; the first one reaches to -inf, the last one, which begins below 0, includes all
    scores above. A difference that is NaN is in no interval, and modes from I on have no interval:
    such positions are active. In the paper a score on the lower bound is inactive, which MD would
    contradict.

    Latency: 3 cycles from a beat to its counters, 5 to the group of active positions that it
    completes. Throughput: one beat per cycle while the queue has room for `lanes` + `outputs` - 1
    entries; else beats wait. One group per cycle leaves the queue. A step's command is taken with
    the last beat of the step before, so steps follow each other without a gap.

    Handshake: ``i.ready`` follows ``counters.ready``, and ``command.ready`` also ``i.valid``,
    combinationally. ``counters.valid`` is low while the queue has no room, so a beat's counters
    wait until its active positions have room. All outputs depend on registers only. Overflow: none.

    Bounds are constants of the generator, selected by the modes of all lanes alike.

    Examples
    --------
    >>> from hw.lad.apid import ApidParameters
    >>> parameters = ApidParameters(lanes=12, outputs=2, bounds="80_48_24_8")
    >>> parameters.bound_values, parameters.intervals
    ((-10.0, -6.0, -3.0, -1.0), 5)
    >>> parameters.latency, parameters.queue_latency, parameters.beats_of(n=500)
    (3, 5, 42)
    """

    summary = "Positions that have left their mode's interval, and counters of the others"
    source = "LAD, section IV-B"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "Steps."),
            "i": stream_in(p.input_layout, "Scores and words of G."),
            "counters": stream_out(p.counters_layout, "Words of G."),
            "o": stream_out(p.active_layout, "Active positions."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        room = Signal()  # in the queue, for all lanes
        advance = Signal()
        valid = Signal(p.latency)
        fire, record, maximum = self._take(m, advance)
        m.d.comb += [
            self.counters.valid.eq(valid[-1] & room),
            advance.eq(~valid[-1] | (room & self.counters.ready)),
        ]
        with m.If(advance):
            m.d.sync += valid.eq(Cat(fire, valid[:-1]))

        # The record of a beat moves along with the subtraction, which has latency - 1 stages.
        # Everything moves or everything stops, with one enable: the last stage has nowhere to wait,
        # as its words go back to the store and into the queue in the same cycle.
        stages = [record]
        for number in range(p.latency):
            register = Signal(record.shape(), name=f"stage_{number}", reset_less=True)
            with m.If(advance):
                m.d.sync += register.eq(stages[-1])
            stages.append(register)

        # The stage before the last has the difference: compare. The last one has the decision.
        compared, decided = stages[-2:]
        active = Signal(p.lanes)
        inactive = Signal(p.lanes)
        for lane in range(p.lanes):
            within = self._within(m, lane, advance, maximum, compared.g[lane].mode)
            m.d.comb += [
                inactive[lane].eq(compared.older[lane] & within),
                active[lane].eq(compared.present[lane] & ~inactive[lane]),
            ]
        was_active, was_inactive = (
            Signal(p.lanes, name=name, reset_less=True) for name in ("was_active", "was_inactive")
        )
        with m.If(advance):
            m.d.sync += [was_active.eq(active), was_inactive.eq(inactive)]
        self._output(m, decided, was_active, was_inactive, room)
        return m

    def _take(self, m: Module, advance: Signal) -> tuple[Signal, data.View, Signal]:
        """Returns (a beat is taken, its record, the maximum of its step)."""
        p = self.parameters
        busy = Signal()
        left = Signal(range(p.positions + 1), reset_less=True)  # positions not yet taken
        fire = Signal()
        final = Signal()
        maximum = Signal(FP16.width, reset_less=True)
        # A command is taken when idle, or together with the last beat of a step.
        m.d.comb += [
            self.i.ready.eq(busy & advance),
            fire.eq(self.i.valid & self.i.ready),
            final.eq(left <= p.lanes),
            self.command.ready.eq(~busy | (fire & final)),
        ]
        with m.If(self.command.ready):
            m.d.sync += [
                busy.eq(self.command.valid),
                left.eq(self.command.payload.n),
                maximum.eq(self.command.payload.m),
            ]
        with m.Elif(fire):
            m.d.sync += left.eq(left - p.lanes)
        record = Signal(p.record_layout)
        m.d.comb += record.last.eq(final)
        for lane, word in enumerate(self.i.payload.g):
            older = left > lane + p.window
            m.d.comb += [
                record.present[lane].eq(left > lane),
                record.older[lane].eq(older),
                record.g[lane].count.eq(word.count),
                record.g[lane].active.eq(word.active),
                # Mode 0 in the window.
                record.g[lane].mode.eq(word.mode & older.replicate(MODE_BITS)),
            ]
        return fire, record, maximum

    def _within(
        self, m: Module, lane: int, advance: Signal, maximum: Signal, mode: Value
    ) -> Signal:
        """Whether a lane's difference s - m, just subtracted, is in the mode's interval."""
        p = self.parameters
        # s - m of equation (4), rounded as MD will round it, so both find the same interval.
        m.submodules[f"subtract_{lane}"] = subtract = FloatAdd(
            FloatAddParameters(stages=p.latency - 1)
        )
        key = Signal(FP16.width, name=f"key_{lane}")
        lower = Signal(FP16.width, name=f"lower_{lane}")
        upper = Signal(FP16.width, name=f"upper_{lane}")
        within = Signal(name=f"within_{lane}")
        m.d.comb += [
            subtract.enable.eq(advance),
            subtract.a.eq(self.i.payload.s[lane]),
            subtract.b.eq(maximum),
            subtract.subtract.eq(1),
            key.eq(to_key(subtract.o)),
            within.eq((key > lower) & (key <= upper)),
        ]
        # Order keys compare as unsigned integers. NaN's key is below every number's, so it is
        # the lower bound of the first interval, and NaN itself is above no lower bound.
        with m.Switch(mode):
            for number, bounds in enumerate(zip(p.tables.lower, p.tables.upper, strict=True)):
                with m.Case(number):
                    m.d.comb += [lower.eq(bounds[0]), upper.eq(bounds[1])]
            if p.intervals < 1 << MODE_BITS:
                with m.Default():
                    m.d.comb += [lower.eq(HIGHEST_KEY), upper.eq(HIGHEST_KEY)]
        return within

    def _output(
        self, m: Module, record: data.View, active: Signal, inactive: Signal, room: Signal
    ) -> None:
        """Output the counters, and push active positions into the queue."""
        p = self.parameters
        beat = Signal(range(max(2, p.beats)))
        done = Signal()
        m.d.comb += done.eq(self.counters.valid & self.counters.ready)
        with m.If(done):
            m.d.sync += beat.eq((beat + 1) & (~record.last).replicate(len(beat)))

        # Counters: + 1 for inactive positions, halved when full. Such a position's other counters
        # must be halved too, so it enters the queue as well.
        full = (1 << p.counter_bits) - 1
        counters = self.counters.payload
        halved = Signal(p.lanes)
        m.d.comb += [counters.write.eq(inactive), counters.beat.eq(beat)]
        m.d.comb += counters.last.eq(record.last)
        for lane, word in enumerate(record.g):
            increased = Signal(p.counter_bits + 1, name=f"increased_{lane}")
            m.d.comb += [
                increased.eq(word.count + inactive[lane]),
                halved[lane].eq(inactive[lane] & (increased >= full)),
                counters.g[lane].mode.eq(word.mode),
                counters.g[lane].count.eq(increased >> halved[lane]),
            ]

        # An entry of the queue, with the beat in common. The position's index is beat * lanes +
        # lane.
        #     | lane | halve | fresh | mode | count |
        number_bits = (p.lanes - 1).bit_length()
        flags = p.counter_bits + MODE_BITS
        # A beat may have no active position or only such; the queue makes dense groups of them for
        # MD.
        m.submodules.queue = queue = PackingQueue(p.queue, number_bits + flags + 2, len(beat))
        m.d.comb += [
            room.eq(queue.room),
            queue.push.eq(done),
            queue.end.eq(record.last),
            queue.mask.eq(active | halved),
            queue.common.eq(beat),
            self.o.valid.eq(queue.o.valid),
            queue.o.ready.eq(self.o.ready),
            self.o.payload.keep.eq(queue.o.payload.keep),
            self.o.payload.last.eq(queue.o.payload.last),
        ]
        for lane, word in enumerate(record.g):
            m.d.comb += queue.entries[lane].eq(
                Cat(
                    counters.g[lane].count,
                    word.mode,
                    ~word.active,
                    halved[lane],
                    Const(lane, number_bits),
                )
            )
        for number, position in enumerate(self.o.payload.positions):
            entry, beat = queue.o.payload.entries[number], queue.o.payload.common[number]
            m.d.comb += [
                Cat(position.count, position.mode).eq(entry[:flags]),
                position.fresh.eq(entry[flags]),
                position.halve.eq(entry[flags + 1]),
                position.index.eq(beat * p.lanes + entry[flags + 2 :]),
            ]
