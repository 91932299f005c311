"""Claims of LAD from rows of policies, and from the paper's own figures (III, IV-C, Table I)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from golden.algorithms.lad.piecewise_exp import PAPER_BOUNDS, PiecewiseExp
from golden.evaluation.row import Row
from golden.studies.study import CLOSE, Claim, Verdict

D = 64
"""Elements of a head of the models measured."""
ROUGE = {
    "OPT 2.7B": (
        *(95.1, 93.8, 94.8, 94.9),
        *(98.3, 97.9, 98.2, 98.2),
        *(97.4, 96.5, 97.2, 97.2),
    ),
    "OPT 6.7B": (
        *(96.7, 95.7, 96.5, 96.5),
        *(98.1, 97.6, 98.0, 98.0),
        *(97.2, 96.2, 96.9, 97.0),
    ),
    "LLaMA2 7B": (
        *(95.9, 94.4, 95.4, 95.5),
        *(97.2, 96.4, 96.9, 97.0),
        *(96.0, 94.5, 95.5, 95.8),
    ),
    "LLaMA2 13B": (
        *(95.8, 94.0, 95.3, 95.6),
        *(97.2, 96.2, 97.0, 97.1),
        *(95.2, 93.4, 94.6, 95.0),
    ),
}
"""LAD's ROUGE-1, -2, -L and -Lsum on three data sets, in percent (Table I)."""
AVERAGES = (96.6, 97.0, 95.9, 95.5)
"""What the text has of each model's (V-B)."""
ROUGE_1 = 97
"""The average ROUGE-1 in percent, in whole numbers (abstract)."""
EXAMPLE = {-5.34: 2, -7.95: 1}
"""Scores less the maximum of two positions of Fig. 3, and their intervals (III-E)."""


class Compared(NamedTuple):
    """Rows of a model.

    By centres, the paper's identification; by one that misses nothing; and with H2O.
    """

    centres: Row
    bounds: Row
    h2o: Row


def measured_claims(found: Mapping[str, Compared]) -> list[Claim]:
    """Claims on rows by model."""
    return [loss_claim(found), source_claim(found), update_claim(found)]


def loss_claim(found: Mapping[str, Compared]) -> Claim:
    """Table II's perplexities beside H2O's."""
    over = {model: pair.centres.over(pair.h2o) for model, pair in found.items()}
    return Claim(
        "a lower perplexity than H2O's (Table II)",
        "; ".join(f"{model}: {less:+.4f} nats" for model, less in over.items()),
        Verdict.measured(*(less.against(0) for less in over.values())),
        "loss with eight intervals less H2O's with a fifth of the tokens, paired by window. QServe,"
        " a cache of 4 bits, was not run on these windows, and OpenBookQA's and LAMBADA's tests are"
        " not among the texts",
    )


def source_claim(found: Mapping[str, Compared]) -> Claim:
    """Whether wrong intervals cost more than the lines do."""
    costs = {
        model: (pair.centres.kl.mean - pair.bounds.kl.mean, pair.bounds.kl.mean)
        for model, pair in found.items()
    }
    return Claim(
        "the major source of error are positions with a wrong interval, not the lines (III-F)",
        "; ".join(
            f"{model}: a KL of {wrong:.5f} nats by wrong intervals, {lines:.5f} by the lines"
            for model, (wrong, lines) in costs.items()
        ),
        Verdict.of(*(wrong > lines for wrong, lines in costs.values())),
        "eight intervals; what remains without any wrong interval is the lines' (`bounds`). Where"
        " nearly every key is its own centre, few intervals are wrong",
    )


def update_share(active: float, updated: float, d: int) -> float:
    """Share of multiplications that update A, |U| d², in equation 4's, (d + 4 |J|) d."""
    return updated * d / (d + 4 * active)


def update_claim(found: Mapping[str, Compared]) -> Claim:
    """Equation 6 beside equation 4, at the models' d."""
    shares = {
        model: update_share(
            pair.centres.figures["active share"].mean * pair.centres.context,
            pair.centres.figures["updates"].mean,
            D,
        )
        for model, pair in found.items()
    }
    return Claim(
        "few modes change, so that updating the caches costs few computations (III-C)",
        "; ".join(
            f"{model}: {pair.centres.figures['updates'].mean:.1f} of {pair.centres.context}"
            f" positions a step, {shares[model]:.1%} of equation 4's multiplications"
            for model, pair in found.items()
        ),
        Verdict.of(*(share <= CLOSE for share in shares.values())),
        f"few is at most a tenth of equation 4's, (d + 4 |J|) d; d is {D}, and the share nearly"
        " doubles with 128. The position that leaves the newest 16 is one of those that change",
    )


def printed_claims() -> list[Claim]:
    """Claims that follow from the paper's text alone."""
    return [rouge_claim(), size_claim(), example_claim(), words_claim()]


def rouge_claim(
    table: Mapping[str, Sequence[float]] = ROUGE, averages: Sequence[float] = AVERAGES
) -> Claim:
    """Averages of the text beside the table's, to the digits that are printed."""
    means = [float(np.mean(values)) for values in table.values()]
    first = float(np.mean([value for values in table.values() for value in values[::4]]))
    right = [
        abs(ours - theirs) <= 0.05 + 1e-9 for ours, theirs in zip(means, averages, strict=True)
    ]
    return Claim(
        f"on average {', '.join(map(str, averages))} % of ROUGE for the four models (V-B), and"
        f" {ROUGE_1} % of ROUGE-1 (abstract)",
        f"means of Table I: {', '.join(f'{mean:.2f}' for mean in means)} %; of its ROUGE-1:"
        f" {first:.2f} %",
        Verdict.HOLDS if all(right) and abs(first - ROUGE_1) <= 0.5 else Verdict.CONTRADICTS,
        "the paper's own figures, of all four metrics and three data sets. Here only ROUGE-L was"
        " kept of the texts that models wrote",
    )


def cache_numbers(d: int) -> int:
    """Numbers of A to F."""
    return d * d + d + d + d + 1 + 1


def size_claim(d: int = 128) -> Claim:
    """Section III-B: what caches and equation 4 count to."""
    numbers = cache_numbers(d)
    smaller = next(n for n in range(2 * d * d) if 2 * n * d > numbers)
    share = numbers / (2 * 1024 * d)
    return Claim(
        "the caches have d² + 3 d + 2 numbers: at d = 128 fewer than K and V for n > 65, less than"
        " 6.5 % of them for n > 1024 (III-B)",
        f"fewer from n = {smaller} on, {share:.1%} at 1024",
        Verdict.COUNTS
        if numbers == d * d + 3 * d + 2 and smaller == 66 and share < 0.065
        else Verdict.NOT,
        "in the format of K and V. In FP32, which they need here, they are twice as large; and both"
        " they and G are written as well as read",
    )


def example_claim(example: Mapping[float, int] = EXAMPLE) -> Claim:
    """Section III-E's example in the project's table of five intervals."""
    found = PiecewiseExp(PAPER_BOUNDS).interval(np.array(list(example)))
    return Claim(
        "in the example, "
        + ", ".join(f"{x} is in interval {i}" for x, i in example.items())
        + " (III-E)",
        "intervals " + ", ".join(map(str, found)),
        Verdict.HOLDS if found.tolist() == list(example.values()) else Verdict.CONTRADICTS,
        "by the bounds of Fig. 2, intervals counted from 0, the farthest. The figure's other"
        " numbers are in a picture",
    )


def words_claim(intervals: int = len(PAPER_BOUNDS) + 1) -> Claim:
    """Section IV-C's tensor G beside what section IV-B's modules read."""
    given, needed = 4 * 16, 3 * 16 + 4 + 12 * intervals
    return Claim(
        "all small data of a position are four words of 16 bits in G: norm, dnorm, cid, mode and"
        " a counter (IV-C)",
        f"{given} bits; MD and III-E need the counters of all {intervals} intervals: {needed} bits",
        Verdict.HOLDS if needed <= given else Verdict.CONTRADICTS,
        "MD loads an active position's counters of every interval (IV-B(4)); G has the mode's only,"
        " and the stages' reads have no others. Here they are further rows, read and written for"
        " active positions: *counters* in the table",
    )
