"""The five papers: what a tile of each is made of, and how much of it is built and checked."""

import dataclasses

from sim.commands.page.diagram import OUTSIDE, Box, Diagram


@dataclasses.dataclass(frozen=True)
class Paper:
    """A card of the page.

    figure
        Figure of the paper, after which the diagram is drawn.
    status
        How much is built, in a few words.
    whole
        Blocks of the catalogue that are more than a box: the whole diagram, or a comparison.
    commands
        For each page of docs/results, the command that repeats its figures.
    """

    name: str
    title: str
    figure: str
    status: str
    diagram: Diagram
    whole: tuple[str, ...]
    commands: dict[str, str]


PRODUCT = "docs/kllm.md#the-blocks-of-the-product"
ROUNDING = "docs/kllm.md#rounding-of-sums"
FUNCTIONS = (
    *("functional_unit", "softmax", "element_function"),
    *("inverse_rms", "rms_factor", "codebook_replacement"),
    *("vector_unit", "pair_function"),
)
COUNTERS = ("column_counter", "index_distribution_counter")
KLLM = Diagram(
    "A vector is clustered and its outliers are set apart; sixteen lanes count pairs of activation"
    " and weight indices, weight the counts, and add the outliers' products.",
    (
        Box("x", "vector", 0, 1, 4, 2.4, OUTSIDE),
        Box(
            *("orizuru", "Orizuru:|outliers", 6, 0, 7, 3.4, "docs/kllm.md#orizuru"),
            ("orizuru", "outlier_split"),
        ),
        Box("cluster", "Clustering|Unit", 6, 5, 7, 3.4, PRODUCT, ("clustering_unit",)),
        Box("act", "Act Idx|Buffer", 15.5, 5, 7.5, 3.4, PRODUCT, ("index_buffer",)),
        Box("list", "outlier|list", 15.5, 0, 7.5, 3.4, PRODUCT, ("outlier_list",)),
        Box("memory", "Wgt Buffer:|weight indices", 0, 10.5, 9.5, 3.4, PRODUCT, ("word_fetch",)),
        Box("concat", "Concat|Unit", 11, 10.5, 6, 3.4, PRODUCT, ("concat_unit",)),
        Box("count", "Idx|Counter", 18.5, 10.5, 6, 3.4, PRODUCT, COUNTERS),
        Box("mac", "MAC:|reduction", 26, 10.5, 7, 3.4, ROUNDING, ("reduction",)),
        Box("sparse", "MAC:|outliers", 26, 5, 7, 3.4, PRODUCT, ("sparse_path",)),
        Box(
            *("function", "Functional|Unit", 0, 16, 9.5, 3.4, "docs/kllm.md#the-functional-unit"),
            FUNCTIONS,
        ),
        Box("out", "scale, Out Buffer", 18.5, 16.3, 14.5, 2.6, ROUNDING, ("column_scale",)),
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

ARRAY = "docs/veda.md#the-array"
SFU = "docs/veda.md#the-special-function-unit"
VOTING = "docs/veda.md#the-voting-engine"
CORE = "docs/veda.md#the-core"
VEDA = Diagram(
    "Rows of K and V stream from the HBM through the PE array; probabilities of the special"
    " function unit go back to the array and on to the voting engine, which names a row to evict.",
    (
        Box("hbm", "HBM: KV cache,|one row a cycle", 0, 4, 10, 3.6, OUTSIDE),
        Box("array", "PE array:|q · K, s' · V", 13.5, 4, 9, 3.6, ARRAY, ("pe_array",)),
        Box(
            *("sfu", "Special|Function Unit", 25, 4, 8.5, 3.6, SFU),
            ("special_function_unit",),
        ),
        Box("scheduler", "scheduler", 13.5, 0, 9, 2.4, CORE, ("scheduler",)),
        Box("voting", "voting engine", 25, 9.4, 8.5, 2.6, VOTING, ("voting_engine",)),
        Box("map", "row map:|which row is evicted", 0, 9.1, 12.5, 3.4, CORE, ("row_map",)),
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

LANES = "docs/topick.md#the-core"
NUMBERS = "docs/topick.md#numbers"
ORDER = "docs/topick.md#order-and-stalls"
TOPICK = Diagram(
    "A lane computes scores chunk by chunk; the RPDU prunes a token or requests its next chunk, by"
    " a denominator that all lanes' partial exponentials add up to. Values of the tokens that are"
    " left are weighted by their probabilities in the same lane.",
    (
        Box("dram", "DRAM:|chunks of K, V", 0, 0, 8.5, 3.4, OUTSIDE),
        Box("chunks", "chunk|buffer", 0, 5.1, 8.5, 3.4, LANES, ("chunk_buffer",)),
        Box("margin", "Margin Generator", 10.5, 0, 11, 2.6, NUMBERS, ("margin_generator",)),
        Box(
            *("tree", "multipliers,|adder tree", 10.5, 5, 9.5, 3.6),
            *("docs/topick.md#differences-from-the-paper", ("chunk_multiplier", "weighted_sums")),
        ),
        Box("board", "Scoreboard", 10.5, 10.6, 6.5, 2.6, ORDER, ("scoreboard",)),
        Box("rpdu", "RPDU: prune,|request or keep", 22.5, 1.9, 11, 3.6, NUMBERS, ("rpdu",)),
        Box("pec", "PEC", 22.5, 6.6, 5.5, 2.6, NUMBERS, ("pec",)),
        Box("dag", "DAG:|denominator", 27, 11.6, 6.5, 3.6, LANES, ("dag",)),
        Box(
            *("probability", "Probability|Generator", 16, 14.2, 8.5, 3.6, LANES),
            ("probability_generator",),
        ),
    ),
    (
        ("dram", "chunks"),
        ("chunks", "tree"),
        ("margin", "tree"),
        ("tree", "board"),
        ("board", "tree"),
        ("tree", "pec"),
        ("tree", "rpdu"),
        ("pec", "dag"),
        ("dag", "rpdu"),
        ("dag", "probability"),
        ("probability", "tree"),
    ),
)

TILE = "docs/lad.md#the-tile"
APID = "docs/lad.md#the-active-position-identification"
LAD = Diagram(
    "Attention is pipelined over four modules, EAS, APID, MD and AC, which share six vector"
    " processing units where the paper has seven.",
    (
        Box("hbm", "HBM", 0, 0.4, 8, 2.6, OUTSIDE),
        Box("eas", "EAS:|all scores", 0, 5, 8, 3.6, TILE, ("eas",)),
        Box("apid", "APID: active|positions", 9.5, 5, 8, 3.6, APID, ("apid",)),
        Box("fetch", "active|fetch", 19, 5, 5, 3.6, TILE, ("active_fetch",)),
        Box("md", "MD", 25.5, 5.4, 3.5, 2.8, TILE, ("md",)),
        Box("ac", "AC", 30.5, 5.4, 3.5, 2.8, TILE, ("ac",)),
        Box(
            *("vpu", "six VPUs: dot product, product, scaled vector", 0, 11.4, 34, 2.8),
            *("docs/lad.md#the-vector-processing-unit", ("vpu",)),
        ),
        Box("sfm", "SFM", 30.5, 0.4, 3.5, 2.6, TILE, ("vector_path", "vector_unit")),
    ),
    (
        ("hbm", "eas"),
        ("hbm", "fetch"),
        ("eas", "apid"),
        ("apid", "fetch"),
        ("fetch", "md"),
        ("md", "ac"),
        ("eas", "vpu"),
        ("md", "vpu"),
        ("ac", "vpu"),
    ),
)

ARRAYS = "docs/unicaim.md#the-arrays-and-their-search"
EVICTION = "docs/unicaim.md#accumulation-and-eviction"
WHOLE = "docs/unicaim.md#the-core"
UNICAIM = Diagram(
    "Keys lie in the array; a search finds the top k rows, whose attention is exact, from memory or"
    " from converted scores; the row with the smallest accumulation is evicted.",
    (
        Box("query", "keys, queries", 0, 0.2, 8, 2.6, OUTSIDE),
        Box("levels", "level|converter", 0, 4.2, 8, 3.4, WHOLE, ("level_converter",)),
        Box(
            *("array", "UniCAIM array:|cells (model),|digital (RTL)", 10.5, 3.2, 11, 5.4, ARRAYS),
            ("cell_array", "digital_array", "serial_array"),
        ),
        Box("topk", "CAM mode:|top-k sense", 24, 0.6, 9.5, 3.4, ARRAYS, ("topk_sense",)),
        Box(
            *("adc", "CIM mode:|SAR ADC", 24, 5, 9.5, 3.4),
            *("docs/unicaim.md#differences-from-the-paper", ("sar_adc", "adc_bank")),
        ),
        Box("exact", "softmax,|sum of values", 24, 10, 9.5, 3.4, WHOLE, ("exact_attention",)),
        Box("memory", "memory:|K, V", 24, 15, 9.5, 3.4, OUTSIDE),
        Box(
            *("charge", "charge|accumulation", 10.5, 10, 11, 3.4, EVICTION),
            ("charge_accumulator", "group_sum"),
        ),
        Box("evict", "eviction|sense", 10.5, 15, 11, 3.4, EVICTION, ("eviction_sense",)),
        Box(
            *("rows", "controller:|commands, rows", 0, 15, 8.5, 3.4, WHOLE),
            ("command_sequence", "row_manager"),
        ),
    ),
    (
        ("query", "levels"),
        ("levels", "array"),
        ("array", "topk"),
        ("array", "adc"),
        ("adc", "exact"),
        ("memory", "exact"),
        ("array", "charge"),
        ("charge", "evict"),
        ("evict", "rows"),
        ("rows", "levels"),
    ),
)

RESULTS, AREAS = "make eval", ".venv/bin/python -m sim areas -o FOLDER"
PAPERS = (
    Paper(
        *("kllm", "KLLM", "Fig. 6", "whole accelerator", KLLM),
        whole=("kllm_core", "pe_lane", "centroid_lane"),
        commands={
            "kllm": RESULTS,
            "kllm_counting": ".venv/bin/python -m sim counting",
            "kllm_area": AREAS,
        },
    ),
    Paper(
        *("veda", "VEDA", "Fig. 7", "core: attention and eviction of a layer", VEDA),
        whole=("veda_core",),
        commands={
            "veda_speed": ".venv/bin/python -m sim ablation --speed FOLDER",
            "veda_area": AREAS,
            "veda": RESULTS,
        },
    ),
    Paper(
        *("topick", "ToPick", "Figs. 6 and 7", "whole core, any number of lanes", TOPICK),
        whole=("topick_core", "pe_lane"),
        commands={
            "topick": RESULTS,
            "topick_speed": ".venv/bin/python -m sim pruning --longer FILE.npz",
            "topick_area": AREAS,
        },
    ),
    Paper(
        *("lad", "LAD", "Fig. 4", "tile, and several at one port", LAD),
        whole=("lad_tile", "lad_system"),
        commands={
            "lad": RESULTS,
            "lad_speed": ".venv/bin/python -m sim locality",
            "lad_area": AREAS,
        },
    ),
    Paper(
        *("unicaim", "UniCAIM", "Fig. 4", "whole core: a layer's decode step", UNICAIM),
        whole=("unicaim_core",),
        commands={"unicaim": RESULTS},
    ),
)
