"""MD's correction: how much exp's line of a score differs from its mode's (LAD, Algorithm 1)."""

from amaranth.hdl import Array, Const, Module, Signal, Value

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.lad.apid_parameters import MODE_BITS
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out

STAGES = 2
"""Pipeline stages of each scalar operation of MD."""


class Correction(Component[LadTileParameters]):
    """cf = alpha x + beta, where alpha = a[interval] - a[mode] and beta = b[interval] - b[mode].

    ::

        a[interval] - a[mode] ─→ alpha ─→ × ─→ + ─→ cf
        b[interval] - b[mode] ─→ beta  ─ ─│─ ─→↑
        x ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─→↑

    Each operation is in FP16, rounded by itself.

    Latency: 6 cycles in which `advance` is high. Throughput: 1 per cycle.
    """

    def ports(self) -> Ports:
        return {
            "advance": wire_in(1, "The pipeline moves."),
            "x": wire_in(FP16, "s - m."),
            "interval": wire_in(index(MODE_BITS)),
            "mode": wire_in(index(MODE_BITS)),
            "cf": wire_out(FP16),
        }

    def elaborate(self, platform):
        m = Module()
        # Differences of tabulated coefficients, as AC adds the mode's line in its caches: alpha x +
        # beta is what is missing of the interval's line. A position in its mode's interval gets
        # exactly 0.
        tables = self.parameters.tables
        m.submodules.alpha = alpha = FloatAdd(FloatAddParameters(stages=STAGES))
        m.submodules.beta = beta = FloatAdd(FloatAddParameters(stages=STAGES))
        for unit, table in ((alpha, tables.slopes), (beta, tables.intercepts)):
            constants = Array(Const(value, FP16.width) for value in table)
            m.d.comb += [
                unit.enable.eq(self.advance),
                unit.a.eq(constants[self.interval]),
                unit.b.eq(constants[self.mode]),
                unit.subtract.eq(1),
            ]
        m.submodules.multiply = multiply = FloatMultiply(FloatMultiplyParameters(stages=STAGES))
        m.submodules.add = add = FloatAdd(FloatAddParameters(stages=STAGES))
        m.d.comb += [
            # x and beta wait in registers that move with the arithmetic, so one enable stops all of
            # it.
            multiply.enable.eq(self.advance),
            multiply.a.eq(alpha.o),
            multiply.b.eq(self._delay(m, self.x, "x")),  # while alpha is computed
            add.enable.eq(self.advance),
            add.a.eq(multiply.o),
            add.b.eq(self._delay(m, beta.o, "beta")),  # while the product is
            add.subtract.eq(0),
            self.cf.eq(add.o),
        ]
        return m

    def _delay(self, m: Module, value: Value, name: str) -> Value:
        """A value later by one scalar operation."""
        for stage in range(STAGES):
            later = Signal(FP16.width, name=f"{name}_{stage}", reset_less=True)
            with m.If(self.advance):
                m.d.sync += later.eq(value)
            value = later
        return value
