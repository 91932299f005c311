"""The boards that a design is built for: platform, device, clock and resources of each.

Gowin boards are left out: their flow needs nextpnr-himbaechel and gowin_pack, which are not among
the tools of the environment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth_boards.ecp5_5g_evn import ECP55GEVNPlatform
from amaranth_boards.icebreaker import ICEBreakerPlatform
from amaranth_boards.ulx3s import (
    ULX3S_12F_Platform,
    ULX3S_25F_Platform,
    ULX3S_45F_Platform,
    ULX3S_85F_Platform,
)


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
ECP5_45 = Resources(43848, 43848, 72, 108)
ECP5_85 = Resources(83640, 83640, 156, 208)
ICE40_UP5K = Resources(5280, 5280, 8, 30)


@dataclass(frozen=True)
class FpgaBoard:
    """A board whose serial port reaches the host.

    family
        Of the device: "ecp5" or "ice40".
    clock_mhz
        Of the oscillator that the platform's default clock names.
    baud
        Rate that the board's USB bridge is run at.
    """

    name: str
    platform: Callable[..., Any]
    family: str
    resources: Resources
    clock_mhz: float
    baud: int


# nextpnr opens all of a 12F's tables: its die is the 25F's.
BOARDS = {
    board.name: board
    for board in (
        FpgaBoard("ulx3s_85f", ULX3S_85F_Platform, "ecp5", ECP5_85, 25, 1_000_000),
        FpgaBoard("ulx3s_45f", ULX3S_45F_Platform, "ecp5", ECP5_45, 25, 1_000_000),
        FpgaBoard("ulx3s_25f", ULX3S_25F_Platform, "ecp5", ECP5_25, 25, 1_000_000),
        FpgaBoard("ulx3s_12f", ULX3S_12F_Platform, "ecp5", ECP5_25, 25, 1_000_000),
        FpgaBoard("ecp5_5g_evn", ECP55GEVNPlatform, "ecp5", ECP5_85, 12, 1_000_000),
        FpgaBoard("icebreaker", ICEBreakerPlatform, "ice40", ICE40_UP5K, 12, 1_000_000),
    )
}


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
