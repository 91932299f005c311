"""A behavioural model of UniCAIM's array of ferroelectric cells, for simulation only."""

import dataclasses
import functools
import random
from collections.abc import Mapping
from statistics import NormalDist
from typing import Self

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data

from hw.component import Component
from hw.layout import FixedPoint
from hw.parameters import require
from hw.ports import Ports, wire_in
from hw.unicaim.array import (
    ArrayParameters,
    BitLines,
    UnicaimArray,
    parallel_scores,
    row_ports,
    stored_keys,
)

WINDOW_MV = 1200
"""Assumed distance of a cell's lowest and highest threshold voltage."""

FRACTION = 4
"""Fraction bits of a cell's error, which is in key levels."""


@dataclasses.dataclass(frozen=True)
class CellArrayParameters(ArrayParameters):
    """
    rows, d, key_bits, query_bits, contexts
        As in :class:`hw.unicaim.array.ArrayParameters`.
    spread_mv
        Standard deviation of the devices' threshold voltages, 0 to 200. The paper's is 54.
    seed
        Seed of the devices' errors.
    """

    spread_mv: int = 0
    seed: int = 1

    def __post_init__(self):
        super().__post_init__()
        rule = "spread_mv must be between 0 and 200"
        require(0 <= self.spread_mv <= 200, rule, self.spread_mv)

    @classmethod
    def presets(cls) -> Mapping[str, Self]:
        return {**super().presets(), "spread": cls(rows=16, d=16, query_bits=2, spread_mv=54)}

    @property
    def steps(self) -> int:
        """Steps of a discharge at most, for any number of rows: 1026 for the paper's scores."""
        return 2 * self.score_limit + 2

    @property
    def deviation(self) -> float:
        """Standard deviation of a device's error, in units of 2^-FRACTION levels."""
        return self.spread_mv * (1 << self.key_bits + FRACTION) / WINDOW_MV

    @property
    def error_limit(self) -> int:
        """Errors are cut off at six standard deviations."""
        return round(6 * self.deviation)

    @property
    def error(self) -> FixedPoint:
        """A device's error, in key levels."""
        return FixedPoint(signed(self.error_limit.bit_length() + 1), FRACTION)

    @functools.cached_property
    def errors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Errors of the two devices, read by +1 and by -1, of each cell of each row.

        One context's rows come after the other's.
        """
        draw, most = random.Random(self.seed), self.error_limit
        normal = NormalDist(0, self.deviation)

        def error() -> int:
            share = draw.random() or 0.5
            return max(-most, min(most, round(normal.inv_cdf(share))))

        rows = self.rows * self.contexts
        return tuple(tuple((error(), error()) for _ in range(self.d)) for _ in range(rows))


class CellArray(UnicaimArray):
    """FOR SIMULATION ONLY: the array as an analog circuit behaves, in steps of its discharge.

        score[r] = sum over planes p of 2^p (sum over cells c of key[r, c] digit[p, c])

    Ports, beats and handshake are as in :class:`hw.unicaim.digital_array.DigitalArray`, which
    replaces it in a design that is to be synthesized. Two things differ: how the search proceeds,
    and that scores may be wrong.

    All lines are precharged, and the current of a line falls with its row's score, so that the line
    of a higher score drops later (III-B3). Step n shows which lines are still high when those with
    scores below -limit + n have dropped: a line's discharge time is its score's distance from the
    lowest possible score, in steps. (In volts and seconds these steps are not equally long, but
    only their order decides.) Lines of equal scores drop together. The discharge stops with the
    first step in which k lines or fewer are high, as `too_many` says. So a search takes
    2 limit + 2 steps at most, for any number of rows.

    With a spread of threshold voltages each cell has two devices, each with a fixed error. Digit +1
    reads the first, -1 the second, 0 the mean of both, and the error adds to the cell's product. A
    row's sum is rounded to a score and clipped to the range of scores. Key levels are spaced evenly
    over a window of 1.2 V (the paper's text gives none).

    Latency and throughput: as DigitalArray, but for the number of steps.

    Paper: III-B2, III-B3, and III-B5 for the spread.

    Examples
    --------
    >>> from hw.unicaim.cell_array import CellArrayParameters
    >>> parameters = CellArrayParameters(rows=2, d=2, spread_mv=54, seed=1)
    >>> parameters.steps, parameters.error.width, parameters.error.fraction
    (18, 7, 4)
    >>> parameters.errors[0][0]  # of one cell's two devices, in 16ths of a key level
    (-6, 6)
    """

    summary = "Array of ferroelectric cells as a behavioural model, for simulation only"
    source = "UniCAIM, sections III-B2, III-B3 and III-B5"
    synthesizable_as = "unicaim.digital_array"

    def _scores(self, m: Module, bus: BitLines, scoring: Signal, begin: Signal) -> list:
        p = self.parameters
        rows = [CellRow(p) for _ in range(p.rows)]
        if p.spread_mv:
            for number, row in enumerate(rows):
                error = Shape.cast(p.error)
                pairs = [
                    Cat(Const(value, error) for pair in p.errors[first + number] for value in pair)
                    for first in range(0, p.rows * p.contexts, p.rows)
                ]
                m.d.comb += Value.cast(row.errors).eq(Array(pairs)[bus.context])
        return parallel_scores(m, rows, bus, begin)

    def _search(self, m: Module, scores: list, used: Signal, begin: Signal, answered: Signal):
        p = self.parameters
        lines = self.lines.payload
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


class CellRow(Component[CellArrayParameters]):
    """The cells of one row and the score that its line shows."""

    def ports(self) -> Ports:
        p = self.parameters
        pair = data.StructLayout({"plus": p.error, "minus": p.error})
        errors = (
            {
                "errors": wire_in(
                    data.ArrayLayout(pair, p.d), "Errors of the devices, with `spread_mv` only."
                )
            }
            if p.spread_mv
            else {}
        )
        return {**row_ports(p), **errors}

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

        # With errors, the sum has FRACTION more bits: | score | fraction of a level |.
        limit = p.score_limit
        most = (limit << FRACTION) + p.d * p.error_limit * ((1 << p.query_bits) - 1)
        total = Signal(range(-most, most + 1), reset_less=True)
        # A device's threshold error counts whatever the query's digit is; a digit 0 drives both
        # devices of a cell halfway, hence the mean.
        errors = [
            Mux(
                digit.on,
                Mux(digit.negative, error.minus, error.plus),
                (error.plus + error.minus) >> 1,
            )
            for error, digit in zip(self.errors, self.drive, strict=True)
        ]
        with m.If(self.plane):
            added = (sum(products) << FRACTION) + sum(errors)
            m.d.sync += total.eq(added + Mux(self.first, 0, total << 1))
        # Round to a whole score, half up, and clip.
        rounded = Signal(range(-most, most + 1))
        m.d.comb += [
            rounded.eq((total + (1 << FRACTION - 1)) >> FRACTION),
            self.score.eq(Mux(rounded > limit, limit, Mux(rounded < -limit, -limit, rounded))),
        ]
        return m
