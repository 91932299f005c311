"""Parts of the KLLM core: rules of streams, forked beats, banks of tables; unbounded proofs."""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Signal
from amaranth.lib import data

from hw.component import Component
from hw.kllm import kllm_core
from hw.kllm.core import command_dispatch
from hw.kllm.core.command_dispatch import PER_VECTOR, CommandDispatch, command_layouts
from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.index_buffer import IndexBuffer, IndexBufferParameters
from hw.kllm.outlier_split import OutlierSplit, OutlierSplitParameters
from hw.ports import Ports, stream_in, stream_out
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block, prove_stream_rules
from tests.support.kllm.column_invariants import level_of

CORE = CoreParameters(
    *(16, 4, 1), activation_bits=2, weight_bits=1, counters=1, macs=4, entries=1, vectors=2, depth=4
)


DEPTHS = {
    name: IN_FLIGHT * (CORE.vectors if name in PER_VECTOR else 1) for name in command_layouts(CORE)
}
"""Commands for which each part's queue has room."""

BANK_PLACE = command_layouts(CORE)["results"]["bank"].offset
"""Bit of a product's bank in its command in the queue of results."""


def test_index_buffer():
    p = IndexBufferParameters(k=6, bits=1, lanes=1, segment=2, columns=3, vectors=2)
    prove_stream_rules(IndexBuffer(p), "index_buffer", "o", ["i", "replay"])


def test_outlier_split():
    p = OutlierSplitParameters(k=4, outliers=1, lanes=2)
    prove_stream_rules(OutlierSplit(p), "outlier_split", "outliers scale o", ["x", "wanted"])


class Fork(Component[None]):
    """One stream to two."""

    def ports(self) -> Ports:
        shape = data.StructLayout({"beat": 4})
        return {"i": stream_in(shape)} | {name: stream_out(shape) for name in ("a", "b")}

    def elaborate(self, platform):
        m = Module()
        kllm_core.fork(m, "fork", self.i, [self.a, self.b])
        return m


class ForkSpec(Elaboratable):
    """Each sink is given the present beat, once; it goes when both have had it."""

    def elaborate(self, platform):
        m = Module()
        dut = Fork()
        first, internals = surround(m, dut)
        had, have = [], []
        for number, sink in enumerate((dut.a, dut.b)):
            past = Signal(name=f"past_{number}")
            had.append(past)
            have.append(past | sink.ready)
            m.d.sync += past.eq(dut.i.valid & ~dut.i.ready & (past | sink.ready) & ~first)
            internal = internals.signal(f"fork_delivered_{number}")
            with m.If(~first):
                m.d.comb += [
                    Assert(sink.valid == (dut.i.valid & ~past), "a beat lost or doubled"),
                    Assert(~sink.valid | (sink.payload.beat == dut.i.payload.beat), "another beat"),
                    Assert(internal == past),
                ]
        with m.If(~first & dut.i.valid):
            m.d.comb += Assert(dut.i.ready == (have[0] & have[1]), "a beat goes at a wrong time")
        m.d.comb += Cover(~first & had[0] & ~had[1] & dut.b.ready & ~dut.a.ready)
        return m


@pytest.mark.parametrize(("mode", "depth"), [("prove", 2), ("cover", 5)])
def test_fork(mode, depth):
    prove_block(ForkSpec(), f"fork_{mode}", mode, depth=depth)


class BanksSpec(Elaboratable):
    """No tables are loaded into a bank that a product under way uses; every command has its own.

    Nor is a part's command lost, if the parts accept all of a product's before its last result.
    The first product has tables.

    inductive
        Whether to assert what ties the registers to that.
    """

    def __init__(self, dut: CommandDispatch, inductive: bool = True):
        self._dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut = self._dut
        first, internals = surround(m, dut)
        m.d.comb += dut.load_end.eq(AnySeq(1) & dut.load_room)

        command = dut.command.payload
        accept, tables, finished = (Signal(name=name) for name in ("accept", "tables", "finished"))
        push, vector = internals.signal("push"), internals.signal("vector")
        started = vector != 0  # some of the command's vectors are queued
        any_before = Signal()  # a command was accepted
        m.d.comb += [
            accept.eq(dut.command.valid & dut.command.ready & ~first),
            tables.eq(command.tables | command.replace),
            finished.eq(dut.results.valid & dut.results.ready & ~first),
        ]
        # Banks of the products under way, oldest first; of tables loaded, and of the last command.
        banks, count = Signal(IN_FLIGHT), Signal(range(IN_FLIGHT + 1))
        there, waiting, latest = Signal(), Signal(), Signal()
        own, left = Signal(), Signal(range(IN_FLIGHT + 1))
        m.d.comb += [
            own.eq(internals.signal("bank")),
            left.eq(count - finished),
        ]
        levels = {
            name: internals.signal(f"{name}_commands.fifo.level") for name in command_layouts(CORE)
        }
        for name in DEPTHS:
            each = name in PER_VECTOR
            most_left = (count - 1) * CORE.vectors + vector if each else count - 1 + started
            pushed = push if each else push & ~started
            lost = f"a command of {name} is lost"
            m.d.comb += Assert(~pushed | first | (levels[name] < DEPTHS[name]), lost)
            if name != "results":
                m.d.comb += Assume(~finished | (levels[name] <= most_left))
        m.d.comb += [
            # Results follow their product's last vector.
            Assume(~dut.results.ready | dut.results.valid),
            Assume(~finished | (count != 0)),
            Assume(~dut.command.valid | tables | any_before),
        ]
        m.d.sync += [
            any_before.eq((any_before | accept) & ~first),
            banks.eq(banks >> finished | (accept & own) << left),
            count.eq(left + accept),
            there.eq(dut.load_end | there & ~(accept & tables)),
        ]
        with m.If(dut.load_end):
            m.d.sync += waiting.eq(dut.load_bank)
        with m.If(accept):
            m.d.sync += latest.eq(own)
        with m.If(~first):
            m.d.comb += [
                Assert(count <= IN_FLIGHT, "too many products"),
                Assert(~dut.results.valid | (count != 0) | started, "a product from nowhere"),
                Assert(~finished | (dut.results.payload.bank == banks[0]), "another product"),
            ]
            with m.If(accept & tables):
                m.d.comb += Assert(there & (own == waiting), "tables that are not its own")
            with m.If(accept & ~tables):
                m.d.comb += Assert(own == latest, "tables that are not those of the command before")
            with m.If(dut.load_room):
                m.d.comb += Assert(~there, "tables loaded over others that wait")
                for n in range(IN_FLIGHT):
                    used = (count > n) & (banks[n] == dut.load_bank)
                    m.d.comb += Assert(~used, "tables in use are loaded over")
                m.d.comb += Assert(
                    ~started | (own != dut.load_bank), "tables in use are loaded over"
                )
            if self._inductive:
                self._invariant(m, internals, levels, banks, count, there, waiting)
                m.d.comb += [
                    Assert(~started | dut.command.valid),
                    Assert(~started | ~tables | there),
                    Assert(any_before | (count == 0)),
                    Assert(~any_before | (latest != dut.load_bank)),
                ]
                self._started(m, internals, started, own, count)
        m.d.comb += Cover(accept & (count == IN_FLIGHT - 1) & (banks[:3] == 0b110), "both banks")
        m.d.comb += Cover(accept & started & (count == 1), "a batch of two vectors")
        return m

    def _started(self, m, internals, started, own, count):
        """The command that has begun is the newest in the queue of results."""
        place = internals.signal("results_commands.fifo.consume") + count
        row = internals.row(m, "results_commands.fifo.storage", place[:2])
        m.d.comb += Assert(~started | (row[BANK_PLACE] == own))

    def _invariant(self, m, internals, levels, banks, count, there, waiting):
        vector = internals.signal("vector")
        for name, depth in DEPTHS.items():
            level_of(m, internals, f"{name}_commands", depth)
        m.d.comb += [
            Assert(levels["results"] == count + (vector != 0)),
            *(Assert(levels[name] <= count * CORE.vectors + vector) for name in PER_VECTOR),
            *(Assert(levels[n] <= levels["results"]) for n in DEPTHS if n not in PER_VECTOR),
            Assert(banks >> count == 0),
            Assert(internals.signal("loaded") == there),
            Assert(~there | (waiting == self._dut.load_bank)),
        ]
        used = [[], []]
        consume = internals.signal("results_commands.fifo.consume")
        for n in range(IN_FLIGHT):
            place = (consume + n)[: (IN_FLIGHT - 1).bit_length()]
            row = internals.row(m, "results_commands.fifo.storage", place)
            with m.If(count > n):
                m.d.comb += Assert(row[BANK_PLACE] == banks[n])
            for bank in (0, 1):
                used[bank].append((count > n) & (banks[n] == bank))
        for bank in (0, 1):
            m.d.comb += Assert(internals.signal(f"users_{bank}") == sum(used[bank]) % IN_FLIGHT)


def test_banks():
    prove_block(BanksSpec(CommandDispatch(CORE)), "command_dispatch", depth=2)


@pytest.mark.campaign
def test_banks_are_used():
    spec = BanksSpec(CommandDispatch(CORE), inductive=False)
    prove_block(spec, "command_dispatch", "cover", depth=14)


@pytest.mark.campaign
def test_loading_early_is_caught():
    """A bank is loaded again as soon as a product has its tables, though that is under way."""
    line = "~Mux(self.load_bank, *reversed(users)).any() & ~loaded"
    module = with_fault(command_dispatch, line, "~loaded")
    spec = BanksSpec(module.CommandDispatch(CORE), inductive=False)
    find_fault(spec, "command_dispatch_fault", "in use are loaded over", depth=9, solver="yices")
