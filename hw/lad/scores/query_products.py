"""A query's products with the caches A and D, as they come out of AC's lanes."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.lad.powers import POWER_BITS, times_power
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_sizes import LANES
from hw.ports import Ports, wire_in, wire_out


class QueryProducts(Component[LadTileParameters]):
    """Dot products times 2^power: of each lane those with its columns, last in lane 2 that with D.

    ::

        lane 0: q A[:, 0], q A[:, 1], …  ─┐
        lane 1: q A[:, d / 3], …          ├→ q A, q D in FP32
        lane 2: q A[:, 2 d / 3], …, q D  ─┘

    Latency: 1 cycle from the last product to ``complete``. They are kept in FP32, so that one
    conversion is enough for each lane; the lowest bits of their mantissas are no registers.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "restart": wire_in(1),
            "power": wire_in(POWER_BITS),
            "valid": wire_in(LANES, "A dot product of each lane."),
            "products": wire_in(
                data.ArrayLayout(FP16, LANES),
                "FP16 product of each lane's column, to be multiplied by 2^power.",
            ),
            "complete": wire_out(1),
            "a": wire_out(p.wide_row_layout, "q A in FP32, d numbers, valid with `complete`."),
            "d": wire_out(FP32, "q D in FP32, valid with `complete`."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        products = Signal(data.ArrayLayout(FP32, LANES * p.columns), reset_less=True)
        # Products come in the order of the columns, a lane's behind one another, so a counter for
        # each lane says which column a product is of.
        with_d = Signal(FP32, reset_less=True)
        counts = [Signal(range(p.columns + 2), name=f"count_{n}") for n in range(LANES)]
        for lane, done in enumerate(counts):
            # The columns were divided by 2^power to fit in FP16; FP32 has the range to multiply
            # back exactly.
            m.submodules[f"widen_{lane}"] = widen = FloatConvert(
                FloatConvertParameters(source="fp16", format="fp32")
            )
            m.d.comb += widen.a.eq(self.products[lane])
            product = times_power(m, f"lane_{lane}", widen.o, self.power)
            with m.If(self.valid[lane]):
                m.d.sync += done.eq(done + 1)
                for place in range(p.columns):
                    with m.If(done == place):
                        m.d.sync += products[lane * p.columns + place].eq(product)
                if lane == LANES - 1:
                    with m.If(done == p.columns):
                        m.d.sync += with_d.eq(product)
            with m.If(self.restart):
                m.d.sync += done.eq(0)
        # D's product is begun last.
        # Lane 2 has the fewest columns of A or as many, and D behind them: its count is complete
        # last.
        m.d.comb += [
            self.complete.eq(counts[-1] == p.columns + 1),
            *(o.eq(product) for o, product in zip(self.a, list(products)[: p.d], strict=True)),
            self.d.eq(with_d),
        ]
        return m
