"""The sixth design's algorithm on trial: does the combination read half of what one idea reads?"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from golden.evaluation.estimate import Estimate
from golden.evaluation.plots import figure
from golden.evaluation.row import Row
from golden.evaluation.windows import ECHO_QUERIES
from golden.lm.texts import DEVELOPMENT, HELD_OUT
from golden.studies.study import OURS, Claim, Picture, Study, Table, Verdict, exceeds
from golden.studies.trials import Choice, Chosen, Place, Trial, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "tsuru"
TEXTS, CHOICE_TEXTS = HELD_OUT, DEVELOPMENT
SMALL, LARGE = "smollm2", "qwen0.5b"
OTHERS = (LARGE, "gemma270m")
MODELS = (SMALL, *OTHERS)
CONTEXT, QUERIES = 2048, 64
WINDOWS = {CONTEXT: 20, 4096: 8, 8192: 4}
"""Windows of the first model by context; other models and tasks have OTHER_WINDOWS of CONTEXT."""
ALL_UP_TO = 4096
"""Tokens up to which every idea is tried; beyond, the combinations and ToPick's."""
OTHER_WINDOWS = 6
CHOICE_WINDOWS, OTHER_CHOICE_WINDOWS = 3, 2
"""Windows of CONTEXT on which settings are chosen, of the first model and of others."""
LONG_CHOICE_WINDOWS = {4096: 2}
"""Windows of longer contexts, on which the first model's D1 and R2 are chosen again."""
ABLATION_WINDOWS = 6
ASKED, ASKED_FILLERS = 1024, 4
"""Tokens and number of the fillers in which a second model looks for answers."""
WRITTEN = 32
"""Tokens that a model writes after a prompt as long as a filler."""
LOST = 0.05
"""Share of the answers, or of ROUGE-L, that may be lost against ToPick."""
LOSSES = (0.003, 0.018)
"""KL in nats a token: what +0.05 and +0.3 are of a perplexity of 17."""
_BITS = {0.003: "key_bits=7,value_bits=6", 0.018: "key_bits=6,value_bits=5"}
D1, R2, BALANCED = "D1", "R2", "R2, balanced"
COMBINED = (D1, R2, BALANCED)
"""D1 searches by channels and R2 by rotated keys."""
TOPICK, TOP_K = "ToPick", "UniCAIM, no token evicted"
KIVI = {"KIVI, 4 bits": "kv:bits=4", "KIVI, 3 bits": "kv:bits=3"}
"""All rows in few bits: tried as they are."""
LEAST = 1e-9
"""A loss below this counts as this, where there is a logarithm."""
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
    rotated = "tsuru:threshold=2e-5..0.01,search=rotated,search_bits=2"
    either = {
        TOPICK: "topick:threshold=1e-5..0.03",
        TOP_K: f"unicaim:heavy={most},reserved={QUERIES},top_k=32..{context}",
    }
    return {
        D1: {loss: f"tsuru:threshold=2e-5..0.01,{_BITS[loss]}" for loss in LOSSES},
        R2: {loss: f"{rotated},{_BITS[loss]}" for loss in LOSSES},
        BALANCED: {loss: f"{rotated},smooth=true,{_BITS[loss]}" for loss in LOSSES},
        **{name: dict.fromkeys(LOSSES, text) for name, text in either.items()},
    }


def _of(model: str, context: int) -> list[str]:
    """Policies with a setting by name, UniCAIM's with the first model and up to ALL_UP_TO alone."""
    few = model != SMALL or context > ALL_UP_TO
    return [*COMBINED, TOPICK] if few else [*COMBINED, TOPICK, TOP_K]


def _fixed(context: int) -> dict[str, str]:
    """Policies without a setting, by name."""
    return KIVI if context <= ALL_UP_TO else {}


def _prose() -> list[Place]:
    first = [Place(SMALL, context, QUERIES, n, TEXTS) for context, n in WINDOWS.items()]
    return first + [Place(model, CONTEXT, QUERIES, OTHER_WINDOWS, TEXTS) for model in OTHERS]


def _echo() -> Place:
    return Place(SMALL, CONTEXT, ECHO_QUERIES, OTHER_WINDOWS, TEXTS, task="echo")


def _answers() -> Place:
    return Place(LARGE, ASKED, QUERIES, ASKED_FILLERS, TEXTS, task="retrieval")


def _free() -> Place:
    return Place(SMALL, ASKED, WRITTEN, OTHER_WINDOWS, TEXTS, task="agreement")


def places() -> list[Place]:
    """Where the policies are tried."""
    return [*_prose(), _echo(), _answers(), _free()]


def _development() -> Place:
    return Place(SMALL, CONTEXT, QUERIES, ABLATION_WINDOWS, CHOICE_TEXTS)


def _chosen_at(place: Place, name: str) -> int:
    """The context at which the setting for a place was chosen."""
    again = place.model == SMALL and name in COMBINED
    known = (CONTEXT, *LONG_CHOICE_WINDOWS) if again else (CONTEXT,)
    return max((one for one in known if one <= place.context), default=CONTEXT)


def _choice(model: str, context: int, name: str, loss: float) -> Choice:
    """What chooses a setting; one that is open in the same way for all losses is chosen at once."""
    knobs = _knobs(context)[name]
    same = tuple(one for one in LOSSES if knobs[one] == knobs[loss])
    windows = CHOICE_WINDOWS if model == SMALL else OTHER_CHOICE_WINDOWS
    windows = LONG_CHOICE_WINDOWS.get(context, windows)
    place = Place(model, context, QUERIES, windows, CHOICE_TEXTS)
    return Choice(knobs[loss], same, place, nearest=True)


def choices() -> list[Choice]:
    """Settings of each model for each loss, on texts that the verdicts do not see."""
    wanted = [(model, CONTEXT, name) for model in MODELS for name in _of(model, CONTEXT)]
    wanted += [(SMALL, context, name) for context in LONG_CHOICE_WINDOWS for name in COMBINED]
    return list(dict.fromkeys(_choice(*of, loss) for of in wanted for loss in LOSSES))


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The chosen policies, by what chose them."""

    chosen: Mapping[Choice, Sequence[Chosen]]

    def at(self, place: Place, name: str, loss: float) -> str:
        """The policy's text; what is a number of the context's tokens follows it."""
        context = _chosen_at(place, name)
        choice = _choice(place.model, context, name, loss)
        text = self.chosen[choice][choice.allowed.index(loss)].policy
        if name != TOP_K:
            return text
        top_k = int(text.rpartition("=")[2]) * place.context // context
        most = place.context - place.queries
        return f"unicaim:heavy={most},reserved={place.queries},top_k={top_k}"


def _ablated(settings: _Settings) -> dict[str, str]:
    """One part switched off or changed, at the threshold that was chosen."""
    text = settings.at(_development(), D1, ABLATED_AT)
    return {name: f"{text},{part}".rstrip(",") for name, part in ABLATIONS.items()}


def trials(chosen: Mapping[Choice, Sequence[Chosen]]) -> list[Trial]:
    settings = _Settings(chosen)
    found = [
        Trial(settings.at(place, name, loss), place)
        for place in places()
        for name in _of(place.model, place.context)
        for loss in LOSSES
    ]
    found += [Trial(text, place) for place in places() for text in _fixed(place.context).values()]
    found += [Trial(text, _development()) for text in _ablated(settings).values()]
    return list(dict.fromkeys(found))


def extras() -> dict:
    return {"texts": texts_of(places()[0])}


def study(
    rows: Mapping[Trial, Row], chosen: Mapping[Choice, Sequence[Chosen]], extras: dict
) -> Study:
    settings = _Settings(chosen)
    return Study(
        NAME,
        "The sixth design: ideas of five papers together, on trial",
        "All rows are searched by codes of 1 (D1) or 2 (R2) bits an element, of K as it is or with"
        " its channels balanced against q's (R2, balanced: development texts suggested it"
        " after the others had been tried on all texts); those whose estimated"
        " probability exceeds a threshold for any head of a group are read finer, and the rest"
        " counts by its estimates times the mean of V. Rows are shared by the heads of a group;"
        " *fewer* is bytes of dense FP16 attention over the policy's; a single idea's at the loss"
        " of another policy is on the line through its two settings, both in logarithms. Settings"
        f" were chosen on development texts of {CONTEXT} tokens ({CHOICE_WINDOWS} windows of"
        f" {SMALL}, {OTHER_CHOICE_WINDOWS} of others), so that KL(dense || policy) is at most the"
        " allowed loss, and serve longer contexts too, but D1's and R2's, which were chosen again"
        f" at {', '.join(map(str, LONG_CHOICE_WINDOWS))} tokens. The constants of a model are of"
        " other text, as long as the context. Windows are of the held-out texts"
        f" {', '.join(extras['texts'])}; the last {QUERIES} queries are the policy's, in every"
        " layer that sees all tokens. ± is the standard error.",
        [
            *(_less(rows, settings, place, name) for name in COMBINED for place in _prose()),
            *(_drifts(rows, settings, name) for name in (*COMBINED, TOPICK)),
            _recalls(rows, settings),
            _keeps(rows, settings, _answers(), "right answers", lambda row: row.right),
            _keeps(rows, settings, _free(), "ROUGE-L of free text", lambda row: row.rouge_l),
        ],
        [
            *(_table(rows, settings, place) for place in places()),
            _ablation_table(rows, settings),
        ],
        [Picture(NAME, "bytes against loss", lambda: _picture(rows, settings))],
    )


def _shared(row: Row) -> Estimate:
    return row.of_fp16(row.times_fewer_shared)


def _named(settings: _Settings, place: Place, loss: float) -> dict[str, str]:
    """Policies at a place by name, those without a setting last."""
    return {
        name: settings.at(place, name, loss) for name in _of(place.model, place.context)
    } | _fixed(place.context)


def _ideas(rows: Mapping[Trial, Row], settings: _Settings, place: Place) -> dict[str, list[Row]]:
    """Rows of each single idea's settings at a place, by name."""
    names = [name for name in _of(place.model, place.context) if name not in COMBINED]
    texts = {name: [settings.at(place, name, loss) for loss in LOSSES] for name in names}
    if fixed := _fixed(place.context):
        texts["KIVI"] = list(fixed.values())
    return {name: [rows[Trial(text, place)] for text in of] for name, of in texts.items()}


def _at_loss(of_idea: Sequence[Row], kl: float) -> float:
    """Times fewer bytes of an idea at a loss: its settings' line, both in logarithms."""
    losses = [math.log(max(row.kl.mean, LEAST)) for row in of_idea]
    times = [math.log(_shared(row).mean) for row in of_idea]
    if len(set(losses)) == 1:
        return math.exp(max(times))
    slope = (times[1] - times[0]) / (losses[1] - losses[0])
    # More loss never buys more bytes; where two settings say so it is noise.
    return math.exp(max(slope, 0) * (math.log(max(kl, LEAST)) - losses[0]) + times[0])


def _less(rows: Mapping[Trial, Row], settings: _Settings, place: Place, name: str) -> Claim:
    """A combination against the best single idea at the same measured loss."""
    ideas = _ideas(rows, settings, place)
    told, decided = [], []
    for loss in LOSSES:
        row = rows[Trial(settings.at(place, name, loss), place)]
        single = {idea: _at_loss(of, row.kl.mean) for idea, of in ideas.items()}
        best = max(single, key=single.__getitem__)
        told.append(f"{_shared(row):.2f}× at KL {row.kl:.4f}, there {best} {single[best]:.2f}×")
        decided.append(exceeds(_shared(row), TIMES * single[best]))
    return Claim(
        f"{name}, {place.model}, {place.context} tokens: at most half the bytes of the best single"
        " idea at the same loss",
        "; ".join(told),
        Verdict.measured(*decided),
        whose=OURS,
    )


def _drifts(rows: Mapping[Trial, Row], settings: _Settings, name: str) -> Claim:
    """Whether a setting's loss on other texts is what it was chosen for."""
    told, decided = [], []
    for place in _prose():
        for loss in LOSSES:
            row = rows[Trial(settings.at(place, name, loss), place)]
            told.append(f"{place.model} {place.context}: {row.kl:.4f}")
            decided.append(row.kl.against(loss))
    few, many = LOSSES
    return Claim(
        f"{name}: settings of development texts keep KL at {few:g}, {many:g} on held-out texts",
        ", ".join(told),
        Verdict.measured(*decided),
        whose=OURS,
    )


def _recalls(rows: Mapping[Trial, Row], settings: _Settings) -> Claim:
    """Loss in an echo over ToPick's, paired by window."""
    place, told, decided = _echo(), [], []
    for loss in LOSSES:
        topick = rows[Trial(settings.at(place, TOPICK, loss), place)]
        for name in COMBINED:
            over = rows[Trial(settings.at(place, name, loss), place)].over(topick)
            told.append(f"{name} at {loss:g}: {over:+.4f} nats over ToPick")
            decided.append(over.against(loss))
    return Claim(
        "an echo of 128 tokens from far back costs no more than ToPick's and the allowed loss",
        "; ".join(told),
        Verdict.measured(*decided),
        whose=OURS,
    )


def _keeps(
    rows: Mapping[Trial, Row],
    settings: _Settings,
    place: Place,
    what: str,
    figure: Callable[[Row], Estimate],
) -> Claim:
    """What ToPick keeps: a share that must not be lower by more than LOST, errors taken as
    independent."""
    told, decided = [], []
    for loss in LOSSES:
        topick = figure(rows[Trial(settings.at(place, TOPICK, loss), place)])
        told.append(f"ToPick {topick:.2f}")
        for name in COMBINED:
            found = figure(rows[Trial(settings.at(place, name, loss), place)])
            error = math.hypot(found.error, topick.error)
            lost = Estimate(topick.mean - found.mean, error, found.number)
            told.append(f"{name} {found:.2f}")
            decided.append(lost.against(LOST))
    return Claim(
        f"{what} of {place.model} at {LOSSES[0]:g}, {LOSSES[1]:g}: at most {LOST:g} below ToPick's",
        ", ".join(told),
        Verdict.measured(*decided),
        whose=OURS,
    )


_COLUMNS = ("idea", "setting", "KL", "Δ nats", "fewer, shared")
_TASKS: dict[str, tuple[str, str, Callable[[Row], str]]] = {
    "prose": ("", "same", lambda row: f"{row.same:.1%}"),
    "echo": ("Echo: ", "same", lambda row: f"{row.same:.1%}"),
    "retrieval": ("Answers: ", "right", lambda row: f"{row.right:.0%}"),
    "agreement": ("Free text: ", "ROUGE-L", lambda row: f"{row.rouge_l:.2f}"),
}
"""What a task's table begins with, and the name and cell of its last column."""


def _cells(name: str, row: Row, *last: str) -> list[str]:
    told = [f"`{row.policy}`", f"{row.kl:.4f}", f"{row.delta:+.4f}", f"{_shared(row):.2f}"]
    told = [name, *told, *last]
    return ["" if cell.startswith(("nan", "+nan")) else cell for cell in told]


def _table(rows: Mapping[Trial, Row], settings: _Settings, place: Place) -> Table:
    listed = {
        f"{name}, {loss:g}" if name not in KIVI else name: rows[Trial(text, place)]
        for loss in LOSSES
        for name, text in _named(settings, place, loss).items()
    }
    begins, last, cell = _TASKS[place.task]
    return Table(
        f"{begins}{place.model}, {place.context} tokens, {place.windows} windows",
        (*_COLUMNS, last),
        [_cells(name, row, cell(row)) for name, row in listed.items()],
    )


def _ablation_table(rows: Mapping[Trial, Row], settings: _Settings) -> Table:
    place = _development()
    return Table(
        f"What the parts are worth: D1 at its threshold for {ABLATED_AT:g}, {place.windows} windows"
        " of development texts",
        _COLUMNS,
        [_cells(name, rows[Trial(text, place)]) for name, text in _ablated(settings).items()],
    )


def _picture(rows: Mapping[Trial, Row], settings: _Settings) -> "Figure":
    """Bytes of dense attention over the policy's, rows shared by a group, against the loss."""
    drawn = figure(8.4, 4.2)
    axes = drawn.add_subplot()
    places = [place for place in _prose() if place.model == SMALL]
    for colour, name in enumerate((*COMBINED, *_ideas(rows, settings, places[0]))):
        for marker, place in zip("os^Dv", places, strict=False):
            of = _ideas(rows, settings, place).get(name, [])
            if name in COMBINED:
                of = [rows[Trial(settings.at(place, name, loss), place)] for loss in LOSSES]
            if not of:
                continue
            axes.plot(
                [row.kl.mean for row in of],
                [_shared(row).mean for row in of],
                f"{marker}-",
                color=f"C{colour}",
                label=f"{name}, {place.context} tokens",
                markersize=4,
            )
    axes.loglog()
    for axis, at in ((axes.xaxis, (0.002, 0.005, 0.01, 0.02, 0.04)), (axes.yaxis, (2, 4, 8, 16))):
        axis.set_ticks(at, [f"{value:g}" for value in at])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("loss on held-out texts: KL, nats a token")
    axes.set_ylabel("times fewer bytes than dense FP16")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return drawn
