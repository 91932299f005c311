"""Sizes of ToPick's lane (Token-Picker, section 4.1)."""

import dataclasses
import functools
from typing import Any

from hw.parameters import Parameters, require
from hw.topick.lane_layouts import LaneLayouts
from hw.topick.rpdu import RpduParameters
from hw.topick.scoreboard import ScoreboardParameters


@dataclasses.dataclass(frozen=True)
class PeLaneParameters(LaneLayouts, Parameters):
    """d, bits, chunk_bits, scale_bits, shift_bits and width as in
    :class:`hw.topick.scores.Scores`.

    fraction, precision, limb
        As in :class:`hw.topick.pec.PecParameters`.
    threshold_bits
        As in :class:`hw.topick.rpdu.RpduParameters`.
    entries
        Entries of the scoreboard: tokens in flight at most.
    token_bits
        Width of a token's number.
    probability_bits
        Fraction bits of a probability, `bits` - 1 or more: with log2(n) + 7 of them the rounding of
        n probabilities moves their sum by 2^-8 at most.
    observe
        Add the stream ``observed``, for tests that replay each decision.
    whole
        Take whole keys and values, too, for blocks of a prompt. The multipliers then have `bits`
        bits of an element as an operand instead of `chunk_bits`.
    waits
        Whether a response may be offered before its request has left. False, with a memory: the
        scoreboard and the queue of next chunks then always have room.
    """

    d: int = 64
    bits: int = 12
    chunk_bits: int = 4
    scale_bits: int = 16
    shift_bits: int = 4
    width: int = 32
    fraction: int = 10
    precision: int = 12
    limb: int = 16
    threshold_bits: int = 16
    entries: int = 64
    token_bits: int = 12
    probability_bits: int = 19
    observe: bool = False
    whole: bool = False
    waits: bool = True

    def __post_init__(self):
        self.check_scores()
        rule = "token_bits must be between 1 and 24"
        require(1 <= self.token_bits <= 24, rule, self.token_bits)
        rule = f"probability_bits must be between {self.bits - 1} (bits - 1) and 21"
        require(self.bits - 1 <= self.probability_bits <= 21, rule, self.probability_bits)
        _ = self.pec, self.rpdu, self.scoreboard  # each checks its own parameters

    @classmethod
    def presets(cls) -> dict[str, "PeLaneParameters"]:
        small: dict[str, Any] = {
            "scale_bits": 6,
            "shift_bits": 2,
            "width": 14,
            "fraction": 4,
            "precision": 6,
        }
        return {
            "small": cls(
                d=4,
                bits=6,
                chunk_bits=2,
                **small,
                limb=8,
                threshold_bits=7,
                entries=6,
                token_bits=6,
                probability_bits=13,
            ),
            "default": cls(),
            "paper": cls(entries=32),
        }

    @functools.cached_property
    def rpdu(self) -> RpduParameters:
        return RpduParameters(self.width, self.margin_bits, self.threshold_bits)

    @functools.cached_property
    def scoreboard(self) -> ScoreboardParameters:
        """A parked score lacks at least its last chunk."""
        score = self.score_bits - self.chunk_bits
        sizes = self.entries, score, self.pec.shift_bits, self.precision
        return ScoreboardParameters(*sizes, waits=self.waits)

    @property
    def decision_latency(self) -> int:
        """Cycles from a response to its decision."""
        return 5

    @property
    def latency(self) -> int:
        """Cycles from a response to its difference and score."""
        return self.decision_latency + self.pec.latency

    @property
    def request_latency(self) -> int:
        """Cycles from a response to the request for its token's next chunk."""
        return self.latency + 2
