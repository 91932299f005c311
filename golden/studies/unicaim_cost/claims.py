"""UniCAIM's claims on area, energy and delay beside the cost model."""

import dataclasses
import math
from fractions import Fraction

import numpy as np

from golden.algorithms.kllm.cost.models import MODELS
from golden.algorithms.unicaim.cost import digital_search_steps
from golden.algorithms.unicaim.cost.devices import CELL, EVICTION, PRECHARGE, TOP_K
from golden.algorithms.unicaim.cost.published import (
    AEDP,
    AREA_BOTH,
    AREA_STATIC,
    BASELINES,
    ENERGY,
    SPEEDUP,
    Rounded,
    multilevel_gain,
    quotient_range,
)
from golden.studies.study import Claim, Verdict, close
from golden.studies.unicaim_cost.sweeps import (
    INPUTS,
    OUTPUTS,
    Setting,
    conventional,
    cost,
    generated_for,
    lengths,
)
from golden.unicaim.cells import score_limit
from golden.unicaim.digital_array import search

AEDP_RANGE = 8.2, 831
"""Range that abstract and section I state."""
CONTEXT = 4096
"""Tokens of Llama-2-7B, as its authors publish it."""


def claims(setting: Setting) -> list[Claim]:
    """All claims; their verdicts are computed, but for those that lack a length or a baseline."""
    return [
        _multilevel(setting),
        _overhead(setting),
        _area(setting),
        _growth(setting),
        _fixed(setting),
        _cache(),
        _shortest_energy(setting),
        _longest(setting, "energy", ENERGY[1], "Fig. 11"),
        _conventional_energy(setting),
        _shortest_delay(setting),
        _longest(setting, "delay", SPEEDUP[1], "Fig. 12b"),
        _conventional_delay(setting),
        _searches(setting),
        _pruned(setting),
        _range(),
        _baselines(),
    ]


def ratio(setting: Setting, quantity: str, name: str = "both", *point: int) -> float:
    """Dense over the pruning `name`."""
    dense, pruned = (getattr(cost(setting, which, *point), quantity) for which in ("dense", name))
    return dense / pruned


def _multilevel(setting: Setting) -> Claim:
    low, high = multilevel_gain()
    one, three = cost(setting.one_bit_cells(), "both"), cost(setting, "both")
    gain = Fraction(one.devices, three.devices)
    return Claim(
        f"3-bit cells reduce the AEDP {float(low):.2f} to {float(high):.2f} times beside 1-bit"
        " cells (the range that the six pairs of Table II share)",
        f"{float(gain):g} times fewer devices",
        Verdict.COUNTS if low <= gain <= high else Verdict.NOT,
        "one cell on one sense line takes the place of three on three lines. So the paper's gain"
        " is the area alone: with the energy and the delay of the conversions of three lines,"
        f" which it seems to leave out, the AEDP falls {one.aedp / three.aedp:.0f} times",
    )


def _overhead(setting: Setting) -> Claim:
    cells = CELL.total * setting.shape.d
    lines = {
        "the top-k circuit on top of the eviction's": (
            PRECHARGE.total + EVICTION.total,
            TOP_K.total,
        ),
        "both on top of cells alone": (0, (PRECHARGE + TOP_K + EVICTION).total),
    }
    parts = {
        what: Fraction(cells + before + added, cells + before)
        for what, (before, added) in lines.items()
    }
    low, high = quotient_range(AREA_STATIC, AREA_BOTH)
    holds = all(low <= part <= high for part in parts.values())
    # Devices of a line for which 15 itself, not rounded, would be printed as the paper's figure.
    exact = Fraction(AREA_STATIC.text)
    least, most = (cells * (exact / value - 1) for value in (AREA_BOTH.high, AREA_BOTH.low))
    return Claim(
        f"dynamic pruning costs little area: {AREA_STATIC.text}× fewer devices become"
        f" {AREA_BOTH.text}× (Fig. 10b), {AREA_STATIC.value / AREA_BOTH.value - 1:.1%} more"
        " devices",
        "; ".join(
            f"{what}: {float(part - 1):.1%} more, {AREA_STATIC.value / float(part):.1f}×"
            for what, part in parts.items()
        ),
        Verdict.CONSTANTS if holds else Verdict.NOT,
        f"a line of {setting.shape.d} cells has {cells} devices and a periphery of"
        f" {(PRECHARGE + TOP_K + EVICTION).total}, of which the text leaves the buffer, S1 and"
        " FE-INV open (4, 1 and 2 assumed) and what the ratios count. With"
        f" {AREA_STATIC.text} exact, {AREA_BOTH.text} are {math.ceil(least)} to"
        f" {math.floor(most)}. The check is weak: as {AREA_STATIC.text} is rounded, up to"
        f" {float(high - 1):.1%} more devices would agree with it",
    )


def _area(setting: Setting) -> Claim:
    rows = setting.shape.rows
    same = AREA_STATIC.value * rows
    return Claim(
        f"{AREA_STATIC.text}× fewer devices by static pruning (Fig. 10b)",
        f"{ratio(setting, 'devices', 'static', setting.long_prompt, OUTPUTS[-1]):.1f}× at"
        f" {setting.long_prompt} + {OUTPUTS[-1]} tokens",
        Verdict.CIRCULAR,
        f"the ratio is tokens over {rows} rows. The lengths are in the picture only:"
        f" {AREA_STATIC.text}× are {same:.0f} tokens, or {same / 3:.0f} if the dense array has"
        " 1-bit cells",
    )


def _growth(setting: Setting) -> Claim:
    def of(name: str, swept: str) -> list[float]:
        return [ratio(setting, "devices", name, *point) for point in lengths(setting)[swept]]

    static = {swept: of("static", swept) for swept in ("input", "output")}
    dynamic = of("dynamic", "input") + of("dynamic", "output")
    rising = all(
        a < b for values in static.values() for a, b in zip(values, values[1:], strict=False)
    )
    text = "; ".join(f"{v[0]:.2f} to {v[-1]:.1f}× by the {s}" for s, v in static.items())
    return Claim(
        "static pruning is the key technique for area, the more the longer input or output"
        " (Fig. 10)",
        f"{text}; dynamic pruning alone at most {max(dynamic):.2f}×",
        Verdict.COUNTS if rising and max(dynamic) < 1 else Verdict.NOT,
        f"{setting.shape.rows} rows instead of all tokens; the dynamic circuit only adds devices."
        f" Input {INPUTS[0]} to {INPUTS[-1]} with output {setting.generated}, output {OUTPUTS[0]}"
        f" to {OUTPUTS[-1]} with input {setting.long_prompt}",
    )


def _fixed(setting: Setting) -> Claim:
    rows = setting.shape.rows
    ends = setting.generated, 8 * setting.generated
    found = {
        name: [int(np.max(setting.counts(name, generated=end).rows)) for end in ends]
        for name in ("both", "dynamic")
    }
    return Claim(
        "the KV cache has a fixed size, as one token is evicted at each step beyond the reserved"
        " ones (III-A2)",
        f"{found['both'][0]} rows after {ends[0]} tokens and {found['both'][1]} after {ends[1]};"
        f" {found['dynamic'][1]} without static pruning",
        Verdict.COUNTS if max(found["both"]) <= rows < found["dynamic"][1] else Verdict.NOT,
        f"of an input of {setting.prompt} tokens; a row that is evicted takes the new token",
    )


def _cache() -> Claim:
    shape = MODELS["llama-2-7b"]
    parameters = shape.weights + shape.hidden * shape.vocabulary
    token = 2 * shape.layers * shape.kv_heads * shape.head
    most = parameters / token
    return Claim(
        f"the KV cache of {shape.name} gradually exceeds the size of its parameters, and attention"
        " dominates the latency (section I, Fig. 1b)",
        f"from {most:,.0f} tokens on, {most / CONTEXT:.1f} times its context of {CONTEXT}, at one"
        " sequence and equal bits",
        Verdict.HOLDS if most <= CONTEXT else Verdict.ASSUMED,
        f"{token:,} numbers a token beside {parameters / 1e9:.2f} thousand million parameters, both"
        " read for each new token. It holds for longer contexts or several sequences at once, and"
        " where weights have fewer bits than the cache. The figure's latency cannot be checked: the"
        " text names no machine",
    )


def _shortest_energy(setting: Setting) -> Claim:
    paper = ENERGY[0]
    dense, both = cost(setting, "dense"), cost(setting, "both")
    ours = dense.energy_pj / both.energy_pj
    by_counts = dense.conversions / both.conversions
    rest = both.energy_pj - both.conversions * setting.constants.adc_pj
    needed = (dense.energy_pj / paper.value - rest) / both.conversions
    return Claim(
        f"{paper.text}× less energy with both prunings at the shortest lengths (Fig. 11)",
        f"{ours:.2f}×, by conversions alone {by_counts:.2f}×",
        _by_constants(ours, paper),
        f"at {setting.prompt} + {setting.generated} tokens and {setting.kept} % selected, as in"
        " Fig. 12a; the lengths of Fig. 11 are in the picture only. The text says that selected"
        " rows cost less to convert, as their lines carry less current, without a figure:"
        f" {paper.text}× would need {needed:.1f} pJ instead of {setting.constants.adc_pj:g}",
    )


def _shortest_delay(setting: Setting) -> Claim:
    paper = SPEEDUP[0]
    dense, both = cost(setting, "dense"), cost(setting, "both")
    low, high = _needed_search(setting)
    needed = (
        f"{max(low, 0):.1f} to {high:.1f} cycles" if high > 0 else "a search of no time, or less"
    )
    return Claim(
        f"{paper.text}× shorter delay with both prunings at the shortest lengths (Fig. 12b)",
        f"{dense.delay_ns / both.delay_ns:.2f}×: {dense.delay_ns:.0f} and {both.delay_ns:.0f} ns",
        _by_constants(dense.delay_ns / both.delay_ns, paper),
        f"at {setting.prompt} + {setting.generated} tokens and {setting.kept} % selected, as in"
        " Fig. 12a; the lengths of Fig. 12b are in the picture only. Rounds of conversions are"
        f" counts; the search's length is not in the text. The paper's figure needs {needed};"
        f" {_searching(setting):g} are taken",
    )


def _longest(setting: Setting, quantity: str, paper: Rounded, where: str) -> Claim:
    field = {"energy": "energy_pj", "delay": "delay_ns"}[quantity]
    points = [(setting.long_prompt, setting.generated), (setting.long_prompt, setting.long_prompt)]
    ours = [f"{ratio(setting, field, 'both', *point):.1f}× at {_sum(point)}" for point in points]
    reached = generated_for(setting, quantity, paper.value)
    when = "not at any length tried" if reached is None else f"at {reached} tokens of output"
    also = _one_length(setting) if quantity == "delay" else ""
    return Claim(
        f"{paper.text}× {'less energy' if quantity == 'energy' else 'shorter delay'} with both"
        f" prunings at the longest lengths ({where})",
        ", ".join(ours),
        Verdict.CIRCULAR,
        "the ratio grows with the length without bound, and the picture's longest is not in the"
        f" text. With input {setting.long_prompt} it reaches {paper.text} {when}{also}",
    )


def _one_length(setting: Setting) -> str:
    """What a search would take if the longest lengths of Figs. 11 and 12b were the same."""
    energy, delay = ENERGY[1], SPEEDUP[1]
    generated = generated_for(setting, "energy", energy.value)
    if generated is None:
        return ""
    dense, both = (
        cost(setting, name, setting.long_prompt, generated).delay_ns for name in ("dense", "both")
    )
    cycle, own = setting.constants.cycle_ns, _searching(setting)
    needed = (dense / delay.value - both) / cycle + own
    _, most = _needed_search(setting)
    return (
        f". If this and Fig. 11's {energy.text}× are of one length, {generated} tokens here, a"
        f" search takes {needed:.1f} cycles, where {SPEEDUP[0].text}× at the shortest leave"
        f" {max(most, 0):.1f} at most"
    )


def _searching(setting: Setting) -> float:
    """Cycles of a step's searches."""
    return setting.heads * setting.search_steps * setting.constants.search_cycles


def _needed_search(setting: Setting) -> tuple[float, float]:
    """Cycles of a step's searches for which the shortest ratio is just printed as the paper's."""
    dense, both = cost(setting, "dense"), cost(setting, "both")
    cycle, paper = setting.constants.cycle_ns, SPEEDUP[0]
    low, high = (
        dense.delay_ns / float(value) / cycle - (both.delay_ns / cycle - _searching(setting))
        for value in (paper.high, paper.low)
    )
    return low, high


def _conventional_energy(setting: Setting) -> Claim:
    dense, ours = cost(setting, "dense").energy_pj, cost(setting, "dynamic").energy_pj
    others, _ = conventional(setting)
    return Claim(
        "dynamic pruning saves far more energy by one discharge than by approximate conversions"
        " and a sorter (Fig. 11a)",
        f"{dense / ours:.1f}× less than dense, conventionally {dense / others:.1f}×",
        Verdict.CONSTANTS if ours < others else Verdict.NOT,
        f"an approximate conversion is assumed to take {setting.constants.approximate_bits} of"
        f" {setting.constants.adc_cycles} bits and of the energy; the text has no figure",
    )


def _conventional_delay(setting: Setting) -> Claim:
    dense, ours = cost(setting, "dense").delay_ns, cost(setting, "dynamic").delay_ns
    _, others = conventional(setting)
    c = setting.constants
    # With one comparator the sorter takes all comparisons, one after the other.
    single = dataclasses.replace(setting, constants=dataclasses.replace(c, comparators=1))
    many = dataclasses.replace(setting, constants=dataclasses.replace(c, comparators=10**9))
    without = conventional(many)[1]
    text = "with any number of comparators"
    if without < dense:
        most = (conventional(single)[1] - without) / (dense - without)
        text = f"up to {most:.0f} comparators"
    return Claim(
        "conventional dynamic pruning increases the latency, UniCAIM's reduces it (Fig. 12a)",
        f"dense {dense:.0f} ns, conventional {others:.0f} ns, UniCAIM {ours:.0f} ns",
        Verdict.CONSTANTS if ours < dense < others else Verdict.NOT,
        f"with approximate conversions of {c.approximate_bits} bits and a sorter of n log2 n"
        f" comparisons, {c.comparators} a cycle, both assumed. It holds {text}",
    )


def _searches(setting: Setting) -> Claim:
    shape = setting.shape
    steps = digital_search_steps(shape.d, shape.key_bits)
    limit = score_limit(shape.d, shape.key_bits, 1)
    made = [
        len(search(np.zeros(rows, int), np.ones(rows, bool), 1, limit)[0])
        for rows in (shape.rows, 8 * shape.rows)
    ]
    digital = dataclasses.replace(setting, search_steps=steps)
    return Claim(
        "the top k are found in O(1) time",
        f"one discharge in the cells, {steps} steps in this project's digital array, for any"
        " number of rows",
        Verdict.COUNTS if made == [steps, steps] else Verdict.NOT,
        f"with {steps} cycles for the search the delay falls"
        f" {ratio(digital, 'delay_ns'):.2f} times instead of {ratio(setting, 'delay_ns'):.2f}",
    )


def _pruned(setting: Setting) -> Claim:
    half, fifth = (
        cost(dataclasses.replace(setting, kept=100 - pruned), "both") for pruned in (50, 80)
    )
    own = half.aedp / fifth.aedp
    grown = {
        name: more.value / less.value
        for name, less, more in zip(BASELINES, AEDP[1, 50], AEDP[1, 80], strict=True)
    }
    implied = ", ".join(f"{own / value:.1f} ({name})" for name, value in grown.items())
    return Claim(
        "from 50 % to 80 % pruned the AEDP ratios grow by "
        + ", ".join(f"{value:.2f} ({name})" for name, value in grown.items())
        + " (Table II)",
        f"UniCAIM's own AEDP falls {own:.2f} times",
        Verdict.CIRCULAR,
        "the baselines prune as much, so their own AEDPs enter: they would have to fall"
        f" {implied} times, of which the text says nothing",
    )


def _range() -> Claim:
    least, most = AEDP_RANGE
    values = {
        float(value.value): f"{bits}-bit cells, {pruned} % pruned, {name}"
        for (bits, pruned), of in AEDP.items()
        for name, value in zip(BASELINES, of, strict=True)
    }
    low, high = min(values), max(values)
    alike = [value.value for value in AEDP[3, 80]]
    return Claim(
        f"AEDP {least} to {most} times below the state of the art (abstract)",
        f"{low:g} ({values[low]}) to {high:g} ({values[high]}) in Table II",
        Verdict.HOLDS if (low, high) == (least, most) else Verdict.CONTRADICTS,
        "of the paper's own figures. The range is of two cells, two ratios and three baselines; of"
        f" one cell and ratio it is {min(alike):g} to {max(alike):g} at best",
    )


def _baselines() -> Claim:
    def listed(bits: int, pruned: int) -> str:
        return "/".join(value.text for value in AEDP[bits, pruned])

    return Claim(
        f"AEDP {listed(1, 50)} and {listed(1, 80)} times below {', '.join(BASELINES)} with 1-bit"
        f" cells, {listed(3, 50)} and {listed(3, 80)} with 3-bit cells (Table II)",
        "none",
        Verdict.CIRCULAR,
        "neither the baselines' area, energy and delay nor UniCAIM's own are in the text, so"
        " constants could only be solved back from these ratios, which they would then repeat",
    )


def _by_constants(ours: float, paper: Rounded) -> Verdict:
    return Verdict.CONSTANTS if close(ours, paper.value) else Verdict.NOT


def _sum(point: tuple[int, int]) -> str:
    return f"{point[0]} + {point[1]} tokens"
