"""KLLM's figures on speed, energy and area beside the formulas, with a verdict on each."""

import dataclasses
from collections.abc import Callable
from enum import StrEnum

from golden.algorithms.kllm.cost import a100_bytes
from golden.algorithms.kllm.cost import published as paper
from golden.algorithms.kllm.cost.cycles import Core, Product, column_cycles, cycles, product_bytes
from golden.algorithms.kllm.cost.decode import VECTORS, search_cycles
from golden.algorithms.kllm.quantize import outlier_count
from golden.evaluation.kllm_cost.rates import Setting, bandwidth_of_growth, growth

K = 4096
"""Rows and columns of the paper's product (Figs. 1 and 10b)."""
CLOSE = 0.1


class Basis(StrEnum):
    """What a figure of the paper is worth by arithmetic."""

    HOLDS = "holds"
    ASSUMED = "holds under an assumption"
    NOT = "not reproduced"
    CONTRADICTS = "contradicts the paper's other figures"
    UNKNOWN = "cannot be checked"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of the paper, ours with its arithmetic, the verdict, and the reason for it."""

    where: str
    paper: str
    ours: str
    verdict: Basis
    why: str


def claims(setting: Setting) -> list[Claim]:
    """All, in the order of the paper's figures; what the model decides is computed.

    Precisions and batches are the paper's, whatever the setting's.
    """
    makers: tuple[Callable[[Setting], list[Claim]], ...] = (
        _kernel,
        _table,
        _speed,
        _energy,
        _batched,
        _outliers,
        _breakdown,
        _perplexity,
        _saving,
    )
    return [claim for maker in makers for claim in maker(setting)]


def _bits(setting: Setting, bits: int) -> Setting:
    return setting.at(activation_bits=bits)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


# Fig. 1 and Table I


def _kernel(setting: Setting) -> list[Claim]:
    taken = cycles(_bits(setting, 4).core, Product(K, K)) / setting.core.clock
    read = 2 * K * K / paper.A100_BANDWIDTH
    needed = paper.KERNEL_SPEED * taken
    return [
        Claim(
            "Fig. 1b",
            f"{paper.KERNEL_SPEED}× faster than an A100 in a K-Means product of {K} × {K}, W4A4",
            f"{taken * 1e6:.2f} µs; the A100 would take {needed * 1e6:.1f} µs",
            Basis.ASSUMED if needed > read else Basis.CONTRADICTS,
            f"an A100 reads the same matrix in FP16 in {read * 1e6:.1f} µs, so over a plain FP16"
            f" product at full bandwidth the gain is at most {read / taken:.1f}×. The time of its"
            " K-Means kernel is in the picture only",
        )
    ]


def _table(setting: Setting) -> list[Claim]:
    lane = [part for part in paper.PARTS if part.in_lane]
    chip = [part for part in paper.PARTS if not part.in_lane]
    area = paper.LANES * sum(part.area for part in lane)
    lane_power = paper.LANES * sum(part.power for part in lane)
    power = paper.LANE_POWER + sum(part.power for part in chip)
    total = paper.LANE_AREA + sum(part.area for part in chip)
    missing = paper.TOTAL_POWER - power
    out = next(part for part in chip if part.name == "Out Buffer")
    buffers = [part for part in paper.PARTS if part.kilobytes]
    densities = {part.name: 1e6 * part.area / (8192 * part.kilobytes) for part in buffers}
    smallest, largest = min(densities.values()), max(densities.values())
    by_area = {part.name: part.power / part.area for part in buffers}
    mac = next(part for part in lane if part.name == "MAC")
    joules = mac.power / mac.units / setting.core.clock
    core = _bits(setting, 4).core
    computed = -(-K // core.lanes) * column_cycles(dataclasses.replace(core, share=0), K)
    rate = product_bytes(core, Product(K, K)) / computed * core.clock
    return [
        Claim(
            "Table I",
            f"lanes {paper.LANE_AREA} mm², total {paper.TOTAL_AREA} mm²",
            f"lanes {area:.2f}, total {total:.2f} mm²",
            _same((area, paper.LANE_AREA), (total, paper.TOTAL_AREA)),
            f"sum of the rows; buffers are {_percent(_buffer_area() / total)} of it",
        ),
        Claim(
            "Table I",
            f"lanes {paper.LANE_POWER} W, total {paper.TOTAL_POWER} W",
            f"lanes {lane_power:.2f}, total {power:.2f} W",
            _same((lane_power, paper.LANE_POWER), (power, paper.TOTAL_POWER)),
            f"the total is {missing:.2f} W above its rows, which is the Out Buffer's"
            f" {out.power:.2f} W once more",
        ),
        Claim(
            "Table I",
            "areas of four buffers",
            ", ".join(f"{name} {value:.2f}" for name, value in densities.items()) + " µm² a bit",
            Basis.HOLDS if largest / smallest < 2 else Basis.UNKNOWN,
            f"they do not follow the sizes: they differ {largest / smallest:.0f} times, two of 2 KB"
            f" {densities['Wgt Buffer'] / densities['Act Codebook Buffer']:.0f} times. A cell of a"
            f" dense 28 nm SRAM is about {paper.CELL} µm²; number and width of ports are not in"
            " the text",
        ),
        Claim(
            "Table I",
            "powers of four buffers",
            ", ".join(f"{name} {value:.3f}" for name, value in by_area.items()) + " W/mm²",
            Basis.UNKNOWN,
            "of buffers of 2 KB and of 32 KB, of one read a column and of one a cycle, the power"
            " is the same quarter of a watt a mm², so that it follows from the area and not from"
            f" accesses. The Out Buffer's is half of that; counted twice it would be"
            f" {2 * by_area[out.name]:.3f}",
        ),
        Claim(
            "Table I",
            f"{mac.units} MACs take {mac.power} W a lane",
            f"{joules * 1e12:.1f} pJ an operation, if all work in each cycle",
            _close(joules, paper.MAC_JOULES),
            f"an FP16 multiplication and addition take about {paper.MAC_JOULES * 1e12:.1f} pJ at"
            " 45 nm (Horowitz, 2014), less at 28 nm. The counter takes"
            f" {_unit_joules(setting, 'IdxCounter') / 16 * 1e12:.2f} pJ an index",
        ),
        Claim(
            "Table I",
            "a product's rate by 16 lanes of 32 counters at 500 MHz; a bandwidth is not stated",
            f"{K} × {K} in {computed:.0f} cycles, {rate / 1e12:.2f} TB/s",
            Basis.ASSUMED,
            f"a word a lane and cycle are {core.word_bytes} bytes, and a scale a column. This is"
            f" {_percent(rate / paper.A100_BANDWIDTH)} of an A100's"
            f" {paper.A100_BANDWIDTH / 1e12:.2f} TB/s, or {rate / 256e9:.1f} stacks of HBM2 of 256"
            f" GB/s; at {paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit"
            f" {rate * 8 * paper.HBM_JOULES_A_BIT:.0f} W, beside {paper.TOTAL_POWER} W on chip",
        ),
    ]


def _buffer_area() -> float:
    return sum(
        part.area * (paper.LANES if part.in_lane else 1) for part in paper.PARTS if part.kilobytes
    )


def _unit_joules(setting: Setting, name: str) -> float:
    part = next(part for part in paper.PARTS if part.name == name)
    return part.power / part.units / setting.core.clock


def _same(*pairs: tuple[float, float]) -> Basis:
    close = all(abs(ours / theirs - 1) < 0.002 for ours, theirs in pairs)
    return Basis.HOLDS if close else Basis.CONTRADICTS


def _close(ours: float, theirs: float) -> Basis:
    return Basis.HOLDS if abs(ours / theirs - 1) <= CLOSE else Basis.NOT


# Fig. 8


def _speed(setting: Setting) -> list[Claim]:
    four, three = _bits(setting, 4), _bits(setting, 3)
    bound, name = setting.bound(), setting.shape.name
    found = []
    for at, bits, speeds in ((four, 4, paper.SPEED_A4), (three, 3, paper.SPEED_A3)):
        claimed = speeds["A100"]
        used = at.rate() / claimed / bound
        found.append(
            Claim(
                "Fig. 8a",
                f"A{bits}: {claimed}× faster than the A100",
                f"{at.rate() / bound:.2f}× over an A100 at its bandwidth ({at.rate():.0f} and"
                f" {bound:.0f} tokens/s, {name})",
                _by_use(setting, used, at.rate(), claimed),
                f"{claimed}× needs an A100 that uses {_percent(used)} of its bandwidth,"
                f" {at.rate() / claimed:.0f} tokens/s. Measured by others on LLaMA-2-7B:"
                f" {paper.A100_EAGER} in plain PyTorch, {paper.A100_TUNED} compiled, so that the"
                f" core's gain is {at.rate() / paper.A100_EAGER:.1f}× to"
                f" {at.rate() / paper.A100_TUNED:.1f}×. The text calls the A100 memory-bound",
            )
        )
    ratios = [paper.SPEED_A3[name] / paper.SPEED_A4[name] for name in paper.BASELINES]
    gain = three.rate() / four.rate()
    token = four.token()
    found.append(
        Claim(
            "Fig. 8a",
            f"A3 is {min(ratios):.3f} to {max(ratios):.3f} times faster than A4",
            f"{gain:.3f} times",
            _close(gain, sum(ratios) / len(ratios)),
            "weights have 4 bits in both and are counted in as many cycles; only the reduction"
            " halves. It bounds the last tile of a long column and the queries' products with keys,"
            f" {_percent(token.keys / token.cycles)} of A4's cycles, as a column of keys is one"
            " word. The smaller the share of attention, the less A3 gains",
        )
    )
    quantised = setting.bound() * 4
    over = four.rate() / paper.SPEED_A4["QuaRot"]
    found.append(
        Claim(
            "Fig. 8a",
            f"A4: {paper.SPEED_A4['QuaRot']}× faster than QuaRot on the A100",
            f"QuaRot at {over:.0f} tokens/s, {_percent(over / quantised)} of the bandwidth",
            Basis.UNKNOWN,
            "the paper states no rate of it. Weights of 4 bits on an A100 reach"
            f" {paper.A100_FOUR_BITS} tokens/s with activations in 16 bits (gpt-fast), of which"
            f" {four.rate():.0f} are {four.rate() / paper.A100_FOUR_BITS:.1f}×",
        )
    )
    for other, size in (("SpAtten", 8), ("Olive", 4), ("BitMoD", 4)):
        speed = paper.SPEED_A4[other]
        rate = four.rate() / speed
        # Half of FP16 or a quarter of it, weights and cache.
        read = a100_bytes(setting.shape, setting.context) * size / 16
        found.append(
            Claim(
                "Fig. 8a",
                f"A4: {speed}× faster than {other} ({'FP8' if size == 8 else 'W4A4'})",
                f"{other} at {rate:.0f} tokens/s, {rate * read / 1e12:.2f} TB/s",
                Basis.UNKNOWN,
                f"{_percent(rate * read / paper.A100_BANDWIDTH)} of an A100's memory. If one memory"
                f" bound both, the core would be {read / token.bytes:.2f}× faster. Neither the"
                " bandwidth of the others nor their units and area are in the text",
            )
        )
    return found


def _by_use(setting: Setting, used: float, rate: float, claimed: float) -> Basis:
    if used > 1:
        return Basis.CONTRADICTS
    # What others measured is of one model.
    slow = paper.A100_EAGER / setting.bound()
    fast = paper.A100_TUNED / setting.bound()
    if setting.shape.name != "LLaMA-2-7B":
        slow, fast = 0.0, 1.0
    if slow <= used <= fast:
        return Basis.ASSUMED
    return Basis.HOLDS if used > fast else Basis.NOT


def _energy(setting: Setting) -> list[Claim]:
    four = _bits(setting, 4)
    token = four.token()
    ratio = paper.ENERGY_A100 / paper.SPEED_A4["A100"]
    own = paper.A100_POWER / ratio
    left = own - paper.TOTAL_POWER
    bandwidth = left / paper.HBM_JOULES_A_BIT / 8
    rate = bandwidth / token.bytes
    chip = ratio * paper.TOTAL_POWER
    memory = four.rate() * token.bytes * 8 * paper.HBM_JOULES_A_BIT
    spatten = paper.ENERGY_SPATTEN / paper.SPEED_A4["SpAtten"]
    pairs = [b / a for a, b in zip(paper.ENERGY_A4, paper.ENERGY_A3, strict=True)]
    return [
        Claim(
            "Fig. 8b",
            f"A4: {paper.ENERGY_A100}× less energy than the A100",
            f"with {paper.SPEED_A4['A100']}× the speed, {ratio:.1f}× less power: {own:.1f} W beside"
            f" an A100 at {paper.A100_POWER:.0f} W",
            Basis.NOT if rate < four.bound() else Basis.HOLDS,
            f"beside {paper.TOTAL_POWER} W on chip {left:.1f} W are left for the HBM. At"
            f" {paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit they move {bandwidth / 1e12:.2f} TB/s,"
            f" {rate:.0f} tokens/s, where an A100 may reach {four.bound():.0f} and the core's"
            f" {four.rate():.0f} take {memory:.0f} W. Without the HBM the figures agree:"
            f" {ratio:.1f} × {paper.TOTAL_POWER} W are {chip:.0f} W, a likely A100",
        ),
        Claim(
            "Fig. 8b",
            f"A4: {paper.ENERGY_SPATTEN}× less energy than SpAtten",
            f"{spatten:.2f}× less power",
            Basis.UNKNOWN,
            f"SpAtten at {spatten * paper.TOTAL_POWER:.1f} W on chip; neither its power nor its"
            " memory's is in the text",
        ),
        Claim(
            "Fig. 8b",
            "A4: " + ", ".join(f"{value}×" for value in paper.ENERGY_A4) + " less energy than"
            f" {', '.join(paper.BASELINES)}",
            "seven figures for five names",
            Basis.UNKNOWN,
            "the first is the A100's and the fourth SpAtten's by the abstract; Atom's and MECLA's"
            " may be among the others. A3 over A4 is the same in all,"
            f" {min(pairs):.3f} to {max(pairs):.3f}, where its speed gains"
            f" {paper.SPEED_A3['A100'] / paper.SPEED_A4['A100']:.3f}",
        ),
    ]


# Fig. 9


def _batched(setting: Setting) -> list[Claim]:
    found = []
    batch = setting.batch
    for bits, claimed, single in (
        (4, paper.SPEED_BATCH_A4, paper.SPEED_A4["A100"]),
        (3, paper.SPEED_BATCH_A3, paper.SPEED_A3["A100"]),
    ):
        at = _bits(setting, bits)
        rate, bound = at.rate(batch), at.bound(batch)
        used, before = rate / claimed / bound, at.rate() / single / at.bound()
        found.append(
            Claim(
                "Fig. 9",
                f"A{bits}: {claimed}× faster than the A100 at a batch of {paper.BATCH}",
                f"{rate / bound:.2f}× over an A100 at its bandwidth ({rate:.0f} and {bound:.0f}"
                f" tokens/s, batch {batch})",
                Basis.NOT if used < before else Basis.ASSUMED,
                f"needs an A100 at {_percent(used)} of its bandwidth, after {_percent(before)} at a"
                " batch of one; the text says that its use rises",
            )
        )
    four = _bits(setting, 4)
    theirs = four.bound(batch) / four.bound()
    wanted = theirs * paper.SPEED_BATCH_A4 / paper.SPEED_A4["A100"]
    gain = growth(four)
    one = growth(four.at(bandwidth=min(paper.STACKS.values())))
    found.append(
        Claim(
            "Fig. 9",
            "with the batch all accelerators gain throughput by reusing weights",
            f"{gain:.2f}× at a batch of {batch}",
            Basis.HOLDS if gain > 1 + CLOSE else Basis.NOT,
            f"a column is shared, but {batch} vectors take {batch} times the cycles, and one"
            f" already takes all. With one stack of HBM2 (256 GB/s) the gain is {one:.2f}×. An A100"
            f" gains {theirs:.2f}× at equal use of its bandwidth, so {paper.SPEED_A4['A100']}× and"
            f" {paper.SPEED_BATCH_A4}× say that KLLM gains {wanted:.2f}×: a memory of"
            f" {bandwidth_of_growth(four, wanted) / 1e12:.1f} TB/s",
        )
    )
    return found


# Fig. 10


def lost(core: Core) -> float:
    """Rate of a product of `K` rows that its outliers cost, of one without any."""
    without = column_cycles(dataclasses.replace(core, share=0), K)
    return 1 - without / column_cycles(core, K)


def search_loss(setting: Setting, cache: bool) -> float:
    """Rate of all layers' products that the paper's search costs if nothing hides it.

    cache
        Queries, new keys and new values are split too.
    """
    shape, core = setting.shape, setting.core
    split = [shape.hidden] * (VECTORS - 1) + [shape.inner]
    if cache:
        split += [shape.hidden] + [shape.kv_heads * shape.head] * 2
    search = sum(
        search_cycles(min(core.tile, k - at), outlier_count(min(core.tile, k - at), core.share))
        for k in split
        for at in range(0, k, core.tile)
    )
    return search / (search + setting.token().layers / shape.layers)


def _outliers(setting: Setting) -> list[Claim]:
    four, three = _bits(setting.at(share=0.01), 4), _bits(setting.at(share=0.01), 3)
    by_ports = {r: lost(four.at(entries=r).core) for r in (1, 2, 4, 8, 16)}
    low, high = paper.LOST
    fit = [r for r in range(1, 33) if lost(four.at(entries=r).core) <= high]
    searched = [search_loss(at, cache) for cache in (False, True) for at in (four, three)]
    whole = 1 - four.rate() / four.at(share=0.0).rate()
    return [
        Claim(
            "Fig. 10a",
            f"1 % of outliers cost KLLM {100 * low:.0f} to {100 * high:.0f} % of KLLM-S's"
            " throughput: their multiplication",
            ", ".join(f"R = {r}: {_percent(value)}" for r, value in by_ports.items()),
            Basis.ASSUMED if fit else Basis.NOT,
            f"T against the same product without outliers, {K} × {K}; the whole token loses"
            f" {_percent(whole)} at R = {four.core.entries}."
            + (f" Up to {100 * high:.0f} % from R = {fit[0]} on." if fit else "")
            + " R is not in the text, and KLLM-S multiplies its outliers too",
        ),
        Claim(
            "Fig. 10a",
            "the same: their search, to which the text attributes it",
            f"{_percent(searched[0])} and {_percent(searched[1])} (A4, A3) of the layers' rate with"
            f" {VECTORS} vectors a layer, {_percent(searched[2])} and {_percent(searched[3])} with"
            " queries, keys and values too",
            Basis.ASSUMED if min(searched) <= high and max(searched) >= low else Basis.NOT,
            "if nothing hides it: log2 N cycles for both trees, and as many for each pop,"
            f" {search_cycles(K, outlier_count(K, 0.01))} for {K} values; tiles of a longer vector"
            " one after another. This project's Orizuru pops in one cycle and splits a vector"
            " while the one before is multiplied",
        ),
    ]


def _breakdown(setting: Setting) -> list[Claim]:
    parts = {part.name: part for part in paper.PARTS}
    three = _bits(setting, 3).core
    counting = column_cycles(dataclasses.replace(three, share=0), K)
    duty_macs = three.groups(False) / counting
    taken = -(-K // three.lanes) * counting
    search = search_cycles(K, outlier_count(K, 0.01)) / taken
    per_share = paper.LANES * parts["IdxCounter"].power / paper.SHARES["distribution"]

    def implied(share: str, row: str) -> float:
        """Share of the time in which a row's power makes its share of the energy."""
        part = parts[row]
        return paper.SHARES[share] * per_share / part.power / (paper.LANES if part.in_lane else 1)

    rest = 100 - sum(paper.SHARES.values())
    buffers = paper.LANES * parts["Wgt Buffer"].power
    buffers += parts["Out Buffer"].power + parts["Act Idx Buffer"].power
    used = implied("concatenation", "Concat Unit")
    reduced, found = implied("reduction", "MAC"), implied("Orizuru", "Orizuru")
    looked = implied("dequantisation", "Act Codebook Buffer")
    bits = (3 + 4) / 8
    return [
        Claim(
            "Fig. 10b",
            f"distribution {paper.SHARES['distribution']} %, concatenation"
            f" {paper.SHARES['concatenation']} % of the on-chip energy (W4A3)",
            f"concat units at {_percent(used)} of Table I's power while counters are at theirs",
            _close(used, bits),
            f"7 of 8 bits in use would be {_percent(bits)}. The paper's lane has 4096 registers for"
            f" {three.word} indices counted at a time; this project's concatenates what is counted,"
            " in 2 % of its area ([areas](../kllm.md#area-and-delay))",
        ),
        Claim(
            "Fig. 10b",
            f"reduction {paper.SHARES['reduction']} %",
            f"MACs at {_percent(reduced)} of Table I's power",
            _close(reduced, duty_macs),
            f"{1 << 7} bins on {three.macs} MACs take {three.groups(False)} of"
            f" {counting:.0f} cycles, {_percent(duty_macs)}",
        ),
        Claim(
            "Fig. 10b",
            f"Orizuru {paper.SHARES['Orizuru']} %",
            f"at Table I's power for {_percent(found)} of the product's cycles",
            _close(found, search),
            f"its comparisons, 12 levels and 21 pops of 12, take {_percent(search)} of"
            f" {taken:.0f} cycles",
        ),
        Claim(
            "Fig. 10b",
            f"dequantisation (look-ups of products) {paper.SHARES['dequantisation']} %",
            f"{looked:.0f} times the power of the Act Codebook Buffer in Table I",
            Basis.CONTRADICTS if looked > 1 else Basis.HOLDS,
            "Table I has no other part that looks products up",
        ),
        Claim(
            "Fig. 10b",
            f"{rest:.2f} % for the rest: FP Mult., FP Add., Quant.",
            f"other buffers {buffers:.2f} W in Table I, counters"
            f" {paper.LANES * parts['IdxCounter'].power:.2f} W",
            Basis.UNKNOWN,
            "reading weights and activation indices and writing outputs would be"
            f" {buffers / per_share:.0f} on this scale at Table I's powers; the figure leaves them"
            " out, or the shares hold them",
        ),
    ]


# Figs. 11 and 12


def _perplexity(setting: Setting) -> list[Claim]:
    rtn, kmeans, weighted, dynamic = paper.PERPLEXITY_STEPS
    agree = (rtn, weighted, dynamic) == paper.PERPLEXITY_TABLE
    measured = "a model of 135 million parameters: [KLLM's algorithm](kllm.md)"
    return [
        Claim(
            "Fig. 11",
            f"K-Means instead of integers: perplexity from above {rtn:,.0f} to {kmeans} (W4A3)",
            f"the first and the last two are{'' if agree else ' not'} Table II's",
            Basis.HOLDS if agree else Basis.CONTRADICTS,
            f"and thousands of times lower on {measured}",
        ),
        Claim(
            "Fig. 11",
            f"sample weights in K-Means: {kmeans} to {weighted}",
            f"{_percent(weighted / kmeans - 1)}",
            Basis.UNKNOWN,
            f"below the scatter that roundings make on {measured}",
        ),
        Claim(
            "Fig. 11",
            f"outliers found online: {weighted} to {dynamic}",
            f"{_percent(dynamic / weighted - 1)}",
            Basis.UNKNOWN,
            f"within that scatter on {measured}",
        ),
    ]


@dataclasses.dataclass(frozen=True)
class Saving:
    """Fig. 12's energies, the whole of (A) being 1.

    hbm
        Of (A), what the step to (B) says it is.
    steps
        (A) to (D) by the text.
    floor
        What reading the weights takes in (B), (C) and (D).
    most
        Of (A), HBM's share that leaves (D) its size.
    """

    hbm: float
    steps: tuple[float, float, float, float]
    floor: float
    most: float


def saving(setting: Setting, cumulative: bool = False) -> Saving:
    """Fig. 12 with each step over the one before, or (C) over (A)."""
    b = 1 / paper.SAVED_B
    c = (1 if cumulative else b) / paper.SAVED_C
    d = c / paper.SAVED_D
    hbm = (1 - b) / paper.HBM_SAVED
    cache = 2 * setting.shape.layers * setting.shape.kv_heads * setting.shape.head * 2
    weights = 2 * setting.shape.weights
    share = weights / (weights + cache * setting.context)
    floor = hbm * share * (1 - paper.HBM_SAVED)
    return Saving(hbm, (1.0, b, c, d), floor, d / (share * (1 - paper.HBM_SAVED)))


def _saving(setting: Setting) -> list[Claim]:
    each, whole = saving(setting), saving(setting, cumulative=True)
    token = _bits(setting, 3).token()
    seconds = token.cycles / setting.core.clock
    memory = token.bytes * 8 * paper.HBM_JOULES_A_BIT
    chip = paper.TOTAL_POWER * seconds
    return [
        Claim(
            "Fig. 12",
            f"(B) weights of 4 bits: {100 * paper.HBM_SAVED:.0f} % less HBM energy,"
            f" {paper.SAVED_B}× less in all",
            f"HBM is {_percent(each.hbm)} of (A), {_percent(each.hbm / 4 * paper.SAVED_B)} of (B)",
            Basis.CONTRADICTS if each.floor > each.steps[3] else Basis.HOLDS,
            f"1 − 0.75 h = 1/{paper.SAVED_B}. If (D) is to hold, h is at most {_percent(each.most)}"
            f" of (A) ({_percent(whole.most)} if (C) is over (A)): 75 % of it are"
            f" {_percent(0.75 * each.most)} of the whole, and (B) saves"
            f" {1 / (1 - 0.75 * each.most):.2f}× ({1 / (1 - 0.75 * whole.most):.2f}×)",
        ),
        Claim(
            "Fig. 12",
            f"(C) activations of 3 bits, products on indices: {paper.SAVED_C}×",
            f"at most {each.steps[1] / each.floor:.2f}× over (B), {1 / each.floor:.2f}× over (A)",
            Basis.CONTRADICTS if each.floor > each.steps[2] else Basis.HOLDS,
            f"weights have 4 bits in (B) and (C), and reading them takes {_percent(each.floor)} of"
            f" (A) by the share above; all of (C) is {_percent(each.steps[2])}, or"
            f" {_percent(whole.steps[2])} if it is over (A)",
        ),
        Claim(
            "Fig. 12",
            f"(D) nonlinear operations on indices: {paper.SAVED_D}× more",
            f"they were {_percent(1 - 1 / paper.SAVED_D)} of (C), all of (D) is"
            f" {_percent(each.steps[3])} of (A)",
            Basis.UNKNOWN if each.floor < each.steps[3] else Basis.CONTRADICTS,
            f"less than reading the weights takes in (D) too, {_percent(each.floor)} of (A). By"
            f" formula a token takes {chip * 1e3:.0f} mJ on chip ({paper.TOTAL_POWER} W) and"
            f" {memory * 1e3:.0f} mJ in the HBM ({paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit)",
        ),
    ]
