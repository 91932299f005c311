"""What follows a line, beside the text of UniCAIM: queries, summed currents, the eviction."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.studies.study import Claim, Verdict, close
from golden.studies.unicaim_circuit.arrays import ROWS, SHARE
from golden.studies.unicaim_circuit.senses import BITS, FEW, LENGTHS
from golden.studies.unicaim_circuit.setting import CELLS
from golden.unicaim.cells import converter_codes, key_limit, score_limit

Data = Mapping[str, Any]
NEAR = 0.1
"""Part of a deviation by which the project's own noise may miss the circuit's, and of k."""
ENOUGH = 0.9
"""Share of searches or rows that are right where a circuit works."""
CELL_BITS, CONVERTER_BITS, RANGE = 3, 10, 512
"""Figures of section IV-A; scores are -RANGE to RANGE."""


def mixed(of: Mapping[str, Any], what: str = "scores") -> str:
    """How many neighbours overlap."""
    return f"{of['mixed']} of {of['of']} neighbouring {what} overlap"


def signed(data: Data) -> Claim:
    """Figs. 6c and d."""
    found = data["query_products"]
    return Claim(
        f"signed multiplication of {BITS}-bit keys by {BITS}-bit queries that are expanded bitwise,"
        " 0 among them",
        "; ".join(
            f"{name}: {mixed(of, 'products')}, up to {of['error']:.2f} products from a straight"
            " line"
            for name, of in found.items()
        ),
        Verdict.of(*(of["mixed"] == 0 for of in found.values())),
        "the mapping is in the picture only. Here a digit drives 2^(b + 1) cells of one key for bit"
        " b, half of them by +1 and half by -1 where it is 0, as one line cannot weigh planes."
        " Equal products of different factors, such as 2 × 1 and 1 × 2, need a cell that is linear"
        " in its level",
        where="Fig. 6d",
    )


def configured(data: Data) -> Claim:
    """k by the threshold of F_dyn."""
    found = {int(k): of for k, of in data["numbers"].items()}
    spread = data["setting"]["spread_mv"]
    return Claim(
        "k is configured by programming F_dyn, without additional hardware",
        f"at one reference, with {spread:g} mV: "
        + "; ".join(
            f"k = {k}: V_TH = {of['threshold']:.2f} V, {of['mean']:.1f} ± {of['deviation']:.1f}"
            " rows left"
            for k, of in found.items()
        ),
        Verdict.of(
            *(
                abs(of["mean"] / k - 1) < NEAR and of["deviation"] < NEAR * k
                for k, of in found.items()
            )
        ),
        f"holds is within {NEAR:.0%} of k. The more rows, the less current each may have, so the"
        " nearer the threshold, where the spread weighs more; the root of k makes up for it",
        where="III-B3, k",
    )


def search_time(data: Data) -> Claim:
    """O(1), by the circuit."""
    found = data["search_lengths"]
    more = {way: of[-1] / of[0] for way, of in found.items()}
    return Claim(
        "the top k are selected in O(1) time",
        f"{LENGTHS[-1]} rows take"
        f" {' and '.join(f'{of:.2f} ({way})' for way, of in more.items())} times as long as"
        f" {LENGTHS[0]}",
        Verdict.of(*(close(of, 1) for of in more.values())),
        f"the discharge until the top {FEW} are left: of more rows the {FEW}th score is higher, so"
        " its line drops later. The line that adds the currents of F_dyn is as long as there are"
        " rows, which is not modelled",
        where="III-B3, time",
    )


def evicted(data: Data) -> Claim:
    """The second discharge, through FE-INV."""
    found = data["evictions"]
    spread = data["setting"]["spread_mv"]

    def told(form: str) -> str:
        return " and ".join(form.format(of) + f" ({way})" for way, of in found.items())

    place = " and ".join(f"{of['place'] + 1:.0f}th ({way})" for way, of in found.items())
    return Claim(
        "the line of the smallest accumulation reaches V_S of its FE-INV first",
        f"in {told('{0[same]:.0%}')} of the arrays with equal FE-INV; with {spread:g} mV on them in"
        f" {told('{0[spread]:.1%}')}, the row being the"
        f" {place} smallest of {ROWS}, mean",
        Verdict.of(*(of[kind] > ENOUGH for kind in ("same", "spread") for of in found.values())),
        "an error of V_S adds to the row's voltage; a FeFET's whole spread is taken, for the text"
        " corrects none."
        f" After 24 queries, shared by 1 / {1 / SHARE:g} (assumed), an array's accumulations are"
        f" within {told('{0[range]:.0f}')} mV, and the two smallest"
        f" {told('{0[gap]:.2f}')} mV apart. The discharge transistors are taken as equal",
        where="III-B4",
    )


def second_reference(data: Data) -> Claim:
    """The comparison that ends the second discharge."""
    of = data["first_row"]
    spread = data["setting"]["spread_mv"]
    return Claim(
        "I_Ref2 = I_sta ends the second discharge when the first F_sta turns on",
        f"with {spread:g} mV on F_sta in {of['whole']:.0%} of the evictions, with a half of I_sta"
        f" in {of['half']:.0%}",
        Verdict.of(of["half"] > ENOUGH, of["whole"] > ENOUGH),
        "I_sta is the current of one row itself, so a row below the mean does not end the"
        " discharge, and a second line drops",
        where="III-B4, I_Ref2",
    )


def converter_range() -> Claim:
    """Section IV-A, by counts."""
    limit = score_limit(CELLS, CELL_BITS, 1)
    scores, codes = 2 * limit + 1, 1 << CONVERTER_BITS
    (top,), _ = converter_codes(np.array([limit]), limit, CONVERTER_BITS)
    return Claim(
        f"{CELLS} cells of {CELL_BITS} bits have scores of -{RANGE} to {RANGE}, thus converters of"
        f" {CONVERTER_BITS} bits",
        f"-{limit} to {limit}, {scores} scores for {codes} codes: {limit} reads as {top}",
        Verdict.of(limit == RANGE, scores <= codes),
        f"that is {2 * key_limit(CELL_BITS) + 1} levels a cell, one more than {CELL_BITS} bits"
        " have, and queries of +1 and -1 alone: a 0 takes a second cell of the key, so"
        f" {CELLS} cells are {CELLS // 2} elements, or {CELLS} elements reach {2 * limit} and take"
        " another bit",
        where="IV-A",
    )


def ferroelectric() -> Claim:
    """What a model of constant thresholds cannot tell."""
    return Claim(
        "V_P switches a FeFET to many thresholds gradually, reads do not disturb them, a row is"
        " written in one cycle at little energy",
        "none",
        Verdict.UNKNOWN,
        "thresholds are constants here. The text has no pulse, no voltage, no energy and no"
        " retention, so the switching model [35] or silicon would be needed. Levels by equal steps"
        " of current, the only ones that keep the order of scores at V_R = V_DD, usually take"
        " program and verify",
        where="Figs. 2, 5b, 6a",
    )
