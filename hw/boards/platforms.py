"""The boards that a design is built for: every platform with an ECP5 or iCE40 and a serial line.

They are found in amaranth_boards; a user's own platform class is as good. Gowin devices are left
out: their flow needs nextpnr-himbaechel and gowin_pack, which are not among the tools of the
environment.
"""

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import amaranth_boards
from amaranth.build import Platform
from amaranth.build.res import ResourceError
from amaranth.vendor import LatticeECP5Platform, LatticeICE40Platform

from hw.boards.pll import Pll, settings
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.parameters import ParameterError, require_one_of

BAUD = 1_000_000
"""Rate of a board's serial line, unless told otherwise: what USB bridges do."""


SDRAM_ROUND_TRIP = 12_500
"""Picoseconds from the clock's edge at the FPGA to the SDRAM's data in a register of its pads.

The clock's way out 4.5 ns, access time of the SDRAM 6 ns, set-up and wires 2 ns: about.
"""


@dataclass(frozen=True)
class Resources:
    """What a device has, or what a design needs of it.

    lut4, flipflops
        Four-input tables and flip-flops.
    dsp, bram
        Multipliers and block memories: of 18 x 18 bits and 18 kbit on ECP5, of 16 x 16 bits and
        4 kbit on iCE40.
    """

    lut4: int
    flipflops: int
    dsp: int
    bram: int


ECP5_25 = Resources(24288, 24288, 28, 56)
# By device, as nextpnr opens them: a 12F's die is the 25F's, a 4K's the 8K's, a UP3K's the UP5K's.
DEVICES = {
    r"LFE5U-(12|25)F|LFE5UM(5G)?-25F": ECP5_25,
    r"LFE5U(M|M5G)?-45F": Resources(43848, 43848, 72, 108),
    r"LFE5U(M|M5G)?-85F": Resources(83640, 83640, 156, 208),
    r"iCE40LP384": Resources(384, 384, 0, 0),
    r"iCE40(LP|HX)1K": Resources(1280, 1280, 0, 16),
    r"iCE40(LP|HX)[48]K": Resources(7680, 7680, 0, 32),
    r"iCE40UP[35]K": Resources(5280, 5280, 8, 30),
    r"iCE5LP[124]K": Resources(3520, 3520, 4, 20),
}
ECP5_PACKAGES = ("BG256", "MG285", "BG381", "BG554", "BG756")
# Packages whose PLL has no supply, by the data sheet, and the pins that are an only PLL's own.
WITHOUT_PLL = ("SWG16", "CM36", "CM36A", "CB81", "QN84", "VQ100")
PLL_PINS = {"SG48": "35"}
# Oscillators of a chip are off by 10 % and more.
OSCILLATORS = ("OSCG", "SB_HFOSC", "SB_LFOSC")


@dataclass(frozen=True)
class FpgaBoard:
    """A board whose serial port reaches the host.

    name
        As on the command line.
    platform
        Its class, called without arguments.
    family
        Device family: "ecp5" or "ice40".
    clock_mhz
        Frequency of the design's clock: the oscillator that the platform's default clock names, or
        the PLL.
    baud
        Rate that the board's USB bridge is run at.
    pll
        What makes the clock, None for the oscillator.
    pll_at_pin
        Whether the clock's pin belongs to an iCE40's only PLL, whose cell then holds the pin.
    """

    name: str
    platform: type[Any]
    family: str
    device: str
    package: str
    resources: Resources
    clock_mhz: float
    baud: int = BAUD
    pll: Pll | None = None
    pll_at_pin: bool = False

    def clocked(self, mhz: float | None) -> "FpgaBoard":
        """The board with a design's clock of about that; None for the oscillator's.

        :raises ParameterError: if its PLL cannot make it.
        """
        if mhz is None or mhz == self.clock_mhz:
            return self
        if self.device == "iCE40LP384" or self.package in WITHOUT_PLL and self.family == "ice40":
            what = f"{self.device} in package {self.package}"
            raise ParameterError(
                f"{self.name} has no PLL ({what}), and its clock is {self.clock_mhz:g} MHz"
            )
        pll = settings(self.family, self.clock_mhz, mhz)
        return replace(self, clock_mhz=round(pll.output_mhz, 6), pll=pll)


def board_of(name: str, platform: type) -> FpgaBoard:
    """The board of a platform class.

    :raises ParameterError: with the reason why no design can be built for it.
    """
    made = _made(name, platform)
    family = "ecp5" if issubclass(platform, LatticeECP5Platform) else "ice40"
    device = getattr(made, "device", "no named device")
    resources = next((r for kinds, r in DEVICES.items() if re.fullmatch(kinds, device)), None)
    if not issubclass(platform, (LatticeECP5Platform, LatticeICE40Platform)) or resources is None:
        raise ParameterError(f"{name} has {device}, and bitstreams are made for ECP5 and iCE40")
    if family == "ecp5" and made.package not in ECP5_PACKAGES:
        known = ", ".join(ECP5_PACKAGES)
        raise ParameterError(f"{name} has package {made.package}, and nextpnr knows {known}")
    uart = made.resources.get(("uart", 0))
    if uart is None:
        raise ParameterError(
            f"{name} has no UART in its platform, and the host speaks through one: give a platform "
            "class with a UARTResource as --board module:Class"
        )
    lines = {getattr(part, "name", None) for part in uart.ios}
    if not {"rx", "tx"} <= lines:
        raise ParameterError(f"{name}: its UART needs the lines rx and tx")
    clock, mhz = made.default_clk, _oscillator(name, made)
    pins = made.lookup(clock, 0).ios[0]
    own = PLL_PINS.get(made.package) if family == "ice40" else None
    at_pin = own is not None and getattr(pins, "names", None) == [own]
    parts = (family, device, made.package, resources, mhz)
    return FpgaBoard(name, platform, *parts, pll_at_pin=at_pin)


def _made(name: str, platform: type) -> Any:
    """An object of a platform class.

    :raises ParameterError: if it cannot be made.
    """
    if not (inspect.isclass(platform) and issubclass(platform, Platform)):
        raise ParameterError(f"{name} is no platform class of Amaranth")
    if inspect.isabstract(platform):
        missing = ", ".join(sorted(platform.__abstractmethods__))
        raise ParameterError(f"{name} lacks {missing}")
    try:
        return platform()
    except Exception as error:  # whatever a user's class does
        raise ParameterError(f"{name} cannot be made: {error or type(error).__name__}") from None


def _oscillator(name: str, platform: Any) -> float:
    """MHz of a platform's default clock.

    :raises ParameterError: if no serial line can be timed by it.
    """
    clock = platform.default_clk
    if clock is None:
        raise ParameterError(f"{name} names no default clock")
    if clock in OSCILLATORS:
        raise ParameterError(
            f"{name}: its clock {clock} is the chip's own oscillator, which is off by up to 10 %, "
            "and a serial line bears 2 %"
        )
    try:
        found = platform.lookup(clock, 0).clock
    except ResourceError:
        raise ParameterError(f"{name} has no resource {clock}, its default clock") from None
    if found is None:
        raise ParameterError(f"{name}: its clock {clock} has no frequency")
    return found.frequency / 1e6


@functools.cache
def _survey() -> tuple[dict[str, FpgaBoard], dict[str, str]]:
    """All boards of amaranth_boards by name, and why the others are refused."""
    found, refused = {}, {}
    for name, platform in sorted(_platforms()):
        try:
            found[name] = board_of(name, platform)
        except ParameterError as error:
            refused[name] = str(error)
    return found, refused


def _platforms() -> Iterator[tuple[str, type]]:
    """Names and classes: the module's name, with what tells its classes apart.

    ``icebreaker``, the only one of its module; ``ulx3s_85f`` of ``ULX3S_85F_Platform``.
    """
    for module in pkgutil.iter_modules(amaranth_boards.__path__):
        members = vars(importlib.import_module(f"amaranth_boards.{module.name}")).values()
        classes = [
            one
            for one in members
            if inspect.isclass(one)
            and issubclass(one, Platform)
            and one.__module__ == f"amaranth_boards.{module.name}"
            and not inspect.isabstract(one)
        ]
        for one in classes:
            own = one.__name__.removesuffix("Platform").strip("_").lower()
            # The module's name with any underscores, at the beginning of the class's.
            base = "_*".join(re.escape(letter) for letter in module.name.replace("_", ""))
            rest = re.sub(f"^{base}_*", "", own)
            alone = len(classes) == 1 or not rest
            yield (module.name if alone else f"{module.name}_{rest}").lower(), one


def sdram_period(board: FpgaBoard) -> int:
    """The clock's period in ps, of a board whose SDRAM can be used.

    :raises ParameterError: with the reason why not.
    """
    resource = board.platform().resources.get(("sdram", 0))
    if resource is None:
        raise ParameterError(f"{board.name} has no SDRAM in its platform")
    chip = SdramControllerParameters()
    wanted = {"dq": chip.width, "ba": chip.bank_bits, "a": chip.page_bits}
    widths = {part.name: len(part.ios[0].names) for part in resource.ios if part.name in wanted}
    if widths != wanted:
        has, needs = (", ".join(f"{w} {n}" for n, w in of.items()) for of in (widths, wanted))
        raise ParameterError(f"the SDRAM of {board.name} has pins {has}, and {needs} are known")
    period = int(1e6 / board.clock_mhz)
    if period < 2 * SDRAM_ROUND_TRIP:
        most = 1e6 / (2 * SDRAM_ROUND_TRIP)
        raise ParameterError(
            f"a clock of {board.clock_mhz:g} MHz is too fast for the SDRAM: its data come half a "
            f"cycle after its clock, which works up to {most:g} MHz"
        )
    return period


def boards() -> dict[str, FpgaBoard]:
    """All boards of amaranth_boards that a design can be built for, by name."""
    return _survey()[0]


def find_board(name: str) -> FpgaBoard:
    """A board by its name, or a user's own platform class as ``module:Class``.

    :raises ParameterError: if there is no such board, with the nearest names or the reason.
    """
    if ":" in name:
        return board_of(name, _imported(name))
    plain = name.lower().replace("-", "_")
    found, refused = _survey()
    if plain in refused:
        raise ParameterError(refused[plain])
    require_one_of("board", plain, [*found], ("list",))
    return found[plain]


def _imported(name: str) -> type:
    """The class that ``module:Class`` names.

    :raises ParameterError: if there is no such class.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise ParameterError(f"{name}: module {module} has no {attribute}") from None
    except Exception as error:  # whatever a user's module does
        why = f"{type(error).__name__}: {error}"
        raise ParameterError(f"{name}: module {module!r} cannot be imported: {why}") from None


def shortage(need: Resources, board: FpgaBoard) -> str | None:
    """One sentence on the first resource that the board has too little of, None if all fit."""
    words = {
        "lut4": "LUT4s",
        "flipflops": "flip-flops",
        "dsp": "multipliers",
        "bram": "block memories",
    }
    for field, word in words.items():
        needed, room = getattr(need, field), getattr(board.resources, field)
        if needed > room:
            return f"the design needs {needed} {word}, {board.name} has {room}"
    return None
