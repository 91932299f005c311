"""All of KLLM's figures on speed, energy and area, each with a verdict."""

from golden.algorithms.kllm.cost import published as paper
from golden.evaluation.kllm_cost.chip_claims import breakdown_claims, table_claims
from golden.evaluation.kllm_cost.energy_claims import energy_claims, saving_claims
from golden.evaluation.kllm_cost.rates import Setting
from golden.evaluation.kllm_cost.speed_claims import (
    batched_claims,
    kernel_claims,
    outliers_claims,
    speed_claims,
)
from golden.evaluation.kllm_cost.verdicts import Basis, Claim, percent


def claims(setting: Setting) -> list[Claim]:
    """All, in the order of the paper's figures; what the model decides is computed.

    Precisions and batches are the paper's, whatever the setting's.
    """
    return [
        *kernel_claims(setting),
        *table_claims(setting),
        *speed_claims(setting),
        *energy_claims(setting),
        *batched_claims(setting),
        *outliers_claims(setting),
        *breakdown_claims(setting),
        *perplexity_claims(),
        *saving_claims(setting),
    ]


def perplexity_claims() -> list[Claim]:
    rtn, kmeans, weighted, dynamic = paper.PERPLEXITY_STEPS
    agree = (rtn, weighted, dynamic) == paper.PERPLEXITY_TABLE
    measured = "a model of 135 million parameters: [KLLM's algorithm](kllm.md)"
    return [
        Claim(
            "Fig. 11",
            f"K-Means instead of integers: perplexity from above {rtn:,.0f} to {kmeans} (W4A3)",
            f"the first and the last two are{'' if agree else ' not'} Table II's",
            Basis.HOLDS if agree else Basis.CONTRADICTS,
            f"and thousands of times lower on {measured}",
        ),
        Claim(
            "Fig. 11",
            f"sample weights in K-Means: {kmeans} to {weighted}",
            f"{percent(weighted / kmeans - 1)}",
            Basis.UNKNOWN,
            f"below the scatter that roundings make on {measured}",
        ),
        Claim(
            "Fig. 11",
            f"outliers found online: {weighted} to {dynamic}",
            f"{percent(dynamic / weighted - 1)}",
            Basis.UNKNOWN,
            f"within that scatter on {measured}",
        ),
    ]
