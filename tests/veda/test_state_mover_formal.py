"""Contexts' state comes back as it left; streams of the mover of state, with two slots.

Commands, answers of the memory, stalls and what steps do to a place's state are arbitrary.
"""

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.layout import address, index
from hw.stream.memory_port import MemoryPort
from hw.veda import state_mover
from hw.veda.context_memory import context_index
from hw.veda.state_mover import StateMoverParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block, prove_stream_rules

CONTEXTS, PLACES, FIRST_ROW, TAG = 3, 2, 3, 1


def mover(module=state_mover, row_bits: int = 6):
    """Its row has one slot of 5 or 6 bits, or two of 8, beside a sequence's 5."""
    p = StateMoverParameters(CONTEXTS, PLACES, 2, 1, 1, row_bits, FIRST_ROW)
    command = data.StructLayout({"context": context_index(CONTEXTS)})
    step = data.StructLayout({"context": context_index(PLACES)})
    width = (FIRST_ROW + CONTEXTS * p.rows - 1).bit_length()
    port = MemoryPort(index(range(2)), address(width), data.ArrayLayout(1, row_bits))
    return module.StateMover(p, command, step, port, TAG)


PASS, WAIT = range(2)  # the mover's first two phases


class MoverSpec(Elaboratable):
    """One arbitrary context is followed: its rows in the memory, its state in a place.

    A step changes the place's state in any way while the place is held, as a model of the state
    does; at each command of the context the place has the model's state.

    prompt
        The memory takes and answers requests at once, so a move has a bound of cycles: then what
        holds before a move, and after it, is proved for any number of moves.
    """

    def __init__(self, dut, prompt: bool = False):
        self.dut, self._prompt = dut, prompt

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, self.dut.parameters
        first, internals = surround(m, dut, leave=("response",))
        watched = AnyConst(2)
        m.d.comb += Assume(watched < CONTEXTS)
        passes = Signal()
        m.d.comb += passes.eq(dut.o.valid & dut.o.ready & ~dut.refuse & ~first)
        mine = passes & (dut.command.payload.context == watched)
        head, slots = self._places(m, first, passes)
        store, asked = self._memory(m, first, watched)

        # The model: the state that the context's last step left, or none since the reset.
        used, length, token = (Signal(2), Signal(2), Signal(1))
        rows = [Signal(p.slot_layout, name=f"row_{n}") for n in range(2)]
        known, place = Signal(), Signal(1)
        with m.If(mine):
            m.d.sync += [known.eq(1), place.eq(dut.o.payload.context)]
        at, held = Mux(mine, dut.o.payload.context, place), Signal()
        # A step's last change is seen in the cycle after.
        before = Signal(PLACES)
        m.d.sync += before.eq(dut.held)
        its = Array(dut.contexts[n] for n in range(PLACES))[place] == watched
        m.d.comb += held.eq(known & its & ((dut.held | before) >> place)[0])
        now = Array(head)[at]
        with m.If(held & ~first):  # what the step makes of the place
            m.d.sync += [used.eq(now.used), length.eq(now.length), token.eq(now.token)]
            for n, row in enumerate(rows):
                m.d.sync += row.eq(Array(slots[k][n] for k in range(PLACES))[place])
        model = used, length, token, rows
        found = [Array(slots[k][n] for k in range(PLACES))[at] for n in range(2)]
        with m.If(mine & ~held):
            self._same(m, model, now, found)
        if self._prompt:
            phase = internals.signal("phase_state")
            between = ~first & (phase <= WAIT)
            moved = (dut.held >> dut.access.place)[0]
            m.d.comb += Assert(first | between | ~moved, "a place is moved beside its step")
            with m.If(between):
                m.d.comb += Assert(~asked & (length <= used) & (used <= 2))
                self._between(m, internals, dut.held | before)
                inside = [Signal(name=f"inside_{n}") for n in range(PLACES)]
                for n in range(PLACES):
                    there = (internals.signal("holds") >> n)[0] & (dut.contexts[n] == watched)
                    m.d.comb += inside[n].eq(there)
                    steps = ((dut.held | before) >> n)[0]
                    m.d.comb += Assert(~(there & steps) | (known & (place == n)), "its step")
                    with m.If(there & ~steps):
                        self._same(m, model, head[n], slots[n])
                stored = (internals.signal("stored") >> watched)[0]
                with m.If(~Cat(inside).any() & stored):
                    self._same(m, model, *self._decoded(store))
                with m.If(~Cat(inside).any() & ~stored):
                    m.d.comb += Assert(Cat(used, length, token) == 0, "no state")
        gone = Signal()  # it has left its place, with two slots used
        with m.If(dut.request.valid & dut.request.payload.write & known & (used == 2)):
            m.d.sync += gone.eq(gone | (dut.request.payload.address == self._row(watched)))
        m.d.comb += Cover(mine & gone & (used == 2), "it comes back")
        return m

    def _same(self, m: Module, model, head, slots) -> None:
        """A state, of a place or a memory's rows, is the model's."""
        used, length, token, rows = model
        m.d.comb += [
            Assert(head.used == used, "slots used"),
            Assert(head.length == length, "length"),
            Assert(head.token == token, "token"),
        ]
        for n, (slot, row) in enumerate(zip(slots, rows, strict=True)):
            with m.If(n < used):
                m.d.comb += Assert(slot.row == row.row, "a slot's row")
            with m.If(n < length):
                same = (slot.count == row.count) & (slot.position == row.position)
                m.d.comb += Assert(same, "a slot's votes or position")

    def _between(self, m: Module, internals, steps) -> None:
        """What holds of the registers when nothing is moved."""
        dut, holds = self.dut, internals.signal("holds")
        waits = internals.signal("phase_state") == WAIT
        to_come = internals.signal("context")
        for n in range(PLACES):
            m.d.comb += [
                Assert(~holds[n] | (dut.contexts[n] < CONTEXTS)),
                Assert(~waits | ~holds[n] | (dut.contexts[n] != to_come)),
                Assert(holds[n] | ~steps[n], "a step of no context"),
            ]
        offered = dut.command
        m.d.comb += [
            Assert(~holds.all() | (dut.contexts[0] != dut.contexts[1])),
            Assert(~waits | (to_come == offered.payload.context) & offered.valid),
            Assert(~waits | (to_come < CONTEXTS)),
        ]

    def _decoded(self, store) -> tuple:
        """The state in a context's rows."""
        p = self.dut.parameters
        head, lanes = p.head_layout(store[0][: p.head_layout.size]), p.slots_per_row
        width = p.slot_layout.size
        slots = [
            p.slot_layout(store[1 + n // lanes][n % lanes * width :][:width]) for n in range(2)
        ]
        return head, slots

    def _row(self, context) -> Value:
        p = self.dut.parameters
        return FIRST_ROW + context * p.rows

    def _places(self, m: Module, first, passes) -> tuple[list, list]:
        """The places' state, which steps change while they hold the place."""
        dut, p = self.dut, self.dut.parameters
        head = [Signal(p.head_layout, name=f"head_{n}") for n in range(PLACES)]
        slots = [[Signal(p.slot_layout, name=f"slot_{n}_{k}") for k in range(2)] for n in (0, 1)]
        access, busy = dut.access, Signal(PLACES)
        # A step holds its place from the cycle after its command, until some later one.
        done = AnySeq(PLACES)
        begun = Signal(PLACES)
        m.d.comb += [begun.bit_select(dut.o.payload.context, 1).eq(passes), dut.held.eq(busy)]
        m.d.sync += busy.eq(busy & ~done | begun)
        read = Signal(p.slot_layout)
        at_slot = access.slot[:1]
        for n in range(PLACES):
            here, chosen = access.place == n, Signal(p.head_layout, name=f"chosen_{n}")
            m.d.comb += Value.cast(chosen).eq(AnySeq(p.head_layout.size))
            given = [dut.given.length, dut.given.used, dut.given.token]
            with m.If(first):
                m.d.sync += head[n].eq(0)
            with m.Elif(access.load & here):
                m.d.sync += Value.cast(head[n]).eq(Cat(given))
            with m.Elif(busy[n]):
                m.d.sync += Value.cast(head[n]).eq(chosen)
            for k in range(2):
                with m.If(access.write & here & (at_slot == k)):
                    fields = (dut.given.row, dut.given.count, dut.given.position)
                    m.d.sync += Value.cast(slots[n][k]).eq(Cat(fields))
                with m.Elif(busy[n]):
                    m.d.sync += Value.cast(slots[n][k]).eq(AnySeq(p.slot_layout.size))
                with m.If(access.read & here & (at_slot == k)):
                    m.d.sync += read.eq(slots[n][k])
            for rule, of in ((Assume, chosen), (Assert, head[n])):
                m.d.comb += rule((of.length <= of.used) & (of.used <= 2) | first)
            m.d.comb += Assert(~(access.load | access.write) | ~here | ~busy[n] | first, "held")
        now = Array(head)[access.place]
        for name in ("length", "used", "token"):
            m.d.comb += dut.kept[name].eq(now[name])
        for name in ("row", "count", "position"):
            m.d.comb += dut.kept[name].eq(read[name])
        return head, slots

    def _memory(self, m: Module, first, watched) -> tuple[list, Signal]:
        """Rows of the watched context; rows of others hold anything.

        Returns them, and whether an answer is to come.
        """
        dut, p = self.dut, self.dut.parameters
        request, response = dut.request, dut.response
        store = [Signal(p.row_bits, name=f"stored_{n}") for n in range(p.rows)]
        asked, answer = Signal(), Signal(p.row_bits)
        transfer = request.valid & request.ready & ~first
        within = request.payload.address - FIRST_ROW
        m.d.comb += [
            response.valid.eq(asked & (1 if self._prompt else AnySeq(1))),
            Value.cast(response.payload).eq(answer),
        ]
        with m.If(response.valid):
            m.d.sync += asked.eq(0)
        # Other contexts' rows are anything that a state may be.
        other, heading = Signal(p.row_bits), Signal(p.head_layout)
        m.d.comb += [
            other.eq(AnySeq(p.row_bits)),
            Value.cast(heading).eq(other),
            Assume((heading.length <= heading.used) & (heading.used <= 2)),
        ]
        with m.If(transfer):
            m.d.comb += [
                Assert(request.payload.tag == TAG, "the tag"),
                Assert((within >= 0) & (within < CONTEXTS * p.rows), "a row of no state"),
                Assert(~asked, "a request before the answer"),
            ]
            with m.If(~request.payload.write):
                m.d.sync += [asked.eq(1), answer.eq(other)]
            for n, row in enumerate(store):
                with m.If(request.payload.address == self._row(watched) + n):
                    with m.If(request.payload.write):
                        m.d.sync += row.eq(request.payload.data)
                    with m.Else():
                        m.d.sync += answer.eq(row)
        if self._prompt:
            m.d.comb += Assume(request.ready)
        return store, asked


SIZES = {"one_slot": 5, "two_slots": 6}  # of a row
DEPTH = 28  # cycles of a move, and one


@pytest.mark.campaign
@pytest.mark.parametrize("size", SIZES)
def test_state_comes_back(size):
    """After any number of moves; then with a memory that keeps requests waiting, 24 cycles."""
    row_bits, name = SIZES[size], f"state_mover_{size}"
    prove_block(MoverSpec(mover(row_bits=row_bits), prompt=True), f"{name}_moves", depth=DEPTH)
    prove_block(MoverSpec(mover(row_bits=row_bits)), name, "bmc", depth=24)


@pytest.mark.campaign
def test_cover():
    prove_block(MoverSpec(mover()), "state_mover_cover", "cover", depth=48, seconds=300)


FAULTS = {
    "moves a held place": (
        "with m.If(~(self.held >> place)[0]):",
        "with m.If(1):",
        "beside its step",
    ),
    "never empty": (
        "m.d.comb += access.load.eq(1)  # an empty sequence",
        "m.d.comb += access.load.eq(0)",
        "slots used|length|token",
    ),
    "forgets what is stored": (
        "stored.bit_select(old, 1).eq(1)",
        "stored.bit_select(old, 1).eq(0)",
        "no state",
    ),
    "stores a slot too few": ("with m.If(slot >= used):", "with m.If(slot + 1 >= used):", "slot"),
}

test_injected_fault_is_found = fault_test(
    state_mover,
    FAULTS,
    lambda module: MoverSpec(mover(module), prompt=True),
    depth=44,
    seconds=300,
)


def test_streams():
    prove_stream_rules(mover(), "state_mover", "o request", ["command", "response"], cover=24)
