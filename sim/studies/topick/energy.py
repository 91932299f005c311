"""Energy of Token-Picker's core and its memory beside the baseline's (Token-Picker, Fig. 10 a).

Chunks and cycles are the RTL's; what a chunk and a cycle cost is taken from the core's step in
``docs/results/equal_terms.json``, whose DRAM is HBM2 of the paper's bandwidth.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from golden.studies.study import CLOSE, Claim, Table, Verdict
from sim.core.tools import ROOT, require_checkout
from sim.studies.compare.logic import WIRES
from sim.studies.topick.measured import CHUNKS, Pair

TERMS = ROOT / "docs" / "results" / "equal_terms.json"
DESIGN, MEMORY = "topick.topick_core", "hbm2"
ALLOWED = {3e-4: 0.003, 1e-3: 0.018}
"""KL of the step whose prices are taken, by the threshold that was measured."""
SAVING = {3e-4: 2.41, 1e-3: 2.63}
"""Times less energy in the paper's two settings, by threshold."""
ESTIMATION, OUT_OF_ORDER = 1.78, 1.35
"""The first of these settings, in steps (5.2.2)."""

DRAM_CHUNK, DRAM_TIME = ("dram_read", "dram_activation"), ("dram_background", "dram_refresh")
CHIP_CHUNK, CHIP_TIME = ("arithmetic",), ("clock", "leakage", "memories")
GLITCHES = "arithmetic_glitches"


@dataclasses.dataclass(frozen=True)
class Parts:
    """Energy of a step by what it grows with; in shares of a step, or any other unit."""

    dram_chunks: float
    dram_time: float
    chip_chunks: float
    chip_time: float

    @property
    def dram(self) -> float:
        return self.dram_chunks + self.dram_time

    @property
    def all(self) -> float:
        return self.dram + self.chip_chunks + self.chip_time

    def scaled(self, chunks: float, cycles: float) -> "Parts":
        """The energy of a step of `chunks` times the chunks and `cycles` times the cycles."""
        return Parts(
            self.dram_chunks * chunks,
            self.dram_time * cycles,
            self.chip_chunks * chunks,
            self.chip_time * cycles,
        )


def parts_of(row: Mapping[str, Any]) -> list[Parts]:
    """Parts of a row's step: without glitches and wires, and with both, as its page bounds them."""
    dram, chip = row["energy_pj"], row["chip_pj"]
    wires = {name: 1 + share for name, share in WIRES.items()}

    def of(energy: Mapping[str, float], names: Iterable[str]) -> float:
        return float(sum(energy[name] for name in names))

    least = Parts(
        of(dram, DRAM_CHUNK), of(dram, DRAM_TIME), of(chip, CHIP_CHUNK), of(chip, CHIP_TIME)
    )
    most = dataclasses.replace(
        least,
        chip_chunks=sum(wires[name] * chip[name] for name in (*CHIP_CHUNK, GLITCHES)),
        chip_time=sum(wires.get(name, 1) * chip[name] for name in CHIP_TIME),
    )
    return [least, most]


def kept_parts() -> dict[float, list[Parts]]:
    """Bounds of the parts at each threshold, of the step at the same loss."""
    require_checkout("sim pruning -o")
    rows = json.loads(TERMS.read_text(encoding="utf-8"))["rows"]
    found = {}
    for threshold, allowed in ALLOWED.items():
        [row] = [
            row
            for row in rows
            if (row["design"], row["kl_allowed"]) == (DESIGN, allowed)
            and row["memory"].startswith(MEMORY)
        ]
        found[threshold] = parts_of(row)
    return found


@dataclasses.dataclass(frozen=True)
class Energies:
    """Energy of the baseline, of estimation alone and of the core, in units of the core's."""

    base: Parts
    estimation: Parts
    core: Parts

    @property
    def saving(self) -> float:
        return self.base.all / self.core.all

    @property
    def by_estimation(self) -> float:
        return self.base.all / self.estimation.all

    @property
    def out_of_order(self) -> float:
        return self.estimation.all / self.core.all


def energies(pair: Pair, parts: Parts) -> Energies:
    """A pair's energies, with what the core's chunks and cycles cost for the others too."""
    everything, core = pair.core.everything, pair.core
    read = everything + core.values  # all of K, and of V what is kept
    longer = pair.speedup
    return Energies(
        parts.scaled(2 * everything / core.chunks, longer),
        parts.scaled(read / core.chunks, longer / pair.estimation()),
        parts,
    )


def energy_claims(
    pairs: Mapping[float, Sequence[Pair]], parts: Mapping[float, Sequence[Parts]]
) -> list[Claim]:
    """Fig. 10 (a) at each threshold; `pairs` and bounds of `parts` by threshold."""
    made = []
    for threshold in sorted(SAVING):
        if not pairs[threshold]:
            continue
        of = [[energies(pair, x) for x in parts[threshold]] for pair in pairs[threshold]]
        milder = threshold == min(SAVING)
        made.append(
            _claim(
                f"{SAVING[threshold]}× less energy than reading all of K and V"
                + (" (ToPick)" if milder else " (ToPick-0.3)"),
                [[one.saving for one in both] for both in of],
                SAVING[threshold],
                f"threshold {threshold:g}; chunks and cycles of the speeds' jobs"
                f" ({_jobs(pairs[threshold])}), DRAM and chip at the prices of the core's step on"
                " HBM2 with d = 64 ([terms](equal_terms.md)), without glitches and wires to with"
                " both. The baseline's lanes are priced as the core's, a little more than they"
                " cost",
            )
        )
        if milder:
            made += [
                _claim(
                    f"{ESTIMATION}× less energy by estimation alone",
                    [[one.by_estimation for one in both] for both in of],
                    ESTIMATION,
                    "all of K is read in order, of V what is kept",
                ),
                _claim(
                    f"another {OUT_OF_ORDER}× less energy by keys out of order",
                    [[one.out_of_order for one in both] for both in of],
                    OUT_OF_ORDER,
                    "the same jobs in the core",
                ),
                _memory_claim(of),
            ]
    return made


def _jobs(pairs: Sequence[Pair]) -> str:
    return ", ".join(f"{pair.core.tokens} tokens, d = {pair.core.d}" for pair in pairs)


def _claim(paper: str, found: Sequence[Sequence[float]], theirs: float, why: str) -> Claim:
    """Judged by the lower bound of each pair, as better is more."""
    return Claim(
        paper,
        ", ".join(f"{min(both):.2f} to {max(both):.2f}×" for both in found),
        Verdict.of(*(min(both) > (1 - CLOSE) * theirs for both in found)),
        why,
    )


def _memory_claim(of: Sequence[Sequence[Energies]]) -> Claim:
    shares = [one.base.dram / one.base.all for both in of for one in both]
    return Claim(
        "the baseline's energy is primarily due to off-chip accesses (5.2.2)",
        f"the DRAM has {min(shares):.0%} to {max(shares):.0%} of it",
        Verdict.of(min(shares) > 0.5, max(shares) > 0.5),
        "with glitches and wires, and without, at 45 nm; the paper has a chip of 65 nm, whose"
        " buffers take most of its power. The DRAM's part is without its interface",
    )


def energy_table(
    pairs: Mapping[float, Sequence[Pair]], parts: Mapping[float, Sequence[Parts]]
) -> Table:
    """Parts of the baseline's energy and of the core's, by job."""
    items: list[tuple[float, Pair, str, Energies]] = [
        (threshold, pair, name, energies(pair, bound))
        for threshold in sorted(pairs, reverse=True)
        for pair in pairs[threshold]
        for name, bound in zip(("without", "with"), parts[threshold], strict=True)
    ]

    def shares(name: str) -> Callable[[Any], str]:
        def cell(item: tuple[float, Pair, str, Energies]) -> str:
            energy = item[3]
            base = energy.base.all
            return ", ".join(
                f"{100 * getattr(of, name) / base:.0f}"
                for of in (energy.base, energy.estimation, energy.core)
            )

        return cell

    return Table.of(
        "Energy in percent of the baseline's, *baseline, estimation, core*, with and without"
        " glitches and wires on the chip: what chunks cost in the DRAM (activations and reads) and"
        f" on the chip (arithmetic; {CHUNKS} chunks a row), and what time costs (the DRAM's"
        " background and refresh; clock, leakage and memories on the chip)",
        items,
        ("threshold", lambda item: f"{item[0]:g}"),
        ("d", lambda item: str(item[1].core.d)),
        ("tokens", lambda item: str(item[1].core.tokens)),
        ("glitches, wires", lambda item: item[2]),
        ("DRAM, chunks", shares("dram_chunks")),
        ("DRAM, time", shares("dram_time")),
        ("chip, chunks", shares("chip_chunks")),
        ("chip, time", shares("chip_time")),
        ("saving", lambda item: f"{item[3].saving:.2f}"),
    )
