"""UniCAIM's dynamic pruning apart: rows by approximate scores, and few of them (III-A2, III-B3)."""

from collections.abc import Callable

from golden.evaluation.row import Row
from golden.studies.study import Claim, Verdict

PLAIN = "rotate=false,centre=false"
"""Options of keys as they are, which the paper writes."""
CURVES = {
    "keys as they are": f"unicaim:{PLAIN},spread_mv={{}}",
    "rotated and centred": "unicaim:spread_mv={}",
}
EXACT, TOP_K = "unicaim:key_bits=0", "unicaim:top_k={}"
HALF, FIFTH = 288, 115
"""Rows of 576 that are left of Table II's 50 and 80 % pruned."""


def selection_claims(of: Callable[[str], Row], model: str, rows: int, bound: float) -> list[Claim]:
    """Both claims, of one model.

    of
        The row of a policy, of the windows of all others.
    rows
        Rows of the array, of which dynamic pruning selects.
    bound
        Loss that is negligible, nats a token.
    """
    return [_approximate(of, model, bound), _dynamic(of, model, rows, bound)]


def _approximate(of: Callable[[str], Row], model: str, bound: float) -> Claim:
    added = {name: of(form.format(0)).over(of(EXACT)) for name, form in CURVES.items()}
    return Claim(
        "approximate scores select the rows as well as exact ones (III-B3): 3-bit cells",
        f"over a selection of as many rows by exact scores, {model} loses "
        + ", ".join(f"{loss:+.3f} nats ({name})" for name, loss in added.items()),
        Verdict.measured(*(loss.against(bound) for loss in added.values())),
        "as well is 2 % of perplexity, by the 95 % interval of the paired difference. Without"
        " spread, and attention on the exact rows: the rows that levels miss are near the last"
        " selected and count little",
    )


def _dynamic(of: Callable[[str], Row], model: str, rows: int, bound: float) -> Claim:
    whole = of(TOP_K.format(rows))
    added = {left: of(TOP_K.format(left)).over(whole) for left in (HALF, FIFTH)}
    return Claim(
        "dynamic pruning beside static does not degrade the model (section I), at the 50 and 80 %"
        " of Table II",
        f"over all {rows} rows, {model} loses "
        + ", ".join(f"{loss:+.3f} nats with {left} of them" for left, loss in added.items()),
        Verdict.measured(*(loss.against(bound) for loss in added.values())),
        "does not degrade is 2 % of perplexity, by the 95 % interval of the paired difference."
        " Softmax over prose is flat: what a query leaves out is small row by row, and not in sum",
    )
