"""Codebook replacement: every row and every beat in its place, none stuck; unbounded proof.

Properties of which number goes where, not of arithmetic, which is proved and simulated elsewhere: a
cheap function of the same operands replaces each arithmetic unit, with the same registers.
Commands, scales, vectors and stalls are arbitrary. Registers power up with any value; reset is high
in the first cycle.
"""

import pytest
from amaranth.hdl import Array, Assert, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.arith.float_multiply import FloatMultiply
from hw.kllm import codebook_replacement
from hw.kllm.codebook_replacement import CodebookReplacement, CodebookReplacementParameters
from hw.kllm.element_function import ElementFunction
from sim.checks.formal.specs import surround
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SIZES = {
    "two_lanes": CodebookReplacementParameters(1, 1, 2),
    "four_centroids": CodebookReplacementParameters(2, 1, 3),
}


def turned(x):
    return Cat(x[-1], x[:-1])


def product(a, b):
    return turned(a) ^ b


def function(x, op):
    return turned(x) ^ op


class PlainProduct(FloatMultiply):
    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += self.o.eq(product(self.a, self.b))
        return m


class PlainFunction(ElementFunction):
    """Its ranks are ``rank_0`` to ``rank_3``."""

    def elaborate(self, platform):
        m = Module()
        word = function(self.x, self.op)
        for stage in range(self.parameters.stages):
            rank = Signal(16, name=f"rank_{stage}")
            with m.If(self.enable):
                m.d.sync += rank.eq(word)
            word = rank
        m.d.comb += self.o.eq(word)
        return m


class ReplacementSpec(Elaboratable):
    """Each vector: its scale, then its rows if it has a function, then its beats, then its command.

    inductive
        Whether to assert what ties the registers to that.
    """

    def __init__(self, dut: CodebookReplacement, inductive: bool = True):
        self._dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut, p = self._dut, self._dut.parameters
        first, internals = surround(m, dut)
        command = dut.command.payload

        scaled, s_a = Signal(), Signal(16)  # the vector's scale is taken
        rows = Signal(range(p.centroids + 1))  # of it written
        names = ("begins", "written", "taken", "ended")
        begins, written, taken, ended = (Signal(name=name) for name in names)
        m.d.comb += [
            begins.eq(dut.scale.valid & dut.scale.ready & ~first),
            written.eq(dut.write.valid & dut.write.ready & ~first),
            taken.eq(dut.o.valid & dut.o.ready & ~first),
            ended.eq(taken & dut.o.payload.last),
        ]
        with m.If(begins):
            m.d.sync += [scaled.eq(1), s_a.eq(dut.scale.payload), rows.eq(0)]
        with m.If(written):
            m.d.sync += rows.eq(rows + 1)
        with m.If(ended):
            m.d.sync += scaled.eq(0)
        complete = Signal()
        m.d.comb += complete.eq(~command.replace | (rows == p.centroids))
        self._order(m, first, scaled, rows, complete, begins, taken, ended)
        self._values(m, first, s_a, rows)
        ranks = self._ranks(m, internals, first, scaled, s_a, rows, complete)
        self._progress(m, first, scaled, complete, *ranks)
        beats = Signal(2)
        m.d.sync += beats.eq(Mux(begins, 0, beats + taken))
        all_out = dut.i.payload.outlier.all() & command.replace
        m.d.comb += Cover(ended & (beats == 1) & all_out, "a second beat of outliers")
        return m

    def _order(self, m, first, scaled, rows, complete, begins, taken, ended):
        dut, p = self._dut, self._dut.parameters
        with m.If(~first):
            m.d.comb += [
                Assert(dut.scale.ready == (dut.command.valid & ~scaled), "a scale at a wrong time"),
                Assert(~dut.write.valid | scaled & ~complete, "a row too many"),
                Assert(~dut.o.valid | scaled & complete & dut.i.valid, "a beat at a wrong time"),
                Assert((dut.i.valid & dut.i.ready) == taken, "a beat lost or doubled"),
                Assert(
                    (dut.command.valid & dut.command.ready) == ended, "a command at a wrong time"
                ),
                Assert(rows <= p.centroids),
            ]

    def _values(self, m, first, s_a, rows):
        """Rows and beats are what they should be."""
        dut, command = self._dut, self._dut.command.payload
        row, i, o = dut.write.payload, dut.i.payload, dut.o.payload
        centroid = Signal(16)
        m.d.comb += centroid.eq(function(product(s_a, Array(command.centroids)[rows]), command.op))
        with m.If(dut.write.valid & ~first):
            m.d.comb += Assert((row.row == rows) & (row.bank == command.bank), "the wrong row")
            for value, weight in zip(row.values, command.codebook, strict=True):
                m.d.comb += Assert(value == product(centroid, weight), "a wrong product")
        with m.If(dut.o.valid & ~first):
            m.d.comb += Assert((o.outlier == i.outlier) & (o.last == i.last), "the wrong beat")
            for lane, (got, value) in enumerate(zip(o.values, i.values, strict=True)):
                want = Mux(i.outlier[lane] & command.replace, function(value, command.op), value)
                m.d.comb += Assert(got == want, "a wrong value")

    def _ranks(self, m, internals, first, scaled, s_a, rows, complete):
        """Registers hold what is on its way; what is left to do, of rows and of a beat."""
        dut, p, command = self._dut, self._dut.parameters, self._dut.command.payload
        rebuilding, passing = internals.signal("rebuilding"), internals.signal("passing")
        number, under_way = internals.signal("number"), internals.signal("under_way")
        returned, issued = internals.signal("returned"), internals.signal("issued")
        stages = p.function_latency
        flights = [internals.signal(f"under_way_{stage}") for stage in range(stages)]
        waits, offered = Signal(), Signal()
        m.d.sync += [
            waits.eq(dut.command.valid & ~dut.command.ready & ~first),
            offered.eq(dut.i.valid & ~dut.i.ready & ~first),
        ]
        count = sum(under_way)
        steps = sum((p.row_latency + 1 - n) * bit for n, bit in enumerate(under_way))
        rows_left = (p.centroids - number) * (p.row_latency + 2) + steps
        lanes_left = sum((stages + 1) * ~bit for bit in issued | ~dut.i.payload.outlier)
        lanes_left += sum((stages - n) * bit for n, flight in enumerate(flights) for bit in flight)
        left = [Signal(8, name=name) for name in ("rows_left", "lanes_left")]
        m.d.comb += [left[0].eq(rows_left), left[1].eq(lanes_left)]
        if not self._inductive:
            return left
        x = internals.signal("x")
        ranks = [
            internals.signal(f"function.rank_{stage}") for stage in range(p.element_function.stages)
        ]
        replaced = [internals.signal(f"replaced_{lane}") for lane in range(p.lanes)]
        with m.If(~first):
            m.d.comb += [
                Assert((rebuilding | passing) == scaled),
                Assert(~passing | complete),
                Assert(~rebuilding | ~complete),
                Assert(~rebuilding | command.replace),
                Assert(~scaled | (waits & (internals.signal("s_a") == s_a))),
                Assert(~scaled | (internals.signal("has_function") == command.replace)),
                Assert(~scaled | (internals.signal("op") == command.op)),
                Assert(internals.signal("fsm_state") != 3),
                Assert(rebuilding | (under_way == 0)),
                Assert((number <= p.centroids) & (~rebuilding | (number == rows + count))),
                Assert(rebuilding | passing | (number == 0)),
                Assert(internals.signal("row") == rows[:-1]),
                Assert(scaled | (rows[:-1] == 0)),
                Assert(rebuilding | passing & command.replace | (rows == 0) | ~scaled),
            ]
            # The pipeline of rows: what each stage should hold.
            pipe = [internals.signal("scale_centroid.o"), x, *ranks]
            for n in range(p.row_latency):
                source = Array(command.centroids)[
                    (number - 1 - sum(under_way[:n]))[: p.activation_bits]
                ]
                held = product(s_a, source)
                with m.If(under_way[n]):
                    if n < 2:
                        m.d.comb += Assert(pipe[n] == held)
                    elif n < len(pipe):
                        m.d.comb += Assert(pipe[n] == function(held, command.op))
                    else:
                        for column, weight in enumerate(command.codebook):
                            o = internals.signal(f"multiply_{column}.o")
                            m.d.comb += Assert(o == product(function(held, command.op), weight))
            # Outliers: each that is issued is in one stage, or returned.
            for lane in range(p.lanes):
                places = [returned[lane], *(flight[lane] for flight in flights)]
                outlier = dut.i.payload.values[lane]
                value = function(outlier, command.op)
                m.d.comb += [
                    Assert(sum(places) == issued[lane]),
                    Assert(
                        ~issued[lane]
                        | offered & passing & command.replace & dut.i.payload.outlier[lane]
                    ),
                    Assert(~returned[lane] | (replaced[lane] == value)),
                ]
                wanted = [outlier, *(value for _ in ranks)]
                for flight, rank, want in zip(flights, [x, *ranks], wanted, strict=True):
                    m.d.comb += Assert(~flight[lane] | (rank == want))
            for flight in flights:
                m.d.comb += Assert(sum(flight) <= 1)
        return left

    def _progress(self, m, first, scaled, complete, rows_left, lanes_left):
        """What is left to do becomes less in each cycle in which nothing outside stalls."""
        dut = self._dut
        before = [Signal.like(left, name=f"{left.name}_before") for left in (rows_left, lanes_left)]
        works = [Signal(name=f"{name}_work") for name in ("rows", "lanes")]
        m.d.sync += [
            before[0].eq(rows_left),
            before[1].eq(lanes_left),
            works[0].eq(scaled & ~complete & (~dut.write.valid | dut.write.ready) & ~first),
            works[1].eq(scaled & complete & dut.i.valid & ~dut.o.valid & ~first),
        ]
        with m.If(works[0] & ~first):
            m.d.comb += Assert(complete | (rows_left < before[0]), "rows stuck")
        with m.If(works[1] & ~first):
            m.d.comb += Assert(lanes_left < before[1], "a beat stuck")


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(codebook_replacement, "FloatMultiply", PlainProduct)
    monkeypatch.setattr(codebook_replacement, "ElementFunction", PlainFunction)


@pytest.mark.parametrize("size", suite_takes(["two_lanes"], SIZES))
def test_proof(plain, size):
    spec = ReplacementSpec(CodebookReplacement(SIZES[size]))
    prove_block(spec, f"codebook_replacement_{size}", depth=2, seconds=300)


def test_cover(plain):
    spec = ReplacementSpec(CodebookReplacement(SIZES["two_lanes"]), inductive=False)
    prove_block(spec, "codebook_replacement", "cover", depth=30, solver="yices", seconds=300)


FAULTS = {
    "never_again": (
        "issued.eq(Mux(taken, 0, issued | chosen))",
        "issued.eq(issued | chosen)",
        "stuck",
    ),
    "row_missing": ("number != p.centroids", "number != p.centroids - 1", "rows stuck"),
    "hasty": ("~self.write.valid | self.write.ready", "1", "stalled payload changed"),
    "command_lost": (
        "self.command.ready.eq(ended)",
        "self.command.ready.eq(self.i.ready)",
        "a command",
    ),
}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, found_by = FAULTS[fault]
    module = with_fault(codebook_replacement, line, instead)
    module.FloatMultiply, module.ElementFunction = PlainProduct, PlainFunction
    dut = module.CodebookReplacement(module.CodebookReplacementParameters(1, 1, 2))
    spec = ReplacementSpec(dut, inductive=False)
    find_fault(spec, f"codebook_replacement_{fault}", found_by, depth=24, solver="yices")
