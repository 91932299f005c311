"""LAD's tile by module beside Table III."""

from golden.studies.study import Claim, Verdict, close
from sim.studies.areas.page import Page, Units, priced
from sim.studies.areas.units import Core, Unit, shares

SRAM_MM2 = {1.5: 1.596, 2.5: 2.231, 3.5: 3.187}
"""The paper's SRAM by its size in MB (Table III)."""
TILES_MM2 = {1.5: 2.16, 2.5: 2.795, 3.5: 3.751}
"""The paper's tiles by the size of their SRAM (Table III)."""
MB = 8 << 20
"""Bits."""
COMPUTATION = 82.7
"""Percent of the area without SRAM that computation modules have (V-D)."""

SRAM, SFM = "on-chip SRAM", "SFM"
PAPER_UM2 = {
    "EAS": 3e3,
    "APID": 6e3,
    "MD": 1e3,
    "AC": 87e3,
    "VPU": 398e3,
    SFM: 69e3,
    SRAM: 1e6 * SRAM_MM2[1.5],
}
"""The paper's areas (Table III) of LAD-1.5, in TSMC 22 nm; seven VPUs, in no other module."""

VPUS = 6
UNITS = {
    "EAS": Unit({"eas": 1}, {"vpu": 2}),
    "APID": Unit({"apid": 1}),
    "MD": Unit({"md": 1}, {"vpu": 1}),
    "AC": Unit({"ac": 1}, {"vpu": 3}),
    "VPU": Unit({"vpu": VPUS}),
}

CORE = Core(
    block="lad.lad_tile",
    nm=22,
    um2=PAPER_UM2,
    units=UNITS,
    buffer=SRAM,
    buffer_bits=int(1.5 * MB),
    pooled=True,
)


def claims(ours: Units) -> list[Claim]:
    """What the text says of Table III (V-D), and its sums."""
    return [sums_claim(), sram_claim(ours), *logic_claims(ours)]


def sums_claim() -> Claim:
    """Totals of the tiles, and the share of computation modules, from the rows."""
    logic = sum(PAPER_UM2.values()) - PAPER_UM2[SRAM]
    totals = {size: logic / 1e6 + sram for size, sram in SRAM_MM2.items()}
    computation = 100 * (PAPER_UM2["VPU"] + PAPER_UM2[SFM]) / logic
    # Six rows and an SRAM's are rounded to 0.001 mm², and so is their total.
    agree = [abs(totals[size] - TILES_MM2[size]) < 8 * 0.0005 for size in totals]
    agree.append(abs(computation - COMPUTATION) < 100 * 0.001 * 1e6 / logic)
    listed = ", ".join(f"{total:.3f}" for total in totals.values())
    bits = ", ".join(f"{1e6 * mm2 / (size * MB):.3f}" for size, mm2 in SRAM_MM2.items())
    return Claim(
        f"tiles of {', '.join(f'{mm2:.3f}' for mm2 in TILES_MM2.values())} mm², and {COMPUTATION} %"
        " for computation modules without the SRAM",
        f"{listed} mm², {computation:.1f} %",
        Verdict.HOLDS if all(agree) else Verdict.CONTRADICTS,
        "sums of the rows, to their rounding. Six tiles, which the text has, are"
        f" {6 * totals[1.5]:.1f} to {6 * totals[3.5]:.1f} mm². A bit of SRAM has {bits} µm² in the"
        " three sizes",
    )


def sram_claim(ours: Units) -> Claim:
    """SRAM beside logic, with our memories and with the paper's."""
    logic = sum(unit.logic_um2 for unit in ours.values())
    theirs = CORE.scale * PAPER_UM2[SRAM]
    own = shares(CORE.areas(ours))[SRAM]
    papers = 100 * theirs / (logic + theirs)
    said = [100 * SRAM_MM2[size] / TILES_MM2[size] for size in (1.5, 3.5)]
    return Claim(
        f"SRAM has the majority of the area ({said[0]:.1f} to {said[1]:.1f} %)",
        f"{own:.1f} %, and {papers:.1f} % with the paper's 1.5 MB",
        Verdict.of(own > 50, papers > 50),
        f"the tile's memories are {ours[SRAM].memory_bits / MB:.2f} MB: caches, scores and tables"
        " of the heads in work, and rows that are under way. It keeps no active positions for"
        " later steps (`prefetch`), for which the paper's SRAM is large",
    )


def logic_claims(ours: Units) -> list[Claim]:
    """Shares of modules without SRAM, and without the special function module."""

    def without(areas: dict[str, float]) -> dict[str, float]:
        return shares({name: area for name, area in areas.items() if name not in (SRAM, SFM)})

    theirs, here = without(PAPER_UM2), without(CORE.areas(ours))
    control = ("EAS", "APID", "MD")

    def of(share: dict[str, float], *names: str) -> str:
        return ", ".join(f"{share[name]:.1f}" for name in names)

    def scaled(name: str) -> float:
        return ours[name].logic_um2 / (CORE.scale * PAPER_UM2[name])

    vpu = 7 / VPUS * scaled("VPU")
    return [
        Claim(
            f"computation modules take {COMPUTATION} % of the area without the SRAM (V-D), VPUs"
            f" alone {theirs['VPU']:.1f} % if the SFM is left out",
            f"VPUs {here['VPU']:.1f} %",
            Verdict.of(close(here["VPU"], theirs["VPU"])),
            f"`paper` has no SFM. {VPUS} VPUs, as MD has one: each has {vpu:.2f} of the area of the"
            " paper's, scaled. All other modules are larger than the paper's by more",
        ),
        Claim(
            f"EAS, APID and MD have 0.003, 0.006 and 0.001 mm² ({of(theirs, *control)} % without"
            " SRAM and SFM)",
            f"{of(here, *control)} %",
            Verdict.of(*(close(here[name], theirs[name]) for name in control)),
            f"{scaled('EAS'):.0f}, {scaled('APID'):.1f} and {scaled('MD'):.0f} times the scaled"
            " areas. In EAS two tables with a bit for each of 4096 positions and rows of 128"
            " numbers are flip-flops; it finds the centre of a new key, too. MD holds a query and"
            " rows of counters. Where the paper's modules hold such rows, of 2048 bits, is not in"
            " the text; in SRAM they would not be in these figures",
        ),
        Claim(
            f"AC has 0.087 mm² ({of(theirs, 'AC')} %)",
            f"{of(here, 'AC')} %",
            Verdict.of(close(here["AC"], theirs["AC"])),
            f"{scaled('AC'):.1f} times the scaled area: 387 FP32 adders and converters in place of"
            " the paper's in FP16, whose caches drift"
            " ([why](../lad.md#what-differs-from-the-paper-and-why))",
        ),
    ]


PAGE = Page(
    CORE,
    name="lad",
    title="LAD",
    table="Table III",
    presets="`paper` has heads of 128 elements, 4096 positions and the paper's scores by centres.",
    memories=priced(CORE, "the paper's own SRAM of 1.5 MB")
    + " As in the table, the memories of all modules are one row.",
    technology="TSMC 22 nm, and CACTI's SRAM",
    clock="1 GHz. For the smallest area, adders are slower: a VPU of eight elements that meets"
    " 1 GHz has 1.4 times the area ([VPU](../lad.md#area-and-delay))",
    notes="- *Formats.* Sums and caches are FP32 here, where the paper has FP16.\n- *Modules.*"
    " The SFM is not in `paper`. What joins the modules, fetches rows and keeps heads in"
    " work is the rest here, and not a row of the table.",
    claims=claims,
)
