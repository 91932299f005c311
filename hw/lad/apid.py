"""Which positions have left their mode's interval (LAD, section IV-B, part 3)."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16
from hw.arith.lines import nearest
from hw.arith.order_key import NAN_KEY, to_key
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS, ApidParameters
from hw.lad.packing_queue import PackingQueue

NEVER = (1 << FP16.width) - 1
"""A lower bound that no number exceeds: that of modes that are no interval's."""


class Apid(Component):
    """Active position identification. Position i of n is active unless

        lower[mode[i]] < s[i] - m <= upper[mode[i]]    and    i < n - window

    ::

        s ─→ - m ─→ compare with lower[mode], upper[mode] ─┬─→ active ──→ queue ─→ o
        g ─→ ─────────────────────────────────────────────┴─→ count + 1 ───────→ counters

    A step begins with a `job`; then come the beats of its n positions, oldest first. Every beat
    gives one of `counters`, in which those of its inactive positions' modes are increased. One
    that becomes full, 2^bits - 1, is halved, rounded down, and the position's others are to be, so
    that their order stays. The active ones go into the queue with their word of G. The latest
    `window` are always active, with mode 0, whatever their score and word; so every step has one.

    The difference is rounded to FP16, as MD rounds it. An interval includes its upper bound and not
    its lower one; the first one reaches to -inf, the last one, which begins below 0, serves all
    above. A difference that is NaN is in no interval, and a mode from I on is none: the position is
    active. In the paper a score on the lower bound is inactive, which MD would contradict.

    Latency: 3 cycles from a beat to its counters, 5 to the group of active positions that it
    completes. Throughput: a beat a cycle while the queue has room for `lanes` + `outputs` - 1
    entries; else beats wait. A group a cycle leaves the queue. A step's job is taken with the last
    beat of the one before, so steps follow each other without a gap.

    Handshake: ``i.ready`` follows ``counters.ready``, and ``job.ready`` also ``i.valid``,
    combinationally. ``counters.valid`` is low while the queue has no room, so a beat's counters are
    not given before its active positions have a place. All outputs depend on registers only.
    Overflow: none.

    Bounds are constants of the generator, chosen by the modes of all lanes alike.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
        Steps.
    i : :py:`In(stream.Signature(parameters.input_layout))`
        Scores and words of G.
    counters : :py:`Out(stream.Signature(parameters.counters_layout))`
        Words of G.
    o : :py:`Out(stream.Signature(parameters.active_layout))`
        Active positions.
    """

    summary = "Positions that have left their mode's interval, and the others' counters"
    source = "LAD, section IV-B"

    def __init__(self, parameters: ApidParameters):
        self._parameters = p = parameters
        super().__init__(
            {
                "job": In(stream.Signature(p.job_layout)),
                "i": In(stream.Signature(p.input_layout)),
                "counters": Out(stream.Signature(p.counters_layout)),
                "o": Out(stream.Signature(p.active_layout)),
            }
        )

    @property
    def parameters(self) -> ApidParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        room = Signal()
        advance = Signal()
        valid = Signal(p.latency)
        taken, head, maximum = self._take(m, advance)
        m.d.comb += [
            self.counters.valid.eq(valid[-1] & room),
            advance.eq(~valid[-1] | (room & self.counters.ready)),
        ]
        with m.If(advance):
            m.d.sync += valid.eq(Cat(taken, valid[:-1]))

        ranks = [head]
        for rank in range(p.latency):
            register = Signal(head.shape(), name=f"rank_{rank}", reset_less=True)
            with m.If(advance):
                m.d.sync += register.eq(ranks[-1])
            ranks.append(register)
        # Where the difference is known, what a lane is to become is.
        compared, decided = ranks[-2:]
        active, inactive = Signal(p.lanes), Signal(p.lanes)
        for lane in range(p.lanes):
            within = self._within(m, lane, advance, maximum, compared.g[lane].mode)
            m.d.comb += [
                inactive[lane].eq(compared.older[lane] & within),
                active[lane].eq(compared.there[lane] & ~inactive[lane]),
            ]
        was_active, was_inactive = (
            Signal(p.lanes, name=name, reset_less=True) for name in ("was_active", "was_inactive")
        )
        with m.If(advance):
            m.d.sync += [was_active.eq(active), was_inactive.eq(inactive)]
        self._put(m, decided, was_active, was_inactive, room)
        return m

    def _take(self, m: Module, advance: Signal) -> tuple[Signal, data.View, Signal]:
        """Whether a beat is taken, what goes along with it, and its step's maximum."""
        p = self._parameters
        busy = Signal()
        left = Signal(range(p.positions + 1), reset_less=True)  # positions not yet taken
        taken, final = Signal(), Signal()
        maximum = Signal(FP16.width, reset_less=True)
        m.d.comb += [
            self.i.ready.eq(busy & advance),
            taken.eq(self.i.valid & self.i.ready),
            final.eq(left <= p.lanes),
            self.job.ready.eq(~busy | (taken & final)),
        ]
        with m.If(self.job.ready):
            m.d.sync += [
                busy.eq(self.job.valid),
                left.eq(self.job.payload.n),
                maximum.eq(self.job.payload.m),
            ]
        with m.Elif(taken):
            m.d.sync += left.eq(left - p.lanes)
        head = Signal(
            data.StructLayout(
                {
                    "g": data.ArrayLayout(p.word_layout, p.lanes),
                    "there": p.lanes,  # in the step
                    "older": p.lanes,  # than the window
                    "last": 1,
                }
            )
        )
        m.d.comb += head.last.eq(final)
        for lane, word in enumerate(self.i.payload.g):
            m.d.comb += [
                head.there[lane].eq(left > lane),
                head.older[lane].eq(left > lane + p.window),
                head.g[lane].count.eq(word.count),
                head.g[lane].mode.eq(word.mode & head.older[lane].replicate(MODE_BITS)),
            ]
        return taken, head, maximum

    def _within(
        self, m: Module, lane: int, advance: Signal, maximum: Signal, mode: Value
    ) -> Signal:
        """Whether the difference that has been taken lies in the mode's interval."""
        p = self._parameters
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
        # Keys: below every number, NaN's; above, the highest.
        inner = [_key(bound) for bound in p.bound_values]
        with m.Switch(mode):
            for number, bounds in enumerate(zip([NAN_KEY, *inner], [*inner, NEVER], strict=True)):
                with m.Case(number):
                    m.d.comb += [lower.eq(bounds[0]), upper.eq(bounds[1])]
            if p.intervals < 1 << MODE_BITS:
                with m.Default():
                    m.d.comb += [lower.eq(NEVER), upper.eq(NEVER)]
        return within

    def _put(
        self, m: Module, rank: data.View, active: Signal, inactive: Signal, room: Signal
    ) -> None:
        """Counters out, active positions into the queue."""
        p = self._parameters
        beat = Signal(range(max(2, p.beats)))
        done = Signal()
        m.d.comb += done.eq(self.counters.valid & self.counters.ready)
        with m.If(done):
            m.d.sync += beat.eq((beat + 1) & (~rank.last).replicate(len(beat)))

        full = (1 << p.counter_bits) - 1
        counters = self.counters.payload
        m.d.comb += [counters.write.eq(inactive), counters.beat.eq(beat)]
        m.d.comb += counters.last.eq(rank.last)
        for lane, word in enumerate(rank.g):
            increased = Signal(p.counter_bits + 1, name=f"increased_{lane}")
            halve = Signal(name=f"halve_{lane}")
            m.d.comb += [
                increased.eq(word.count + inactive[lane]),
                halve.eq(inactive[lane] & (increased >= full)),
                counters.halve[lane].eq(halve),
                counters.g[lane].mode.eq(word.mode),
                counters.g[lane].count.eq(increased >> halve),
            ]

        number_bits = (p.lanes - 1).bit_length()
        word_bits = p.word_layout.size
        m.submodules.queue = queue = PackingQueue(p.queue, number_bits + word_bits, len(beat))
        m.d.comb += [
            room.eq(queue.room),
            queue.push.eq(done),
            queue.end.eq(rank.last),
            queue.mask.eq(active),
            queue.common.eq(beat),
            self.o.valid.eq(queue.o.valid),
            queue.o.ready.eq(self.o.ready),
            self.o.payload.keep.eq(queue.o.payload.keep),
            self.o.payload.last.eq(queue.o.payload.last),
        ]
        for lane, word in enumerate(rank.g):
            m.d.comb += queue.entries[lane].eq(Cat(word, Const(lane, number_bits)))
        for place, position in enumerate(self.o.payload.positions):
            entry, beat = queue.o.payload.entries[place], queue.o.payload.common[place]
            m.d.comb += [
                Cat(position.count, position.mode).eq(entry[:word_bits]),
                position.index.eq(beat * p.lanes + entry[word_bits:]),
            ]


def _key(number: float) -> int:
    """The order key of a negative number."""
    return (1 << FP16.width) - 1 - nearest(number, FP16)
