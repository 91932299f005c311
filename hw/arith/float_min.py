"""The smaller of two floating-point numbers."""

import dataclasses

from hw.arith.float_max import FloatMax, FloatMaxParameters


@dataclasses.dataclass(frozen=True)
class FloatMinParameters(FloatMaxParameters):
    __doc__ = FloatMaxParameters.__doc__


class FloatMin(FloatMax):
    """o = minimumNumber(a, b) of IEEE 754-2019: the smaller number; NaN only if both are NaN.

    Minus zero is less than plus zero. Two NaNs give the canonical quiet NaN. The same results as
    RISC-V's ``fmin``. Every result is exact.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: :class:`hw.arith.float_max.FloatMax` with inverted signs.

    Examples
    --------
    >>> from hw.arith.float_min import FloatMin, FloatMinParameters
    >>> FloatMin(FloatMinParameters(format="fp32")).b.shape()
    unsigned(32)
    """

    summary = "Smaller of two numbers, NaN only if both are (IEEE 754-2019 minimumNumber)"
    source = "library"

    SMALLER = True
