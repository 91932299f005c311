"""An SDRAM's controller at the model of the device: no rule is ever broken; unbounded proof.

Requests come when and as they like. The device's cells hold anything; which tag each answer has is
proved, its row is compared in simulation (test_sdram.py), where refreshes are left out too.
"""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cat, Cover, Elaboratable, Fragment, Module, Mux, Signal

from hw.boards import sdram_controller
from hw.boards.sdram_controller import SdramController
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from sim.checks.formal.specs import Internals, drive, reset_first
from sim.drivers.board.sdram_device import PINS, Rule, SdramDevice
from tests.support.formal import fault_test, prove_block

# Two banks of two pages, rows of two columns; every time is different, and t_rc is longer than
# t_ras and t_rp together.
SIZE = SdramControllerParameters(
    **{"row": 2, "address": 3, "tag": 2, "period": 1, "width": 1},
    **{"bank_bits": 1, "page_bits": 1, "column_bits": 2, "power_up": 4, "refreshes": 2},
    **{"t_rcd": 2, "t_rp": 3, "t_ras": 4, "t_rc": 8, "t_rrd": 2, "t_wr": 2, "t_rfc": 5},
    **{"t_mrd": 3, "t_refi": 56},
)
BANKS = 1 << SIZE.bank_bits
CLOSE, REFRESH, MODE, SERVE = range(4)  # states


class SdramSpec(Elaboratable):
    """See the module; without `invariant` the assertions on registers are left out."""

    def __init__(self, dut, invariant: bool = True):
        self.dut, self.invariant = dut, invariant

    def elaborate(self, platform):
        m = Module()
        dut, p = self.dut, SIZE
        m.submodules.dut = fragment = Fragment.get(dut, None)
        device = SdramDevice(p)
        m.submodules.chip = chip = Fragment.get(device, None)
        self.first = first = reset_first(m)
        drive(m, first, dut.request)
        m.d.comb += [getattr(device, name).eq(getattr(dut, name)) for name in PINS]
        m.d.comb += [dut.read_data.eq(device.read_data), device.held.eq(AnySeq(p.width))]
        with m.If(~first):
            for rule in Rule:
                m.d.comb += Assert(~device.broken[rule], f"{rule.name} is broken")
        self._answers(m)
        self._cover(m)
        if self.invariant:
            with m.If(~first):
                self.c, self.d = Internals(fragment).signal, Internals(chip).signal
                self._waits(m)
                self._banks(m)
                self._initialisation(m)
                self._refresh(m)
                self._places(m)
        return m

    def _answers(self, m: Module) -> None:
        """Reads accepted without an answer, and an arbitrary one of them."""
        dut, first = self.dut, self.first
        request = dut.request.payload
        accepted = Signal()
        read = Signal()
        self.held = Signal(3)
        self.followed = Signal()
        self.ahead = Signal(3)
        self.tag = Signal(SIZE.tag)
        m.d.comb += [
            accepted.eq(dut.request.valid & dut.request.ready & ~first),
            read.eq(accepted & ~request.write),
        ]
        answered = dut.answered & ~first
        m.d.sync += self.held.eq(self.held + read - answered)
        with m.If(self.followed & answered):
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.followed.eq(self.ahead != 0)]
        with m.If(read & ~self.followed & AnySeq(1)):
            m.d.sync += [
                self.followed.eq(1),
                self.ahead.eq(self.held - answered),
                self.tag.eq(request.tag),
            ]
        with m.If(answered):
            m.d.comb += Assert(self.held != 0, "an answer from nowhere")
            with m.If(self.followed & (self.ahead == 0)):
                m.d.comb += Assert(dut.answer.tag == self.tag, "an answer with another's tag")

    def _cover(self, m: Module) -> None:
        two = Signal()
        with m.If(self.held == 2):
            m.d.sync += two.eq(1)
        m.d.comb += [
            Cover(two & self.dut.answered, "two reads under way"),
            Cover(self.dut.command == sdram_controller.WRITE, "a write"),
        ]

    def _waits(self, m: Module) -> None:
        """What is left to wait, and what has passed, are the rules' times together."""
        c, d, p = self.c, self.d, SIZE
        wait, reading, after = c("wait"), d("reads_0"), d("after")
        pairs = [
            (d("since_refresh"), wait, p.t_rfc),
            (d("since_mode"), wait, p.t_mrd),
            (d("since_any_activate"), wait, p.t_rrd),
        ]
        for n in range(BANKS):
            pairs += [
                (d(f"since_T_RCD_{n}"), wait, p.t_rcd),
                (d(f"since_T_RP_{n}"), wait, p.t_rp),
                (d(f"since_T_RAS_{n}"), c("active"), p.t_ras),
                (d(f"since_T_WR_{n}"), c("recovery"), p.t_wr),
            ]
            passed, is_open = d(f"since_T_RC_{n}"), c("open")[n]
            m.d.comb += [
                Assert(~is_open | (passed + c("active") >= p.active), "an open bank"),
                Assert(is_open | (passed + wait >= p.t_rc), "a closed bank"),
                Assert(passed <= p.t_rc),
            ]
        for passed, left, time in pairs:
            m.d.comb += [
                Assert(passed + left >= time, f"time of {passed.name}"),
                Assert(passed <= time),
            ]
        m.d.comb += [
            Assert(~reading | (c("turn") == 2), "data to come"),
            Assert(~after | (c("turn") >= 1), "data on the bus"),
            Assert(c("turn") <= p.turnaround - 1),
            Assert(c("active") <= p.active - 1),
            Assert(c("recovery") <= p.recovery - 1),
        ]

    def _banks(self, m: Module) -> None:
        """Controller and device agree on what is open."""
        c, d = self.c, self.d
        for n in range(BANKS):
            m.d.comb += Assert(c("open")[n] == d(f"opened_{n}"), "open banks")
            with m.If(c("open")[n]):
                m.d.comb += Assert(c(f"page_{n}") == d(f"open_page_{n}"), "open pages")

    def _initialisation(self, m: Module) -> None:
        c, d, p = self.c, self.d, SIZE
        state, left, refreshed = c("initialise_state"), c("left"), d("refreshed")
        m.d.comb += [
            Assert((d("up") <= p.power_up) & (refreshed <= p.refreshes)),
            Assert(d("age") <= p.t_refi),
            Assert(d("up") + Mux(state == CLOSE, c("wait"), 0) >= p.power_up, "power-up"),
            Assert((state == CLOSE) | d("precharged"), "all banks were precharged"),
            Assert(c("ready") == (state == SERVE), "ready"),
            Assert(d("ready") == (state == SERVE), "the mode is set"),
            Assert((state == SERVE) | ~c("open").any(), "no bank is open"),
            Assert((state == SERVE) | ~c("busy"), "no row is served"),
        ]
        with m.If((state == CLOSE) | (state == REFRESH)):
            m.d.comb += Assert((left != 0) & (refreshed + left == p.refreshes), "refreshes")
        with m.Else():
            m.d.comb += Assert(refreshed == p.refreshes, "all refreshes")
        with m.If(state == MODE):
            m.d.comb += Assert(d("age") + c("wait") <= p.refresh, "the last refresh")

    def _refresh(self, m: Module) -> None:
        """The timer bounds the age of the last refresh, and the steps to the next are few."""
        c, d, p = self.c, self.d, SIZE
        wait, timer, due = c("wait"), c("timer"), c("due")
        late = Signal(range(p.interval))
        m.d.sync += late.eq(Mux(due, late + 1, 0))
        longest = max(p.active, p.recovery, p.activate, p.precharge, p.refresh, p.t_mrd) - 1
        left = Signal(range(4 * longest))
        m.d.comb += left.eq(wait)
        with m.If(c("open").any()):
            for counter in (c("active"), c("recovery"), wait):
                with m.If((counter >= c("active")) & (counter >= c("recovery"))):
                    with m.If(counter >= wait):
                        m.d.comb += left.eq(counter + p.precharge)
        with m.If(c("initialise_state") == SERVE):
            bound = p.interval + p.refresh
            m.d.comb += [
                Assert(wait <= longest, "waits are short"),
                Assert(timer <= p.interval - 1),
                Assert(d("age") + timer <= bound + Mux(due, p.interval, 0), "age of the refresh"),
            ]
            with m.If(due):
                m.d.comb += [
                    Assert(timer + late == p.interval - 1, "time since it was due"),
                    Assert(late + left <= longest + p.precharge, "steps to the refresh"),
                ]

    def _places(self, m: Module) -> None:
        """Where the reads without an answer are: served, on the device's way, answered."""
        c, dut = self.c, self.dut
        assert SIZE.answer == 1
        marks = c("marks_0")
        coming = marks[0] & marks[1]
        served = c("busy") & ~c("write")
        m.d.comb += [
            Assert(self.held == served + coming + dut.answered, "reads under way"),
            Assert(~self.followed | (self.ahead < self.held), "place of the followed read"),
        ]
        tags = [(dut.answered, 0, dut.answer.tag), (coming, dut.answered, marks[2:])]
        tags.append((served, dut.answered + coming, c("tag")))
        for there, place, tag in tags:
            with m.If(self.followed & there & (self.ahead == place)):
                m.d.comb += Assert(Cat(tag) == self.tag, "tag of the followed read")


def test_proof():
    prove_block(SdramSpec(SdramController(SIZE)), "sdram_controller", depth=2, seconds=120)


@pytest.mark.campaign
def test_cover():
    spec = SdramSpec(SdramController(SIZE), invariant=False)
    prove_block(spec, "sdram_controller", "cover", depth=36, seconds=120)


FAULTS = {
    "t_rcd": ("ACTIVATE, s.page, p.activate)", "ACTIVATE, s.page, p.activate - 1)", "T_RCD"),
    "t_rp": ("PRECHARGE, 0, p.precharge)", "PRECHARGE, 0, p.precharge - 1)", "T_RP"),
    "t_wr": ("eq(p.recovery - 1)", "eq(p.recovery - 2)", "T_WR"),
    "wrong_bank": ("self.bank.eq(s.bank)", "self.bank.eq(s.bank ^ (s.fire & ~s.write))", "OPEN"),
    "bus": ("with m.If(s.turn == 0):", "with m.If(1):", "BUS"),
    "tag": ("s.tag.eq(request.tag),", "s.tag.eq(request.tag & s.bank),", "another's tag"),
}

test_injected_fault_is_found = fault_test(
    sdram_controller,
    FAULTS,
    lambda m: SdramSpec(m.SdramController(SIZE), invariant=False),
    depth=36,
    seconds=120,
)
