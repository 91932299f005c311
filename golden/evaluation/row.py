"""One policy at one context: its windows' scores as a row of a table."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from golden.algorithms.attention import Traffic
from golden.evaluation.estimate import Estimate
from golden.evaluation.in_context import Score
from golden.evaluation.tasks import Agreement

FP16_BITS = 16
ESTIMATES = (
    *("delta", "kl", "right", "leading", "equal", "rouge_l"),
    *("k_times_fewer", "v_times_fewer", "times_fewer", "times_fewer_shared"),
)
"""Fields of a row that have an error."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A policy's figures over some windows.

    policy, model
        The policy as typed, and the name of the model.
    context, queries, windows
        Tokens that the last query sees, queries counted in each window, and windows; of retrieval,
        fillers, on each of which several questions are asked.
    dense, perplexity
        Geometric means over the windows; NaN where only reads were counted.
    delta
        Loss against dense attention, in nats a token, paired by window.
    deltas
        The same in each window.
    kl
        KL(dense || policy) of the next token's distribution, in nats.
    same
        Share of queries whose likeliest next token is dense attention's.
    right
        Share of windows, or of questions, that greedy decoding would write: of answers, the recall.
    leading, equal, rouge_l
        Means of :class:`~golden.evaluation.tasks.Agreement`, of a continuation; else NaN.
    k_times_fewer, v_times_fewer, times_fewer
        Bytes of dense attention over the policy's, where each query head reads for itself: of K, of
        V, of both. Dense rows have elements of `row_bits`. The means are over all bytes; their
        errors are of the windows' ratios.
    times_fewer_shared
        The same of both where the query heads of a group share the rows that one of them reads.
    kept
        Tokens held in the cache at the end.
    figures
        Further figures of the algorithm by name, each averaged over the layers of a window.
    """

    policy: str
    model: str
    context: int
    queries: int
    windows: int
    dense: float
    perplexity: float
    delta: Estimate
    deltas: tuple[float, ...]
    kl: Estimate
    same: float
    right: Estimate
    leading: Estimate
    equal: Estimate
    rouge_l: Estimate
    k_times_fewer: Estimate
    v_times_fewer: Estimate
    times_fewer: Estimate
    times_fewer_shared: Estimate
    row_bits: int
    kept: float
    figures: dict[str, Estimate]
    seconds: float

    def as_json(self) -> dict:
        """Plain numbers; an estimate as ``NAME`` and ``NAME_se``, without figures that are NaN."""
        plain = dataclasses.asdict(self)
        for name in ESTIMATES:
            estimate = getattr(self, name)
            plain |= {name: estimate.mean, f"{name}_se": estimate.error}
        means = {name: of.mean for name, of in self.figures.items()}
        errors = {name: of.error for name, of in self.figures.items()}
        plain["figures"] = _known(means)
        if known := _known(errors):
            plain["figures_se"] = known
        if any(map(math.isnan, self.deltas)):
            del plain["deltas"]
        return _known(plain)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Row":
        """What :meth:`as_json` gave, whatever else there is."""
        given: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = content.get(field.name, math.nan)
            if field.name in ESTIMATES:
                error = content.get(f"{field.name}_se", math.nan)
                value = Estimate(value, error, content["windows"])
            given[field.name] = value
        errors = content.get("figures_se", {})
        given["figures"] = {
            name: Estimate(mean, errors.get(name, math.nan), content["windows"])
            for name, mean in content.get("figures", {}).items()
        }
        given["deltas"] = tuple(content.get("deltas", [math.nan] * content["windows"]))
        return cls(**given)

    def over(self, other: "Row") -> Estimate:
        """Loss against another policy's, nats a token, paired by window."""
        return Estimate.of(np.subtract(self.deltas, other.deltas).tolist())

    def of_fp16(self, times: Estimate) -> Estimate:
        """Bytes of dense FP16 rows over the policy's, of what was counted at `row_bits`."""
        share = FP16_BITS / self.row_bits
        return dataclasses.replace(times, mean=share * times.mean, error=share * times.error)


def row_of(
    policy: str,
    model: str,
    context: int,
    queries: int,
    scores: Sequence[Score],
    *,
    together: int = 1,
) -> Row:
    """The row of a policy's scores in windows of one size.

    together
        Consecutive scores that are not independent, such as of questions on one filler: their mean
        counts as one window's.
    """
    scores = [_mean(scores[at : at + together]) for at in range(0, len(scores), together)]
    bits = scores[0].row_bits
    deltas = [score.loss - score.dense for score in scores]
    return Row(
        policy=policy,
        model=model,
        context=context,
        queries=queries,
        windows=len(scores),
        dense=float(np.exp(np.mean([score.dense for score in scores]))),
        perplexity=float(np.exp(np.mean([score.loss for score in scores]))),
        delta=Estimate.of(deltas),
        deltas=tuple(deltas),
        kl=Estimate.of([score.kl for score in scores]),
        same=float(np.mean([score.same for score in scores])),
        right=Estimate.of([score.right for score in scores]),
        **_agreement(scores),
        k_times_fewer=_times([score.alone for score in scores], "k_bytes", bits),
        v_times_fewer=_times([score.alone for score in scores], "v_bytes", bits),
        times_fewer=_times([score.alone for score in scores], "bytes", bits),
        times_fewer_shared=_times([score.traffic for score in scores], "bytes", bits),
        row_bits=bits,
        kept=float(np.mean([score.kept for score in scores])),
        figures={
            name: Estimate.of([score.figures[name] for score in scores])
            for name in scores[0].figures
        },
        seconds=sum(score.seconds for score in scores),
    )


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without numbers that are NaN."""
    return {name: x for name, x in values.items() if not (isinstance(x, float) and math.isnan(x))}


def _times(traffic: Sequence[Traffic], name: str, bits: int) -> Estimate:
    """Dense bytes, counted at FP16, over those read."""
    share = (1 if name == "bytes" else 0.5) * bits / FP16_BITS
    dense = np.array([share * of.dense_bytes for of in traffic])
    read = np.array([getattr(of, name) for of in traffic], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # infinite if nothing was read
        windows = Estimate.of((dense / read).tolist())
        return dataclasses.replace(windows, mean=float(dense.sum() / read.sum()))


def _agreement(scores: Sequence[Score]) -> dict[str, Estimate]:
    """Means of the fields of the scores' agreements, NaN where they have none."""
    return {
        field.name: Estimate.of(
            [getattr(score.agreement, field.name, math.nan) for score in scores]
        )
        for field in dataclasses.fields(Agreement)
    }


def _mean(scores: Sequence[Score]) -> Score:
    """Several scores without agreements as one: traffic and seconds are added."""
    if len(scores) == 1:
        return scores[0]
    means: dict[str, Any] = {
        name: float(np.mean([getattr(score, name) for score in scores]))
        for name in ("loss", "dense", "kl", "same", "right", "kept")
    }
    traffic, alone = Traffic(), Traffic()
    for score in scores:
        traffic.add(score.traffic)
        alone.add(score.alone)
    figures = {
        name: float(np.mean([score.figures[name] for score in scores]))
        for name in scores[0].figures
    }
    seconds = sum(score.seconds for score in scores)
    return dataclasses.replace(
        scores[0], **means, traffic=traffic, alone=alone, figures=figures, seconds=seconds
    )
