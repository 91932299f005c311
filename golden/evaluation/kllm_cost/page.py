"""The page, the tables and the JSON of KLLM's cost model."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from math import isinf
from typing import Any

from golden.algorithms.kllm.cost import MODELS
from golden.algorithms.kllm.cost import published as paper
from golden.evaluation.kllm_cost import parts
from golden.evaluation.kllm_cost.pictures import CAPTIONS
from golden.evaluation.kllm_cost.rates import MEMORIES, Setting
from golden.evaluation.kllm_cost.verdicts import Basis, Claim
from golden.evaluation.section import Table
from golden.markdown import table_text

TITLE = "KLLM: speed, energy and area (Table I, Figs. 8 to 12)"


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
        " The paper's figures are pictures: what its text states is compared."
        " `python -m golden kllm-cost -o docs/results` writes this page."
    )


def markdown(setting: Setting, claims: Sequence[Claim]) -> str:
    """The page; the pictures are files beside it."""
    counts = Counter(claim.verdict for claim in claims)
    listed = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in Basis if counts[verdict])
    verdicts = Table(
        "",
        ["", "paper", "here", "verdict", "why"],
        [[c.where, c.paper, c.ours, f"**{c.verdict}**", c.why] for c in claims],
    )
    pieces = [
        f"# {TITLE}",
        about(setting),
        f"Verdicts of {len(claims)}: {listed}.",
        table_text(verdicts.columns, verdicts.rows),
    ]
    pieces += [f"![{caption}]({name}.svg)" for name, caption in CAPTIONS.items()]
    for table in _tables(setting):
        pieces += [f"{table.title}:", table_text(table.columns, table.rows)]
    return "\n\n".join(pieces) + "\n"


def rates(setting: Setting) -> Table:
    """The A100's bound for every model, the core's rates, and the use that 8.66x needs."""
    made = []
    for name in MODELS:
        at = dataclasses.replace(setting, model=name)
        four, three = (at.at(activation_bits=bits) for bits in (4, 3))
        by_memory = [four.at(bandwidth=bandwidth).rate() for bandwidth in MEMORIES.values()]
        bound = at.bound()
        needed = four.rate() / paper.SPEED_A4["A100"] / bound
        made.append(
            [
                at.shape.name,
                f"{at.shape.weights / 1e9:.2f}",
                f"{bound:.1f}" if at.fits else "does not fit",
                *(f"{rate:.1f}" for rate in by_memory),
                f"{three.rate():.1f}",
                f"{four.rate() / bound:.2f}" if at.fits else "",
                f"{100 * needed:.0f} %" if at.fits else "",
            ]
        )
    return Table(
        "Tokens a second, one sequence, by the memory: ideal, an A100's, one stack of HBM2e and of"
        " HBM2",
        [
            "model",
            "10⁹ weights",
            "A100, bound",
            *(f"A4, {name}" for name in MEMORIES),
            f"A3, {'ideal' if isinf(setting.core.bandwidth) else 'as set'}",
            "A4 over the bound",
            f"A100's use for {paper.SPEED_A4['A100']}×",
        ],
        made,
    )


def token(setting: Setting) -> Table:
    """Cycles of a token by parts."""
    made = []
    for bits in (4, 3):
        for batch in (1, paper.BATCH):
            found = setting.at(activation_bits=bits).token(batch)
            values = (found.layers, found.head, found.keys, found.values, found.softmax)
            made.append(
                [
                    f"A{bits}, batch {batch}",
                    *(f"{value / 1e3:.0f}" for value in values),
                    f"{found.cycles / 1e3:.0f}",
                    f"{found.weight_bytes / 1e9:.2f}",
                    f"{found.cache_bytes / 1e9:.2f}",
                ]
            )
    return Table(
        f"A step of {setting.shape.name}, thousands of cycles and GB read",
        [
            "",
            "layers",
            "head",
            "queries × keys",
            "scores × values",
            "softmax, not hidden",
            "all",
            "weights",
            "cache",
        ],
        made,
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


def _tables(setting: Setting) -> tuple[Table, ...]:
    return rates(setting), token(setting), variants(setting), parts.rows(setting), others()


def content(setting: Setting, claims: Sequence[Claim]) -> dict:
    """What the page says and the pictures show, for JSON."""
    core = dataclasses.asdict(setting.core)
    if isinf(core["bandwidth"]):
        core["bandwidth"] = None
    return {
        "title": TITLE,
        "setting": dataclasses.asdict(setting) | {"core": core},
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "tables": [
            {"title": table.title, "columns": list(table.columns), "rows": list(table.rows)}
            for table in _tables(setting)
        ],
    }
