"""The DRAM model: its commands keep the standards' rules, its rates equal DRAMsim3's."""

import collections
import dataclasses
import random

import numpy as np
import pytest

from hw.parameters import ParameterError
from sim.core.dram.address import AddressMap
from sim.core.dram.requests import measure, pattern, read_requests
from sim.core.dram.standards import STANDARDS
from sim.core.dram.timing import DramTiming, parse_timing
from sim.core.memory import MemoryModel, MemoryTiming
from tests.support.sim.dram_rules import broken_rules

FINE = "row:bank:column:channel"
"""Neighbouring lines in different channels."""


def traffic(standard, count: int, seed: int) -> list[tuple[bool, int]]:
    """Runs, single lines and writes, of which many meet in few banks and rows."""
    source = random.Random(seed)
    lines, found = standard.capacity // standard.line, []
    near = [source.randrange(lines) for _ in range(6)]
    while len(found) < count:
        first = source.choice(near) if source.random() < 0.5 else source.randrange(lines)
        write = source.random() < 0.3
        for place in range(source.choice((1, 1, 2, 9, 40))):
            found.append((write, (first + place) % lines * standard.line))
    return found[:count]


def commands_of(name: str, settings: str, count: int = 300):
    """A standard with many refreshes, and the commands of its channels for mixed traffic."""
    timing = parse_timing(f"{name}{settings}")
    standard = dataclasses.replace(timing.standard, refresh=60, refresh_interval=200)
    timing = dataclasses.replace(timing, standard=standard)
    trace: list[list] = [[] for _ in range(standard.channels)]
    return standard, measure(timing, traffic(standard, count, 1), trace), trace


CASES = [("hbm2", f",channels=2,map={FINE},hash=on"), *((name, "") for name in STANDARDS)]


@pytest.mark.parametrize("name, settings", CASES)
def test_commands_keep_the_rules_of_the_standard(name, settings):
    standard, use, trace = commands_of(name, settings)
    assert [rule for commands in trace for rule in broken_rules(standard, commands)] == []
    found = collections.Counter(command for commands in trace for _, command, *_ in commands)
    assert set(found) == {"ACT", "PRE", "RD", "WR", "PREA", "REF"}
    counts = use.counts
    assert (found["RD"], found["WR"]) == (counts.reads, counts.writes)
    assert (found["ACT"], found["REF"]) == (counts.activations, counts.refreshes)
    # A row may be closed for a refresh before its first column.
    assert counts.row_hits >= counts.reads + counts.writes - counts.activations
    of_rank = counts.refreshes / (standard.channels * standard.ranks)
    assert abs(of_rank - use.elapsed / standard.refresh_interval) <= 1


TIGHT = {
    "hbm2": (
        *("activate_to_column", "precharge", "row_active", "row_cycle", "refresh", "burst"),
        *("activate_long", "activate_short", "four_activates", "read_to_precharge"),
        *("write_recovery", "turnaround", "write_to_read_short", "read_latency", "write_latency"),
    ),
    "ddr3_1600": ("column_long", "activate_long", "write_to_read_long", "turnaround", "refresh"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", TIGHT)
def test_commands_go_as_soon_as_the_rules_allow(name):
    """With one clock more in any rule, some command would be too early."""
    standard, _, trace = commands_of(name, f",channels=1,map={FINE}", 900)
    for rule in TIGHT[name]:
        stricter = dataclasses.replace(standard, **{rule: getattr(standard, rule) + 1})
        assert broken_rules(stricter, trace[0]), rule


# Clocks that DRAMsim3 takes for 2000 reads on the same standard, with the same map and a window of
# 64 requests: docs/dram.md says how they were found.
DRAMSIM3 = {
    "hbm2": {"sequential": 544, "runs:16": 800, "random": 2216},
    "lpddr4_3200": {"sequential": 17123, "runs:4": 16727, "random": 20398},
    "ddr3_1600": {"sequential": 8636, "runs:4": 8306, "random": 9889},
    "sdr_133": {"sequential": 16260, "runs:4": 16290, "random": 17591},
}


@pytest.mark.parametrize("name", DRAMSIM3)
def test_rates_are_those_of_dramsim3(name):
    timing = parse_timing(name)
    rates = []
    for kind, clocks in DRAMSIM3[name].items():
        use = measure(timing, pattern(kind, timing.standard, 2000))
        within = 0.05 if kind == "sequential" else 0.15
        assert abs(clocks / use.clocks - 1) < within, (kind, use.clocks)
        rates.append(use.achieved)
    assert rates[0] > 0.92 and min(rates) == rates[-1]


# The same for 40,000 reads.
LONG = {
    "hbm2": {"sequential": 10692, "runs:16": 13497, "runs:4": 11239, "random": 41881},
    "lpddr4_3200": {
        "sequential": 334585,
        "runs:16": 331462,
        "runs:4": 325887,
        "random": 383722,
    },
    "ddr3_1600": {"sequential": 166505, "runs:16": 165339, "runs:4": 163941, "random": 185891},
    "sdr_133": {"sequential": 325309, "runs:16": 325525, "runs:4": 325755, "random": 354042},
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", DRAMSIM3)
def test_rates_are_those_of_dramsim3_in_long_runs(name):
    timing = parse_timing(name)
    for kind, clocks in LONG[name].items():
        use = measure(timing, pattern(kind, timing.standard, 40_000))
        assert abs(clocks / use.clocks - 1) < (0.05 if kind == "sequential" else 0.15), kind


def test_streams_collide_unless_addresses_are_hashed_or_bases_staggered():
    """Six streams, keys and values of three heads, from bases that are powers of two apart."""

    def share(kind: str, settings: str) -> float:
        timing = parse_timing(f"hbm2{settings}")
        return measure(timing, pattern(kind, timing.standard, 2500)).achieved

    assert share("streams:6", "") < 0.15
    assert share("streams:6", ",hash=on") > 0.8
    assert share("staggered:6", f",map={FINE}") > 0.8


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("name", STANDARDS)
def test_a_map_is_a_bijection(name, hashed):
    standard = dataclasses.replace(STANDARDS[name], channels=4, rows=8, columns=4)
    lines = standard.capacity // standard.line
    for fields in ("row:bank:column:channel", "column:channel:row:rank:bank"):
        places = AddressMap.from_text(fields, standard, hashed)
        found = np.array([places.locate(line) for line in range(lines)])
        each = np.unique(found, axis=0, return_counts=True)[1]
        assert len(each) == lines // 4 and (each == 4).all()


def model_of(text: str, row_bits: int, rows: int = 4096) -> MemoryModel:
    return MemoryModel(
        np.zeros((rows, -(-row_bits // 32)), np.uint32), parse_timing(text), row_bits
    )


def latency(model: MemoryModel, cycle: int, address: int) -> int:
    model.request(cycle, 0, address)
    now = cycle + 1
    while model.response(now) is None:
        now += 1
    return now - cycle


def test_a_row_is_answered_when_its_last_burst_has_arrived():
    """tRCD, CL and the burst, one cycle for the request, and bursts after the first."""
    s = STANDARDS["hbm2"]
    first = s.activate_to_column + s.read_latency + s.burst
    assert latency(model_of("hbm2", 512), 0, 0) == 1 + first
    assert latency(model_of("hbm2", 4 * 512), 0, 0) == 1 + first + 3 * s.burst
    assert latency(model_of(f"hbm2,map={FINE}", 4 * 512), 0, 0) == 1 + first
    crossing = model_of("hbm2", 8 * 40)  # the second row lies in two lines
    assert latency(crossing, 0, 1) == 1 + first + s.burst
    assert latency(crossing, 200, 1) == 1 + s.read_latency + 2 * s.burst  # row hits


@pytest.mark.parametrize("clock", ["100", "333.333", "1000", "1600", "2666.667"])
def test_core_and_memory_have_their_own_clocks(clock):
    """The request arrives with the first clock after its cycle, the data with the next cycle."""
    s = STANDARDS["lpddr4_3200"]
    model = model_of(f"lpddr4_3200,clock={clock}", 1024)
    core = 1e6 / float(clock)
    for cycle in (0, 7, 50):
        model = model_of(f"lpddr4_3200,clock={clock}", 1024)
        arrives = np.ceil(round((cycle + 1) * core / s.tck_ps, 6))
        done = arrives + s.activate_to_column + s.read_latency + s.burst
        offered = np.ceil(round(done * s.tck_ps / core, 6))
        assert cycle + latency(model, cycle, 0) == offered


def test_responses_in_order_if_asked_for():
    for order in ("in", "any"):
        model = model_of(f"ddr3_1600,order={order}", 512)
        for tag, address in enumerate((0, 2000, 1, 2001, 2)):
            model.request(tag, tag, address)
        answers = [model.response(cycle) for cycle in range(5, 200)]
        tags = [answer[0] for answer in answers if answer is not None]
        assert sorted(tags) == [0, 1, 2, 3, 4] and (tags == sorted(tags)) == (order == "in")


def test_energy_is_by_the_kind_of_command():
    use = measure(parse_timing("ddr3_1600"), pattern("sequential", STANDARDS["ddr3_1600"], 256))
    energy, of = use.energy(), STANDARDS["ddr3_1600"].energies()
    # By hand: 1.35 V, 185 less 51 mA for 4 clocks of 1.25 ns, 4 chips.
    assert of["read"] == pytest.approx(1.35 * (185 - 51) * 4 * 1.25 * 4)
    assert energy["read"] == pytest.approx(256 * of["read"] / 1000)
    assert use.counts.activations == 2 and energy["activation"] == pytest.approx(
        2 * of["activation"] / 1000, abs=1e-3
    )
    assert energy["write"] == energy["refresh"] == 0 < energy["background"]


def test_settings_from_text():
    text = "hbm2,channels=4,clock=333.333,map=row:bank:column:channel,hash=on,window=9,order=in"
    timing = parse_timing(text)
    assert isinstance(timing, DramTiming) and str(timing) == text
    assert parse_timing(str(timing)) == timing != parse_timing("hbm2")
    assert not timing.is_fastest and not timing.is_drawn
    assert parse_timing("latency=3", seed=5) == MemoryTiming((3, 3), seed=5)


@pytest.mark.parametrize(
    "text, message",
    [
        ("hbm3", "a memory's standard must be one of hbm2, .*, not 'hbm3'"),
        ("hbm2,rate=1", "a DRAM's setting must be one of channels, clock, .*, not 'rate=1'"),
        ("hbm2,channels=3", "channels must be a power of two up to 64, not 3"),
        ("hbm2,channels=x", "channels must be a whole number, not 'x'"),
        ("hbm2,clock=fast", "clock must be a number of MHz, .*, not 'fast'"),
        ("hbm2,clock=0", "clock must be from 0.001 to 10000 MHz, not 0"),
        ("hbm2,window=0", "window must be from 1 to 4096, not 0"),
        ("hbm2,hash=yes", "hash must be off or on, not 'yes'"),
        ("hbm2,order=out", "order must be in or any, not 'out'"),
        (
            "hbm2,map=row:bank",
            "map must name row, bank, column and channel once .*, not 'row:bank'",
        ),
        ("latency=x", "latency must be a whole number, not 'x'"),
    ],
)
def test_settings_are_checked(text, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        parse_timing(text)


def test_a_file_of_requests(tmp_path):
    file = tmp_path / "requests"
    file.write_text("R 40\nW 0x1f80\n\nR ff\n")
    assert read_requests(file) == [(False, 0x40), (True, 0x1F80), (False, 0xFF)]
    for text, message in (("R 40\nX 0\n", "line 2 of .* must be R or W"), ("", "has no requests")):
        file.write_text(text)
        with pytest.raises(ParameterError, match=message):
            read_requests(file)
