"""Sizes and cycles of KLLM's softmax."""

import dataclasses
from functools import cached_property

from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.layout import FLAG, mask
from hw.parameters import Parameters, require

ROWS = 4
"""Rows between two passes: the maximum, or the sum, is computed and not used yet."""

MAXIMUM_LATENCY = 4
"""Cycles from a row's last scores to the first ones being read for the second pass."""

SUM_LATENCY = 9
"""Cycles from a row's last scores being read to its first term being read for the third pass."""

OUTPUT_LATENCY = 3
"""Cycles from a term being read to its probability."""


@dataclasses.dataclass(frozen=True)
class SoftmaxParameters(Parameters):
    """
    lanes
        Scores in one beat, 1 to 64, and exponentials in a cycle.
    length
        Scores in the longest row, a multiple of `lanes` from 4 to 65536.
    """

    lanes: int = 8
    length: int = 1024

    def __post_init__(self):
        require(1 <= self.lanes <= 64, "lanes must be between 1 and 64", self.lanes)
        rule = f"length must be a multiple of lanes = {self.lanes} between 4 and 65536"
        fits = 4 <= self.length <= 65536 and self.length % self.lanes == 0
        require(fits, rule, self.length)

    @classmethod
    def presets(cls) -> dict[str, "SoftmaxParameters"]:
        return {"small": cls(lanes=2, length=16), "default": cls(), "paper": cls(length=4096)}

    @property
    def beats(self) -> int:
        """Beats of the longest row."""
        return self.length // self.lanes

    @property
    def depth(self) -> int:
        """Beats in each of the two buffers: a row, and the beats that arrive before it is read."""
        return self.beats + SUM_LATENCY + 1

    @property
    def sum_integer(self) -> int:
        """Integer bits of the sum."""
        return (self.length - 1).bit_length()

    @property
    def sum_fraction(self) -> int:
        """Fraction bits of the sum; truncation of `length` terms loses less than 2^-15."""
        return 15 + self.sum_integer

    @property
    def latency(self) -> int:
        """Cycles from the last beat of a row of one beat to its probabilities."""
        return MAXIMUM_LATENCY + SUM_LATENCY + OUTPUT_LATENCY

    def cycles(self, rows: list[int]) -> int:
        """Cycles from the first beat offered to the last one accepted, when nothing stalls.

        It is about the beats of all rows, plus twice the beats of the last.

        rows
            Beats of each row, also of those that are too long.
        """
        taken: list[int] = []  # cycle in which each beat is accepted
        read: list[int] = []  # for the second pass
        term_read: list[int] = []  # for the third
        ends: list[int] = []  # numbers of the rows' last beats
        now = 0  # first cycle in which the next beat can be accepted
        for row, length in enumerate(rows):
            first = len(taken)
            beats = min(length, self.beats)
            before = ends[row - ROWS] if row >= ROWS else -1
            for beat in range(first, first + beats):
                now = max(now, *(read[b] + 1 for b in (before, beat - self.depth) if b >= 0), 0)
                taken.append(now)
                now += 1
            now += length - beats
            for beat in range(first, first + beats):
                limits = [taken[-1] + MAXIMUM_LATENCY, read[-1] + 1 if read else 0]
                limits += [term_read[b] + 1 for b in (before, beat - self.depth) if b >= 0]
                read.append(max(limits))
            for _ in range(beats):
                term_read.append(max(read[-1] + SUM_LATENCY, term_read[-1] + 1 if term_read else 0))
            ends.append(len(taken) - 1)
        return max(term_read[-1] + OUTPUT_LATENCY + 1, now)

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``scores``, mask ``keep`` of those that belong to the row, ``last`` beat of the row."""
        scores = data.ArrayLayout(FP16, self.lanes)
        return data.StructLayout({"scores": scores, "keep": mask(self.lanes), "last": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """``probabilities``, ``keep`` and ``last`` as in the input, ``invalid`` for the row."""
        flags = {"keep": mask(self.lanes), "last": FLAG, "invalid": FLAG}
        return data.StructLayout({"probabilities": data.ArrayLayout(FP16, self.lanes)} | flags)
