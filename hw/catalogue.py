# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""Every block this project builds, by name. All commands and tests find blocks here."""

import dataclasses
import importlib
import re

from hw.parameters import ParameterError, Parameters, meant, require_one_of


@dataclasses.dataclass(frozen=True)
class Block:
    """One generator.

    folder, component
        Where it lives and its class; the parameters class is `component` + ``Parameters``.
    summary
        One line for listings.
    source
        Paper section, or ``library`` for a block that is this project's own.
    synthesizable_as
        Of a block for simulation only, such as a model of an analog circuit, the name of the
        block to synthesize in its place; empty for all others.
    """

    folder: str
    component: str
    summary: str
    source: str
    synthesizable_as: str = ""

    @property
    def module(self) -> str:
        """The file's name without ending: the class in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.component).lower()

    @property
    def name(self) -> str:
        return f"{self.folder}.{self.module}"

    @property
    def parameters_class(self) -> type[Parameters]:
        return getattr(self._load(), f"{self.component}Parameters")

    def create(self, parameters: Parameters):
        """The hardware component for `parameters`."""
        return getattr(self._load(), self.component)(parameters)

    def _load(self):
        return importlib.import_module(f"hw.{self.folder}.{self.module}")


BLOCKS = (
    Block(
        "stream",
        "Queue",
        "First-in first-out buffer of any depth",
        "library",
    ),
    Block(
        "stream",
        "SkidBuffer",
        "Two-entry buffer that cuts the ready path at full throughput",
        "library",
    ),
    Block(
        "stream",
        "Arbiter",
        "Round-robin merge of several streams into one",
        "library",
    ),
    Block(
        "stream",
        "SequentialReader",
        "Runs of consecutive words from a memory that answers in any order",
        "library",
    ),
    Block(
        "arith",
        "FloatAdd",
        "Floating-point addition and subtraction, correctly rounded",
        "library",
    ),
    Block(
        "arith",
        "FloatMultiply",
        "Floating-point product, correctly rounded, with subnormals",
        "library",
    ),
    Block(
        "arith",
        "FloatMultiplyAdd",
        "Fused multiply-add with one rounding, also into a wider format",
        "library",
    ),
    Block(
        "arith",
        "FloatCompare",
        "Less, equal or unordered, exact",
        "library",
    ),
    Block(
        "arith",
        "FloatMax",
        "Larger of two numbers, a NaN loses (IEEE 754-2019 maximumNumber)",
        "library",
    ),
    Block(
        "arith",
        "FloatMin",
        "Smaller of two numbers, a NaN loses (IEEE 754-2019 minimumNumber)",
        "library",
    ),
    Block(
        "arith",
        "FloatToFixed",
        "Floating to fixed point, four roundings, saturating, with flags",
        "library",
    ),
    Block(
        "arith",
        "FixedToFloat",
        "Fixed to floating point, correctly rounded",
        "library",
    ),
    Block(
        "arith",
        "FloatConvert",
        "Any floating-point format to any other, correctly rounded",
        "library",
    ),
    Block(
        "arith",
        "Exp",
        "e to the power of a floating-point number",
        "library",
    ),
    Block(
        "arith",
        "Log",
        "Natural logarithm",
        "library",
    ),
    Block(
        "arith",
        "Divide",
        "Quotient, less than one unit in the last place off",
        "library",
    ),
    Block(
        "arith",
        "Reciprocal",
        "1 / x, less than one unit in the last place off",
        "library",
    ),
    Block(
        "arith",
        "SquareRoot",
        "Square root, correctly rounded",
        "library",
    ),
    Block(
        "arith",
        "InverseSquareRoot",
        "1 / sqrt(x), less than one unit in the last place off",
        "library",
    ),
    Block(
        "arith",
        "Exp2Fixed",
        "2^-x of a fixed-point number, rounded down or up, never past it",
        "ToPick, section III",
    ),
    Block(
        "arith",
        "Log2Fixed",
        "log2 of an integer, rounded down or up, never past it",
        "ToPick, section III",
    ),
    Block(
        "arith",
        "PiecewiseLinear",
        "Function as straight lines over intervals",
        "LAD, section III",
    ),
    Block(
        "arith",
        "AdderTree",
        "Sum or maximum of n numbers, floating-point or exact",
        "library",
    ),
    Block(
        "arith",
        "DotProduct",
        "Dot product of n pairs, floating-point or exact",
        "library",
    ),
    Block(
        "arith",
        "PopulationCount",
        "Number of ones among n bits",
        "library",
    ),
    Block(
        "kllm",
        "Orizuru",
        "k largest and k smallest of N FP16 values from two trees over shared leaves",
        "KLLM, section IV-C, Fig. 7",
    ),
    Block(
        "kllm",
        "ClusteringUnit",
        "Index of the nearest centroid, by scaled midpoints",
        "KLLM, section IV-A",
    ),
    Block(
        "kllm",
        "OutlierList",
        "Outliers of a vector as rows by segment, given out for every column",
        "KLLM, section III-D",
    ),
    Block(
        "kllm",
        "ConcatUnit",
        "Activation and weight indices side by side",
        "KLLM, section IV-A",
    ),
    Block(
        "kllm",
        "IndexDistributionCounter",
        "Histogram of the indices of a beat",
        "KLLM, section IV-B",
    ),
    Block(
        "kllm",
        "ColumnCounter",
        "Histogram of a column's indices, double-buffered",
        "KLLM, section IV-B",
    ),
    Block(
        "kllm",
        "Reduction",
        "Weighted sum of a histogram, exact",
        "KLLM, section III-B",
    ),
    Block(
        "kllm",
        "SparsePath",
        "Outliers times weights, summed exactly",
        "KLLM, section III-D",
    ),
    Block(
        "kllm",
        "ColumnScale",
        "Scales a column's sums and rounds to FP16",
        "KLLM, section III-D",
    ),
    Block(
        "kllm",
        "PeLane",
        "Indices and outliers of columns in, results out",
        "KLLM, Fig. 5",
    ),
    Block(
        "kllm",
        "Softmax",
        "Softmax of rows of FP16 scores, several a cycle",
        "KLLM, section IV-A",
    ),
    Block(
        "kllm",
        "ElementFunction",
        "e^x, SiLU, reciprocal and square root of FP16 numbers",
        "KLLM, section III-C1",
    ),
    Block(
        "kllm",
        "InverseRms",
        "1 / RMS of a vector from the sums of its squares",
        "KLLM, section III-C2",
    ),
    Block(
        "kllm",
        "FunctionalUnit",
        "Softmax, element-wise functions and 1 / RMS side by side",
        "KLLM, Fig. 6",
    ),
    Block(
        "kllm",
        "OutlierSplit",
        "A vector's outliers and scale, and the vector again with them marked",
        "KLLM, sections III-D and IV",
    ),
    Block(
        "kllm",
        "IndexBuffer",
        "A vector's indices in words, given out for every column",
        "KLLM, Fig. 5",
    ),
    Block(
        "kllm",
        "RmsFactor",
        "1 / RMS of a vector from its indices and outliers",
        "KLLM, section III-C2",
    ),
    Block(
        "kllm",
        "CodebookReplacement",
        "A function of a vector by new centroids and products",
        "KLLM, section III-C1",
    ),
    Block(
        "kllm",
        "KllmCore",
        "Vectors in, products with K-Means matrices out",
        "KLLM, Fig. 5",
    ),
    Block(
        "veda",
        "PeArray",
        "Inner and outer products with the same multipliers and adders",
        "VEDA, section IV-A and Fig. 5",
    ),
    Block(
        "veda",
        "SpecialFunctionUnit",
        "Softmax, layer norm and RMS norm of vectors, an element a cycle",
        "VEDA, sections IV-B and V",
    ),
    Block(
        "veda",
        "VotingEngine",
        "Votes of every token against rows of the cache, and which row leaves it",
        "VEDA, sections III and V",
    ),
    Block(
        "veda",
        "VedaCore",
        "A layer's decode step: attention of its heads, and which row leaves the cache",
        "VEDA, section V and Fig. 7",
    ),
    Block(
        "topick",
        "MarginGenerator",
        "How far scores may lie from partial ones, from the query alone",
        "Token-Picker, section 4",
    ),
    Block(
        "topick",
        "Scoreboard",
        "Partial results of tokens whose next chunk is on its way, and free slots",
        "Token-Picker, section 4.1",
    ),
    Block(
        "topick",
        "Rpdu",
        "Whether a token is pruned, its next chunk requested, or kept",
        "Token-Picker, section 4.1",
    ),
    Block(
        "topick",
        "Pec",
        "A token's share of the denominator, and its difference to the earlier one",
        "Token-Picker, section 4.1",
    ),
    Block(
        "topick",
        "PeLane",
        "Scores of keys chunk by chunk in any order, pruning, and weighted sums of values",
        "Token-Picker, section 4.1 and Fig. 7",
    ),
    Block(
        "lad",
        "Vpu",
        "Dot products, products by element and scaled vectors, an operation a cycle",
        "LAD, section IV-B and Fig. 5(b)",
    ),
    Block(
        "lad",
        "Apid",
        "Positions that have left their mode's interval, and the others' counters",
        "LAD, section IV-B",
    ),
    Block(
        "unicaim",
        "CellArray",
        "Array of ferroelectric cells as a behavioural model, for simulation only",
        "UniCAIM, sections III-B2, III-B3 and III-B5",
        synthesizable_as="unicaim.digital_array",
    ),
    Block(
        "unicaim",
        "DigitalArray",
        "Rows of keys that meet a query at once, and a race of their scores",
        "UniCAIM, sections III-B2 and III-B3",
    ),
    Block(
        "unicaim",
        "TopkSense",
        "Stops a race when k lines are left, and gives out their addresses",
        "UniCAIM, section III-B3",
    ),
    Block(
        "unicaim",
        "ChargeAccumulator",
        "Accumulated scores of rows by charge sharing",
        "UniCAIM, section III-B4",
    ),
    Block(
        "unicaim",
        "EvictionSense",
        "Row of the smallest accumulation, by a downward race",
        "UniCAIM, section III-B4",
    ),
    Block(
        "unicaim",
        "SarAdc",
        "Successive approximation of a score, a bit a cycle",
        "UniCAIM, section III-B5",
    ),
)


def find(name: str) -> Block:
    """The block of that catalogue name.

    :raises ParameterError: if there is none.
    """
    for block in BLOCKS:
        if block.name == name:
            return block
    rule = "block must be one of those that `python -m hw list` names"
    raise ParameterError(f"{rule}, not {name!r}{meant(name, [block.name for block in BLOCKS])}")


def select(name: str) -> list[Block]:
    """`name`'s block alone, or every block for ``all``."""
    return list(BLOCKS) if name == "all" else [find(name)]


def configurations(name: str, presets: list[str]) -> list[tuple[Block, str]]:
    """A block, or ``all``, with those of the presets that each block has.

    :raises ParameterError: for an unknown block, or a preset that none of them has.
    """
    blocks = select(name)
    known = dict.fromkeys(p for block in blocks for p in block.parameters_class.presets())
    for preset in presets:
        require_one_of("preset", preset, [*known], aliases=("default", "first"))
    return [
        (block, preset)
        for block in blocks
        for preset in dict.fromkeys(map(block.parameters_class.preset_name, presets))
        if preset in block.parameters_class.presets()
    ]
