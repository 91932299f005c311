"""Sizes, layouts and cycles of the active position identification."""

import dataclasses
from collections.abc import Sequence

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.lad.packing_queue import PackingQueueParameters
from hw.parameters import Parameters, require

MODE_BITS = 4


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
