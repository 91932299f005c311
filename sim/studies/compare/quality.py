"""Settings of the designs at which all lose as much, from ``docs/results/equal_quality.json``.

They were chosen on the language model at one context: tokens kept, and rows selected, are taken
as shares of it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from golden import InputError
from golden.evaluation.estimate import Decision, Estimate
from golden.studies import equal_quality, results
from golden.studies.equal_quality import Equal
from hw.parameters import require
from sim.core.tools import ROOT
from sim.studies.compare.data import Shape

KEPT = ROOT / "docs" / "results"
EXACT = "baseline.dense_core"
"""A design that loses nothing but its arithmetic's rounding."""
FIXED = {"kllm.kllm_core": equal_quality.FIXED["KLLM, 4 bits"]}
"""Policies of designs without a setting."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """The policy of a design, by its name in :mod:`golden.studies.equal_quality`.

    settings
        Function of the policy's parameters, as texts, and of tokens a token of the context:
        the design's settings.
    """

    name: str
    settings: Callable[[dict[str, str], float], dict[str, str]]


def _kept(parameters: dict[str, str], share: float) -> dict[str, str]:
    return {"kept": f"{round(int(parameters['capacity']) * share)}"}


def _threshold(parameters: dict[str, str], share: float) -> dict[str, str]:
    return {"threshold": parameters["threshold"]}


def _lad(parameters: dict[str, str], share: float) -> dict[str, str]:
    """The tile has the slack in units of 2^-16."""
    return {"slack": f"{int(float(parameters['slack']) * 2**16)}"}


def _selected(parameters: dict[str, str], share: float) -> dict[str, str]:
    rows = int(parameters["heavy"]) + int(parameters["reserved"])
    top_k = round(int(parameters["top_k"]) * share)
    return {"rows": f"{int(rows * share) - 1}", "top_k": f"{top_k}"}


def _spatten(parameters: dict[str, str], share: float) -> dict[str, str]:
    return {name: parameters[name] for name in ("keep", "values")}


POLICIES = {
    "baseline.h2o_core": Policy("H2O", _kept),
    "veda.veda_core": Policy("VEDA, first 32 kept", _kept),
    "topick.topick_core": Policy("ToPick", _threshold),
    "tsuru.tsuru_core": Policy("sixth design", _threshold),
    "unicaim.unicaim_core": Policy("UniCAIM, no token evicted", _selected),
    "lad.lad_tile": Policy("LAD", _lad),
    "lad.lad_system": Policy("LAD", _lad),
    "spatten": Policy("SpAtten, all values", _spatten),
}


@dataclasses.dataclass(frozen=True)
class Quality:
    """An allowed loss, what the policies lose there, and what cannot reach it.

    allowed
        KL(dense || policy) of the next token's distribution, in nats.
    found
        The setting of each policy, by the policy's name.
    losses
        KL on held-out texts of the settings that reach it, by the policy's text.
    """

    allowed: float
    found: dict[str, Equal]
    losses: dict[str, Estimate]

    def settings(self, design: str, shape: Shape) -> list[str]:
        """The design's settings, as ``DESIGN.x=value``."""
        if design not in POLICIES:
            return []
        policy = POLICIES[design]
        _, _, text = self.found[policy.name].policy.partition(":")
        parameters = dict(part.split("=") for part in text.split(","))
        settings = policy.settings(parameters, shape.n / equal_quality.CONTEXT)
        return [f"{design}.{name}={value}" for name, value in settings.items()]

    def refusal(self, design: str) -> str | None:
        """Why a design has no setting for the loss, if it has none.

        One without any is left out where its loss on held-out texts is clearly above.
        """
        if design in FIXED:
            loss = self.losses[FIXED[design]]
            above = loss.against(self.allowed) is Decision.ABOVE
            return f"it has no setting, and loses {loss:.4f} nats" if above else None
        if design not in POLICIES:
            return None
        of = self.found[POLICIES[design].name]
        if of.reached:
            return None
        return f"no setting reaches a KL of {self.allowed:g} nats; the least is {of.loss:.3g}"

    def loss(self, design: str) -> Estimate:
        """KL that the design's setting has on held-out texts."""
        if design in FIXED:
            return self.losses[FIXED[design]]
        if design not in POLICIES:
            return Estimate(0.0, float("nan"), 1)
        return self.losses[self.found[POLICIES[design].name].policy]


def qualities(allowed: list[float], folder: Path = KEPT) -> list[Quality]:
    """What was found for some losses.

    :raises ParameterError: for a loss at which no settings were chosen.
    :raises InputError: if there is no such file, as where this package was installed without it.
    """
    losses = equal_quality.LOSSES
    rule = f"quality must be one of {', '.join(f'{loss:g}' for loss in losses)}"
    for loss in allowed:
        require(loss in losses, rule, f"{loss:g}")
    if not allowed:
        return []
    if not (folder / f"{equal_quality.NAME}.json").exists():
        raise InputError(
            "--quality needs a checkout of the project, whose docs/results has the settings"
        )
    rows, chosen = results.kept_runs(folder, equal_quality.NAME)
    equals = equal_quality.equals_of(chosen)
    found = {trial.policy: row.kl for trial, row in rows.items()}
    return [
        Quality(loss, {of.name: of for of in equals if of.allowed == loss}, found)
        for loss in allowed
    ]
