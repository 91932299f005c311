"""What bit-exact models of decode cores share; see :mod:`hw.attention.decode_core`."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class StepResult:
    """Outputs of one token's step.

    o, invalid
        ``float16[heads, d]`` and ``bool[heads]``: whether a head's softmax was invalid.
    p
        ``float16[heads, rows]``: probabilities. A block of tokens has a row of ``o``, ``invalid``
        and ``p`` for each head and token, with probabilities 0 for the rows after the token's.
    reports
        The core's reports, in order. A refused command has one with ``error``, and 0 heads above. A
        matrix product has none, and its results in place of the heads'.
    """

    o: np.ndarray
    invalid: np.ndarray
    p: np.ndarray
    reports: list[Any]

    @property
    def refused(self) -> bool:
        return any(report.error for report in self.reports)

    @classmethod
    def refusal(cls, d: int, report: Any) -> "StepResult":
        """The result of a command that was refused."""
        o = np.empty((0, d), np.float16)
        return cls(o, np.empty(0, bool), np.empty((0, 0), np.float16), [report])


def fits(heads: int, group: int, most: int, most_kv: int) -> bool:
    """Whether a step has at least one head, and at most `most` heads and `most_kv` kv heads."""
    return 1 <= heads <= min(most, most_kv * group)
