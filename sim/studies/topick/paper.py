"""Claims of Token-Picker that follow from models' sizes, from its other figures and kept data."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from golden.evaluation.row import Row
from golden.studies import equal_quality, results
from golden.studies.study import CLOSE, Claim, Verdict, close
from golden.studies.trials import Trial
from sim.core.tools import ROOT, require_checkout
from sim.studies.lad.machine import MODELS as LARGER
from sim.studies.lad.machine import Model

RESULTS = ROOT / "docs" / "results"
MODELS = {
    "GPT2-Large": Model(36, 1280, 20, 5120, 2, 50257, 1024),
    "GPT2-XL": Model(48, 1600, 25, 6400, 2, 50257, 1024),
    "OPT 1.3B": Model(24, 2048, 32, 8192, 2, 50272, 2048),
    "OPT 13B": Model(40, 5120, 40, 20480, 2, 50272, 2048),
    **LARGER,
}
"""The paper's eight models (5.1.1), as their authors publish them."""
CONTEXT = 2048
"""Tokens at most in the paper's hardware evaluation (5.1.3)."""
BATCHES, SHARES = (1, 64), (7.8, 84.3)
"""Requests that share the weights, and percent of a step's traffic that is of K and V (2.2.1)."""

CHANNELS, CHANNEL_BITS, CHANNEL_CLOCK = 8, 128, 2e9
LANES, D, BITS, CHUNK_BITS, CLOCK = 16, 64, 12, 4, 500e6
BUFFER_BYTES = 192 * 1024
"""Of K, and of V (Table 1)."""

POWER = {
    "PE lane x 16": 426.76,
    "mux network": 3.13,
    "margin generator": 3.78,
    "DAG": 2.49,
    "on-chip buffer": 1053.32,
}
TOTAL = 1492.78
"""mW of the whole, and of its parts (Table 2)."""
PEC, SCOREBOARD, RPDU = 0.73, 4.69, 0.17
"""mW in a lane."""
OVERHEADS = (1.3, 5.6)
"""Percent of the baseline's power, of estimation and of scores out of order (5.2.3)."""


@dataclasses.dataclass(frozen=True)
class Step:
    """Times less than the baseline in a configuration (5.2), and times its chip's power."""

    name: str
    bytes: float
    time: float
    energy: float
    power: float

    @property
    def memory(self) -> float:
        """Share that the memory has in the baseline's energy, if its energy follows the bytes.

        And the chip's its time: ``1 / energy = share / bytes + (1 - share) power / time``.
        """
        chip = self.power / self.time
        return (chip - 1 / self.energy) / (chip - 1 / self.bytes)


STEPS = (
    Step("estimation", 2 / (1 + 1 / 12.1), 1.73, 1.78, 1.013),
    Step("ToPick", 2.57, 2.28, 2.41, 1.069),
    Step("ToPick-0.3", 2.79, 2.48, 2.63, 1.069),
)
"""Bytes of estimation alone are those with all of K read."""
FURTHER = {"speed": (1.73, 1.32, 2.28), "energy": (1.78, 1.35, 2.41)}
"""Two steps and what they come to (5.2.2)."""

SPATTEN = 1.64
"""Times less than SpAtten reads without fine-tuning, at +0.5 perplexity (Fig. 9)."""
LOSS = float(np.log1p(0.5 / 17))
"""+0.5 of a perplexity of 17, in nats a token."""


def paper_claims() -> list[Claim]:
    return [
        traffic_claim(),
        lanes_claim(),
        buffer_claim(),
        power_claim(),
        steps_claim(),
        memory_claim(),
        spatten_claim(*kept_spatten()),
        untested_claim(),
    ]


def share(model: Model, batch: int, n: int) -> float:
    """Percent of a step's traffic that is of K and V, with weights read once for the batch."""
    cache = 2 * model.layers * model.size * n * batch
    return 100 * cache / (cache + model.products)


def traffic_claim() -> Claim:
    one, many = SHARES
    follows = 100 / (1 + (100 / one - 1) / BATCHES[1])
    ours = {
        name: [share(model, batch, model.longest) for batch in BATCHES]
        for name, model in MODELS.items()
    }
    first, last = zip(*ours.values(), strict=True)
    near = min(ours, key=lambda name: abs(ours[name][0] - one))
    return Claim(
        f"K and V are {one} % of a step's traffic with a batch of {BATCHES[0]}, {many} % with"
        f" {BATCHES[1]} (2.2.1, Fig. 2)",
        f"{one} % becomes {follows:.1f} %; the eight models have {min(first):.1f} to"
        f" {max(first):.1f} % and {min(last):.1f} to {max(last):.1f} %, on average"
        f" {np.mean(first):.1f} and {np.mean(last):.1f} %, {near} {ours[near][0]:.1f} and"
        f" {ours[near][1]:.1f} %",
        traffic_verdict(abs(follows - many) <= 0.2, float(np.mean(first)), ours[near][0]),
        "each model's longest context, weights read once for the batch, all in one format. The"
        " text does not say of which models the shares are: not their mean, but of one like"
        f" {near} they would be right",
    )


def traffic_verdict(agree: bool, mean: float, near: float) -> Verdict:
    """Of both shares if they `agree`, and our mean share and nearest one with the first batch."""
    if not agree:
        return Verdict.CONTRADICTS
    if close(mean, SHARES[0]):
        return Verdict.COUNTS
    return Verdict.ASSUMED if close(near, SHARES[0]) else Verdict.NOT


def lanes_claim() -> Claim:
    takes = LANES * D * CHUNK_BITS / 8 * CLOCK
    gives = CHANNELS * CHANNEL_BITS / 8 * CHANNEL_CLOCK
    return Claim(
        f"{LANES} lanes take what the memory delivers, a chunk a cycle each (5.1.2, Table 1)",
        f"{takes / 1e9:.0f} GB/s of {gives / 1e9:.0f} GB/s",
        Verdict.HOLDS if takes == gives else Verdict.CONTRADICTS,
        f"by the paper's sizes: {D} elements of {CHUNK_BITS} bits at {CLOCK / 1e6:.0f} MHz,"
        f" {CHANNELS} channels of {CHANNEL_BITS} bits at {CHANNEL_CLOCK / 1e9:.0f} GHz. Whether"
        " they are ever all busy is the row on 16 lanes",
    )


def buffer_claim() -> Claim:
    """A head's rows of K at the context of the paper's evaluation, in each model."""
    need = {
        name: min(model.longest, CONTEXT) * model.d * BITS // 8 for name, model in MODELS.items()
    }
    fits = [name for name in need if need[name] <= BUFFER_BYTES]
    return Claim(
        "in the prompt phase all K and V are in the buffers, 192 KB for each (section 4, Table 1)",
        f"a head's rows fit for {', '.join(fits)}, {len(fits)} of {len(need)} models; the others"
        f" need up to {max(need.values()) // 1024} KB",
        Verdict.of(*(name in fits for name in need)),
        f"one head at a time, {BITS} bits, 1024 tokens of GPT2 and {CONTEXT} of the others:"
        f" {BUFFER_BYTES // 1024} KB are {CONTEXT} rows of {D} elements, and heads of the larger"
        " models have up to 128",
    )


def power_claim() -> Claim:
    estimation = POWER["margin generator"] + POWER["DAG"] + LANES * PEC
    order = LANES * (SCOREBOARD + RPDU)
    base = TOTAL - estimation - order
    found = [100 * x / base for x in (estimation, order)]
    agree = [round(x, 1) == theirs for x, theirs in zip(found, OVERHEADS, strict=True)]
    rest = TOTAL - sum(POWER.values())
    return Claim(
        f"estimation takes {OVERHEADS[0]} % more power, scores out of order another"
        f" {OVERHEADS[1]} % (5.2.3)",
        f"{found[0]:.2f} and {found[1]:.2f} %",
        Verdict.HOLDS if all(agree) else Verdict.CONTRADICTS,
        f"by Table 2: margin generator, DAG and PEC; scoreboard and RPDU. Its parts miss its total"
        f" by {rest:.2f} mW. Milliwatts themselves need the paper's library",
    )


def steps_claim() -> Claim:
    return Claim(
        "estimation and scores out of order come to the whole, in speed and in energy (5.2.2)",
        "; ".join(
            f"{name}: {a} · {b} = {a * b:.2f}, the paper's {both}"
            for name, (a, b, both) in FURTHER.items()
        ),
        Verdict.HOLDS
        if all(abs(a * b / both - 1) < 0.01 for a, b, both in FURTHER.values())
        else Verdict.CONTRADICTS,
        "by the paper's figures alone, within 1 %",
    )


def memory_claim(steps: Sequence[Step] = STEPS) -> Claim:
    """Each step's energy must leave the memory a share between a half and all."""
    shares = [step.memory for step in steps]
    bounded = all(step.time <= step.bytes for step in steps)
    base = TOTAL / steps[-1].power
    bits = CHANNELS * CHANNEL_BITS * CHANNEL_CLOCK
    picojoules = [1e12 * 1e-3 * base * x / (1 - x) / bits for x in shares]
    return Claim(
        "a baseline bounded by memory, whose energy is primarily off-chip: bytes, speed, power and"
        " energy agree (5.2.2, 5.2.3)",
        "the memory has "
        + ", ".join(
            f"{share:.0%} by {step.name}" for share, step in zip(shares, steps, strict=True)
        ),
        Verdict.HOLDS
        if bounded and all(0.5 < share < 1 for share in shares)
        else Verdict.CONTRADICTS,
        "if its energy follows the bytes and the chip's its time and power. With Table 2's power"
        f" and the full bandwidth that is {min(picojoules):.1f} to {max(picojoules):.1f} pJ a bit;"
        " a speed is at most the bytes'",
    )


def kept_spatten() -> tuple[Row, list[Row]]:
    """SpAtten's row whose loss is nearest to +0.5 perplexity, and all of ToPick's."""
    require_checkout("sim pruning -o")
    rows, chosen = results.kept_runs(RESULTS, equal_quality.NAME)
    found: dict[str, list[Row]] = {"SpAtten, all values": [], "ToPick": []}
    for equal in equal_quality.equals_of(chosen):
        if equal.name in found and equal.reached:
            found[equal.name].append(rows[Trial(equal.policy, equal_quality.place())])
    spatten, topick = found.values()
    return min(spatten, key=lambda row: abs(np.log(row.kl.mean / LOSS))), topick


def spatten_claim(spatten: Row, topick: Sequence[Row]) -> Claim:
    """ToPick's bytes at SpAtten's loss, between its own settings in the logarithm of the loss."""
    by_loss = sorted(topick, key=lambda row: row.kl.mean)
    x, y = zip(*((np.log(row.kl.mean), row.times_fewer.mean) for row in by_loss), strict=True)
    ours, theirs = float(np.interp(np.log(spatten.kl.mean), x, y)), spatten.times_fewer.mean
    ratio = ours / theirs
    return Claim(
        f"{SPATTEN}× fewer bytes than SpAtten, both without fine-tuning, at +0.5 perplexity"
        " (Fig. 9)",
        f"{ratio:.2f}×: {ours:.2f}× fewer than all rows at {spatten.row_bits} bits where SpAtten"
        f" has {theirs:.2f}×, at a KL of {spatten.kl:.3f}",
        Verdict.of(ratio > 1, ratio > (1 - CLOSE) * SPATTEN),
        f"{spatten.model}, {spatten.context} tokens, query heads alone"
        f" ([settings at equal loss](equal_quality.md)): SpAtten's setting whose loss is nearest to"
        f" {LOSS:.3f} nats, ToPick between its own. Half of the tokens that SpAtten keeps are the"
        " newest, without which it fails untrained, and it prunes no heads",
    )


def untested_claim() -> Claim:
    return Claim(
        "perplexities of models of 0.8 to 13 billion parameters (Fig. 8), SpAtten's after"
        " fine-tuning (Fig. 9), mW in a library of 65 nm (Table 2)",
        "nothing",
        Verdict.UNKNOWN,
        "such models on all of Wikitext-2, and their fine-tuning, take a GPU; the library is not"
        " public. Areas are on [a page of their own](topick_area.md)",
    )
