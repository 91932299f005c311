# amaranth: UnusedElaboratable=no
# (a clock is elaborated for pins that a test moves)
"""Boards by name, users' own platform classes, and clocks by PLL."""

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re

import amaranth_boards
import pytest
from amaranth.build import Attrs, Clock, Pins, Resource, Subsignal
from amaranth.hdl import ClockDomain, ClockSignal, Module, Signal
from amaranth.lib import io
from amaranth.sim import Simulator
from amaranth.vendor import LatticeECP5Platform, LatticeICE40Platform
from amaranth_boards.icebreaker import ICEBreakerPlatform
from amaranth_boards.icesugar_pro import ICESugarProPlatform
from amaranth_boards.resources import UARTResource

from hw.boards.fpga_top import FpgaTop
from hw.boards.platforms import board_of, boards, find_board, sdram_period
from hw.boards.pll import SETTLING_S, Ecp5Pll, Ice40Pll, PllClock, settings
from hw.boards.uart import divisor_of
from hw.parameters import ParameterError
from sim.core.tools import ROOT
from sim.synth.fpga import plan_of

PLL_CELLS = {"ecp5": "EHXPLLL", "ice40": "SB_PLL40_"}
LOOP = "module loop(input clk, rst, rx, output tx, running, error);\nendmodule\n"


def test_every_platform_with_a_device_and_a_serial_line_is_a_board():
    expected = set()
    for module in pkgutil.iter_modules(amaranth_boards.__path__):
        for one in vars(importlib.import_module(f"amaranth_boards.{module.name}")).values():
            if not inspect.isclass(one) or inspect.isabstract(one):
                continue
            if not issubclass(one, (LatticeECP5Platform, LatticeICE40Platform)):
                continue
            known = one().device.startswith(("LFE5", "iCE"))
            if known and any(name == "uart" for name, _ in one().resources):
                expected.add(one)
    assert {board.platform for board in boards().values()} == expected
    assert len(expected) == len(boards()) == 21
    assert {"ecpix5_85", "versa_ecp5_5g", "icesugar", "ulx3s_85f"} < set(boards())


@pytest.mark.parametrize("name", boards())
def test_a_design_for_each_board(name):
    """With a clock by PLL, where there is one, up to the tools' scripts."""
    board = find_board(name)
    assert board.platform().default_clk_frequency == board.clock_mhz * 1e6
    has_pll = name not in ("nandland_go", "icesugar_nano")
    if has_pll:
        board = board.clocked(40)
        assert abs(board.clock_mhz - 40) < 2 and board.pll is not None
    else:
        with pytest.raises(ParameterError, match=f"{name} has no PLL"):
            board.clocked(24)
    plan = plan_of(FpgaTop("loop", LOOP, board), board)
    assert any("module loop" in str(text) for text in plan.files.values())
    netlist = str(plan.files["top.il"])
    assert netlist.count(f"cell \\{PLL_CELLS[board.family]}") == has_pll
    assert ("SB_PLL40_PAD" in netlist) == (board.package == "SG48")
    assert ("-dsp" in str(plan.files["top.ys"])) == (board.device == "iCE40UP5K")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("altair", "board must be one of blackice, "),
        ("icebraker", "; did you mean icebreaker"),
        ("colorlight_5a75b", "; did you mean colorlight_5a75b_r7_0?"),
        ("arty_a7_35", "arty_a7_35 has xc7a35ti, and bitstreams are made for ECP5 and iCE40"),
        ("OrangeCrab-r0-2", "orangecrab_r0_2 has no UART in its platform, and the host speaks"),
        ("tang_nano_9k", "tang_nano_9k has no named device, and bitstreams are made for ECP5"),
        ("json:x", "json:x: module json has no x"),
        ("json:dumps", "json:dumps is no platform class of Amaranth"),
        ("no_such:X", "no_such:X: module 'no_such' cannot be imported: ModuleNotFoundError"),
        (":", ":: module '' cannot be imported"),
    ],
)
def test_what_is_no_board(name, message):
    with pytest.raises(ParameterError) as error:
        find_board(name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_names_as_users_type_them():
    assert find_board("ECPIX5-85") is boards()["ecpix5_85"]


def test_a_users_own_platform(tmp_path, monkeypatch):
    """The one of the page."""
    page = ROOT.joinpath("docs", "boards.md").read_text()
    (example,) = re.findall(r"```python\n# my_board\.py\n(.*?)```", page, re.S)
    (tmp_path / "my_board.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    board = find_board("my_board:MyPlatform")
    assert (board.name, board.clock_mhz) == ("my_board:MyPlatform", 25)
    plan = board.platform().build(FpgaTop("loop", LOOP, board.clocked(50)), do_build=False)
    assert "--25k --package CABGA256" in " ".join(str(plan.files["build_top.sh"]).split())
    # The LEDs of the page are there, as the serial line is.
    assert all(f"{pin}_0" in str(plan.files["top.lpf"]) for pin in ("led", "uart", "clk25"))


SDRAM_LOOP = LOOP.replace("error);", "error, input [15:0] sdram_read_data, output sdram_drive);")


def test_the_sdram_s_pins():
    """Registers in all pads, a clock that is the opposite, and every pin of the platform."""
    board = find_board("ulx3s_85f")
    plan = plan_of(FpgaTop("loop", SDRAM_LOOP, board, sdram=True), board)
    netlist, sites = str(plan.files["top.il"]), str(plan.files["top.lpf"])
    # Each with its enable: 3 commands, 2 of the bank, 13 of the address, 16 of data; the clock's.
    assert netlist.count("cell \\OFS1P3DX") == 2 * (3 + 2 + 13 + 16) + 1
    assert netlist.count("cell \\IFS1P3DX") == 16
    assert netlist.count("cell \\ODDRX1F") == 1
    pins = ("clk", "clk_en", "cs", "we", "ras", "cas", "ba", "a", "dq", "dqm")
    located = re.findall(r'LOCATE COMP "sdram_0__(\w+?)(?:__\w+)?(?:\[\d+\])?" SITE', sites)
    assert set(located) == set(pins) and len(located) == 6 + 2 + 13 + 16 + 2
    assert sdram_period(board) == 40_000 and sdram_period(board.clocked(40)) == 25_000


@pytest.mark.parametrize(
    ("name", "mhz", "why"),
    [
        ("ecpix5_85", None, "ecpix5_85 has no SDRAM in its platform"),
        (
            "colorlight_5a75b_r7_0",
            None,
            "has pins 1 ba, 11 a, 32 dq, and 16 dq, 2 ba, 13 a are known",
        ),
        (
            "ulx3s_85f",
            50,
            "a clock of 50 MHz is too fast for the SDRAM: its data come half a cycle after its",
        ),
    ],
)
def test_an_sdram_that_is_refused(name, mhz, why):
    with pytest.raises(ParameterError) as error:
        sdram_period(find_board(name).clocked(mhz))
    assert why in str(error.value)


def changed(**attributes):
    return type("Mine", (ICESugarProPlatform,), attributes)


def without(name: str) -> list:
    return [one for one in ICESugarProPlatform.resources if one.name != name]


def fails(self):
    raise OSError("no licence")


@pytest.mark.parametrize(
    ("platform", "why"),
    [
        (changed(device="LFE5U-99F"), "mine has LFE5U-99F, and bitstreams are made for"),
        (changed(package="BG100"), "mine has package BG100, and nextpnr knows BG256, MG285"),
        (changed(resources=without("uart")), "mine has no UART in its platform"),
        (
            changed(resources=[*without("uart"), Resource("uart", 0, Pins("A9", dir="i"))]),
            "mine: its UART needs the lines rx and tx",
        ),
        (
            changed(
                resources=[
                    *without("uart"),
                    Resource("uart", 0, Subsignal("tx", Pins("B9", dir="o"))),
                ]
            ),
            "mine: its UART needs the lines rx and tx",
        ),
        (changed(default_clk=None), "mine names no default clock"),
        (changed(default_clk="clk50"), "mine has no resource clk50, its default clock"),
        (
            changed(default_clk="OSCG", oscg_div=10),
            "mine: its clock OSCG is the chip's own oscillator, which is off by up to 10 %",
        ),
        (
            changed(resources=[*without("clk25"), Resource("clk25", 0, Pins("P6", dir="i"))]),
            "mine: its clock clk25 has no frequency",
        ),
        (changed(__init__=fails), "mine cannot be made: no licence"),
        (LatticeECP5Platform, "mine lacks "),
    ],
)
def test_a_platform_that_no_design_can_be_built_for(platform, why):
    with pytest.raises(ParameterError) as error:
        board_of("mine", platform)
    assert str(error.value).startswith(why)


@pytest.mark.parametrize(
    ("board", "mhz", "message"),
    [
        ("ecpix5_85", 900, "the PLL of an ECP5 makes 3.125 to 400 MHz, not 900"),
        ("ulx3s_85f", 0, "the PLL of an ECP5 makes 3.125 to 400 MHz, not 0"),
        ("ulx3s_85f", float("nan"), "the PLL of an ECP5 makes 3.125 to 400 MHz, not nan"),
        ("icebreaker", 15.9, "the PLL of an iCE40 makes 16 to 275 MHz, not 15.9"),
        ("supercon19badge", 22, "makes no clock near 22 MHz of the board's 8; the nearest is 24"),
        ("nandland_go", 50, "nandland_go has no PLL (iCE40HX1K in package VQ100), and its clock"),
    ],
)
def test_clocks_that_are_refused(board, mhz, message):
    with pytest.raises(ParameterError) as error:
        find_board(board).clocked(mhz)
    assert message in str(error.value)


def test_an_oscillator_that_no_pll_takes():
    with pytest.raises(ParameterError, match=r"an iCE40 takes 10 to 133 MHz, and the board has 3"):
        settings("ice40", 3.3, 20)


def test_settings_are_those_of_the_open_flows():
    """Of `icepll -i 12 -o 60` and of `ecppll -i 12 -o 16`, but for the oscillator's clock."""
    assert settings("ice40", 12, 60) == Ice40Pll(12, 1, 80, 4)
    pll = settings("ecp5", 12, 16)
    assert (pll.divide, pll.multiply) == (3, 4) and pll.output in (37, 38)


@pytest.mark.parametrize("input_mhz", [8, 12, 25, 48, 100, 133])
@pytest.mark.parametrize("kind", [Ecp5Pll, Ice40Pll])
def test_no_setting_is_nearer(kind, input_mhz):
    """Against all settings, written down again from the data sheets."""
    if kind is Ice40Pll:
        made = {
            input_mhz / r * f / 2**q
            for r, f, q in itertools.product(range(1, 17), range(1, 129), range(1, 7))
            if 10 <= input_mhz / r <= 133
            and 533 <= input_mhz / r * f <= 1066
            and 16 <= input_mhz / r * f / 2**q <= 275
        }
    else:
        made = {
            input_mhz / i * f
            for i, f in itertools.product(range(1, 129), range(1, 129))
            if input_mhz / i >= 3.125 and 3.125 <= input_mhz / i * f <= 400
        }
    family = "ice40" if kind is Ice40Pll else "ecp5"
    for wanted in (16, 17.3, 20, 24, 33.3, 40, 50, 66, 80, 125, 200):
        nearest = min((abs(mhz - wanted) for mhz in made), default=float("inf"))
        if nearest > 0.05 * wanted:
            with pytest.raises(ParameterError):
                settings(family, input_mhz, wanted)
            continue
        pll = settings(family, input_mhz, wanted)
        assert pll.works and abs(pll.output_mhz - wanted) == pytest.approx(nearest, abs=1e-6)
        assert (pll.output if kind is Ecp5Pll else 2**pll.output) * pll.output_mhz in (
            pll.oscillators
        )


@dataclasses.dataclass(frozen=True)
class Model(Ecp5Pll):
    """A PLL whose output is its input, and which locks when told."""

    locks: Signal | None = None

    def instance(self, clock, made, lock, port=None):
        m = Module()
        m.d.comb += [made.eq(clock), lock.eq(self.locks)]
        return m


class Desk:
    """A platform whose pins a test moves."""

    default_clk, default_rst = "clock", "button"

    def __init__(self):
        self.ports = {name: io.SimulationPort("i", 1) for name in ("clock", "button")}

    def request(self, name, number, dir):
        return self.ports[name]


def test_reset_is_held_until_the_pll_has_locked():
    """And 15 us more; a lost lock and the button bring it back."""
    locks, desk = Signal(), Desk()
    m = Module()
    m.domains.outside = ClockDomain()
    m.domains.sync = ClockDomain()
    m.submodules.clock = PllClock(Model(10, 1, 1, 60, locks=locks)).elaborate(desk)
    m.d.comb += desk.ports["clock"].i.eq(ClockSignal("outside"))
    counted = Signal(16)
    m.d.sync += counted.eq(counted + 1)
    cycles = round(SETTLING_S * 10e6)

    async def bench(ctx):
        async def after(count: int) -> int:
            for _ in range(count):
                await ctx.tick("outside")
            return ctx.get(counted)

        assert await after(3 * cycles) == 0
        ctx.set(locks, 1)
        assert await after(cycles) == 0
        assert 0 < await after(8) < 8
        for signal, level in ((locks, 0), (desk.ports["button"].i, 1)):
            ctx.set(signal, level)
            await after(3)
            assert await after(1) == 0
            ctx.set(signal, 1 - level)
            assert await after(cycles) == 0
            assert 0 < await after(8) < 8

    simulator = Simulator(m)
    simulator.add_clock(1e-7, domain="outside")
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(
    ("mhz", "baud", "divisor"), [(25, 1_000_000, 25), (41.666667, 1_000_000, 42), (12, 115200, 104)]
)
def test_cycles_a_bit_of_the_real_clock(mhz, baud, divisor):
    assert divisor_of(mhz, baud) == divisor


@pytest.mark.parametrize(
    ("mhz", "baud", "message"),
    [
        (25, 20_000_000, "a clock of 25 MHz makes 381 to 6250000 baud, not 20000000"),
        (3.3, 1_000_000, "a clock of 3.3 MHz makes 50 to 825000 baud, not 1000000"),
        (100, 300, "a clock of 100 MHz makes 1525 to 25000000 baud, not 300"),
        (float("nan"), 9600, "a clock must have a number of MHz above 0, not nan"),
        (float("inf"), 9600, "a clock must have a number of MHz above 0, not inf"),
        (5.5, 1_000_000, "a clock of 5.5 MHz makes 916667 baud, too far from 1000000: choose"),
    ],
)
def test_rates_that_a_clock_does_not_make(mhz, baud, message):
    with pytest.raises(ParameterError) as error:
        divisor_of(mhz, baud)
    assert message in str(error.value)


def test_an_ice_breaker_of_another_clock_pin():
    """The PLL's own pin has no other way in; any other pin reaches it through the device."""
    assert boards()["icebreaker"].pll_at_pin

    class Rewired(ICEBreakerPlatform):
        resources = [
            Resource("clk12", 0, Pins("20", dir="i"), Clock(12e6), Attrs(IO_STANDARD="SB_LVCMOS")),
            UARTResource(0, rx="6", tx="9", attrs=Attrs(IO_STANDARD="SB_LVCMOS")),
        ]
        connectors = []

    assert not board_of("rewired", Rewired).pll_at_pin
