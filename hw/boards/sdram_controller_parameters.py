"""Parameters of an SDRAM's controller: times of the data sheet, and their clock cycles."""

import dataclasses
import functools
from collections.abc import Iterable

from hw.parameters import Parameters, require
from hw.stream.memory_port import MemoryPort

LONGEST = 1_000_000_000
"""Picoseconds of a time at most: a millisecond."""
RANGES = {
    "tag": (1, 64),
    "period": (1, 1_000_000),
    "cas_latency": (2, 3),
    "pads": (0, 8),
    "bank_bits": (1, 3),
    "page_bits": (1, 16),
    # The eleventh address pin of a column means something else.
    "column_bits": (1, 10),
    "width": (1, 64),
    "refreshes": (1, 64),
    "t_mrd": (1, 64),
    "power_up": (1, LONGEST),
    **dict.fromkeys(("t_rcd", "t_rp", "t_ras", "t_rc", "t_rrd", "t_wr", "t_rfc"), (1, LONGEST)),
    "t_refi": (1, LONGEST),
}
"""Fewest and most of each parameter, whatever the others are."""


@dataclasses.dataclass(frozen=True)
class SdramControllerParameters(Parameters):
    """Times are in picoseconds, as data sheets have them in nanoseconds.

    The defaults are of Micron's MT48LC16M16A2 (256 Mb, x16), speed grade -75, with the power-up of
    Winbond's W9825G6KH, which is longer: other chips of this size on boards with an ECP5 (ISSI's
    IS42S16160G, Alliance's AS4C16M16SB) are as fast or faster.

    row, address, tag
        Bits of a row, of its number, and of a tag, of the memory's port.
    period
        Period of the clock.
    cas_latency
        Clocks from a read to its data, 2 or 3.
    pads
        Registers between controller and pins, of both ways together.
    bank_bits, page_bits, column_bits, width
        Bits of the number of a bank, of a row of the device (a page, here), of a column, and of a
        column's data.
    power_up
        Time of a stable clock before the first command.
    refreshes
        Refreshes of the initialisation.
    t_rcd, t_rp, t_ras, t_rc, t_rrd, t_wr, t_rfc
        Times: activate to read or write; precharge; activate to precharge; activate to activate of
        a bank, and of another one; from the last data written to the precharge; refresh.
    t_mrd
        Clocks from the mode's setting to the next command.
    t_refi
        Time from one refresh to the next, at most: 64 ms for 8192.
    """

    row: int = 128
    address: int = 20
    tag: int = 4
    period: int = 40_000
    cas_latency: int = 2
    pads: int = 0
    bank_bits: int = 2
    page_bits: int = 13
    column_bits: int = 9
    width: int = 16
    power_up: int = 200_000_000
    refreshes: int = 8
    t_rcd: int = 20_000
    t_rp: int = 20_000
    t_ras: int = 44_000
    t_rc: int = 66_000
    t_rrd: int = 15_000
    t_wr: int = 15_000
    t_rfc: int = 66_000
    t_mrd: int = 2
    t_refi: int = 7_812_500

    def __post_init__(self):
        for name, (least, most) in RANGES.items():
            rule = f"{name} must be from {least} to {most}"
            require(least <= getattr(self, name) <= most, rule, getattr(self, name))
        rule = f"a row must have 1 to {self.width << self.column_bits} bits, a page of the SDRAM"
        require(1 <= self.row <= self.width << self.column_bits, rule, self.row)
        rule = f"address must be from 1 to {self.reach} bits, all rows of the SDRAM"
        require(1 <= self.address <= self.reach, rule, self.address)
        # The next activation waits for the column commands of the one before, and for no more.
        require(self.t_rrd <= self.t_rcd, "t_rrd must be at most t_rcd", self.t_rrd)
        rule = "refreshes must be further apart than a page is changed in"
        require(self.interval > 2 * self.slack, rule, self.t_refi)

    @classmethod
    def presets(cls) -> dict[str, "SdramControllerParameters"]:
        small = {"bank_bits": 2, "page_bits": 4, "column_bits": 4, "power_up": 400_000}
        return {
            "small": cls(32, 6, 3, refreshes=2, **small),
            "default": cls(),
            "fast": cls(128, 20, 4, 7_500, cas_latency=3),
        }

    @functools.cached_property
    def port(self) -> MemoryPort:
        """Request of the memory's port, and the response's fields."""
        return MemoryPort(self.tag, self.address, self.row)

    @property
    def columns(self) -> int:
        """Columns from one row to the next: a power of two."""
        return 1 << (-(-self.row // self.width) - 1).bit_length()

    @property
    def in_page(self) -> int:
        """Bits of a row's number within a page."""
        return self.column_bits - (self.columns - 1).bit_length()

    @property
    def reach(self) -> int:
        """Bits of the number of a row, if all of the SDRAM are used."""
        return self.in_page + self.bank_bits + self.page_bits

    def cycles_of(self, time: int) -> int:
        """Clock cycles that have passed no sooner than a time in ps."""
        return -(-time // self.period)

    @property
    def activate(self) -> int:
        """Cycles from an activation to the first column."""
        return self.cycles_of(self.t_rcd)

    @property
    def precharge(self) -> int:
        return self.cycles_of(self.t_rp)

    @property
    def active(self) -> int:
        """Cycles from an activation to a precharge, so that the next activation is t_rc later."""
        return max(self.cycles_of(self.t_ras), self.cycles_of(self.t_rc) - self.precharge)

    @property
    def recovery(self) -> int:
        """Cycles from the last column written to a precharge."""
        return self.cycles_of(self.t_wr)

    @property
    def refresh(self) -> int:
        return self.cycles_of(self.t_rfc)

    @property
    def turnaround(self) -> int:
        """Cycles from the last column read to the first one written: data are still to come."""
        return self.cas_latency + 1

    @property
    def slack(self) -> int:
        """Cycles by which a refresh may come later than it is due."""
        last = max(self.active, self.recovery, self.activate, self.precharge)
        return last + self.precharge + self.refresh + self.t_mrd + 2

    @property
    def interval(self) -> int:
        """Cycles from one refresh due to the next, so that t_refi holds from each to the next."""
        return self.t_refi // self.period - self.slack

    @property
    def answer(self) -> int:
        """Cycles from a read's column to its data."""
        return self.cas_latency - 1 + self.pads

    @property
    def initialisation(self) -> int:
        """Cycles from reset to the first one in which a row may be served."""
        powered = self.cycles_of(self.power_up)
        return powered + self.precharge + self.refreshes * self.refresh + self.t_mrd

    @property
    def latency(self) -> int:
        """Cycles from a read's transfer to its answer, whose page is open."""
        return self.columns + self.answer + 1

    def place(self, row: int) -> tuple[int, int, int]:
        """Bank, page and first column of a row.

        Pages follow each other over the banks; the bank is XORed with the page's low bits, so that
        streams whose bases are powers of two apart meet in different banks.
        """
        column = row % (1 << self.in_page) * self.columns
        page, bank = divmod(row >> self.in_page, 1 << self.bank_bits)
        return bank ^ page % (1 << self.bank_bits), page, column

    def cycles(self, requests: Iterable[tuple[int, bool]]) -> tuple[list[int], list[int]]:
        """When requests (row, write) are accepted, and reads answered, that always wait to be.

        Cycle 0 is the first after reset. Reads are answered as fast as they come.
        """
        now = self.initialisation
        # The mode's setting begins the first interval, and a request may come in the next cycle.
        free = now - self.t_mrd + 1
        due = free + self.interval
        pages: dict[int, int] = {}
        activated = written = read = -(1 << 30)
        accepted: list[int] = []
        answered: list[int] = []

        def closed(now: int) -> int:
            return max(now, activated + self.active, written + self.recovery)

        for row, write in requests:
            accepted.append(free)
            bank, page, _ = self.place(row)
            now = max(now, free + 1)
            for _ in range(self.columns):
                while True:
                    if now >= due:
                        now = closed(now) + self.precharge if pages else now
                        pages.clear()
                        due += self.interval
                        now += self.refresh
                    elif bank not in pages:
                        pages[bank], activated = page, now
                        now += self.activate
                    elif pages[bank] != page:
                        # A refresh may come due while the bank may not be closed yet.
                        if closed(now) > now:
                            now += 1
                            continue
                        del pages[bank]
                        now += self.precharge
                    elif write and now < read + self.turnaround:
                        now += 1
                    else:
                        break
                written, read = (now, read) if write else (written, now)
                free = now
                now += 1
            if not write:
                answered.append(free + self.answer + 1)
        return accepted, answered
