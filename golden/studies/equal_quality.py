"""Settings of all policies at equal loss: what each reads when all lose as much."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from golden.algorithms.lad.piecewise_exp import EIGHT_BOUNDS
from golden.evaluation.estimate import Decision
from golden.evaluation.knobs import open_knob
from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.lm.texts import DEVELOPMENT, HELD_OUT
from golden.studies.study import Picture, Study, Table
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "equal_quality"
MODEL = "smollm2"
TEXTS, CHOICE_TEXTS = HELD_OUT, DEVELOPMENT
CONTEXT, QUERIES, WINDOWS = 1024, 64, 10
CHOICE_WINDOWS = 4
LOSSES = (0.003, 0.018, 0.06)
"""KL in nats a token: what +0.05, +0.3 and +1 are of a perplexity of 17."""
MOST = CONTEXT - QUERIES
_BOUNDS = "/".join(f"{bound:g}" for bound in EIGHT_BOUNDS)
KNOBS = {
    "H2O": f"h2o:capacity=16..{CONTEXT}",
    "VEDA": f"voting:capacity=48..{CONTEXT}",
    "VEDA, first 32 kept": f"voting:capacity=48..{CONTEXT},protect_reserved=true",
    "ToPick": "topick:threshold=1e-5..0.1",
    "LAD": f"lad:bounds={_BOUNDS},identification=codes,slack=0.0002..0.0039",
    "UniCAIM, 64 rows selected": f"unicaim:heavy=64..{MOST},reserved={QUERIES}",
    "UniCAIM, no token evicted": f"unicaim:heavy={MOST},reserved={QUERIES},top_k=8..{CONTEXT}",
    "StreamingLLM": f"streaming:capacity=16..{CONTEXT}",
    # Pruning of values alone loses more than the losses here allow.
    "SpAtten, all values": "spatten:keep=0.29..1,values=1",
    # In the formats of the core.
    "sixth design": "tsuru:threshold=2e-5..0.1,search=rotated,search_bits=2,value_bits=7"
    ",levels=float",
}
"""Policies with an open setting, by name; each row is read once for a group where heads agree."""
FIXED = {
    "KIVI, 4 bits": "kv:bits=4",
    "KIVI, 2 bits": "kv:bits=2",
    "KLLM, 4 bits": "kllm:weight_bits=none,activation_bits=none,attention=quantised",
    "SpAtten": "spatten",
}
"""Policies that are tried as they are."""


@dataclasses.dataclass(frozen=True)
class Equal:
    """A policy's setting for an allowed loss.

    loss
        On the texts on which it was chosen; above `allowed` if no setting reaches that.
    """

    name: str
    allowed: float
    policy: str
    loss: float

    @property
    def reached(self) -> bool:
        return self.loss <= self.allowed

    @property
    def setting(self) -> str:
        """The parameter that was chosen, as ``name = value``."""
        knob = open_knob(KNOBS[self.name])
        assert knob is not None, f"{self.name} has no open parameter"
        name = re.split("[:,]", knob.before)[-1].removesuffix("=")
        value = self.policy.removeprefix(knob.before).removesuffix(knob.after)
        return f"{name} = {value}"


def place() -> Place:
    return Place(MODEL, CONTEXT, QUERIES, WINDOWS, TEXTS)


def choices() -> list[Choice]:
    """Settings, on texts that the table does not see."""
    here = Place(MODEL, CONTEXT, QUERIES, CHOICE_WINDOWS, CHOICE_TEXTS)
    return [Choice(knob, LOSSES, here, nearest=True) for knob in KNOBS.values()]


def equals_of(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Equal]:
    """Every policy's setting for every loss, in the order of `KNOBS`."""
    by_knob = {choice.policy: found for choice, found in chosen.items()}
    return [
        Equal(name, allowed, of.policy, of.loss)
        for name, knob in KNOBS.items()
        for allowed, of in zip(LOSSES, by_knob[knob], strict=True)
    ]


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    policies = [of.policy for of in equals_of(chosen) if of.reached]
    return [Trial(text, place()) for text in dict.fromkeys([*policies, *FIXED.values()])]


def extras() -> dict:
    return {"texts": texts_of(place())}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    equals = equals_of(chosen)
    return Study(
        NAME,
        "Settings at equal loss",
        f"{MODEL}, contexts of {CONTEXT} tokens: a dense prompt, then the last {QUERIES} queries by"
        " the policy in every layer. Each setting was chosen so that KL(dense || policy) of the"
        f" next token comes close to the allowed loss from below in {CHOICE_WINDOWS} windows of"
        f" development texts, and was then measured in {WINDOWS} windows of the held-out texts"
        f" {', '.join(extras['texts'])}, ± the standard error. 0.003, 0.018 and 0.06 nats are what"
        " +0.05, +0.3 and +1 are of a perplexity of 17. *Fewer* is bytes of dense attention in FP16"
        " over the policy's: of each query head alone, and with rows shared by the heads of a"
        " group. A policy that cannot reach a loss is named with the least that it has. LAD is"
        " the accelerator's, with eight intervals and codes of 6 bits. What eviction loses is no"
        " smooth function of the capacity: a single token that a text comes back to decides, so"
        " that one setting may serve two losses, and other texts lose more or less.",
        [],
        [*(_table(rows, equals, allowed) for allowed in LOSSES), _fixed_table(rows)],
        [Picture(NAME, "bytes against loss", lambda: _picture(rows, equals))],
    )


def _table(rows: Mapping[Trial, Row], equals: Sequence[Equal], allowed: float) -> Table:
    return Table(
        f"KL of at most {allowed:g} nats",
        ["policy", "setting", *FIGURES],
        [_cells(rows, of) for of in equals if of.allowed == allowed],
    )


def _cells(rows: Mapping[Trial, Row], of: Equal) -> list[str]:
    if not of.reached:
        least = f"cannot reach: {of.loss:.4f} at least"
        return [of.name, of.setting, least, *[""] * (len(FIGURES) - 1)]
    return [of.name, of.setting, *_figures(rows, of.policy, of.allowed)]


FIGURES = "KL", "Δ nats", "fewer, a head alone", "fewer, shared"


def _figures(rows: Mapping[Trial, Row], policy: str, allowed: float | None = None) -> list[str]:
    row = rows[Trial(policy, place())]
    above = allowed is not None and row.kl.against(allowed) is Decision.ABOVE
    fewer = (row.of_fp16(times) for times in (row.times_fewer, row.times_fewer_shared))
    return [
        f"{row.kl:.4f}{' (above)' if above else ''}",
        f"{row.delta:+.4f}",
        *(f"{times:.2f}" for times in fewer),
    ]


def _fixed_table(rows: Mapping[Trial, Row]) -> Table:
    return Table(
        "As they are",
        ["policy", *FIGURES],
        [[name, *_figures(rows, text)] for name, text in FIXED.items()],
    )


def _picture(rows: Mapping[Trial, Row], equals: Sequence[Equal]) -> "Figure":
    """Bytes of dense attention over the policy's; rows shared by a group."""
    lines = {
        name: [
            _shared(rows[Trial(of.policy, place())]) if of.reached else float("nan")
            for of in equals
            if of.name == name
        ]
        for name in KNOBS
    }
    return curves(
        LOSSES,
        lines,
        "allowed loss: KL, nats a token",
        "times fewer bytes, shared by a group",
        log_x=True,
    )


def _shared(row: Row) -> float:
    return row.of_fp16(row.times_fewer_shared).mean
