"""Power and energy of the paper's machine by its own figures, and of the tile here (LAD, V-D)."""

from collections.abc import Iterable, Mapping
from typing import Any

from golden.studies.study import Claim, Verdict
from hw.lad.system_parameters import TILES
from sim.studies.lad.machine import ATTENTION, BYTES_PER_S

GPU_W = 250
"""Limit of an A100 40 GB PCIe, by its data sheet, which the paper cites."""
EFFICIENCY = (29.3, 30.4, 29.0), (36.9, 51.2, 52.4)
"""Attention's energy efficiency beside the GPU in each group, by SRAM (V-D)."""
MODULES_MW = {
    "EAS": (1.37, 0.78),
    "APID": (2.31, 0.99),
    "MD": (1.06, 0.34),
    "AC": (92.2, 20.2),
    "VPU": (291.78, 77.6),
    "SFM": (43.29, 16.9),
}
SRAM_MW = (733.33, 118.25), (841.97, 193.58), (1202.82, 276.55)
"""Dynamic and static power of a tile's modules, and of its SRAM by size (Table III)."""
BYTE_J = 8 * 3.9e-12
"""Energy of a byte of HBM (V-A)."""


def claims(compared: Iterable[Mapping[str, Any]]) -> list[Claim]:
    """All claims; `compared` are rows of ``docs/results/equal_terms.json``."""
    return [power_claim(), energy_claim(compared)]


def power(size: int) -> tuple[float, float, float]:
    """W of six tiles' logic and SRAM, and of HBM at full bandwidth."""
    modules = sum(map(sum, MODULES_MW.values()))
    return 1e-3 * TILES * modules, 1e-3 * TILES * sum(SRAM_MW[size]), BYTES_PER_S * BYTE_J


def power_claim() -> Claim:
    """Fig. 9 (a) from Fig. 7 (a), Table III and the energy of HBM."""
    watts, use = [], []
    for speeds, efficiencies in zip(ATTENTION, EFFICIENCY, strict=True):
        for size, (speed, efficiency) in enumerate(zip(speeds, efficiencies, strict=True)):
            logic, sram, hbm = power(size)
            watts.append(efficiency / speed * (logic + sram + hbm))
            use.append((GPU_W * speed / efficiency - logic - sram) / hbm)
    return Claim(
        "attention 29 to 52.4 times as energy efficient as on the GPU (Fig. 9)",
        f"by Table III and 3.9 pJ a bit LAD draws {sum(power(0)):.0f} to {sum(power(2)):.0f} W"
        " with HBM at full bandwidth, so that the GPU would draw"
        f" {min(watts):.0f} to {max(watts):.0f} W",
        Verdict.HOLDS
        if max(watts) <= GPU_W
        else Verdict.ASSUMED
        if min(use) > 0
        else Verdict.CONTRADICTS,
        f"energy efficiency over speed (V-C) is the ratio of powers. The GPU's limit is {GPU_W} W,"
        f" so that LAD uses {min(use):.0%} to {max(use):.0%} of its bandwidth at most",
    )


def energy_claim(compared: Iterable[Mapping[str, Any]]) -> Claim:
    """Fig. 10 from the paper's figures, and from this project's tile."""
    theirs = [(sram + hbm) / (logic + sram + hbm) for logic, sram, hbm in map(power, range(3))]
    ours: dict[str, list[float]] = {}
    for row in compared:
        if row["design"] == "lad.lad_tile":
            memory, chip = sum(row["energy_pj"].values()), row["chip_pj"]
            part = (memory + chip["memories"]) / (memory + sum(chip.values()))
            ours.setdefault(row["memory"].split(",")[0], []).append(part)
    return Claim(
        "HBM and SRAM take most of LAD's energy (Fig. 10)",
        f"{min(theirs):.0%} to {max(theirs):.0%} by Table III and HBM at full bandwidth; of the"
        " tile here "
        + ", ".join(f"{min(some):.0%} to {max(some):.0%} on {name}" for name, some in ours.items()),
        Verdict.of(*(part > 0.5 for some in (theirs, *ours.values()) for part in some)),
        "most is more than half. Here at 512 positions in 45 nm, with wires, glitches and the"
        " clock, which takes most of the chip's ([equal terms](equal_terms.md))",
    )
