"""The page, the tables and the JSON of KLLM's cost model."""

import dataclasses
from collections.abc import Callable
from math import isinf
from typing import Any

from golden.algorithms.kllm.cost import MODELS
from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost import parts
from golden.studies.kllm_cost.claims import claims
from golden.studies.kllm_cost.pictures import pictures
from golden.studies.kllm_cost.rates import MEMORIES, Setting
from golden.studies.kllm_cost.speed_claims import token_joules
from golden.studies.study import Study, Table, tally

NAME = "kllm_cost"
BATCHES = (1, 2, 4, 8, 16)
"""Sequences that are decoded together."""


def about(setting: Setting) -> str:
    """What was modelled, in words."""
    core = setting.core
    memory = (
        "a memory that always keeps up"
        if isinf(core.bandwidth)
        else f"a memory of {core.bandwidth / 1e9:g} GB/s"
    )
    return (
        "Cycles of a decoded token by formula, mean over an output of"
        f" {setting.tokens} tokens. A product of K × N takes ⌈N / lanes⌉ · max(T, G')"
        " cycles: T is the sum over a column's words of max(1, ⌈outliers in the word / R⌉), G' the"
        " bins in use over the MACs. That is a set of columns in the core's cycle model, which the"
        " RTL keeps to. An integer vector of 4 bits uses a quarter of the bins; columns longer than"
        " the tile take a product for each tile; several vectors share a column's words. A slower"
        " memory bounds each product: bytes over bandwidth. Outliers lie at random.\n\n"
        f"The core here: {core.lanes} lanes, words of {core.word}, {core.macs} MACs, R ="
        f" {core.entries}, tile {core.tile}, {100 * core.share:g} % of outliers,"
        f" {core.clock / 1e6:g} MHz, {memory}; of one model, {setting.shape.name}. Keys and values"
        " have 4 bits, as weights do; scores are integers without outliers. Left out: latencies of"
        " dependent products, norms, and quantising new keys and values. A softmax runs during the"
        " products of other heads. The A100 is a bound, not a simulation: FP16 weights and"
        f" cache, each byte once, at {paper.A100_BANDWIDTH / 1e12:.2f} TB/s."
        " The paper's figures are pictures: what its text states is compared. Fig. 11 is by the"
        " data of [KLLM's algorithm](kllm.md). Times and powers of A100s, of QuaRot's and Atom's"
        " kernels on them, of the other accelerators and of the chip itself cannot be checked."
        " `python -m golden kllm-cost -o docs/results` writes this page."
    )


def study(setting: Setting) -> Study:
    """The study of a setting."""
    found = claims(setting)
    tables = (
        rates(setting),
        token(setting),
        batches(setting),
        variants(setting),
        parts.rows(setting),
        others(),
    )
    return Study(
        NAME,
        "KLLM: speed, energy and area (Table I, Figs. 8 to 12)",
        f"{about(setting)}\n\n{tally(found)}",
        found,
        tables,
        pictures(setting),
        about={"setting": dataclasses.asdict(setting)},
        data={"tables": [dataclasses.asdict(table) for table in tables]},
    )


def rates(setting: Setting) -> Table:
    """The A100's bound for every model, the core's rates, and the use that the claim needs."""
    claimed = paper.SPEED_A4["A100"]

    def four(at: Setting, **changes) -> Setting:
        return at.at(activation_bits=4, **changes)

    def by_memory(bandwidth: float) -> Callable[[Setting], str]:
        return lambda at: f"{four(at, bandwidth=bandwidth).rate():.1f}"

    return Table.of(
        "Tokens a second, one sequence, by the memory: ideal, an A100's, one stack of HBM2e and of"
        " HBM2",
        [dataclasses.replace(setting, model=name) for name in MODELS],
        ("model", "{.shape.name}"),
        ("10⁹ weights", lambda at: f"{at.shape.weights / 1e9:.2f}"),
        ("A100, bound", lambda at: f"{at.bound():.1f}" if at.fits else "does not fit"),
        *((f"A4, {name}", by_memory(bandwidth)) for name, bandwidth in MEMORIES.items()),
        (
            f"A3, {'ideal' if isinf(setting.core.bandwidth) else 'as set'}",
            lambda at: f"{at.at(activation_bits=3).rate():.1f}",
        ),
        (
            "A4 over the bound",
            lambda at: f"{four(at).rate() / at.bound():.2f}" if at.fits else "",
        ),
        (
            f"A100's use for {claimed}×",
            lambda at: f"{100 * four(at).rate() / claimed / at.bound():.0f} %" if at.fits else "",
        ),
    )


def token(setting: Setting) -> Table:
    """Cycles of a token by parts."""
    steps = [
        (f"A{bits}, batch {batch}", setting.at(activation_bits=bits).token(batch))
        for bits in (4, 3)
        for batch in (1, paper.BATCH)
    ]

    def part(name: str, unit: float = 1e3, form: str = ".0f") -> Callable[[tuple], str]:
        return lambda step: format(getattr(step[1], name) / unit, form)

    return Table.of(
        f"A step of {setting.shape.name}, thousands of cycles and GB read",
        steps,
        ("", "{0[0]}"),
        ("layers", part("layers")),
        ("head", part("head")),
        ("queries × keys", part("keys")),
        ("scores × values", part("values")),
        ("softmax, not hidden", part("softmax")),
        ("all", part("cycles")),
        ("weights", part("weight_bytes", 1e9, ".2f")),
        ("cache", part("cache_bytes", 1e9, ".2f")),
    )


def batches(setting: Setting) -> Table:
    """Rates of all sequences of a batch, by memory, and the A100's bound."""
    four = setting.at(activation_bits=4)

    def by_memory(bandwidth: float) -> Callable[[int], str]:
        return lambda batch: f"{four.at(bandwidth=bandwidth).rate(batch):.1f}"

    return Table.of(
        f"Tokens a second of {setting.shape.name} by the batch (Fig. 9), all sequences together, by"
        " the memory",
        BATCHES,
        ("batch", "{}"),
        *((f"A4, {name}", by_memory(bandwidth)) for name, bandwidth in MEMORIES.items()),
        (
            f"A3, {'ideal' if isinf(setting.core.bandwidth) else 'as set'}",
            lambda batch: f"{setting.at(activation_bits=3).rate(batch):.1f}",
        ),
        ("A100, bound", lambda batch: f"{setting.bound(batch):.1f}"),
        ("A4 over it", lambda batch: f"{four.rate(batch) / setting.bound(batch):.2f}"),
        ("A4, mJ a token", lambda batch: f"{1e3 * token_joules(four, batch):.0f}"),
    )


def variants(setting: Setting) -> Table:
    """What would help: changes of the core, by rate."""
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "queries as integers (G' a quarter)": {"integer_queries": True},
        "one reduction for all tiles of a column": {"tile": 1 << 20},
        "both": {"integer_queries": True, "tile": 1 << 20},
        "both, and R twice as large": {
            "integer_queries": True,
            "tile": 1 << 20,
            "entries": 2 * setting.core.entries,
        },
    }
    names = ("llama-2-7b", "llama-2-13b", "llama-2-70b")
    made = []
    for what, change in changes.items():
        row = [what]
        for name in names:
            at = dataclasses.replace(setting, model=name)
            rate, before = at.at(**change).rate(), at.rate()
            row.append(f"{rate:.1f} (×{rate / before:.2f})")
        made.append(row)
    return Table(
        f"Tokens a second, A{setting.core.activation_bits}, of a changed core",
        ["", *(MODELS[name].name for name in names)],
        made,
    )


def others() -> Table:
    """Figures that are neither the paper's nor this project's."""
    gpt_fast = "README of gpt-fast (PyTorch), A100-80GB limited to 330 W, short contexts"
    rows = [
        [
            "bandwidth and most power of an A100-80GB",
            f"{paper.A100_BANDWIDTH / 1e9:.0f} GB/s, {paper.A100_POWER:.0f} W",
            "NVIDIA's data sheet, SXM",
        ],
        ["LLaMA-2-7B in 16 bits, compiled", f"{paper.A100_TUNED} tokens/s", gpt_fast],
        ["the same, weights of 4 bits", f"{paper.A100_FOUR_BITS} tokens/s", gpt_fast],
        [
            "the same in plain PyTorch",
            f"{paper.A100_EAGER} tokens/s",
            "pytorch.org/blog/accelerating-generative-ai-2, its starting point",
        ],
        [
            "energy of HBM2",
            f"{paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit",
            "assumed, after O'Connor et al., Fine-Grained DRAM, MICRO-50, 2017",
        ],
        [
            "an FP16 multiplication and addition at 45 nm",
            f"{paper.MAC_JOULES * 1e12:.1f} pJ",
            "assumed, after Horowitz, Computing's Energy Problem, ISSCC 2014",
        ],
        ["a bit of dense SRAM at 28 nm", f"{paper.CELL} µm²", "assumed"],
    ]
    return Table("Figures of others", ["", "value", "source"], rows)
