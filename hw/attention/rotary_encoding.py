"""Rotary encoding of queries and keys: pairs of elements turned by their position."""

import dataclasses
from functools import cached_property, partial

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.arith.float_multiply_add import FloatMultiplyAdd, FloatMultiplyAddParameters
from hw.arith.sine_cosine import QUARTER, SineCosine, SineCosineParameters
from hw.attention.delay import delay
from hw.component import Component
from hw.layout import FLAG, FixedPoint, mask, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

TURN = 32
"""Fraction bits of the turns that a pair makes from one position to the next."""

PHASE = QUARTER + 2
"""Fraction bits of the angle whose sine and cosine are looked up, in turns."""

LATENCY = 6
"""Stages: turns read; times position; sine and cosine; products; sums; rounding to FP16."""


@dataclasses.dataclass(frozen=True)
class RotaryEncodingParameters(Parameters):
    """
    pairs
        Pairs of the longest head, a multiple of `lanes` from 1 to 512: half its elements.
    lanes
        Pairs in a beat, 1 to 32.
    positions
        Number of positions, a power of two from 2 to 65536.
    """

    pairs: int = 32
    lanes: int = 2
    positions: int = 8192

    def __post_init__(self):
        require(1 <= self.lanes <= 32, "lanes must be between 1 and 32", self.lanes)
        fits = 1 <= self.pairs <= 512 and self.pairs % self.lanes == 0
        rule = f"pairs must be a multiple of lanes = {self.lanes} between 1 and 512"
        require(fits, rule, self.pairs)
        power = 2 <= self.positions <= 65536 and self.positions & (self.positions - 1) == 0
        rule = "positions must be a power of two between 2 and 65536"
        require(power, rule, self.positions)

    @classmethod
    def presets(cls) -> dict[str, "RotaryEncodingParameters"]:
        return {"small": cls(pairs=4, lanes=1), "default": cls()}

    @property
    def rows(self) -> int:
        """Beats of the longest head, and rows of the table of turns."""
        return self.pairs // self.lanes

    @property
    def latency(self) -> int:
        """Cycles from a beat of pairs to the pairs turned."""
        return LATENCY

    def cycles(self, heads: list[int]) -> int:
        """Cycles from the first row of turns offered to the last pair accepted, without stalls.

        heads
            Pairs of each head. All rows of the table are loaded ahead of them.
        """
        return self.rows + sum(-(-pairs // self.lanes) for pairs in heads) + LATENCY

    @cached_property
    def turns_layout(self) -> data.StructLayout:
        """A row of the table: for each lane's pair, turns from one position to the next."""
        turn = FixedPoint(unsigned(TURN), TURN)
        return data.StructLayout({"turn": data.ArrayLayout(turn, self.lanes), "last": FLAG})

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """``position`` of a head's token."""
        return data.StructLayout({"position": position(range(self.positions))})

    @cached_property
    def pairs_layout(self) -> data.StructLayout:
        """``a``, ``b``: first and second elements of pairs; ``keep``: lanes with a pair; ``last``
        of the head."""
        elements = dict.fromkeys(("a", "b"), data.ArrayLayout(FP16, self.lanes))
        return data.StructLayout(elements | {"keep": mask(self.lanes), "last": FLAG})


class RotaryEncoding(Component[RotaryEncodingParameters]):
    """a' = a cos(n t) - b sin(n t), b' = a sin(n t) + b cos(n t), pair by pair of a head.

    ::

        turns ─→ memory ─→ turn t ─→ × position ─→ fraction of a turn ─→ SineCosine ─┐
        i ─→ a, b ───────────────────────────────────────────────────────────────────┴→ o

    n is the position that the head's command says, t the pair's turns a position, which the table
    has: base^(-2 pair / d) / 2 pi, stretched or not, of any model. Only the fraction of n t counts,
    so it is the low 32 bits of an integer product, at any position.

    Which elements are a pair is the sender's business: neighbours (2 i, 2 i + 1) are every second
    element as `a`, the others as `b`; halves (i, i + d / 2) are a head's halves as `a` and `b`.
    Elements that are not turned are not sent.

    Accuracy: a turn is off by 2^-33, an angle by that times the position, and by 2^-16 of a turn
    where it is cut to 15 bits; cosine and sine are rounded to FP16. Up to position 8191 each is
    off by less than 2^-11; so a result is off by half a unit in the last place and
    2^-11 (|a| + |b|). Position 0 turns nothing.

    Special operands: as the IEEE operations give them; every NaN is the canonical one. A result too
    large is infinite. Nothing is flagged.

    Latency: 6 cycles. Throughput: `lanes` pairs a cycle, heads without gaps.

    Handshake: no pair is accepted before the table's first row that is ``last``. From then on rows
    loaded anew must not be in use: they count from the first. A beat of pairs is accepted only
    while its head's command is valid, and the command is accepted with the head's last beat.
    ``i.ready`` depends combinationally on ``o.ready`` and ``command.valid``, ``command.ready`` on
    ``i.valid`` too; ``o`` depends on registers only. All stages advance together, in every cycle
    in which the last is empty or is read. A head of more pairs than `pairs` begins the table again.

    Examples
    --------
    >>> from hw.attention.rotary_encoding import RotaryEncodingParameters
    >>> parameters = RotaryEncodingParameters(pairs=32, lanes=2)
    >>> parameters.rows, parameters.cycles([32] * 12)  # nine query heads, three key heads
    (16, 214)
    """

    summary = "Rotary encoding: pairs of elements turned by their position"
    source = "LAD, section IV-B(6)"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "turns": stream_in(p.turns_layout, "Rows of the table of turns, from the first on."),
            "command": stream_in(p.command_layout, "Positions, a beat for each head."),
            "i": stream_in(p.pairs_layout, "Pairs of heads."),
            "o": stream_out(p.pairs_layout, "The same pairs, turned."),
        }

    def elaborate(self, platform):
        m = Module()
        p, i, o = self.parameters, self.i, self.o
        valid = Signal(LATENCY)
        enable = Signal()
        accepted = Signal()
        loaded = Signal()
        row = Signal(range(p.rows))  # of the next beat
        m.d.comb += [
            enable.eq(~valid[-1] | o.ready),
            i.ready.eq(enable & self.command.valid & loaded),
            accepted.eq(i.valid & i.ready),
            self.command.ready.eq(accepted & i.payload.last),
            o.valid.eq(valid[-1]),
        ]
        with m.If(enable):
            m.d.sync += valid.eq(valid << 1 | accepted)
        with m.If(accepted):
            m.d.sync += row.eq(Mux(i.payload.last | (row == p.rows - 1), 0, row + 1))
        table = self._table(m, loaded, enable, row)

        pipeline = partial(delay, m, enable=enable, reset=False)
        # The position waits for its row of the table, a beat's flags for the results.
        place = pipeline("place", self.command.payload.position)
        flags = pipeline("flags", Cat(i.payload.keep, i.payload.last), LATENCY)
        m.d.comb += Cat(o.payload.keep, o.payload.last).eq(flags)
        for lane in range(p.lanes):
            phase = Signal(PHASE, name=f"phase_{lane}")
            # Whole turns drop out; half a unit more rounds the rest.
            angle = place * table.word_select(lane, TURN) + (1 << TURN - PHASE - 1)
            with m.If(enable):
                m.d.sync += phase.eq(angle[TURN - PHASE : TURN])
            # Table, angle and sine take three stages.
            a = pipeline(f"a_{lane}", i.payload.a[lane], 3)
            b = pipeline(f"b_{lane}", i.payload.b[lane], 3)
            turned = self._turn(m, lane, enable, phase, a, b)
            for out, value in zip((o.payload.a[lane], o.payload.b[lane]), turned, strict=True):
                m.d.comb += out.eq(Mux(o.payload.keep[lane], value, 0))
        return m

    def _table(self, m: Module, loaded: Signal, enable: Signal, row: Signal) -> Value:
        """The row of turns of the beat accepted the stage before."""
        p, turns = self.parameters, self.turns
        # A row has the turns of all lanes' pairs, so a beat reads one.
        rows = memory.Memory(shape=unsigned(TURN * p.lanes), depth=p.rows, init=[])
        m.submodules.rows = rows
        write, read = rows.write_port(), rows.read_port()
        number = Signal(range(p.rows))  # of the row that is loaded next
        m.d.comb += [
            turns.ready.eq(1),
            write.en.eq(turns.valid),
            write.addr.eq(number),
            write.data.eq(turns.payload.turn.as_value()),
            read.en.eq(enable),
            read.addr.eq(row),
        ]
        with m.If(turns.valid):
            m.d.sync += number.eq(Mux(turns.payload.last | (number == p.rows - 1), 0, number + 1))
            with m.If(turns.payload.last):
                m.d.sync += loaded.eq(1)
        return read.data

    def _turn(self, m: Module, lane: int, enable: Signal, phase: Value, a: Value, b: Value):
        """A pair, turned; `a` and `b` come a stage after `phase`, as its sine."""
        m.submodules[f"sine_{lane}"] = angle = SineCosine(SineCosineParameters(stages=1))
        m.d.comb += [angle.enable.eq(enable), angle.phase.eq(phase)]
        # b times its factor, exact in FP32, and a stage later a times its own, added to it.
        later = [
            delay(m, f"later_{name}_{lane}", value, enable=enable, reset=False)
            for name, value in (("a", a), ("cosine", angle.cosine), ("sine", angle.sine))
        ]
        minus_sine = Cat(angle.sine[:-1], ~angle.sine[-1])
        # Minus zero as addend keeps the sign of a product that is zero.
        minus_zero = Const(1 << FP32.width - 1, FP32.width)
        results = []
        for name, first, second in (("a", later[1], minus_sine), ("b", later[2], angle.cosine)):
            sizes = FloatMultiplyAddParameters(format="fp16", sum_format="fp32", stages=1)
            product, total = FloatMultiplyAdd(sizes), FloatMultiplyAdd(sizes)
            narrow = FloatConvert(FloatConvertParameters(stages=1))
            m.submodules[f"product_{name}_{lane}"] = product
            m.submodules[f"sum_{name}_{lane}"] = total
            m.submodules[f"narrow_{name}_{lane}"] = narrow
            m.d.comb += [
                *(unit.enable.eq(enable) for unit in (product, total, narrow)),
                *(product.a.eq(b), product.b.eq(second), product.c.eq(minus_zero)),
                *(total.a.eq(later[0]), total.b.eq(first), total.c.eq(product.o)),
                narrow.a.eq(total.o),
            ]
            results.append(narrow.o)
        return results
