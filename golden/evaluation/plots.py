"""Pictures of measurements."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from golden.evaluation.measure import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
FEW = 8
"""Curves up to which a legend has room between the axes."""


def figure(width: float = 6.4, height: float = 4.0) -> "Figure":
    """A figure that needs no display."""
    from matplotlib.figure import Figure  # here, as its import takes a second

    return Figure(figsize=(width, height), layout="constrained")


def scatter(measured: list[Measurement], title: str) -> "Figure":
    """Quality against traffic: perplexity if it was measured, else the output's error."""
    drawn = figure()
    axes = drawn.add_subplot()
    words = all(m.perplexity is not None for m in measured)
    for m in measured:
        quality = m.quality if words else 100 * m.error
        axes.plot(100 * m.traffic.ratio, quality, "o")
        axes.annotate(
            m.policy, (100 * m.traffic.ratio, quality), (4, 4), textcoords="offset points", size=7
        )
    axes.set_xlabel("bytes of K and V read, % of dense FP16 attention")
    axes.set_ylabel("perplexity" if words else "relative error of the output, %")
    if words:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_title(title, size=9)
    axes.margins(0.12)
    axes.grid(alpha=0.3)
    return drawn


def curves(
    x: Sequence[float],
    ys: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    *,
    line: tuple[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> "Figure":
    """One curve for each of `ys` over `x`; `line` is a level to compare with."""
    drawn = figure()
    axes = drawn.add_subplot()
    for label, y in ys.items():
        axes.plot(x, y, "o-", label=label, markersize=4)
    if line is not None:
        axes.axhline(line[1], color="grey", linestyle="--", label=line[0])
    if log_x:
        axes.set_xscale("log")
        axes.set_xticks(list(x), [f"{value:g}" for value in x], minor=False)
        axes.set_xticks([], minor=True)
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    # Many curves, or at all heights, leave no room between the axes.
    if log_y or len(ys) > FEW:
        drawn.legend(loc="outside upper left", ncols=2, fontsize=8)
    else:
        axes.legend()
    return drawn
