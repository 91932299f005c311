"""A figure of KLLM's paper beside ours, and a verdict."""

import dataclasses
from enum import StrEnum

from golden.evaluation.kllm_cost.rates import Setting

K = 4096
"""Rows and columns of the paper's product (Figs. 1 and 10b)."""
CLOSE = 0.1
"""Relative difference by which our figure may be off."""


class Basis(StrEnum):
    """What a figure of the paper is worth by arithmetic."""

    HOLDS = "holds"
    ASSUMED = "holds under an assumption"
    NOT = "not reproduced"
    CONTRADICTS = "contradicts the paper's other figures"
    UNKNOWN = "cannot be checked"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of the paper, ours with its arithmetic, the verdict, and the reason for it."""

    where: str
    paper: str
    ours: str
    verdict: Basis
    why: str


def close(ours: float, theirs: float) -> Basis:
    """Whether two figures are within `CLOSE`."""
    return Basis.HOLDS if abs(ours / theirs - 1) <= CLOSE else Basis.NOT


def with_bits(setting: Setting, bits: int) -> Setting:
    """Activations of `bits`: KLLM-A4 or A3."""
    return setting.at(activation_bits=bits)


def percent(value: float) -> str:
    """A share in percent, with two digits or three."""
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"
