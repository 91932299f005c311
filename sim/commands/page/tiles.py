"""The five papers: what a tile of each is made of, and how much of it is built and checked."""

import dataclasses

from sim.commands.page.diagram import OUTSIDE, Box, Diagram


@dataclasses.dataclass(frozen=True)
class Paper:
    """A card of the page.

    figure
        Of the paper, after which the diagram is drawn.
    status
        How much is built, in a few words.
    commands
        Of each page of docs/results, the command that repeats its figures.
    """

    name: str
    title: str
    figure: str
    status: str
    diagram: Diagram
    commands: dict[str, str]


KLLM = Diagram(
    "A vector is clustered and its outliers are set apart; sixteen lanes count pairs of activation"
    " and weight indices, weight the counts, and add the outliers' products.",
    (
        Box("x", "vector", 0, 1, 4, 2.4, OUTSIDE),
        Box("orizuru", "Orizuru:|outliers", 6, 0, 7, 3.4, "docs/kllm.md#orizuru"),
        Box("cluster", "Clustering|Unit", 6, 5, 7, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box("act", "Act Idx|Buffer", 15.5, 5, 7.5, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box("list", "outlier|list", 15.5, 0, 7.5, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box(
            "memory",
            "Wgt Buffer:|weight indices",
            0,
            10.5,
            9.5,
            3.4,
            "docs/kllm.md#the-blocks-of-the-product",
        ),
        Box("concat", "Concat|Unit", 11, 10.5, 6, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box("count", "Idx|Counter", 18.5, 10.5, 6, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box("mac", "MAC:|reduction", 26, 10.5, 7, 3.4, "docs/kllm.md#rounding-of-sums"),
        Box("sparse", "MAC:|outliers", 26, 5, 7, 3.4, "docs/kllm.md#the-blocks-of-the-product"),
        Box("function", "Functional|Unit", 0, 16, 9.5, 3.4, "docs/kllm.md#the-functional-unit"),
        Box("out", "scale, Out Buffer", 18.5, 16.3, 14.5, 2.6, "docs/kllm.md#rounding-of-sums"),
    ),
    (
        ("x", "orizuru"),
        ("orizuru", "cluster"),
        ("orizuru", "list"),
        ("cluster", "act"),
        ("act", "concat"),
        ("memory", "concat"),
        ("concat", "count"),
        ("count", "mac"),
        ("list", "sparse"),
        ("sparse", "mac"),
        ("mac", "out"),
        ("out", "function"),
    ),
)

VEDA = Diagram(
    "Rows of K and V stream from the HBM through the PE array; probabilities of the special"
    " function unit go back to the array and on to the voting engine, which names a row to evict.",
    (
        Box("hbm", "HBM: KV cache,|one row a cycle", 0, 4, 10, 3.6, OUTSIDE),
        Box("array", "PE array:|q · K, s' · V", 13.5, 4, 9, 3.6, "docs/veda.md#the-array"),
        Box(
            "sfu",
            "Special|Function Unit",
            25,
            4,
            8.5,
            3.6,
            "docs/veda.md#the-special-function-unit",
        ),
        Box("scheduler", "scheduler", 13.5, 0, 9, 2.4, "docs/veda.md#the-core"),
        Box("voting", "voting engine", 25, 9.4, 8.5, 2.6, "docs/veda.md#the-voting-engine"),
        Box("map", "row map:|which row is evicted", 0, 9.1, 12.5, 3.4, "docs/veda.md#the-core"),
        Box("buffer", "weights' buffer,|linear layers", 13.5, 14, 12, 3.4),
    ),
    (
        ("hbm", "array"),
        ("array", "sfu"),
        ("sfu", "array"),
        ("scheduler", "array"),
        ("sfu", "voting"),
        ("voting", "map"),
        ("map", "hbm"),
        ("buffer", "array"),
    ),
)

TOPICK = Diagram(
    "A lane computes scores chunk by chunk; the RPDU prunes a token or requests its next chunk, by"
    " a denominator that all lanes' partial exponentials add up to.",
    (
        Box("dram", "DRAM:|chunks of K, V", 0, 5, 8.5, 3.6, OUTSIDE),
        Box("margin", "Margin Generator", 10.5, 0, 11, 2.6, "docs/topick.md#numbers"),
        Box(
            "tree",
            "multipliers,|adder tree",
            10.5,
            5,
            9.5,
            3.6,
            "docs/topick.md#differences-from-the-paper",
        ),
        Box("board", "Scoreboard", 10.5, 10.6, 9.5, 2.6, "docs/topick.md#order-and-stalls"),
        Box("rpdu", "RPDU: prune,|request or keep", 22.5, 1.9, 11, 3.6, "docs/topick.md#numbers"),
        Box("pec", "PEC", 22.5, 6.6, 5.5, 2.6, "docs/topick.md#numbers"),
        Box("dag", "DAG:|denominator", 27, 11.6, 6.5, 3.6),
        Box("probability", "Probability|Generator", 16, 14.2, 8.5, 3.6),
    ),
    (
        ("dram", "tree"),
        ("margin", "tree"),
        ("tree", "board"),
        ("board", "tree"),
        ("tree", "pec"),
        ("tree", "rpdu"),
        ("pec", "dag"),
        ("dag", "rpdu"),
        ("dag", "probability"),
    ),
)

LAD = Diagram(
    "Attention is pipelined over four modules, EAS, APID, MD and AC, which share seven vector"
    " processing units.",
    (
        Box("hbm", "HBM", 0, 0.4, 9, 2.6, OUTSIDE),
        Box("eas", "EAS: scores|by key centers", 0, 5, 9, 3.6),
        Box(
            "apid",
            "APID: active|positions",
            11,
            5,
            8.5,
            3.6,
            "docs/lad.md#the-active-position-identification",
        ),
        Box("md", "MD: modes", 21.5, 5.4, 6, 2.8),
        Box("ac", "AC", 29.5, 5.4, 4, 2.8),
        Box(
            "vpu",
            "VPU: dot product, product, scaled vector",
            0,
            11.4,
            27.5,
            2.8,
            "docs/lad.md#the-vector-processing-unit",
        ),
        Box("sfm", "SFM", 29.5, 11.4, 4, 2.8),
    ),
    (
        ("hbm", "eas"),
        ("eas", "apid"),
        ("apid", "md"),
        ("md", "ac"),
        ("eas", "vpu"),
        ("md", "vpu"),
    ),
)

UNICAIM = Diagram(
    "Keys lie in the array; a search finds the top k rows, their scores are converted, and the row"
    " with the smallest accumulation is evicted.",
    (
        Box("query", "keys, queries", 0, 5, 8, 2.6, OUTSIDE),
        Box(
            "array",
            "UniCAIM array:|cells (model),|digital (RTL)",
            10.5,
            3.6,
            11,
            5.4,
            "docs/unicaim.md#the-arrays-and-their-search",
        ),
        Box(
            "topk",
            "CAM mode:|top-k sense",
            24,
            0.4,
            9.5,
            3.6,
            "docs/unicaim.md#the-arrays-and-their-search",
        ),
        Box(
            "adc",
            "CIM mode:|SAR ADC",
            24,
            5.6,
            9.5,
            3.6,
            "docs/unicaim.md#differences-from-the-paper",
        ),
        Box(
            "charge",
            "charge|accumulation",
            10.5,
            11,
            11,
            3.6,
            "docs/unicaim.md#accumulation-and-eviction",
        ),
        Box(
            "evict",
            "eviction|sense",
            24,
            11,
            9.5,
            3.6,
            "docs/unicaim.md#accumulation-and-eviction",
        ),
        Box("core", "controller:|writes, softmax", 0, 11, 8.5, 3.6),
    ),
    (
        ("query", "array"),
        ("array", "topk"),
        ("array", "adc"),
        ("array", "charge"),
        ("charge", "evict"),
    ),
)

RESULTS = "make eval"
PAPERS = (
    Paper(
        "kllm",
        "KLLM",
        "Fig. 6",
        "whole accelerator",
        KLLM,
        {"kllm": RESULTS, "kllm_counting": ".venv/bin/python -m sim counting"},
    ),
    Paper(
        "veda",
        "VEDA",
        "Fig. 7",
        "core: attention and eviction of a layer",
        VEDA,
        {"veda_speed": ".venv/bin/python -m sim ablation --speed", "veda": RESULTS},
    ),
    Paper(
        "topick",
        "ToPick",
        "Figs. 6 and 7",
        "one lane",
        TOPICK,
        {"topick": RESULTS, "topick_speed": ".venv/bin/python -m sim pruning --longer FILE.npz"},
    ),
    Paper("lad", "LAD", "Fig. 4", "two blocks of a tile", LAD, {"lad": RESULTS}),
    Paper(
        "unicaim",
        "UniCAIM",
        "Fig. 4",
        "array and peripheral blocks, no controller",
        UNICAIM,
        {"unicaim": RESULTS},
    ),
)
