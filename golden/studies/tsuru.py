"""The sixth design's algorithm on trial: does the combination read half of what one idea reads?"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from golden.evaluation.estimate import Decision, Estimate
from golden.evaluation.plots import curves
from golden.evaluation.row import Row
from golden.evaluation.windows import ECHO_QUERIES
from golden.lm.texts import DEVELOPMENT, HELD_OUT
from golden.studies.study import OURS, Claim, Picture, Study, Table, Verdict, exceeds
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "tsuru"
TEXTS, CHOICE_TEXTS = HELD_OUT, DEVELOPMENT
MODELS = ("smollm2", "qwen0.5b")
CONTEXT, QUERIES = 2048, 64
WINDOWS = 20
"""Windows of the first model; a longer context, another model or task has fewer."""
LONGER = {4096: 8}
OTHER_WINDOWS = 6
CHOICE_WINDOWS = 3
ABLATION_WINDOWS = 6
LOSSES = (0.003, 0.018)
"""KL in nats a token: what +0.05 and +0.3 are of a perplexity of 17."""
_BITS = {0.003: "key_bits=7,value_bits=6", 0.018: "key_bits=6,value_bits=5"}
D1, R2, TOPICK, TOP_K = "D1", "R2", "ToPick", "UniCAIM, no token evicted"
"""D1 searches by channels and R2 by rotated keys."""
KIVI = {"KIVI, 4 bits": "kv:bits=4", "KIVI, 3 bits": "kv:bits=3"}
"""All rows in few bits: tried as they are."""
TIMES = 2
"""The combination is to read this many times fewer bytes than the best single idea."""
ABLATED_AT = 0.003
ABLATIONS = {
    "as it is": "",
    "sinks not exact": "sinks=0",
    "four exact sinks": "sinks=4",
    "rows that are not chosen are left out": "rest=false",
    "two bits a channel": "search_bits=2",
    "one rotated bit in place of channels": "search=rotated",
}


def _knobs(context: int) -> dict[str, dict[float, str]]:
    """Policies with an open setting, by name and loss."""
    most = context - QUERIES
    either = {
        TOPICK: "topick:threshold=1e-5..0.03",
        TOP_K: f"unicaim:heavy={most},reserved={QUERIES},top_k=32..{context}",
    }
    return {
        D1: {loss: f"tsuru:threshold=2e-5..0.01,{_BITS[loss]}" for loss in LOSSES},
        R2: {
            loss: f"tsuru:threshold=2e-5..0.01,search=rotated,search_bits=2,{_BITS[loss]}"
            for loss in LOSSES
        },
        **{name: dict.fromkeys(LOSSES, text) for name, text in either.items()},
    }


def _of(model: str) -> list[str]:
    """Names of the policies that a model tries; what cannot win is tried with the first alone."""
    return [D1, R2, TOPICK, TOP_K] if model == MODELS[0] else [D1, R2, TOPICK]


def places() -> list[Place]:
    """Where the policies are tried, an echo last."""
    first, *others = MODELS
    contexts = {CONTEXT: WINDOWS} | LONGER
    found = [Place(first, context, QUERIES, n, TEXTS) for context, n in contexts.items()]
    found += [Place(model, CONTEXT, QUERIES, OTHER_WINDOWS, TEXTS) for model in others]
    return [*found, _echo()]


def _echo() -> Place:
    return Place(MODELS[0], CONTEXT, ECHO_QUERIES, OTHER_WINDOWS, TEXTS, task="echo")


def _development() -> Place:
    return Place(MODELS[0], CONTEXT, QUERIES, ABLATION_WINDOWS, CHOICE_TEXTS)


def choices() -> list[Choice]:
    """Settings of each model for each loss, on texts that the verdicts do not see."""
    return [
        Choice(
            _knobs(CONTEXT)[name][loss],
            (loss,),
            Place(model, CONTEXT, QUERIES, CHOICE_WINDOWS, CHOICE_TEXTS),
            nearest=True,
        )
        for model in MODELS
        for name in _of(model)
        for loss in LOSSES
    ]


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The chosen policies of a model, by name and loss."""

    of: dict[tuple[str, str, float], str]

    @classmethod
    def read(cls, chosen: Mapping[Choice, Sequence[Chosen]]) -> "_Settings":
        found = {}
        for model in MODELS:
            for name in _of(model):
                for loss in LOSSES:
                    (choice,) = (
                        of
                        for of in chosen
                        if of.place.model == model
                        and of.policy == _knobs(CONTEXT)[name][loss]
                        and of.allowed == (loss,)
                    )
                    found[model, name, loss] = chosen[choice][0].policy
        return cls(found)

    def at(self, place: Place, name: str, loss: float) -> str:
        """The policy's text; what is a number of the context's tokens follows it."""
        text = self.of[place.model, name, loss]
        if name != TOP_K:
            return text
        top_k = int(text.rpartition("=")[2]) * place.context // CONTEXT
        most = place.context - place.queries
        return f"unicaim:heavy={most},reserved={place.queries},top_k={top_k}"


def _ablated(settings: _Settings) -> dict[str, str]:
    """One part switched off or changed, at the threshold that was chosen."""
    text = settings.at(_development(), D1, ABLATED_AT)
    return {name: f"{text},{part}".rstrip(",") for name, part in ABLATIONS.items()}


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    settings = _Settings.read(chosen)
    found = [
        Trial(settings.at(place, name, loss), place)
        for place in places()
        for name in _of(place.model)
        for loss in LOSSES
    ]
    found += [Trial(text, place) for place in places() for text in KIVI.values()]
    found += [Trial(text, _development()) for text in _ablated(settings).values()]
    return list(dict.fromkeys(found))


def extras() -> dict:
    return {"texts": texts_of(places()[0])}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    settings = _Settings.read(chosen)
    prose = places()[:-1]
    return Study(
        NAME,
        "The sixth design: ideas of five papers together, on trial",
        "All rows are searched by codes of 1 (D1) or 2 (R2) bits an element; those whose estimated"
        " probability exceeds a threshold for any head of a group are read finer, and the rest"
        " counts by its estimates times the mean of V. Rows are shared by the heads of a group;"
        " *fewer* is bytes of dense FP16 attention over the policy's. Thresholds were chosen on"
        f" {CHOICE_WINDOWS} windows of development texts of {CONTEXT} tokens, so that KL(dense ||"
        " policy) is at most the allowed loss, and serve longer contexts too, where UniCAIM's"
        " number of rows grows with the context; the constants of a model are of other text as"
        f" long as the context. Windows are of the held-out texts {', '.join(extras['texts'])};"
        f" the last {QUERIES} queries are the policy's, in every layer. ± is the standard error.",
        [
            *(_less(rows, settings, place, loss) for place in prose for loss in LOSSES),
            _recalls(rows, settings),
        ],
        [
            *(_table(rows, settings, place) for place in prose),
            _echo_table(rows, settings),
            _ablation_table(rows, settings),
        ],
        [Picture(NAME, "bytes against loss", lambda: _picture(rows, settings))],
    )


def _shared(row: Row) -> Estimate:
    return row.of_fp16(row.times_fewer_shared)


def _named(settings: _Settings, place: Place, loss: float) -> dict[str, str]:
    """Policies at a place by name, those without a setting last."""
    return {name: settings.at(place, name, loss) for name in _of(place.model)} | KIVI


def _less(rows: Mapping[Trial, Row], settings: _Settings, place: Place, loss: float) -> Claim:
    """The better of the combinations against the best single idea whose loss may be allowed."""
    found = {n: rows[Trial(t, place)] for n, t in _named(settings, place, loss).items()}
    allowed = {n: r for n, r in found.items() if r.kl.against(loss) is not Decision.ABOVE}
    single = {n: _shared(r) for n, r in allowed.items() if n not in (D1, R2)}
    best = max(single, key=lambda name: single[name].mean, default=None)
    told, decided = [], []
    for name in (D1, R2):
        row, times = found[name], _shared(found[name])
        told.append(f"{name} {times:.2f}× at KL {row.kl:.4f}")
        holds = Decision.WITHIN if best is None else exceeds(times, TIMES * single[best].mean)
        decided.append(Decision.ABOVE if row.kl.against(loss) is Decision.ABOVE else holds)
    if best is not None:
        told.append(f"{best} {single[best]:.2f}× at KL {found[best].kl:.4f}")
    return Claim(
        f"{place.model}, {place.context} tokens, KL {loss:g}: at most half the bytes of the best"
        " single idea",
        "; ".join(told),
        Verdict.measured(Decision.WITHIN if Decision.WITHIN in decided else decided[0]),
        "one of the two must hold; a policy whose KL is above the allowed one by its interval"
        " does not count",
        OURS,
    )


def _recalls(rows: Mapping[Trial, Row], settings: _Settings) -> Claim:
    """Loss in an echo over ToPick's, paired by window."""
    place, told, decided = _echo(), [], []
    for loss in LOSSES:
        topick = rows[Trial(settings.at(place, TOPICK, loss), place)]
        for name in (D1, R2):
            over = rows[Trial(settings.at(place, name, loss), place)].over(topick)
            told.append(f"{name} at {loss:g}: {over:+.4f} nats over ToPick")
            decided.append(over.against(loss))
    return Claim(
        "an echo of 128 tokens from far back costs no more than ToPick's and the allowed loss",
        "; ".join(told),
        Verdict.measured(*decided),
        whose=OURS,
    )


def _cells(name: str, policy: str, row: Row) -> list[str]:
    return [name, f"`{policy}`", f"{row.kl:.4f}", f"{row.delta:+.4f}", f"{_shared(row):.2f}"]


_COLUMNS = ("idea", "setting", "KL", "Δ nats", "fewer, shared")


def _table(rows: Mapping[Trial, Row], settings: _Settings, place: Place) -> Table:
    listed = [
        (f"{name}, {loss:g}" if name not in KIVI else name, text)
        for loss in LOSSES
        for name, text in _named(settings, place, loss).items()
    ]
    return Table(
        f"{place.model}, {place.context} tokens, {place.windows} windows",
        _COLUMNS,
        [_cells(name, text, rows[Trial(text, place)]) for name, text in dict(listed).items()],
    )


def _echo_table(rows: Mapping[Trial, Row], settings: _Settings) -> Table:
    table = _table(rows, settings, _echo())
    return dataclasses.replace(table, title=f"Echo: {table.title}")


def _ablation_table(rows: Mapping[Trial, Row], settings: _Settings) -> Table:
    place = _development()
    return Table(
        f"What the parts are worth: D1 at its threshold for {ABLATED_AT:g}, {place.windows} windows"
        " of development texts",
        _COLUMNS,
        [_cells(name, text, rows[Trial(text, place)]) for name, text in _ablated(settings).items()],
    )


def _picture(rows: Mapping[Trial, Row], settings: _Settings) -> "Figure":
    """Bytes of dense attention over the policy's, rows shared by a group."""
    lines = {
        f"{name}, {place.model}, {place.context}": [
            _shared(rows[Trial(settings.at(place, name, loss), place)]).mean for loss in LOSSES
        ]
        for place in places()[:-1]
        for name in (D1, R2, TOPICK)
    }
    return curves(
        LOSSES,
        lines,
        "allowed loss: KL, nats a token",
        "times fewer bytes than dense FP16, shared by a group",
        log_x=True,
    )
