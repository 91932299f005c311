"""Ratios that the paper's text states. Figs. 10 to 12 and Table II are pictures in it."""

import dataclasses
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A printed decimal: any value from ``low`` to ``high`` is printed like this."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text)

    @property
    def low(self) -> Fraction:
        return Fraction(self.text) - self._half

    @property
    def high(self) -> Fraction:
        return Fraction(self.text) + self._half

    @property
    def _half(self) -> Fraction:
        decimals = len(self.text.partition(".")[2])
        return Fraction(1, 2 * 10**decimals)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


AREA_STATIC, AREA_BOTH = Rounded("15"), Rounded("14.7")
"""Fewer devices with static pruning, and with dynamic pruning too (section IV-A1, Fig. 10b)."""

ENERGY = Rounded("5.3"), Rounded("27")
"""Less energy with both, from the shortest to the longest sequences (IV-A2, Fig. 11b and c)."""

SPEEDUP = Rounded("4.2"), Rounded("16.7")
"""Shorter delay with both, from the shortest to the longest sequences (IV-A3, Fig. 12b)."""

KEPT = 20
"""Percent of the rows that are selected in Figs. 11a and 12a, taken from "20% pruning ratio": the
speed-ups of the text cannot be had with 80 percent selected."""

PROMPT, GENERATED = 512, 64
"""Lengths of input and output of Fig. 12a; 64 is also the output's length of Fig. 11b."""

LONG_PROMPT = 2048
"""Length of the input of Fig. 11c."""

BASELINES = ("Sprint", "TranCIM", "CIMFormer")

AEDP = {
    (1, 50): tuple(map(Rounded, ("8.2", "13.9", "124"))),
    (1, 80): tuple(map(Rounded, ("11.5", "19", "277"))),
    (3, 50): tuple(map(Rounded, ("24.8", "41.7", "372"))),
    (3, 80): tuple(map(Rounded, ("34.6", "56.9", "831"))),
}
"""Area-energy-delay product of each baseline over UniCAIM's (section IV-A4, Table II), by bits of a
cell and percent pruned."""


def quotient_range(above: Rounded, below: Rounded) -> tuple[Fraction, Fraction]:
    """The least and the largest quotient of two printed numbers."""
    return above.low / below.high, above.high / below.low


def multilevel_gain() -> tuple[Fraction, Fraction]:
    """The range that all six gains of 3-bit over 1-bit cells in Table II share."""
    ranges = [
        quotient_range(three, one)
        for pruned in (50, 80)
        for one, three in zip(AEDP[1, pruned], AEDP[3, pruned], strict=True)
    ]
    return max(low for low, _ in ranges), min(high for _, high in ranges)
