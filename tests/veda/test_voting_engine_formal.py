"""Counts and evictions of a voting engine of four slots, two heads, two contexts; unbounded proof.

Commands, probabilities and stalls are arbitrary. Registers and memories power up with any value;
reset is high in the first cycle. Simulation checks the arithmetic: which slots get a vote. Proved
for any threshold: a slot gets at most one vote, only where votes are cast, the right slots are
evicted, and a step changes no other context's.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal

from hw.attention.probability import ONE
from hw.veda import vote_buffer, voting_engine
from hw.veda.vote_threshold import VoteThreshold
from hw.veda.voting_engine import VotingEngine, VotingEngineParameters
from sim.checks.formal.specs import surround
from tests.support.faults import with_fault
from tests.support.formal import find_fault, prove_block

SMALL = VotingEngineParameters(capacity=4, heads=2, position_bits=3, count_bits=2, contexts=2)
IDLE, JOIN, SUM, SUMMED, THRESHOLD, COUNT, REPORT, COUNTED, MOVE = range(9)


class VotingSpec(Elaboratable):
    """The model: rows as they were when the step began, moved as slots leave.

    A row is its slot's, with one vote more at most; slots that leave have the most votes of those
    that are not protected, and the oldest token of these.
    """

    def __init__(self, dut: VotingEngine, inductive: bool = True):
        self.dut, self._inductive = dut, inductive

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut)
        live = ~first
        lived = Signal()  # for a cycle
        m.d.sync += lived.eq(live)
        state = internals.signal("fsm_state")
        best_slot = internals.signal("buffer.best_slot")
        # The command, what is left of its probabilities, and whether votes may be cast.
        command = Signal(p.command_layout)
        offered = dut.command.payload
        context = Signal()  # whose rows, length and tokens the model has
        m.d.comb += context.eq(Mux(state == IDLE, offered.context, command.context))
        found = [internals.row(m, "buffer.rows", k) for k in range(p.contexts * p.capacity)]
        rows = [Signal(found[0].shape(), name=f"row_{k}") for k in range(p.capacity)]
        memory = [row.as_value() for row in found]
        for k, row in enumerate(rows):
            m.d.comb += row.as_value().eq(Array(memory)[context * p.capacity + k])
        for k, row in enumerate(memory):
            earlier = Signal(len(row), name=f"earlier_{k}")
            m.d.sync += earlier.eq(row)
            mine = (state != IDLE) & (command.context == k // p.capacity)
            m.d.comb += Assert((row == earlier) | mine | ~lived | first, "another context's row")
        invalid = Signal()
        left = Signal(range(p.heads * p.capacity + 1))
        lengths = [Signal(range(p.capacity + 2), name=f"length_{n}") for n in range(p.contexts)]
        tokens = [Signal(p.position_bits, name=f"token_{n}") for n in range(p.contexts)]
        length, token = Array(lengths)[context], Array(tokens)[context]
        accepted = Signal()
        joins = Signal()
        taken = Signal()
        moves = Signal()
        casting = Signal()
        wanted = Signal()
        m.d.comb += [
            Assume((offered.heads != 0) & (offered.heads <= p.heads)),
            accepted.eq(dut.command.valid & dut.command.ready & live),
            taken.eq(dut.i.valid & dut.i.ready & live),
            moves.eq((state == MOVE) & live),
            casting.eq(command.vote & ~invalid),
            wanted.eq((command.evict & (length > command.target)) | (length == p.capacity)),
        ]
        m.d.sync += joins.eq(accepted)
        with m.If(accepted):
            m.d.sync += [command.eq(offered), invalid.eq(0)]
            with m.If(offered.restart):
                m.d.sync += [length.eq(0), token.eq(0)]
        with m.If(joins):
            m.d.sync += [length.eq(length + 1), token.eq(token + 1)]
            m.d.sync += left.eq(Mux(command.heads == 2, (length + 1) << 1, length + 1))
        with m.If(taken):
            m.d.sync += [left.eq(left - 1), invalid.eq(invalid | (dut.i.payload > ONE))]
        with m.If(moves):
            m.d.sync += length.eq(length - 1)

        # Rows when the step began.
        before = [Signal.like(row, name=f"before_{k}") for k, row in enumerate(rows)]
        evicted = Signal()
        out = Signal.like(best_slot, name="out")
        out_position = Signal(p.position_bits)
        with m.If(accepted):
            m.d.sync += [old.eq(row) for old, row in zip(before, rows, strict=True)]
            m.d.sync += evicted.eq(0)
        moved = Signal.like(rows[0], name="moved")
        best = Signal.like(rows[0], name="best")
        for k, row in enumerate(rows):
            with m.If(length == k + 1):
                m.d.comb += moved.eq(before[k])
            with m.If(best_slot == k):
                m.d.comb += best.eq(row)
            with m.If(joins & (length == k)):
                m.d.sync += [before[k].count.eq(0), before[k].position.eq(token)]
            with m.If(moves & (best_slot == k)):
                m.d.sync += before[k].eq(moved)
        with m.If(moves):
            m.d.sync += [evicted.eq(1), out.eq(best_slot), out_position.eq(best.position)]

        most = (1 << p.count_bits) - 1
        o = dut.o.payload
        for k, (row, old) in enumerate(zip(rows, before, strict=True)):
            with m.If(live & (state != IDLE) & (k < length)):
                voted = (row.count == old.count + 1) & (old.count != most) & casting
                m.d.comb += [
                    Assert(row.position == old.position, "a slot has another token"),
                    Assert((row.count == old.count) | voted, "more than a vote"),
                ]
                with m.If(moves):
                    shielded, also = (
                        best.position < command.protected,
                        row.position < command.protected,
                    )
                    older = (row.count == best.count) & (row.position < best.position)
                    m.d.comb += [
                        Assert(~shielded | also, "a protected token left before others"),
                        Assert((shielded != also) | (row.count <= best.count), "not the most"),
                        Assert((shielded != also) | ~older, "not the oldest"),
                    ]
        with m.If(live):
            m.d.comb += [
                Assert(length <= p.capacity, "more slots than there are"),
                Assert(dut.i.ready == (left != 0), "ready at the wrong time"),
                Assert(~moves | wanted, "evicted without need"),
                Assert(~moves | (best_slot < length), "no live slot left"),
                Assert(~(dut.i.ready & dut.command.ready), "two at a time"),
            ]
        with m.If(live & dut.o.valid):
            m.d.comb += [
                Assert(o.last == ~wanted, "wrong last"),
                Assert(evicted | ~wanted, "nothing evicted"),
                Assert(o.length == length, "wrong length"),
                Assert(o.invalid == invalid, "wrong invalid"),
                Assert(o.context == command.context, "wrong context"),
                Assert(o.evict == evicted, "wrong evict"),
                Assert(o.slot == Mux(evicted, out, 0), "wrong slot"),
                Assert(o.position == Mux(evicted, out_position, 0), "wrong position"),
            ]
        m.d.comb += [
            Cover(live & dut.o.valid & evicted & o.last & (length == 1), "evicted down to one"),
            Cover(live & dut.o.valid & o.invalid & ~evicted, "an invalid step"),
            Cover(
                live & dut.o.valid & ~dut.o.ready & (rows[0].count == before[0].count + 1), "a vote"
            ),
        ]
        if self._inductive:
            with m.If(live):
                self._tie(m, internals, state, rows, before, length, locals())
        return m

    def _tie(self, m, internals, state, rows, before, length, model):
        """Where slots are on their way through the rows, and what the search has found."""
        p = self.dut.parameters
        command, invalid, casting = model["command"], model["invalid"], model["casting"]
        signal = internals.signal
        slot, voting, counting = signal("slot"), signal("voting"), signal("counting")
        read = signal("fifo.read")[1 : 1 + len(slot)]
        slots = [read, signal("fifo.held_slot"), signal("buffer.arrived_slot")]
        slots.append(signal("buffer.passed_slot"))
        arrived, passed = signal("buffer.arrived"), signal("buffer.passed")
        fifo_valid = signal("fifo.valid")
        valid = [fifo_valid[0], fifo_valid[1], arrived, passed]
        sums = (state == SUM) | (state == SUMMED)
        passing = (state == COUNT) | (state == COUNTED)

        # Slots issued and rows written in this pass.
        issued, done = Signal(range(p.capacity + 1)), Signal(range(p.capacity + 1))
        with m.If((state == SUMMED) | (state == REPORT) | model["first"]):
            m.d.sync += [issued.eq(0), done.eq(0)]
        with m.Else():
            m.d.sync += [issued.eq(issued + (state == COUNT)), done.eq(done + (passed & passing))]

        m.d.comb += [
            Assert(state <= MOVE),
            Assert((state == JOIN) == model["joins"]),
            Assert((state == IDLE) | (signal("length") == length)),
            Assert((state == IDLE) | (signal("token") == model["token"])),
            Assert((state == IDLE) | (signal("command") == command.as_value())),
            Assert((state != JOIN) | (length < p.capacity)),
            Assert((state == IDLE) | (state == JOIN) | (state == REPORT) | (length != 0)),
            Assert((state == IDLE) | (state == JOIN) | (signal("invalid") == invalid)),
            Assert((state == IDLE) | (state == JOIN) | (signal("evicted") == model["evicted"])),
            Assert((state == IDLE) | (command.heads == 1) | (command.heads == 2)),
            Assert(((done == 0) & (issued == 0)) | passing | (state == MOVE) | (state == REPORT)),
            Assert((state != THRESHOLD) | voting),
            # Sums.
            Assert((state == SUM) == (model["left"] != 0)),
            Assert((slot == 0) | (state == SUM) | (state == COUNT)),
            Assert((slot == 0) | (slot < length)),
            Assert(sums | (valid[2] == fifo_valid[2])),
            Assert(arrived == fifo_valid[2]),
            Assert(~signal("buffer.searched") | passed),
        ]
        for n, (kept, after) in enumerate(zip(model["lengths"], model["tokens"], strict=True)):
            written = signal("sequences.written")[n]
            stored = Mux(written, internals.row(m, "sequences.words", n), 0)
            with m.If((state == IDLE) | (command.context != n)):  # no step of it
                m.d.comb += [
                    Assert(stored == Cat(kept[: len(signal("length"))], after)),
                    Assert(kept < p.capacity),
                ]
        with m.If(state == SUM):
            heads_left = signal("heads_left")
            m.d.comb += [
                Assert((heads_left == 1) | (heads_left == 2)),
                Assert(model["left"] == Mux(heads_left == 2, length, 0) + length - slot),
            ]
        with m.If(sums):
            m.d.comb += Assert(~counting)
        with m.Elif((state != IDLE) & (state != JOIN)):
            m.d.comb += Assert(counting)
        with m.If(~sums & ~passing):
            m.d.comb += [Assert(~bit) for bit in valid]
        with m.If(voting & ~sums & (state != IDLE) & (state != JOIN)):
            m.d.comb += [
                Assert(casting),
                Assert(~model["evicted"]),
                Assert(passing | (state == THRESHOLD)),
            ]
        # Before the first pass there are no votes of this step.
        untouched = (state == JOIN) | sums | (state == THRESHOLD)
        with m.If(untouched):
            m.d.comb += [Assert(~model["evicted"]), Assert((state != JOIN) | ~invalid)]
        for k, (row, old) in enumerate(zip(rows, before, strict=True)):
            with m.If((untouched | (passing & voting & (k >= done))) & (k < length)):
                m.d.comb += Assert(row.count == old.count)

        with m.If(passing):
            moving = sum(valid)
            m.d.comb += [
                Assert(issued == done + moving),
                Assert(issued <= length),
                Assert(voting | model["wanted"]),
                Assert((state == COUNT) | (issued == length)),
                Assert((state != COUNT) | (slot == issued)),
                Assert((state != COUNT) | (issued < length)),
                Assert((state != COUNTED) | (moving != 0)),
                Assert(signal("buffer.searched") == passed),
                Assert((issued == 0) | (signal("buffer.search_empty") == (done == 0))),
            ]
            ahead = 0
            for here, place in zip(reversed(valid), reversed(slots), strict=True):
                with m.If(here):
                    m.d.comb += Assert(place == done + ahead)
                ahead = ahead + here
            m.d.comb += Assert(~(signal("vote") & arrived) | voting)
        with m.If(state == MOVE):
            m.d.comb += Assert(done == length)
        with m.If(passing | (state == MOVE)):
            self._tie_search(m, internals, rows, length, done, passed, arrived, voting, command)

    def _tie_search(self, m, internals, rows, length, done, passed, arrived, voting, command):
        p = self.dut.parameters
        signal = internals.signal
        key, position = signal("buffer.key"), signal("buffer.position")
        best_slot = signal("buffer.best_slot")
        best_key, best_position = signal("buffer.best_key"), signal("buffer.best_position")
        found = signal("buffer.found")

        def key_of(row, count=None):
            count = row.count if count is None else count
            flag = row.position < command.protected
            return (flag << p.count_bits) | (~count & ((1 << p.count_bits) - 1))

        most = (1 << p.count_bits) - 1
        for k, row in enumerate(rows):
            best = Signal(name=f"best_is_{k}")
            m.d.comb += best.eq((done != 0) & (best_slot == k))
            own = key_of(row)
            with m.If((done > k) & (done != 0)):
                above = (key_of(row) > best_key) | (
                    (key_of(row) == best_key) & (row.position >= best_position)
                )
                m.d.comb += Assert(above)
            with m.If(best):
                m.d.comb += [Assert(best_key == own), Assert(best_position == row.position)]
            with m.If(arrived & (signal("buffer.arrived_slot") == k)):
                m.d.comb += Assert(found == row.as_value())
            with m.If(passed & (signal("buffer.passed_slot") == k)):
                more = (key == key_of(row, row.count + 1)) & (row.count != most) & voting
                m.d.comb += [
                    Assert(position == row.position),
                    Assert((key == own) | more),
                ]
            with m.If(~passed & (done == k + 1)):
                m.d.comb += [Assert(position == row.position), Assert(key == own)]
        m.d.comb += Assert((done == 0) | (best_slot < done))
        del length


class AnyThreshold(VoteThreshold):
    """Decides about votes as it likes, and at once: what follows a vote comes sooner."""

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.negative.eq(AnySeq(1)), self.no_votes.eq(AnySeq(1))]
        m.d.comb += [self.limit.eq(AnySeq(len(self.limit))), self.done.eq(1)]
        return m


def test_proof():
    prove_block(VotingSpec(VotingEngine(SMALL)), "voting_engine", depth=1, seconds=300)


def test_cover(monkeypatch):
    monkeypatch.setattr(voting_engine, "VoteThreshold", AnyThreshold)
    spec = VotingSpec(VotingEngine(SMALL), inductive=False)
    prove_block(spec, "voting_engine", "cover", depth=36, solver="yices", seconds=300)


FAULTS = {
    "votes_always": (
        voting_engine,
        "m.If(r.command.vote & ~r.is_invalid):",
        "m.If(~r.is_invalid):",
        "more than",
    ),
    "votes_though_invalid": (
        voting_engine,
        "r.command.vote & ~r.is_invalid):",
        "r.command.vote):",
        "more than",
    ),
    "youngest": (
        vote_buffer,
        "Cat(position, key) < Cat(best_position, best_key)",
        "Cat(~position, key) < Cat(~best_position, best_key)",
        "not the oldest",
    ),
    "ignores_counts": (
        vote_buffer,
        "Cat(position, key) < Cat(best_position, best_key)",
        "Cat(position, key >> 1) < Cat(best_position, best_key >> 1)",  # of one bit here
        "not the most",
    ),
    "unshielded": (vote_buffer, "found.position < self.protected", "0", "a protected token left"),
    "stays": (voting_engine, "buffer.move.eq(1)", "buffer.move.eq(0)", "a slot has another token"),
    "overflows": (
        voting_engine,
        "(r.length > r.command.target)) | r.full)",
        "(r.length > r.command.target)))",
        "wrong last",
    ),
    "too_many": (
        voting_engine,
        "r.length > r.command.target",
        "r.length >= r.command.target",
        "without need",
    ),
    "other_rows": (
        vote_buffer,
        "write_port.addr.eq(Cat(written, context))",
        "write_port.addr.eq(written)",
        "another context",
    ),
    "other_length": (
        voting_engine,
        "sequences.context.eq(self.command.payload.context)",
        "sequences.context.eq(0)",
        "more than a vote",
    ),
    "ready_early": (
        voting_engine,
        "m.d.comb += [buffer.join",
        "m.d.comb += [self.i.ready.eq(1), buffer.join",
        "ready at the wrong time",
    ),
}


LONG = ("votes_though_invalid", "youngest", "ignores_counts", "unshielded", "stays", "overflows")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.campaign if f in LONG else ()) for f in FAULTS],
)
def test_injected_fault_is_found(monkeypatch, fault):
    module, line, instead, found_by = FAULTS[fault]
    faulty = with_fault(module, line, instead)
    engine = faulty if module is voting_engine else voting_engine
    monkeypatch.setattr(engine, "VoteThreshold", AnyThreshold)
    if module is vote_buffer:
        monkeypatch.setattr(engine, "VoteBuffer", faulty.VoteBuffer)
    parameters = engine.VotingEngineParameters(2, 1, 2, 1, contexts=2)
    spec = VotingSpec(engine.VotingEngine(parameters), inductive=False)
    find_fault(spec, f"voting_engine_{fault}", found_by, depth=30, solver="yices", seconds=300)
