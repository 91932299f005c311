"""Functions as straight lines over intervals: one multiply-add with coefficients from a table."""

import dataclasses
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from hw.arith.datapath import Datapath, FloatParameters
from hw.arith.float_format import FloatFormat
from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
from hw.arith.tables.lines import FUNCTIONS, Lines
from hw.layout import index
from hw.parameters import require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class PiecewiseLinearParameters(FloatParameters):
    """
    function
        ``exp`` on (-inf, 0].
    intervals
        Number of intervals, 2 to 16.
    """

    function: str = "exp"
    intervals: int = 8

    # With two stages or more, the first one ends after the table; the others are in the
    # multiply-add.
    CUTS: ClassVar = (
        (),
        ("result",),
        ("lines", "result"),
        ("lines", "second", "result"),
        ("lines", "second", "third", "result"),
    )
    PIPELINED: ClassVar[int] = 4

    def __post_init__(self):
        super().__post_init__()
        names = ", ".join(FUNCTIONS)
        require(self.function in FUNCTIONS, f"function must be one of {names}", self.function)
        require(2 <= self.intervals <= 16, "intervals must be between 2 and 16", self.intervals)

    @property
    def lines(self) -> Lines:
        """The function's least-squares lines."""
        return FUNCTIONS[self.function](self.intervals, self.float_format)

    @classmethod
    def presets(cls) -> dict[str, "PiecewiseLinearParameters"]:
        return {
            "small": cls(format="fp8_e5m2", intervals=4),
            "fp16": cls(),
            "fp16_pipelined": cls(stages=cls.PIPELINED),
            "fp16_16": cls(intervals=16),
        }


class PiecewiseLinear(Datapath[PiecewiseLinearParameters]):
    """slope[i] * x + intercept[i] of the interval i that holds x, rounded once.

    i is the number of bounds below x: an interval includes its upper bound. NaN gives NaN, and an
    infinite x on a line with slope 0 gives its intercept. The default lines are least-squares fits
    of e^x on (-inf, 0] as LAD uses (:func:`hw.arith.tables.lines.exponential`): for 8 intervals in
    FP16 at most 0.0074 off, for 16 at most 0.0018; the first line is 0. The last line extends above
    0.

    Latency: `stages`. Throughput: one result per cycle. Every bound has a comparator with a
    constant, and the comparators' results select the coefficients directly.

    Parameters
    ----------
    lines : Lines or None
        Lines other than the function's; their number is `intervals`.

    Examples
    --------
    >>> from hw.arith.piecewise_linear import PiecewiseLinear, PiecewiseLinearParameters
    >>> parameters = PiecewiseLinearParameters(intervals=8, stages=2)
    >>> len(parameters.lines.bounds), hex(parameters.lines.bounds[-1])
    (7, '0xb494')
    >>> PiecewiseLinear(parameters).interval.shape()
    unsigned(3)
    """

    summary = "Function as straight lines over intervals"
    source = "LAD, section III"

    def __init__(self, parameters: PiecewiseLinearParameters, lines: Lines | None = None):
        self._lines = parameters.lines if lines is None else lines
        super().__init__(parameters)

    def operation(self) -> Ports:
        p = self.parameters
        count = len(self._lines.slopes)
        require(count == p.intervals, "lines must be as many as intervals", count)
        fmt = p.float_format
        return {
            "x": wire_in(fmt, "Operand."),
            "y": wire_out(fmt, "Value of the line of its interval."),
            "interval": wire_out(
                index(range(count)),
                "Number of x's interval; for a NaN, the interval of the infinity with its sign.",
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p, lines, cut = self.parameters, self._lines, self.registers(m)
        width = p.float_format.width
        # Thermometer code: bit i is set if x is above bound i.
        above = Signal(len(lines.bounds))
        m.d.comb += above.eq(Cat(_exceeds(self.x, bound, p.float_format) for bound in lines.bounds))

        def choose(values, first: int, bits: int) -> Value:
            """Multiplexer tree of the values of intervals `first`, `first` + 1, ..."""
            # Neighbours with the same value need no multiplexer.
            if len(set(values)) == 1:
                return Const(values[0], bits)
            half = len(values) // 2
            high = choose(values[half:], first + half, bits)
            return Mux(above[first + half - 1], high, choose(values[:half], first, bits))

        slope = Signal(width)
        intercept = Signal(width)
        interval = Signal.like(self.interval)
        m.d.comb += [
            slope.eq(choose(lines.slopes, 0, width)),
            intercept.eq(choose(lines.intercepts, 0, width)),
            interval.eq(choose(range(p.intervals), 0, len(interval))),
        ]
        # Infinity times 0 would be NaN: on a line with slope 0, replace an infinite x by 0.
        level = Signal()
        infinite = Signal()
        finite_x = Signal(width)
        m.d.comb += level.eq(~slope[:-1].any())
        if p.float_format.infinities:
            m.d.comb += infinite.eq(self.x[:-1] == p.float_format.infinity)
        m.d.comb += finite_x.eq(Mux(level & infinite, 0, self.x))
        x, slope, intercept, interval = cut(
            "lines", x=finite_x, slope=slope, intercept=intercept, interval=interval
        )

        # Of several registers one is behind the choice of the line, the others are in the unit.
        inside = p.stages - (p.stages > 1)
        options: dict[str, Any] = {"format": p.format, "flush_subnormals": p.flush_subnormals}
        line = FloatMultiplyAdd(FloatMultiplyAddParameters(**options, stages=inside))
        m.submodules.line = line
        m.d.comb += [line.a.eq(slope), line.b.eq(x), line.c.eq(intercept), self.y.eq(line.o)]
        if inside:
            m.d.comb += line.enable.eq(self.enable)
        # The interval accompanies its value through the multiply-add.
        for point in ("second", "third", "result"):
            interval = cut(point, interval=interval)
        m.d.comb += self.interval.eq(interval)
        return m


def _exceeds(x: Value, bound: int, float_format: FloatFormat) -> Value:
    """Whether a number is greater than a constant."""
    # Above a negative bound are all positive numbers, and negative ones of smaller magnitude.
    negative = bound >> (float_format.width - 1)
    magnitude = bound & ((1 << float_format.width - 1) - 1)
    if negative and magnitude:
        return ~x[-1] | (x[:-1] < magnitude)
    return ~x[-1] & (x[:-1] > magnitude)
