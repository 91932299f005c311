"""A parameter of a policy, chosen so that the policy loses as much as allowed.

``topick:threshold=1e-5..0.1`` is a policy whose threshold is open. Losses are compared by
KL(dense || policy) of the next token's distribution, which, unlike a difference of perplexities,
is positive and hardly noisy.
"""

import dataclasses
import math
import re
from collections.abc import Callable

from golden import InputError

_OPEN = re.compile(
    r"(?P<before>.*[:,](?P<name>\w+)=)(?P<low>[^,]+)\.\.(?P<high>[^,]+)(?P<after>.*)"
)

CLOSE = 0.03
"""Share by which the loss may be below the allowed one."""
STEPS = 12


@dataclasses.dataclass(frozen=True)
class Knob:
    """A policy's text with an open parameter, from `low` to `high`.

    whole
        Whether the parameter is a whole number: both ends are, and are written without a point.
    """

    text: str
    before: str
    after: str
    low: float
    high: float
    whole: bool

    def at(self, value: float) -> str:
        """The policy's text with the parameter set."""
        return (
            f"{self.before}{value:.0f}{self.after}"
            if self.whole
            else (f"{self.before}{value:.4g}{self.after}")
        )


def open_knob(text: str) -> Knob | None:
    """The open parameter of a policy's text; None if all are set.

    :raises InputError: if the range is not two rising numbers above zero.
    """
    found = _OPEN.fullmatch(text)
    if found is None:
        return None
    low, high = found["low"], found["high"]
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not 0 < ends[0] < ends[1] < math.inf:
        raise InputError(
            f"policy {text}: the range of {found['name']} must be two rising numbers above 0,"
            f" such as 0.001..0.1, not {low}..{high}"
        )
    whole = "." not in low + high and all(end.is_integer() for end in ends)
    return Knob(text, found["before"], found["after"], *ends, whole)


def choose(
    knob: Knob, allowed: float, loss: Callable[[str], float], *, nearest: bool = False
) -> tuple[str, float]:
    """The policy whose loss is the closest to `allowed` from below, and its loss.

    The loss must rise or fall with the parameter. Its logarithm is taken as a straight line over
    the parameter's between the two values that enclose the allowed loss, and the middle every
    second time, since it is no line.

    loss
        Called with a policy's text.
    nearest
        Take the end of the range whose loss is the nearest where the range does not enclose the
        allowed loss: more than that is lost if it cannot be reached.
    :raises InputError: if the range does not enclose the allowed loss, without `nearest`.
    """
    losses = {value: loss(knob.at(value)) for value in (knob.low, knob.high)}
    good, bad = sorted(losses, key=losses.__getitem__)
    if nearest and losses[good] > allowed:
        return knob.at(good), losses[good]
    if nearest and losses[bad] <= allowed:
        return knob.at(bad), losses[bad]
    if not losses[good] <= allowed < losses[bad]:
        raise InputError(
            f"policy {knob.text}: its loss is {losses[knob.low]:.3g} and {losses[knob.high]:.3g} at"
            f" the ends of the range, which do not enclose {allowed:g}"
        )
    for step in range(STEPS):
        if losses[good] >= (1 - CLOSE) * allowed:
            break
        share = 0.5
        if step % 2 == 0 and losses[good] > 0:
            a, b = math.log(losses[good]), math.log(losses[bad])
            # A little on the good side of the line's guess, so that the bad end moves too.
            share = (math.log((1 - CLOSE / 2) * allowed) - a) / (b - a)
        share = min(max(share, 0.05), 0.95)
        value = math.exp((1 - share) * math.log(good) + share * math.log(bad))
        if knob.whole:
            value = round(value)
            if value in losses:
                value = round((good + bad) / 2)
        if value in losses:
            break
        losses[value] = loss(knob.at(value))
        if losses[value] <= allowed:
            good = value
        else:
            bad = value
    return knob.at(good), losses[good]
