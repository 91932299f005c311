"""Claims of VEDA that follow from the cycle formula, from its other figures and from kept data."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from golden.algorithms.kllm.cost.models import MODELS
from golden.studies.study import CLOSE, Claim, Verdict, close
from hw.veda.veda_core_parameters import VedaCoreParameters
from sim.core.tools import ROOT, require_checkout
from sim.studies.areas.units import shares
from sim.studies.compare.logic import VOLTS, Prices
from sim.studies.veda_cycles import (
    BASE,
    CLOCK,
    GENERATED,
    LENGTHS,
    PROMPT,
    STEPS,
    averages,
    step_cycles,
    tokens_per_second,
    variant,
)
from sim.synth.memories import access_pj

TERMS = ROOT / "docs" / "results" / "equal_terms.json"
LLAMA = MODELS["llama-2-7b"]
LONGEST = 4096
"""Llama-2's context (VI)."""

POWER = {
    "PE array": 175.64,
    "voting engine": 26.41,
    "special function unit": 13.19,
    "schedule": 11.20,
    "on-chip buffer": 148.82,
}
TOTAL_W = 0.37526
"""mW of the parts, and W of the whole (Table I)."""
GOPS, EFFICIENCY, TOKENS = 245, 653, 18.6
"""GOPS, GOPS a W and tokens a second of Llama-2-7B (Table II)."""
BYTES_PER_S = 256e9
OTHERS = {"Sanger": (55, 16.9, 529, 192), "SpAtten": (40, 1.55, 360, 382)}
"""nm, mm², GOPS and GOPS a W (Table II)."""
NM, MM2 = 28, 1.06
OUR_NM, NM_VOLTS = 45, 0.9
"""Technology of our netlists, and the usual voltage of the paper's."""
GPU_ENERGY, GPU_SPEED, DEVICES = 38.8, 2.86, 8
"""Times more efficient than the GPU, and times its throughput with `DEVICES` (Table II)."""
GPU_W, GPU_BYTES_PER_S = 450, 1008e9
"""An RTX 4090's power and memory bandwidth, as its maker publishes them."""
KEPT = (0.5, 0.4, 0.3, 0.2)
"""Shares of the prompt's rows kept, as on the page."""


def paper_claims() -> list[Claim]:
    rows = kept_terms()
    cores = {
        memory: next(
            row
            for row in rows["rows"]
            if row["design"] == "veda.veda_core" and row["memory"].startswith(memory)
        )
        for memory in ("hbm2", "lpddr4")
    }
    return [
        dimensions_claim(),
        tile_claim(),
        reduction_claim(),
        generation_claim(),
        causal_claim(),
        votes_claim(),
        port_claim(cores),
        power_claim(POWER),
        units_claim(rows["units"]),
        figures_claim(),
        *others_claims(OTHERS),
        gpu_energy_claim(cores["hbm2"]),
        gpu_speed_claim(),
    ]


def kept_terms() -> dict[str, Any]:
    require_checkout("sim ablation --speed")
    return json.loads(TERMS.read_text(encoding="utf-8"))


def paper_core() -> VedaCoreParameters:
    return VedaCoreParameters.presets()["paper"]


def dimensions_claim() -> Claim:
    sizes = {LLAMA.head, *(k for k, _ in LLAMA.matrices)}
    return Claim(
        "products of a token have from 128 to 11008 rows in Llama-7B (section I)",
        f"{min(sizes)} to {max(sizes)}",
        Verdict.COUNTS if (min(sizes), max(sizes)) == (128, 11008) else Verdict.CONTRADICTS,
        "by the model's published shape: a head's keys to the feed-forward network's output",
    )


def tile_claim() -> Claim:
    """One row more than whole tiles, in the base and with both of the paper's changes."""
    tree, flexible = (variant(*of, LONGEST) for of in (BASE, ("flexible", "element_serial")))
    more = [p.head_cycles(PROMPT + 1) - p.head_cycles(PROMPT) for p in (tree, flexible)]
    return Claim(
        "one row more than a fixed size costs a tree another epoch, and the flexible product"
        " nearly nothing (section I, IV-A)",
        f"{more[0]} cycles in the tree, {more[1]} in the flexible array",
        Verdict.of(more[0] >= tree.d, more[1] == 2),
        f"by the formulas, from {PROMPT} to {PROMPT + 1} rows with d = {tree.d}: a row is a cycle"
        " in each of the two products, a tile of the tree's outer product d cycles",
    )


def reduction_claim() -> Claim:
    """Speedups by eviction of a fixed tree over the flexible array's, alike scheduled."""
    found = {}
    for scheduling in ("separate", "element_serial"):
        gains = []
        for dataflow in ("tree", "flexible"):
            p = variant(dataflow, scheduling, PROMPT + GENERATED)
            mean = averages(p)[-1]
            gains.append([mean / p.head_cycles(int(PROMPT * ratio) + 1) for ratio in KEPT])
        found[scheduling] = 1 - np.divide(gains[0], gains[1])
    lost = np.stack([*found.values()])
    return Claim(
        "a smaller cache helps a fixed tree's speed less (section I)",
        "; ".join(
            f"{name.replace('_', '-')} softmax: eviction's speedup is {100 * of.min():.0f} to"
            f" {100 * of.max():.0f} % smaller"
            for name, of in found.items()
        ),
        Verdict.of(bool((lost > 0).all()), bool((lost > CLOSE).all())),
        f"by the formulas, {GENERATED} tokens after a prompt of {PROMPT}, of which {KEPT[-1]} to"
        f" {KEPT[0]} are kept; judged as less, and as less by {CLOSE:.0%}",
    )


def generation_claim() -> Claim:
    """Tokens a second with the least cache on the page, over those without eviction."""
    p = paper_core()
    kept = tokens_per_second(p, (int(PROMPT * KEPT[-1]) + 1,) * STEPS, 1)[1]
    bare, whole = tokens_per_second(p)
    longest = tokens_per_second(p, (LONGEST,) * STEPS)[1]
    gains = kept / whole, kept / longest
    return Claim(
        "eviction significantly accelerates the generation phase (III)",
        f"{gains[0]:.2f}× tokens a second over {LENGTHS[0]} to {LENGTHS[-1]} rows,"
        f" {gains[1]:.2f}× over {LONGEST}",
        Verdict.of(*(gain > 1 + CLOSE for gain in gains)),
        f"Llama-2-7B, {int(PROMPT * KEPT[-1])} rows kept, by the formula: attention is"
        f" {1 - whole / bare:.0%} of a token's time, {1 - longest / bare:.0%} at {LONGEST} rows,"
        " and the weights' products the rest. Figures on attention alone are above",
    )


def causal_claim() -> Claim:
    p = paper_core()
    lengths = np.arange(1, PROMPT + 1)
    share = sum(p.head_cycles(int(n)) for n in lengths) / (PROMPT * p.head_cycles(PROMPT))
    return Claim(
        "a prompt token by token needs half of attention's operations, as the upper triangle is"
        " skipped (V)",
        f"{100 * lengths.sum() / PROMPT**2:.1f} % of the operations, {100 * share:.1f} % of the"
        " cycles",
        Verdict.of(close(share, 0.5)),
        f"a prompt of {PROMPT}, by counts and by the formula of a head's cycles",
    )


def votes_claim() -> Claim:
    p = paper_core()
    lengths = int(PROMPT * KEPT[-1]) + 1, LENGTHS[0], LENGTHS[-1]
    more = [
        step_cycles(p, (n,) * STEPS, 0) / step_cycles(p, (n,) * STEPS, 0, vote=False) - 1
        for n in lengths
    ]
    return Claim(
        "the voting engine works in parallel and does not affect the other modules (V)",
        "votes lengthen a step by "
        + ", ".join(f"{100 * x:.1f} % at {n} rows" for x, n in zip(more, lengths, strict=True)),
        Verdict.of(max(more) == 0, max(more) <= CLOSE),
        "no step is stalled, but the same cache's next one waits until votes are counted; steps of"
        f" other layers do not. Judged as nothing, and as {CLOSE:.0%} at most",
    )


def port_claim(cores: Mapping[str, Mapping[str, Any]]) -> Claim:
    """By a memory that has bandwidth to spare, and by one that has not."""
    hbm, lpddr = cores["hbm2"], cores["lpddr4"]
    use = hbm["cycles_ideal_port"] / hbm["cycles"]
    return Claim(
        "rows stored as (l, d) make high use of the HBM's bandwidth (V)",
        f"HBM2: {use:.1%} of the speed with a port that never waits, which takes"
        f" {hbm['share_of_peak']:.0%} of its peak; {lpddr['share_of_peak']:.0%} of LPDDR4's",
        Verdict.of(use > 1 - CLOSE, lpddr["share_of_peak"] > 1 - CLOSE),
        "a step of attention on models of memories ([terms](equal_terms.md)), 64 PEs, rows of three"
        f" query heads. High is {1 - CLOSE:.0%}; the second memory is slower than the core",
    )


def power_claim(power: Mapping[str, float]) -> Claim:
    of = shares(power)
    array, buffer = of["PE array"], of["on-chip buffer"]
    votes, functions = of["voting engine"], of["special function unit"]
    largest = min(array, buffer) > max(votes, functions, of["schedule"])
    return Claim(
        "PE array and buffer dominate area and power, the special function unit has less than 3 %,"
        " the voting engine 6.5 % (VI)",
        f"of the power in Table I {array:.1f} and {buffer:.1f} %, {functions:.1f} %, {votes:.1f} %",
        Verdict.of(largest, functions < 3, close(votes, 6.5)),
        f"by the paper's table, whose parts add up to {sum(power.values()):.2f} mW. Its 3 and 6.5 %"
        " are of the area ([there](veda_area.md))",
    )


def units_claim(units: Mapping[str, Mapping[str, Any]]) -> Claim:
    """mW of the paper's array, buffer and special function unit in attention, by our netlists."""
    p, prices, both = paper_core(), Prices(units), (1, 2)
    scale = NM / OUR_NM * (NM_VOLTS / VOLTS) ** 2
    array = [scale * p.d / 64 * sum(prices.operation("array", 64)[:n]) for n in both]
    scores = [scale * sum(prices.operation("score", 64)[:n]) / 2 for n in both]
    buffer = scale * access_pj(p.depth, 16 * p.d, VOLTS)
    names = "PE array", "on-chip buffer", "special function unit"
    parts = min(array), buffer, min(scores)
    return Claim(
        f"{', '.join(f'{name} {POWER[name]}' for name in names)} mW (Table I)",
        f"{array[0]:.0f} to {array[1]:.0f}, {buffer:.0f} and {scores[0]:.0f} to {scores[1]:.0f} mW",
        Verdict.of(*(x < (1 + CLOSE) * POWER[name] for x, name in zip(parts, names, strict=True))),
        f"toggles of netlists on real data, without glitches and with, at {OUR_NM} nm and"
        f" {VOLTS} V, scaled to {NM} nm and {NM_VOLTS} V by size and square of voltage; a row of"
        f" {2 * p.d} bytes from the buffer in each cycle, a score in two. Sums are FP32 here, the"
        " paper's FP16, and the library's cells have the size in their name only. Judged by"
        " whether a part takes a tenth more at most",
    )


def figures_claim() -> Claim:
    """Table II from Table I, and its throughputs from each other."""
    p = paper_core()
    tokens = 1e9 * GOPS / (2 * LLAMA.weights)
    fed = p.d * 2 * CLOCK
    agree = [
        close(sum(POWER.values()) / 1e3, TOTAL_W),
        abs(GOPS / TOTAL_W / EFFICIENCY - 1) < 0.01,
        abs(tokens / TOKENS - 1) < 0.01,
        fed == BYTES_PER_S,
    ]
    return Claim(
        f"{EFFICIENCY} GOPS/W, {TOKENS} tokens/s and 256 GB/s (Tables I and II)",
        f"{GOPS / TOTAL_W:.0f} GOPS/W, {tokens:.1f} tokens/s, {fed / 1e9:.0f} GB/s",
        Verdict.HOLDS if all(agree) else Verdict.CONTRADICTS,
        f"by the paper's other figures: {GOPS} GOPS over {1e3 * TOTAL_W} mW, which is without the"
        f" HBM; {GOPS} GOPS over {2 * LLAMA.weights / 1e9:.1f} G operations of Llama-2-7B's"
        f" weights, so at {GOPS / (2 * p.d * CLOCK / 1e9):.0%} of the array; a weight of FP16 a"
        f" cycle for each of {p.d} PEs at 1 GHz",
    )


def others_claims(others: Mapping[str, tuple[float, ...]]) -> list[Claim]:
    """Table II beside the other accelerators, as they are and scaled to 28 nm."""
    plain, square, cube = (
        {name: of[3] * (of[0] / NM) ** power for name, of in others.items()} for power in (0, 1, 3)
    )
    best = [max(of.values()) < EFFICIENCY for of in (plain, square, cube)]
    areas = {name: of[1] * (NM / of[0]) ** 2 for name, of in others.items()}
    smallest = [min(of) > MM2 for of in ([x[1] for x in others.values()], areas.values())]
    told = ", ".join(f"{name} {square[name]:.0f} to {cube[name]:.0f}" for name in others)
    return [
        Claim(
            "the highest energy efficiency of Table II, after scaling of technology, too (VI)",
            f"{EFFICIENCY} GOPS/W; scaled to {NM} nm {told}",
            scaled_verdict(best[0], best[1], best[2]),
            "by the paper's table: energy in proportion to the size at the same voltage, or to its"
            " cube where voltage scales with it. With the first one VEDA is ahead",
        ),
        Claim(
            "the smallest area of Table II, after scaling of technology, too (VI)",
            f"{MM2} mm²; scaled to {NM} nm "
            + ", ".join(f"{name} {area:.2f}" for name, area in areas.items()),
            Verdict.of(*smallest),
            "by the paper's table, areas scaled by the squares of the technologies' names, the most"
            " that scaling gives; the text may mean efficiency alone. The others do less than VEDA",
        ),
    ]


def scaled_verdict(plain: bool, mild: bool, full: bool) -> Verdict:
    """Of being ahead unscaled, with mild scaling and with full scaling."""
    if not (plain and mild):
        return Verdict.CONTRADICTS
    return Verdict.HOLDS if full else Verdict.ASSUMED


def hbm_watts(core: Mapping[str, Any]) -> float:
    """Power of the HBM at its full bandwidth, by a step's energy of the same memory."""
    energy = core["energy_pj"]
    moved = core["bytes"]["k_read"] + core["bytes"]["v_read"]
    read = (energy["dram_read"] + energy["dram_activation"]) / moved
    idle = (energy["dram_background"] + energy["dram_refresh"]) / core["seconds"]
    return 1e-12 * (read * BYTES_PER_S + idle)


def gpu_tokens() -> float:
    """Tokens a second that the GPU must have."""
    return DEVICES * TOKENS / GPU_SPEED


def gpu_energy_claim(core: Mapping[str, Any]) -> Claim:
    hbm = hbm_watts(core)
    ratio = TOKENS / (TOTAL_W + hbm) / (gpu_tokens() / GPU_W)
    return Claim(
        f"{GPU_ENERGY} times the energy efficiency of an RTX 4090, with off-chip HBM (Table II)",
        f"{ratio:.1f} times, if the GPU takes {GPU_W} W at {gpu_tokens():.0f} tokens/s",
        Verdict.ASSUMED if close(ratio, GPU_ENERGY) else Verdict.UNKNOWN,
        f"no GPU is measured here: its power is its maker's limit, its speed follows from {DEVICES}"
        f" VEDAs. The core takes the paper's {TOTAL_W:.2f} W, HBM2 {hbm:.1f} W at 256 GB/s by the"
        " model of [terms](equal_terms.md), without its interface",
    )


def gpu_speed_claim() -> Claim:
    gpu = gpu_tokens()
    most = GPU_BYTES_PER_S / (2 * LLAMA.weights)
    return Claim(
        f"{DEVICES} VEDAs have {GPU_SPEED} times the throughput of an RTX 4090 (Table II)",
        f"the GPU must then have {gpu:.0f} tokens/s, {gpu / most:.0%} of what its bandwidth allows",
        Verdict.UNKNOWN if gpu <= most else Verdict.CONTRADICTS,
        f"it is possible, and takes such a GPU. {DEVICES} VEDAs have"
        f" {DEVICES * BYTES_PER_S / GPU_BYTES_PER_S:.1f} times its bandwidth, which bounds both",
    )
