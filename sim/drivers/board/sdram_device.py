"""An SDR SDRAM, written from data sheets: its banks, its data bus, and every rule of its timing.

It shares nothing with the controller but the numbers of the data sheet. A command that breaks a
rule sets the rule's bit in the same cycle.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import enum, memory

from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out


class Rule(enum.IntEnum):
    """What a controller must keep; the number is the bit of `broken`."""

    POWER_UP = 0
    """No command before the power-up time."""
    INITIALISED = 1
    """All banks precharged, then refreshes, then the mode, and only then rows."""
    T_RCD = 2
    T_RP = 3
    T_RAS = 4
    T_RC = 5
    T_RRD = 6
    T_WR = 7
    T_RFC = 8
    T_MRD = 9
    T_REFI = 10
    """No longer than this from one refresh to the next."""
    OPEN = 11
    """Columns of an open bank; a closed one is activated; refresh and mode need all closed."""
    BUS = 12
    """Data with a write and with nothing else, and not while the device drives the bus."""
    MODE = 13
    """Bursts of one column and the CAS latency that is expected."""


# The truth table: RAS, CAS and WE as they are driven low.
COMMANDS = {
    "activate": 0b001,
    "read": 0b010,
    "refresh": 0b011,
    "burst_stop": 0b100,
    "precharge": 0b101,
    "write": 0b110,
    "mode": 0b111,
}


PINS = ("command", "bank", "address", "write_data", "drive")


def device_ports(p: SdramControllerParameters) -> Ports:
    """The pins of the device, and what cells it means."""
    return {
        "command": wire_in(3, "RAS, CAS and WE from bit 0, high where the pin is low."),
        "bank": wire_in(p.bank_bits),
        "address": wire_in(max(p.page_bits, 11)),
        "write_data": wire_in(p.width),
        "drive": wire_in(1, "The controller drives the data pins."),
        "read_data": wire_out(p.width),
        "broken": wire_out(len(Rule), "The rules that this cycle's pins break."),
        "place": wire_out(
            p.page_bits + p.bank_bits + p.column_bits,
            "Of a cell: column, above it bank, above it page.",
        ),
        "stores": wire_out(1, "`write_data` goes to the cell."),
        "held": wire_in(p.width, "What the cell holds."),
    }


class SdramDevice(Component[SdramControllerParameters]):
    """One SDRAM chip.

    Its clock is the opposite of the controller's: it takes in the middle of cycle k what the pins
    have in it, and drives data of a read from the middle of cycle k + CL - 1 to the next cycle's,
    so that they can be registered between the two. Both halves are one cycle here. It is powered up
    by reset. The cells are beside it, so that a simulator may keep as many of them as it likes.

    Parameters
    ----------
    parameters : :class:`SdramControllerParameters`
        Sizes, times and period; nothing of the memory's port matters.
    """

    def ports(self) -> Ports:
        return device_ports(self.parameters)

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        self.is_ = {}
        for name, code in COMMANDS.items():
            self.is_[name] = Signal(name=f"is_{name}")
            m.d.comb += self.is_[name].eq(self.command == code)
        self._ages: dict[str, Value] = {}
        banks = range(1 << p.bank_bits)
        self.opened = Array(Signal(name=f"opened_{n}") for n in banks)
        self.page = Array(Signal(p.page_bits, name=f"open_page_{n}") for n in banks)
        self._rows(m)
        self._initialisation(m)
        self._times(m)
        self._contents(m)
        return m

    def _break(self, m: Module, rule: Rule, when: Value) -> None:
        with m.If(when):
            m.d.comb += self.broken[rule].eq(1)

    def _since(self, m: Module, name: str, event: Value, limit: int) -> Value:
        """Whether fewer than `limit` cycles have passed since an event, which there need not be."""
        age = Signal(range(limit + 1), init=limit, name=f"since_{name}")
        m.d.sync += age.eq(Mux(event, 1, age + (age != limit)))
        return age < limit

    def _needed(self, time: int) -> int:
        """The fewest clocks that are no shorter than a time."""
        clocks = 0
        while clocks * self.parameters.period < time:
            clocks += 1
        return clocks

    def _rows(self, m: Module) -> None:
        """Which bank is open at which page, and who may ask it for what."""
        is_ = self.is_
        everything = self.address[10]
        column = is_["read"] | is_["write"]
        any_open = Cat(*self.opened).any()
        with m.If(is_["activate"]):
            m.d.sync += [self.opened[self.bank].eq(1), self.page[self.bank].eq(self.address)]
        with m.If(is_["precharge"]):
            m.d.sync += self.opened[self.bank].eq(0)
            with m.If(everything):
                m.d.sync += [one.eq(0) for one in self.opened]
        self._break(m, Rule.OPEN, column & ~self.opened[self.bank])
        self._break(m, Rule.OPEN, is_["activate"] & self.opened[self.bank])
        self._break(m, Rule.OPEN, (is_["refresh"] | is_["mode"]) & any_open)
        # Automatic precharge would close the bank behind the controller's back.
        self._break(m, Rule.OPEN, column & everything)

    def _initialisation(self, m: Module) -> None:
        """Power-up, all banks precharged, refreshes, mode."""
        p, is_ = self.parameters, self.is_
        before = self._needed(p.power_up)
        up = Signal(range(before + 1))
        m.d.sync += up.eq(up + (up != before))
        precharged = Signal()
        refreshed = Signal(range(p.refreshes + 1))
        ready = Signal()
        with m.If(is_["precharge"] & self.address[10]):
            m.d.sync += precharged.eq(1)
        with m.If(is_["refresh"] & (refreshed != p.refreshes)):
            m.d.sync += refreshed.eq(refreshed + 1)
        with m.If(is_["mode"]):
            m.d.sync += ready.eq(1)
        self._break(m, Rule.POWER_UP, (self.command != 0) & (up != before))
        self._break(m, Rule.INITIALISED, is_["refresh"] & ~precharged)
        self._break(m, Rule.INITIALISED, is_["mode"] & (refreshed != p.refreshes))
        uses = is_["activate"] | is_["read"] | is_["write"]
        self._break(m, Rule.INITIALISED, uses & ~ready)
        # Burst length 1, sequential, CAS latency, bits that must be 0; bit 9 does not matter then.
        mode = self.address & ~(1 << 9)
        self._break(m, Rule.MODE, is_["mode"] & (mode != p.cas_latency << 4))
        self._break(m, Rule.MODE, is_["burst_stop"])
        # From one refresh to the next, as soon as rows may hold anything.
        limit = p.t_refi // p.period
        age = Signal(range(limit + 1))
        m.d.sync += age.eq(Mux(is_["refresh"], 1, age + (age != limit)))
        self._break(m, Rule.T_REFI, ready & (age == limit) & ~is_["refresh"])

    def _times(self, m: Module) -> None:
        """Fewest clocks between commands: of a bank, of other banks, and after refresh and mode."""
        p, is_ = self.parameters, self.is_
        anything = self.command != 0
        idle = is_["activate"] | is_["refresh"] | is_["mode"]
        closes = is_["precharge"]
        column = is_["read"] | is_["write"]
        refreshing = self._since(m, "refresh", is_["refresh"], self._needed(p.t_rfc))
        self._break(m, Rule.T_RFC, anything & refreshing)
        self._break(m, Rule.T_MRD, anything & self._since(m, "mode", is_["mode"], p.t_mrd))
        others = self._since(m, "any_activate", is_["activate"], self._needed(p.t_rrd))
        self._break(m, Rule.T_RRD, is_["activate"] & others)
        for n in range(1 << p.bank_bits):
            mine = self.bank == n
            closing = closes & (mine | self.address[10])
            # Refresh and mode need all banks.
            idling = idle & (mine | ~is_["activate"])
            opening = is_["activate"] & mine
            ages = {
                Rule.T_RCD: (opening, p.t_rcd, column & mine),
                Rule.T_RP: (closing, p.t_rp, idling),
                Rule.T_RAS: (opening, p.t_ras, closing & self.opened[n]),
                Rule.T_RC: (opening, p.t_rc, idling),
                Rule.T_WR: (is_["write"] & mine, p.t_wr, closing & self.opened[n]),
            }
            for rule, (event, time, later) in ages.items():
                soon = self._since(m, f"{rule.name}_{n}", event, self._needed(time))
                self._break(m, rule, later & soon)

    def _contents(self, m: Module) -> None:
        """The cell that is meant, the data bus, and who drives it when."""
        p, is_ = self.parameters, self.is_
        m.d.comb += [
            self.place.eq(Cat(self.address[: p.column_bits], self.bank, self.page[self.bank])),
            self.stores.eq(is_["write"]),
        ]
        data, reads = self.held, is_["read"]
        # The device lets go of the bus in the cycle after the one in which its data are taken.
        for stage in range(p.cas_latency - 1):
            later, reading = Signal(p.width, name=f"data_{stage}"), Signal(name=f"reads_{stage}")
            m.d.sync += [later.eq(data), reading.eq(reads)]
            data, reads = later, reading
        after = Signal()
        m.d.sync += after.eq(reads)
        # Nobody drives the bus at other times.
        m.d.comb += self.read_data.eq(Mux(reads, data, ~data))
        self._break(m, Rule.BUS, self.drive != is_["write"])
        self._break(m, Rule.BUS, self.drive & (reads | after))


class SdramChip(Component[SdramControllerParameters]):
    """An :class:`SdramDevice` with its cells.

    Parameters
    ----------
    parameters : :class:`SdramControllerParameters`
    """

    def ports(self) -> Ports:
        device = device_ports(self.parameters)
        return {name: device[name] for name in (*PINS, "read_data", "broken")}

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.device = device = SdramDevice(p)
        depth = 1 << p.page_bits + p.bank_bits + p.column_bits
        m.submodules.cells = cells = memory.Memory(shape=p.width, depth=depth, init=[])
        write, read = cells.write_port(), cells.read_port(domain="comb")
        m.d.comb += [
            *(getattr(device, name).eq(getattr(self, name)) for name in PINS),
            self.read_data.eq(device.read_data),
            self.broken.eq(device.broken),
            write.addr.eq(device.place),
            write.data.eq(self.write_data),
            write.en.eq(device.stores),
            read.addr.eq(device.place),
            device.held.eq(read.data),
        ]
        return m
