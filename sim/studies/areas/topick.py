"""ToPick's core by module beside Table 2."""

from golden.studies.study import Claim, Verdict, close
from sim.studies.areas.page import Page, Units, priced
from sim.studies.areas.units import Core, Unit, shares

LANES, LANES_MM2, TOTAL_MM2 = 16, 2.518, 8.593
"""Lanes, the area of all lanes and of the whole (Table 2)."""
OVERHEADS = (1.0, 4.9)
"""Percent of the baseline's area, of estimation and of scores out of order (5.2.3)."""

MULTIPLIERS, GENERATOR, BUFFER = "multipliers, adder tree", "Prob Gen", "on-chip buffer"
ESTIMATION, ORDER = ("Margin Generator", "DAG", "PEC"), ("Scoreboard", "RPDU")
"""Modules that the baseline lacks, by what they are for (5.1.3)."""
LANE = (MULTIPLIERS, GENERATOR, "PEC", *ORDER)
PAPER_UM2 = {
    MULTIPLIERS: LANES * 95e3,
    GENERATOR: LANES * 32e3,
    "PEC": LANES * 4e3,
    "Scoreboard": LANES * 24e3,
    "RPDU": LANES * 1e3,
    "Mux Network": 76e3,
    "Margin Generator": 14e3,
    "DAG": 10e3,
    BUFFER: 5968e3,
}
"""The paper's areas (Table 2), in Samsung 65 nm LP, of all lanes."""

UNITS = {
    MULTIPLIERS: Unit({"pe_lane": LANES}, {"pec": LANES, "scoreboard": LANES}),
    GENERATOR: Unit({"probability_generator": LANES}),
    "PEC": Unit({"pec": LANES}),
    "Scoreboard": Unit({"scoreboard": LANES}),
    "Margin Generator": Unit({"margin_generator": 1}),
    "DAG": Unit({"dag": 1}),
    BUFFER: Unit({"chunk_buffer": LANES}),
}
"""A lane's RPDU and requests are mapped with its multipliers."""

CORE = Core(
    block="topick.topick_core",
    nm=65,
    um2=PAPER_UM2,
    units=UNITS,
    buffer=BUFFER,
    buffer_bits=8 * (2 * 192 * 1024 + 512),
)


def claims(ours: Units) -> list[Claim]:
    """Table 2, and what the text says of it (5.2.3)."""
    areas = CORE.areas(ours)
    return [parts_claim(areas), lane_claim(areas), *overhead_claims(areas)]


def parts_claim(areas: dict[str, float]) -> Claim:
    """Lanes and buffers in the whole."""
    share = shares(areas)
    lanes = sum(share.get(name, 0) for name in LANE)
    theirs = 100 * LANES_MM2 / TOTAL_MM2, 100 * PAPER_UM2[BUFFER] / (1e6 * TOTAL_MM2)
    others = sum(PAPER_UM2[name] for name in PAPER_UM2 if name not in LANE) / 1e6
    ratio = sum(areas.get(name, 0) for name in LANE) / (1e6 * CORE.scale * LANES_MM2)
    return Claim(
        f"lanes have {LANES_MM2} and the buffers 5.968 of {TOTAL_MM2} mm² ({theirs[0]:.1f} and"
        f" {theirs[1]:.1f} %)",
        f"{lanes:.1f} and {share[BUFFER]:.1f} %",
        Verdict.of(close(lanes, theirs[0]), close(share[BUFFER], theirs[1])),
        f"the lanes have {ratio:.2f} of the paper's scaled area, as each has separate multipliers"
        " for values, which the paper's Mux Network leads to the keys'. The table's parts miss"
        f" its total by {TOTAL_MM2 - LANES_MM2 - others:.3f} mm², more than their rounding",
    )


def lane_claim(areas: dict[str, float]) -> Claim:
    """Shares of a lane's modules."""
    names = (MULTIPLIERS, GENERATOR, "PEC", "Scoreboard")
    theirs = shares({name: PAPER_UM2[name] for name in LANE})
    here = shares({name: areas[name] for name in names})

    def of(share: dict[str, float]) -> str:
        return ", ".join(f"{share[name]:.1f}" for name in names)

    generator = areas[GENERATOR] / (CORE.scale * PAPER_UM2[GENERATOR])
    return Claim(
        f"in a lane multipliers and adder tree, Prob Gen, PEC and Scoreboard have {of(theirs)} %",
        f"{of(here)} %",
        Verdict.of(*(close(here[name], theirs[name]) for name in names)),
        "the multipliers here with the RPDU, 349 µm² alone, requests and products with values. The"
        f" Prob Gen has {generator:.2f} of the scaled area: an exponential and a queue. The text"
        " does not say what else is in the paper's",
    )


def overhead_claims(areas: dict[str, float]) -> list[Claim]:
    """Added modules over the rest of the core."""
    theirs, here = (
        [sum(of.get(name, 0) for name in names) for names in (ESTIMATION, ORDER)]
        for of in (PAPER_UM2, areas)
    )
    bases = 1e6 * TOTAL_MM2 - sum(theirs), sum(areas.values()) - sum(here)

    def judged(name: str, at: int, why: str) -> Claim:
        rows, ours = (
            100 * added[at] / base for added, base in zip((theirs, here), bases, strict=True)
        )
        return Claim(
            f"{name} {OVERHEADS[at]} % of the baseline's area (5.2.3)",
            f"{rows:.1f} % by Table 2, {ours:.1f} % here",
            Verdict.of(close(rows, OVERHEADS[at]), close(ours, OVERHEADS[at])),
            why,
        )

    return [
        judged(
            "estimation costs",
            0,
            "Margin Generator, DAG and PEC over the rest, by Table 2's rows and here. The DAG here"
            " adds the terms of all lanes in a cycle. Lanes without pruning keep a Dag and a Pec"
            " here, as a softmax needs its sum ([lanes](../topick.md#area-and-delay))",
        ),
        judged(
            "scores out of order cost another",
            1,
            "Scoreboard and RPDU, likewise; the RPDUs here, 0.1 %, are counted with the lanes. The"
            " scoreboard is flip-flops here, where the paper has CACTI's",
        ),
    ]


PAGE = Page(
    CORE,
    name="topick",
    title="ToPick",
    table="Table 2",
    presets="`paper` has the paper's 16 lanes on one head, 32 entries of the scoreboard, heads of"
    " 64 elements of 12 bits, 2048 tokens and 384 KB of buffers.",
    memories=priced(CORE, "the paper's own buffers, of 384.5 KB"),
    technology="Samsung 65 nm LP, and CACTI's buffers and scoreboard",
    clock="500 MHz. For the smallest area, adders are slower: a lane that meets it has 1.2 times"
    " the area ([lanes](../topick.md#area-and-delay))",
    notes="- *Formats.* The paper's multipliers have 12 × 12 bits, so that they serve whole"
    " rows of a prompt, too. Here a lane multiplies by chunks of 4 bits, and"
    " probabilities have 19 bits.\n- *Modules.* The Mux Network has no counterpart: keys"
    " and values have separate datapaths. The join of the lanes' sums, queues, ports"
    " and control are the rest here, and not a row of the table.",
    claims=claims,
)
