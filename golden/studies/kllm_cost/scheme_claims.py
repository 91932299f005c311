"""The scheme by counts: sections III-B and III-C, and what the text compares it with."""

import dataclasses

from golden.algorithms.kllm.cost import published as paper
from golden.algorithms.kllm.cost.cycles import column_cycles
from golden.algorithms.kllm.quantize import outlier_count
from golden.studies.kllm_cost.rates import K, Setting, percent
from golden.studies.study import Claim, Verdict, close

BITS = 4
"""Of both indices: W4A4."""
BREAKDOWN_BITS = 4 + 3
"""Of both indices in Fig. 10b, W4A3."""
COMPRESSION = 4
"""Section VI-A: FP16's size over 4-bit weights'."""
LOOKED_UP = 0.63
"""Section I: look-ups' share of the time of a K-Means product on an A100 (Fig. 1c)."""


def scheme_claims(setting: Setting) -> list[Claim]:
    """Products on indices (section III-B)."""
    return [_online_macs(setting), _integer_macs(setting), _looked_up()]


@dataclasses.dataclass(frozen=True)
class Macs:
    """Floating-point MACs of a decoded token.

    layers
        Products with the model's matrices, the head's too, with their outliers.
    keys, values
        Queries by keys, and scores by values.
    """

    layers: float
    keys: float
    values: float

    @property
    def all(self) -> float:
        """Their sum."""
        return self.layers + self.keys + self.values


def plain_macs(setting: Setting) -> Macs:
    """MACs of the products as they are."""
    shape = setting.shape
    attention = shape.layers * shape.heads * shape.head * setting.context
    return Macs(shape.weights, attention, attention)


def index_macs(setting: Setting, bits: int = BITS) -> Macs:
    """MACs of the paper's scheme, indices of `bits` bits and scores as integers.

    A column longer than the core's tile takes its bins once a tile, and each outlier a MAC.
    """
    shape, core = setting.shape, setting.core
    bins = 1 << 2 * bits
    matrices = [*shape.matrices] * shape.layers + [(shape.hidden, shape.vocabulary)]
    layers = sum(
        n * (bins * -(-k // core.tile) + 2 * outlier_count(k, core.share)) for k, n in matrices
    )
    caches = shape.layers * shape.heads
    return Macs(layers, caches * setting.context * bins, caches * shape.head * (1 << bits))


def _online_macs(setting: Setting) -> Claim:
    bins = 1 << 2 * BITS
    plain, index = plain_macs(setting), index_macs(setting)
    head = setting.shape.head
    return Claim(
        f"MACs of a column fall from K to 2^(nA + nB): {bins} instead of {K} (W4A4)",
        f"layers and head {plain.layers / index.layers:.1f} times fewer with their outliers,"
        f" queries by keys {index.keys / plain.keys:.1f} times more, scores by values"
        f" {plain.values / index.values:.0f} times fewer; all {plain.all / index.all:.1f} times",
        Verdict.of(bins < setting.shape.hidden, bins < head),
        f"a token of {setting.shape.name}, mean context {setting.context:.0f}; a column of"
        f" {setting.shape.inner} has tiles of {setting.core.tile}. A column of keys has {head}"
        f" rows, fewer than {bins} bins",
        where="III-B1",
    )


def _integer_macs(setting: Setting) -> Claim:
    core = setting.at(activation_bits=BITS).core
    bins, fewer, own = 1 << 2 * BITS, 1 << BITS, BITS << BITS
    length = round(setting.context)
    # The paper's counters are weighted by the integer, the core's count its bits.
    without = dataclasses.replace(core, share=0)
    indices, integers = (column_cycles(without, length, integer) for integer in (False, True))
    return Claim(
        "with one factor integers the bins, the MACs and the time fall: 2^nA instead of"
        f" 2^(nA + nB), {fewer} instead of {bins}",
        f"{own} bins in the core, a column of {length} values in {integers:.0f} cycles instead of"
        f" {indices:.0f}",
        Verdict.COUNTS if fewer < bins and integers < indices else Verdict.NOT,
        f"{bins // fewer} times fewer by counts. The core counts the integer's bits in"
        f" nA 2^nW bins, {bins // own} times fewer, with the same counters",
        where="III-B2",
    )


def _looked_up() -> Claim:
    alone = 1 / (1 - LOOKED_UP)
    return Claim(
        f"times of W4A4 kernels on an A100 (integers, K-Means), {percent(LOOKED_UP)} of K-Means's"
        " in look-ups",
        f"without look-ups {alone:.2f}×",
        Verdict.UNKNOWN,
        f"needs an A100; {paper.KERNEL_SPEED}× then says that all else is"
        f" {paper.KERNEL_SPEED / alone:.2f} times faster too",
        where="Fig. 1b, 1c",
    )


def function_claims(setting: Setting) -> list[Claim]:
    """Functions on indices (section III-C)."""
    values = 1 << BITS
    gated = values * values
    kept = 2 * outlier_count(K, setting.core.share)
    macs = values + kept
    return [
        Claim(
            "an activation function needs new centroids alone; its output keeps the indices",
            f"{values} values of a function of one vector, {gated} of SiLU(gate) · up",
            Verdict.of(values <= 1 << BITS, gated <= 1 << BITS),
            "true of a function of one vector. All models of section V gate: two vectors with an"
            " index each, whose product has to be quantised anew"
            " ([why](../kllm.md#the-functional-unit))",
            where="III-C1",
        ),
        Claim(
            "RMSNorm takes 2^n squares and 2^n MACs instead of N, and divides a scale and 2^nW"
            " centroids instead of N elements",
            f"of N = {K}: {macs} squares and MACs, {1 + values} divisions",
            Verdict.COUNTS if macs < K and 1 + values < K else Verdict.NOT,
            f"{K / macs:.0f} and {K / (1 + values):.0f} times fewer. {kept} of the {macs} are"
            f" outliers, which have no index and which the text leaves out; without them {values}."
            " The core multiplies one factor into the scales and divides once",
            where="III-C2",
        ),
    ]


def lookup_claims(setting: Setting) -> list[Claim]:
    """Look-ups of Fig. 10b's product, whose size does not depend on the setting."""
    bins = 1 << BREAKDOWN_BITS
    looked, whole = K * bins, K * K + K
    return [
        Claim(
            "dequantisation is small, as only the products of centroids are looked up, not the"
            " matrices",
            f"{looked:,} look-ups of {whole:,} elements, {whole / looked:.0f} times fewer",
            Verdict.COUNTS if looked < whole else Verdict.NOT,
            f"{K} × {K}, W4A3: {bins} products a column, though one table of {bins} serves all"
            " columns",
        )
    ]


def size_claims(setting: Setting) -> list[Claim]:
    """The weights' compression (section VI-A)."""
    token = setting.at(activation_bits=BITS).token()
    ratio = 2 * setting.shape.weights / token.weight_bytes
    return [
        Claim(
            f"weights of 4 bits take {COMPRESSION}× less than FP16",
            f"{ratio:.2f}×",
            Verdict.REPRODUCED if close(ratio, COMPRESSION) else Verdict.NOT,
            f"{setting.shape.name}, words of {setting.core.word} positions and a scale a column as"
            " the core reads them",
        )
    ]
