"""The row buffer: rules of streams, and one arbitrary chunk through loads; unbounded proof."""

import dataclasses

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Elaboratable, Module, Mux, Signal, Value

from hw.topick import row_buffer
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.row_buffer import RowBuffer
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZE = dataclasses.replace(TopickCoreParameters.preset("prompts"), d=2, tokens=4, block=2)
PLANES = 2 * SIZE.lane.chunks
MOST = 15
"""Requests of the lane without response, at most; the loads have 12."""


class RowSpec(Elaboratable):
    """One arbitrary chunk of an arbitrary row, among all others, through any loads and requests.

    The memory answers each request once, in any order, the watched chunk with `word`, which is
    another one in each load. Then a load requests the chunk once if its row is loaded, else never,
    with its address; it ends when all responses have come; afterwards a whole row has the word in
    its place. The lane's requests pass, or are answered by the buffer, each once.

    Attributes
    ----------
    place : Signal
        The watched chunk: its number, its row, whether of V.
    rows, kv_head : Signal
        Of the latest load.
    made, asked, out : Signal
        Requests of the load so far; in the memory; of the lane, without response.
    sent, got : Signal
        The chunk has been requested, and been stored, since the latest load began.
    """

    def __init__(self, dut: RowBuffer, inductive: bool = True):
        self.dut, self._inductive = dut, inductive
        load, tag = dut.load.payload, dut.request.payload.tag
        self.place = type(tag)(SIZE.memory.tag, Signal(SIZE.memory.tag.size))
        self.word = Signal(SIZE.d * SIZE.chunk_bits)
        self.rows, self.kv_head = Signal.like(load.rows), Signal.like(load.kv_head)
        self.made = Signal(range(PLANES * SIZE.rows + 1))
        self.asked, self.out = Signal(range(MOST + 1)), Signal(range(MOST + 1))
        self.sent, self.got, self.busy = Signal(), Signal(), Signal()

    def elaborate(self, platform):
        m = Module()
        dut, place = self.dut, self.place
        first, internals = surround(m, dut)
        m.d.comb += [
            Value.cast(place).eq(AnyConst(len(Value.cast(place)))),
            Assume(place.chunk < SIZE.lane.chunks),
            dut.whole.eq(AnySeq(1)),
        ]
        with m.If(~first):
            self._environment(m)
            self._load(m)
            self._lane(m)
            if self._inductive:
                self._tie(m, internals)
        return m

    @property
    def _loaded(self):
        return self.place.row < self.rows

    def _is_here(self, tag):
        """The tag's chunk is the watched one."""
        place = self.place
        return Cat(tag.value, tag.chunk, tag.row) == Cat(place.value, place.chunk, place.row)

    def _environment(self, m):
        """What the buffer's docstring asks of the lane, and a memory that answers what it got."""
        dut = self.dut
        load, request, answer = dut.load, dut.request, dut.memory_response
        whole = Signal()
        m.d.sync += whole.eq(dut.whole)
        unanswered = Signal()  # a request offered or accepted before this cycle
        offered = Signal()
        m.d.sync += offered.eq(request.valid & ~request.ready)
        m.d.comb += unanswered.eq(offered | (self.out != 0))
        ours = Signal()
        m.d.comb += ours.eq(self.busy & self.sent & ~self.got)
        here = self._is_here(answer.payload.tag)
        m.d.comb += [
            Assume(~unanswered | (dut.whole == whole)),
            Assume(~(load.valid & (unanswered | request.valid))),
            Assume(load.payload.rows <= SIZE.rows),
            Assume(load.payload.kv_head < SIZE.kv_heads_of_lane),
            Assume(~request.valid | (self.out < MOST)),
            Assume(~answer.valid | Mux(self.busy & here, ours, self.asked > ours)),
            Assume(
                ~(answer.valid & here & self.busy) | (answer.payload.data.as_value() == self.word)
            ),
        ]
        m.d.sync += [
            self.asked.eq(
                self.asked
                + (dut.memory_request.valid & dut.memory_request.ready)
                - (answer.valid & answer.ready)
            ),
            self.out.eq(
                self.out
                + (request.valid & request.ready)
                - (dut.response.valid & dut.response.ready)
            ),
        ]

    def _load(self, m):
        """A load requests each chunk of its rows once, and ends with the last response."""
        dut, place = self.dut, self.place
        load, request, answer = dut.load, dut.memory_request, dut.memory_response
        asks = self.busy & ~load.ready & request.valid
        plane = self.kv_head * PLANES + place.value * SIZE.lane.chunks + place.chunk
        with m.If(asks):
            m.d.comb += Assert(self.made < PLANES * self.rows, "too many requests")
            with m.If(self._is_here(request.payload.tag)):
                m.d.comb += [
                    Assert(self._loaded & ~self.sent, "asked twice"),
                    Assert(
                        request.payload.address == plane * SIZE.rows + place.row, "wrong address"
                    ),
                ]
        with m.If(asks & request.ready):
            m.d.sync += self.made.eq(self.made + 1)
            with m.If(self._is_here(request.payload.tag)):
                m.d.sync += self.sent.eq(1)
        with m.If(self.busy & answer.valid & answer.ready & self._is_here(answer.payload.tag)):
            m.d.sync += self.got.eq(1)
        with m.If(self.busy & load.ready):
            m.d.comb += [
                Assert(self.made == PLANES * self.rows, "ends too early"),
                Assert(self.asked == 0, "a response is left over"),
                Assert(self.got == self._loaded, "a chunk is not loaded"),
            ]
            m.d.sync += self.busy.eq(0)
        with m.If(load.valid & load.ready):
            m.d.sync += [
                Cat(self.made, self.sent, self.got).eq(0),
                self.busy.eq(1),
                self.rows.eq(load.payload.rows),
                self.kv_head.eq(load.payload.kv_head),
                self.word.eq(AnySeq(len(self.word))),
            ]

    def _lane(self, m):
        """Each request is answered once: by the watched word's row, or by the memory."""
        dut, response = self.dut, self.dut.response
        tag = response.payload.tag
        row = Cat(response.payload.data.as_value(), Value.cast(response.payload.rest))
        word = row.word_select(self.place.chunk, len(self.word))
        there = (tag.value == self.place.value) & (tag.row == self.place.row)
        asked = Signal(SIZE.memory.tag)  # the latest request's tag
        done = Signal()  # the watched chunk was loaded at that request
        with m.If(dut.request.valid & dut.request.ready):
            m.d.sync += [
                asked.eq(dut.request.payload.tag),
                done.eq(self.got & dut.load.ready),
            ]
        m.d.comb += [
            Assert(~dut.whole | (response.valid == (self.out != 0)), "a row is lost or made up"),
            Assert(~(response.valid & dut.whole) | (tag == asked), "another tag"),
            Assert(
                ~(response.valid & dut.whole & there & done) | (word == self.word), "wrong data"
            ),
            Cover(response.valid & dut.whole & there & done & (self.word == 5), "a whole row"),
            Cover(
                response.valid & ~dut.whole & self.got & ~response.ready, "the lane reads a chunk"
            ),
        ]
        answer = dut.memory_response
        passed = Cat(answer.payload.tag.as_value(), answer.payload.data.as_value())
        found = Cat(tag.as_value(), response.payload.data.as_value())
        with m.If(~dut.whole & dut.load.ready):
            m.d.comb += [
                Assert(dut.memory_request.valid == dut.request.valid, "another request"),
                Assert(
                    ~dut.request.valid | (dut.memory_request.payload == dut.request.payload),
                    "another request",
                ),
                Assert(response.valid == answer.valid, "another response"),
                Assert(
                    ~response.valid
                    | ((found == passed) & (Value.cast(response.payload.rest) == 0)),
                    "another response",
                ),
            ]

    def _tie(self, m, internals):
        """Registers hold what the counts say."""
        dut, place = self.dut, self.place
        asking, pending, held = (internals.signal(name) for name in ("asking", "pending", "held"))
        row, chunk, last = (internals.signal(name) for name in ("row", "chunk", "last_row"))
        is_value, plane = internals.signal("is_value"), internals.signal("plane")
        rows = self.rows
        number = is_value * SIZE.lane.chunks + chunk  # of the plane that is read
        index = (place.value * SIZE.lane.chunks + place.chunk) * rows + place.row
        banks = [
            internals.row(m, f"bank_{n}", Cat(place.row, place.value))
            for n in range(SIZE.lane.chunks)
        ]
        stored = Cat(*banks).word_select(place.chunk, len(self.word))
        loading = asking | (pending != 0)
        total = PLANES * rows
        m.d.comb += [
            Assert(~loading | self.busy),
            Assert(rows <= SIZE.rows),
            Assert(self.kv_head < SIZE.kv_heads_of_lane),
            Assert(~self.busy | (pending == self.asked)),
            Assert(self.busy | (pending == 0)),
            Assert(pending <= self.made),
            Assert(self.made <= total),
            Assert(asking == (self.busy & (self.made < total))),
            Assert(~asking | ((self.made == number * rows + row) & (row < rows))),
            Assert(~asking | ((last == rows - 1) & (plane == self.kv_head * PLANES + number))),
            Assert(~asking | (chunk < SIZE.lane.chunks)),
            Assert(~self.busy | (self.sent == (self._loaded & (self.made > index)))),
            Assert(~self.got | self.sent),
            Assert(self.busy | (self.got == self.sent)),
            Assert(~(self.busy & self.sent & ~self.got) | (pending != 0)),
            Assert(~self.got | (stored == self.word)),
            Assert(~held | dut.whole),
            Assert(~dut.whole | (self.out == held)),
            Assert(self.busy | (self.asked == Mux(dut.whole, 0, self.out))),
            Assert(~self.busy | dut.whole | (self.out == 0)),
        ]


def test_proof():
    prove_block(RowSpec(RowBuffer(SIZE)), "row_buffer", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(RowSpec(RowBuffer(SIZE), inductive=False), "row_buffer", "cover", depth=14)


FAULTS = {
    "not_waiting": ("loading.eq(asking | (pending != 0))", "loading.eq(asking)", "left|not loaded"),
    "lost_row": ("held.eq(reading)", "held.eq(reading & ~held)", "a row is lost"),
    "stalls_ignored": ("free.eq(~held | response.ready)", "free.eq(1)", "a stalled"),
    "same_planes": (
        "plane.eq(self.load.payload.kv_head * (2 * chunks))",
        "plane.eq(self.load.payload.kv_head)",
        "wrong address",
    ),
    "keys_over_values": (
        "write.addr.eq(Cat(arrived.tag.row, arrived.tag.value))",
        "write.addr.eq(arrived.tag.row)",
        "wrong data",
    ),
    "chunks_beside": ("bank & held.replicate(len(bank))", "bank", "another response"),
    "keys_alone": ("asking.eq(~is_value)", "asking.eq(0)", "ends too early|too many"),
}


test_injected_fault_is_found = fault_test(
    row_buffer,
    FAULTS,
    lambda m: RowSpec(m.RowBuffer(SIZE), inductive=False),
    suite=("stalls_ignored",),
    depth=16,
)
