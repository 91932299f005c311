"""Two converters of two bits in turn: codes leave in the order of their samples; unbounded proof.

For any samples and stalls: an arbitrary sample, followed from input to output, leaves once, in
order, as its code; none is lost, and the next code is valid at most two cycles after the one before
it. Registers power up with any value; reset is high in the first cycle.
"""

import pytest
from amaranth.asserts import AnySeq  # type: ignore[attr-defined]  # stubs lack it
from amaranth.hdl import Array, Assert, Cover, Elaboratable, Module, Mux, Signal, signed

from hw.unicaim import adc_bank
from hw.unicaim.adc_bank import AdcBank, AdcBankParameters
from sim.checks.formal.specs import surround
from tests.support.formal import fault_test, prove_block, prove_stream_rules

CONVERTERS, BITS, FRACTION = 2, 2, 1
SIZES = CONVERTERS, BITS, FRACTION
CAPACITY = 2 * CONVERTERS  # a code and a conversion in each


def code_of(sample) -> Signal:
    """The nearest of the codes -2 to 1; samples count halves."""
    nearest = (sample + 1) >> 1
    return Mux(nearest < -2, -2, Mux(nearest > 1, 1, nearest))


class BankSpec(Elaboratable):
    def __init__(self, dut, invariant: bool = True):
        self.dut, self._invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut = self.dut
        first, internals = surround(m, dut)

        sample = Signal(signed(4))
        push, pop = Signal(), Signal()
        held = Signal(range(CAPACITY + 2))  # samples and codes inside
        ahead = Signal(range(CAPACITY + 2))  # of these, those that leave before the followed one
        value = Signal(signed(4))
        following, done = Signal(), Signal()
        m.d.comb += [
            sample.eq(dut.i.payload),
            push.eq(dut.i.valid & dut.i.ready & ~first),
            pop.eq(dut.o.valid & dut.o.ready & ~first),
        ]
        m.d.sync += held.eq(held + push - pop)
        hidden = Signal(range(BITS + 2))  # cycles without the next code
        m.d.sync += hidden.eq(Mux((held != 0) & ~dut.o.valid & ~first, hidden + 1, 0))
        with m.If(push & AnySeq(1) & ~following & ~done):
            m.d.sync += [following.eq(1), value.eq(sample), ahead.eq(held - pop)]
        with m.Elif(following & pop):
            with m.If(ahead == 0):
                m.d.comb += Assert(dut.o.payload == code_of(value), "a wrong code or order")
                m.d.sync += [following.eq(0), done.eq(1)]
            with m.Else():
                m.d.sync += ahead.eq(ahead - 1)
        with m.If(~first):
            m.d.comb += [
                Assert(held <= CAPACITY, "more samples than capacity"),
                Assert(~(dut.o.valid & (held == 0)), "a code from nowhere"),
                Assert(dut.o.valid | (hidden < BITS), "a sample is stuck"),
                Assert(dut.i.ready | (held >= CONVERTERS), "refused with a converter free"),
            ]
            if self._invariant:
                self._invariants(m, internals, locals())
        m.d.comb += [
            Cover(held == CAPACITY, "full"),
            Cover(done & (held == 0) & (value == 7), "a followed sample saturates"),
            Cover(done & (value == -3), "a followed sample is rounded"),
        ]
        return m

    def _invariants(self, m, internals, spec):
        signal = internals.signal
        held, ahead, value, hidden = (spec[name] for name in ("held", "ahead", "value", "hidden"))
        parts = []
        for number in range(CONVERTERS):
            name = f"converter_{number}"
            position = signal(f"{name}.controller.position")
            found = signal(f"{name}.controller.found")
            sample, code = signal(f"{name}.held"), signal(f"{name}.o__payload")
            valid = signal(f"{name}.o__valid")
            offset = Signal(BITS, name=f"offset_{number}")
            m.d.comb += [
                offset.eq(code_of(sample) + 2),
                Assert(position != 3),
                Assert((position != 2) | (found == 0)),
                Assert((position != 1) | (found == (offset & 2))),
            ]
            parts.append((position, valid, sample, code))
        position, valid, sample, code = (Array(column) for column in zip(*parts, strict=True))
        busy = Array(position[n].any() for n in range(CONVERTERS))
        inside = Array(busy[n] + valid[n] for n in range(CONVERTERS))
        given, taken = signal("given")[0], signal("taken")[0]
        at = Signal()  # the converter of the followed sample
        m.d.comb += [
            Assert(held == inside[0] + inside[1]),
            Assert(inside[given] == inside[~given] + held[0]),
            Assert(taken == (given ^ held[0])),
            Assert(valid[given] | (hidden == 0) | ((hidden == 1) & (position[given] == 1))),
            at.eq(given ^ ahead[0]),
        ]
        with m.If(spec["following"]):
            m.d.comb += Assert(ahead < held)
            with m.If((ahead[1:] == 0) & valid[at]):
                m.d.comb += Assert(code[at] == code_of(value))
            with m.Else():
                m.d.comb += [Assert(busy[at]), Assert(sample[at] == value)]


def bank(module=adc_bank) -> AdcBank:
    return module.AdcBank(module.AdcBankParameters(*SIZES))


def test_proof():
    prove_block(BankSpec(bank()), "adc_bank", depth=2, seconds=200)


def test_cover():
    prove_block(BankSpec(bank(), invariant=False), "adc_bank", "cover", depth=12, seconds=200)


@pytest.mark.parametrize("converters", [1, 3])
def test_stream_rules(converters):
    dut = AdcBank(AdcBankParameters(converters, 2, 1))
    prove_stream_rules(dut, f"adc_bank_{converters}", "o", ["i"])


FAULTS = {
    "same_converter": ("turn.eq(Mux(turn == last, 0, turn + 1))", "turn.eq(turn)", "refused"),
    "takes_all_codes": (
        "converter.o.ready.eq(self.o.ready & (given == number))",
        "converter.o.ready.eq(self.o.ready)",
        "stuck|more samples",
    ),
    "all_take_it": (
        "converter.i.valid.eq(self.i.valid & (taken == number))",
        "converter.i.valid.eq(self.i.valid)",
        "refused|nowhere",
    ),
}


test_injected_fault_is_found = fault_test(
    adc_bank, FAULTS, lambda m: BankSpec(bank(m), invariant=False), depth=12, seconds=200
)
