"""A behavioural model of UniCAIM's array of ferroelectric cells, for simulation only."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data

from hw.component import Component
from hw.ports import Ports, wire_in
from hw.unicaim.array import BitLines, UnicaimArray, parallel_scores, row_ports, stored_keys
from hw.unicaim.cell_parameters import FACTOR, FRACTION, LATE_BITS, WEIGHT
from hw.unicaim.cell_parameters import CellArrayParameters as CellArrayParameters
from hw.unicaim.sar_adc import SarAdc


class CellArray(UnicaimArray):
    """FOR SIMULATION ONLY: the array as an analog circuit behaves, in steps of its discharge.

        score[r] = sum over planes p of 2^p (sum over cells c of key[r, c] digit[p, c])

    Ports, beats and handshake are as in :class:`hw.unicaim.digital_array.DigitalArray`, which
    replaces it in a design that is to be synthesized. Two things differ: how the search proceeds,
    and that scores may be wrong.

    All lines are precharged, and the current of a line falls with its row's score, so that the line
    of a higher score drops later (III-B3). The discharge stops with the first step in which k lines
    or fewer are high, as `too_many` says.

    Without `time_steps` only the order of scores counts: step n shows which lines are still high
    when those with scores below -limit + n have dropped. A search takes 2 limit + 2 steps at most,
    for any number of rows.

    With `time_steps` a step is a time, a part of what a line of score 0 takes. A line of score S
    drops at the circuit's time, about A / (limit - S), and step n shows the lines whose times are
    later than n steps; those that drop within a step are not told apart. If the first step with k
    lines or fewer is n, the search goes on to step n + n late / 1024, to the nearest, which is its
    last; step 4 time_steps is the last in any case, and lines that are high then have no order. So
    the k-th best of a row of scores takes about time_steps limit / (limit - S) + 1 steps.

    With a spread of threshold voltages each cell has two devices, each with a fixed error. Digit +1
    reads the first, -1 the second, 0 half of both, and the error adds to the cell's product: as it
    is, or with `time_steps` as the current of a device at that product depends on it. A row's sum
    is rounded to a score and clipped to the range of scores. `line_error` changes the time of each
    row by a fixed part of it, but not its score in `values`. Key levels are programmed over a
    window of 1.2 V (the paper's text gives none).

    With `calibration_bits` a row is measured after each write: a query of `query_bits` planes of
    zeros shows the sum of its devices' errors that no query changes, and a converter's code of that
    is taken off all its scores until the row is written again, also in the search, as if the line's
    detector were trimmed by it. The converter is a :class:`hw.unicaim.sar_adc.SarAdc`, a code of
    which is 2^calibration_shift scores.

    Latency and throughput: as DigitalArray, but for the number of steps, and for rows to write,
    each of which takes `write_cycles`: 1, or with calibration query_bits + calibration_bits + 3.

    Paper: III-B2, III-B3, and III-B5 for the spread.

    Examples
    --------
    >>> from hw.unicaim.cell_array import CellArrayParameters
    >>> parameters = CellArrayParameters(rows=2, d=2, spread_mv=54, seed=1)
    >>> parameters.steps, parameters.error.width, parameters.error.fraction
    (18, 7, 4)
    >>> parameters.errors[0][0]  # of one cell's two devices, in 16ths of a key level
    (-6, 6)
    >>> timed = CellArrayParameters(rows=2, d=2, time_steps=16)
    >>> timed.steps, timed.reach[14:19]  # limit is 8; a score of 0 is 128 16ths below it
    (65, [146, 136, 127, 120, 113])
    """

    summary = "Array of ferroelectric cells as a behavioural model, for simulation only"
    source = "UniCAIM, sections III-B2, III-B3 and III-B5"
    synthesizable_as = "unicaim.digital_array"

    def _scores(self, m: Module, bus: BitLines, scoring: Signal, begin: Signal) -> list:
        p = self.parameters
        rows = [CellRow(p) for _ in range(p.rows)]
        if p.calibration_bits:
            bus = self._calibrate(m, bus, scoring, rows)
        if p.spread_mv:
            for number, row in enumerate(rows):
                error = Shape.cast(p.error)
                pairs = [
                    Cat(Const(value, error) for pair in p.errors[first + number] for value in pair)
                    for first in range(0, p.rows * p.contexts, p.rows)
                ]
                m.d.comb += Value.cast(row.errors).eq(Array(pairs)[bus.context])
        return parallel_scores(m, rows, bus, begin)

    def _calibrate(self, m: Module, bus: BitLines, busy: Signal, rows: list) -> BitLines:
        """Measure each row that is written; the bit lines, with the zeros for that."""
        p = self.parameters
        m.submodules.calibrator = adc = SarAdc(p.calibrator)
        row = Signal(range(p.rows), reset_less=True)
        planes = Signal(range(p.query_bits + 1))  # of zeros, still to come
        measuring = Signal()
        shown = Array(one.score for one in rows)[row]
        m.d.comb += [
            adc.i.payload.eq(shown << p.calibrator.fraction - p.calibration_shift),
            adc.o.ready.eq(1),
        ]
        for number, one in enumerate(rows):
            stored = measuring & adc.o.valid & (row == number)
            m.d.comb += [one.measured.eq(stored), one.code.eq(adc.o.payload)]
        sampled = Signal()  # the row's score has gone to the converter
        with m.If(bus.write):
            m.d.sync += [
                row.eq(bus.beat.row),
                planes.eq(p.query_bits),
                measuring.eq(1),
                sampled.eq(0),
            ]
        with m.If(planes.any()):
            m.d.sync += planes.eq(planes - 1)
        m.d.comb += [
            busy.eq(measuring),
            adc.i.valid.eq(measuring & ~planes.any() & ~sampled),
        ]
        with m.If(adc.i.valid & adc.i.ready):
            m.d.sync += sampled.eq(1)
        with m.If(adc.o.valid):
            m.d.sync += measuring.eq(0)
        drive = Signal.like(bus.drive)
        m.d.comb += drive.eq(Mux(measuring, 0, Value.cast(bus.drive)))
        return bus._replace(
            drive=drive,
            plane=bus.plane | planes.any(),
            first=Mux(measuring, planes == p.query_bits, bus.first),
        )

    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        p = self.parameters
        lines = self.lines.payload
        if p.time_steps:
            self._timed_search(m, scores, used, begin, answered)
            return
        # Lines with scores below it have dropped; it rises by 1 per step.
        threshold = Signal(range(-p.score_limit, p.score_limit + 2), reset_less=True)
        m.d.comb += [
            lines.high.eq(Cat(score >= threshold for score in scores) & used),
            lines.stoppable.eq(1),  # at the latest when no line is high
        ]
        with m.If(begin):
            m.d.sync += threshold.eq(-p.score_limit)
        with m.If(answered):
            m.d.sync += threshold.eq(threshold + 1)

    def _timed_search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        """A search by the clock, with lines dropping at the circuit's times."""
        p = self.parameters
        lines = self.lines.payload
        far = p.reach[0]
        reach = Signal(range(far + 1), reset_less=True)
        step = Signal(range(p.steps), reset_less=True)
        end = Signal(range(2 * p.steps), reset_less=True)
        stopping = Signal(reset_less=True)  # k lines or fewer have been high
        late = Signal(range(p.late_steps(p.steps - 1) + 1))
        m.d.comb += [
            late.eq((step * p.late + (1 << LATE_BITS - 1)) >> LATE_BITS),
            lines.high.eq(Cat(self._high(m, scores, reach)) & used),
            lines.last.eq((step == p.steps - 1) | (stopping & (step == end))),
            # A stop that is late by less than half a step is not late.
            lines.stoppable.eq(late == 0),
        ]
        with m.If(begin):
            m.d.sync += [step.eq(0), reach.eq(far), stopping.eq(0)]
        with m.If(answered):
            m.d.sync += [step.eq(step + 1), reach.eq(Array(p.reach)[step + 1])]
            with m.If(~self.too_many.payload & ~stopping):
                m.d.sync += [stopping.eq(1), end.eq(step + late)]

    def _high(self, m: Module, scores: list, reach: Signal) -> list[Value]:
        """Whether each line is high: its distance from the highest score is within `reach`."""
        p, far = self.parameters, self.parameters.reach[0]
        if not p.line_error:  # distances are whole scores
            return [p.score_limit - score <= reach[FRACTION:] for score in scores]
        highs = []
        for number, (score, factor) in enumerate(zip(scores, p.factors, strict=True)):
            distance = Signal(range((far >> FRACTION) * factor + 1), name=f"distance_{number}")
            rounded = (distance + (1 << FACTOR - FRACTION - 1)) >> FACTOR - FRACTION
            m.d.comb += distance.eq((p.score_limit - score) * factor)
            # The lowest score is the farthest, whatever the line's error.
            highs.append((rounded <= reach) | (reach == far))
        return highs


class CellRow(Component[CellArrayParameters]):
    """The cells of one row and the score that its line shows."""

    def ports(self) -> Ports:
        p = self.parameters
        pair = data.StructLayout({"plus": p.error, "minus": p.error})
        found = dict(row_ports(p))
        if p.spread_mv:
            found["errors"] = wire_in(data.ArrayLayout(pair, p.d), "Errors of the devices.")
        if p.calibration_bits:
            found["measured"] = wire_in(1, "Take `code` off scores from now on.")
            found["code"] = wire_in(
                signed(p.calibration_bits), "Converted score of a query of zeros."
            )
        return found

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        keys = data.View(self.levels.shape(), stored_keys(m, self, p.contexts))
        products = [
            Mux(digit.on, Mux(digit.negative, -key, key), 0)
            for key, digit in zip(keys, self.drive, strict=True)
        ]
        if not p.spread_mv:
            score = Signal(p.score, reset_less=True)
            # Planes arrive with the highest weight first, so doubling the score before each
            # addition weighs them (UniCAIM, section III-B2, in time instead of in bit lines).
            with m.If(self.plane):
                m.d.sync += score.eq(sum(products) + Mux(self.first, 0, score << 1))
            m.d.comb += self.score.eq(score)
            return m

        # With errors, the sum has more bits: | score | fraction of a level |.
        limit, fraction = p.score_limit, FRACTION + (WEIGHT if p.time_steps else 0)
        error = p.error_limit * max(p.weights) >> FRACTION + WEIGHT - fraction
        most = (limit << fraction) + p.d * error * ((1 << p.query_bits) - 1)
        total = Signal(range(-most, most + 1), reset_less=True)
        # A device's threshold error counts whatever the query's digit is; a digit 0 drives both
        # devices of a cell halfway, hence the mean.
        errors = [
            Mux(digit.on, Mux(digit.negative, minus, plus), (plus + minus) >> 1)
            for (plus, minus), digit in zip(self._weighted(m, keys), self.drive, strict=True)
        ]
        with m.If(self.plane):
            added = (sum(products) << fraction) + sum(errors)
            m.d.sync += total.eq(added + Mux(self.first, 0, total << 1))
        # Round to a whole score, half up, less the row's own error, and clip.
        widest = 2 * most + (1 << p.calibration_bits + p.calibration_shift)
        rounded = Signal(range(-widest, widest + 1))
        m.d.comb += [
            rounded.eq(((total + (1 << fraction - 1)) >> fraction) - self._own(m)),
            self.score.eq(Mux(rounded > limit, limit, Mux(rounded < -limit, -limit, rounded))),
        ]
        return m

    def _own(self, m: Module) -> Value:
        """The row's own error in scores, as measured; 0 while it is."""
        p = self.parameters
        if not p.calibration_bits:
            return Const(0)
        codes = []
        for number in range(p.contexts):
            code = Signal(signed(p.calibration_bits), name=f"code_{number}", reset_less=True)
            with m.If(self.context == number):
                with m.If(self.write):
                    m.d.sync += code.eq(0)
                with m.If(self.measured):
                    m.d.sync += code.eq(self.code)
            codes.append(code)
        return Array(codes)[self.context] << p.calibration_shift

    def _weighted(self, m: Module, keys: Any) -> list[tuple[Value, Value]]:
        """Errors of each cell's two devices, as they count at its key."""
        p = self.parameters
        if not p.time_steps:
            return [(error.plus, error.minus) for error in self.errors]
        # Digit +1 reads the first device at the product of the key, -1 the second at its negative.
        rising, falling = Array(p.weights), Array(p.weights[::-1])
        found: list[tuple[Value, Value]] = []
        for number, (key, error) in enumerate(zip(keys, self.errors, strict=True)):
            pair = []
            for device, table in (("plus", rising), ("minus", falling)):
                most = p.error_limit * max(p.weights)
                weighted = Signal(range(-most, most + 1), name=f"{device}_{number}")
                at = Signal(range(len(p.weights)), name=f"{device}_at_{number}")
                m.d.comb += [
                    at.eq(key + (1 << p.key_bits - 1)),
                    weighted.eq(error[device] * table[at]),
                ]
                pair.append(weighted)
            found.append((pair[0], pair[1]))
        return found
