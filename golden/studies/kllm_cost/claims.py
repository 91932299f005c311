"""All of KLLM's figures on speed, energy and area, each with a verdict."""

import dataclasses

from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.chip_claims import breakdown_claims, table_claims
from golden.studies.kllm_cost.energy_claims import energy_claims, saving_claims
from golden.studies.kllm_cost.rates import Setting, percent
from golden.studies.kllm_cost.speed_claims import (
    batched_claims,
    kernel_claims,
    outliers_claims,
    speed_claims,
)
from golden.studies.study import Claim, Verdict


def perplexity_claims(setting: Setting) -> list[Claim]:
    rtn, kmeans, weighted, dynamic = paper.PERPLEXITY_STEPS
    agree = (rtn, weighted, dynamic) == paper.PERPLEXITY_TABLE
    measured = "a model of 135 million parameters: [KLLM's algorithm](kllm.md)"
    return [
        Claim(
            f"K-Means instead of integers: perplexity from above {rtn:,.0f} to {kmeans} (W4A3)",
            f"the first and the last two are{'' if agree else ' not'} Table II's",
            Verdict.HOLDS if agree else Verdict.CONTRADICTS,
            f"and thousands of times lower on {measured}",
        ),
        Claim(
            f"sample weights in K-Means: {kmeans} to {weighted}",
            f"{percent(weighted / kmeans - 1)}",
            Verdict.UNKNOWN,
            f"below the scatter that roundings make on {measured}",
        ),
        Claim(
            f"outliers found online: {weighted} to {dynamic}",
            f"{percent(dynamic / weighted - 1)}",
            Verdict.UNKNOWN,
            f"within that scatter on {measured}",
        ),
    ]


CLAIMS = {
    "Fig. 1b": kernel_claims,
    "Table I": table_claims,
    "Fig. 8a": speed_claims,
    "Fig. 8b": energy_claims,
    "Fig. 9": batched_claims,
    "Fig. 10a": outliers_claims,
    "Fig. 10b": breakdown_claims,
    "Fig. 11": perplexity_claims,
    "Fig. 12": saving_claims,
}
"""By the paper's figure."""


def claims(setting: Setting) -> list[Claim]:
    """All, in the order of the paper's figures; what the model decides is computed.

    Precisions and batches are the paper's, whatever the setting's.
    """
    return [
        dataclasses.replace(claim, where=where)
        for where, make in CLAIMS.items()
        for claim in make(setting)
    ]
