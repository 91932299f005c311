"""The page on what counting costs, beside multiplication, and on K-Means, and its JSON."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from golden.studies.study import Claim, Study, Table, Verdict
from sim.studies.kllm.errors import LayerErrors
from sim.studies.kllm.measured import Measured
from sim.studies.kllm.noise import LayerNoise, LayerOutliers, Noise, ScoreNoise
from sim.studies.kllm.noise_claims import noise_claims, noise_tables

NAME = "kllm_counting"

PAPER_GAIN = 20.98
"""Energy efficiency of index-based products over FP16 arrays (Fig. 12, step C)."""


@dataclasses.dataclass(frozen=True)
class Results:
    """Everything measured, as the JSON holds it.

    library, source
        Name of the cell library; a sentence on the trace.
    """

    measured: Sequence[Measured]
    errors: Sequence[LayerErrors]
    noise: Noise
    library: str
    source: str

    @property
    def counting(self) -> dict[int, Measured]:
        """By positions of a step, counters and reduction together."""
        parts = [m for m in self.measured if m.name.startswith("counting: ")]
        return {
            positions: together([m for m in parts if m.positions == positions])
            for positions in sorted({m.positions for m in parts})
        }

    @property
    def others(self) -> dict[str, Measured]:
        """Multiplication, by name; its share of a position hardly depends on the step."""
        return {m.name: m for m in self.measured if not m.name.startswith("counting: ")}


def together(parts: Sequence[Measured]) -> Measured:
    """Parts of one design as one: areas, registers and energies added, the slowest delays."""
    sums = ("smallest", "clocked", "registers", "settled", "glitches", "clock", "leakage")
    added = {name: round(sum(getattr(part, name) for part in parts), 1) for name in sums}
    return dataclasses.replace(
        parts[0],
        name="counting",
        delay=max(part.delay for part in parts),
        clocked_delay=max(part.clocked_delay for part in parts),
        **added,
    )


def study(r: Results) -> Study:
    counting = list(r.counting.values())
    best = counting[-1]
    small, wide, plain = r.others.values()
    area = plain.clocked / best.clocked
    # Energies without glitches and with them.
    plain_fj, best_fj, small_fj = ((m.quiet, m.energy) for m in (plain, best, small))
    gains = [a / b for a, b in zip(plain_fj, best_fj, strict=True)]
    losses = [a / b for a, b in zip(best_fj, small_fj, strict=True)]
    claims = [
        Claim(
            "index units have far higher area efficiency than FP16 MACs (section IV-A, said of the"
            " Concat units)",
            f"{best.clocked:.0f} µm² a position with {best.positions} positions a step,"
            f" {plain.clocked:.0f} for an FP16 product and sum: {area:.2f} of it",
            Verdict.of(area > 1),
            "both mapped for 2 ns; FP16 without look-ups and accumulator. Counters have a part that"
            " a step's positions share, of which the paper's has 512 (docs/kllm.md)",
        ),
        Claim(
            f"index-based products raise energy efficiency {PAPER_GAIN} times (Fig. 12, C)",
            f"{gains[0]:.1f} times without glitches, {gains[1]:.1f} times with them",
            Verdict.of(min(gains) > PAPER_GAIN, max(gains) > 1),
            "of the dense sums alone; the paper's is of the whole accelerator",
        ),
        Claim(
            "counting is how to multiply by K-Means indices (the premise of section III-B)",
            f"with centroids of 8 bits a multiplication takes {small.clocked:.0f} µm², of 12 bits"
            f" {wide.clocked:.0f}: {best.clocked / small.clocked:.2f} and"
            f" {best.clocked / wide.clocked:.2f} times less than counting; 8 bits take"
            f" {losses[0]:.2f} times less energy without glitches, {losses[1]:.2f} times with them",
            Verdict.of(best.clocked < small.clocked, losses[0] < 1, losses[1] < 1),
            "4-bit indices stand for numbers that 8 bits hold well enough, see the errors below",
        ),
    ]
    return Study(
        NAME,
        "KLLM: what counting is worth, and K-Means on real layers",
        f"Dense sums of a column, W4A4, {r.library}. {r.source} `python -m sim counting` measures"
        " all of this: areas and delays by this project's mapping, energies by the toggles of the"
        " netlist mapped for 2 ns on K-Means indices of real layers, whose outputs are compared"
        " with the bit-exact models; and errors of K-Means and of uniform levels on the same"
        " layers, which three layers of a small model show and no perplexity.",
        [*claims, *noise_claims(r.noise)],
        [areas(r), energy_table(r), errors_table(r), *noise_tables(r.noise)],
        data=dataclasses.asdict(r),
    )


def rows_of(r: Results) -> list[tuple[str, Measured]]:
    rows = []
    for positions in r.counting:
        parts = [m for m in r.measured if m.positions == positions and m.name.startswith("count")]
        rows += [(f"{m.name}, {positions} positions", m) for m in parts]
        rows.append((f"**counting, {positions} positions**", together(parts)))
    return rows + [(f"**{name}**, {m.positions} positions", m) for name, m in r.others.items()]


def areas(r: Results) -> Table:
    return Table.of(
        "Area a position, µm², and slowest path, ps: smallest, and mapped for 2 ns. *Positions*"
        " are processed in a step. Counting has a part that is the same for any step, 256 bins"
        " with their second copy and 32 multiply-accumulates; the others grow with the step."
        " Included: the weights' look-up in fixed-point lanes. Not included: activations' look-up,"
        " once for all lanes; look-ups and accumulators of FP16; sparse path and scales, which are"
        " the same. Without a delay target large nets have no buffers, so such delays are long",
        rows_of(r),
        ("", "{0[0]}"),
        ("smallest", "{0[1].smallest:.0f}"),
        ("ps", "{0[1].delay:.0f}"),
        ("for 2 ns", "{0[1].clocked:.0f}"),
        ("ps", "{0[1].clocked_delay:.0f}"),
        ("flip-flops", "{0[1].registers}"),
    )


def energy_table(r: Results) -> Table:
    return Table.of(
        "Energy a position, fJ at 1.1 V. *Settled*: toggles between values at the ends of cycles."
        " *Glitches*: what further toggles cost, gates having the library's delays at their loads"
        " and swallowing shorter pulses. A toggle costs half of C V² of the pins that a net drives,"
        " and the internal energy of its driver at 40 ps, the mean over edges and conditions."
        " *Clock*: clock pins of flip-flops, every cycle. *Leakage*: in 2 ns. Left out: wires, the"
        " clock tree, clock gating, and gates whose inputs toggle while their output stays",
        rows_of(r),
        ("", "{0[0]}"),
        ("settled", "{0[1].settled:.0f}"),
        ("glitches", "{0[1].glitches:.0f}"),
        ("clock", "{0[1].clock:.0f}"),
        ("leakage", "{0[1].leakage:.0f}"),
        ("without glitches", "{0[1].quiet:.0f}"),
        ("all", "{0[1].energy:.0f}"),
    )


def errors_table(r: Results) -> Table:
    widths = list(r.errors[0].centroids)

    def percent(name: str, width: int) -> Callable[[LayerErrors], str]:
        return lambda e: f"{100 * getattr(e, name)[width]:.2f}"

    return Table.of(
        "Errors of whole products, percent of their size (root of the sums of squares), from the"
        " products of the trace's own vectors and matrices; and how far the multiplying lane is"
        " from the counting one. Both by the bit-exact models, 1 % outliers",
        r.errors,
        ("layer", "{.layer}"),
        ("counting", lambda e: f"{100 * e.counting:.2f}"),
        *((f"{width} bits", percent("centroids", width)) for width in widths),
        *((f"{width} bits, from counting", percent("apart", width)) for width in widths),
    )


def read(path: Path) -> Results:
    """What is in the JSON."""
    kept = json.loads(path.read_text())
    errors = [
        LayerErrors(
            e["layer"],
            e["counting"],
            *({int(w): x for w, x in e[name].items()} for name in ("centroids", "apart")),
        )
        for e in kept["errors"]
    ]
    measured = [Measured(**m) for m in kept["measured"]]
    noise = Noise(
        [LayerNoise(**of) for of in kept["noise"]["layers"]],
        [LayerOutliers(**of) for of in kept["noise"]["outliers"]],
        [ScoreNoise(**of) for of in kept["noise"]["scores"]],
    )
    return Results(measured, errors, noise, kept["library"], kept["source"])
