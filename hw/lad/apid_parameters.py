"""Sizes and layouts of the active position identification."""

import dataclasses
import functools

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.lad.packing_queue import PackingQueueParameters
from hw.lad.scores.line_tables import LineTables, line_tables
from hw.layout import FLAG, count, index, mask, position
from hw.parameters import Parameters, require

MODE_BITS = 4
"""Width of a mode, the number of an interval."""


@dataclasses.dataclass(frozen=True)
class ApidParameters(Parameters):
    """
    lanes
        Positions in a beat.
    positions
        Positions of a step at most.
    depth
        Entries of the queue of active positions, a power of two.
    outputs
        Active positions per output beat, a power of two: as many as MD takes.
    window
        Number of latest positions, which are always active.
    bounds
        Bounds between intervals, from the lowest: eighths below 0 with ``_`` between them. The
        default is from ``golden.algorithms.lad``: -10, -6.5, -4.5, -3.25, -2.25, -1.375, -0.625.
    slack
        Largest error of a mode's line where the mode is accepted beyond its interval, in units of
        2^-16, 0 to 256, see :mod:`hw.lad.scores.line_tables`. 0, as in the paper: the interval
        alone.
    counter_bits
        Width of a mode's counter.
    """

    lanes: int = 12
    positions: int = 4096
    depth: int = 64
    outputs: int = 2
    window: int = 16
    bounds: str = "80_52_36_26_18_11_5"
    slack: int = 0
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
        require(0 <= self.slack <= 256, "slack must be between 0 and 256", self.slack)
        _ = self.queue  # checks outputs and depth

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

    @functools.cached_property
    def queue(self) -> PackingQueueParameters:
        """The queue of active positions."""
        return PackingQueueParameters(self.lanes, self.outputs, self.depth)

    @functools.cached_property
    def bound_values(self) -> tuple[float, ...]:
        """The bounds as numbers, ascending."""
        return tuple(-int(part) / 8 for part in self.bounds.split("_"))

    @functools.cached_property
    def tables(self) -> LineTables:
        """Ranges in which each mode is accepted."""
        return line_tables(self.bound_values, self.slack)

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

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """A step: its maximum score ``m``, and the number ``n`` of its positions, 1 or more."""
        return data.StructLayout({"m": FP16, "n": count(range(self.positions + 1))})

    @functools.cached_property
    def word_layout(self) -> data.StructLayout:
        """A position's word of G: its ``mode``, the ``count`` of that mode, and whether it was
        ``active`` in the step before."""
        return data.StructLayout(
            {"count": count(self.counter_bits), "mode": index(MODE_BITS), "active": FLAG}
        )

    @functools.cached_property
    def input_layout(self) -> data.StructLayout:
        """Scores ``s`` and words ``g`` of positions in order; a step's last beat is padded."""
        return data.StructLayout(
            {
                "s": data.ArrayLayout(FP16, self.lanes),
                "g": data.ArrayLayout(self.word_layout, self.lanes),
            }
        )

    @functools.cached_property
    def record_layout(self) -> data.StructLayout:
        """A beat in the pipeline: its words ``g``; which positions are ``present`` in the step and
        which of them are ``older`` than the window; ``last`` of the step."""
        return data.StructLayout(
            {
                "g": data.ArrayLayout(self.word_layout, self.lanes),
                "present": mask(self.lanes),
                "older": mask(self.lanes),
                "last": FLAG,
            }
        )

    @functools.cached_property
    def counters_layout(self) -> data.StructLayout:
        """A beat's words of G.

        ``write``: words of inactive positions, which have changed; ``active`` is low in all words.
        ``beat``: its number in the step. ``last``: of the step.
        """
        return data.StructLayout(
            {
                "g": data.ArrayLayout(self.word_layout, self.lanes),
                "write": mask(self.lanes),
                "beat": index(range(max(2, self.beats))),
                "last": FLAG,
            }
        )

    @functools.cached_property
    def active_layout(self) -> data.StructLayout:
        """Active positions, and inactive ones whose counter was halved, in ascending order.

        ``index``, ``mode`` (0 in the window) and ``count`` (the new one) of each, 0 where ``keep``
        is low; ``fresh``: it was not active in the step before; ``halve``: it is inactive, its
        other counters must be halved, as ``count`` was. ``keep``: which are valid, all but in a
        step's ``last`` group.
        """
        active = {
            "index": position(range(max(2, self.positions))),
            "mode": index(MODE_BITS),
            "count": count(self.counter_bits),
            "fresh": FLAG,
            "halve": FLAG,
        }
        group = data.ArrayLayout(data.StructLayout(active), self.outputs)
        return data.StructLayout({"positions": group, "keep": mask(self.outputs), "last": FLAG})
