"""Softmax of rows of FP16 scores (KLLM, section IV-A)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.bits.leading_zeros import leading_one, shift_to_top
from hw.arith.bits.order_key import EMPTY_KEY, from_key, is_nan, to_key
from hw.arith.float_format import FP16
from hw.arith.float_to_fixed import FloatToFixed
from hw.arith.wide_exponent import EXPONENT, INVERSE_WIDTH, SIGNIFICAND, inverse
from hw.attention.delay import delay_line
from hw.component import Component
from hw.kllm.softmax_lane import FIXED, TERM_WIDTH, ExponentialLane, ProductLane
from hw.kllm.softmax_parameters import ROWS, SUM_LATENCY, SoftmaxParameters
from hw.ports import Ports, stream_in, stream_out
from hw.stream.beat_buffer import BeatBuffer
from hw.stream.credit_counter import CreditCounter, CreditCounterParameters
from hw.stream.queue import Queue, QueueParameters

MINUS_INFINITY = 1 << FP16.width - 1 | FP16.infinity
INFINITY_KEY = 1 << FP16.width - 1 | FP16.infinity  # order key of plus infinity


class Softmax(Component[SoftmaxParameters]):
    """p = e^(x - max x) / sum of e^(x - max x) over a row of scores, `lanes` of them a cycle.

    ::

        i ─┬────────────→ scores ─→ e^(x - max) ─┬→ terms ──────────→ × ─→ o
           └→ maximum ──────────────────┘        └→ sum ─→ 1 / sum ───┘

    Three passes, each a beat per cycle: the scores are stored while their maximum is searched, the
    terms are stored while they are summed, and the terms are multiplied by the sum's reciprocal.
    Three rows are processed at once, one in each pass. Each buffer holds little more than one row:
    a row is written where the row before has been read.

    The difference of a score from the maximum is exact to 2^-15, a term has a significand of 15
    bits and an exponent, the sum is an integer and independent of the order, and the product is
    rounded once. Accuracy: a probability, subnormal ones included, is within 1.7 units in the last
    place of the softmax of the scores by the bounds of all steps; real and random rows are below
    1.1.

    Scores that are not kept are replaced by minus infinity, whose probability is 0. Errors, flagged
    on all beats of a row: with a NaN or plus infinity among its kept scores, a row's probabilities
    are the quiet NaN; where every score is minus infinity, they are 0. A row of more than `length`
    scores is cut there: the rest is accepted and dropped, the row is output as NaNs, with ``last``
    on its last beat.

    Latency: a row's first probabilities are offered 16 cycles after its last scores were accepted
    if it has one beat, and a cycle later for each further beat. Throughput: one beat per cycle,
    from row to row without a gap where rows have four beats or more. Short rows after long ones
    wait: there is room for four before each pass.

    Handshake: ``o.valid`` and ``o.payload`` are registers; ``i.ready`` depends on registers only.
    Overflow: none. The buffers have a synchronous read port each.

    Examples
    --------
    >>> from hw.kllm.softmax_parameters import SoftmaxParameters
    >>> parameters = SoftmaxParameters(lanes=8, length=1024)
    >>> parameters.beats, parameters.latency
    (128, 16)
    >>> parameters.cycles([128] * 9)  # nine rows of 1024 scores
    1422
    """

    summary = "Softmax of rows of FP16 scores, several a cycle"
    source = "KLLM, section IV-A"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Scores."),
            "o": stream_out(p.output_layout, "Probabilities."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        scores = BeatBuffer(m, "score", p.depth, p.lanes * (FP16.width + 1))
        terms = BeatBuffer(m, "term", p.depth, p.lanes * (TERM_WIDTH + 1))
        row = {"beats": range(p.beats + 1), "undefined": 1, "empty": 1}
        maximum = data.StructLayout({**row, "highest": FIXED.shape})
        total = data.StructLayout({**row, "inverse": INVERSE_WIDTH, "exponent": EXPONENT})
        m.submodules.maxima = maxima = Queue(QueueParameters(maximum.size, ROWS), shape=maximum)
        m.submodules.sums = sums = Queue(QueueParameters(total.size, ROWS), shape=total)
        # Between two queues nothing stalls: a row enters a pass only with a credit for its result.
        credits = CreditCounterParameters(ROWS)
        m.submodules.maxima_credits = maxima_credits = CreditCounter(credits)
        m.submodules.sums_credits = sums_credits = CreditCounter(credits)

        # Three passes over a row: its maximum; exponentials and their sum; the products with its
        # reciprocal. Each pass works on another row at the same time.
        row_end = self._store(m, scores, maxima_credits.available, maxima.i)
        m.d.comb += maxima_credits.take.eq(row_end)
        finished = self._exponentials(m, scores, maxima.o, terms, sums_credits.available, sums.i)
        m.d.comb += [maxima_credits.give.eq(finished), sums_credits.take.eq(finished)]
        m.d.comb += sums_credits.give.eq(self._products(m, terms, sums.o))
        return m

    def _store(self, m: Module, scores: BeatBuffer, available, maxima) -> Signal:
        """First pass: store scores, find the maximum; returns whether a row ends."""
        p, i = self.parameters, self.i
        beat = Signal(range(p.beats))
        dropping = Signal()  # drops the rest of a row that is too long
        fire = Signal()
        full = Signal()
        row_end = Signal()
        m.d.comb += [
            i.ready.eq(dropping | (available & scores.room)),
            fire.eq(i.valid & i.ready & ~dropping),
            full.eq(beat == p.beats - 1),
            row_end.eq(fire & (i.payload.last | full)),
        ]
        # A row that is too long ends with its last stored beat; the rest is dropped.
        # Beats are counted, so that the later passes know how many to read.
        with m.If(fire):
            m.d.sync += beat.eq(Mux(row_end, 0, beat + 1))
            m.d.sync += dropping.eq(full & ~i.payload.last)
        with m.Elif(i.valid & i.payload.last):
            m.d.sync += dropping.eq(0)

        kept = [Signal(FP16.width, name=f"kept_{n}") for n in range(p.lanes)]
        for value, score, keep in zip(kept, i.payload.scores, i.payload.keep, strict=True):
            # A lane that is not kept must not win, and its exponential is 0.
            m.d.comb += value.eq(Mux(keep, score, MINUS_INFINITY))
        scores.write(m, fire, Cat(*kept, i.payload.keep))

        # One cycle for the beat's maximum, one for the row's, one for its fixed-point form.
        beat_key, row_key, key = (
            Signal(FP16.width, name=name) for name in ("beat_key", "row_key", "key")
        )
        valid = Signal()
        last = Signal()
        done = Signal()
        bad = Signal()
        row_bad = Signal()
        undefined = Signal()
        beats, row_beats = (Signal(range(p.beats + 1), name=n) for n in ("beats", "row_beats"))
        # Order keys compare as unsigned integers, NaN below all numbers.
        keys = [Signal(FP16.width, name=f"key_{n}") for n in range(p.lanes)]
        m.d.comb += [leaf.eq(to_key(value)) for leaf, value in zip(keys, kept, strict=True)]
        best = _largest(m, keys)
        m.d.sync += [
            valid.eq(fire),
            last.eq(row_end),
            beats.eq(beat + 1),
            beat_key.eq(best),
            bad.eq(Cat(is_nan(value) for value in kept).any() | full & ~i.payload.last),
        ]
        higher = Signal(FP16.width)
        m.d.comb += higher.eq(Mux(beat_key > row_key, beat_key, row_key))
        m.d.sync += done.eq(valid & last)
        with m.If(valid):
            m.d.sync += [
                row_key.eq(Mux(last, EMPTY_KEY, higher)),
                row_bad.eq(~last & (row_bad | bad)),
                key.eq(higher),
                undefined.eq(row_bad | bad),
                row_beats.eq(beats),
            ]
        m.submodules.highest = to_fixed = FloatToFixed(FIXED)
        m.d.comb += to_fixed.a.eq(from_key(key))
        found = maxima.payload
        m.d.sync += [
            maxima.valid.eq(done),
            # The differences to the maximum are taken in fixed point, where they are exact.
            found.highest.eq(to_fixed.o),
            found.undefined.eq(undefined | (key == INFINITY_KEY)),
            # The order key of minus infinity has a zero exponent field.
            found.empty.eq(~key[FP16.mantissa :].any()),
            found.beats.eq(row_beats),
        ]
        return row_end

    def _exponentials(self, m: Module, scores, maxima, terms, available, sums) -> Signal:
        """Second pass: terms, their sum and its reciprocal; returns whether a row's reads end."""
        p = self.parameters
        beat = Signal(range(1, p.beats + 1), init=1)
        read = Signal()
        last = Signal()
        finished = Signal()
        row = maxima.payload
        m.d.comb += [
            read.eq(maxima.valid & available & terms.room),
            last.eq(beat == row.beats),
            finished.eq(read & last),
            maxima.ready.eq(finished),
        ]
        # A beat is read when its term has room, so that nothing in this pass stalls.
        with m.If(read):
            m.d.sync += beat.eq(Mux(last, 1, beat + 1))
        # The term's place is reserved when its score is read, because it arrives some cycles later.
        terms.reserve(m, read)
        word = scores.read(m, read)
        highest = Signal(FIXED.shape, reset_less=True)
        m.d.sync += highest.eq(row.highest)
        lanes = []
        for n in range(p.lanes):
            m.submodules[f"exponential_{n}"] = lane = ExponentialLane()
            m.d.comb += [
                lane.score.eq(word.word_select(n, FP16.width)),
                lane.highest.eq(highest),
            ]
            lanes.append(lane.term)
        valid = delay_line(m, "read", read, 4)
        keep = delay_line(m, "keep", word[p.lanes * FP16.width :], 3)[-1]
        terms.write(m, valid[-1], Cat(*lanes, keep), reserved=True)

        # Fixed-point terms, added for the beat and then for the row:
        #
        #     | 1 | digits | 1 | 0…0 |  >> shift      sum_fraction bits
        places, width = p.sum_fraction, p.sum_fraction + p.sum_integer
        addends = []
        for n, term in enumerate(lanes):
            addends.append(Signal(places, name=f"addend_{n}"))
            digits = Cat(Const(0, places - SIGNIFICAND), 1, term.digits, 1)
            m.d.comb += addends[-1].eq(digits >> term.shift)
        beat_sum = Signal(places + (p.lanes - 1).bit_length(), reset_less=True)
        m.d.sync += beat_sum.eq(sum(addends[1:], addends[0]))
        row_sum = Signal(width, reset_less=True)
        first = Signal(init=1)
        adding = delay_line(m, "adding", read, 5)[-1]
        ending = delay_line(m, "ending", finished, 5)[-1]
        with m.If(adding):
            m.d.sync += [row_sum.eq(Mux(first, 0, row_sum) + beat_sum), first.eq(ending)]

        # The sum is at least 1/2, so its leading one is among the top sum_integer + 1 bits.
        leading = leading_one(m, row_sum[places - 1 :])
        top = shift_to_top(m, row_sum, leading)
        fraction = Signal(12, reset_less=True)
        exponent = Signal(EXPONENT, reset_less=True)
        zeros = ~leading
        m.d.sync += [fraction.eq(top[width - 13 : -1]), exponent.eq(p.sum_integer - 1 - zeros)]
        # The row's number of beats and flags accompany the sum.
        out = sums.payload
        described = Cat(row.beats, row.undefined, row.empty)
        *_, flags = delay_line(m, "row", described, SUM_LATENCY - 1)
        m.d.sync += [out.inverse.eq(inverse(m, fraction)), out.exponent.eq(exponent)]
        m.d.comb += [
            Cat(out.beats, out.undefined, out.empty).eq(flags),
            sums.valid.eq(delay_line(m, "finished", finished, SUM_LATENCY - 1)[-1]),
        ]
        return finished

    def _products(self, m: Module, terms, sums) -> Signal:
        """Third pass: terms times the reciprocal; returns whether a row's reads end."""
        p, o = self.parameters, self.o
        beat = Signal(range(1, p.beats + 1), init=1)
        enable = Signal()
        read = Signal()
        last = Signal()
        finished = Signal()
        row = sums.payload
        m.d.comb += [
            enable.eq(~o.valid | o.ready),
            read.eq(sums.valid & enable),
            last.eq(beat == row.beats),
            finished.eq(read & last),
            sums.ready.eq(finished),
        ]
        with m.If(read):
            m.d.sync += beat.eq(Mux(last, 1, beat + 1))
        word = terms.read(m, read)
        valid = delay_line(m, "reading", read, 2, enable=enable)
        inverse_sum = Cat(row.inverse, row.exponent)
        scale = delay_line(m, "scale", inverse_sum, 1, enable=enable)[-1]
        keep = delay_line(m, "kept", word[p.lanes * TERM_WIDTH :], 1, enable=enable)[-1]
        ends = delay_line(m, "flags", Cat(row.undefined, row.empty, last), 2, enable=enable)[-1]
        undefined, empty, ending = ends
        for n in range(p.lanes):
            m.submodules[f"product_{n}"] = lane = ProductLane()
            m.d.comb += [
                lane.enable.eq(enable),
                lane.term.eq(word.word_select(n, TERM_WIDTH)),
                Cat(lane.inverse, lane.exponent).eq(scale),
                lane.empty.eq(empty),
                lane.undefined.eq(undefined),
                o.payload.probabilities[n].eq(lane.o),
            ]
        with m.If(enable):
            m.d.sync += [
                o.valid.eq(valid[-1]),
                o.payload.keep.eq(keep),
                o.payload.last.eq(ending),
                o.payload.invalid.eq(undefined | empty),
            ]
        return finished


def _largest(m: Module, keys: list) -> Signal:
    """The largest of the keys, by a tree of comparisons."""
    level = 0
    while len(keys) > 1:
        pairs = []
        for n in range(0, len(keys) - 1, 2):
            pairs.append(Signal(FP16.width, name=f"larger_{level}_{n}"))
            m.d.comb += pairs[-1].eq(Mux(keys[n] > keys[n + 1], keys[n], keys[n + 1]))
        keys = pairs + keys[len(keys) & ~1 :]
        level += 1
    return keys[0]
