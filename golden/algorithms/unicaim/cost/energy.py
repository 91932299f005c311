"""Energy and delay of decode steps from their counts (sections IV-A2, IV-A3, Figs. 11 and 12)."""

import dataclasses

import numpy as np

from golden.algorithms.unicaim.cost.counts import StepCounts
from golden.algorithms.unicaim.cost.devices import CELL, ArrayShape
from golden.algorithms.unicaim.cycles import CONVERSION_CYCLES, CONVERTERS

PAPER, ASSUMED, CIRCUIT = "paper", "assumed", "circuit"
_POSITIVE = ("adc_pj", "cycle_ns")


def _constant(value: float, unit: str, basis: str, source: str):
    return dataclasses.field(
        default=value, metadata={"unit": unit, "basis": basis, "source": source}
    )


@dataclasses.dataclass(frozen=True)
class Constants:
    """Energy and time of the parts of a step; below, each one with its source."""

    adc_pj: float = _constant(
        11.3,
        "pJ",
        PAPER,
        "one conversion: 1.13 mW at 100 MS/s, the title of [37], the converter of section IV-A."
        " The line's current during a conversion is not added, as the text gives no figure",
    )
    cycle_ns: float = _constant(
        1.0, "ns", PAPER, "a conversion of [37] takes 10 ns at 100 MS/s, a tenth for each bit"
    )
    adc_cycles: int = _constant(
        CONVERSION_CYCLES, "cycles", PAPER, "10-bit SAR ADC (section IV-A), one bit per cycle"
    )
    converters: int = _constant(
        CONVERTERS, "", PAPER, "64 sense lines in parallel with 64 ADCs (section IV-A3)"
    )
    write_cycles: float = _constant(
        1, "cycles", PAPER, "a single write cycle (section III-B4); its length is not in the text"
    )
    search_cycles: float = _constant(
        1, "cycles", ASSUMED, "one step of a search: the text says one discharge and no time"
    )
    supply_v: float = _constant(
        1.0, "V", ASSUMED, "the text names the 45 nm transistor model [34] and no supply"
    )
    sense_line_ff: float = _constant(
        0.3, "fF", ASSUMED, "of a sense line, for each cell: two drains and some 0.5 um of wire"
    )
    line_swing: float = _constant(
        0.52,
        "",
        CIRCUIT,
        "of the supply, what a line loses until the search stops: the mean over a real model's"
        " searches by the circuit of the sense line, the same with its levels by current and above"
        " the supply",
    )
    bit_line_ff: float = _constant(
        0.2, "fF", ASSUMED, "of a pair of bit lines, for each cell: two gates and their wire"
    )
    write_fj: float = _constant(
        10, "fJ", ASSUMED, "of one FeFET; the text says low write energy (section II-B)"
    )
    approximate_bits: int = _constant(
        5, "bits", ASSUMED, "conventional dynamic pruning: bits of an approximate conversion"
    )
    comparators: int = _constant(
        64, "", ASSUMED, "conventional dynamic pruning: comparators of the top-k sorter"
    )
    compare_pj: float = _constant(
        0.05, "pJ", ASSUMED, "conventional dynamic pruning: one comparison of two scores"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.type is int else 1e-6 if field.name in _POSITIVE else 0
            # Also refuses NaN.
            if not least <= value <= 1e9:
                raise ValueError(f"{field.name} must be {least:g} to 1e9, not {value}")
            if field.name == "line_swing" and value > 1:
                raise ValueError(f"line_swing must be at most 1, the whole supply, not {value}")
            if field.type is int and value != int(value):
                raise ValueError(f"{field.name} must be a whole number, not {value}")
        if self.approximate_bits > self.adc_cycles:
            raise ValueError(f"approximate_bits must be at most adc_cycles, {self.adc_cycles}")


Constants.__doc__ = f"{Constants.__doc__}\n\n" + "\n".join(
    f"{field.name} ({field.default:g} {field.metadata['unit']}; {field.metadata['basis']})\n"
    f"    {field.metadata['source']}."
    for field in dataclasses.fields(Constants)
)


def energy_pj(
    counts: StepCounts, shape: ArrayShape, constants: Constants | None = None
) -> np.ndarray:
    """Energy of each step in pJ.

    Each query drives the bit lines of all rows in use. A search charges the sense lines of all rows
    in use once, in however many steps it is observed, by what they lost: `line_swing` of the
    supply, as ``golden.unicaim.sense_line`` has it. The charge for the eviction comes from the same
    lines.
    """
    c = constants or Constants()
    cells = counts.rows * counts.heads * shape.slices * shape.d
    searched = np.where(np.asarray(counts.search_steps) > 0, cells, 0)
    farads = cells * c.bit_line_ff + searched * c.sense_line_ff * c.line_swing
    written = counts.written * shape.slices * shape.d * CELL.fefets * c.write_fj
    return (
        counts.conversions * shape.slices * c.adc_pj
        + (farads * c.supply_v**2 + written) / 1000  # fJ to pJ
    )


def delay_ns(
    counts: StepCounts, shape: ArrayShape, constants: Constants | None = None
) -> np.ndarray:
    """Delay of each step in ns: the heads' searches and conversions in turn, then the write.

    The converters start together, so a head takes whole rounds of them. Exact if all heads of a
    step select the same number of rows.
    """
    c = constants or Constants()
    rounds = counts.heads * -(
        -counts.conversions * shape.slices // (counts.heads * int(c.converters))
    )
    cycles = (
        rounds * c.adc_cycles
        + counts.search_steps * c.search_cycles
        + counts.written * c.write_cycles
    )
    return np.asarray(cycles * c.cycle_ns)


def conventional_dynamic(
    counts: StepCounts, shape: ArrayShape, constants: Constants | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Energy in pJ and delay in ns of each step with dynamic pruning as others do it (IV-A2, A3).

    ``counts`` are of a step without it: every head converts all rows approximately, sorts
    them in n log2 n comparisons; to this the caller adds the exact part, the selected rows'.
    """
    c = constants or Constants()
    n = counts.rows * counts.heads
    comparisons = n * np.log2(np.maximum(counts.rows, 2))
    part = c.approximate_bits / c.adc_cycles
    energy = n * shape.slices * c.adc_pj * part + comparisons * c.compare_pj
    rounds = counts.heads * -(-counts.rows * shape.slices // int(c.converters))
    cycles = rounds * c.approximate_bits + comparisons / c.comparators
    return energy, cycles * c.cycle_ns


def mean_cost(
    counts: StepCounts, shape: ArrayShape, constants: Constants | None = None
) -> tuple[float, float]:
    """Energy in pJ and delay in ns of a step, means over all steps."""
    return (
        float(np.mean(energy_pj(counts, shape, constants))),
        float(np.mean(delay_ns(counts, shape, constants))),
    )
