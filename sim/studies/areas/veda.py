"""VEDA's core by unit beside Table I."""

from golden.studies.study import Claim, Verdict, close
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.studies.areas.page import Page, Units, priced
from sim.studies.areas.units import Core, Unit, shares

PAPER_UM2 = {
    "PE array": 493e3,
    "voting engine": 69e3,
    "special function unit": 29e3,
    "schedule": 41e3,
    "on-chip buffer": 426e3,
}
"""The paper's areas (Table I), in TSMC 28 nm."""

UNITS = {
    "PE array": Unit({"pe_array": 1}),
    "voting engine": Unit({"voting_engine": 1}),
    "special function unit": Unit({"compared_rows": 1}, {"pe_array": 1}),
    "on-chip buffer": Unit({"reorder_buffer": 1}),
}
"""The special function unit is mapped with what joins it to the array."""

BUFFER_BITS = 8 * 256 * 1024
CORE = Core(
    block="veda.veda_core",
    nm=28,
    um2=PAPER_UM2,
    units=UNITS,
    rest="schedule",
    buffer="on-chip buffer",
    buffer_bits=BUFFER_BITS,
    presets=("default", "paper"),
)
BIT_UM2 = CORE.bit_um2
"""Area of a bit of memory in 45 nm, by the paper's buffer."""


def claims(ours: Units) -> list[Claim]:
    """The paper's shares (VI)."""
    areas, theirs = CORE.areas(ours), shares(PAPER_UM2)
    share, total = shares(areas), sum(areas.values())
    array, buffer, votes, functions = (
        *("PE array", "on-chip buffer", "voting engine", "special function unit"),
    )
    largest = {*sorted(share, key=share.__getitem__)[-2:]}
    ratio = ours[array].logic_um2 / (CORE.scale * PAPER_UM2[array])

    def logic(name: str) -> str:
        return f"its logic alone is {100 * ours[name].logic_um2 / total:.1f} %"

    return [
        Claim(
            "PE array and buffer dominate the area (46.6 and 40.3 %)",
            f"{share[array]:.1f} and {share[buffer]:.1f} %",
            Verdict.of(largest == {array, buffer}, close(share[array], theirs[array])),
            f"they are the largest units, but the array has {ratio:.2f} of the paper's scaled area,"
            " which raises all other shares",
        ),
        Claim(
            "the special function unit has less than 3 % (2.7 %)",
            f"{share[functions]:.1f} %",
            Verdict.of(share[functions] < 3),
            f"{logic(functions)}; its FIFO holds the scores of two heads of 4096 rows, where the"
            " paper's has 32",
        ),
        Claim(
            "the voting engine costs 6.5 %",
            f"{share[votes]:.1f} %",
            Verdict.of(close(share[votes], theirs[votes])),
            f"{logic(votes)}; the rest is memory: scores of 30 bits, counts of 16 and positions of"
            " 24, where the paper has two memories of 16 bits",
        ),
        Claim(
            "scheduling and control have 3.9 %",
            f"{share['schedule']:.1f} %",
            Verdict.of(close(share["schedule"], theirs["schedule"])),
            "here with the map of rows, the reader's control, ports and queues; the paper does not"
            " say what is in it",
        ),
    ]


def _presets() -> str:
    p = VedaCoreParameters.presets()["paper"]
    return (
        f"`paper` has the paper's {p.d} PEs, {p.capacity} slots and a buffer of {p.depth} rows of"
        f" {p.d} FP16 numbers, `default` 64 PEs and 256 slots."
    )


PAGE = Page(
    CORE,
    name="veda",
    title="VEDA",
    table="Table I",
    presets=_presets(),
    memories=priced(CORE, "the paper's own buffer"),
    technology="TSMC 28 nm",
    clock="1 GHz. For the smallest area, adders are slower: a PE that meets 1 GHz has 1.5 times"
    " the area ([PEs](../veda.md#area-and-delay))",
    notes="- *Formats.* Sums are FP32 here and scores of votes have 30 bits, where the paper"
    " has FP16 and 16 bits.",
    claims=claims,
)
