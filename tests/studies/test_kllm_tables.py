"""Tables II to IV of KLLM: what follows from their figures, and the orders that are measured."""

import math
from types import SimpleNamespace

import pytest

from golden.evaluation.estimate import Estimate
from golden.evaluation.row import Row
from golden.studies import kllm_orders, kllm_tables
from golden.studies.kllm_orders import more, step_claims
from golden.studies.study import Verdict

FIGURES = (1000.0, 8.0, 7.5, 7.0)
TABLE = (1000.0, 7.5, 7.0)


def row(*deltas):
    """A row of some windows' losses, as far as :meth:`Row.over` and the claims read it."""
    made = SimpleNamespace(deltas=deltas, delta=Estimate.of(deltas), windows=len(deltas))
    made.over = lambda other: Row.over(made, other)
    return made


def test_gain_of_the_tables():
    """0.1 of perplexity in all seven models is what the text would say; nats by hand."""
    gains = kllm_tables.GAIN
    assert kllm_tables.gain_verdict(gains, {"W4A4": 0, "W4A3": 0}) is Verdict.HOLDS
    off = {name: value + 0.01 for name, value in gains.items()}
    assert kllm_tables.gain_verdict(off, gains) is Verdict.ASSUMED
    assert kllm_tables.gain_verdict(off, off) is Verdict.CONTRADICTS
    assert kllm_tables.share_gain("KLLM", "W4A4", 0.01, 0.1) == pytest.approx(math.log(5.58 / 5.9))
    assert -0.010 < kllm_tables.table_gain("W4A4") < -0.008


def test_orders_of_the_tables():
    """KLLM-S is not the lowest on Mistral-7B; a pair of models where the second is not worse."""
    assert [kllm_tables.lowest_count("W4A4", name) for name in ("KLLM", "KLLM-S")] == [7, 6]
    assert kllm_tables.lowest_count("W4A3", "KLLM-S") == 7
    names = ("SmoothQuant", "QuaRot", "Atom", "KLLM")
    rows = dict.fromkeys(names, (1, 2, 9, 2, 3, 9, 9))
    assert kllm_tables._generations(rows).verdict is Verdict.HOLDS
    rows["Atom"] = (1, 2, 9, 2, 2, 9, 9)
    claim = kllm_tables._generations(rows)
    assert claim.verdict is Verdict.CONTRADICTS
    assert claim.ours == "7 of 8 pairs" and "Atom 2 and 2 (LLaMA-2-13B)" in claim.why


@pytest.mark.parametrize(("at", "value"), [(2, 5.95), (4, 5.70), (1, 5.89)])
def test_shares_must_fall_and_agree(at, value):
    """One cell that does not fall, is above KLLM-S's, or is not Table II's."""
    assert kllm_tables._shares(kllm_tables.BY_SHARE)[0].verdict is Verdict.HOLDS
    changed = list(kllm_tables.BY_SHARE["W4A4"]["KLLM"])
    changed[at] = value
    rows = kllm_tables.BY_SHARE["W4A4"] | {"KLLM": changed}
    table = kllm_tables.BY_SHARE | {"W4A4": rows}
    assert kllm_tables._shares(table)[0].verdict is Verdict.CONTRADICTS


@pytest.mark.parametrize("task", [0, 5])
def test_accuracies_must_add_up(monkeypatch, task):
    assert kllm_tables._accuracy().verdict is Verdict.HOLDS
    changed = list(kllm_tables.ACCURACY["W4A4"]["QuaRot"])
    changed[task] += 0.1
    rows = kllm_tables.ACCURACY["W4A4"] | {"QuaRot": changed}
    monkeypatch.setitem(kllm_tables.ACCURACY, "W4A4", rows)
    assert kllm_tables._accuracy().verdict is Verdict.CONTRADICTS


def test_differences_of_losses_are_paired_by_window():
    found = more((row(5, 7), row(1, 2)), (row(1, 3), row(1, 1)))
    assert (found.mean, found.error, found.number) == (3.5, 0.5, 2)


def test_indices_do_not_change_by_a_division():
    assert kllm_orders.delay_keeps_indices()


def steps(rtn=(9.0, 9.1, 9.2), fisher=0.0, dynamic=-0.1):
    """Rows of Fig. 11's steps; `fisher` and `dynamic` are what these steps add, in any window."""
    static = (0.7, 0.8, 0.9)
    found = [x + dynamic for x in static]
    return {
        "RTN": row(*rtn),
        "KLLM-S": row(*static),
        "KLLM": row(*found),
        "KLLM, Fisher": row(*(x + fisher + 0.01 * n for n, x in enumerate(found, -1))),
    }


@pytest.mark.parametrize(
    ("rows", "verdicts"),
    [
        (steps(), "RORR"),
        (steps(fisher=-0.1), "RRRR"),
        (steps(fisher=0.1, dynamic=0.1), "RNNR"),
        (steps(rtn=(2.9, 3.0, 3.1)), "NORR"),
        (steps(rtn=(0.75, 0.85, 0.95)), "NORP"),
        (steps(rtn=(0.6, 0.7, 0.8)), "NORN"),
    ],
)
def test_steps_of_fig_11(rows, verdicts):
    names = {"R": Verdict.REPRODUCED, "N": Verdict.NOT, "O": Verdict.OPEN, "P": Verdict.PARTLY}
    found = [claim.verdict for claim in step_claims(rows, FIGURES, TABLE, "crane")]
    assert found == [names[letter] for letter in verdicts]


def test_steps_without_data_and_without_agreement():
    assert {claim.verdict for claim in step_claims(None, FIGURES, TABLE, "")} == {Verdict.UNKNOWN}
    other = step_claims(steps(), FIGURES, (1000.0, 7.5, 7.1), "crane")[0]
    assert other.verdict is Verdict.CONTRADICTS and "are not Table II's" in other.why
