"""Scores of keys in a few bits: for the identification of active positions only."""

import math
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
from hw.arith.lines import nearest
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.component import Component
from hw.lad.row_memory import row_memory
from hw.lad.score_source import result_layout, score_source_ports
from hw.lad.tile_parameters import LadTileParameters
from hw.ports import Ports
from hw.stream.sequential_reader import SequentialReader, SequentialReaderParameters

RECIPROCAL_STAGES = 2
PAIR = 2
"""Positions whose scores are computed together, one in each VPU."""


class CodeScores(Component[LadTileParameters]):
    """s[i] = (q . code[i]) unit[i], for the positions before the window, in order.

    ::

        K[n - 1] ─→ peak ─→ L / peak ─→ VPU (S) ─→ code ─→ behind the codes in memory
        rows of codes ─→ reorder buffer ─→ pairs of keys ─→ FP16 ─→ VPU (DP) ─→ × unit ─→ score

    A key's code is its elements divided by its unit and rounded, in `code_bits` bits of two's
    complement; the unit is its largest magnitude divided by L = 2^(code_bits - 1) - 1. The bits of
    one element's codes follow one another in the element's 16 bits of consecutive rows, so 8
    keys of 6 bits take 3 rows::

        bit         0      6      12     16     22     28     32
        element 0   | key 0 | key 1 | key 2        | key 3 | key 4       …
        row         0                     1                     2

    Cycles: a store takes log2 d + 16 and up to 16 to shift the code into place, besides the VPU and
    the memory; scores a pair of keys per cycle, from the arrival of their rows.

    This is not in the paper, which scales the scores of collinear keys; after rotary embedding
    hardly any are collinear (docs/results/lad.md).
    """

    def ports(self) -> Ports:
        p = self.parameters
        return score_source_ports(p)

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        storing = Signal()
        self._scales = Signal(name="scales")  # the operation is the new key's
        m.d.comb += self.op.payload.scale.eq(self._scales)
        units_requested = Signal()
        m.submodules.reader = reader = SequentialReader(
            SequentialReaderParameters(
                address_width=p.address_bits,
                data_width=p.row_bits,
                depth=2 * p.depth,
                longest=p.code_rows,
            ),
            shape=p.row,
        )
        request, response = self.request, self.response
        # Whoever stores has the port; else the tables of units, then the codes.
        m.d.comb += [
            request.valid.eq(reader.request.valid),
            request.payload.number.eq(reader.request.payload.tag),
            request.payload.address.eq(reader.request.payload.address),
            # Units come first, because a score needs its position's unit.
            reader.request.ready.eq(request.ready & ~storing & units_requested),
            reader.response.valid.eq(response.valid & ~response.payload.table & ~storing),
            reader.response.payload.tag.eq(response.payload.number),
            reader.response.payload.data.eq(response.payload.data),
            response.ready.eq(1),
        ]
        with m.If(~units_requested):
            m.d.comb += request.valid.eq(0)
        self._store(m, storing)
        ready = self._units(m, storing, units_requested, reader)
        self._multiply(m, reader, ready)
        return m

    # The new key

    def _store(self, m: Module, storing: Signal) -> None:
        p = self.parameters
        bits, request, response = p.code_bits, self.request, self.response
        offset = Signal(4)  # of the code in its first row
        in_table = self.position[: p.element_bits]
        place = Signal(range(p.code_rows * 16))
        old_code = Signal(p.row, reset_less=True)
        old_unit = Signal(p.row, reset_less=True)
        waiting = Signal(2)  # for rows: of codes, of units
        magnitudes = Signal(data.ArrayLayout(FP16.width - 1, p.d), reset_less=True)
        timer = Signal(range(16))
        lane_bits = 16 + bits
        shifted = Signal(data.ArrayLayout(lane_bits, p.d), reset_less=True)
        peak = Cat(magnitudes[0], 0)
        # codes = round(k L / peak), unit = peak / L.
        m.submodules.reciprocal = reciprocal = Reciprocal(
            ReciprocalParameters(stages=RECIPROCAL_STAGES)
        )
        m.submodules.scale = scale = FloatMultiply(FloatMultiplyParameters(stages=1))
        m.submodules.unit = unit = FloatMultiply(FloatMultiplyParameters(stages=1))
        largest = (1 << bits - 1) - 1
        m.d.comb += [
            offset.eq(place[:4]),
            reciprocal.x.eq(peak),
            scale.a.eq(reciprocal.o),
            scale.b.eq(Const(nearest(largest, FP16), 16)),
            unit.a.eq(peak),
            unit.b.eq(Const(nearest(1 / largest, FP16), 16)),
        ]
        # The position is known long before it is stored.
        m.d.sync += place.eq(self.position * bits)
        codes = []
        for e in range(p.d):
            m.submodules[f"round_{e}"] = convert = FloatToFixed(FloatToFixedParameters(width=bits))
            m.d.comb += convert.a.eq(self.vector.payload[e])
            codes.append(Value.cast(convert.o)[:bits])
        # Rows that a new code shares with earlier ones are read, changed and written back.
        with m.If(storing & response.valid):
            with m.If(response.payload.table):
                m.d.sync += [old_unit.eq(response.payload.data), waiting[1].eq(0)]
            with m.Else():
                m.d.sync += [old_code.eq(response.payload.data), waiting[0].eq(0)]
        regions, head = p.regions, self.kv_head
        first_row = place >> 4
        straddles = Signal()
        m.d.comb += straddles.eq(offset + bits > 16)
        unit_row = self.position >> p.element_bits

        def access(region: str, row: Value, table: int, write: bool) -> None:
            m.d.comb += [
                request.valid.eq(1),
                request.payload.table.eq(table),
                request.payload.number.eq(0),
                request.payload.address.eq(regions[region].address_of(head, row)),
                request.payload.write.eq(write),
            ]

        mask = Signal(16)
        m.d.comb += mask.eq((1 << offset) - 1)
        with m.FSM() as fsm:
            m.d.comb += storing.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += waiting.eq(0)
                with m.If(self.store):
                    m.next = "READ_CODE"
            with m.State("READ_CODE"):
                # A code that begins a row has nothing before it to be kept.
                with m.If(offset == 0):
                    m.next = "READ_UNIT"
                with m.Else():
                    access("code", first_row, 0, False)
                    with m.If(request.ready):
                        m.d.sync += waiting[0].eq(1)
                        m.next = "READ_UNIT"
            with m.State("READ_UNIT"):
                # The first unit of a row has nothing before it to be kept. Meanwhile the magnitudes
                # are copied.
                m.d.sync += timer.eq(0)
                for e in range(p.d):
                    m.d.sync += magnitudes[e].eq(self.k[e][:-1])
                with m.If(in_table == 0):
                    m.next = "PEAK"
                with m.Else():
                    access("unit", unit_row, 1, False)
                    with m.If(request.ready):
                        m.d.sync += waiting[1].eq(1)
                        m.next = "PEAK"
            with m.State("PEAK"):
                # The larger ones of neighbours, until one is left.
                m.d.sync += timer.eq(timer + 1)
                for e in range(p.d // 2):
                    low, high = magnitudes[2 * e], magnitudes[2 * e + 1]
                    m.d.sync += magnitudes[e].eq(Mux(low > high, low, high))
                with m.If(timer == p.element_bits - 1):
                    m.d.sync += timer.eq(0)
                    m.next = "SCALE"
            with m.State("SCALE"):
                # The reciprocal of the peak and its product with L take their stages.
                m.d.sync += timer.eq(timer + 1)
                with m.If(timer == RECIPROCAL_STAGES + 1):
                    m.next = "MULTIPLY"
            with m.State("MULTIPLY"):
                # A VPU multiplies all elements by L / peak.
                m.d.comb += [
                    self.op.valid.eq(1),
                    self._scales.eq(1),
                    self.op.payload.factor.eq(scale.o),
                    self.op.payload.vectors[0].eq(self.k),
                ]
                with m.If(self.op.ready):
                    m.next = "ROUND"
            with m.State("ROUND"):
                # The products, rounded to integers of `code_bits` bits.
                m.d.comb += self.vector.ready.eq(1)
                m.d.sync += timer.eq(0)
                for e, code in enumerate(codes):
                    m.d.sync += shifted[e].eq(code)
                with m.If(self.vector.valid):
                    m.next = "SHIFT"
            with m.State("SHIFT"):
                # One bit a cycle to the code's first bit: slow, but a shifter for each element
                # would be large.
                with m.If(timer == offset):
                    with m.If(waiting == 0):
                        m.next = "WRITE_CODE"
                with m.Else():
                    m.d.sync += timer.eq(timer + 1)
                    for e in range(p.d):
                        m.d.sync += shifted[e].eq(shifted[e] << 1)
            with m.State("WRITE_CODE"):
                # Bits below the code are the earlier positions', bits above it zeros.
                access("code", first_row, 0, True)
                for e in range(p.d):
                    m.d.comb += request.payload.data[e].eq(shifted[e][:16] | (old_code[e] & mask))
                with m.If(request.ready):
                    m.next = "WRITE_UNIT"
                    with m.If(straddles):
                        m.next = "WRITE_REST"
            with m.State("WRITE_REST"):
                # The code's upper bits begin the next row.
                access("code", first_row + 1, 0, True)
                for e in range(p.d):
                    m.d.comb += request.payload.data[e].eq(shifted[e][16:])
                with m.If(request.ready):
                    m.next = "WRITE_UNIT"
            with m.State("WRITE_UNIT"):
                # Units before it are kept, later ones cleared.
                access("unit", unit_row, 1, True)
                for e in range(p.d):
                    m.d.comb += request.payload.data[e].eq(
                        Mux(
                            in_table == e,
                            unit.o,
                            Mux(in_table > e, old_unit[e], 0) if e < p.d - 1 else 0,
                        )
                    )
                with m.If(request.ready):
                    m.d.comb += self.stored.eq(1)
                    m.next = "IDLE"

    # Scores

    def _units(self, m: Module, storing, requested, reader) -> Signal:
        """Request the units, then the codes; returns: all units are there."""
        p = self.parameters
        row = Signal(range(p.table_rows + 1))
        rows = Signal.like(row)
        left = Signal.like(row)  # not yet received
        words = Signal(range(p.code_rows + 1))
        ready = Signal()
        start = Signal()  # the reader's command is due
        m.d.comb += [
            rows.eq((self.old + (p.d - 1)) >> p.element_bits),
            words.eq((self.old * p.code_bits + 15) >> 4),
            requested.eq(row == 0),
            ready.eq((left == 0) & requested & ~start),
            reader.command.valid.eq(start & requested),
            reader.command.payload.address.eq(p.regions["code"].address_of(self.kv_head, 0)),
            reader.command.payload.words.eq(words),
        ]
        arrives = self.response.valid & self.response.payload.table & ~storing
        m.d.sync += left.eq(left - arrives)
        with m.If(reader.command.valid & reader.command.ready):
            m.d.sync += start.eq(0)
        # Rows of units are requested from the last one down.
        with m.If(row != 0):
            m.d.comb += [
                self.request.valid.eq(1),
                self.request.payload.table.eq(1),
                self.request.payload.number.eq(row - 1),
                self.request.payload.address.eq(
                    p.regions["unit"].address_of(self.kv_head, row - 1)
                ),
            ]
            with m.If(self.request.ready):
                m.d.sync += row.eq(row - 1)
        with m.If(self.begin):
            m.d.sync += [row.eq(rows), left.eq(rows), start.eq(1)]
        return ready

    def _multiply(self, m: Module, reader, ready: Signal) -> None:
        """Pairs of keys from the rows of codes, their scores times their units."""
        p = self.parameters
        bits = p.code_bits
        # Bits of an element that wait, in steps of what all shifts are multiples of.
        step = math.gcd(16, PAIR * bits)
        pair, row = PAIR * bits // step, 16 // step
        capacity = row + pair
        waiting = Signal(range(capacity + 1))
        buffer = Signal(data.ArrayLayout(capacity * step, p.d), reset_less=True)
        following = Signal(range(p.positions + 2))  # position of the next pair
        scored = Signal.like(following)
        busy = Signal()
        final = Signal()  # all rows are here
        out, load = Signal(), Signal()
        rest = Signal.like(waiting)
        enough = waiting >= pair
        m.d.comb += [
            out.eq(self.op.valid & self.op.ready & ~self._scales),
            rest.eq(waiting - Mux(out, Mux(enough, pair, waiting), 0)),
            reader.o.ready.eq(rest <= capacity - row),
            load.eq(reader.o.valid & reader.o.ready),
        ]
        with m.If(busy & self.go & ready & (following < self.old) & (enough | final)):
            m.d.comb += self.op.valid.eq(1)
        m.d.sync += waiting.eq(rest + Mux(load, row, 0))
        for e in range(p.d):
            kept = Mux(out, buffer[e] >> pair * step, buffer[e])
            added = Signal(capacity * step, name=f"added_{e}")
            with m.Switch(rest):
                for place in range(capacity - row + 1):
                    with m.Case(place):
                        m.d.comb += added.eq(reader.o.payload.data[e] << place * step)
            m.d.sync += buffer[e].eq(kept | Mux(load, added, 0))
            for key in range(PAIR):
                m.submodules[f"float_{key}_{e}"] = convert = FixedToFloat(
                    FixedToFloatParameters(width=bits)
                )
                code = buffer[e][key * bits : (key + 1) * bits]
                m.d.comb += convert.a.eq(code.as_signed())
                with m.If(~self._scales):
                    m.d.comb += self.op.payload.vectors[key][e].eq(convert.o)
        with m.If(load & reader.o.payload.last):
            m.d.sync += final.eq(1)
        with m.If(out):
            m.d.sync += following.eq(following + PAIR)

        # Results: units are read in one cycle and multiplied in the following two.
        units = row_memory(p.row_bits, p.table_rows)
        m.submodules.units = units
        write, read = units.write_port(), units.read_port()
        found = Signal.like(following)  # position of the next result
        taken = Signal()
        dots = Signal(result_layout(), reset_less=True)
        delays: list[Any] = [Signal(_delay_layout(p), name=f"delay_{n}") for n in range(3)]
        m.d.comb += [
            write.addr.eq(self.response.payload.number),
            write.data.eq(self.response.payload.data),
            write.en.eq(self.response.valid & self.response.payload.table),
            self.result.ready.eq(1),
            taken.eq(self.result.valid),
            read.addr.eq(found >> p.element_bits),
            read.en.eq(taken),
        ]
        m.d.sync += [
            delays[0].valid.eq(taken),
            delays[0].index.eq(found),
            *(after.eq(before) for before, after in zip(delays, delays[1:], strict=False)),
            dots.eq(self.result.payload),
        ]
        with m.If(taken):
            m.d.sync += found.eq(found + PAIR)
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
        with m.If(busy & (scored >= self.old)):
            m.d.sync += [busy.eq(0), self.done.eq(1)]
        with m.If(self.score.valid):
            m.d.sync += scored.eq(scored + PAIR)
        with m.If(self.begin):
            m.d.sync += [
                x.eq(0) for x in (waiting, buffer.as_value(), following, scored, found, final)
            ]
            m.d.sync += [busy.eq(1), self.done.eq(0)]


def _delay_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "index": range(p.positions + 2)})
