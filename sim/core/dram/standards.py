"""DRAM standards as data: organisation, timing, currents, and where each number comes from.

Times are in clocks of the memory, of `tck_ps` each, as data sheets round them up. Sources:

HBM2
    DRAMsim3's configuration ``HBM2_8Gb_x128.ini``, legacy mode (one 128-bit channel of 16 banks);
    `read_to_precharge` is its tRTP_L.
LPDDR4
    JESD209-4B at 3200 Mb/s: read latency 28 and write latency 14 (set A, x16), tRCD 18 ns, tRPpb
    18 ns, tRAS 42 ns, tRRD 10 ns, tFAW 40 ns, tWTR 10 ns, tRTP 7.5 ns, tWR 18 ns, tRFCab 180 ns
    (4 Gb for each 16-bit channel), tREFI 3.904 us. Ramulator's LPDDR4_3200 has the same within 3
    clocks. Four chips side by side are one 64-bit channel of two ranks, as in DRAMsim3's
    ``LPDDR4_8Gb_x16_2400.ini``, whose currents are used.
DDR3
    Micron's 8 Gb x16 data sheet, speed grade -125 (11-11-11), 2 KiB page: tRRD and tWTR 7.5 ns,
    tFAW 40 ns, tRFC 350 ns, tREFI 7.8 us. Four chips of a rank and two ranks as in DRAMsim3's
    ``DDR3_8Gb_x16_1600.ini``, whose currents are used.
SDR
    Micron's MT48LC16M16A2 data sheet (256 Mb, x16), speed grade -75 at 133 MHz: CL 3, tRCD and tRP
    20 ns, tRAS 44 ns, tRC 66 ns, tRRD 15 ns, tWR 2 clocks from the last word (1 from its end),
    precharge 2 clocks before the last word read, tRFC 66 ns, 8192 refreshes in 64 ms; currents
    IDD1, IDD3, IDD4 and IDD5. LiteDRAM's ``MT48LC16M16`` has the same rows, columns, tRP, tRCD,
    tRAS, tRRD, tRFC and tREFI, and tWR as 2 clocks. A chip of this kind is on the ULX3S board.

Energies follow from the currents by Micron's TN-41-01 (`energies`). They have no input and output
drivers, and differ from measured ones by up to a factor of two; HBM2 as a whole was measured at
3.9 pJ/bit (O'Connor et al., Fine-Grained DRAM, MICRO 2017).
"""

import dataclasses

from golden.markdown import table_head, table_row
from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class Currents:
    """Supply in volts, and currents of one chip in mA, named as in data sheets."""

    vdd: float
    idd0: float
    idd2n: float
    idd3n: float
    idd4r: float
    idd4w: float
    idd5: float


@dataclasses.dataclass(frozen=True)
class Standard:
    """One kind of DRAM.

    channels, ranks, groups, banks
        Independent channels; ranks of a channel; bank groups of a rank; banks of a group.
    rows, columns
        Rows of a bank; lines of one burst in an open row.
    line
        Bytes of a burst over the whole channel.
    chips
        Chips of a rank, which act as one.
    burst
        Clocks of the data bus that a burst takes.
    split_commands
        Commands for rows and for columns have buses of their own, one of each in a clock.
    read_latency, write_latency
        CL and CWL: from the command to the first data.
    activate_to_column, precharge, row_active, row_cycle
        tRCD, tRP, tRAS, tRC.
    column_short, column_long
        tCCD_S and tCCD_L: between columns of different groups, and of one group.
    activate_short, activate_long, four_activates
        tRRD_S, tRRD_L, tFAW.
    write_to_read_short, write_to_read_long
        tWTR_S, tWTR_L: from the end of a write's data to a read.
    read_to_precharge, write_recovery
        tRTP, and tWR from the end of a write's data to the precharge.
    turnaround
        Clocks in which no rank drives the bus where its direction or the rank changes (tRTRS).
    refresh, refresh_interval
        tRFC and tREFI of a rank.
    address_map
        Default of :class:`sim.core.dram.address.AddressMap`.
    """

    name: str
    tck_ps: int
    channels: int
    ranks: int
    groups: int
    banks: int
    rows: int
    columns: int
    line: int
    chips: int
    burst: int
    split_commands: bool
    read_latency: int
    write_latency: int
    activate_to_column: int
    precharge: int
    row_active: int
    row_cycle: int
    column_short: int
    column_long: int
    activate_short: int
    activate_long: int
    four_activates: int
    write_to_read_short: int
    write_to_read_long: int
    read_to_precharge: int
    write_recovery: int
    turnaround: int
    refresh: int
    refresh_interval: int
    currents: Currents
    address_map: str

    @property
    def banks_of_channel(self) -> int:
        return self.ranks * self.groups * self.banks

    @property
    def capacity(self) -> int:
        """Bytes of all channels."""
        return self.channels * self.banks_of_channel * self.rows * self.columns * self.line

    @property
    def peak_gb_s(self) -> float:
        """Bytes of all data buses in a nanosecond."""
        return 1000 * self.channels * self.line / (self.burst * self.tck_ps)

    def energies(self) -> dict[str, float]:
        """Picojoules of an activation with its precharge, a read or write burst, and a refresh.

        ``standby_open`` and ``standby`` are of a clock of a rank with an open row and without one.
        """
        c = self.currents
        clock = c.vdd * self.chips * self.tck_ps / 1000
        closed = self.row_cycle - self.row_active
        cycle = c.idd0 * self.row_cycle - c.idd3n * self.row_active - c.idd2n * closed
        return {
            "activation": clock * cycle,
            "read": clock * (c.idd4r - c.idd3n) * self.burst,
            "write": clock * (c.idd4w - c.idd3n) * self.burst,
            "refresh": clock * (c.idd5 - c.idd3n) * self.refresh,
            "standby_open": clock * c.idd3n,
            "standby": clock * c.idd2n,
        }


_HBM2 = Standard(
    name="hbm2",
    tck_ps=1000,
    channels=8,
    ranks=1,
    groups=4,
    banks=4,
    rows=32768,
    columns=32,
    line=64,
    chips=1,
    burst=2,
    split_commands=True,
    read_latency=14,
    write_latency=4,
    activate_to_column=14,
    precharge=14,
    row_active=34,
    row_cycle=48,
    column_short=1,
    column_long=2,
    activate_short=4,
    activate_long=6,
    four_activates=30,
    write_to_read_short=6,
    write_to_read_long=8,
    read_to_precharge=6,
    write_recovery=16,
    turnaround=2,
    refresh=260,
    refresh_interval=3900,
    currents=Currents(1.2, 65, 40, 55, 390, 500, 250),
    address_map="row:group:bank:channel:column",
)
_LPDDR4 = Standard(
    name="lpddr4_3200",
    tck_ps=625,
    channels=1,
    ranks=2,
    groups=1,
    banks=8,
    rows=32768,
    columns=64,
    line=128,
    chips=4,
    burst=8,
    split_commands=False,
    read_latency=28,
    write_latency=14,
    activate_to_column=29,
    precharge=29,
    row_active=68,
    row_cycle=97,
    column_short=8,
    column_long=8,
    activate_short=16,
    activate_long=16,
    four_activates=64,
    write_to_read_short=16,
    write_to_read_long=16,
    read_to_precharge=12,
    write_recovery=29,
    turnaround=2,
    refresh=288,
    refresh_interval=6246,
    currents=Currents(1.2, 80, 34, 47, 243, 228, 280),
    address_map="row:channel:rank:bank:column",
)
_DDR3 = Standard(
    name="ddr3_1600",
    tck_ps=1250,
    channels=1,
    ranks=2,
    groups=1,
    banks=8,
    rows=65536,
    columns=128,
    line=64,
    chips=4,
    burst=4,
    split_commands=False,
    read_latency=11,
    write_latency=8,
    activate_to_column=11,
    precharge=11,
    row_active=28,
    row_cycle=39,
    column_short=4,
    column_long=4,
    activate_short=6,
    activate_long=6,
    four_activates=32,
    write_to_read_short=6,
    write_to_read_long=6,
    read_to_precharge=6,
    write_recovery=12,
    turnaround=1,
    refresh=280,
    refresh_interval=6240,
    currents=Currents(1.35, 67, 36, 51, 185, 185, 270),
    address_map="row:channel:rank:bank:column",
)
_SDR = Standard(
    name="sdr_133",
    tck_ps=7500,
    channels=1,
    ranks=1,
    groups=1,
    banks=4,
    rows=8192,
    columns=64,
    line=16,
    chips=1,
    burst=8,
    split_commands=False,
    read_latency=3,
    write_latency=0,
    activate_to_column=3,
    precharge=3,
    row_active=6,
    row_cycle=9,
    column_short=8,
    column_long=8,
    activate_short=2,
    activate_long=2,
    four_activates=0,
    write_to_read_short=0,
    write_to_read_long=0,
    read_to_precharge=8,
    write_recovery=1,
    turnaround=1,
    refresh=9,
    refresh_interval=1041,
    currents=Currents(3.3, 125, 20, 40, 135, 135, 270),
    address_map="row:channel:bank:column",
)
STANDARDS = {standard.name: standard for standard in (_HBM2, _LPDDR4, _DDR3, _SDR)}


def table_of() -> list[str]:
    """All numbers of all standards in Markdown, one row each."""
    columns = [*STANDARDS.values()]
    lines = table_head("number, in clocks where it is a time", *STANDARDS)
    names = [field.name for field in dataclasses.fields(Standard)]
    for name in names[1:]:
        values = [getattr(standard, name) for standard in columns]
        if name == "currents":
            values = [", ".join(f"{n:g}" for n in dataclasses.astuple(c)) for c in values]
            name = "V; IDD0, 2N, 3N, 4R, 4W, 5 in mA"
        lines.append(table_row(name.replace("_", " "), *map(str, values)))
    for name in columns[0].energies():
        values = [f"{standard.energies()[name]:.0f}" for standard in columns]
        lines.append(table_row(f"{name.replace('_', ' ')}, pJ", *values))
    peaks = (f"{standard.peak_gb_s:.2f}" for standard in columns)
    return [*lines, table_row("peak, GB/s", *peaks)]


def find_standard(name: str) -> Standard:
    """:raises ParameterError: if there is no such standard."""
    require(name in STANDARDS, f"a memory's standard must be one of {', '.join(STANDARDS)}", name)
    return STANDARDS[name]
