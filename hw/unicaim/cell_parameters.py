"""Parameters of UniCAIM's array of ferroelectric cells."""

import dataclasses
import functools
import random
from collections.abc import Mapping
from statistics import NormalDist
from typing import Self

from amaranth.hdl import signed

from hw.layout import FixedPoint
from hw.parameters import require
from hw.unicaim import line_times
from hw.unicaim.array import ArrayParameters
from hw.unicaim.sar_adc import SarAdcParameters

WINDOW_MV = 1200
"""Assumed distance of a cell's lowest and highest threshold voltage."""

FRACTION = 4
"""Fraction bits of a cell's error in key levels, and of a line's distance in scores."""

WEIGHT = 4
"""Fraction bits of what a device's error weighs."""

FACTOR = 12
"""Fraction bits of a line's factor."""

SLOWEST = 4
"""When a search ends at the latest, in times of a line of score 0."""

LATE_BITS = 10
"""A late stop and lines' errors are in 2^-LATE_BITS of a time."""


@dataclasses.dataclass(frozen=True)
class CellArrayParameters(ArrayParameters):
    """
    rows, d, key_bits, query_bits, contexts
        As in :class:`hw.unicaim.array.ArrayParameters`.
    spread_mv
        Standard deviation of the devices' threshold voltages, 0 to 200. The paper's is 54.
    seed
        Seed of the devices' errors.
    time_steps
        Steps of the clock in which the line of a score of 0 drops, 16 to 4096, times being the
        circuit's. 0: a step for each score, without a circuit.
    late
        Part of a search's time by which its stop is late, in 1024ths, 0 to 1024.
    line_error
        Standard deviation of the lines' times in 1024ths, 0 to 100: of detectors, about 2 for each
        mV, and of capacitances, about 10 for each percent.
    calibration_bits
        Bits of the converter that measures each row after it is written, 2 to 24; 0 for none.
    """

    spread_mv: int = 0
    seed: int = 1
    time_steps: int = 0
    late: int = 0
    line_error: int = 0
    calibration_bits: int = 0

    def __post_init__(self):
        super().__post_init__()
        rule = "spread_mv must be between 0 and 200"
        require(0 <= self.spread_mv <= 200, rule, self.spread_mv)
        rule = "time_steps must be 0 or between 16 and 4096"
        require(self.time_steps in (0, *range(16, 4097)), rule, self.time_steps)
        for name, most in (("late", 1024), ("line_error", 100)):
            value = getattr(self, name)
            require(0 <= value <= most, f"{name} must be between 0 and {most}", value)
            rule = f"{name} must be 0 without time_steps"
            require(value == 0 or self.time_steps > 0, rule, value)
        bits = self.calibration_bits
        rule = "calibration_bits must be 0 or between 2 and 24"
        require(bits == 0 or 2 <= bits <= 24, rule, bits)
        rule = "calibration_bits must be 0 without spread_mv"
        require(bits == 0 or self.spread_mv > 0, rule, bits)
        least = self.score.width - 8  # of the converter's fraction bits
        rule = f"calibration_bits must be at least {least}, 8 less than a score has"
        require(bits == 0 or bits >= least, rule, bits)

    @classmethod
    def presets(cls) -> Mapping[str, Self]:
        spread = cls(rows=16, d=16, query_bits=2, spread_mv=54)
        timed = dataclasses.replace(
            spread, time_steps=128, late=10, line_error=10, calibration_bits=6
        )
        return {**super().presets(), "spread": spread, "timed": timed}

    @property
    def steps(self) -> int:
        """Steps of a discharge at most, for any number of rows: 1026 for the paper's scores."""
        return SLOWEST * self.time_steps + 1 if self.time_steps else 2 * self.score_limit + 2

    @functools.cached_property
    def reach(self) -> list[int]:
        """The farthest lines that are high in each step of the clock: see
        :func:`hw.unicaim.line_times.reach`."""
        times = self.time_steps, self.steps - 1
        return line_times.reach(self.score_limit, self.key_bits, *times, FRACTION)

    @functools.cached_property
    def weights(self) -> list[int]:
        """What a device's error counts by its product, -L to L, in 2^-WEIGHT; without the circuit
        its own size."""
        if not self.time_steps:
            return [1 << WEIGHT] * ((1 << self.key_bits) + 1)
        return line_times.weights(self.key_bits, WEIGHT)

    @functools.cached_property
    def factors(self) -> tuple[int, ...]:
        """What the lines' times divide distances by, in 2^-FACTOR, by row: a line serves all
        contexts."""
        draw, normal = random.Random(f"lines {self.seed}"), NormalDist()
        part = self.line_error / (1 << LATE_BITS)

        def factor() -> int:
            longer = normal.inv_cdf(draw.random() or 0.5) * part
            return round((1 << FACTOR) / (1 + max(-6 * part, min(6 * part, longer))))

        return tuple(factor() for _ in range(self.rows))

    def late_steps(self, step: int) -> int:
        """Steps by which a search ends after `step`, the first with k lines or fewer."""
        return (step * self.late + (1 << LATE_BITS - 1)) >> LATE_BITS

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

    @property
    def calibration_shift(self) -> int:
        """Shift of a calibration's code: one step of it is 2^calibration_shift of score."""
        return max(0, self.score.width - self.calibration_bits) if self.calibration_bits else 0

    @functools.cached_property
    def calibrator(self) -> SarAdcParameters:
        """Parameters of the converter that calibrates."""
        return SarAdcParameters(self.calibration_bits, max(1, self.calibration_shift))

    @property
    def write_cycles(self) -> int:
        """Cycles of a row to write: one, or with the planes of a query of zeros, its conversion and
        a cycle to store the code."""
        if not self.calibration_bits:
            return 1
        return 1 + self.query_bits + self.calibrator.latency + 1
