"""A memory port behind AXI4: contents, order, rate and errors under any slave."""

import pytest

from hw.bus import axi_memory, channels
from hw.bus.axi_memory import AxiMemory, AxiMemoryParameters
from tests.support.bus.memory_run import BASE, Run, check, mixed
from tests.support.faults import with_fault

SMALL = AxiMemoryParameters.preset("small")
NARROW = AxiMemoryParameters.preset("narrow")


ORDERED = AxiMemoryParameters(64, 8, 3, 4, 2, in_order=True, data=32)


@pytest.mark.parametrize("p", [SMALL, NARROW, ORDERED], ids=["small", "narrow", "in_order"])
def test_every_read_sees_the_writes_before_it(p):
    requests = mixed(p, 60, seed=3)
    run = Run(p, requests, pause=0.3, latency=7, shuffle=not p.in_order)
    check(p, run, requests)
    assert not run.errors


def keep_the_rate(memory=AxiMemory):
    """Reads of 64 bytes at latency 100, 16 under way: 95 % of the bus, as the formula says."""
    p = AxiMemoryParameters(row=512, data=64, outstanding=16)
    run = Run(p, [(n % 16, n, None) for n in range(24)], latency=100, memory=memory)
    first, last = run.responses[0][2], run.responses[-1][2]
    rate = (len(run.responses) - 1) / (last - first)
    assert p.rate(bus_latency=100) == 1 / 8
    assert rate >= 0.95 * p.rate(bus_latency=100)


def test_sequential_rows_keep_the_port_s_rate():
    keep_the_rate()


def test_with_one_transfer_a_row_the_reads_under_way_limit_as_at_an_ideal_port():
    p = AxiMemoryParameters(row=64, data=64, outstanding=16)
    run = Run(p, [(n % 16, n, None) for n in range(40)], latency=100)
    # 40 reads are 3 rounds of 16 under way, the last of 8: an ideal port's take 101 cycles each.
    assert run.cycles <= 3 * 101 / 0.95 + 8


def test_errors_are_reported_and_rows_still_come_back():
    p = SMALL
    wrong = BASE + 2 * p.row_bytes
    requests = [(1, 1, None), (2, 2, None), (0, 2, 5), (3, 3, None)]
    run = Run(p, requests, latency=3, failing=range(wrong, wrong + 4))
    assert run.drained
    assert sorted(tag for tag, _, _ in run.responses) == [1, 2, 3]
    assert run.errors == [(0, 1, wrong), (1, 1, wrong)]


@pytest.mark.parametrize("stop_at", [5, 9, 14])
def test_stop_drains_the_bus(stop_at):
    """Bursts under way are completed, and the next requests are answered as ever."""
    run = Run(SMALL, mixed(SMALL, 40, seed=5), latency=11, stop_at=stop_at)
    assert run.drained
    assert run.slave.idle
    assert all(cycle < stop_at for *_, cycle in run.responses)


def see_the_writes(memory):
    requests = mixed(SMALL, 60, seed=3, rows=3)
    check(SMALL, Run(SMALL, requests, pause=0.1, latency=15, shuffle=True, memory=memory), requests)


def wait_for_valid(memory):
    requests = mixed(SMALL, 12, seed=3)
    check(SMALL, Run(SMALL, requests, late=True, memory=memory), requests)


def test_a_slave_may_wait_for_valid():
    wait_for_valid(AxiMemory)


FAULTS = {
    "one_under_way": (
        "free.eq(~taken & ~behind_write)",
        "free.eq(~s.busy.any() & ~behind_write)",
        keep_the_rate,
    ),
    "responses_in_order_assumed": (
        "m.d.comb += slot.eq(r.payload.id)",
        "m.d.sync += slot.eq(slot + s.last)",
        see_the_writes,
    ),
    "latency_of_a_write_assumed": (
        "free.eq(~taken & ~behind_write)",
        "free.eq(~taken)",
        see_the_writes,
    ),
    "a_write_overtakes_a_read": (
        "& ~behind_read),",
        "),",
        see_the_writes,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_found(fault):
    line, instead, test = FAULTS[fault]
    with pytest.raises(AssertionError):
        test(with_fault(axi_memory, line, instead).AxiMemory)


def test_a_valid_that_waits_for_ready_is_found(monkeypatch):
    faulty = with_fault(channels, "eq(skid.o.valid)", "eq(skid.o.valid & channel.ready)")
    monkeypatch.setattr(axi_memory, "buffered", faulty.buffered)
    with pytest.raises(AssertionError):
        wait_for_valid(AxiMemory)
