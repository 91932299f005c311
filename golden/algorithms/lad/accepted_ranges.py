"""How far a mode's line may be used beyond its own interval.

APID asks whether a position may keep its mode's line, MD which line fits best. The paper answers
both with the same bounds. APID's may reach further: over a neighbour's end, as long as the mode's
own line is still close to exp. Then fewer positions are active.
"""

import numpy as np

from golden.algorithms.lad.piecewise_exp import PiecewiseExp

MAX_SLACK = 2**-8
"""Largest slack: 256 units of 2^-16."""


def accepted_ranges(bounds: tuple[float, ...], tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of x = score - m in which a position of mode i is inactive: (lower[i], upper[i]].

    ``bounds`` are the I - 1 inner bounds of ``PiecewiseExp``, ``tau`` (0 to 2^-8) the absolute
    error that a line may have outside its interval. Both results are float64 [I]; the eight
    intervals' are exact FP16 numbers.

    From each end of its interval a range is extended outwards, from one FP16 number to the next,
    while ``|a[i] x + b[i] - exp(x)| <= tau``, with the lines in float64. The end itself must hold
    this too, otherwise nothing is added there. At the lower end, which is exclusive, the range
    ends at the first number that fails. Interval 0 (the line 0) starts at -inf and the last one
    ends at inf. With ``tau`` 0 the ranges are the intervals.

    Interval 0 of (-10, ...) accepts up to ln(2e-4) = -8.52:

    >>> lower, upper = accepted_ranges((-10.0, -6.0, -3.0, -1.0), 2e-4)
    >>> float(upper[0]), float(lower[1])
    (-8.5234375, -10.0)

    Raises ``ValueError`` for another tau.
    """
    if not 0 <= tau <= MAX_SLACK:
        raise ValueError(f"slack must lie between 0 and {MAX_SLACK:g}, not {tau:g}")
    exp, numbers = PiecewiseExp(bounds), _fp16_numbers()
    lower, upper = exp.lower.copy(), exp.upper.copy()
    if tau == 0:
        return lower, upper
    for i in range(len(exp)):
        if i > 0:
            below = numbers[numbers < lower[i]][::-1]
            passed = _passing(exp, i, np.append(lower[i], below), tau)
            lower[i] = np.concatenate([lower[i : i + 1], below, [-np.inf]])[passed]
        if i < len(exp) - 1:
            above = numbers[numbers > upper[i]]
            passed = _passing(exp, i, np.append(upper[i], above), tau)
            upper[i] = np.append(upper[i], above)[max(passed - 1, 0)]
    return lower, upper


def _fp16_numbers() -> np.ndarray:
    """All finite FP16 numbers, rising, zero once; float64."""
    magnitudes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    return np.concatenate([-magnitudes[:0:-1], magnitudes])


def _passing(exp: PiecewiseExp, i: int, x: np.ndarray, tau: float) -> int:
    """How many of the first numbers of ``x`` are within ``tau`` of exp on line ``i``."""
    # Beyond 1 no line that was fitted below 0 is near exp; the cut avoids an overflow.
    error = np.abs(exp.a[i] * x + exp.b[i] - np.exp(np.minimum(x, 1.0)))
    fails = (error > tau) | (x > 1.0)
    return int(fails.argmax()) if fails.any() else len(x)
