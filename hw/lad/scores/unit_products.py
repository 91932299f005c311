"""Dot products with keys' codes times the keys' units: estimated scores (LAD)."""

from typing import Any

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import data

from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.scores.score_source import result_layout, score_layout
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import index
from hw.ports import Ports, wire_in, wire_out

PAIR = 2
"""Positions whose scores are computed together, one in each VPU."""


class UnitProducts(Component[LadTileParameters]):
    """score[i] = dot[i] unit[i], a pair of positions in a cycle, from position 0 on.

    ::

        rows of units ─→ memory ─→ register ─→ pair of units ─→ × ─→ score
        dots ────────────────────→ register ──────────────────→ ↑

    Latency: 3 cycles, one to read the units and two to multiply. Throughput: 1 pair per cycle.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "begin": wire_in(1, "The next pair is of positions 0 and 1."),
            "row_valid": wire_in(1, "A row of units is there."),
            "row_number": wire_in(
                index(p.label_bits - 2), "Number of that row in the table of units."
            ),
            "row": wire_in(p.row_layout, "Units of the row's d positions, FP16."),
            "valid": wire_in(1, "A pair's dot products are there."),
            "dots": wire_in(result_layout(), "Dot products of a pair of positions, with `valid`."),
            "score": wire_out(score_layout(p)),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # A key is estimated as its unit times its code, a few bits per element: the product of the
        # query and the code comes from the VPU, and the key's unit scales it here.
        units = row_memory(p.row_bits, p.table_rows)
        m.submodules.units = units
        write, read = units.write_port(), units.read_port()
        position = Signal(range(p.positions + 2))  # of the next pair
        m.d.comb += [
            write.addr.eq(self.row_number),
            write.data.eq(self.row),
            write.en.eq(self.row_valid),
            read.addr.eq(position >> p.element_bits),
            read.en.eq(self.valid),
        ]
        with m.If(self.valid):
            m.d.sync += position.eq(position + PAIR)
        with m.If(self.begin):
            m.d.sync += position.eq(0)
        # Dot products wait for their units; the pair's position moves along with its scores.
        dots = Signal(result_layout(), reset_less=True)
        delays: list[Any] = [Signal(_delay_layout(p), name=f"delay_{n}") for n in range(3)]
        m.d.sync += [
            delays[0].valid.eq(self.valid),
            delays[0].index.eq(position),
            *(after.eq(before) for before, after in zip(delays, delays[1:], strict=False)),
            dots.eq(self.dots),
        ]
        # A whole row is read for each pair: it is d / 2 times the same row, which costs no more
        # than a register for it and needs no control.
        row_of_units = data.ArrayLayout(PAIR * 16, p.d // PAIR)(read.data)
        chosen = Signal(data.ArrayLayout(16, PAIR))
        m.d.comb += chosen.eq(Array(row_of_units)[delays[0].index[1 : p.element_bits]])
        for key in range(PAIR):
            m.submodules[f"times_unit_{key}"] = times = FloatMultiply(
                FloatMultiplyParameters(stages=2)
            )
            m.d.comb += [
                times.a.eq(dots.dots[key]),
                times.b.eq(chosen[key]),
                self.score.s[key].eq(times.o),
            ]
        m.d.comb += [
            self.score.valid.eq(delays[2].valid),
            self.score.index.eq(delays[2].index),
        ]
        return m


def _delay_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "index": range(p.positions + 2)})
