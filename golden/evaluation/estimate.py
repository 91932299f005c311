"""Means with their standard errors, and what they decide."""

import dataclasses
import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles 0.975 of Student's t distribution with 1, 2, ... degrees of freedom."""


class Decision(StrEnum):
    """Where a quantity is, as far as its 95 % interval tells."""

    WITHIN = "within"
    ABOVE = "above"
    UNKNOWN = "cannot tell"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean of independent values.

    error
        Its standard error; NaN of a single value.
    number
        How many values there were.
    """

    mean: float
    error: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From one value at least."""
        number = len(values)
        spread = float(np.std(values, ddof=1)) if number > 1 else math.nan
        return cls(float(np.mean(values)), spread / math.sqrt(number), number)

    def __format__(self, spec: str) -> str:
        """The mean ± its error in the format of a float; without an error the mean alone."""
        mean = format(self.mean, spec)
        return mean if math.isnan(self.error) else f"{mean} ± {self.error:{spec.replace('+', '')}}"

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean, by Student's t distribution."""
        if self.number < 2:
            return -math.inf, math.inf
        freedom = min(self.number - 1, len(_STUDENT))
        half = _STUDENT[freedom - 1] * self.error
        return self.mean - half, self.mean + half

    def against(self, limit: float) -> Decision:
        """Whether the mean is at most `limit`, above it, or neither is certain."""
        low, high = self.interval
        if high <= limit:
            return Decision.WITHIN
        return Decision.ABOVE if low > limit else Decision.UNKNOWN
