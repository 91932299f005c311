"""All of KLLM's figures on speed, energy and area, each with a verdict."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from golden.algorithms.kllm.cost import published as paper
from golden.evaluation.row import Row
from golden.studies import kllm
from golden.studies.kllm_cost.chip_claims import breakdown_claims, table_claims
from golden.studies.kllm_cost.energy_claims import energy_claims, saving_claims
from golden.studies.kllm_cost.rates import Setting
from golden.studies.kllm_cost.scheme_claims import (
    function_claims,
    lookup_claims,
    scheme_claims,
    size_claims,
)
from golden.studies.kllm_cost.speed_claims import (
    batched_claims,
    kernel_claims,
    outliers_claims,
    shared_claims,
    speed_claims,
)
from golden.studies.kllm_cost.unit_claims import lane_claims, orizuru_claims, softmax_claims
from golden.studies.kllm_orders import step_claims
from golden.studies.results import kept_runs
from golden.studies.study import Claim
from golden.studies.trials import Trial

KEPT = Path(__file__).parents[3] / "docs" / "results"
"""Folder of the data of KLLM's algorithm, in a checkout."""


@lru_cache(maxsize=4)
def kept_methods(folder: Path = KEPT, precision: str = "W4A3") -> dict[str, Row] | None:
    """Rows of the algorithm's methods on its main model; None where the folder has no data."""
    if not (folder / "kllm.json").exists():
        return None
    rows, _ = kept_runs(folder, "kllm")
    return {name: rows[Trial(kllm.method(name, precision), kllm.place())] for name in kllm.METHODS}


def perplexity_claims(setting: Setting) -> list[Claim]:
    """Fig. 11's steps, by the data of the page on KLLM's algorithm."""
    return step_claims(kept_methods(), paper.PERPLEXITY_STEPS, paper.PERPLEXITY_TABLE, kllm.MODEL)


CLAIMS: tuple[tuple[str, Callable[[Setting], list[Claim]]], ...] = (
    ("Fig. 1b", kernel_claims),
    ("III-B", scheme_claims),
    ("III-C", function_claims),
    ("Table I", table_claims),
    ("IV-A", lane_claims),
    ("IV-A", softmax_claims),
    ("IV-C", orizuru_claims),
    ("Fig. 8a", speed_claims),
    ("Fig. 8b", energy_claims),
    ("Fig. 9", batched_claims),
    ("Fig. 9", shared_claims),
    ("Fig. 10a", outliers_claims),
    ("Fig. 10b", breakdown_claims),
    ("Fig. 10b", lookup_claims),
    ("Fig. 11", perplexity_claims),
    ("Fig. 12", saving_claims),
    ("VI-A", size_claims),
)
"""By the paper's figure or section, if a claim does not name its own."""


def claims(setting: Setting) -> list[Claim]:
    """All, in the order of the paper's figures; what the model decides is computed.

    Precisions and batches are the paper's, whatever the setting's.
    """
    return [
        claim if claim.where else dataclasses.replace(claim, where=where)
        for where, make in CLAIMS
        for claim in make(setting)
    ]
