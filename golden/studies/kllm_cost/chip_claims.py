"""The chip: Table I and the shares of its energy (Fig. 10b)."""

import dataclasses

from golden.algorithms.kllm.cost import published as paper
from golden.algorithms.kllm.cost.cycles import Product, column_cycles, product_bytes
from golden.algorithms.kllm.cost.decode import search_cycles
from golden.algorithms.kllm.quantize import outlier_count
from golden.studies.kllm_cost.rates import K, Setting, percent
from golden.studies.study import CLOSE, Claim, Verdict, close


def table_claims(setting: Setting) -> list[Claim]:
    parts = paper.NAMED
    chip = [part for part in paper.PARTS if not part.in_lane]
    area = sum(part.number * part.area for part in paper.PARTS if part.in_lane)
    lane_power = sum(part.number * part.power for part in paper.PARTS if part.in_lane)
    power = paper.LANE_POWER + sum(part.power for part in chip)
    total = paper.LANE_AREA + sum(part.area for part in chip)
    missing = paper.TOTAL_POWER - power
    out, mac = parts["Out Buffer"], parts["MAC"]
    buffers = [part for part in paper.PARTS if part.kilobytes]
    buffer_area = sum(part.number * part.area for part in buffers)
    densities = {part.name: part.bit_area for part in buffers}
    smallest, largest = min(densities.values()), max(densities.values())
    joules = mac.joules(setting.core.clock)
    per_index = parts["IdxCounter"].joules(setting.core.clock) / 16
    core = setting.at(activation_bits=4).core
    computed = -(-K // core.lanes) * column_cycles(dataclasses.replace(core, share=0), K)
    rate = product_bytes(core, Product(K, K)) / computed * core.clock
    return [
        Claim(
            f"lanes {paper.LANE_AREA} mm², total {paper.TOTAL_AREA} mm²",
            f"lanes {area:.2f}, total {total:.2f} mm²",
            _same((area, paper.LANE_AREA), (total, paper.TOTAL_AREA)),
            f"sum of the rows; buffers are {percent(buffer_area / total)} of it",
        ),
        Claim(
            f"lanes {paper.LANE_POWER} W, total {paper.TOTAL_POWER} W",
            f"lanes {lane_power:.2f}, total {power:.2f} W",
            _same((lane_power, paper.LANE_POWER), (power, paper.TOTAL_POWER)),
            f"the total is {missing:.2f} W above its rows, which is the Out Buffer's"
            f" {out.power:.2f} W once more",
        ),
        Claim(
            "areas of four buffers",
            ", ".join(f"{name} {value:.2f}" for name, value in densities.items()) + " µm² a bit",
            Verdict.HOLDS if largest / smallest < 2 else Verdict.UNKNOWN,
            f"they do not follow the sizes: they differ {largest / smallest:.0f} times, two of 2 KB"
            f" {densities['Wgt Buffer'] / densities['Act Codebook Buffer']:.0f} times. A cell of a"
            f" dense 28 nm SRAM is about {paper.CELL} µm²; number and width of ports are not in"
            " the text",
        ),
        Claim(
            "powers of four buffers",
            ", ".join(f"{part.name} {part.power_density:.3f}" for part in buffers) + " W/mm²",
            Verdict.UNKNOWN,
            "of buffers of 2 KB and of 32 KB, of one read a column and of one a cycle, the power"
            " is the same quarter of a watt a mm², so that it follows from the area and not from"
            f" accesses. The Out Buffer's is half of that; counted twice it would be"
            f" {2 * out.power_density:.3f}",
        ),
        Claim(
            f"{mac.units} MACs take {mac.power} W a lane",
            f"{joules * 1e12:.1f} pJ an operation, if all work in each cycle",
            Verdict.HOLDS if close(joules, paper.MAC_JOULES) else Verdict.NOT,
            f"an FP16 multiplication and addition take about {paper.MAC_JOULES * 1e12:.1f} pJ at"
            " 45 nm (Horowitz, 2014), less at 28 nm. The counter takes"
            f" {per_index * 1e12:.2f} pJ an index",
        ),
        Claim(
            "a product's rate by 16 lanes of 32 counters at 500 MHz; a bandwidth is not stated",
            f"{K} × {K} in {computed:.0f} cycles, {rate / 1e12:.2f} TB/s",
            Verdict.ASSUMED,
            f"a word a lane and cycle are {core.word_bytes} bytes, and a scale a column. This is"
            f" {percent(rate / paper.A100_BANDWIDTH)} of an A100's"
            f" {paper.A100_BANDWIDTH / 1e12:.2f} TB/s, or {rate / 256e9:.1f} stacks of HBM2 of 256"
            f" GB/s; at {paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit"
            f" {rate * 8 * paper.HBM_JOULES_A_BIT:.0f} W, beside {paper.TOTAL_POWER} W on chip",
        ),
    ]


def _same(*pairs: tuple[float, float]) -> Verdict:
    close = all(abs(ours / theirs - 1) < 0.002 for ours, theirs in pairs)
    return Verdict.HOLDS if close else Verdict.CONTRADICTS


def breakdown_claims(setting: Setting) -> list[Claim]:
    parts = paper.NAMED
    three = setting.at(activation_bits=3).core
    counting = column_cycles(dataclasses.replace(three, share=0), K)
    duty_macs = three.groups(False) / counting
    taken = -(-K // three.lanes) * counting
    search = search_cycles(K, outlier_count(K, 0.01)) / taken
    per_share = paper.LANES * parts["IdxCounter"].power / paper.SHARES["distribution"]

    def implied(share: str, row: str) -> float:
        """Share of the time in which a row's power makes its share of the energy."""
        part = parts[row]
        return paper.SHARES[share] * per_share / part.power / part.number

    rest = 100 - sum(paper.SHARES.values())
    buffers = sum(
        parts[name].number * parts[name].power
        for name in ("Wgt Buffer", "Out Buffer", "Act Idx Buffer")
    )
    used = implied("concatenation", "Concat Unit")
    reduced, found = implied("reduction", "MAC"), implied("Orizuru", "Orizuru")
    looked = implied("dequantisation", "Act Codebook Buffer")
    bits = (3 + 4) / 8
    return [
        Claim(
            f"distribution {paper.SHARES['distribution']} %, concatenation"
            f" {paper.SHARES['concatenation']} % of the on-chip energy (W4A3)",
            f"concat units at {percent(used)} of Table I's power while counters are at theirs",
            Verdict.ASSUMED if abs(used / bits - 1) <= CLOSE else Verdict.NOT,
            f"7 of 8 bits in use would be {percent(bits)}. The paper's lane has 4096 registers for"
            f" {three.word} indices counted at a time; this project's concatenates what is counted,"
            " in 2 % of its area ([areas](../kllm.md#area-and-delay))",
        ),
        Claim(
            f"reduction {paper.SHARES['reduction']} %",
            f"MACs at {percent(reduced)} of Table I's power",
            Verdict.HOLDS if close(reduced, duty_macs) else Verdict.NOT,
            f"{1 << 7} bins on {three.macs} MACs take {three.groups(False)} of"
            f" {counting:.0f} cycles, {percent(duty_macs)}",
        ),
        Claim(
            f"Orizuru {paper.SHARES['Orizuru']} %",
            f"at Table I's power for {percent(found)} of the product's cycles",
            Verdict.HOLDS if close(found, search) else Verdict.NOT,
            f"its comparisons, 12 levels and 21 pops of 12, take {percent(search)} of"
            f" {taken:.0f} cycles",
        ),
        Claim(
            f"dequantisation (look-ups of products) {paper.SHARES['dequantisation']} %",
            f"{looked:.0f} times the power of the Act Codebook Buffer in Table I",
            Verdict.CONTRADICTS if looked > 1 else Verdict.HOLDS,
            "Table I has no other part that looks products up",
        ),
        Claim(
            f"{rest:.2f} % for the rest: FP Mult., FP Add., Quant.",
            f"other buffers {buffers:.2f} W in Table I, counters"
            f" {paper.LANES * parts['IdxCounter'].power:.2f} W",
            Verdict.UNKNOWN,
            "reading weights and activation indices and writing outputs would be"
            f" {buffers / per_share:.0f} more of the figure's percents at Table I's powers; it"
            " leaves them out, or the shares hold them",
        ),
    ]
