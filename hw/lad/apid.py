"""Which positions have left their mode's interval (LAD, section IV-B, part 3)."""

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16
from hw.arith.lines import nearest
from hw.arith.order_key import NAN_KEY, to_key
from hw.component import Component
from hw.lad.packing_queue import PackingQueue, PackingQueueParameters
from hw.parameters import Parameters, require

MODE_BITS = 4
NEVER = (1 << FP16.width) - 1
"""A lower bound that no number exceeds: that of modes that are no interval's."""


@dataclasses.dataclass(frozen=True)
class ApidParameters(Parameters):
    """
    lanes
        Positions in a beat.
    positions
        Most positions of a step.
    depth
        Positions in the queue of active ones, a power of two.
    outputs
        Active positions given out at once, a power of two: as many as MD takes.
    window
        The latest positions, always active.
    bounds
        Bounds between intervals, from the lowest: eighths below 0 with ``_`` between them. The
        default is the fit of ``golden.lad``: -10, -6.5, -4.5, -3.25, -2.25, -1.375, -0.625.
    counter_bits
        Of a mode's counter.
    """

    lanes: int = 12
    positions: int = 4096
    depth: int = 64
    outputs: int = 2
    window: int = 16
    bounds: str = "80_52_36_26_18_11_5"
    counter_bits: int = 12

    def __post_init__(self):
        require(1 <= self.lanes <= 64, "lanes must be between 1 and 64", self.lanes)
        fits = 1 <= self.positions <= 1 << 16
        require(fits, "positions must be between 1 and 65536", self.positions)
        require(self.window >= 1, "window must be at least 1", self.window)
        fits = 2 <= self.counter_bits <= 16
        require(fits, "counter_bits must be between 2 and 16", self.counter_bits)
        parts = self.bounds.split("_")
        numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
        falling = all(high > low for high, low in zip([2048, *numbers], [*numbers, 0], strict=True))
        rule = "bounds must be 1 to 15 falling numbers between 2047 and 1 with _ between them"
        require(len(numbers) == len(parts) < 1 << MODE_BITS and falling, rule, self.bounds)
        _ = self.queue  # checks the rest

    @classmethod
    def presets(cls) -> dict[str, "ApidParameters"]:
        return {
            "small": cls(
                lanes=4, positions=60, depth=16, window=4, bounds="80_48_24_8", counter_bits=4
            ),
            "single": cls(lanes=1, positions=60, depth=8),
            "default": cls(),
            "paper": cls(depth=1024),
        }

    @property
    def queue(self) -> PackingQueueParameters:
        """That of the active positions."""
        return PackingQueueParameters(self.lanes, self.outputs, self.depth)

    @property
    def bound_values(self) -> tuple[float, ...]:
        """The bounds as numbers, rising."""
        return tuple(-int(part) / 8 for part in self.bounds.split("_"))

    @property
    def intervals(self) -> int:
        """I: interval i is above bound i - 1 and not above bound i."""
        return len(self.bound_values) + 1

    @property
    def beats(self) -> int:
        """Beats of the longest step."""
        return self.beats_of(self.positions)

    def beats_of(self, n: int) -> int:
        """Beats of a step of n positions."""
        return -(-n // self.lanes)

    @property
    def latency(self) -> int:
        """Cycles from a beat to its counters."""
        return 3

    @property
    def queue_latency(self) -> int:
        """Cycles from a beat to the group of active positions that it completes."""
        return self.latency + 2

    def cycles(self, active: Sequence[Sequence[int]]) -> int:
        """Cycles from the first job offered to the last output taken, without stalls.

        For steps with so many active positions in each beat; beats and jobs are there in time.
        """
        queue, used, cycle, given = self.queue, 0, self.latency, 0
        for step in active:
            for number, count in enumerate(step):
                cycle += 1
                while used > queue.most:
                    used -= self.outputs
                    cycle += 1
                if used >= self.outputs:
                    used -= self.outputs
                used += count
                if number == len(step) - 1:
                    used += -used % self.outputs
            given = cycle + 1 + used // self.outputs
        return max(cycle, given) + 1

    @property
    def job_layout(self) -> data.StructLayout:
        """A step: ``m`` (FP16) the maximum; ``n`` positions, 1 or more."""
        return data.StructLayout({"m": FP16.width, "n": range(self.positions + 1)})

    @property
    def word_layout(self) -> data.StructLayout:
        """A position's word of G: ``count`` of its ``mode``."""
        return data.StructLayout({"count": self.counter_bits, "mode": MODE_BITS})

    @property
    def input_layout(self) -> data.StructLayout:
        """``s`` (FP16) and ``g`` of positions in order; a step's last beat is filled up."""
        return data.StructLayout(
            {
                "s": data.ArrayLayout(FP16.width, self.lanes),
                "g": data.ArrayLayout(self.word_layout, self.lanes),
            }
        )

    @property
    def counters_layout(self) -> data.StructLayout:
        """A beat's words of G: ``write`` those of inactive positions, which have changed.

        ``halve``: the position's other counters are to be halved, as this one was. ``beat`` number
        in the step; ``last`` of it.
        """
        return data.StructLayout(
            {
                "g": data.ArrayLayout(self.word_layout, self.lanes),
                "write": self.lanes,
                "halve": self.lanes,
                "beat": range(max(2, self.beats)),
                "last": 1,
            }
        )

    @property
    def active_layout(self) -> data.StructLayout:
        """Active positions, in ascending order.

        ``index``, ``mode`` (0 in the window) and ``count`` of each; ``keep`` which there are: all
        but in a step's ``last`` group. What there is not is zero.
        """
        each = {
            "index": range(max(2, self.positions)),
            "mode": MODE_BITS,
            "count": self.counter_bits,
        }
        group = data.ArrayLayout(data.StructLayout(each), self.outputs)
        return data.StructLayout({"positions": group, "keep": self.outputs, "last": 1})


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
        taken, head = self._take(m, advance)
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
            within = self._within(m, lane, advance, compared.g[lane].mode)
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

    def _take(self, m: Module, advance: Signal) -> tuple[Signal, data.View]:
        """Whether a beat is taken, and what goes along with it."""
        p = self._parameters
        busy = Signal()
        left = Signal(range(p.positions + 1), reset_less=True)  # positions not yet taken
        taken, final = Signal(), Signal()
        self._m = Signal(FP16.width, name="m", reset_less=True)
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
                self._m.eq(self.job.payload.m),
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
        return taken, head

    def _within(self, m: Module, lane: int, advance: Signal, mode: Value) -> Signal:
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
            subtract.b.eq(self._m),
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
