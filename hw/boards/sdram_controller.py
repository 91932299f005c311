"""Rows of a memory port in an SDR SDRAM: commands to its pins."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Signal, Value

from hw.boards.block_memory import rows_ports
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out

RAS, CAS, WE = 1, 2, 4
ACTIVATE, PRECHARGE, REFRESH, MODE = RAS, RAS | WE, RAS | CAS, RAS | CAS | WE
READ, WRITE = CAS, CAS | WE
"""Commands, as the pins that are driven low; none of them is no command."""
ALL_BANKS = 1 << 10
"""Address pin of a precharge of all banks."""


def sdram_pins(p: SdramControllerParameters) -> Ports:
    """The pins of an SDRAM, besides clock, clock enable, chip select and masks, which are fixed."""
    return {
        "command": wire_out(3, "Pins RAS, CAS and WE, from bit 0: those that are driven low."),
        "bank": wire_out(p.bank_bits),
        "address": wire_out(max(p.page_bits, 11), "Pins A0 and on."),
        "write_data": wire_out(p.width, "To the data pins, while `drive` is high."),
        "drive": wire_out(1),
        "read_data": wire_in(p.width, "From the data pins."),
    }


class State:
    """What is known of the banks, and the row in progress.

    busy, write, tag, data, bank, page, column
        A row is in progress; of its request; the next column.
    last
        The next column is the row's last one.
    fire
        A column is read or written.
    wait, active, recovery, turn
        Cycles until the next command, precharge, precharge after a write, and write may be given.
    open, pages
        Banks that are open, and their pages.
    timer, due
        Cycles until a refresh is due; it is, and comes before any other command.
    ready
        The device has been initialised.
    """

    def __init__(self, p: SdramControllerParameters):
        self.busy = Signal()
        self.write = Signal()
        self.tag = Signal(p.tag)
        self.data = Signal(p.columns * p.width)
        self.bank = Signal(p.bank_bits)
        self.page = Signal(p.page_bits)
        self.column = Signal(p.column_bits)
        low = self.column[: p.column_bits - p.in_page]
        self.last = low.all() if len(low) else Const(1)
        self.fire = Signal()
        powered = p.cycles_of(p.power_up)
        longest = max(powered, p.activate, p.precharge, p.refresh, p.t_mrd)
        self.wait = Signal(range(longest + 1), init=powered)
        self.active = Signal(range(p.active))
        self.recovery = Signal(range(p.recovery))
        self.turn = Signal(range(p.turnaround))
        self.open = Signal(1 << p.bank_bits)
        self.pages = Array(Signal(p.page_bits, name=f"page_{n}") for n in range(1 << p.bank_bits))
        self.timer = Signal(range(p.interval))
        self.due = Signal()
        self.ready = Signal()


class SdramController(Component[SdramControllerParameters]):
    """Reads and writes rows of an SDRAM with a data bus at each rising edge (SDR).

    Rows are served one after another in the order of their requests. A row is `columns` reads or
    writes, one in each cycle: bursts have length 1, as commands do not use the data's pins. Pages
    stay open until another one of the bank is wanted or a refresh comes, which may be between two
    columns. Where a row lies: :meth:`SdramControllerParameters.place`.

    The device's clock is the opposite of this one, so that commands change half a cycle before they
    are taken, and data of a read in cycle k can be registered at the end of cycle k + `answer`.

    Latency: `latency` from a read's transfer to `answered`, if its page is open and nothing waits;
    activate cycles more if none is, and precharge more if it is another one. Throughput: a row in
    `columns` cycles, as long as pages are open. :meth:`SdramControllerParameters.cycles` counts
    all cycles of any requests. Handshake: ``request.ready`` depends on registers only. An answer
    must be taken at once: whoever asks has room for it.

    Parameters
    ----------
    parameters : :class:`SdramControllerParameters`

    Examples
    --------
    A row of 128 bits is eight columns; at 25 MHz its page is changed in two cycles.

    >>> from hw.boards.sdram_controller import SdramControllerParameters
    >>> p = SdramControllerParameters(row=128, period=40_000)
    >>> p.columns, p.latency, p.precharge + p.activate
    (8, 10, 2)
    """

    summary = "Rows of a memory port in an SDR SDRAM"
    source = "library"

    def ports(self) -> Ports:
        p = self.parameters
        return rows_ports(p.port) | sdram_pins(p)

    def elaborate(self, platform):
        m = Module()
        s = State(self.parameters)
        # Each rule is a counter that must be 0; one for all banks is stricter than one a bank, and
        # costs nothing where rows follow each other in open pages.
        for counter in (s.wait, s.active, s.recovery, s.turn):
            m.d.sync += counter.eq(counter - counter.any())
        self._refresh_timer(m, s)
        with m.If(s.wait == 0):
            with m.FSM(name="initialise"):
                self._initialise(m, s)
                with m.State("SERVE"):
                    # A refresh goes first, also between two columns of a row, so that the interval
                    # does not depend on the length of rows.
                    with m.If(s.due):
                        self._refresh(m, s)
                    with m.Elif(s.busy):
                        self._serve(m, s)
        self._accept(m, s)
        self._answer(m, s)
        return m

    def _refresh_timer(self, m: Module, s: State) -> None:
        m.d.sync += s.timer.eq(s.timer - 1)
        with m.If(s.timer == 0):
            m.d.sync += [s.timer.eq(self.parameters.interval - 1), s.due.eq(1)]

    def _give(self, m: Module, s: State, command: int, address: Any, pause: int) -> None:
        """Give a command, and no other one for `pause` cycles."""
        m.d.comb += [self.command.eq(command), self.address.eq(address)]
        m.d.sync += s.wait.eq(pause - 1)

    def _initialise(self, m: Module, s: State) -> None:
        """Close all banks, refresh, and set the mode: bursts of one column."""
        p = self.parameters
        left = Signal(range(p.refreshes + 1), init=p.refreshes)
        with m.State("CLOSE"):
            self._give(m, s, PRECHARGE, ALL_BANKS, p.precharge)
            m.next = "REFRESH"
        with m.State("REFRESH"):
            self._give(m, s, REFRESH, 0, p.refresh)
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.next = "MODE"
        with m.State("MODE"):
            # Bursts of one column: commands and data have separate pins, so that a column a
            # cycle needs no longer ones.
            self._give(m, s, MODE, p.cas_latency << 4, p.t_mrd)
            m.d.sync += [s.timer.eq(p.interval - 1), s.due.eq(0), s.ready.eq(1)]
            m.next = "SERVE"

    def _refresh(self, m: Module, s: State) -> None:
        p = self.parameters
        with m.If(~s.open.any()):  # the device refuses one while a bank is open
            self._give(m, s, REFRESH, 0, p.refresh)
            m.d.sync += s.due.eq(0)
        with m.Elif((s.active == 0) & (s.recovery == 0)):
            self._give(m, s, PRECHARGE, ALL_BANKS, p.precharge)
            m.d.sync += s.open.eq(0)

    def _serve(self, m: Module, s: State) -> None:
        """The next command that the row in progress needs."""
        p = self.parameters
        m.d.comb += self.bank.eq(s.bank)
        with m.If(~s.open.bit_select(s.bank, 1)):
            self._give(m, s, ACTIVATE, s.page, p.activate)
            m.d.sync += [
                s.open.bit_select(s.bank, 1).eq(1),
                s.pages[s.bank].eq(s.page),
                s.active.eq(p.active - 1),
            ]
        with m.Elif(s.pages[s.bank] != s.page):
            with m.If((s.active == 0) & (s.recovery == 0)):
                self._give(m, s, PRECHARGE, 0, p.precharge)
                m.d.sync += s.open.bit_select(s.bank, 1).eq(0)
        with m.Elif(s.write):
            # The bus may still carry the columns of reads before, which come later than commands.
            with m.If(s.turn == 0):
                self._give(m, s, WRITE, s.column, 1)
                m.d.comb += [s.fire.eq(1), self.drive.eq(1)]
                m.d.sync += s.recovery.eq(p.recovery - 1)
        with m.Else():
            self._give(m, s, READ, s.column, 1)
            m.d.comb += s.fire.eq(1)
            m.d.sync += s.turn.eq(p.turnaround - 1)
        m.d.comb += self.write_data.eq(s.data[: p.width])

    def _accept(self, m: Module, s: State) -> None:
        """Take the next request with the last column of the one before."""
        p = self.parameters
        request = self.request.payload
        number = request.address
        # With the last column, not after it: rows in open pages then follow without a gap.
        m.d.comb += self.request.ready.eq(s.ready & (~s.busy | (s.fire & s.last)))
        with m.If(s.fire):
            m.d.sync += [s.column.eq(s.column + 1), s.data.eq(s.data >> p.width)]
            with m.If(s.last):
                m.d.sync += s.busy.eq(0)
        with m.If(self.request.valid & self.request.ready):
            bank = number[p.in_page : p.in_page + p.bank_bits]
            page = number[p.in_page + p.bank_bits :]
            m.d.sync += [
                s.busy.eq(1),
                s.write.eq(request.write),
                s.tag.eq(request.tag),
                s.data.eq(request.data),
                s.column.eq(number[: p.in_page] << (p.column_bits - p.in_page)),
                # As :meth:`SdramControllerParameters.place` says: pages that follow each other are
                # in different banks, and so are streams a power of two apart.
                s.bank.eq(bank ^ page[: p.bank_bits]),
                s.page.eq(page),
            ]

    def _answer(self, m: Module, s: State) -> None:
        """Columns come `answer` cycles after they were read, the lowest first."""
        p = self.parameters
        # What was read goes along, as the device gives no sign with its data.
        marks: Value = Cat(s.fire & ~s.write, s.last, s.tag)
        for stage in range(p.answer):
            delayed = Signal(len(marks), name=f"marks_{stage}")
            m.d.sync += delayed.eq(marks)
            marks = delayed
        columns = Signal(p.columns * p.width)
        with m.If(marks[0]):
            m.d.sync += columns.eq(Cat(columns, self.read_data)[p.width :])
        tag = Signal(p.tag)
        m.d.sync += [self.answered.eq(marks[0] & marks[1]), tag.eq(marks[2:])]
        m.d.comb += [self.answer.tag.eq(tag), self.answer.data.eq(columns)]
