"""Unbounded proof of the registers: one response a request, reads and writes as the map says.

The map has all kinds of fields, fields across bytes and words, and a gap.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import (
    Assert,
    Cat,
    Const,
    Cover,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    Signal,
    Value,
)

from hw.bus import registers
from hw.bus.register_map import (
    CLEAR,
    CONSTANT,
    PULSE,
    READ_ONLY,
    READ_WRITE,
    Register,
    RegisterField,
    RegisterMap,
)
from sim.checks.formal.specs import Internals, drive, reset_first, watch
from tests.support.formal import fault_test, prove_block


def field(name: str, low: int, width: int, access: str, reset: int = 0) -> RegisterField:
    return RegisterField(name, low, width, access, "A field.", reset)


MAP = RegisterMap(
    (
        Register("mixed", 0x00, (field("go", 3, 2, PULSE), field("mode", 6, 9, READ_WRITE, 5)), ""),
        Register("status", 0x04, (field("", 5, 6, CLEAR), field("level", 12, 3, READ_ONLY)), ""),
        Register("base", 0x08, (field("", 0, 64, READ_WRITE, 3 << 31),), "", 64),
        Register("count", 0x10, (field("", 0, 64, READ_ONLY),), "", 64),
        Register("name", 0x1C, (field("", 4, 8, CONSTANT, 0xA5),), ""),
    )
)

MIXED, STATUS, LOW, HIGH, COUNT, COUNT_HIGH, NAME = 0, 1, 2, 3, 4, 5, 7
"""Numbers of the words."""


class RegistersSpec(Elaboratable):
    """A master that does anything, a sink that waits at any time; what each word must do, by hand.

    invariant
        Whether the registers of the hardware are related to the specification's.
    """

    def __init__(self, module=registers, invariant=True):
        self._dut, self._invariant = module.Registers(MAP), invariant

    def elaborate(self, platform):
        m = Module()
        dut, bus = self._dut, self._dut.bus
        m.submodules.dut = self._fragment = fragment = Fragment.get(dut, None)
        first = reset_first(m)
        for port in (bus.aw, bus.w, bus.ar):
            drive(m, first, port)
        for port in (bus.b, bus.r):
            watch(m, first, port)
        m.d.comb += [port.eq(AnySeq(len(port))) for port in (dut.status_level, dut.count)]
        sets = Signal(6)
        m.d.comb += [sets.eq(AnySeq(6)), dut.status_set.eq(sets)]

        write, (command, data) = self._requests(m, first, [bus.aw, bus.w], bus.b)
        read, (asked,) = self._requests(m, first, [bus.ar], bus.r)
        if self._invariant:
            internals = Internals(fragment)
            for name, ours in (("write_address", command[:12]), ("address", asked[:12])):
                m.d.comb += Assert(first | (internals.signal(name) == ours))
            m.d.comb += Assert(first | (Value.cast(internals.signal("data")) == data))
        words = self._words(m, first, write, command[2:12], data, sets)
        self._answers(m, first, write, command[2:12], read, asked[2:12], words)
        return m

    def _requests(self, m, first, requests, response):
        """Signal that a response must be offered next, and what was requested.

        A request is accepted at once unless one waits; a response is offered for every request (a
        write's address and data), in the cycle behind the one in which it has room.
        """
        held = Signal(len(requests), name=f"held_{len(requests)}")
        answers, offered = Signal(), Signal()
        m.d.comb += answers.eq(held.all() & (~response.valid | response.ready) & ~first)
        m.d.sync += offered.eq(answers | (response.valid & ~response.ready & ~first))
        m.d.comb += Assert(first | (response.valid == offered), "not one response a request")
        found = []
        for n, port in enumerate(requests):
            payload = Value.cast(port.payload)
            found.append(kept := Signal(len(payload), name=f"kept_{len(requests)}_{n}"))
            m.d.comb += Assert(first | (port.ready == ~held[n]), "a request refused or lost")
            with m.If(port.valid & port.ready & ~first):
                m.d.sync += [held[n].eq(1), kept.eq(payload)]
            with m.Elif(answers):
                m.d.sync += held[n].eq(0)
        return answers, found

    def _words(self, m, first, write, place, data, sets):
        """What a read of each word returns; the ports' values are asserted."""
        dut = self._dut
        mask = Cat(strobe.replicate(8) for strobe in data[32:])
        ones = data[:32] & mask
        go, mode, status = Signal(2), Signal(9, init=5), Signal(6)
        base = Signal(64, init=3 << 31)
        m.d.sync += [go.eq(0), status.eq(status | sets)]
        with m.If(write & (place == MIXED)):
            m.d.sync += [go.eq(ones[3:5]), mode.eq((mode & ~mask[6:15]) | ones[6:15])]
        with m.If(write & (place == STATUS)):
            m.d.sync += status.eq((status & ~ones[5:11]) | sets)
        for half, n in enumerate((LOW, HIGH)):
            part = base.word_select(half, 32)
            with m.If(write & (place == n)):
                m.d.sync += part.eq((part & ~mask) | ones)
        with m.If(~first):
            m.d.comb += [
                Assert(dut.mixed_go == go, "a pulse missed or too many"),
                Assert(dut.mixed_mode == mode, "a byte lost"),
                Assert(dut.status == status, "a bit cleared or kept"),
                Assert(dut.base == base, "a byte lost"),
            ]
        m.d.comb += Cover((go == 3) & (status == 63) & (mode == 0), "pulse")
        return {
            MIXED: Cat(Const(0, 6), mode),
            STATUS: Cat(Const(0, 5), status, Const(0, 1), dut.status_level),
            LOW: base[:32],
            HIGH: base[32:],
            COUNT: dut.count[:32],
            NAME: Const(0xA50, 32),
        }

    def _answers(self, m, first, write, to, read, of, words):
        """Responses and data, from the cycle before they are offered."""
        bus, count = self._dut.bus, self._dut.count
        kept, keeps = Signal(32), Signal()
        value, known, wrote = Signal(32), Signal(), Signal()
        with m.If(read):
            m.d.sync += [keeps.eq(of == COUNT), kept.eq(count[32:]), value.eq(0), known.eq(0)]
            with m.Switch(of):
                for n, word in words.items():
                    with m.Case(n):
                        m.d.sync += [value.eq(word), known.eq(1)]
                with m.Case(COUNT_HIGH):
                    m.d.sync += [value.eq(Mux(keeps, kept, count[32:])), known.eq(1)]
        with m.If(write):
            m.d.sync += wrote.eq(Cat(to == n for n in (*words, COUNT_HIGH)).any())
        # OKAY is 0, SLVERR is 2.
        read_as, written_as = (Value.cast(port.payload.resp) for port in (bus.r, bus.b))
        with m.If(bus.r.valid & ~first):
            m.d.comb += [
                Assert(bus.r.payload.data == value, "wrong data"),
                Assert(read_as == Mux(known, 0, 2), "a wrong response to a read"),
            ]
        with m.If(bus.b.valid & ~first):
            m.d.comb += Assert(written_as == Mux(wrote, 0, 2), "a wrong response to a write")
        m.d.comb += [
            Cover(bus.b.valid & ~wrote & ~first, "unmapped write"),
            Cover(bus.r.valid & ~known & ~first, "unmapped read"),
            Cover(bus.r.valid & keeps & ~first & (kept == 7), "a counter is kept"),
        ]
        if self._invariant:
            internals = Internals(self._fragment)
            m.d.comb += [
                Assert(first | (internals.signal("keeps") == keeps)),
                Assert(first | ~keeps | (internals.signal("kept") == kept)),
                Assert(first | ~keeps | (internals.signal("kept_of") == COUNT_HIGH)),
            ]


def test_proof():
    prove_block(RegistersSpec(), "registers", depth=2)


@pytest.mark.campaign
def test_cover():
    prove_block(RegistersSpec(invariant=False), "registers", "cover", depth=8)


FAULTS = {
    "early_read": ("read_held & (~r.valid | r.ready)", "read_held", "payload changed"),
    "early_write": (
        "address_held & data_held & (~b.valid | b.ready)",
        "address_held & data_held",
        "not one response|refused or lost",
    ),
    "no_strobe": ("mask[place] & written", "written", "a byte lost|a pulse missed"),
    "lost_set": ("(bits & ~ones) | arrives", "(bits | arrives) & ~ones", "cleared or kept"),
    "ready_waits": (
        "aw.ready.eq(~address_held)",
        "aw.ready.eq(~address_held & ~b.valid)",
        "refused",
    ),
    "okay": (
        "known.append(write_address[2:] ==",
        "known.append(write_address[2:] >=",
        "to a write",
    ),
    "torn": ("payload.data.eq(kept)", "payload.data.eq(value)", "wrong data"),
}


test_injected_fault_is_found = fault_test(
    registers, FAULTS, lambda m: RegistersSpec(m, invariant=False), depth=8
)
