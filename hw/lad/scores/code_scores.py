"""Scores of keys in a few bits: for the identification of active positions only."""

import math

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.fixed_to_float import FixedToFloat, FixedToFloatParameters
from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.arith.float_to_fixed import FloatToFixed, FloatToFixedParameters
from hw.arith.reciprocal import Reciprocal, ReciprocalParameters
from hw.arith.tables.lines import nearest
from hw.component import Component
from hw.lad.scores.score_source import score_source_ports
from hw.lad.scores.unit_products import PAIR, UnitProducts
from hw.lad.tile_parameters import LadTileParameters
from hw.ports import Ports
from hw.stream.sequential_reader import SequentialReader, SequentialReaderParameters

RECIPROCAL_STAGES = 2


class _NewKey:
    """Registers of the key that is encoded."""

    def __init__(self, p: LadTileParameters):
        self.first_bit = Signal(range(p.code_rows * 16))  # of the code, from the first row's
        self.offset = Signal(4)  # of the code in its first row
        self.old_code = Signal(p.row_layout, reset_less=True)
        self.old_unit = Signal(p.row_layout, reset_less=True)
        self.waiting = Signal(2)  # for rows: of codes, of units
        self.magnitudes = Signal(data.ArrayLayout(FP16.width - 1, p.d), reset_less=True)
        self.unit = Signal(FP16)
        self.timer = Signal(range(16))
        self.shifted = Signal(data.ArrayLayout(16 + p.code_bits, p.d), reset_less=True)


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
        # All units are on chip before the first score, since a row of them serves d keys and a row
        # of codes only some.
        m.submodules.reader = reader = SequentialReader(
            SequentialReaderParameters(
                address_width=p.address_width,
                data_width=p.row_bits,
                depth=2 * p.depth,
                longest=p.code_rows,
            ),
            shape=p.row_layout,
        )
        request, response = self.request, self.response
        # Whoever stores has the port; else the tables of units, then the codes.
        m.d.comb += [
            request.valid.eq(reader.request.valid),
            request.payload.number.eq(reader.request.payload.tag),
            request.payload.address.eq(reader.request.payload.address),
            # Units come first, because a score needs its position's unit; and a key is stored
            # before the codes are needed.
            reader.request.ready.eq(request.ready),
            reader.response.valid.eq(response.valid & ~response.payload.table & ~storing),
            reader.response.payload.tag.eq(response.payload.number),
            reader.response.payload.data.eq(response.payload.data),
            response.ready.eq(1),
        ]
        self._store(m, storing)
        ready = self._units(m, storing, reader)
        self._multiply(m, reader, ready)
        return m

    # The new key

    def _store(self, m: Module, storing: Signal) -> None:
        """The new key's code and unit into memory, behind the earlier keys."""
        key = _NewKey(self.parameters)
        scale, codes = self._encode(m, key)
        # Rows in which the key's words belong, as far as they are filled.
        response = self.response
        with m.If(storing & response.valid):
            with m.If(response.payload.table):
                m.d.sync += [key.old_unit.eq(response.payload.data), key.waiting[1].eq(0)]
            with m.Else():
                m.d.sync += [key.old_code.eq(response.payload.data), key.waiting[0].eq(0)]
        with m.FSM() as fsm:
            m.d.comb += storing.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                # The position is known long before it is stored.
                m.d.sync += key.waiting.eq(0)
                with m.If(self.store):
                    m.next = "READ_CODE"
            self._read_states(m, key)
            self._encode_states(m, key, scale, codes)
            self._write_states(m, key)

    def _encode(self, m: Module, key: "_NewKey") -> tuple[Value, list[Value]]:
        """Arithmetic of a new key: its scale L / peak; the codes of the scaled elements."""
        p = self.parameters
        bits = p.code_bits
        peak = Cat(key.magnitudes[0], 0)
        m.submodules.reciprocal = reciprocal = Reciprocal(
            ReciprocalParameters(stages=RECIPROCAL_STAGES)
        )
        m.submodules.scale = scale = FloatMultiply(FloatMultiplyParameters(stages=1))
        m.submodules.unit = unit = FloatMultiply(FloatMultiplyParameters(stages=1))
        largest = (1 << bits - 1) - 1
        m.d.comb += [
            key.offset.eq(key.first_bit[:4]),
            reciprocal.x.eq(peak),
            scale.a.eq(reciprocal.o),
            scale.b.eq(Const(nearest(largest, FP16), 16)),
            unit.a.eq(peak),
            unit.b.eq(Const(nearest(1 / largest, FP16), 16)),
            key.unit.eq(unit.o),
        ]
        m.d.sync += key.first_bit.eq(self.position * bits)
        codes = []
        for e in range(p.d):
            m.submodules[f"round_{e}"] = convert = FloatToFixed(FloatToFixedParameters(width=bits))
            m.d.comb += convert.a.eq(self.vector.payload[e])
            codes.append(Value.cast(convert.o)[:bits])
        return scale.o, codes

    def _access(self, m: Module, region: str, row: Value, write: bool) -> None:
        """Request a row of codes or of units, to read or to write it."""
        request, place = self.request, self.parameters.regions[region]
        m.d.comb += [
            request.valid.eq(1),
            request.payload.table.eq(region == "unit"),
            request.payload.address.eq(place.address_of(self.kv_head, row)),
            request.payload.write.eq(write),
        ]

    def _read_states(self, m: Module, key: "_NewKey") -> None:
        """Read the rows in which other keys' words are before the new key's."""
        p, request = self.parameters, self.request
        with m.State("READ_CODE"):
            # At the beginning of a row no other key's code is lost.
            with m.If(key.offset == 0):
                m.next = "READ_UNIT"
            with m.Else():
                self._access(m, "code", key.first_bit >> 4, False)
                with m.If(request.ready):
                    m.d.sync += key.waiting[0].eq(1)
                    m.next = "READ_UNIT"
        with m.State("READ_UNIT"):
            # Likewise the row of units; meanwhile the search for the peak begins.
            m.d.sync += key.timer.eq(0)
            for e in range(p.d):
                m.d.sync += key.magnitudes[e].eq(self.k[e][:-1])
            with m.If(self.position[: p.element_bits] == 0):
                m.next = "PEAK"
            with m.Else():
                self._access(m, "unit", self.position >> p.element_bits, False)
                with m.If(request.ready):
                    m.d.sync += key.waiting[1].eq(1)
                    m.next = "PEAK"

    def _encode_states(self, m: Module, key: "_NewKey", scale: Value, codes: list[Value]) -> None:
        """The key's largest magnitude, its scaled elements, and their codes, shifted into place."""
        p = self.parameters
        timer, magnitudes, shifted = key.timer, key.magnitudes, key.shifted
        with m.State("PEAK"):
            # The larger ones of neighbours, until one remains.
            m.d.sync += timer.eq(timer + 1)
            for e in range(p.d // 2):
                low, high = magnitudes[2 * e], magnitudes[2 * e + 1]
                m.d.sync += magnitudes[e].eq(Mux(low > high, low, high))
            with m.If(timer == p.element_bits - 1):
                m.d.sync += timer.eq(0)
                m.next = "SCALE"
        with m.State("SCALE"):
            # The reciprocal of the peak, and its product with L.
            m.d.sync += timer.eq(timer + 1)
            with m.If(timer == RECIPROCAL_STAGES + 1):
                m.next = "MULTIPLY"
        with m.State("MULTIPLY"):
            # The first VPU scales all elements.
            m.d.comb += [
                self.op.valid.eq(1),
                self._scales.eq(1),
                self.op.payload.factor.eq(scale),
                self.op.payload.vectors[0].eq(self.k),
            ]
            with m.If(self.op.ready):
                m.next = "ROUND"
        with m.State("ROUND"):
            # Its result is rounded as it is accepted.
            m.d.comb += self.vector.ready.eq(1)
            m.d.sync += timer.eq(0)
            for e, code in enumerate(codes):
                m.d.sync += shifted[e].eq(code)
            with m.If(self.vector.valid):
                m.next = "SHIFT"
        with m.State("SHIFT"):
            # A bit a cycle: a code begins anywhere in an element's 16 bits.
            with m.If(timer == key.offset):
                with m.If(key.waiting == 0):
                    m.next = "WRITE_CODE"
            with m.Else():
                m.d.sync += timer.eq(timer + 1)
                for e in range(p.d):
                    m.d.sync += shifted[e].eq(shifted[e] << 1)

    def _write_states(self, m: Module, key: "_NewKey") -> None:
        """Write the code, in one row or two, and the unit."""
        p, request = self.parameters, self.request
        first_row = key.first_bit >> 4
        straddles = Signal()  # the code ends in the next row
        mask = Signal(16)  # bits of other keys' codes
        m.d.comb += [
            straddles.eq(key.offset + p.code_bits > 16),
            mask.eq((1 << key.offset) - 1),
        ]
        with m.State("WRITE_CODE"):
            # Behind the codes in its first row.
            self._access(m, "code", first_row, True)
            for e in range(p.d):
                old = key.old_code[e] & mask
                m.d.comb += request.payload.data[e].eq(key.shifted[e][:16] | old)
            with m.If(request.ready):
                m.next = "WRITE_UNIT"
                with m.If(straddles):
                    m.next = "WRITE_REST"
        with m.State("WRITE_REST"):
            # The bits that did not fit begin the next row.
            self._access(m, "code", first_row + 1, True)
            for e in range(p.d):
                m.d.comb += request.payload.data[e].eq(key.shifted[e][16:])
            with m.If(request.ready):
                m.next = "WRITE_UNIT"
        with m.State("WRITE_UNIT"):
            # The unit into its row, zeros behind it.
            self._access(m, "unit", self.position >> p.element_bits, True)
            in_table = self.position[: p.element_bits]
            for e in range(p.d):
                old = Mux(in_table > e, key.old_unit[e], 0) if e < p.d - 1 else 0
                m.d.comb += request.payload.data[e].eq(Mux(in_table == e, key.unit, old))
            with m.If(request.ready):
                m.d.comb += self.stored.eq(1)
                m.next = "IDLE"

    # Scores

    def _units(self, m: Module, storing, reader) -> Value:
        """Request the units, then the codes; returns: all units are there."""
        p = self.parameters
        row = Signal(range(p.table_rows + 1))
        rows = Signal.like(row)
        remaining = Signal.like(row)  # not yet received
        words = Signal(range(p.code_rows + 1))
        start = Signal()  # the reader's command is due
        m.d.comb += [
            rows.eq((self.old + (p.d - 1)) >> p.element_bits),
            words.eq((self.old * p.code_bits + 15) >> 4),
            reader.command.valid.eq(start & (row == 0)),
            reader.command.payload.address.eq(p.regions["code"].address_of(self.kv_head, 0)),
            reader.command.payload.words.eq(words),
        ]
        arrives = self.response.valid & self.response.payload.table & ~storing
        m.d.sync += remaining.eq(remaining - arrives)
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
            m.d.sync += [row.eq(rows), remaining.eq(rows), start.eq(1)]
        return remaining == 0

    def _multiply(self, m: Module, reader, ready: Value) -> None:
        """Scores of all positions before the window, from `begin` to `done`."""
        p = self.parameters
        busy = Signal()
        scored = Signal(range(p.positions + 2))
        self._pairs(m, reader, self.go & ready)
        m.submodules.products = products = UnitProducts(p)
        response = self.response
        m.d.comb += [
            products.begin.eq(self.begin),
            products.row_valid.eq(response.valid & response.payload.table),
            products.row_number.eq(response.payload.number),
            products.row.eq(response.payload.data),
            self.result.ready.eq(1),
            products.valid.eq(self.result.valid),
            products.dots.eq(self.result.payload),
            self.score.eq(products.score),
            self.done.eq(~busy),
        ]
        with m.If(scored >= self.old):
            m.d.sync += busy.eq(0)
        with m.If(self.score.valid):
            m.d.sync += scored.eq(scored + PAIR)
        with m.If(self.begin):
            m.d.sync += [scored.eq(0), busy.eq(1)]

    def _pairs(self, m: Module, reader, goes: Value) -> None:
        """Pairs of keys from the rows of codes to the VPUs."""
        p = self.parameters
        bits = p.code_bits
        # Bits of an element that wait, in steps of what all shifts are multiples of.
        step = math.gcd(16, PAIR * bits)
        pair, row = PAIR * bits // step, 16 // step
        capacity = row + pair
        waiting = Signal(range(capacity + 1))
        buffer = Signal(data.ArrayLayout(capacity * step, p.d), reset_less=True)
        following = Signal(range(p.positions + 2))  # position of the next pair
        final = Signal()  # all rows are here
        out = Signal()
        load = Signal()
        rest = Signal.like(waiting)
        enough = waiting >= pair
        m.d.comb += [
            out.eq(self.op.valid & self.op.ready & ~self._scales),
            rest.eq(waiting - Mux(out, Mux(enough, pair, waiting), 0)),
            reader.o.ready.eq(rest <= capacity - row),
            load.eq(reader.o.valid & reader.o.ready),
        ]
        with m.If(goes & (following < self.old) & (enough | final)):
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
        with m.If(self.begin):
            m.d.sync += [x.eq(0) for x in (waiting, buffer.as_value(), following, final)]
