"""An SDRAM on a board: contents, cycles, every rule of the device, and faults."""

import dataclasses
import itertools

import pytest
from amaranth.sim import Simulator

from hw.boards import sdram_controller, sdram_controller_parameters
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.parameters import ParameterError
from sim.drivers.board.sdram_device import COMMANDS, Rule, SdramDevice
from tests.support.boards.sdram_run import Run, check, mixed
from tests.support.campaign import suite_takes
from tests.support.faults import with_fault

SMALL = SdramControllerParameters.preset("small")
# A device of few pages, so that a run has all kinds of jumps, and refreshes in it.
FEW = {"page_bits": 3, "column_bits": 5, "power_up": 400_000, "t_refi": 1_500_000}
FAST = SdramControllerParameters(20, 8, 3, 7_500, cas_latency=3, t_mrd=3, **FEW)
SLOW = SdramControllerParameters(100, 7, 5, 40_000, pads=2, **FEW | {"t_refi": 2_500_000})
NARROW = SdramControllerParameters(9, 10, 1, 12_500, **FEW)
SIZES = {"small": SMALL, "fast": FAST, "slow": SLOW, "narrow": NARROW}


@pytest.mark.parametrize("size", SIZES)
def test_every_read_sees_the_writes_before_it(size):
    """And every cycle is the formula's."""
    p = SIZES[size]
    requests = mixed(p, 120)
    run = Run(p, requests)
    check(run)
    assert len(run.answers) > 20
    accepted, answered = p.cycles((row, data is not None) for _, row, data in requests)
    assert run.accepted == accepted and [cycle for *_, cycle in run.answers] == answered


@pytest.mark.parametrize("size", ["fast", "slow"])
def test_requests_that_come_at_any_time(size):
    check(Run(SIZES[size], mixed(SIZES[size], 60, seed=2), pause=0.9))


def test_rows_of_an_open_page_keep_the_bus():
    """A row in as many cycles as it has columns, and the latency of the first one."""
    p = dataclasses.replace(FAST, t_refi=100_000_000)
    run = Run(p, [(0, row, row) for row in range(8)] + [(1, row, None) for row in range(8)])
    check(run)
    times = [cycle for *_, cycle in run.answers]
    assert {b - a for a, b in itertools.pairwise(times)} == {p.columns}
    assert times[1] - run.accepted[9] == p.latency


def test_pages_follow_each_other_over_banks_and_powers_of_two_do_not_collide():
    p = SdramControllerParameters()
    assert [p.place(n << p.in_page)[:2] for n in range(5)] == [
        (n % 4, n // 4) for n in range(4)
    ] + [(1, 1)]
    streams = [p.place(n << p.in_page + p.bank_bits)[0] for n in range(4)]
    assert sorted(streams) == [0, 1, 2, 3]


def test_a_quiet_memory_is_refreshed():
    run = Run(FAST, mixed(FAST, 10), quiet=2000)
    check(run)


CONTROLLER, PARAMETERS = sdram_controller, sdram_controller_parameters
FAULTS = {
    "refresh_omitted": (CONTROLLER, "s.due.eq(1)]", "s.due.eq(0)]", Rule.T_REFI),
    "t_rcd_one_short": (
        CONTROLLER,
        "ACTIVATE, s.page, p.activate)",
        "ACTIVATE, s.page, p.activate - 1)",
        Rule.T_RCD,
    ),
    "t_rp_one_short": (
        CONTROLLER,
        "PRECHARGE, 0, p.precharge)",
        "PRECHARGE, 0, p.precharge - 1)",
        Rule.T_RP,
    ),
    "t_ras_one_short": (CONTROLLER, "eq(p.active - 1)", "eq(p.active - 2)", Rule.T_RAS),
    "write_recovery_one_short": (
        CONTROLLER,
        "eq(p.recovery - 1)",
        "eq(p.recovery - 2)",
        Rule.T_WR,
    ),
    "t_rfc_one_short": (
        PARAMETERS,
        "return self.cycles_of(self.t_rfc)",
        "return self.cycles_of(self.t_rfc) - 1",
        Rule.T_RFC,
    ),
    "t_mrd_one_short": (CONTROLLER, "<< 4, p.t_mrd)", "<< 4, p.t_mrd - 1)", Rule.T_MRD),
    "power_up_one_short": (CONTROLLER, "init=powered)", "init=powered - 1)", Rule.POWER_UP),
    "one_refresh_less": (
        CONTROLLER,
        "init=p.refreshes)",
        "init=p.refreshes - 1)",
        Rule.INITIALISED,
    ),
    "turnaround_one_short": (
        PARAMETERS,
        "return self.cas_latency + 1",
        "return self.cas_latency",
        Rule.BUS,
    ),
    "rounded_to_the_nearest_cycle": (
        PARAMETERS,
        "return -(-time // self.period)",
        "return round(time / self.period)",
        Rule.POWER_UP,
    ),
    "wrong_cas_latency": (CONTROLLER, "p.cas_latency << 4", "2 << 4", Rule.MODE),
    "refresh_with_open_banks": (
        CONTROLLER,
        "with m.If(~s.open.any()):",
        "with m.If(1):",
        Rule.OPEN,
    ),
    "read_from_the_wrong_bank": (
        CONTROLLER,
        "self.bank.eq(s.bank)",
        "self.bank.eq(s.bank ^ (s.fire & ~s.write))",
        Rule.OPEN,
    ),
    "read_from_another_open_bank": (
        CONTROLLER,
        "m.d.comb += self.bank.eq(s.bank)",
        "m.d.comb += self.bank.eq(s.bank ^ (s.fire & ~s.write & s.open.all()))",
        None,
    ),
    "data_a_cycle_early": (
        PARAMETERS,
        "return self.cas_latency - 1 + self.pads",
        "return self.cas_latency - 2 + self.pads",
        None,
    ),
    "columns_exchanged": (CONTROLLER, "READ, s.column, 1)", "READ, s.column ^ 1, 1)", None),
}


IN_SUITE = [
    *("refresh_omitted", "t_rcd_one_short", "write_recovery_one_short"),
    "read_from_another_open_bank",
]


@pytest.mark.parametrize("fault", suite_takes(IN_SUITE, FAULTS))
def test_injected_fault_is_found(fault):
    """By the rule that is meant for it, or by wrong rows and no rule."""
    module, line, instead, rule = FAULTS[fault]
    faulty = with_fault(module, line, instead)
    p = FAST
    controller = sdram_controller.SdramController
    if module is PARAMETERS:
        p = faulty.SdramControllerParameters(**dataclasses.asdict(FAST))
    else:
        controller = faulty.SdramController
    run = Run(p, mixed(FAST, 120), controller=controller)
    if rule is None:
        assert not run.rules
        with pytest.raises(AssertionError):
            check(run)
    else:
        assert rule in run.rules


# Commands at cycles after initialisation, and the rule that is broken if the last one comes a cycle
# sooner; 7.5 ns a cycle. The second number is the bank.
A, P, R, W, F, M = "activate", "precharge", "read", "write", "refresh", "mode"
LIMITS = {
    Rule.T_RCD: [(0, A, 0), (3, R, 0)],
    Rule.T_RP: [(0, A, 0), (6, P, 0), (9, A, 0)],
    Rule.T_RAS: [(0, A, 0), (6, P, 0)],
    Rule.T_RC: [(0, A, 0), (6, P, 0), (9, A, 0)],
    Rule.T_RRD: [(0, A, 0), (2, A, 1)],
    Rule.T_WR: [(0, A, 0), (8, W, 0), (10, P, 0)],
    Rule.T_RFC: [(0, F, 0), (9, A, 0)],
    Rule.T_MRD: [(0, M, 0), (2, A, 0)],
    Rule.BUS: [(0, A, 0), (3, R, 0), (7, W, 0)],
}
TOTAL = 500
"""Cycles of 7.5 ns from one refresh to the next, 3.75 us."""


def broken(script: list[tuple[int, str, int]], cycles: int = 40, **changes) -> set[Rule]:
    """The rules that commands break, given to a device that has been initialised."""
    p = SdramControllerParameters(
        period=7_500, cas_latency=3, power_up=75_000, refreshes=2, t_refi=7_500 * TOTAL
    )
    start = [(10, P, "all"), (13, F, 0), (22, F, 0), (31, M, 0)]
    base = 40
    given = {at: (name, bank) for at, name, bank in start}
    given |= {base + at: (name, bank) for at, name, bank in script}
    given |= changes.get("instead", {})
    for at in changes.get("without", ()):
        del given[at]
    device = SdramDevice(p)
    found: set[Rule] = set()

    async def bench(ctx):
        for cycle in range(base + cycles):
            name, bank = given.get(cycle, (None, 0))
            ctx.set(device.command, COMMANDS.get(name, 0))
            ctx.set(device.bank, 0 if bank == "all" else bank)
            address = {"all": 1 << 10}.get(bank, 3 << 4 if name == M else 0)
            ctx.set(device.address, changes.get("address", {}).get(cycle, address))
            ctx.set(device.drive, name == W)
            bits = ctx.get(device.broken)
            found.update(rule for rule in Rule if bits >> rule & 1)
            await ctx.tick()

    simulator = Simulator(device)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@pytest.mark.parametrize("rule", LIMITS)
def test_a_rule_is_broken_by_one_cycle_less(rule):
    """T_RC alone is broken where the precharge comes at tRAS and tRP is short, so both are."""
    *before, (at, name, bank) = LIMITS[rule]
    assert not broken(LIMITS[rule])
    also = {Rule.T_RP, Rule.T_RC} if rule in (Rule.T_RP, Rule.T_RC) else {rule}
    assert broken([*before, (at - 1, name, bank)]) == also


def test_a_command_before_power_up():
    assert broken([], instead={9: (P, "all")}, without=[10]) == {Rule.POWER_UP}


@pytest.mark.parametrize("without", [10, 13, 31])
def test_an_initialisation_that_lacks_a_step(without):
    assert broken([(0, A, 0)], without=[without]) == {Rule.INITIALISED}


def test_a_mode_of_long_bursts():
    assert broken([], address={31: 3 << 4 | 3}) == {Rule.MODE}


def test_a_refresh_that_is_late():
    first = TOTAL - 18  # from the last one of the initialisation
    assert not broken([(first, F, 0)], cycles=first + 2)
    assert broken([(first + 1, F, 0)], cycles=first + 2) == {Rule.T_REFI}


@pytest.mark.parametrize(
    "script",
    [
        [(0, R, 0)],
        [(0, A, 0), (9, A, 0)],
        [(0, A, 0), (9, F, 0)],
        [(0, A, 0), (9, M, 0)],
        [(0, A, 0), (3, R, 1)],
    ],
)
def test_a_bank_that_is_closed_or_open(script):
    assert broken(script) == {Rule.OPEN}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": 16 << 9, "address": 16}, "address must be from 1 to 15 bits, all rows"),
        ({"row": (16 << 9) + 1}, "a row must have 1 to 8192 bits, a page of the SDRAM, not"),
        ({"cas_latency": 4}, "cas_latency must be from 2 to 3, not 4"),
        ({"t_rrd": 30_000}, "t_rrd must be at most t_rcd, not 30000"),
        ({"t_refi": 400_000}, "refreshes must be further apart than a page is changed in, not"),
        ({"column_bits": 11}, "column_bits must be from 1 to 10, not 11"),
    ],
)
def test_parameters_that_are_refused(changes, message):
    with pytest.raises(ParameterError) as error:
        SdramControllerParameters(**changes)
    assert message in str(error.value)
