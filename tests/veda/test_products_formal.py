# amaranth: UnusedElaboratable=no
"""Streams of the parts of matrix products, and what a replay buffer outputs; unbounded proofs."""

import sys

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Elaboratable, Module, Signal

from hw.attention.row_reader import run_layout
from hw.stream import replay_buffer
from hw.stream.replay_buffer import ReplayBuffer
from hw.veda import dispatcher as dispatcher_module
from hw.veda.compared_rows import ComparedRows
from hw.veda.dispatcher import Dispatcher, DispatcherLayouts
from hw.veda.product_sequence import ProductSequence
from hw.veda.scheduler import Scheduler
from hw.veda.vector_feed import VectorFeed, VectorFeedParameters
from hw.veda.veda_core import VedaCoreParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

pytestmark = pytest.mark.campaign

CORE = VedaCoreParameters(
    *(1, 2, 1, 4, 2, 1, 4),
    position_bits=3,
    count_bits=1,
    parallel=1,
    contexts=2,
    vector=3,
    tokens=2,
    normed=2,
    weights=8,
)


class Rules(Elaboratable):
    """Outputs keep the rules of streams; all are seen to stall."""

    def __init__(self, dut, outputs: list[str], leave: tuple[str, ...] = ()):
        self.dut, self._outputs, self._leave = dut, outputs, leave

    def elaborate(self, platform):
        m = Module()
        first, internals = surround(m, self.dut, self._leave)
        self.constrain(m, first, internals)
        for name in self._outputs:
            port = getattr(self.dut, name)
            m.d.comb += Cover(~first & port.valid & ~port.ready, f"{name} stalls")
        return m

    def constrain(self, m: Module, first, internals) -> None:
        """What the environment does."""


class ReplaySpec(Rules):
    """Word number `watched` of a job comes out in its place, each time."""

    def constrain(self, m, first, internals):
        dut, job = self.dut, self.dut.job.payload
        watched, value = AnyConst(2), AnyConst(2)
        stored, shown = Signal(2), Signal(2)  # words of the job stored, and output, modulo
        known = Signal()  # it has been stored
        # One job alone, whose words are all that come: it is offered until it ends.
        ended = Signal()
        with m.If(dut.job.ready & dut.job.valid):
            m.d.sync += ended.eq(1)
        m.d.comb += [
            Assume(dut.job.valid == ~ended),
            Assume((job.words != 0) & (job.times != 0) & (watched < job.words)),
            Assume(~dut.i.valid | (stored != job.words)),
            Assume(~dut.i.valid | (stored != watched) | (dut.i.payload == value)),
        ]
        with m.If(dut.i.valid & dut.i.ready):
            m.d.sync += [stored.eq(stored + 1), known.eq(known | (stored == watched))]
        with m.If(dut.o.valid & dut.o.ready):
            m.d.sync += shown.eq(shown + 1)
            with m.If(shown + 1 == job.words):
                m.d.sync += shown.eq(0)
        at = dut.o.valid & (shown == watched) & ~first
        m.d.comb += [
            Assert(~at | (dut.o.payload == value), "another word"),
            Assert(~at | known, "a word that has not come"),
            Cover(ended & (job.times == 2) & (job.words == 3), "three words, twice"),
        ]


def test_a_reshown_word_is_the_stored_one():
    for mode, depth in (("bmc", 16), ("cover", 16)):
        prove_block(ReplaySpec(ReplayBuffer(3, 2, 2), ["o"]), "replay_words", mode, depth=depth)


FAULTS = [
    ("(position < held)", "(position <= held)"),
    ("number.eq(number + 1), read.addr.eq(first)", "number.eq(number + 1)"),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_faults_of_the_buffer_are_found(number):
    dut = with_fault(replay_buffer, *FAULTS[number]).ReplayBuffer(3, 2, 2)
    find_fault(ReplaySpec(dut, ["o"]), f"replay_fault_{number}", depth=16)


class FeedRules(Rules):
    """Normalised elements are those that have come out, each once."""

    def constrain(self, m, first, internals):
        dut, inside = self.dut, Signal(4)
        came, went = dut.raw.valid & dut.raw.ready, dut.normed.valid & dut.normed.ready
        m.d.sync += inside.eq(inside + came - went)
        m.d.comb += Assume(~dut.normed.valid | (inside != 0))
        job = dut.job.payload
        m.d.comb += Assume((job.rows != 0) & (job.vectors != 0) & (job.blocks != 0))
        m.d.comb += Assume((job.rows <= 3) & (job.vectors <= 2) & (job.blocks <= 2))


class DispatcherRules(Rules):
    """The scheduler refuses a step as its payload says, so at any time the same one."""

    def constrain(self, m, first, internals):
        m.d.comb += self.dut.refused.eq(AnyConst(1))
        m.d.comb += self.dut.reading.eq(AnySeq(1))


def dispatcher() -> Dispatcher:
    p = CORE
    use = ComparedRows(p.attention).run.payload.shape()
    run = run_layout(p.reader, p.times)
    layouts = DispatcherLayouts(Scheduler(p.schedule), p.command_layout, run, use, p.memory)
    return Dispatcher(p.product, layouts, p.cached_rows, p.attention.turns)


OUTPUTS = ["step", "job", "turn", "run", "use", "step_lookup", "request"]
PARTS = {
    "replay_buffer": lambda: Rules(ReplayBuffer(3, 2, 2), ["o"]),
    "sequence": lambda: Rules(ProductSequence(CORE.product), ["run"]),
    "dispatcher": lambda: DispatcherRules(dispatcher(), OUTPUTS),
}


@pytest.mark.parametrize("name", PARTS)
def test_streams(name):
    for mode, depth in (("prove", 3), ("cover", 16)):
        prove_block(PARTS[name](), f"products_{name}", mode, depth=depth)


def test_streams_of_the_feed():
    """Not unbounded, as elements inside the norm are counted outside: 16 cycles."""
    for mode in ("bmc", "cover"):
        dut = VectorFeed(VectorFeedParameters(3, 2, 2))
        prove_block(FeedRules(dut, ["raw", "factors"]), "products_feed", mode, depth=16)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (
            "join(m, [step], [self.step], sequence.command.ready)",
            "join(m, [step], [self.step], ~self.lookup.valid)",
        ),
        ("with m.If(of_step):", "with m.If(self.step_request.valid):"),
    ],
    ids=["step", "request"],
)
def test_faults_of_the_dispatcher_are_found(monkeypatch, line, instead):
    faulty = with_fault(dispatcher_module, line, instead)
    monkeypatch.setattr(sys.modules[__name__], "Dispatcher", faulty.Dispatcher)
    find_fault(DispatcherRules(dispatcher(), OUTPUTS), "dispatcher_fault", depth=12)
