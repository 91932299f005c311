"""The chunk buffer: rules of streams, and one arbitrary chunk in it; unbounded proof."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Cat,
    Const,
    Cover,
    Elaboratable,
    Module,
    Mux,
    Signal,
    Value,
)

from hw.topick import chunk_buffer
from hw.topick.chunk_buffer import ChunkBuffer, ChunkBufferParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block

SIZE = ChunkBufferParameters(2, 1, 2, 1, row_bits=2, address_width=2, label_bits=1)


class ChunkSpec(Elaboratable):
    """Requests for one arbitrary chunk, with each of two labels, among requests for any others.

    The memory answers each request for the chunk once, with the contents of its address; both
    change at a clear of its kind. Requests for the chunk with equal labels follow one another;
    with different labels they may overlap. Then each request has one response, with the contents;
    it goes to the memory, with its address, exactly if the chunk is not kept; and no beat waits for
    longer than the stalls of the outputs and one beat of the other kind.

    Attributes
    ----------
    place : Signal
        The chunk: whether of V, its number, its row.
    word, address : Signal
        Contents and address, from the last clear to the next.
    kept : Signal
        The chunk arrived after the last clear, and its row is buffered.
    out, asked, hit : Signal
        For each label: a request without response; it is in the memory; it hit.
    """

    def __init__(self, dut: ChunkBuffer, inductive: bool = True):
        self.dut, self._inductive = dut, inductive
        p = dut.parameters
        self.place = Signal(1 + len(Value.cast(dut.request.payload.tag.chunk)) + p.row_bits)
        self.word, self.address = Signal(p.d * p.chunk_bits), Signal(p.address_width)
        self.kept = Signal()
        self.out, self.asked, self.hit = Signal(2), Signal(2), Signal(2)
        self._waited = {name: Signal(name=f"waited_{name}") for name in dut.signature.members}
        self._age = [Signal(range(4), name=f"age_{label}") for label in range(2)]

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)
        live = ~first
        m.d.comb += [
            self.place.eq(AnyConst(len(self.place))),
            Assume(self._chunk < dut.parameters.chunks),
        ]
        clears = Signal()
        flags = dut.clear.payload
        m.d.comb += clears.eq(dut.clear.valid & Mux(self.place[0], flags.values, flags.keys) & live)
        self._contents(m, clears)
        self._requests(m, live, clears)
        self._waits(m, live)
        if self._inductive:
            with m.If(live):
                self._tie(m, internals, clears)
        self._covers(m, live, clears)
        return m

    @property
    def _chunk(self):
        return self.place[1 : -self.dut.parameters.row_bits]

    @property
    def _row(self):
        return self.place[-self.dut.parameters.row_bits :]

    @property
    def _buffered(self):
        return self._row < self.dut.parameters.rows

    def _is_here(self, tag):
        """The tag's chunk is the watched one."""
        return Cat(tag.value, tag.chunk, tag.row) == self.place

    def _contents(self, m, clears):
        dut = self.dut
        request, answer = dut.request, dut.memory_response
        # A request in the cycle of a clear is one after it.
        changes = clears & ~self.out.any()
        for now in (self.word, self.address):
            before = Signal.like(now)
            m.d.sync += before.eq(now)
            m.d.comb += now.eq(Mux(changes, AnySeq(len(now)), before))
        offered = request.valid & self._is_here(request.payload.tag)
        label = answer.payload.tag.label
        answered = answer.valid & self._is_here(answer.payload.tag)
        m.d.comb += [
            Assume(~offered | (request.payload.address == self.address)),
            Assume(~(offered & Array(self.out)[request.payload.tag.label])),
            Assume(~answered | (Value.cast(answer.payload.data) == self.word)),
            # The memory answers only what it was asked.
            Assume(~answered | Array(self.asked)[label]),
            Assume(~(clears & self.out.any() & self._buffered)),
        ]

    def _requests(self, m, live, clears):
        """Follow the chunk's requests through the memory or the buffer."""
        dut = self.dut
        asks, answers = Signal(), Signal()
        here = self._is_here(dut.memory_response.payload.tag)
        m.d.comb += [
            asks.eq(dut.memory_request.valid & dut.memory_request.ready & live),
            answers.eq(dut.memory_response.valid & dut.memory_response.ready & live),
        ]
        with m.If(answers & here & self._buffered):
            m.d.sync += self.kept.eq(1)
        with m.If(clears):
            m.d.sync += self.kept.eq(0)
        for label in range(2):

            def has(port, label=label):
                tag = port.payload.tag
                return port.valid & self._is_here(tag) & (tag.label == label)

            out, asked, hit = self.out[label], self.asked[label], self.hit[label]
            with m.If(has(dut.request) & dut.request.ready & live):
                m.d.sync += [out.eq(1), hit.eq(self.kept & ~clears)]
            with m.If(has(dut.response) & dut.response.ready & live):
                m.d.sync += out.eq(0)
            with m.If(has(dut.memory_request) & asks):
                m.d.sync += asked.eq(1)
            with m.If(has(dut.memory_response) & answers):
                m.d.sync += asked.eq(0)
            at_output = Signal(name=f"at_output_{label}")
            m.d.comb += at_output.eq(has(dut.response) & live)
            with m.If(has(dut.memory_request) & live):
                m.d.comb += [
                    Assert(out & ~asked, "asked twice"),
                    Assert(~hit, "a kept chunk is requested"),
                    Assert(dut.memory_request.payload.address == self.address, "wrong address"),
                ]
            with m.If(at_output):
                m.d.comb += [
                    Assert(out & ~asked, "a response to no request"),
                    Assert(Value.cast(dut.response.payload.data) == self.word, "wrong data"),
                ]

    def _waits(self, m, live):
        """No beat waits for more than one other beat while the outputs accept theirs."""
        dut = self.dut
        m.d.comb += Assert(dut.clear.ready, "a clear waits")
        accepts = dut.response.ready & dut.memory_request.ready
        ways = {"request": accepts, "memory_response": dut.response.ready}
        for name, ready in ways.items():
            port = getattr(dut, name)
            waited = self._waited[name]
            with m.If(port.valid & ~port.ready & ready & live):
                m.d.comb += Assert(~waited, "waits for two beats")
                m.d.sync += waited.eq(1)
            with m.If(port.valid & port.ready):
                m.d.sync += waited.eq(0)
        # Cycles in which the output accepts, from a request to its response.
        for label in range(2):
            age = self._age[label]
            response = dut.response.payload.tag
            arrives = dut.response.valid & self._is_here(response) & (response.label == label)
            with m.If(~self.out[label]):
                m.d.sync += age.eq(0)
            with m.Elif(self.hit[label] & dut.response.ready & ~arrives & live):
                m.d.comb += Assert(age < 2, "a hit is not answered")
                m.d.sync += age.eq(age + 1)

    def _tie(self, m, internals, clears):
        """Registers hold what the requests' states say."""
        dut, p = self.dut, self.dut.parameters
        hit_valid, hit_tag = internals.signal("hit_valid"), internals.signal("hit_tag")
        hit_first = internals.signal("hit_first")
        tag = type(dut.request.payload.tag)(p.memory.tag, hit_tag)
        hit_here = hit_valid & self._is_here(tag)
        planes = Array(internals.signal(f"kept_{number}") for number in range(p.planes))
        plane = Signal(range(p.planes))
        row = Signal.like(self.word, name="row_of_chunk")
        low = self._row[: (p.rows - 1).bit_length()]
        m.d.comb += [
            plane.eq(Mux(self.place[0], p.chunks, 0) + self._chunk),
            row.eq(internals.row(m, "chunks", Cat(low, plane))),
            Assert(self.kept == (self._buffered & planes[plane].bit_select(low, 1))),
            Assert(~self.kept | clears | (row == self.word)),
            Assert(~(self._waited["request"] & hit_valid) | hit_first),
            Assert(~(self._waited["memory_response"] & hit_first)),
            Assert(~hit_here | (Value.cast(internals.signal("hit_data")) == self.word)),
        ]
        for label in range(2):

            def has(port, label=label):
                tag = port.payload.tag
                return port.valid & self._is_here(tag) & (tag.label == label)

            out, asked, hit = self.out[label], self.asked[label], self.hit[label]
            in_buffer = hit_here & (tag.label == label)
            one_passed = (self._age[label] == 1) & hit_first
            places = [in_buffer, asked, has(dut.memory_request), has(dut.response)]
            total = sum(places, start=Const(0, 3))
            m.d.comb += [
                Assert(total == out),
                Assert(~in_buffer | hit),
                Assert(~(asked & hit)),
                Assert(~in_buffer | (self._age[label] == 0) | one_passed),
            ]

    def _covers(self, m, live, clears):
        dut = self.dut
        again, changed = Signal(), Signal()
        tag = dut.response.payload.tag
        label_hit = Array(self.hit)[tag.label]
        here = dut.response.valid & self._is_here(tag) & live
        with m.If(clears):
            m.d.sync += again.eq(1)
        with m.If(self.kept & (self.word == 0)):
            m.d.sync += changed.eq(1)
        m.d.comb += [
            Cover(here & label_hit & again & changed & (self.word == 1), "a hit after a clear"),
            Cover(here & ~self._buffered & dut.response.ready, "not buffered"),
            Cover(self.out.all() & self.hit.all(), "two hits"),
            Cover(self.out.all() & self.asked.all() & live, "read twice"),
            Cover(live & dut.memory_response.valid & ~dut.memory_response.ready
                  & dut.response.ready, "the memory waits for a hit"),
            Cover(live & dut.request.valid & ~dut.request.ready & dut.response.ready
                  & dut.memory_request.ready, "a hit waits for the memory"),
        ]  # fmt: skip


def test_proof():
    prove_block(ChunkSpec(ChunkBuffer(SIZE)), "chunk_buffer", depth=3)


def test_cover():
    spec = ChunkSpec(ChunkBuffer(SIZE), inductive=False)
    prove_block(spec, "chunk_buffer", "cover", depth=14)


FAULTS = {
    "keeps_any_row": ("return tag.row < self.parameters.rows", "return 1", "wrong data|asked"),
    "never_keeps": ("row & here.replicate(p.rows)", "0", "a kept chunk is requested"),
    "never_clears": ("m.d.sync += plane.eq(0)", "pass", "wrong data|asked"),
    "clears_late": ("& ~forgotten", "", "wrong data|asked"),
    "keys_are_values": ("Mux(tag.value, tag.chunk + chunks, tag.chunk)", "tag.chunk", "wrong data"),
    "loses_a_hit": ("hit_free.eq(~hit_valid | hit_passes)", "hit_free.eq(1)", "a hit is not"),
    "reads_in_a_stall": ("read.en.eq(hit)", "read.en.eq(1)", "wrong data"),
    "hits_go_first": ("& free & (hit_first | ~arrived.valid)", "& free", "a response|a hit|wrong"),
    "hits_go_last": (
        "arrived.ready.eq(free & ~(hit_valid & hit_first))",
        "arrived.ready.eq(free)",
        "a hit is not|a response|wrong",
    ),
    "never_in_turn": ("hit_first.eq(1)", "hit_first.eq(0)", "waits for two beats|a hit is not"),
    "no_address": (
        "payload.eq(request.payload)",
        "payload.tag.eq(request.payload.tag)",
        "wrong address",
    ),
    "withdrawn": ("with m.If(free):", "if True:", "a stalled"),
}


test_injected_fault_is_found = fault_test(
    chunk_buffer, FAULTS, lambda m: ChunkSpec(m.ChunkBuffer(SIZE), inductive=False), depth=12
)
