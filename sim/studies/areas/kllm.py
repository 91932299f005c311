"""KLLM's core by unit beside Table I."""

from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.parts import OWN
from golden.studies.study import Claim, Verdict, close
from sim.studies.areas.page import Page, Units
from sim.studies.areas.units import Core, Unit, shares

CONCAT, COUNTERS, MACS, SUMS = "Concat Units", "IdxCounters", "MACs", "sums of counts"
CLUSTERING, ORIZURU, FUNCTIONS = "Clustering Unit", "Orizuru", "Functional Unit"


def _um2(name: str) -> float:
    """A row of Table I, of all lanes."""
    return 1e6 * paper.NAMED[name].area * paper.NAMED[name].number


PAPER_UM2 = {
    CONCAT: _um2("Concat Unit"),
    COUNTERS: _um2("IdxCounter"),
    MACS: _um2("MAC"),
    CLUSTERING: _um2("Clustering Unit"),
    ORIZURU: _um2("Orizuru"),
    FUNCTIONS: _um2("Functional Unit"),
}
"""The paper's areas (Table I) without its buffers, in TSMC 28 nm, of all lanes."""

_COUNTERS = {"index_distribution_counter_2": 32 * paper.LANES}
_SUMS = {"row_accumulators_2": 16 * paper.LANES}
UNITS = {
    CONCAT: Unit({"column_counter_2": paper.LANES}, _COUNTERS | _SUMS),
    COUNTERS: Unit(_COUNTERS),
    MACS: Unit(dict.fromkeys(("reduction_2", "sparse_path_2", "column_scale"), paper.LANES)),
    CLUSTERING: Unit({"clustering_unit": 1}),
    ORIZURU: Unit({"orizuru": 1}),
    FUNCTIONS: Unit({"softmax": 1, "element_function": 1, "inverse_rms": 1}),
    SUMS: Unit(_SUMS),
}
"""Modules of the lanes have the number 2: a smaller counter and reduction make norms."""

CORE = Core(block="kllm.kllm_core", nm=28, um2=PAPER_UM2, units=UNITS)


def claims(ours: Units) -> list[Claim]:
    """Shares of Table I without its buffers."""
    theirs, here = shares(PAPER_UM2), shares(CORE.areas(ours))
    own = sum(unit.logic_um2 for unit in ours.values())
    logic = own / (CORE.scale * sum(PAPER_UM2.values()))
    # A counter that is mapped whole shares between its rows what their borders hide.
    mapped, whole = ours[COUNTERS].logic_um2, 32 * paper.LANES * OWN["IdxCounter"][0]
    counters, summed = (
        100 * um2 / (own - mapped + whole) for um2 in (whole, whole + ours[SUMS].logic_um2)
    )
    lanes = [
        sum(of.get(name, 0) for name in (CONCAT, COUNTERS, MACS, SUMS)) for of in (theirs, here)
    ]

    def scaled(name: str) -> str:
        return f"{ours[name].logic_um2 / (CORE.scale * PAPER_UM2[name]):.2f}"

    def judged(said: str, names: tuple[str, ...], why: str) -> Claim:
        before, after = (" and ".join(f"{of[name]:.1f}" for name in names) for of in (theirs, here))
        return Claim(
            f"{said} ({before} % without buffers)",
            f"{after} %",
            Verdict.of(*(close(here[name], theirs[name]) for name in names)),
            why,
        )

    return [
        Claim(
            f"lanes have {paper.LANE_AREA} of {paper.TOTAL_AREA} mm² ({lanes[0]:.1f} % without"
            " buffers)",
            f"{lanes[1]:.1f} %",
            Verdict.of(close(lanes[1], lanes[0])),
            f"all logic is {own / 1e6:.1f} mm², {logic:.2f} of the paper's scaled; of it"
            f" {here[COUNTERS]:.0f} % are the 512 counters and {here[SUMS]:.0f} % the sums and"
            " buffers of their counts. The share is higher as clustering and functions are next to"
            " nothing here",
        ),
        Claim(
            f"IdxCounters have 0.271 mm² a lane ({theirs[COUNTERS]:.1f} % without buffers)",
            f"{here[COUNTERS]:.1f} %, {counters:.1f} % if a counter is mapped whole; with the sums"
            f" of their counts {summed:.1f} %",
            Verdict.of(*(close(share, theirs[COUNTERS]) for share in (counters, summed))),
            f"by its area whole ({whole / mapped:.2f} of that in the table) {whole / 1e6:.1f} mm²,"
            f" {whole / (CORE.scale * PAPER_UM2[COUNTERS]):.2f} of the scaled area. A lane adds 32"
            " counts of each of 256 bins and holds a column's counts twice; the text does not say"
            " in which row of the table that is",
        ),
        judged(
            "Concat Units have 0.087 mm² a lane",
            (CONCAT,),
            f"{scaled(CONCAT)} of the scaled area, with a lane's control: the 512 indices that are"
            " counted are joined by wires, where the paper has 4096 registers",
        ),
        judged(
            "32 MACs have 0.09 mm² a lane",
            (MACS,),
            f"{scaled(MACS)} of the scaled area: integer counts times centroids, exact sums, 8"
            " outliers a cycle and a column's scales, in place of FP16 units for all of these",
        ),
        judged(
            "Orizuru has 0.739 of 16.87 mm²",
            (ORIZURU,),
            f"{scaled(ORIZURU)} of the scaled area: 256 leaves of 16 values and the levels above,"
            " with a pop in each cycle",
        ),
        judged(
            "the Clustering Unit and the Functional Unit have 0.211 and 0.889 mm²",
            (CLUSTERING, FUNCTIONS),
            f"{scaled(CLUSTERING)} and {scaled(FUNCTIONS)} of the scaled areas: 16 values a cycle"
            " by comparisons, and 8 exponentials, an element function and 1 / RMS. The text does"
            " not say what else the paper's have",
        ),
    ]


def _memories() -> str:
    buffers = [part for part in paper.PARTS if part.kilobytes]
    bits = [part.bit_area for part in buffers]
    logic, whole = sum(PAPER_UM2.values()) / 1e6, paper.TOTAL_AREA
    return (
        f" and have no price: the paper's buffers have {min(bits):.2f} to {max(bits):.2f} µm² a bit"
        " at 28 nm, and their ports are not in the text ([cost](kllm_cost.md)). So shares are of"
        f" logic, {logic:.2f} of the paper's {whole} mm². More than half of the core's bits hold"
        " words on their way from the memory, 128 for each lane; the paper's lanes have 2 KB."
    )


PAGE = Page(
    CORE,
    name="kllm",
    title="KLLM",
    table="Table I",
    presets="`paper` has the paper's 16 lanes of 32 counters and 32 MACs, for columns of 4096, 8"
    " outliers a cycle and 8 exponentials.",
    memories=_memories(),
    technology="TSMC 28 nm, and CACTI's buffers",
    clock="500 MHz. For the smallest area, adders are slower: a lane of five counters that meets it"
    " has 1.2 times the area ([lanes](../kllm.md#area-and-delay))",
    notes="- *Borders.* Rows of a counter are parts, and nothing is shared between"
    f" parts: mapped whole, a counter has {OWN['IdxCounter'][0]:,} µm²"
    " ([counter](../kllm.md#area-and-delay)), and in the core, as 16 rows and the rest, a"
    " third more. What borders cost in other parts has not been measured.",
    claims=claims,
)
