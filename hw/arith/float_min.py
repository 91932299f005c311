"""The smaller of two floating-point numbers."""

import dataclasses

from hw.arith.float_max import FloatMax, FloatMaxParameters


@dataclasses.dataclass(frozen=True)
class FloatMinParameters(FloatMaxParameters):
    __doc__ = FloatMaxParameters.__doc__


class FloatMin(FloatMax):
    """o = minimumNumber(a, b) of IEEE 754-2019: a number wins over a NaN.

    Minus zero is less than plus zero. Two NaNs give the canonical quiet NaN. The same results as
    RISC-V's ``fmin``. Nothing is rounded: every result is exact.

    Latency: `stages` cycles. Throughput: one result per cycle.

    Structure: :class:`hw.arith.float_max.FloatMax`, whose comparison counts the other way round.

    Members
    -------
    a, b : :py:`In(width)`
        Operands.
    o : :py:`Out(width)`
        The smaller one.
    """

    summary = "Smaller of two numbers, a NaN loses (IEEE 754-2019 minimumNumber)"
    source = "library"

    SMALLER = True
